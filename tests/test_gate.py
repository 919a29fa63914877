"""Every published route against every kind of bearer; the document is read, so later routes are covered."""

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from sidecar import console, published
from sidecar.answer.routes import BATCH
from sidecar.app import create_app
from sidecar.routes import RawRoute
from tests import rig

SESSION = "chat-a"
IDS = ("session_id", "conversation_public_id")


def operations() -> list[tuple[str, str, str | None]]:
    """Method, path and needed scope of each published operation: None is public, "" is any token's."""
    return [
        (method.upper(), path, operation.get("x-required-scope", "") if operation["security"] else None)
        for path, item in published.document()["paths"].items()
        for method, operation in item.items()
    ]


GATED = [each for each in operations() if each[2] is not None]
# what an envelope lists of a store
LISTS = {"sessions", "turns", "matches", "hits", "events", "results", "citations"}


# what the wings need; nobody listens there
WINGS = {"audit_key": "audit-key-0123456789", "model_url": "http://127.0.0.1:9/v1", "model": ("none",)}


def secret(name: str) -> str:
    return f"{name}-token-0123456789"


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    """A token for each scope alone, and one with all scopes narrowed to an owner who owns nothing here."""
    scopes = ["read", "retire", "search", "chat", "audit"]
    rows = {**{scope: ([scope], ["*"]) for scope in scopes}, "stranger": (scopes, ["stranger"])}
    path = tmp_path / "tokens.toml"
    path.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{hashlib.sha256(secret(name).encode()).hexdigest()}"\n'
            f"scopes = {allowed}\nowners = {owners}\n".replace("'", '"')
            for name, (allowed, owners) in rows.items()
        ),
        "utf-8",
    )
    path.chmod(0o600)
    return path


class Gate:
    """A sidecar on a store with one session, and what it asked of the database."""

    def __init__(self, client: httpx.AsyncClient, statements: list[str]) -> None:
        self.client = client
        self.statements = statements

    async def ask(self, method: str, path: str, token: str | None) -> httpx.Response:
        """The published request; what it must carry is as in its examples."""
        self.statements.clear()
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        operation = published.document()["paths"].get(path, {}).get(method.lower(), {})
        needed = [each for each in operation.get("parameters", ()) if each["required"]]
        query = {each["name"]: each["example"] for each in needed if each["in"] == "query"}
        headers |= {each["name"]: str(each["example"]) for each in needed if each["in"] == "header"}
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
        path = path.format_map({"workspace_public_id": "default", **dict.fromkeys(IDS, SESSION)})
        return await self.client.request(method, path, headers=headers, params=query or None, json=body)


@pytest.fixture
async def gate(store: rig.Store, tokens_file: Path) -> AsyncIterator[Gate]:
    await store.turn(SESSION, text="An error.", owner="alice")  # what the published search looks for
    # what is published of chats finds nothing in the store, so that no model is asked
    app = create_app(rig.config_for(store, tokens_file=tokens_file, **WINGS))
    statements = rig.spy(app)
    async with rig.client(app, token=None) as client:
        yield Gate(client, statements)


def refusal(response: httpx.Response) -> tuple[int, str, str | None]:
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["request_id"] == response.headers["x-request-id"]
    return response.status_code, response.json()["code"], response.headers.get("www-authenticate")


REALM = 'Bearer realm="a2a-sidecar"'


@pytest.mark.parametrize(("method", "path", "scope"), GATED)
async def test_refusals(method: str, path: str, scope: str, gate: Gate) -> None:
    """No token, a wrong one, and one without the scope: RFC 6750's answers, before any statement is run."""
    assert refusal(await gate.ask(method, path, None)) == (401, "unauthorized", REALM)
    assert gate.statements == []
    wrong = (401, "unauthorized", f'{REALM}, error="invalid_token"')
    assert refusal(await gate.ask(method, path, secret("nobody"))) == wrong
    assert gate.statements == []
    if not scope:
        return
    other = "retire" if scope == "read" else "read"
    lacking = (403, "insufficient_scope", f'{REALM}, error="insufficient_scope", scope="{scope}"')
    assert refusal(await gate.ask(method, path, secret(other))) == lacking
    assert gate.statements == []


@pytest.mark.parametrize(("method", "path", "scope"), GATED)
async def test_the_right_scope_opens(method: str, path: str, scope: str, gate: Gate) -> None:
    """The named scope alone is enough."""
    response = await gate.ask(method, path, secret(scope or "read"))
    assert response.status_code == 200


@pytest.mark.parametrize(("method", "path", "scope"), GATED)
async def test_another_owner_finds_nothing(method: str, path: str, scope: str, gate: Gate, store: rig.Store) -> None:
    """A token narrowed to another owner reads an empty store, and changes nothing."""
    response = await gate.ask(method, path, secret("stranger"))
    assert SESSION not in response.text.replace(str(response.request.url), "")
    if method == "DELETE":
        assert refusal(response)[:2] == (403, "owner_not_allowed")
        assert await store.raw("SELECT * FROM tasks_session_tombstones") == []
    elif response.headers["content-type"] == "application/json":
        assert [[]] == [rows for name, rows in envelope(response).items() if name in LISTS]
    assert len(await store.raw("SELECT id FROM tasks")) == 1


