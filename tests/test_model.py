"""Any sequence of saves, deletions and reads against a model in memory: a reader sees what the model says, always."""

import asyncio
import random
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any, TypeVar

import httpx
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from sidecar import index, sweeper
from sidecar.app import create_app
from sidecar.routes import SESSIONS
from tests import rig
from tests.test_hostile import sized
from tests.test_store_cases import PARKED, Model, Row, flat, listed, path, walk
from tests.test_turns import CELLS, expected_body

T = TypeVar("T")
RUNNING = {"submitted", "working"}
FINISHED = {"completed", "failed"}
TABLES = ("tasks", "tasks_session_tombstones", "tasks_task_tombstones", "tasks_retirements")

SESSIONS_USED = ("chat-a", "chat-b/turns")

sessions = st.sampled_from(SESSIONS_USED)
states = st.sampled_from([*sorted(PARKED), *sorted(RUNNING), *sorted(FINISHED), ""])
# few moments, so that many are equal, and sometimes none
moments = st.none() | st.integers(0, 5).map(lambda minute: datetime(2026, 1, 5, 9) + timedelta(minutes=minute))
chunks = st.lists(st.text('ab \n\\"é😀\0', max_size=5), max_size=3)
limits = st.integers(1, 4)
orders = st.sampled_from(["activity", "created"])
polls = st.sampled_from([
    SESSIONS, f"{SESSIONS}?parked=true", f"{SESSIONS}?limit=1", path("chat-a"), path("chat-a", "/turns"),
    path("chat-a", "/turns?limit=1"), path("chat-a", "/turns?order=created&limit=2"),
])  # fmt: skip


class World:
    """A store and a sidecar on it, on an event loop of their own; each run of the machine begins with it empty."""

    def __init__(self, runner: asyncio.Runner, store: rig.Store, prepared: bool) -> None:
        self.run = runner.run
        self.store = store
        self.prepared = prepared
        self.app = create_app(rig.config_for(store))
        self.opened = AsyncExitStack()
        self.client = runner.run(self.opened.enter_async_context(rig.client(self.app)))
        if prepared:
            runner.run(rig.prepare(store))
        runner.run(listed(self.client))  # makes our own tables

    async def empty(self) -> None:
        for table in TABLES:
            await self.store.raw(f"DELETE FROM {table}")


