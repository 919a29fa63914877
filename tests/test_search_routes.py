"""The search wing's routes: their gate, paths, parameters and answers, and a base install without what they need."""

import asyncio
import gzip
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from sidecar.app import create_app
from sidecar.openapi import ref
from sidecar.search.queries import HistoryQuery, SearchQuery
from sidecar.search.routes import HISTORY, SEARCH, WORKSPACES
from sidecar.search.service import Search
from sidecar.tools import TOOLS
from tests import rig
from tests.test_openapi import conforms
from tests.test_paths import on_sqlite, serving
from tests.test_search import narrowed

SEARCHING = SEARCH.format(workspace_public_id="default")
LIST_TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


def window(conversation: str, workspace: str = "default") -> str:
    return HISTORY.format(workspace_public_id=workspace, conversation_public_id=quote(conversation, safe=""))


class Recorder:
    """A service that finds the same every time, and remembers what it was asked by whom."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.asked: list[tuple[SearchQuery | HistoryQuery, frozenset[str] | None]] = []

    async def search(self, query: SearchQuery, owners: frozenset[str] | None) -> dict[str, Any]:
        self.asked.append((query, owners))
        return self.found

    async def read(self, query: HistoryQuery, owners: frozenset[str] | None) -> dict[str, Any]:
        self.asked.append((query, owners))
        return self.found


class Wing:
    """A sidecar on a store with one turn, which says `okapi`."""

    def __init__(self, app: Starlette, client: httpx.AsyncClient, statements: list[str]) -> None:
        self.app = app
        self.client = client
        self.statements = statements

    def record(self, found: dict[str, Any]) -> Recorder:
        """From now on a recorder answers in the place of the service."""
        self.app.state.search = Recorder(found)
        recorder: Recorder = self.app.state.search
        return recorder


@pytest.fixture
async def wing(store: rig.Store) -> AsyncIterator[Wing]:
    await store.turn("chat-a", text="An okapi.", prompt="Which animal?")
    app = create_app(rig.config_for(store))
    statements = rig.spy(app)
    async with rig.client(app) as client:
        yield Wing(app, client, statements)


def problem(response: httpx.Response) -> tuple[int, str]:
    assert "application/problem+json" == response.headers["content-type"]
    return response.status_code, response.json()["code"]


# --- answers


async def test_answers_are_as_published(wing: Wing) -> None:
    """The search and the window of a stored turn have the published shape, and every keyword finds its turn."""
    found = (await wing.client.get(SEARCHING, params={"query": "okapi"})).json()
    assert conforms(ref("SearchAnswer"), found), found
    for query in ({}, {"include_execution": "true"}):
        read = (await wing.client.get(window("chat-a"), params=query)).json()
        assert conforms(ref("HistoryAnswer"), read), read
        assert "chat-a" == read["conversation"]["public_id"]
        assert ("execution" in read) == bool(query)


async def test_nobody_keeps_an_answer(wing: Wing) -> None:
    """An answer is made anew each time: no validator, no store; HEAD has the same headers and no body."""
    for path in (f"{SEARCHING}?query=okapi", window("chat-a")):
        for method in ("GET", "HEAD"):
            response = await wing.client.request(method, path, headers={"If-None-Match": "*"})
            assert 200 == response.status_code
            assert "no-store" == response.headers["cache-control"]
            assert "Authorization, Origin, Accept-Encoding" == response.headers["vary"]
            assert "nosniff" == response.headers["x-content-type-options"]
            assert "etag" not in response.headers


@on_sqlite
async def test_head_has_no_body(store: rig.Store) -> None:
    """A server leaves it out."""
    await store.turn("chat-a")
    async with serving(create_app(rig.config_for(store))) as peer:
        answer = await peer.send(window("chat-a"), "HEAD")
        assert (200, b"") == (answer.status, answer.body)


@on_sqlite
@pytest.mark.parametrize("path", [f"{SEARCHING}?query=x", window("chat-a")])
async def test_long_answers_are_compressed(path: str, wing: Wing) -> None:
    """Above 1 KB, for whoever takes gzip."""
    found = {"text": "人工智能 research " * 100}
    wing.record(found)
    async with wing.client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as response:
        raw = b"".join([each async for each in response.aiter_raw()])
    assert "gzip" == response.headers["content-encoding"]
    assert found == msgspec.json.decode(gzip.decompress(raw))
    plain = await wing.client.get(path, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert found == plain.json()


@on_sqlite
async def test_the_service_is_asked_for_the_owners_of_the_token(store: rig.Store, tmp_path: Path) -> None:
    """The parsed query reaches the service with the owners that the token is narrowed to."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(narrowed(rig.TOKEN, "alice"))
    tokens.chmod(0o600)
    app = create_app(rig.config_for(store, token=None, tokens_file=tokens))
    async with rig.client(app) as client:
        recorder = Wing(app, client, []).record({})
        await client.get(f"{SEARCHING}?query=a+b&limit=99")
        await client.get(window("chat-a/b") + "?after_position=0")
    assert [
        (SearchQuery("a b", "exclude", False, 50, None), frozenset({"alice"})),
        (HistoryQuery("chat-a/b", 20, None, None, 0, False, None, None), frozenset({"alice"})),
    ] == recorder.asked


# --- paths