def envelope(response: httpx.Response) -> dict[str, Any]:
    """What was answered, by a tool or in a batch's one item as well."""
    body: dict[str, Any] = response.json()
    if "result" in body:
        body = json.loads(body["result"]["content"][0]["text"])
    if response.request.url.path == BATCH:
        body = body["results"][0]["data"]
    return body


@pytest.mark.parametrize(("method", "path"), [each[:2] for each in operations() if each[2] is None])
async def test_public_routes(method: str, path: str, gate: Gate) -> None:
    """Public routes need no token and show nothing of the store."""
    response = await gate.ask(method, path, None)
    assert response.status_code == 200
    assert SESSION not in response.text


@pytest.mark.parametrize("path", ["/nothing", "/api", "/docs/", "/livez/x", "/api/chat/sessions/a/b"])
async def test_unknown_paths_are_gated_too(path: str, gate: Gate) -> None:
    """Exact paths are public, never prefixes: an unknown path tells nothing without a token."""
    assert refusal(await gate.ask("GET", path, None))[:2] == (401, "unauthorized")
    assert refusal(await gate.ask("GET", path, rig.TOKEN))[:2] == (404, "not_found")


async def test_token_in_the_query(gate: Gate) -> None:
    """A token in the query ends in logs and histories: it is refused even when it is right."""
    response = await gate.ask("GET", f"/api/chat/sessions?token={rig.TOKEN}", rig.TOKEN)
    assert refusal(response)[:2] == (400, "invalid_request")
    assert gate.statements == []


async def test_description_matches_the_routes(gate: Gate, store: rig.Store) -> None:
    """Every route of the application but the page's files is published with its methods, and nothing else is."""
    app = create_app(rig.config_for(store))
    served: set[tuple[str, str]] = set()
    for route in app.routes:
        if isinstance(route, RawRoute):
            served |= {(method, path) for path, handlers in route.handlers.items() for method in handlers}
        elif isinstance(route, Route) and route.path not in console.FILES:
            served |= {(method, route.path) for method in route.methods or () if method != "HEAD"}
    assert served == {(method, path) for method, path, _ in operations()}
    await app.state.database.close()


async def test_wrong_method_names_the_right_ones(gate: Gate) -> None:
    """405 keeps `Allow`, on our own route class as on Starlette's."""
    for path, allow in (
        ("/api/chat/sessions", {"GET", "HEAD"}),
        ("/api/chat/sessions/chat-a", {"GET", "HEAD", "DELETE"}),
        ("/api/chat/sessions/chat-a/turns", {"GET", "HEAD"}),
        ("/livez", {"GET", "HEAD"}),
    ):
        response = await gate.ask("PATCH", path, rig.TOKEN)
        assert refusal(response)[:2] == (405, "method_not_allowed")
        assert set(response.headers["allow"].split(", ")) == allow


async def test_answers_carry_their_headers(gate: Gate) -> None:
    """A read is private, revalidated, varies by what decides it, and is never sniffed."""
    response: Any = await gate.ask("GET", "/api/chat/sessions", rig.TOKEN)
    assert response.headers["cache-control"] == "private, no-cache"
    assert response.headers["vary"] == "Authorization, Origin, Accept-Encoding"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["etag"].startswith('W/"')


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("gzip", "gzip"), ("br, gzip;q=0.5", "gzip"), ("*", "gzip"), ("gzip;q=0", None), ("br", None), ("", None)],
)
async def test_compression(accepted: str, encoding: str | None, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Answers above 1 KB are compressed for clients that accept it, under the same validator."""
    await store.turn("chat-a", text="word " * 1000)
    path = "/api/chat/sessions/chat-a/turns"
    plain = await sidecar.get(path, headers={"Accept-Encoding": "identity"})
    response = await sidecar.get(path, headers={"Accept-Encoding": accepted})
    assert response.headers.get("content-encoding") == encoding
    assert response.headers["etag"] == plain.headers["etag"]
    assert response.content == plain.content
    if encoding:
        assert int(response.headers["content-length"]) < len(plain.content) / 4


@pytest.mark.parametrize("candidates", ["{etag}", '"x", {etag}', "*", "{strong}"])
async def test_unchanged_answers_have_no_body(candidates: str, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """If-None-Match takes lists, `*` and weak comparison; the 304 repeats the validator."""
    await store.turn("chat-a")
    for path in ("/api/chat/sessions", "/api/chat/sessions/chat-a", "/api/chat/sessions/chat-a/turns"):
        etag = (await sidecar.get(path)).headers["etag"]
        field = candidates.format(etag=etag, strong=etag.removeprefix("W/"))
        response = await sidecar.get(path, headers={"If-None-Match": field})
        assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", etag)
