"""Grounded chat as server-sent events, over a socket: what comes when, how it ends, and a client that goes."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import Message

from sidecar.answer.prompt import NOTHING_FOUND
from sidecar.answer.sse import Events, event
from sidecar.app import create_app
from sidecar.openapi import ref
from tests import rig
from tests.model_server import KEY, ModelServer, breaks_off, chunk, refuses, running_model, says, sends, stalls, waits
from tests.test_chat import ANSWER, PROVIDER, QUESTION, SECRET, ask, counted, problem
from tests.test_openapi import conforms
from tests.test_paths import on_sqlite, serving

STREAM = "/v1/search/chat/stream"
Event = tuple[str, Any]


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with running_model() as server:
        yield server


@asynccontextmanager
async def connected(store: rig.Store, model: ModelServer, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a sidecar that is served on a port; the store holds the answer."""
    await store.turn("chat-a", text=ANSWER, prompt=None)
    async with serving(create_app(rig.config_for(store, **{**model.settings, **settings}))) as peer:
        headers = {"Authorization": f"Bearer {rig.TOKEN}"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{peer.port}", headers=headers, timeout=30) as client:
            yield client


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """The events of an answer as they come, comments as events of no name."""
    name = ""
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        if line.startswith(":"):
            yield "", line
        elif field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


async def every_event(client: httpx.AsyncClient, **given: Any) -> list[Event]:
    async with client.stream("GET", STREAM, params={**QUESTION, **given}) as response:
        assert 200 == response.status_code, await response.aread()
        return [event async for event in events(response)]


async def test_an_answer_comes_in_pieces(store: rig.Store, model: ModelServer) -> None:
    """First what may be cited, then the text without invented citations, at last what `/v1/chat` answers; stored."""
    model.will(says(["From nine ", "to five [", "1", "], invented", " [7", "].", ""]), says("Again [1]."))
    async with connected(store, model) as client:
        (first, *deltas, last) = await every_event(client, model="large")
        after = await ask(client, sessionId=last[1]["sessionId"])
    assert ("passages", "done") == (first[0], last[0])
    assert [ANSWER] == [passage["text"] for passage in first[1]["passages"]]
    pieces = ["From nine", " to five", " [1], invented", "."]
    assert [("delta", {"text": piece}) for piece in pieces] == deltas
    assert conforms(ref("ChatAnswer"), last[1]), last
    assert "From nine to five [1], invented." == last[1]["answer"]
    assert first[1]["passages"] == last[1]["citations"]
    assert {**PROVIDER, "model": "large"} == last[1]["usage"]
    assert after["sessionId"] == last[1]["sessionId"]
    assert "From nine to five, invented." == model.asked[1].body["messages"][2]["content"]
    assert {"include_usage": True} == model.asked[0].body["stream_options"]
    routes = [tuple(row) for row in await store.raw("SELECT route, source FROM tasks_usage ORDER BY id")]
    assert [(STREAM, "provider"), ("/v1/chat", "provider")] == routes


@on_sqlite
async def test_the_head_keeps_proxies_from_holding_it_back(store: rig.Store, model: ModelServer) -> None:
    """It is nobody's to keep, and nobody's to buffer."""
    async with connected(store, model) as client, client.stream("GET", STREAM, params=QUESTION) as response:
        names = ("content-type", "cache-control", "x-accel-buffering", "x-content-type-options")
        values = ["text/event-stream; charset=utf-8", "no-store", "no", "nosniff"]
        assert values == [response.headers[name] for name in names]
        assert "content-length" not in response.headers


@on_sqlite
async def test_without_passages_no_model_is_asked(store: rig.Store, model: ModelServer) -> None:
    """The same three events, and no cost."""
    async with connected(store, model) as client:
        (first, delta, (name, body)) = await every_event(client, q="quagga")
    assert [("passages", {"passages": []}), ("delta", {"text": NOTHING_FOUND})] == [first, delta]
    assert ("done", NOTHING_FOUND, "none") == (name, body["answer"], body["usage"]["source"])
    assert [] == model.asked


@on_sqlite
async def test_refusals_before_the_first_byte(store: rig.Store, model: ModelServer) -> None:
    """They are ordinary problems; HEAD is one, too, and what a newer client may send is ignored."""
    async with connected(store, model) as client:
        for given, expected in (
            ({"q": ""}, (400, "parameter_invalid")),
            ({"q": "x" * 16_001}, (400, "parameter_invalid")),
            ({"sessionId": "x" * 257}, (400, "parameter_invalid")),
            ({"model": "unknown"}, (400, "parameter_invalid")),
            ({"hyde": "true"}, (400, "parameter_invalid")),
            ({"workspaceId": "other"}, (404, "workspace_not_found")),
            ({"sessionId": "unknown"}, (404, "not_found")),
        ):
            assert expected == problem(await client.get(STREAM, params={**QUESTION, **given})), given
        repeated = await client.get(f"{STREAM}?q=a&q=b&workspaceId=default")
        assert (400, "parameter_invalid") == problem(repeated)
        head = await client.head(STREAM, params=QUESTION)
        assert (405, "GET") == (head.status_code, head.headers["allow"])
        assert [] == model.asked
        await every_event(client, hyde="false", newer="yes")
        assert "done" == (await every_event(client, q="x" * 16_000))[-1][0]


DELTA = f"data: {json.dumps(chunk('Nine'))}\n\n"
STOP = f"data: {json.dumps(chunk(None, 'stop'))}\n\ndata: [DONE]\n\n"
FAILURES = {
    "refused": (refuses(401, f"{SECRET}: wrong key {KEY}"), ""),
    "no SSE": (sends(f"<html>{SECRET}", media_type="text/html"), ""),
    "error inside": (sends(DELTA + f'data: {{"error": {{"message": "{SECRET}"}}}}\n\n'), "Nine"),
    "half of JSON": (sends(DELTA + f'data: {{"{SECRET}": \n\n'), "Nine"),
    "no UTF-8": (sends(DELTA.encode() + b"data: \xff\n\n"), "Nine"),
    "deep JSON": (sends(DELTA + f"data: {'[' * 100_000}\n\n"), "Nine"),
    "odd chunk": (sends(DELTA + 'data: ["x"]\n\n'), "Nine"),
    "odd choices": (sends(DELTA + 'data: {"choices": [7]}\n\n'), "Nine"),
    "odd delta": (sends(DELTA + 'data: {"choices": [{"delta": {"content": 7}}]}\n\n'), "Nine"),
    "null": (sends(DELTA + "data: null\n\n"), "Nine"),
    "just ends": (sends(DELTA), "Nine"),
    "no text": (sends(STOP), ""),
    "broken off": (breaks_off("Nine"), "Nine"),
}


@on_sqlite
async def test_a_model_that_fails(store: rig.Store, model: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    """What came before is shown, then an error of ours ends it, and nothing is stored."""
    async with connected(store, model) as client:
        for name, (behaviour, text) in FAILURES.items():
            model.will(behaviour)
            (_, *deltas, (kind, error)) = await every_event(client)
            assert text == "".join(delta["text"] for _, delta in deltas), name
            assert ("error", "model_failed", 502) == (kind, error["code"], error["status"]), name
            assert not any(each in json.dumps(error) for each in (SECRET, KEY, model.url)), name
    assert not any(each in caplog.text for each in (SECRET, KEY))
    assert {0} == set((await counted(store)).values())


@on_sqlite
async def test_a_model_that_falls_silent(store: rig.Store, model: ModelServer) -> None:
    """Before its first word or after it: it is given up, its request is closed, and nothing is stored."""
    async with connected(store, model, model_timeout=0.3) as client:
        for pieces in ((), ("Nine",)):
            model.will(stalls(*pieces))
            (_, *deltas, (kind, error)) = await every_event(client)
            assert list(pieces) == [delta["text"] for _, delta in deltas]
            assert ("error", "model_timeout", 504) == (kind, error["code"], error["status"])
            async with asyncio.timeout(20):
                await model.asked[-1].gone.wait()
    assert {0} == set((await counted(store)).values())


@on_sqlite
async def test_whatever_else_a_provider_sends(store: rig.Store, model: ModelServer) -> None:
    """Comments, empty chunks, chunks without choices and unknown members are no fault."""
    odd = ': wait\n\ndata: {"choices": []}\n\ndata: {"choices": [{"delta": null}], "x": 1}\n\ndata: {"object": "x"}\n\n'
    model.will(sends(odd + DELTA + odd + STOP))
    async with connected(store, model) as client:
        assert "Nine" == (await every_event(client))[-1][1]["answer"]


@on_sqlite
async def test_a_silent_model_is_bridged(store: rig.Store, model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments go out while the model thinks, so that nobody between takes the connection for dead."""
    monkeypatch.setattr("sidecar.answer.sse.HEARTBEAT_SECONDS", 0.05)
    thought = asyncio.Event()
    model.will(waits(thought, says("Nine [1].")))
    names = []
    async with connected(store, model) as client, client.stream("GET", STREAM, params=QUESTION) as response:
        async for name, _ in events(response):
            names.append(name)
            if names.count("") == 3:
                thought.set()
    assert ["passages", "", "", ""] == names[:4]
    assert ["delta", "done"] == [name for name in names[4:] if name]


async def test_a_client_that_goes_closes_the_models_request(store: rig.Store, model: ModelServer) -> None:
    """In the midst of an answer the model hears of it, and nothing is stored."""
    model.will(stalls("From nine "))
    async with connected(store, model) as client:
        async with client.stream("GET", STREAM, params=QUESTION) as response:
            coming = events(response)
            assert ["passages", "delta"] == [(await anext(coming))[0] for _ in range(2)]
        async with asyncio.timeout(20):
            await (await model.has_been_asked()).gone.wait()
    assert {0} == set((await counted(store)).values())


async def test_a_client_that_goes_in_a_burst() -> None:
    """Events that are all there already end with their client, and keep nobody else waiting."""
    sent: list[Message] = []

    async def burst() -> AsyncGenerator[bytes, None]:
        for _ in range(1000):
            yield event("piece")

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await Events(burst())({"type": "http"}, receive, send)
    assert len(sent) < 10
