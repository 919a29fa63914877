"""Search under fire: producers, readers, deletions, several sidecars and kills at once, on real stores."""

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm.exc import StaleDataError
from starlette.applications import Starlette

from sidecar.app import create_app
from tests import rig
from tests.bench.generate import START, Planned, load
from tests.test_fire import delete
from tests.test_kill import started, until_quiet
from tests.test_outgoing import until
from tests.test_process import on_sqlite, serving
from tests.test_search import SEARCH, narrowed, operator, search
from tests.test_search_model import strays
from tests.test_search_routes import window

ALICE = "alice-token-0123456789"
LOOKS_AFTER = 2


# --- deletions


class Look(NamedTuple):
    """What a reader was shown of a session, and when it had asked."""

    began: float
    is_narrow: bool
    turns: frozenset[str | None]
    texts: str


class Session(NamedTuple):
    """A session that is deleted while it is saved and read: its turns, each with a word of its own."""

    id: str
    word: str
    shown: str
    hidden: str
    incognito: str
    foreign: str

    @property
    def turns(self) -> set[str]:
        return {self.shown, self.hidden, self.incognito, self.foreign}

    async def save(self, store: rig.Store) -> None:
        """All turns once more: an agent in mid-turn, which survives what the SDK raises after a deletion."""
        word = self.word
        told = (
            (self.shown, "alice", [operator(f"old {word}")]),
            (self.hidden, "alice", [operator(f"secret{word}", hidden=True)]),
            (self.incognito, "alice", [operator(f"old {word}", incognito=True)]),
            (self.foreign, "bob", [operator(f"foreign {word}")]),
        )
        for task_id, owner, history in told:
            with contextlib.suppress(StaleDataError, SQLAlchemyError):
                await store.turn(self.id, "working", f"old {word}", None, task_id=task_id, owner=owner, history=history)


def session(number: int) -> Session:
    name = f"chat-{number}"
    return Session(name, f"zebra{number}", *(f"{name}-{kind}" for kind in ("shown", "hidden", "incognito", "foreign")))


async def look(client: httpx.AsyncClient, session: Session, is_narrow: bool, is_search: bool) -> Look:
    began = time.monotonic()
    if is_search:
        matches = (await search(client, session.word, limit=50))["matches"]
        texts = " ".join(f"{each['title']} {each['excerpt']}" for each in matches)
        assert {session.id} >= {each["conversation_public_id"] for each in matches}
        return Look(began, is_narrow, frozenset(each["turn_public_id"] for each in matches), texts)
    response = await client.get(window(session.id))
    assert response.status_code in (200, 404), response.text
    turns = response.json().get("turns", [])
    texts = " ".join(f"{turn.get('prompt')} {turn.get('content')}" for turn in turns)
    return Look(began, is_narrow, frozenset(turn["public_id"] for turn in turns), texts)


async def watch(
    client: httpx.AsyncClient, session: Session, is_narrow: bool, looks: list[Look], over: asyncio.Event
) -> None:
    """A reader that searches and reads in turn."""
    for is_search in cycle((True, False)):
        if over.is_set():
            break
        looks.append(await look(client, session, is_narrow, is_search))
        assert [] == (await search(client, f"secret{session.word}"))["matches"]


async def produce(store: rig.Store, session: Session, over: asyncio.Event) -> None:
    while not over.is_set():
        await session.save(store)
        await asyncio.sleep(0.002)


async def under_fire(store: rig.Store, clients: list[httpx.AsyncClient], session: Session, retire: str) -> list[Look]:
    """Deletes a session that is saved, searched and read all the while; all that readers were shown of it."""
    await session.save(store)
    looks: list[Look] = []
    watched, over = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as fire:
        fire.create_task(produce(store, session, over))
        watching = [
            fire.create_task(watch(client, session, is_narrow, looks, watched))
            for client, is_narrow in zip(clients, (False, True), strict=True)
        ]
        await until(lambda: {each.is_narrow for each in looks if each.turns} == {False, True}, seconds=15)
        status, deleted = await delete(clients[0], session.id, retire)
        assert 200 == status
        new = await store.turn(session.id, text=f"new {session.word}", prompt="new", owner="alice")
        for is_narrow in (False, True):
            await until(
                lambda: sum(each.began > deleted for each in looks if each.is_narrow == is_narrow) >= LOOKS_AFTER,  # noqa: B023  # it is over by then
                seconds=15,
            )
        watched.set()
        await asyncio.wait(watching)
        over.set()
    expected = set() if retire == "true" else {new}
    for client, is_narrow in zip(clients, (False, True), strict=True):
        for is_search in (True, False):
            assert expected == (await look(client, session, is_narrow, is_search)).turns - {None}
    after = [each for each in looks if each.began > deleted]
    assert {None, *expected} >= {turn for each in after for turn in each.turns}
    assert "old" not in " ".join(each.texts for each in after)
    assert not any(session.incognito in each.turns for each in looks)
    assert not any(session.foreign in each.turns or "foreign" in each.texts for each in looks if each.is_narrow)
    assert {session.shown, session.hidden, session.foreign} <= {turn for each in looks for turn in each.turns}
    return looks


