"""What chats remember: the model's next turn has it, retired and foreign turns take it along, races included."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from sidecar.answer import memory
from sidecar.app import create_app
from sidecar.routes import SESSIONS
from tests import rig
from tests.model_server import ModelServer, running_model, says, waits
from tests.test_chat import CHAT, counted, token, tokens_file
from tests.test_paths import on_sqlite

SUPPORT = {"q": "When is support open?", "workspaceId": "default"}
OKAPI = {"q": "What is an okapi?", "workspaceId": "default"}


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with running_model() as server:
        server.will(says("First [1]."), says("Second [1]."), says("Later [1]."))
        yield server


@pytest.fixture
async def client(store: rig.Store, open_sidecar: rig.OpenSidecar, model: ModelServer) -> httpx.AsyncClient:
    """A sidecar that may ask the model, on a store with a session for each of two questions."""
    await store.turn("chat-a", text="Support is open from nine to five.", prompt=None)
    await store.turn("chat-b", text="An okapi is a striped giraffe.", prompt=None)
    return await open_sidecar(store, **model.settings)


async def ask(client: httpx.AsyncClient, question: rig.Json, **given: Any) -> str:
    """The chat's id."""
    response = await client.post(CHAT, json={**question, **given})
    assert 200 == response.status_code, response.text
    session_id: str = response.json()["sessionId"]
    return session_id


def remembered(asked: rig.Json) -> list[tuple[str, str]]:
    """What the model was told between the instruction and the question."""
    return [(message["role"], message["content"]) for message in asked["messages"][1:-1]]


async def delete(client: httpx.AsyncClient, session_id: str, **flags: str) -> None:
    assert 200 == (await client.delete(f"{SESSIONS}/{session_id}", params=flags)).status_code


async def test_the_next_question_has_what_was_said(client: httpx.AsyncClient, model: ModelServer) -> None:
    """In order, without the markers of passages that are not these; another chat has nothing of it."""
    chat_id = await ask(client, SUPPORT)
    assert chat_id == await ask(client, OKAPI, sessionId=chat_id) == await ask(client, SUPPORT, sessionId=chat_id)
    await ask(client, SUPPORT)
    said = [("user", SUPPORT["q"]), ("assistant", "First."), ("user", OKAPI["q"]), ("assistant", "Second.")]
    assert [[], said[:2], said, []] == [remembered(asked.body) for asked in model.asked]


@on_sqlite
async def test_memory_has_a_bound(client: httpx.AsyncClient, model: ModelServer) -> None:
    """Six exchanges and 12,000 characters of them, the newest."""
    model.will(says("A [1]."))
    chat_id = await ask(client, SUPPORT)
    for number in range(7):
        await ask(client, SUPPORT, q=f"support {number}", sessionId=chat_id)
    assert [f"support {number}" for number in range(6)] == [said for _, said in remembered(model.asked[-1].body)[::2]]
    model.will(says("x" * 5_985 + " support"))
    for _ in range(2):
        await ask(client, SUPPORT, q="support", sessionId=chat_id)
    model.will(says("Last [1]."))
    await ask(client, SUPPORT, sessionId=chat_id)
    assert ["support"] * 2 == [said for _, said in remembered(model.asked[-1].body)[::2]]
    model.will(says("x" * 12_000))
    await ask(client, SUPPORT, q="support", sessionId=chat_id)
    await ask(client, SUPPORT, sessionId=chat_id)
    assert [] == remembered(model.asked[-1].body)


async def test_what_is_not_given_any_more_is_deleted(store: rig.Store, client: httpx.AsyncClient) -> None:
    """A chat keeps the exchanges that it may give to a model, with their sources, and no others."""
    session = await ask(client, SUPPORT)
    for _ in range(memory.MOST_EXCHANGES + 1):
        await ask(client, SUPPORT, sessionId=session)
    kept = [row.id for row in await store.raw("SELECT id FROM tasks_answer_exchanges ORDER BY id")]
    assert list(range(3, memory.MOST_EXCHANGES + 3)) == kept
    assert set(kept) == {row[0] for row in await store.raw("SELECT exchange_id FROM tasks_answer_sources")}


