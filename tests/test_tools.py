"""The tools, called by the `mcp` package's own client over a socket, and by clients that get everything wrong."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextContent

from sidecar.app import create_app
from sidecar.openapi import ref
from sidecar.search.queries import HistoryQuery, SearchQuery
from sidecar.tools import TOOLS
from tests import rig
from tests.test_history_search import KEY
from tests.test_openapi import conforms
from tests.test_paths import Peer, on_sqlite, serving
from tests.test_search_audit import AUDIT
from tests.test_search_routes import SEARCHING, Recorder, window

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
NAMES = ["session_search", "session_read", "history_search", "workspace.search", "workspace.search-many"]
Mode = Literal["legacy", "auto"]


@asynccontextmanager
async def connected(peer: Peer, mode: Mode = "auto", token: str = rig.TOKEN) -> AsyncIterator[Client]:
    """The package's client, with the handshake of the protocol's older versions or without."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, verify=False) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{peer.port}{TOOLS}", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def call(name: str, **arguments: Any) -> rig.Json:
    """The message that calls a tool."""
    return {**PING, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


def called(response: httpx.Response) -> tuple[bool, str]:
    """Whether the tool failed, and its text."""
    assert 200 == response.status_code, response.text
    result = response.json()["result"]
    (content,) = result["content"]
    return result["isError"], content["text"]


# --- a real client


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_lists_and_calls_tools(mode: Mode, store: rig.Store) -> None:
    """The searches' tools answer what the routes answer, as text, in both eras of the protocol."""
    await store.turn("chat-a", text="An okapi.", prompt="Which animal?")
    await store.turn("chat-b", text="A zebra.")
    async with serving(create_app(rig.config_for(store))) as peer, connected(peer, mode) as client:
        assert NAMES == [tool.name for tool in (await client.list_tools()).tools]
        found = await client.call_tool("session_search", {"query": "okapi", "limit": 5})
        read = await client.call_tool("session_read", {"session_id": "chat-a", "include_execution": True})
        assert [False, False] == [found.is_error, read.is_error]
        by_route = (await peer.send(f"{SEARCHING}?query=okapi&limit=5")).json
        assert by_route["matches"] == json.loads(text(found))["matches"]
        assert (await peer.send(f"{window('chat-a')}?include_execution=true")).json == json.loads(text(read))


@on_sqlite
async def test_tools_say_what_they_are(store: rig.Store) -> None:
    """They only read, and name every argument of the seed and which of them is needed."""
    async with serving(create_app(rig.config_for(store))) as peer, connected(peer) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    for tool in tools.values():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        assert not tool.annotations.destructive_hint
        assert tool.description
        assert tool.input_schema["additionalProperties"] is False
    search, read, recalling = (tools[name].input_schema for name in NAMES[:3])
    assert ["query"] == search["required"]
    assert ["query", "archived", "include_auxiliary", "limit", "after"] == list(search["properties"])
    assert ["session_id"] == read["required"]
    assert [
        "session_id",
        "around_turn_id",
        "limit",
        "before_position",
        "after_position",
        "include_execution",
        "execution_before",
        "execution_prefix",
    ] == list(read["properties"])
    assert ["query"] == recalling["required"]
    assert ["query", "speaker", "since", "until", "limit", "conversation_public_id"] == list(recalling["properties"])


@on_sqlite
async def test_faults_are_told_to_the_model(store: rig.Store) -> None:
    """A refusal is a result with `isError`, whose text is the code and the detail; an unknown tool is none."""
    await store.turn("chat-a")
    async with serving(create_app(rig.config_for(store))) as peer, connected(peer) as client:
        for name, arguments, start in (
            ("session_search", {}, "parameter_invalid: `query` "),
            ("session_search", {"query": "x", "speaker": "me"}, "parameter_invalid: `speaker` is unknown here"),
            ("session_search", {"query": "x", "limit": "5"}, "parameter_invalid: `limit` "),
            ("session_read", {"session_id": "chat-a", "before_position": 0}, "parameter_invalid: `before_position` "),
            ("session_read", {"session_id": "chat-unknown"}, "not_found: "),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert text(result).startswith(start), text(result)
        with pytest.raises(MCPError, match="there are session_search, session_read, history_search, "):
            await client.call_tool("session_delete", {})


@on_sqlite
async def test_a_client_without_the_right_token_gets_nowhere(store: rig.Store) -> None:
    """It fails at its first request."""
    async with serving(create_app(rig.config_for(store))) as peer:
        with pytest.RaisesGroup(MCPError, flatten_subgroups=True):
            async with connected(peer, token="wrong-token-0123456789") as client:
                await client.list_tools()


# --- the agent's own history


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_runtime_names_the_run_in_meta(mode: Mode, store: rig.Store) -> None:
    """Run, current turn and loaded messages stand in the call's `_meta`, and what is shown is what the audit has."""
    loaded = await store.turn("chat-a", prompt="okapi asked", text="okapi told")
    current = await store.turn("chat-a", "working", prompt="okapi now", text=None)
    meta: Any = {
        "a2a-sidecar/run-id": "run-7",
        "a2a-sidecar/current-turn": current,
        "a2a-sidecar/loaded-message-ids": [f"{loaded}:content:0"],
    }
    async with serving(create_app(rig.config_for(store, audit_key=KEY))) as peer, connected(peer, mode) as client:
        result = await client.call_tool("history_search", {"query": "okapi", "speaker": "anyone"}, meta=meta)
        assert not result.is_error, text(result)
        answer = json.loads(text(result))
        assert conforms(ref("HistoryEvidence"), answer)
        assert ["okapi asked"] == [hit["text"] for hit in answer["hits"]]
        assert {"current_turn": 1, "loaded": 1, "budget": 0} == answer["search_audit"]["exclusions"]
        (event,) = (await peer.send(AUDIT)).json["events"]
    assert ("run-7", answer["search_audit"]["digest"]) == (event["run_id"], event["digest"])


@on_sqlite
async def test_the_run_may_stand_in_the_headers(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """`_meta` comes first, then the headers of the route; a run that is named nowhere or wrongly is refused."""
    client = await open_sidecar(store, audit_key=KEY)
    turn = await store.turn("chat-a", text="okapi")
    for meta, headers, start in (
        ({}, {}, "run_required: Send the id of the run"),
        ({"a2a-sidecar/run-id": 7}, {"X-Run-Id": "run-1"}, "parameter_invalid: `a2a-sidecar/run-id` "),
        ({}, {"X-Run-Id": "run 1"}, "parameter_invalid: `X-Run-Id` "),
        ({"a2a-sidecar/current-turn": []}, {"X-Run-Id": "run-1"}, "parameter_invalid: `a2a-sidecar/current-turn` "),
        ({"a2a-sidecar/loaded-message-ids": "m"}, {"X-Run-Id": "run-1"}, "parameter_invalid: `a2a-sidecar/loaded-"),
        ({"a2a-sidecar/run-id": None}, {"X-Run-Id": "run-1"}, '{"hits":[{'),
        ({"a2a-sidecar/run-id": "run-2"}, {"X-Run-Id": "run-1"}, '{"hits":[{'),
        ({}, {"X-Run-Id": "run-3", "X-Current-Turn": turn}, '{"hits":[],'),
    ):
        message = call("history_search", query="okapi")
        message["params"]["_meta"] = meta
        is_error, told = called(await client.post(TOOLS, json=message, headers=headers))
        assert (is_error, start) == (not start.startswith("{"), told[: len(start)])
    events = (await client.get(AUDIT)).json()["events"]
    assert ["run-3", "run-2", "run-1"] == [each["run_id"] for each in events]


@on_sqlite
async def test_a_model_cannot_choose_whose_history_it_is(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """Neither an owner nor an audience is an argument, nor what only the runtime knows."""
    client = await open_sidecar(store, audit_key=KEY)
    for name in ("owner", "audience", "agent_id", "run_id", "current_turn", "loaded_message_ids"):
        message = call("history_search", query="okapi", **{name: "x"})
        is_error, told = called(await client.post(TOOLS, json=message, headers={"X-Run-Id": "run-1"}))
        assert is_error
        assert told.startswith(f"parameter_invalid: `{name}` is unknown here")
        assert "follows from the token alone" in told


@on_sqlite
async def test_without_a_key_the_tool_is_refused(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """It is listed all the same, and says what to set."""
    client = await open_sidecar(store)
    message = call("history_search", query="okapi")
    is_error, told = called(await client.post(TOOLS, json=message, headers={"X-Run-Id": "run-1"}))
    assert is_error
    assert told.startswith("audit_unavailable: ")
    assert "SIDECAR_AUDIT_KEY" in told


# --- what the tools ask


@on_sqlite
async def test_arguments_and_owners_reach_the_service(store: rig.Store) -> None:
    """The arguments become the routes' own queries, and the principal of this very request decides."""
    app = create_app(rig.config_for(store))
    async with rig.client(app) as client:
        app.state.search = recorder = Recorder({"text": "人 <b>"})
        arguments = {"query": "人", "archived": "only", "include_auxiliary": True, "limit": 50, "after": "c"}
        assert (False, '{"text":"人 <b>"}') == called(
            await client.post(TOOLS, json=call("session_search", **arguments))
        )
        await client.post(TOOLS, json=call("session_read", session_id="chat/1", around_turn_id="t"))
    assert [
        (SearchQuery("人", "only", True, 50, "c"), None),
        (HistoryQuery("chat/1", 20, "t", None, None, False, None, None), None),
    ] == recorder.asked


@on_sqlite
async def test_an_unforeseen_fault_shows_no_internals(store: rig.Store, caplog: pytest.LogCaptureFixture) -> None:
    """The model is given the request id, and the log has the traceback once."""

    class Broken(Recorder):
        async def search(self, query: SearchQuery, owners: frozenset[str] | None) -> rig.Json:
            raise RuntimeError("secret")

    app = create_app(rig.config_for(store))
    async with rig.client(app) as client:
        app.state.search = Broken({})
        response = await client.post(TOOLS, json=call("session_search", query="x"))
    is_error, told = called(response)
    assert is_error
    assert response.headers["x-request-id"] in told
    assert "secret" not in response.text
    assert ["sidecar"] == [record.name for record in caplog.records if record.exc_info]


# --- clients that get everything wrong

WRONG: list[tuple[rig.Json, bytes, int]] = [
    ({}, b"{", 400),
    ({}, b"", 400),
    ({}, b"\xff", 400),
    ({}, b"[" * 60_000, 400),
    ({}, b"7", 400),
    ({}, b"[]", 400),
    ({}, json.dumps([PING]).encode(), 400),
    ({}, b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 400),
    ({}, b'{"jsonrpc":"2.0","id":1,"method":7}', 400),
    ({}, b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', 400),
    ({}, b'{"jsonrpc":"2.0","id":1,"method":"nothing/here"}', 200),
    ({}, b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', 200),
    ({}, b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}', 200),
    ({}, b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"session_search","arguments":[]}}', 200),
    ({}, b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}', 200),
    ({}, b'{"jsonrpc":"2.0","method":"notifications/initialized"}', 202),
    ({}, b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}', 202),
    ({}, b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}', 202),
    ({}, b'{"jsonrpc":"2.0","id":1,"result":{}}', 202),
    ({"Content-Type": "text/plain"}, json.dumps(PING).encode(), 400),
    ({"Content-Type": ""}, json.dumps(PING).encode(), 400),
    ({"Accept": "text/html"}, json.dumps(PING).encode(), 406),
    ({"Mcp-Protocol-Version": "1999-01-01"}, json.dumps(PING).encode(), 400),
    ({"Mcp-Protocol-Version": "2026-07-28"}, json.dumps(PING).encode(), 400),
    ({"Mcp-Protocol-Version": "2026-07-28"}, b"{", 400),
    ({"Mcp-Protocol-Version": "2026-07-28"}, b"[" * 60_000, 400),
    ({"Mcp-Session-Id": "none-such"}, json.dumps(PING).encode(), 200),
]


@on_sqlite
@pytest.mark.parametrize(("headers", "body", "status"), WRONG, ids=[str(number) for number in range(len(WRONG))])
async def test_wrong_messages_are_answered(
    headers: rig.Json, body: bytes, status: int, sidecar: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Each gets a status and, where there is one to send, a JSON error; none leaves a traceback in the log."""
    response = await sidecar.post(TOOLS, content=body, headers={"Content-Type": "application/json", **headers})
    assert status == response.status_code, response.text
    assert "no-store" == response.headers["cache-control"]
    assert "nosniff" == response.headers["x-content-type-options"]
    if status in (200, 400):
        assert isinstance(response.json(), dict)
    assert [] == [record.getMessage() for record in caplog.records if record.exc_info]


@on_sqlite
@pytest.mark.parametrize(
    "arguments", ['{"query":"\\ud800"}', '{"query":"x","limit":1' + "0" * 5000 + "}", '{"q\\u0000":1}']
)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_poisonous_arguments_are_answered(
    arguments: str, version: str, sidecar: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a surrogate pair, a number of 5,000 digits: refused by the parser of JSON or by ours, never a fault."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = json.dumps({**call("session_search"), "params": {"name": "session_search", "_meta": meta}})
    body = message.replace('"_meta"', f'"arguments": {arguments}, "_meta"')
    headers = {
        "Content-Type": "application/json",
        "Mcp-Protocol-Version": version,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "session_search",
    }
    response = await sidecar.post(TOOLS, content=body.encode(), headers=headers)
    assert response.status_code == 400 or called(response)[0]
    assert [] == [record.getMessage() for record in caplog.records if record.exc_info]


@on_sqlite
async def test_a_body_has_a_bound(sidecar: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    """64 KiB are read, a byte more is a problem of ours, announced or not."""

    async def chunks(size: int) -> AsyncIterator[bytes]:
        yield json.dumps(PING).encode()
        for _ in range(size // 1024):
            yield b" " * 1024

    headers = {"Content-Type": "application/json"}
    fits = json.dumps(PING).encode().ljust(64 * 1024)
    assert 200 == (await sidecar.post(TOOLS, content=fits, headers=headers)).status_code
    for content in (fits + b" ", chunks(64 * 1024)):
        response = await sidecar.post(TOOLS, content=content, headers=headers)
        assert (413, "body_too_large") == (response.status_code, response.json()["code"])
    assert [] == [record.getMessage() for record in caplog.records if record.exc_info]


@on_sqlite
async def test_there_is_no_stream_and_no_session(sidecar: httpx.AsyncClient) -> None:
    """GET and DELETE are told at once that there are none, as the protocol wants it: nothing stays open."""
    for method in ("GET", "HEAD", "DELETE"):
        response = await sidecar.request(method, TOOLS, headers={"Accept": "text/event-stream"})
        assert (405, "POST") == (response.status_code, response.headers["allow"])


@on_sqlite
async def test_a_foreign_page_is_refused_by_our_guard(sidecar: httpx.AsyncClient) -> None:
    """Host and Origin are checked once, by the guard of every route."""
    for headers, code in (
        ({"Host": "evil.example"}, "host_not_allowed"),
        ({"Origin": "http://evil.example"}, "origin_not_allowed"),
    ):
        assert code == (await sidecar.post(TOOLS, json=PING, headers=headers)).json()["code"]


@on_sqlite
async def test_our_guard_decides_alone(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """A host and an origin that are configured are let in: the package's own guard would not know them."""
    client = await open_sidecar(store, allowed_hosts=("agents.example",), cors_origins=("https://console.example",))
    headers = {"Host": "agents.example", "Origin": "https://console.example"}
    response = await client.post(TOOLS, json=PING, headers=headers)
    assert (200, {"jsonrpc": "2.0", "id": 1, "result": {}}) == (response.status_code, response.json())


@on_sqlite
async def test_a_client_that_goes_away_leaves_no_trace(store: rig.Store, caplog: pytest.LogCaptureFixture) -> None:
    """In the middle of its body, or before its answer: the server goes on, and the log has no traceback."""
    head = (
        f"POST {TOOLS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {rig.TOKEN}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    )
    body = json.dumps(call("session_search", query="x"))
    async with serving(create_app(rig.config_for(store))) as peer:
        with caplog.at_level(logging.INFO):
            await peer.exchange(f"{head}{len(body) + 9}\r\n\r\n{body}".encode(), patience=0.3)
            await peer.exchange(f"{head}{len(body)}\r\n\r\n{body}".encode(), patience=0)
            assert 200 == (await peer.send("/livez")).status
    assert [] == [record.getMessage() for record in caplog.records if record.exc_info]
