"""Batches of searches (seed 004): their order, their errors item by item, and a client that goes before the end."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from sidecar.answer import batch
from sidecar.answer.queries import PassageQuery, batch_query
from sidecar.answer.retrieval import Retrieval
from sidecar.app import create_app
from sidecar.auth import Principal
from sidecar.errors import InvalidSearchScope
from sidecar.openapi import ref
from tests import rig
from tests.test_openapi import conforms
from tests.test_outgoing import until
from tests.test_passages import NO_USAGE, OTHER_TOKEN, search, usage_rows
from tests.test_paths import Peer, serving
from tests.test_search import narrowed, retired

BATCH = "/v1/search/batch"


def asked(*words: str, **more: Any) -> rig.Json:
    return {"queries": [{"q": each, "workspaceId": "default"} for each in words], **more}


async def many(client: httpx.AsyncClient, given: rig.Json) -> list[Any]:
    response = await client.post(BATCH, json=given)
    assert 200 == response.status_code, response.text
    assert conforms(ref("BatchAnswer"), response.json())
    results: list[Any] = response.json()["results"]
    return results


def codes(results: list[Any]) -> list[tuple[str, int] | None]:
    """Code and status of each item's error."""
    return [None if each["ok"] else (each["error"]["code"], each["error"]["status"]) for each in results]


# --- over HTTP