@on_sqlite
async def test_memory_has_a_bound_of_turns(
    client: httpx.AsyncClient, model: ModelServer, store: rig.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an exchange came from goes with it from one to the next: at some time the chat begins anew."""
    monkeypatch.setattr(memory, "MOST_SOURCES", 2)
    for number in range(4):
        await store.turn(f"chat-{number}", text=f"quagga{number}", prompt=None)
    chat_id = await ask(client, OKAPI)
    for number in range(4):
        await ask(client, SUPPORT, q=f"quagga{number}", sessionId=chat_id)
    assert [0, 2, 4, 0, 2] == [len(remembered(each.body)) for each in model.asked]
    sources = await store.raw("SELECT exchange_id, count(*) AS turns FROM tasks_answer_sources GROUP BY exchange_id")
    assert [1, 2, 3, 1, 2] == [row.turns for row in sources]


@pytest.mark.parametrize("flags", [{}, {"retire": "false"}], ids=["retire", "clear"])
async def test_a_deletion_takes_what_is_remembered_along(
    flags: dict[str, str], store: rig.Store, client: httpx.AsyncClient, model: ModelServer
) -> None:
    """The exchanges that a session's turns went into are gone, those that had them in memory too, and no other."""
    tainted = await ask(client, SUPPORT)
    await ask(client, OKAPI, sessionId=tainted)  # no passage of chat-a, but its answer in memory
    clean = await ask(client, OKAPI)
    await delete(client, "chat-a", **flags)
    rows = await store.raw("SELECT chat_id FROM tasks_answer_exchanges")
    assert [clean] == [row.chat_id for row in rows]
    assert {"chat-b"} == {row.context_id for row in await store.raw("SELECT context_id FROM tasks_answer_sources")}
    model.asked.clear()
    assert tainted == await ask(client, OKAPI, sessionId=tainted)
    await ask(client, OKAPI, sessionId=clean)
    assert [[], [("user", OKAPI["q"]), ("assistant", "Later.")]] == [remembered(each.body) for each in model.asked]


async def test_uncited_passages_count_too(store: rig.Store, client: httpx.AsyncClient, model: ModelServer) -> None:
    """Whatever the model was given may be in its answer."""
    await store.turn("chat-c", text="An okapi is shy.", prompt=None)
    model.will(says("It cites nothing."))
    await ask(client, OKAPI)
    sources = await store.raw("SELECT context_id FROM tasks_answer_sources")
    assert {"chat-b", "chat-c"} == {row.context_id for row in sources}
    await delete(client, "chat-c")
    assert 0 == (await counted(store))["answer_exchanges"]


@pytest.mark.parametrize("flags", [{}, {"retire": "false"}], ids=["retire", "clear"])
async def test_a_deletion_while_the_model_thinks(
    flags: dict[str, str], store: rig.Store, client: httpx.AsyncClient, model: ModelServer
) -> None:
    """The answer still comes, its chat is there and its usage counted, and nothing of it is remembered."""
    thought = asyncio.Event()
    model.will(waits(thought, says("Nine [1].")), says("Later [1]."))
    asking = asyncio.create_task(ask(client, SUPPORT))
    await model.has_been_asked()
    await delete(client, "chat-a", **flags)
    thought.set()
    chat_id = await asking
    assert {"answer_sessions": 1, "answer_exchanges": 0, "answer_sources": 0, "usage": 1} == await counted(store)
    assert chat_id == await ask(client, OKAPI, sessionId=chat_id)
    assert [] == remembered(model.asked[-1].body)


async def test_a_deletion_of_what_was_remembered_while_the_model_thinks(
    store: rig.Store, client: httpx.AsyncClient, model: ModelServer
) -> None:
    """What the model was told of an earlier exchange is as good as a passage."""
    chat_id = await ask(client, SUPPORT)
    thought = asyncio.Event()
    model.will(waits(thought, says("Striped [1].")))
    asking = asyncio.create_task(ask(client, OKAPI, sessionId=chat_id))
    assert [("user", SUPPORT["q"]), ("assistant", "First.")] == remembered((await model.has_been_asked(2)).body)
    await delete(client, "chat-a")
    thought.set()
    await asking
    assert {"answer_sessions": 1, "answer_exchanges": 0, "answer_sources": 0, "usage": 2} == await counted(store)


async def test_storing_and_deleting_at_once(store: rig.Store, client: httpx.AsyncClient, model: ModelServer) -> None:
    """Whichever comes first, nothing of a retired session is remembered afterwards."""
    for number in range(6):
        await store.turn(f"chat-race-{number}", text=f"quagga{number}", prompt=None)
    await ask(client, SUPPORT)  # whatever the first question has to make
    model.will(says("Gone [1]."))
    asking = [ask(client, SUPPORT, q=f"quagga{number}") for number in range(6)]
    await asyncio.gather(*asking, *(delete(client, f"chat-race-{number}") for number in range(6)))
    assert [] == await store.raw("SELECT id FROM tasks_answer_exchanges WHERE answer = 'Gone [1].'")
    assert [] == await store.raw("SELECT task_id FROM tasks_answer_sources WHERE context_id LIKE 'chat-race-%'")


@pytest.mark.parametrize("kind", ["postgres"])
async def test_storing_waits_for_a_deletion_under_way(
    store: rig.Store, client: httpx.AsyncClient, model: ModelServer
) -> None:
    """A tombstone that is not committed yet cannot be seen: whoever deletes holds a lock that storing asks for."""
    thought = asyncio.Event()
    model.will(waits(thought, says("Nine [1].")))
    asking = asyncio.create_task(ask(client, SUPPORT))
    await model.has_been_asked()
    key = zlib.crc32(b"a2a-sidecar:public.tasks") + 2
    async with store.engine.begin() as conn:
        await conn.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": key})
        await conn.execute(text("INSERT INTO tasks_session_tombstones VALUES ('chat-a', now())"))
        thought.set()
        await asyncio.sleep(0.3)
        assert not asking.done()
    await asking
    assert 0 == (await counted(store))["answer_exchanges"]


async def test_what_the_producer_deleted_is_not_recalled(
    store: rig.Store, client: httpx.AsyncClient, model: ModelServer
) -> None:
    """An exchange is given to the model only while every turn that went into it is there."""
    gone = await store.turn("chat-c", text="Support is closed on Sunday.", prompt=None)
    chat_id = await ask(client, SUPPORT)
    await store.delete(gone)
    await ask(client, SUPPORT, sessionId=chat_id)
    assert [] == remembered(model.asked[-1].body)


async def test_what_a_token_may_not_see_any_more_is_not_recalled(
    store: rig.Store, tmp_path: Path, model: ModelServer
) -> None:
    """A turn that went over to another owner takes the exchange out of the token's memory."""
    owned = await store.turn("chat-a", text="Support is open.", prompt=None, owner="alice")
    await store.turn("chat-b", text="Support is closed.", prompt=None, owner="alice")
    app = create_app(rig.config_for(store, tokens_file=tokens_file(tmp_path, "alice"), **model.settings))
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(rig.client(app, token("alice")))
        chat_id = await ask(client, SUPPORT)
        await ask(client, SUPPORT, sessionId=chat_id)
        assert 2 == len(remembered(model.asked[-1].body))
        await store.raw("UPDATE tasks SET owner = 'bob' WHERE id = :id", id=owned)
        await ask(client, SUPPORT, sessionId=chat_id)
    assert [] == remembered(model.asked[-1].body)


async def test_what_became_incognito_is_not_recalled(
    store: rig.Store, client: httpx.AsyncClient, model: ModelServer
) -> None:
    """A turn that its next message takes out of search takes what came from it out of memory, at once."""
    turn = await store.turn("chat-c", text="A quagga is brown.", prompt=None)
    chat_id = await ask(client, OKAPI, q="quagga")
    hushed = rig.message("ROLE_USER", "Hush.", contextId="chat-c", taskId=turn, metadata={"incognito": True})
    await store.turn("chat-c", text="A quagga is brown.", prompt=None, task_id=turn, history=[hushed])
    await ask(client, OKAPI, sessionId=chat_id)
    assert [] == remembered(model.asked[-1].body)