async def test_deleted_turns_are_never_found(store: rig.Store, tmp_path: Path, full: bool) -> None:
    """After the 200 of a deletion no search and no window shows a turn of before, whatever is saved late.

    Nor is an incognito or a foreign turn ever shown; a hidden prompt is not found, and its answer is.
    """
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(narrowed(ALICE, "alice"))
    looks: list[Look] = []
    rounds = 200 if full else 6
    with serving(store.url, SIDECAR_TOKENS_FILE=str(tokens)) as sidecar:
        async with sidecar.client() as client, sidecar.client() as narrow:
            narrow.headers["Authorization"] = f"Bearer {ALICE}"
            for number in range(rounds):
                looks += await under_fire(store, [client, narrow], session(number), "true" if number % 2 else "false")
    print(f"\n{store.kind}: {rounds} rounds, {len(looks)} looks, {sum(bool(each.turns) for each in looks)} of turns")
    assert {"turns": 0, "lexemes": 0} == await strays(store)


# --- a turn that says now this, now that


async def flip(store: rig.Store, saves: int, over: asyncio.Event, was_seen: Callable[[], bool]) -> None:
    """A turn that holds `alpha` and `beta` in turn, saved as fast as it goes, until it was seen."""
    for number in itertools.count():
        if number >= saves and (was_seen() or number >= 20 * saves):
            break
        word = ("alpha", "beta")[number % 2]
        await store.turn("chat-flips", "working", f"{word} number {number}", None, task_id="flipping")
        await asyncio.sleep(0.001)
    over.set()


@pytest.mark.usefixtures("sqlite_suffices")
async def test_no_page_is_wrong_short_or_twice(store: rig.Store, open_sidecar: rig.OpenSidecar, full: bool) -> None:
    """While one turn flips between two words, every match holds the word, and the other matches come once each."""
    standing = [await store.turn("chat-stands", text=f"alpha beta {n}", prompt=None) for n in range(10)]
    first = await store.turn("chat-flips", "working", "alpha", None, task_id="flipping")
    standing += [await store.turn("chat-stands", text=f"alpha beta {n}", prompt=None) for n in range(10)]
    sidecars = [await open_sidecar(store) for _ in range(2)]
    over = asyncio.Event()
    pages, flips = 0, 0

    async def walk(client: httpx.AsyncClient, word: str, limit: int) -> None:
        nonlocal pages, flips
        while not over.is_set():
            turns: list[str | None] = []
            after: dict[str, str] = {}
            while True:
                page = await search(client, word, limit=limit, **after)
                assert page["availability"]["complete"], page["availability"]
                assert all(word in each["excerpt"] for each in page["matches"])
                turns += [each["turn_public_id"] for each in page["matches"]]
                pages += 1
                if (cursor := page["pagination"]["next_after"]) is None:
                    break
                assert limit == len(page["matches"])
                after = {"after": cursor}
            flips += first in turns
            assert len(turns) == len(set(turns))
            assert list(reversed(standing)) == [each for each in turns if each != first]

    async with asyncio.TaskGroup() as fire:
        fire.create_task(flip(store, 2_000 if full else 100, over, lambda: flips > 0))
        for client, word, limit in zip(sidecars, ("alpha", "beta"), (4, 3), strict=True):
            fire.create_task(walk(client, word, limit))
    print(f"\n{store.kind}: {pages} pages; the flipping turn was among {flips} walks")
    assert flips > 0


@asynccontextmanager
async def two_sidecars(
    store: rig.Store, open_sidecar: rig.OpenSidecar, processes: bool
) -> AsyncIterator[list[httpx.AsyncClient]]:
    """The clients of two sidecars on one store: in this process, or each in one of its own."""
    if not processes:
        yield [await open_sidecar(store) for _ in range(2)]
        return
    with serving(store.url) as first, serving(store.url) as second:
        async with first.client() as one, second.client() as other:
            yield [one, other]


