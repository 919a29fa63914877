"""What a web page can do here: the guards of Host and Origin, CORS, types and reflection, on every published route."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from sidecar.app import create_app
from tests import rig
from tests.test_gate import SESSION, WINGS, operations

CONSOLE = "https://console.example"
MARKUP = "<script>alert(1)</script>"
INDEX = "/api/chat/sessions"
PLACES = {"session_id": SESSION, "workspace_public_id": "default", "conversation_public_id": SESSION}
# what finds nothing is answered without a model
QUERIES = {
    "/conversation_search": "?query=script",
    "/v1/search": "?q=script&workspaceId=default",
    "/chat/stream": "?q=nothing&workspaceId=default",
}
OPERATIONS = [
    (method, path.format(**PLACES) + next((query for end, query in QUERIES.items() if path.endswith(end)), ""))
    for method, path, _ in operations()
]
HEALTH = ("/livez", "/readyz", "/healthz")
# Method, path and status of refusals from every layer.
REFUSALS = [
    ("GET", f"{INDEX}?limit=none", 400),
    ("GET", f"{INDEX}/%00/turns", 400),
    ("GET", f"{INDEX}?token=x", 400),
    ("DELETE", f"{INDEX}/other", 400),
    ("GET", f"{INDEX}/chat-none", 404),
    ("GET", "/nothing", 404),
    ("PUT", INDEX, 405),
    ("DELETE", f"{INDEX}/{SESSION}?if_active=refuse", 409),
    ("GET", f"{INDEX}?{'x' * 9000}", 414),
]
BEARER = {"Authorization": f"Bearer {rig.TOKEN}"}


class Page:
    """A sidecar on a store with one running session, with one console configured, and the SQL that it ran."""

    def __init__(self, client: httpx.AsyncClient, statements: list[str]) -> None:
        self.client = client
        self.statements = statements

    async def ask(self, method: str, path: str, **headers: str) -> httpx.Response:
        """One request; `_` in a header's name stands for `-`."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(method, path, headers=sent)

    async def every_answer(self, **headers: str) -> list[httpx.Response]:
        """The answers of all operations, deletions last, and all refusals; with the token."""
        asked = [(method, path) for method, path, _ in REFUSALS]
        asked += sorted(OPERATIONS, key=lambda each: each[0] == "DELETE")
        return [await self.ask(method, path, **(BEARER | headers)) for method, path in asked]


@pytest.fixture
async def page(store: rig.Store) -> AsyncIterator[Page]:
    await store.turn(SESSION, "working", text=MARKUP, prompt=MARKUP)
    app = create_app(rig.config_for(store, cors_origins=(CONSOLE,), **WINGS))
    statements = rig.spy(app)
    async with rig.client(app, token=None) as client:
        yield Page(client, statements)