class Machine(RuleBasedStateMachine):
    """Its rules are what producers, operators and the sweeper do, and every way to read."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.store, self.client = world, world.store, world.client
        self.model = Model(world.store, world.prepared, random.Random(0))
        self.texts: dict[str, str] = {}
        self.session_of: dict[str, str] = {}
        self.held: dict[str, httpx.Response] = {}
        self.run(world.empty())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.world.run(work)

    # --- what producers do

    def put(self, session_id: str, task_id: str, state: str, at: datetime | None, text: list[str]) -> None:
        time = None if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}"
        self.run(self.store.turn(session_id, state, text, at=time, task_id=task_id))
        self.model.note(Row(session_id, task_id, state, at, 0, by_sdk=True))
        self.texts[task_id], self.session_of[task_id] = "".join(text), session_id

    @initialize(turns=st.lists(st.tuples(sessions, states, moments, chunks), min_size=4, max_size=8))
    def begin(self, turns: list[tuple[str, str, datetime | None, list[str]]]) -> None:
        """Turns to begin with: Hypothesis leaves out rules, and without a turn nothing is read."""
        for turn in turns:
            self.save(*turn)

    @rule(session_id=sessions, state=states, at=moments, text=chunks)
    def save(self, session_id: str, state: str, at: datetime | None, text: list[str]) -> None:
        """A new turn; its id says nothing of the order."""
        self.put(session_id, f"task-{len(self.texts) * 373 % 1009:04}", state, at, text)

    @rule(data=st.data(), state=states, at=moments, text=chunks)
    def save_again(self, data: st.DataObject, state: str, at: datetime | None, text: list[str]) -> None:
        """Another state of a turn, which may have been deleted, cleared or retired in the meantime."""
        task_id = data.draw(st.sampled_from(sorted(self.texts)))
        self.put(self.session_of[task_id], task_id, state, at, text)

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data(), chunk=st.text("xyz", min_size=1, max_size=3))
    def add_chunk(self, data: st.DataObject, chunk: str) -> None:
        """A piece more of an answer, with neither a new state nor a new time."""
        row = self.model.rows[data.draw(st.sampled_from(sorted(self.model.rows)))]
        self.put(row.session_id, row.task_id, row.state, row.at, [self.texts[row.task_id], chunk])

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def take_away(self, data: st.DataObject) -> None:
        """The producer itself deletes a turn."""
        task_id = data.draw(st.sampled_from(sorted(self.model.rows)))
        self.run(self.store.delete(task_id))
        del self.model.rows[task_id]

    # --- what operators and the sweeper do

    @rule(session_id=sessions, retires=st.booleans(), refuses=st.booleans())
    def delete(self, session_id: str, retires: bool, refuses: bool) -> None:
        """Retires or clears a session, and answers what that deleted; a refusal changes nothing."""
        params = {"retire": str(retires).lower(), **({"if_active": "refuse"} if refuses else {})}
        response = self.run(self.client.delete(path(session_id), params=params))
        rows = self.model.visible().get(session_id, [])  # what nobody sees any more does not count
        active = sum(row.state in PARKED | RUNNING for row in rows)
        if session_id in self.model.retired and not retires:
            assert (409, "already_retired") == (response.status_code, response.json()["code"])
        elif active and refuses:
            assert (409, "session_active") == (response.status_code, response.json()["code"])
        else:
            body = response.json()
            assert (len(rows), active, retires) == (body["turns_deleted"], body["active_turns"], body["retired"])
            gone = self.model.forget(session_id)
            if retires:
                self.model.retired.add(session_id)
            else:
                self.model.cleared |= gone

    @rule()
    def sweep(self) -> None:
        """Takes away all that was saved after its deletion, and nothing else."""
        shown = {row.task_id for rows in self.model.visible().values() for row in rows}
        late = self.model.rows.keys() - shown
        assert len(late) == self.run(sweeper.sweep_all(self.world.app.state.database))
        for task_id in late:
            del self.model.rows[task_id]
        assert self.model.rows.keys() == self.run(self.store.column_text("id")).keys()

    # --- every way to read

    def visible(self, session_id: str, order: str) -> list[Row]:
        self.run(self.model.look())
        rank = self.model.activity if order == "activity" else self.model.creation
        return sorted(self.model.visible().get(session_id, []), key=rank)

    @rule(limit=limits)
    def read_index(self, limit: int) -> None:
        """The index and the parked sessions, whole and in pages."""
        self.run(self.model.look())
        every = self.model.index()
        for parked, expected in (("false", every), ("true", [each for each in every if each[3] in PARKED])):
            found = self.run(listed(self.client, parked=parked))
            assert [each[:3] for each in expected] == [tuple(each.values())[:3] for each in found]
            assert found == flat(self.run(walk(self.client, SESSIONS, "sessions", limit=limit, parked=parked)))
            assert found[:limit] == self.run(listed(self.client, limit=limit, parked=parked))

    @rule(session_id=sessions, order=orders, limit=limits)
    def read_turns(self, session_id: str, order: str, limit: int) -> None:
        """The newest turns to the byte, and all turns in pages."""
        expected = self.visible(session_id, order)
        url = path(session_id, "/turns")
        response = self.run(self.client.get(url, params={"order": order, "limit": limit}))
        rows = response.json()["turns"]
        assert [row.task_id for row in expected[-limit:]] == [turn["task_id"] for turn in rows]
        assert [self.texts[turn["task_id"]] for turn in rows] == [turn["text"] for turn in rows]
        stored = {cell: self.run(self.store.column_text(cell)) for cell in CELLS}
        bodies = [expected_body(turn, {cell: stored[cell][turn["task_id"]] for cell in CELLS}) for turn in rows]
        assert response.content == b'{"turns":[' + b",".join(bodies) + b"]}"
        pages = self.run(walk(self.client, url, "turns", limit=limit, order=order))
        assert [row.task_id for row in expected] == [turn["task_id"] for page in reversed(pages) for turn in page]

    @rule(session_id=sessions)
    def read_summary(self, session_id: str) -> None:
        """One session, and the turn to reattach to."""
        rows = self.visible(session_id, "created")
        response = self.run(self.client.get(path(session_id)))
        if not rows:
            assert 404 == response.status_code
            return
        [(_, at, count, _)] = [each for each in self.model.index() if each[0] == session_id]
        body = response.json()
        assert (session_id, at, count) == (body["session_id"], body["last_updated"], body["turn_count"])
        assert live_task(rows) == body["live_task_id"]

    @rule(url=polls)
    def poll(self, url: str) -> None:
        """304 only while the answer is the held one, to the byte; and always right after an answer."""
        held = self.held.get(url)
        validators = {"If-None-Match": held.headers["etag"]} if held else {}
        polled, fresh = self.run(self.client.get(url, headers=validators)), self.run(self.client.get(url))
        if held and polled.status_code == 304:
            assert (held.content, held.headers.get("link")) == (fresh.content, fresh.headers.get("link"))
            assert polled.headers["etag"] == fresh.headers["etag"] == held.headers["etag"]
        else:
            assert polled.status_code == fresh.status_code
        if fresh.status_code == 200:
            self.held[url] = fresh
            again = self.run(self.client.get(url, headers={"If-None-Match": fresh.headers["etag"]}))
            assert (304, b"") == (again.status_code, again.content)

    def teardown(self) -> None:
        """However it ended, everything is looked at once more."""
        self.read_index(2)
        for session_id in SESSIONS_USED:
            self.read_turns(session_id, "activity", 2)
            self.read_turns(session_id, "created", 2)
            self.read_summary(session_id)


def live_task(rows: list[Row]) -> str | None:
    """Of the turns, as created, that no finished one follows: the newest parked, else the oldest running."""
    last = max((number for number, row in enumerate(rows) if row.state in FINISHED), default=-1)
    parked = [row.task_id for row in rows[last + 1 :] if row.state in PARKED]
    running = [row.task_id for row in rows[last + 1 :] if row.state in RUNNING]
    return parked[-1] if parked else running[0] if running else None


@pytest.fixture(params=["plain", "prepared"])
def world(request: pytest.FixtureRequest, store: rig.Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world whose walks are so short that few rows are many, and whose sidecar never sweeps by itself."""
    monkeypatch.setattr(index, "WALKS", (4, 12))
    monkeypatch.setattr(sweeper, "INTERVAL_SECONDS", 1e6)
    with asyncio.Runner() as runner:
        world = World(runner, store, request.param == "prepared")
        yield world
        runner.run(world.opened.aclose())


def test_any_sequence_is_read_as_the_model_reads_it(full: bool, world: World) -> None:
    """Saves, chunks, late saves, deletions, sweeps: lists, order, bytes, counts, pages and validators hold."""

    class Here(Machine):
        def __init__(self) -> None:
            super().__init__(world)

    steps = {"stateful_step_count": 100 if full else 15}
    run_state_machine_as_test(Here, settings=sized(full, 5, 300, **steps))
