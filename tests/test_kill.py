"""SIGKILL amid deletions, of the sidecar and of PostgreSQL: what is left is a before or an after, never a between."""

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta

import httpx
import pytest

from sidecar.db import Database
from sidecar.sweeper import sweep_all
from tests import rig
from tests.bench.generate import START, Planned, load
from tests.postgres import Cluster
from tests.test_degradation import assert_refused, until_answered
from tests.test_process import INDEX, Sidecar, serving
from tombstones.retire import BATCH

# The sessions that are being deleted when a kill comes, by their turns; the last two go in batches on SQLite.
SIZES = (1, 4, 20, BATCH + 50, BATCH + 50)
STARTED_AHEAD = 2


@dataclass(frozen=True)
class Session:
    """One session that is deleted once: retired or cleared."""

    id: str
    turns: int
    retires: bool


Answers = dict[Session, httpx.Response | BaseException]


@dataclass
class Kills:
    """The sessions of each kill, and what came of them.

    window: the seconds in which a kill comes: as long as the deletions take when none does.
    """

    rounds: list[list[Session]]
    dice: random.Random
    found: Counter[str] = field(default_factory=Counter)
    kept_turns: int = 0
    window: float = 0.0

    @classmethod
    async def filled(cls, store: rig.Store, prepare: rig.Prepare, number: int) -> "Kills":
        """The store holds the sessions of so many kills."""
        rounds = [sessions(str(kill)) for kill in range(number)]
        await load(store, planned(session for each in (*rounds, sessions("first")) for session in each))
        await prepare(store)
        return cls(rounds, random.Random(number))

    async def warm(self, client: httpx.AsyncClient) -> None:
        """A process whose first requests are behind it; the first process tells how long its deletions took."""
        for number in range(len(SIZES)):
            assert 200 == (await client.delete(f"{INDEX}/chat-none-{number}")).status_code
        if not self.window:
            began = time.monotonic()
            await asyncio.gather(*(delete(client, session) for session in sessions("first")))
            self.window = time.monotonic() - began

    async def strike(self, client: httpx.AsyncClient, number: int, kill: Callable[[], None]) -> Answers:
        """Deletes the sessions of a kill at once, and kills somewhere on the way."""
        sessions = self.rounds[number]
        deleting = [asyncio.create_task(delete(client, session)) for session in sessions]
        await asyncio.sleep(self.dice.uniform(0, self.window))
        kill()
        return dict(zip(sessions, await asyncio.gather(*deleting, return_exceptions=True), strict=True))

    async def judge(self, store: rig.Store, reader: httpx.AsyncClient, answers: Answers) -> None:
        """Each session is as before or as after, and after where the deletion was acknowledged."""
        for session, answer in answers.items():
            deleted = await is_deleted(store, reader, session)
            acknowledged = isinstance(answer, httpx.Response) and answer.status_code == 200
            assert deleted or not acknowledged, session
            self.kept_turns += 0 if deleted else session.turns
            self.found["acknowledged" if acknowledged else "after" if deleted else "before"] += 1

    async def settle(self, store: rig.Store) -> None:
        """What was left below the tombstones is swept; then the turns of the other sessions are all there is."""
        database = Database(rig.config_for(store))
        try:
            swept = await sweep_all(database)
        finally:
            await database.close()
        print(f"\n{store.kind}: {len(self.rounds)} kills within {self.window * 1000:.0f} ms: {dict(self.found)}")
        print(f"{swept} hidden rows were left to the sweep")
        assert self.kept_turns == (await store.raw("SELECT count(*) FROM tasks"))[0][0]
        if store.kind == "sqlite":
            assert ["ok"] == [row[0] for row in await store.raw("PRAGMA integrity_check")]


def sessions(name: str) -> list[Session]:
    """One of each size; every second one is retired."""
    return [Session(f"chat-{name}-{place}", turns, place % 2 == 0) for place, turns in enumerate(SIZES)]


def planned(sessions: Iterator[Session]) -> Iterator[Planned]:
    for session in sessions:
        for number in range(session.turns):
            yield Planned(session.id, START + timedelta(seconds=number))