def code(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["request_id"] == response.headers["x-request-id"]
    return response.status_code, response.json()["code"]


def cors(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


async def test_foreign_hosts(page: Page) -> None:
    """A name that a page had rebound to us reaches no route but the health ones, and no database, token or not."""
    for method, path in OPERATIONS:
        if path not in HEALTH:
            for origin in ({}, {"Origin": "http://evil.example"}, {"Origin": CONSOLE}):
                answer = await page.ask(method, path, Host="evil.example", **BEARER, **origin)
                assert (400, "host_not_allowed") == code(answer)
    assert [] == page.statements


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:81", f"{CONSOLE}.evil.example"])
async def test_foreign_origins(origin: str, page: Page, store: rig.Store) -> None:
    """A page of another origin gets no answer from any route, reads nothing of the refusal, and changes nothing."""
    for method, path in OPERATIONS:
        answer = await page.ask(method, path, Origin=origin, **BEARER)
        assert (403, "origin_not_allowed") == code(answer)
        assert {} == cors(answer)
    assert [] == page.statements
    assert 1 == len(await store.raw("SELECT id FROM tasks"))


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_forms_of_a_foreign_page(content_type: str, page: Page) -> None:
    """What a page may send anywhere without a preflight is refused by its origin, or for want of a token."""
    for path in (INDEX, f"{INDEX}/{SESSION}"):
        foreign = await page.ask("POST", path, Origin="null", Content_Type=content_type)
        assert (403, "origin_not_allowed") == code(foreign)
        assert (401, "unauthorized") == code(await page.ask("POST", path, Content_Type=content_type))
    assert [] == page.statements


async def test_the_console_reads_every_answer(page: Page) -> None:
    """A configured origin reads answers and refusals with their headers; caches keep its answers apart."""
    for answer in await page.every_answer(Origin=CONSOLE):
        assert {
            "access-control-allow-origin": CONSOLE,
            "access-control-expose-headers": "ETag, Link, Retry-After, X-Request-Id",
        } == cors(answer)
        varies = [name.strip() for name in answer.headers["vary"].split(",")]
        assert 1 == varies.count("Origin"), varies


async def test_an_unchanged_answer_is_readable_too(page: Page) -> None:
    """A 304 across origins carries what its 200 did."""
    path = f"{INDEX}/{SESSION}/turns"
    first = await page.ask("GET", path, Origin=CONSOLE, **BEARER)
    second = await page.ask("GET", path, Origin=CONSOLE, If_None_Match=first.headers["etag"], **BEARER)
    assert 304 == second.status_code
    assert cors(first) == cors(second)
    assert first.headers["vary"] == second.headers["vary"]


async def test_refusals_are_what_they_claim(page: Page) -> None:
    """The refusals of this file arise in every layer."""
    answers = await page.every_answer()
    assert [status for _, _, status in REFUSALS] == [each.status_code for each in answers[: len(REFUSALS)]]
    # what is posted needs a body
    asked = sorted(OPERATIONS, key=lambda each: each[0] == "DELETE")
    expected = [400 if method == "POST" else 200 for method, _ in asked]
    assert expected == [each.status_code for each in answers[len(REFUSALS) :]]


async def test_a_store_that_is_missing(bare_store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """A console reads a 503 and when to come again."""
    client = await open_sidecar(bare_store, cors_origins=(CONSOLE,))
    answer = await client.get(INDEX, headers={"Origin": CONSOLE})
    assert (503, "task_store_missing") == code(answer)
    assert CONSOLE == answer.headers["access-control-allow-origin"]


async def test_preflights(page: Page) -> None:
    """A console may send every header that a route takes; the answer is empty and touches no database."""
    names = "authorization, content-type, if-none-match, last-event-id, x-request-id"
    for method, path in OPERATIONS:
        answer = await page.ask(
            "OPTIONS",
            path,
            Origin=CONSOLE,
            Access_Control_Request_Method=method,
            Access_Control_Request_Headers=names,
        )
        assert (200, b"", None) == (answer.status_code, answer.content, answer.headers.get("content-type"))
        assert CONSOLE == answer.headers["access-control-allow-origin"]
        allowed = answer.headers["access-control-allow-headers"].lower()
        assert set(names.split(", ")) <= set(allowed.split(", "))
        assert "access-control-allow-credentials" not in answer.headers
    assert [] == page.statements


@pytest.mark.parametrize(("method", "header"), [("PUT", "authorization"), ("GET", "x-evil"), ("BREW", MARKUP)])
async def test_refused_preflights(method: str, header: str, page: Page) -> None:
    """A preflight for more than a console needs is a problem that the developer's tools can show."""
    answer = await page.ask(
        "OPTIONS", INDEX, Origin=CONSOLE, Access_Control_Request_Method=method, Access_Control_Request_Headers=header
    )
    assert (400, "parameter_invalid") == code(answer)
    assert "GET, POST, DELETE" in answer.json()["detail"]
    assert CONSOLE == answer.headers["access-control-allow-origin"]
    assert MARKUP not in answer.text
    assert [] == page.statements


async def test_options_without_a_preflight(page: Page) -> None:
    """OPTIONS that is no preflight is a method like any other, and no route has it."""
    for path in (INDEX, "/livez"):
        answer = await page.ask("OPTIONS", path, Origin=CONSOLE, **BEARER)
        assert (405, "method_not_allowed") == code(answer)


async def test_no_sniffing(page: Page) -> None:
    """Every body names its type, and forbids a browser to guess another."""
    answers = await page.every_answer()
    answers += [await page.ask("GET", path) for _, path in OPERATIONS]
    for answer in answers:
        assert "nosniff" == answer.headers["x-content-type-options"], answer.request.url
        assert answer.headers["content-type"].partition(";")[0] in {
            "application/json",
            "application/problem+json",
            "text/html" if answer.request.url.path == "/docs" else "",
            "text/plain" if answer.request.url.path == "/metrics" else "",
            "text/event-stream" if answer.request.url.path.endswith("/stream") else "",
        }


async def test_nothing_is_kept_by_a_shared_cache(page: Page) -> None:
    """No answer may be stored for another reader."""
    for answer in await page.every_answer():
        assert answer.headers["cache-control"] in ("no-store", "private, no-cache"), answer.request.url


async def test_nothing_is_reflected_outside_json(page: Page) -> None:
    """What a page or a link puts into a request comes back as JSON or not at all, and never in a header."""
    quoted = "%3Cscript%3Ealert(1)%3C/script%3E"
    paths = [
        f"/{quoted}",
        f"{INDEX}/{quoted}",
        f"{INDEX}/{quoted.replace('/', '%2F')}",
        f"{INDEX}/{quoted.replace('/', '%2F')}/turns",
        f"{INDEX}/%0d%0aSet-Cookie:%20a=b{quoted}",
        *(f"{INDEX}?{name}={quoted}" for name in ("limit", "parked", "cursor", "x", quoted)),
        f"{INDEX}?limit=1&limit={quoted}",
        f"{INDEX}?cursor=%0d%0aSet-Cookie:%20a=b",
        f"/docs?{quoted}",
        f"/metrics?{quoted}",
        "/readyz",
        f"{INDEX}/{SESSION}/turns",
    ]
    sent: list[dict[str, str]] = [
        {},
        *({name: MARKUP} for name in ("X-Request-Id", "User-Agent", "Referer", "Cookie", "If-None-Match")),
        *({name: MARKUP} for name in ("Origin", "Host", "Authorization", "Accept", "Accept-Encoding")),
        {"Authorization": f"Bearer {MARKUP}"},
        {"Origin": f"http://{MARKUP}", "Host": MARKUP},
        {"X-Forwarded-Host": MARKUP, "Forwarded": f'host="{MARKUP}"'},
    ]
    for path in paths:
        for headers in sent:
            for method in ("GET", "DELETE"):
                assert_not_reflected(await page.ask(method, path, **(BEARER | headers)))
    assert_not_reflected(await page.ask(f"GET{MARKUP.replace('<', '').replace('>', '')}", INDEX, **BEARER))


def assert_not_reflected(answer: httpx.Response) -> None:
    fields: Any = answer.headers.raw
    assert not any(b"script" in name + value or b"Set-Cookie" in value for name, value in fields), fields
    assert not {"location", "set-cookie", "refresh"} & set(answer.headers)
    if "alert(1)" in answer.text:
        assert answer.headers["content-type"] in ("application/json", "application/problem+json")
