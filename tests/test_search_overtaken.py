"""One sidecar overtaken by another, or by a deletion, at the worst moment: each moment is held until it is there."""

import asyncio
from threading import Event
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from sidecar.app import create_app
from sidecar.search import keyword, refresh
from sidecar.search.entries import Cells, Texts, read_texts
from tests import rig
from tests.test_fire import delete
from tests.test_outgoing import until
from tests.test_search import operator, search
from tests.test_search_fire import complete
from tests.test_search_model import strays
from tests.test_search_routes import window


class Pause:
    """Where one analysis stops: that of the next turn that says `word`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
        self.reached, self.over = Event(), Event()

        def paused(cells: Cells) -> Texts:
            if word.encode() in (cells.artifacts or b"") and not self.reached.is_set():
                self.reached.set()
                assert self.over.wait(10)
            return read_texts(cells)

        monkeypatch.setattr(refresh, "read_texts", paused)


async def indexed_words(store: rig.Store) -> str:
    """Every lexeme of the index."""
    return " ".join(str(row.lexemes) for row in await store.raw("SELECT lexemes FROM tasks_search_lexemes"))


async def test_an_older_reading_does_not_replace_a_newer_one(
    store: rig.Store, open_sidecar: rig.OpenSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn says again what is indexed while a slow sidecar still holds what it said meanwhile."""

    async def save(word: str) -> None:
        await store.turn("chat-a", "working", word, None, at=None, task_id="flips")

    slow, fast = [await open_sidecar(store) for _ in range(2)]
    await save("alpha")
    assert [1, 1] == [len((await search(client, "alpha"))["matches"]) for client in (slow, fast)]
    await save("beta")
    pause = Pause(monkeypatch, "beta")
    searching = asyncio.create_task(search(slow, "alpha"))
    await until(pause.reached.is_set)
    await save("alpha")
    find = keyword.find

    async def found_late(*args: Any) -> Any:
        """The slow one stores what it read when the fast one has refreshed and has not searched yet."""
        monkeypatch.setattr(keyword, "find", find)
        pause.over.set()
        await searching
        return await find(*args)

    monkeypatch.setattr(keyword, "find", found_late)
    answer = await search(fast, "alpha")
    assert (True, ["alpha"]) == (answer["availability"]["complete"], [each["excerpt"] for each in answer["matches"]])