async def test_items_answer_as_single_searches(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Each item's data is the answer that its query has alone, usage included, in the order of the queries."""
    for word in ("okapi", "zebra", "giraffe"):
        await store.turn(f"chat-{word}", prompt=None, text=word)
    results = await many(sidecar, asked("zebra", "okapi", "nothing", "giraffe", concurrency=2))
    assert [{"ok": True, "data": await search(sidecar, q)} for q in ("zebra", "okapi", "nothing", "giraffe")] == results
    assert [NO_USAGE] * 4 == [each["data"]["usage"] for each in results]
    assert [("operator", BATCH, "none")] * 4 == (await usage_rows(store))[:4]


async def test_an_item_fails_by_itself(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Twenty items of which some fail are answered with 200, each error with its code; none of these is recorded."""
    await store.turn("chat-a", prompt=None, text="okapi")
    await store.turn("chat-gone", prompt=None, text="okapi")
    await retired(sidecar, "chat-gone")
    given = asked(*["okapi"] * 20)
    given["queries"][3]["workspaceId"] = "other"
    given["queries"][11]["documentId"] = "chat-none"
    given["queries"][12]["documentId"] = "chat-gone"
    results = await many(sidecar, given)
    expected: list[Any] = [None] * 20
    expected[3] = ("WORKSPACE_NOT_FOUND", 404)
    expected[11] = expected[12] = ("INVALID_SEARCH_SCOPE", 400)
    assert expected == codes(results)
    assert results[11] == results[12]
    assert 17 == len(await usage_rows(store))


@pytest.mark.usefixtures("sqlite_suffices")
async def test_each_item_checks_the_scope(store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path) -> None:
    """The batch asks for a token alone, and each of its items for the scope; a wrong envelope is refused as ever."""
    await store.turn("chat-a", prompt=None, text="okapi")
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(narrowed(OTHER_TOKEN, "alice").replace('["search"]', '["read"]'))
    tokens.chmod(0o600)
    client = await open_sidecar(store, token=OTHER_TOKEN, tokens_file=tokens)
    assert [("FORBIDDEN", 403)] * 2 == codes(await many(client, asked("okapi", "zebra")))
    assert [] == await usage_rows(store)
    assert 400 == (await client.post(BATCH, json={"queries": []})).status_code
    client.headers.pop("Authorization")
    assert 401 == (await client.post(BATCH, json=asked("okapi"))).status_code


async def test_owners_narrow_each_item(store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path) -> None:
    """What a token may see decides in a batch as it does alone."""
    await store.turn("chat-a", prompt=None, text="okapi", owner="alice")
    await store.turn("chat-b", prompt=None, text="okapi", owner="bob")
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(narrowed(OTHER_TOKEN, "alice"))
    tokens.chmod(0o600)
    client = await open_sidecar(store, token=OTHER_TOKEN, tokens_file=tokens)
    given = asked("okapi", "okapi")
    given["queries"][1]["documentId"] = "chat-b"
    results = await many(client, given)
    assert [None, ("INVALID_SEARCH_SCOPE", 400)] == codes(results)
    assert ["chat-a"] == [each["citation"]["session_id"] for each in results[0]["data"]["results"]]


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_wrong_envelope_runs_nothing(store: rig.Store) -> None:
    """The whole of it is checked first: every bad query is named, and no statement runs for the good ones."""
    app = create_app(rig.config_for(store))
    statements = rig.spy(app)
    given = asked(*["okapi"] * 20)
    given["queries"][3]["limit"] = 0
    given["queries"][7]["q"] = "x" * 16_001
    async with rig.client(app) as client:
        response = await client.post(BATCH, json=given)
        assert (400, "parameter_invalid") == (response.status_code, response.json()["code"])
        assert "queries[3]: `limit`" in response.json()["detail"]
        assert "queries[7]: `q`" in response.json()["detail"]
        others: tuple[Any, ...] = ({}, {"queries": []}, asked(*["okapi"] * 21), asked("okapi", concurrency=5), [], None)
        for wrong in others:
            assert 400 == (await client.post(BATCH, json=wrong)).status_code, wrong
    assert [] == statements


@pytest.mark.usefixtures("sqlite_suffices")
async def test_the_longest_questions(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Twenty questions of 16,000 characters of four bytes each fit into one body."""
    await store.turn("chat-a", prompt=None, text="okapi")
    given = asked(*["okapi" + "𠀀" * 15_995] * 20)
    assert len(json.dumps(given, ensure_ascii=False).encode()) > 2**20
    body = json.dumps(given, ensure_ascii=False).encode()
    response = await sidecar.post(BATCH, content=body, headers={"Content-Type": "application/json"})
    assert [None] * 20 == codes(response.json()["results"])


async def test_an_unforeseen_fault_is_told_nobody(
    store: rig.Store, sidecar: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours becomes the item's error without a word of it, and stands in the log once."""
    await store.turn("chat-a", prompt=None, text="okapi")
    assert [None] == codes(await many(sidecar, asked("okapi")))
    refusal = "CREATE TRIGGER refuse BEFORE INSERT ON tasks_usage BEGIN SELECT RAISE(ABORT, 'secret'); END"
    if store.kind == "postgres":
        refusal = "ALTER TABLE tasks_usage ADD CONSTRAINT secret CHECK (token = 'nobody') NOT VALID"
    await store.raw(refusal)
    with caplog.at_level(logging.ERROR, "sidecar"):
        results = await many(sidecar, asked("okapi"))
    assert [("SEARCH_FAILED", 500)] == codes(results)
    assert "secret" not in str(results)
    assert 1 == len([record for record in caplog.records if record.message.startswith("failed ")])


# --- the engine


class Service:
    """Answers each query when it is told to, and remembers which have begun and which have ended, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.most = 0
        self._may_end: dict[str, asyncio.Event] = {}

    async def answer(self, query: PassageQuery) -> rig.Json:
        self.begun.append(query.q)
        self.most = max(self.most, len(self.begun) - len(self.ended))
        await asyncio.sleep(0)
        await self._event(query.q).wait()
        self.ended.append(query.q)
        if query.q == "9":
            raise InvalidSearchScope("Not here.")
        if query.q == "13":
            raise RuntimeError("secret")
        return {"q": query.q}

    def has(self, begun: int, ended: int) -> bool:
        return (begun, ended) == (len(self.begun), len(self.ended))

    def end(self, q: str) -> None:
        self._event(q).set()

    def _event(self, q: str) -> asyncio.Event:
        return self._may_end.setdefault(q, asyncio.Event())


async def test_order_is_kept_although_they_end_out_of_order(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty queries, four at a time, the newest of those under way ending first: results stand as was asked."""
    service, words = Service(), [str(number) for number in range(20)]
    running = asyncio.create_task(batch.run(batch_query(asked(*words)), service.answer, "request-1", bool))
    for number in range(20):
        await until(partial(service.has, min(4 + number, 20), number))
        service.end(next(each for each in reversed(service.begun) if each not in service.ended))
    results = (await running)["results"]
    assert words == service.begun
    assert words != service.ended
    assert 4 == service.most
    expected: list[Any] = [{"ok": True, "data": {"q": each}} for each in words]
    expected[9] = {"ok": False, "error": {"code": "INVALID_SEARCH_SCOPE", "message": "Not here.", "status": 400}}
    expected[13] = results[13]
    assert expected == results
    assert ("SEARCH_FAILED", 500) == codes(results)[13]
    assert "secret" not in str(results)
    failed = [record for record in caplog.records if record.message.startswith("failed ")]
    assert ["failed request_id=request-1 error=RuntimeError"] == [record.message for record in failed]


@pytest.mark.parametrize("concurrency", [1, 2, 3, 4])
async def test_no_more_than_were_asked_for_at_a_time(concurrency: int) -> None:
    """`concurrency` is how many are under way."""
    service, words = Service(), [str(number) for number in range(7)]
    for each in words:
        service.end(each)
    await batch.run(batch_query(asked(*words, concurrency=concurrency)), service.answer, "-", bool)
    assert concurrency == service.most
    assert words == service.begun


async def test_a_client_that_has_gone() -> None:
    """What is under way ends, and what has not begun never does."""
    service, gone = Service(), asyncio.Event()
    words = [str(number) for number in range(6)]
    running = asyncio.create_task(
        batch.run(batch_query(asked(*words, concurrency=2)), service.answer, "-", gone.is_set)
    )
    await until(lambda: len(service.begun) == 2)
    service.end("0")
    await until(lambda: len(service.begun) == 3)
    gone.set()
    for each in words:
        service.end(each)
    results = (await running)["results"]
    assert ["0", "1", "2"] == sorted(service.ended) == service.begun
    assert [None] * 3 + [("REQUEST_ABORTED", 499)] * 3 == codes(results)


# --- a client that goes, over a socket

Answer = Callable[[PassageQuery, Principal, str, str], Awaitable[rig.Json]]


@pytest.mark.usefixtures("sqlite_suffices")
async def test_queued_items_never_start_once_the_client_goes(store: rig.Store) -> None:
    """The client leaves when the first of twenty has been answered: those under way are recorded, and no other."""
    await store.turn("chat-a", prompt=None, text="okapi")
    app = create_app(rig.config_for(store))
    async with serving(app) as peer:
        assert 200 == (await posted(peer, "/v1/search", asked("okapi")["queries"][0]))[0]
        held, answered, is_open = _held(app.state.retrieval)
        app.state.retrieval.answer = held
        writer = await _writing(peer, BATCH, asked(*["okapi"] * 20))
        await until(lambda: len(answered) == 1)
        writer.transport.abort()
        await asyncio.sleep(0.2)  # the server learns of it
        is_open.set()
        await until(lambda: len(answered) == 5)
        await asyncio.sleep(0.2)
    assert 5 == len(answered)
    # the search before, the one that ended, and the four that were under way
    assert 6 == len(await usage_rows(store))


def _held(retrieval: Retrieval) -> tuple[Answer, list[str], asyncio.Event]:
    """The retrieval's own answers, of which all but the first wait until they may begin."""
    answer, answered, is_open = retrieval.answer, list[str](), asyncio.Event()

    async def held(query: PassageQuery, principal: Principal, route: str, request_id: str) -> rig.Json:
        if answered or begun:
            await is_open.wait()
        begun.append(query.q)
        found = await answer(query, principal, route, request_id)
        answered.append(query.q)
        return found

    begun: list[str] = []
    return held, answered, is_open


async def _writing(peer: Peer, path: str, body: Any) -> asyncio.StreamWriter:
    """A connection that has sent a whole request."""
    _, writer = await asyncio.open_connection("127.0.0.1", peer.port)
    writer.write(_request(path, body))
    await writer.drain()
    return writer


async def posted(peer: Peer, path: str, body: Any) -> tuple[int, bytes]:
    raw = await peer.exchange(_request(path, body))
    return int(raw.split()[1]), raw


def _request(path: str, body: Any) -> bytes:
    content = json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {rig.TOKEN}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", ""]).encode() + content


@pytest.mark.usefixtures("sqlite_suffices")
async def test_a_nested_batch_is_refused_at_its_first_oddity(sidecar: httpx.AsyncClient) -> None:
    """Millions of lists are not made into objects before they are refused."""
    body = b'{"queries": [' + b"[]," * 1_000_000 + b"[]]}"
    response = await sidecar.post(BATCH, content=body, headers={"Content-Type": "application/json"})
    assert (400, "parameter_invalid") == (response.status_code, response.json()["code"])
    assert "Expected `object`, got `array`" in response.json()["detail"]