@on_sqlite
async def test_ids_come_from_the_raw_path(store: rig.Store) -> None:
    """Whatever an id holds, percent-encoded it opens its own window, as the turns route does."""
    ids = ["chat-a", "chat-a/b", "chat-x/history", "chat-x/history/", "..", "chat-%41", "a+b c", "聊天-🙂?#", "x" * 255]
    for each in ids:
        await store.turn(each)
    async with serving(create_app(rig.config_for(store))) as peer:
        for each in ids:
            answer = await peer.send(window(each))
            assert (200, each) == (answer.status, answer.json["conversation"]["public_id"])
        assert (400, "session_id_invalid") == (await peer.send(window("chat\x00"))).problem
        assert (400, "session_id_invalid") == (await peer.send(window("X").replace("X", "%FF"))).problem
        assert (400, "session_id_invalid") == (await peer.send(window(""))).problem
        assert (404, "not_found") == (await peer.send(window("chat-unknown"))).problem


@on_sqlite
async def test_paths_that_are_no_route(wing: Wing) -> None:
    """Anything else below the workspaces is not found, and a wrong method is told the right ones."""
    for path in (WORKSPACES, f"{WORKSPACES}/", f"{WORKSPACES}/default", f"{SEARCHING}/", f"{window('chat-a')}/x"):
        assert (404, "not_found") == problem(await wing.client.get(path)), path
    split = await wing.client.get(window("X").replace("X", "chat-a/b"))
    assert (404, "not_found") == problem(split)
    assert "%2F" in split.json()["detail"]
    for path, allow in ((SEARCHING, "GET, HEAD"), (window("chat-a"), "GET, HEAD"), (TOOLS, "POST")):
        response = await wing.client.request("PUT", path)
        assert (405, "method_not_allowed") == problem(response)
        assert allow == response.headers["allow"]


@on_sqlite
async def test_there_is_one_workspace(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """Only the configured id is there; others are not found, broken ones too."""
    await store.turn("chat-a")
    client = await open_sidecar(store, workspace="team-1.x")
    for workspace, status in {
        "team-1.x": 200,
        "%74eam-1%2ex": 200,
        "default": 404,
        "TEAM-1.x": 404,
        "team-1.x%2F": 404,
        "%FF": 404,
        "%zz": 404,
        "": 404,
    }.items():
        for path in (f"{WORKSPACES}/{workspace}/conversation_search?query=x", window("chat-a", workspace)):
            assert status == (await client.get(path)).status_code, path


# --- refusals


@on_sqlite
@pytest.mark.parametrize(
    "path",
    [
        SEARCHING,
        f"{SEARCHING}?query=",
        f"{SEARCHING}?query=x&query=x",
        f"{SEARCHING}?query=x&archived=maybe",
        f"{SEARCHING}?query=x&limit=0",
        f"{SEARCHING}?query=%FF",
        f"{window('chat-a')}?limit=x",
        f"{window('chat-a')}?before_position=0",
        f"{window('chat-a')}?around_turn_public_id=t&after_position=1",
    ],
)
async def test_wrong_parameters_reach_no_database(path: str, wing: Wing) -> None:
    """They are refused before a statement is run."""
    wing.statements.clear()
    assert (400, "parameter_invalid") == problem(await wing.client.get(path))
    assert [] == wing.statements


ROUTES = [("GET", f"{SEARCHING}?query=x"), ("GET", window("chat-a")), ("POST", TOOLS)]


@on_sqlite
@pytest.mark.parametrize(
    ("package", "extra"), [("rjieba", "search"), ("snowballstemmer", "search"), ("mcp", "mcp")], ids=str
)
async def test_a_missing_extra_is_named(package: str, extra: str, wing: Wing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may ask is told what to install, and nobody else; without `mcp` the routes are there all the same."""
    monkeypatch.setitem(sys.modules, package, None)
    for method, path in ROUTES:
        anonymous = await wing.client.request(method, path, json=LIST_TOOLS, headers={"Authorization": "Bearer x"})
        assert (401, "unauthorized") == problem(anonymous)
        response = await wing.client.request(method, path, json=LIST_TOOLS)
        if extra == "search" or path == TOOLS:
            assert (404, "not_found") == problem(response)
            assert f"a2a-session-sidecar[{extra}]" in response.json()["detail"]
        else:
            assert 200 == response.status_code


def test_a_base_install_starts() -> None:
    """Neither the application nor the command line imports an extra, or anything that only one of them brings."""
    program = "import sys, sidecar.app, sidecar.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "sidecar.search.routes" in imported
    assert {"rjieba", "snowballstemmer", "mcp", "mcp_types", "pydantic", "sidecar.search.service"}.isdisjoint(imported)


# --- the service's life


@on_sqlite
async def test_first_requests_share_one_service(wing: Wing) -> None:
    """However many come first, one service is made, which keeps its own state."""
    answers = await asyncio.gather(*(wing.client.get(f"{SEARCHING}?query=okapi") for _ in range(8)))
    assert [200] * 8 == [each.status_code for each in answers]
    assert isinstance(wing.app.state.search, Search)


@on_sqlite
async def test_it_works_below_a_mount(store: rig.Store) -> None:
    """An agent that mounts the sidecar runs no lifespan of ours: routes and tools answer all the same."""
    await store.turn("chat-a")
    sidecar = create_app(rig.config_for(store))
    async with rig.client(Starlette(routes=[Mount("/side", sidecar)])) as client:
        for method, path in ROUTES:
            response = await client.request(method, f"/side{path}", json=LIST_TOOLS)
            assert 200 == response.status_code, response.text
    await sidecar.state.database.close()