async def test_a_place_given_again_does_not_get_the_words_of_before(
    store: rig.Store, open_sidecar: rig.OpenSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleared turn's place goes to a new turn while a slow sidecar still holds the words of the old one."""
    slow, fast, operator = [await open_sidecar(store) for _ in range(3)]
    at = "2026-01-05T09:00:00Z"
    await store.turn("chat-a", text="alpha", prompt=None)
    assert 1 == len((await search(fast, "alpha"))["matches"])
    await store.turn("chat-a", text="old", prompt=None, at=at)
    pause = Pause(monkeypatch, "old")
    searching = asyncio.create_task(search(slow, "alpha"))
    await until(pause.reached.is_set)
    assert 200 == (await delete(operator, "chat-a", "false"))[0]
    await store.turn("chat-a", text="alpha", prompt=None)
    await store.turn("chat-a", text="new", prompt=None, at=at)
    monkeypatch.setattr(refresh, "WORK_SECONDS", 0.0)
    assert not (await search(fast, "new"))["availability"]["complete"]
    monkeypatch.undo()
    pause.over.set()
    await searching
    assert "old" not in await indexed_words(store)
    answer = await search(fast, "new")
    assert (True, ["new"]) == (answer["availability"]["complete"], [each["excerpt"] for each in answer["matches"]])


async def test_a_deletion_that_began_before_the_index(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """The first search comes between the beginning of a retirement and its commit: nothing of the session stays."""
    (indexer, operator) = [await open_sidecar(store) for _ in range(2)]
    await store.turn("chat-a", text="zebra")
    assert 200 == (await delete(operator, "chat-none", "true"))[0]  # our own tables
    deleting: asyncio.Task[Any] | None = None
    async with store.engine.connect() as blocker:
        if store.kind == "postgres":
            await blocker.execute(text("SELECT 1 FROM tasks WHERE id IS NOT NULL FOR UPDATE"))
            deleting = asyncio.create_task(delete(operator, "chat-a", "true"))
            await asyncio.sleep(0.3)
        await complete(indexer)
        await blocker.rollback()
    assert 200 == (await (deleting or delete(operator, "chat-a", "true")))[0]
    assert {"turns": 0, "lexemes": 0} == await strays(store)
    assert [] == await store.raw("SELECT * FROM tasks_search_contexts")


async def test_a_moved_turn_meets_its_old_place(
    store: rig.Store, sidecar: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn moved to another context while there is no time to take its old place away."""
    task_id = await store.turn("chat-a", text="zebra", prompt=None)
    await complete(sidecar)
    await store.turn("chat-b", text="zebra", prompt=None, task_id=task_id)
    monkeypatch.setattr(refresh, "WORK_SECONDS", 0.0)
    assert not (await search(sidecar, "zebra"))["availability"]["complete"]
    monkeypatch.undo()
    assert ["chat-b"] == [each["conversation_public_id"] for each in (await search(sidecar, "zebra"))["matches"]]


@pytest.mark.parametrize("where", ["search", "history"])
async def test_a_title_that_became_incognito(
    where: str, store: rig.Store, sidecar: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn that gave the title becomes incognito, and the index has had no time to see it: it is not shown."""
    await store.turn("chat-a", task_id="first", prompt="Secret plan", text="one")
    await store.turn("chat-a", prompt="go on", text="zebra")
    await complete(sidecar)
    history = [operator("Secret plan"), operator("not for others", incognito=True)]
    await store.turn("chat-a", task_id="first", prompt=None, history=history, text="one")
    monkeypatch.setattr(refresh, "WORK_SECONDS", 0.0)
    shown = await search(sidecar, "zebra") if where == "search" else (await sidecar.get(window("chat-a"))).json()
    assert "Secret" not in str(shown)


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_given_engine_claims_no_more_than_it_checked(store: rig.Store) -> None:
    """Nobody tells of commits to a file behind a given engine: finished turns are taken for unchanged, as is said."""
    await store.turn("chat-a", task_id="same", text="alpha", prompt=None, at="2026-01-05T09:00:00Z")
    async with rig.client(create_app(rig.config_for(store), store.engine)) as client:
        await complete(client)
        await store.turn("chat-a", task_id="same", text="beta", prompt=None, at="2026-01-05T09:00:00Z")
        answer = await search(client, "beta")
    assert ([], "changed") == (answer["matches"], answer["availability"]["checked"])


async def test_whoever_says_complete_has_found_everything(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """New turns get their places from one of several sidecars, and the others wait until those can be found."""
    sidecars = [await open_sidecar(store) for _ in range(5)]
    for number in range(1, 6):
        for _ in range(3):
            await store.turn("chat-a", text="zebra", prompt=None)
        answers = await asyncio.gather(*(search(client, "zebra", limit=50) for client in sidecars))
        found = [len(each["matches"]) for each in answers if each["availability"]["complete"]]
        assert [3 * number] * len(found) == found
        assert found


# --- a partial look must see what a whole one sees


async def test_the_first_turn_after_a_search_of_nothing(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A search of an empty store does not keep the next one from finding what came since."""
    assert [] == (await search(sidecar, "zebra"))["matches"]
    task_id = await store.turn("chat-a", text="zebra", prompt=None)
    answer = await search(sidecar, "zebra")
    assert answer["availability"]["complete"]
    assert [task_id] == [each["turn_public_id"] for each in answer["matches"]]


async def test_a_new_turn_in_the_place_of_a_deleted_one(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """SQLite gives the newest row's number again, and the clock of another producer may be behind."""
    await store.turn("chat-a", text="zebra", prompt=None, at="2026-01-05T09:05:00Z")
    newest = await store.turn("chat-b", text="zebra", prompt=None, at="2026-01-05T09:04:00Z")
    assert 2 == len((await search(sidecar, "zebra"))["matches"])
    await store.delete(newest)
    task_id = await store.turn("chat-b", text="okapi", prompt=None, at="2026-01-05T09:04:30Z")
    answer = await search(sidecar, "okapi")
    assert answer["availability"]["complete"]
    assert [task_id] == [each["turn_public_id"] for each in answer["matches"]]


async def test_a_finished_turn_whose_time_moves_among_later_ones(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A finished turn is saved again with a later time than before, and not the latest of all."""
    task_id = await store.turn("chat-a", text="zebra", prompt=None, at="2026-01-05T09:03:00Z")
    await store.turn("chat-b", text="other", prompt=None, at="2026-01-05T09:05:00Z")
    assert 1 == len((await search(sidecar, "zebra"))["matches"])
    await store.turn("chat-a", task_id=task_id, text="okapi", prompt=None, at="2026-01-05T09:04:00Z")
    answer = await search(sidecar, "okapi")
    assert answer["availability"]["complete"]
    assert [task_id] == [each["turn_public_id"] for each in answer["matches"]]


async def test_a_turn_that_moves_again_and_again(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Each search finds a turn in the context that it was saved under last."""
    for number in range(4):
        await store.turn(f"chat-{number % 2}", task_id="moves", text="zebra", prompt=None)
        answer = await search(sidecar, "zebra")
        assert [f"chat-{number % 2}"] == [each["conversation_public_id"] for each in answer["matches"]]