@pytest.mark.parametrize("says", ["more", "flips"])
async def test_what_was_saved_is_found(says: str, store: rig.Store, open_sidecar: rig.OpenSidecar, full: bool) -> None:
    """A search that says it is complete finds what was saved before it began, while another sidecar refreshes."""
    saves, incomplete, missed = 1_500 if full else 25, 0, []
    over = asyncio.Event()

    async def refresh(client: httpx.AsyncClient) -> None:
        while not over.is_set():
            await search(client, "nothing")
            await asyncio.sleep(0)

    async with two_sidecars(store, open_sidecar, full) as sidecars, asyncio.TaskGroup() as fire:
        for client in sidecars:
            fire.create_task(refresh(client))
        for number in range(saves):
            texts = [f"word{n}" for n in range(number + 1)] if says == "more" else [("alpha", "beta")[number % 2]]
            await store.turn("chat-a", "working", " ".join(texts), None, at=None, task_id="growing")
            await asyncio.sleep(number % 7 / 1000)
            answer = await search(sidecars[number % 2], texts[-1])
            if not answer["availability"]["complete"]:
                incomplete += 1
            elif [texts[-1]] != [each["excerpt"].split()[-1] for each in answer["matches"]]:
                missed.append(number)
        over.set()
    print(f"\n{store.kind}, {says}: {saves} saves, {incomplete} incomplete answers, missed {missed}")
    assert [] == missed
    assert incomplete < saves / 10


# --- an index that is being built


def building(turns: int, sessions: int) -> Iterator[Planned]:
    """Turns of several sessions, as they came."""
    return (Planned(f"chat-{n % sessions}", START + timedelta(seconds=n)) for n in range(turns))


async def complete(client: httpx.AsyncClient, query: str = "nothing") -> list[dict[str, Any]]:
    """What was asked for on the way until the index was whole."""
    answers = [await search(client, query)]
    while not answers[-1]["availability"]["complete"]:
        answers.append(await search(client, query))
    return answers


async def rows_of(store: rig.Store) -> dict[str, int]:
    """How many rows stand in the task table and in those of the index."""
    names = ("tasks", "tasks_search_turns", "tasks_search_lexemes")
    return {name: (await store.raw(f"SELECT count(*) FROM {name}"))[0][0] for name in names}