async def delete(client: httpx.AsyncClient, session: Session) -> httpx.Response:
    return await client.delete(f"{INDEX}/{session.id}", params={"retire": str(session.retires).lower()})


async def is_deleted(store: rig.Store, reader: httpx.AsyncClient, session: Session) -> bool:
    """Whether a session is as after its deletion; asserts that it is as before it otherwise."""
    summary = await reader.get(f"{INDEX}/{session.id}")
    turns = (await reader.get(f"{INDEX}/{session.id}/turns", params={"limit": 200})).json()["turns"]
    audits = [
        (row.action, row.turns_deleted)
        for row in await store.raw("SELECT * FROM tasks_retirements WHERE session_id = :id", id=session.id)
    ]
    retired = len(await store.raw("SELECT * FROM tasks_session_tombstones WHERE session_id = :id", id=session.id))
    deleted = summary.status_code == 404
    if deleted:
        action = "retire" if session.retires else "clear"
        assert (0, int(session.retires), [(action, session.turns)]) == (len(turns), retired, audits)
    else:
        assert (session.turns, min(session.turns, 200)) == (summary.json()["turn_count"], len(turns))
        assert (0, []) == (retired, audits)
    return deleted


def started(url: str, number: int) -> Iterator[Sidecar]:
    """So many processes, one after the other; the next ones start while one is used."""
    with ThreadPoolExecutor(STARTED_AHEAD) as pool, ExitStack() as opened:

        def start() -> Sidecar:
            return opened.enter_context(serving(url))

        coming = deque(pool.submit(start) for _ in range(min(number, STARTED_AHEAD)))
        for left in range(number, 0, -1):
            if left > STARTED_AHEAD:
                coming.append(pool.submit(start))
            yield coming.popleft().result()


async def until_quiet(store: rig.Store) -> None:
    """Returns when the server has ended what a killed client left to it."""
    busy = "state <> 'idle' AND datname = current_database() AND pid <> pg_backend_pid()"
    while store.kind == "postgres" and await store.raw(f"SELECT pid FROM pg_stat_activity WHERE {busy}"):  # noqa: ASYNC110  # nothing tells of it
        await asyncio.sleep(0.01)


async def test_sidecar_killed(store: rig.Store, sidecar: httpx.AsyncClient, prepare: rig.Prepare, full: bool) -> None:
    """Another sidecar finds each session whole, or deleted with its tombstone and its audit row."""
    kills = await Kills.filled(store, prepare, 200 if full else 10)
    for number, process in enumerate(started(store.url, len(kills.rounds))):
        if store.kind == "sqlite" and number == len(kills.rounds) // 2:
            await store.raw("PRAGMA journal_mode = WAL")
        async with process.client() as client:
            await kills.warm(client)
            answers = await kills.strike(client, number, process.process.kill)
        unanswered = [each for each in answers.values() if isinstance(each, BaseException)]
        assert all(isinstance(each, httpx.TransportError) for each in unanswered), unanswered
        await until_quiet(store)
        await kills.judge(store, sidecar, answers)
    await kills.settle(store)
    assert kills.found["before"] > 0
    assert kills.found["acknowledged"] > 0


@pytest.mark.parametrize("kind", ["postgres"])
async def test_server_killed(store: rig.Store, prepare: rig.Prepare, own_cluster: Cluster, full: bool) -> None:
    """The sidecar outlives its database, answers within two seconds of its return, and knows what it acknowledged."""
    kills = await Kills.filled(store, prepare, 200 if full else 5)
    returns: list[float] = []
    with serving(store.url) as process:
        async with process.client() as client:
            await kills.warm(client)
            for number in range(len(kills.rounds)):
                answers = await kills.strike(client, number, own_cluster.kill)
                for answer in answers.values():
                    assert isinstance(answer, httpx.Response), answer
                    if answer.status_code != 200:
                        assert_refused(answer, "database_unavailable")
                own_cluster.start()
                began = time.monotonic()
                await until_answered(client, 2)
                returns.append(time.monotonic() - began)
                await kills.judge(store, client, answers)
    await kills.settle(store)
    print(f"answers {max(returns):.2f} s after the database's return at the latest")
    assert kills.found["before"] > 0
