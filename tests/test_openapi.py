"""The published description and its offline page: valid, complete, exact about what a client may send and expect."""

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from sidecar import docs, errors, openapi, params, published, wire
from sidecar.answer.queries import passage_query
from sidecar.search import queries
from tests.rig import FIRST_TURN

Json = dict[str, Any]


def operations() -> Iterator[tuple[str, Json]]:
    """Every operation by `METHOD path`."""
    for path, item in published.document()["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


def operation(name: str) -> Json:
    """One of them."""
    return dict(operations())[name]


def parameter(of: str, name: str) -> Json:
    """One parameter's schema."""
    schema: Json = next(each["schema"] for each in operation(of)["parameters"] if each["name"] == name)
    return schema


def conforms(schema: Json, instance: object) -> bool:
    """Whether JSON has this schema, which may refer to those of the document."""
    whole = {**schema, "components": published.document()["components"]}
    return bool(OAS31Validator(whole, format_checker=OAS31Validator.FORMAT_CHECKER).is_valid(instance))


def codes(of: str) -> dict[str, list[str]]:
    """The error codes of one operation by status."""
    return {
        status: answer["content"]["application/problem+json"]["schema"]["properties"]["code"]["enum"]
        for status, answer in operation(of)["responses"].items()
        if "application/problem+json" in answer.get("content", {})
    }


class Page(HTMLParser):
    """What a test asks of a page: its elements, in order, with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def values(self, attribute: str) -> list[str]:
        """The values of one attribute, on whatever element."""
        return [value for _, attributes in self.elements if (value := attributes.get(attribute)) is not None]


@pytest.fixture
def page() -> Page:
    """The documentation page."""
    return Page(published.page())


def test_document_is_valid_and_survives_json() -> None:
    """A validator of OpenAPI 3.1 accepts the document as clients get it, and JSON loses nothing of it."""
    received = msgspec.json.decode(msgspec.json.encode(published.document()))
    validate(received)
    assert received == published.document()


def test_document_and_page_are_built_once() -> None:
    """Asking again costs nothing."""
    assert published.document() is published.document()
    assert published.page() is published.page()


SEARCH = "GET /agent_api/v1/workspaces/{workspace_public_id}/conversation_search"
HISTORY = "GET /agent_api/v1/workspaces/{workspace_public_id}/conversations/{conversation_public_id}/history"
RECALL = "POST /agent_api/v1/workspaces/{workspace_public_id}/history_search"
AUDIT = "GET /agent_api/v1/workspaces/{workspace_public_id}/search_audit"


def test_paths_are_those_of_the_seeds() -> None:
    """There are the seeds' routes, whatever is installed, and those of an operator's tools."""
    expected = {
        "GET /api/chat/sessions",
        "GET /api/chat/sessions/{session_id}",
        "DELETE /api/chat/sessions/{session_id}",
        "GET /api/chat/sessions/{session_id}/turns",
        "GET /livez",
        "GET /readyz",
        "GET /healthz",
        "GET /metrics",
        "GET /openapi.json",
        "GET /docs",
        SEARCH,
        HISTORY,
        RECALL,
        AUDIT,
        "POST /mcp",
        "GET /v1/search",
        "POST /v1/search",
        "POST /v1/search/batch",
        "POST /v1/chat",
        "POST /v1/search/chat",
        "GET /v1/search/chat/stream",
        "POST /v1/chat/completions",
    }
    assert expected == {name for name, _ in operations()}


def test_every_operation_names_its_scope_or_is_public() -> None:
    """What needs a token says which scope, in our own member and in the standard's; the rest asks for nothing."""
    for name, each in operations():
        scope = each.get("x-required-scope")
        assert each["security"] in ([], [{"bearer": [] if scope is None else [scope]}]), name
    scopes = {name: each.get("x-required-scope") for name, each in operations() if each["security"]}
    assert scopes == {
        "GET /api/chat/sessions": "read",
        "GET /api/chat/sessions/{session_id}": "read",
        "DELETE /api/chat/sessions/{session_id}": "retire",
        "GET /api/chat/sessions/{session_id}/turns": "read",
        "GET /metrics": "read",
        SEARCH: "search",
        HISTORY: "search",
        RECALL: "search",
        AUDIT: "audit",
        "POST /mcp": "search",
        "GET /v1/search": "search",
        "POST /v1/search": "search",
        "POST /v1/search/batch": None,  # each of its items asks for the scope
        "POST /v1/chat": "chat",
        "POST /v1/search/chat": "chat",
        "GET /v1/search/chat/stream": "chat",
        "POST /v1/chat/completions": "chat",
    }


def test_every_error_code_is_documented() -> None:
    """Each code belongs to an operation under its own status, and Problem knows it."""
    expected = {(str(error.status), error.code) for error in errors.codes()}
    documented = {(status, code) for name, _ in operations() for status, group in codes(name).items() for code in group}
    assert expected == documented
    problem = published.document()["components"]["schemas"]["Problem"]["properties"]
    assert {error.code for error in errors.codes()} == set(problem["code"]["enum"])


def test_problems_conform_to_the_answers_that_document_them() -> None:
    """What `errors` answers has the documented schema, media type and headers, and only under its own code."""
    by_code = {error.code: error for error in errors.codes()}
    for name, each in operations():
        for status, group in codes(name).items():
            documented = each["responses"][status]
            schema = documented["content"]["application/problem+json"]["schema"]
            for code in by_code:
                problem = errors.problem(by_code[code]("Do this next."), "r-1")
                body = msgspec.json.decode(problem.body)
                assert (code in group) == conforms(schema, body), (name, status, code)
                assert problem.media_type in documented["content"]
                assert "Cache-Control" in documented["headers"]


def test_codes_of_a_deletion() -> None:
    """A client of the most delicate operation can tell its refusals apart by status and code."""
    assert codes("DELETE /api/chat/sessions/{session_id}") == {
        "400": ["host_not_allowed", "invalid_request", "not_a_session", "parameter_invalid", "session_id_invalid"],
        "401": ["unauthorized"],
        "403": ["insufficient_scope", "origin_not_allowed", "owner_not_allowed"],
        "405": ["method_not_allowed"],
        "409": ["already_retired", "session_active"],
        "413": ["body_too_large"],
        "414": ["target_too_long"],
        "431": ["headers_too_large"],
        "500": ["internal_error"],
        "503": ["busy", "database_unavailable", "read_only", "task_store_missing", "tombstones_unavailable"],
    }


def test_turns_are_never_not_found() -> None:
    """An unknown session has an empty list of turns, so the description promises no 404."""
    assert "404" not in operation("GET /api/chat/sessions/{session_id}/turns")["responses"]
    assert ["not_found"] == codes("GET /api/chat/sessions/{session_id}")["404"]


def test_health_takes_any_host() -> None:
    """The health routes are probed by address: no refusal for the Host, and none for want of a token."""
    for path in ("/livez", "/healthz", "/readyz"):
        assert ["invalid_request"] == codes(f"GET {path}")["400"]
        assert "401" not in operation(f"GET {path}")["responses"]


def test_an_answer_of_304_has_a_validator_and_no_body() -> None:
    """Conditional reads document both answers with the same headers."""
    conditional = {name: each["responses"] for name, each in operations() if "304" in each["responses"]}
    assert 4 == len(conditional)
    for name, answers in conditional.items():
        assert "content" not in answers["304"], name
        assert answers["200"]["headers"] == answers["304"]["headers"], name
        assert {"ETag", "Cache-Control", "Vary", "X-Request-Id"} <= set(answers["304"]["headers"]), name


@pytest.mark.parametrize(
    ("status", "header"),
    [("401", "WWW-Authenticate"), ("405", "Allow"), ("503", "Retry-After"), ("500", "Cache-Control")],
)
def test_refusals_name_their_headers(status: str, header: str) -> None:
    """What a client acts on beside the body is described."""
    assert header in operation("GET /api/chat/sessions")["responses"][status]["headers"]


def test_limit_is_lowered_rather_than_refused() -> None:
    """The description agrees with the parser: ten digits are accepted, the default is the same, 0 is refused."""
    limit = parameter("GET /api/chat/sessions", "limit")
    assert params.index_query(b"").limit == limit["default"]
    assert params.MAX_LIMIT == params.index_query(f"limit={limit['maximum']}".encode()).limit
    for refused in (limit["minimum"] - 1, limit["maximum"] + 1):
        with pytest.raises(errors.ParameterInvalid):
            params.index_query(f"limit={refused}".encode())
    assert (
        params.MAX_LIMIT == published.document()["components"]["schemas"]["TurnList"]["properties"]["turns"]["maxItems"]
    )


def test_limit_of_the_search_agrees_with_its_parser() -> None:
    """The same for the wing's own limit, and its bound is the answer's."""
    for of, answer, rows, parse in (
        (SEARCH, "SearchAnswer", "matches", lambda query: queries.search_query(b"query=x&" + query)),
        (HISTORY, "HistoryAnswer", "turns", lambda query: queries.history_query("chat-1", query)),
    ):
        limit = parameter(of, "limit")
        assert parse(b"").limit == limit["default"]
        most = parse(f"limit={limit['maximum']}".encode()).limit
        assert published.document()["components"]["schemas"][answer]["properties"][rows]["maxItems"] == most
        for refused in (limit["minimum"] - 1, limit["maximum"] + 1):
            with pytest.raises(errors.ParameterInvalid):
                parse(f"limit={refused}".encode())


def test_limits_of_a_retrieval_agree_with_its_parser() -> None:
    """Seed 004's own limit is refused outside its bounds; what the description takes, the parser takes."""
    least = {"q": "okapi", "workspaceId": "default"}
    limit = parameter("GET /v1/search", "limit")
    assert passage_query(least).limit == limit["default"]
    schemas = published.document()["components"]["schemas"]
    assert schemas["PassageAnswer"]["properties"]["results"]["maxItems"] == limit["maximum"]
    changes: tuple[Json, ...] = (
        *({"limit": number} for number in (0, 1, 100, 101)),
        *({"q": text} for text in ("", " ", "x" * 16_000, "x" * 16_001)),
        *({"tags": text} for text in ("completed", "TASK_STATE_FAILED , working", "completed,", "done", "")),
        *({"mimeTypes": text} for text in ("text/csv", "text/csv, image/png", "text/csv,,image/png", ",", " ")),
        *({"documentId": text} for text in ("a", "", "x" * 256, "a\nb")),
        *({"hyde": flag} for flag in (True, False)),
        {"owner": "alice"},
    )
    for more in changes:
        given: Json = {**least, **more}
        try:
            passage_query(given)
            is_taken = True
        except errors.ParameterInvalid:
            is_taken = False
        assert is_taken == conforms(openapi.ref("PassageQuery"), given), given


@pytest.mark.parametrize(
    "session_id", ["", "a", "chat-漢字/ü 🙂", "x" * 255, "x" * 256, "a\x00", "a\nb", "\x7f", "\x85"]
)
def test_session_id_agrees_with_the_parser(session_id: str) -> None:
    """The documented schema accepts exactly the ids that the parser accepts."""
    schema = parameter("GET /api/chat/sessions/{session_id}/turns", "session_id")
    assert wire.valid_session_id(session_id) == conforms(schema, session_id)


def test_a_turn_has_exactly_the_keys_of_the_seed() -> None:
    """Rows as `wire` writes them conform, with any JSON in the raw columns; another key does not."""
    keys = published.document()["components"]["schemas"]["Turn"]["required"]
    assert ["task_id", "state", "last_updated", "text", "status", "artifacts", "history"] == keys
    cell, large = wire.Cell(b'[{"parts":[]},null,1e400]', 20), wire.Cell(None, 20)
    turns = [
        wire.Turn("t-1", "working", None, wire.Cell(b"{}", 2), cell, large),
        wire.Turn("t-2", "", FIRST_TURN, wire.Cell(None, None), wire.Cell(b"7", 1), cell),
    ]
    body = msgspec.json.decode(wire.turns_body(turns).replace(b"1e400", b"1"))
    assert conforms(openapi.ref("TurnList"), body)
    assert ["history"] == body["turns"][0]["omitted"]
    assert not conforms(openapi.ref("Turn"), {**body["turns"][0], "extra": 1})


def test_page_has_an_anchor_for_every_error(page: Page) -> None:
    """The `type` of a problem leads to a heading with status, title and help; every link of the page arrives."""
    headings = {attributes.get("id") for tag, attributes in page.elements if re.fullmatch("h[1-6]", tag)}
    assert {error.code for error in errors.codes()} <= headings
    for error in errors.codes():
        assert f"{error.status}: {escape(error.title)}. " in published.page()
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {"openapi.json", *(f"#{each}" for each in ids)} >= set(page.values("href"))


def test_page_has_a_section_for_every_route(page: Page) -> None:
    """Each operation has its heading and a curl line, which sends the token only where one is needed."""
    assert {each["operationId"] for _, each in operations()} <= set(page.values("id"))
    html = published.page()
    for line in (
        'curl -H "Authorization: Bearer $TOKEN" "$SIDECAR/api/chat/sessions?limit=20&parked=true"',
        'curl -X DELETE -H "Authorization: Bearer $TOKEN" "$SIDECAR/api/chat/sessions/chat-1?if_active=refuse"',
        'curl "$SIDECAR/readyz"',
        'curl -H "Authorization: Bearer $TOKEN" '
        '"$SIDECAR/agent_api/v1/workspaces/default/conversation_search?query=error"',
        'curl -X POST -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" '
        """-d '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "session_search", """
        """"arguments": {"query": "error"}}}' "$SIDECAR/mcp\"""",
        'curl -H "Authorization: Bearer $TOKEN" "$SIDECAR/v1/search?q=support+hours&workspaceId=default&limit=3"',
    ):
        assert f"<pre><code>{escape(line)}</code></pre>" in html


def test_page_is_structured_for_assistive_technology(page: Page) -> None:
    """It states its language, has landmarks, and no heading skips a level."""
    tags = [tag for tag, _ in page.elements]
    assert ("html", {"lang": "en"}) in page.elements
    assert [1, 1, 1] == [tags.count(landmark) for landmark in ("header", "nav", "main")]
    levels = [int(tag[1]) for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert 1 == levels[0] == levels.count(1)
    assert all(below <= above + 1 for above, below in pairwise(levels))


def test_page_loads_nothing_and_its_policy_fits(page: Page) -> None:
    """No script, no address, and one style, whose hash is the only thing that the policy allows."""
    html = published.page()
    assert "<script" not in html
    assert not re.search(r"https?://", html)
    assert [] == page.values("src") + page.values("style")
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert f"style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" in docs.CSP
    assert docs.CSP.startswith("default-src 'none'; ")
    assert "color-scheme: light dark" in style


def test_a_wing_adds_its_paths_and_schemas() -> None:
    """A wing's fragment becomes part of the document and of the page, its words escaped."""
    wing = openapi.Fragment(
        paths={
            "/v1/<wing>": {
                "get": openapi.operation(
                    "askWing",
                    "<script>",
                    "Says `<b>`.",
                    {"200": openapi.response("<i>", openapi.ref("Wing"))},
                    scope="search",
                    parameters=[openapi.parameter("q", "<u>", {"type": "string", "default": "<s>"}, example="<q>")],
                    refusals=openapi.STORE,
                )
            }
        },
        schemas={"Wing": openapi.exact({"feathers": {"type": "integer"}})},
    )
    published = openapi.document(wing)
    validate(published)
    assert [*openapi.document()["paths"], "/v1/<wing>"] == list(published["paths"])
    assert "Wing" not in openapi.document()["components"]["schemas"]
    tags = {tag for tag, _ in Page(docs.page(wing)).elements}
    assert tags.isdisjoint({"script", "wing", "b", "i", "u", "s", "q"})
    assert "<code>&lt;b&gt;</code>" in docs.page(wing)