@pytest.mark.parametrize("turns_a_session", [20, 300], ids=["short", "long"])
async def test_sessions_deleted_while_the_index_is_built(
    turns_a_session: int, store: rig.Store, open_sidecar: rig.OpenSidecar, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sidecars index what a third deletes: no row of the index is left of it, and none that is alive is missing."""
    turns = 9_000 if full else 900
    sessions = turns // turns_a_session
    await load(store, building(turns, sessions))
    monkeypatch.setattr("sidecar.search.refresh.WORK_SECONDS", 0.3)
    indexers = [await open_sidecar(store) for _ in range(2)]
    operator = await open_sidecar(store)
    late = {row.context_id: row.id for row in await store.raw("SELECT context_id, id FROM tasks")}
    gone = list(late)[::2]

    async def take_away() -> None:
        for number, session_id in enumerate(gone):
            status, _ = await delete(operator, session_id, ("true", "false")[number % 2])
            assert 200 == status
            await store.turn(session_id, task_id=late[session_id])

    async with asyncio.TaskGroup() as fire:
        for client in indexers:
            fire.create_task(complete(client))
        fire.create_task(take_away())
    left = turns - len(gone) * turns_a_session
    answers = [await complete(client, "index OR walks") for client in indexers]
    assert {left} == {each[-1]["availability"]["indexed"] for each in answers}
    assert {"turns": 0, "lexemes": 0} == await strays(store)
    counts = await rows_of(store)
    print(f"\n{store.kind}: {len(gone)} of {sessions} sessions deleted, {counts} rows")
    assert left == counts["tasks_search_turns"]


async def test_a_deletion_beside_the_first_search(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """The index is begun while sessions are deleted that nobody had searched yet: nothing of them stays in it."""
    indexer, operator = [await open_sidecar(store) for _ in range(2)]
    for n in range(20):
        await store.turn(f"chat-{n}", text="zebra")
    answers = await asyncio.gather(complete(indexer), *(delete(operator, f"chat-{n}", "true") for n in range(15)))
    assert {200} == {status for status, _ in answers[1:]}
    assert {"turns": 0, "lexemes": 0} == await strays(store)


class Hold(NamedTuple):
    """A transaction of the sidecar that held SQLite's write lock: for what, and how long."""

    work: str
    seconds: float


def held_by(app: Starlette) -> list[Hold]:
    """How long the app's transactions hold the write lock from now on; to be called before its first request."""
    holds: list[Hold] = []
    engine = app.state.database._engine.sync_engine
    began: dict[Any, tuple[float, set[str]]] = {}
    kinds = {
        "INSERT INTO tasks_search_turns": "registering",
        "UPDATE tasks_search_turns": "storing",
        "DELETE FROM tasks_search_turns": "forgetting",
        "CREATE": "creating",
    }

    @event.listens_for(engine, "after_cursor_execute")
    def _after(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        key = connection.connection.dbapi_connection
        if statement == "BEGIN IMMEDIATE":
            began[key] = (time.monotonic(), set())
        elif key in began:
            began[key][1].update(kind for start, kind in kinds.items() if statement.startswith(start))
            if statement in ("COMMIT", "ROLLBACK"):
                start, work = began.pop(key)
                holds.append(Hold("+".join(sorted(work)) or "other", time.monotonic() - start))

    return holds


@asynccontextmanager
async def producing(store: rig.Store, a_second: int) -> AsyncIterator[list[float]]:
    """A producer that saves so often; the seconds that each save took."""
    seconds: list[float] = []
    over = asyncio.Event()

    async def produce() -> None:
        for number in count():
            if over.is_set():
                return
            began = time.monotonic()
            await store.turn(f"chat-live-{number % 5}", "working", f"live {number}", task_id=f"live-{number % 50}")
            seconds.append(time.monotonic() - began)
            await asyncio.sleep(max(0.0, began + 1 / a_second - time.monotonic()))

    async with asyncio.TaskGroup() as fire:
        fire.create_task(produce())
        yield seconds
        over.set()


@on_sqlite
@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_a_producer_saves_while_the_index_is_built(journal: str, store: rig.Store, full: bool) -> None:
    """No save fails, and none waits long: each transaction of the index holds the write lock for a moment."""
    await store.raw(f"PRAGMA journal_mode = {journal}")
    turns = 10_000 if full else 1_500
    await load(store, building(turns, 100))
    await rig.prepare(store)
    app = create_app(rig.config_for(store))
    holds = held_by(app)
    async with rig.client(app) as client, producing(store, 20) as saves:
        await asyncio.sleep(0.3)
        began, before = time.monotonic(), len(saves)
        await complete(client)
        seconds = time.monotonic() - began
        idle, busy = saves[:before], saves[before:]
        for number in range(0, 100, 5):
            assert 200 == (await delete(client, f"chat-{number}", "true"))[0]
    print(
        f"\n{journal}: {turns} turns in {seconds:.1f} s; {len(busy)} saves, the slowest {max(busy) * 1e3:.0f} ms",
        end="",
    )
    print(f" (median {statistics.median(busy) * 1e3:.0f}, before {statistics.median(idle) * 1e3:.0f})")
    for work in sorted({hold.work for hold in holds}):
        times = sorted(hold.seconds * 1e3 for hold in holds if hold.work == work)
        print(f"  {work}: {len(times)} times, median {statistics.median(times):.1f} ms, longest {times[-1]:.1f} ms")
        assert statistics.median(times) < (50 if full and work != "forgetting" else 200)
    assert max(busy) < 4  # the SDK gives up after 5 s


# --- kills


async def positions(store: rig.Store) -> dict[str, tuple[int, int]]:
    """The places of the registered turns; none while there is no index."""
    try:
        rows = await store.raw("SELECT task_id, seq, position FROM tasks_search_turns")
    except SQLAlchemyError:
        return {}
    return {row.task_id: (row.seq, row.position) for row in rows}


@pytest.mark.usefixtures("sqlite_suffices")
async def test_killed_while_it_builds_the_index(
    store: rig.Store, sidecar: httpx.AsyncClient, prepare: rig.Prepare, full: bool
) -> None:
    """Another sidecar finishes what a killed one began: each place stays what it was, and each turn is indexed once."""
    turns, kills = (20_000, 20) if full else (1_500, 2)
    await load(store, building(turns, 10))
    await prepare(store)
    dice, places, found = random.Random(kills), dict[str, tuple[int, int]](), list[int]()
    for process in started(store.url, kills):
        async with process.client() as client:
            searching = asyncio.create_task(client.get(SEARCH, params={"query": "index"}))
            await asyncio.sleep(dice.uniform(0.3, 3.0 if full else 0.7))
            process.process.kill()
            with contextlib.suppress(httpx.TransportError):
                await searching
        await until_quiet(store)
        now = await positions(store)
        assert places == {task_id: place for task_id, place in now.items() if task_id in places}
        places = now
        found.append((await rows_of(store))["tasks_search_lexemes"] if now else 0)
    print(f"\n{store.kind}: {kills} kills, {len(places)} registered, lexemes of fields after each: {found}")
    answers = await complete(sidecar)
    assert turns == answers[-1]["availability"]["indexed"]
    now = await positions(store)
    assert places == {task_id: place for task_id, place in now.items() if task_id in places}
    assert [*range(1, turns + 1)] == sorted(seq for seq, _ in now.values())
    ids = [row.id for row in await store.raw("SELECT id FROM tasks ORDER BY last_updated")]
    assert ids == sorted(now, key=lambda task_id: now[task_id])
    assert {"turns": 0, "lexemes": 0} == await strays(store)
    assert 3 * turns == (await rows_of(store))["tasks_search_lexemes"]
