"""The validators: no committed change of an answer goes unseen, and an unseen one is answered without its bytes."""

import asyncio
import hashlib
import json
import random
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette

from sidecar.app import create_app
from sidecar.db import Database
from sidecar.sweeper import sweep_all
from tests import rig
from tests.postgres import Cluster

INDEX = "/api/chat/sessions"
PARKED = f"{INDEX}?parked=true"
SESSION = f"{INDEX}/chat-a"
TURNS = f"{SESSION}/turns"
ROUTES = (INDEX, PARKED, SESSION, TURNS, f"{TURNS}?order=created")
FIRST = "2026-01-05T09:00:00Z"

on_postgres = pytest.mark.parametrize("kind", ["postgres"])
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])


@pytest.fixture(params=["plain", "prepared"])
async def sidecar(store: rig.Store, open_sidecar: rig.OpenSidecar, request: pytest.FixtureRequest) -> httpx.AsyncClient:
    """A sidecar on a store as the SDK leaves it, and on a prepared one."""
    if request.param == "prepared":
        await rig.prepare(store)
    return await open_sidecar(store)


@dataclass
class Poller:
    """A client that always sends its last validator and keeps its last body."""

    client: httpx.AsyncClient
    path: str
    etag: str = ""
    body: bytes = b""

    async def poll(self) -> int:
        """The status of one more request."""
        headers = {"If-None-Match": self.etag} if self.etag else {}
        response = await self.client.get(self.path, headers=headers)
        if response.status_code == 304:
            assert self.etag == response.headers["etag"]
            assert b"" == response.content
        else:
            assert response.status_code in (200, 404), response.text
            # a 404 carries no validator, and leaves nothing to keep
            self.etag, self.body = response.headers.get("etag", ""), answered(response)
        return response.status_code

    async def sees_change(self) -> None:
        """The next answer is another one under another validator; after it nothing is new."""
        before = self.etag, self.body
        assert 200 == await self.poll(), self.path
        assert self.etag != before[0]
        assert self.body != before[1]
        assert 304 == await self.poll(), self.path

    async def is_current(self) -> bool:
        """What it holds is what anybody else is given now."""
        return self.body == answered(await self.client.get(self.path))


def answered(response: httpx.Response) -> bytes:
    return response.content if response.status_code == 200 else b"404"


async def polling(client: httpx.AsyncClient, *paths: str) -> list[Poller]:
    """Clients that hold the answers of now."""
    pollers = [Poller(client, path) for path in paths]
    for poller in pollers:
        await poller.poll()
        assert 304 == await poller.poll(), poller.path
    return pollers


# Every change of a session


@pytest.mark.parametrize("at", [FIRST, None], ids=["dated", "undated"])
async def test_thirty_chunks(at: str | None, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Chunks of an artifact do not move last_updated; each gives every order of the turns a new validator."""
    await store.turn("chat-a", at="2026-01-01T00:00:00Z")
    task, chunks = await store.turn("chat-a", "working", ["0 "], at=at), ["0 "]
    pollers = await polling(sidecar, TURNS, f"{TURNS}?order=created", f"{TURNS}?limit=1")
    for number in range(30):
        chunks.append(f"{number} ")
        await store.turn("chat-a", "working", chunks, at=at, task_id=task)
        for poller in pollers:
            await poller.sees_change()


async def test_every_change_of_a_session(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A status, a new turn, a deleted row, a cleared and a retired history are seen on each route that shows them."""
    task = await store.turn("chat-a", "working", at=FIRST)
    turns, created, summary, index = await polling(sidecar, TURNS, f"{TURNS}?order=created", SESSION, INDEX)
    parked = Poller(sidecar, PARKED)
    await parked.poll()

    await store.turn("chat-a", "input-required", at=FIRST, task_id=task)
    for poller in (turns, created, summary, parked):
        await poller.sees_change()
    await store.turn("chat-a", "input-required", at=FIRST, task_id=task, status_text="Which one?")
    for poller in (turns, created):
        await poller.sees_change()
    second = await store.turn("chat-a")
    for poller in (turns, created, summary, index):
        await poller.sees_change()
    await store.delete(second)
    for poller in (turns, created, summary, index):
        await poller.sees_change()
    assert 200 == (await sidecar.delete(f"{SESSION}?retire=false")).status_code
    for poller in (turns, created, index):
        await poller.sees_change()
    await store.turn("chat-a")
    for poller in (turns, created, index):
        await poller.sees_change()
    assert 200 == (await sidecar.delete(SESSION)).status_code
    for poller in (turns, created, index):
        await poller.sees_change()
    await summary.poll()
    assert b"404" == summary.body


async def test_metadata_alone(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A save that changes nothing that is shown may be seen or not; the answer is the same."""
    task = await store.turn("chat-a", at=FIRST, prompt=None)
    pollers = await polling(sidecar, *ROUTES)
    await store.turn("chat-a", at=FIRST, prompt=None, task_id=task, metadata={"seen": True})
    for poller in pollers:
        await poller.poll()
        assert await poller.is_current()


async def test_sweep_of_a_hidden_row(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A row that nobody sees comes and goes without a change of any answer."""
    task = await store.turn("chat-a", "input-required")
    await store.turn("chat-b", "input-required")
    assert 200 == (await sidecar.delete(SESSION)).status_code
    pollers = await polling(sidecar, INDEX, PARKED, TURNS, f"{INDEX}/chat-b", f"{INDEX}/chat-b/turns")
    bodies = [poller.body for poller in pollers]
    await store.turn("chat-a", "input-required", task_id=task)
    database = Database(rig.config_for(store))
    for work in (lambda: sweep_all(database), lambda: store.raw("SELECT 1")):
        for poller in pollers:
            await poller.poll()
            assert await poller.is_current()
        await work()
    await database.close()
    assert [0] == [row[0] for row in await store.raw("SELECT count(*) FROM tasks WHERE context_id = 'chat-a'")]
    assert bodies == [poller.body for poller in pollers]


async def test_turns_that_change_pages(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A turn that moves from an older page to a newer one changes both, and one beyond a page need not change it."""
    tasks = [await store.turn("chat-a", "working") for _ in range(6)]
    first = await sidecar.get(TURNS, params={"limit": 2})
    second = await sidecar.get(first.links["next"]["url"])
    paths = (f"{TURNS}?limit=2", first.links["next"]["url"], second.links["next"]["url"])
    newest, older, oldest = await polling(sidecar, *paths)
    await store.turn("chat-a", "working", "Older and changed", task_id=tasks[0], at=FIRST)
    await oldest.sees_change()
    for poller in (newest, older):
        await poller.poll()
        assert await poller.is_current()
    await store.turn("chat-a", "completed", task_id=tasks[2])
    for poller in (newest, older):
        await poller.sees_change()
    await store.delete(tasks[1])
    await oldest.sees_change()


async def test_index_that_comes_to_lead_on(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A page whose Link is new is answered anew: who held it as the last one would never ask for the next."""
    await store.turn("chat-a")
    await assert_leads_on(store, sidecar, f"{INDEX}?limit=1", "chat-b")


async def test_turns_that_come_to_lead_on(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The same with a session's turns, where an older one is saved late."""
    await store.turn("chat-a")
    await assert_leads_on(store, sidecar, f"{TURNS}?limit=1", "chat-a")


async def assert_leads_on(store: rig.Store, client: httpx.AsyncClient, path: str, session: str) -> None:
    """An older turn of the session gives the page, which shows the same as before, a Link."""
    (poller,) = await polling(client, path)
    await store.turn(session, at="2025-01-01T00:00:00Z")
    response = await client.get(path, headers={"If-None-Match": poller.etag})
    assert "next" in response.links


# What a validator stands for


async def test_equal_validators_mean_equal_answers(
    store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path
) -> None:
    """Whatever limit, order, owner or cap two requests differ in: an equal validator means equal bytes."""
    for number in range(4):
        await store.turn("chat-a", "completed", "x" * 200 * number, owner="ab"[number % 2], at=FIRST)
    older = await store.turn("chat-a", "working", owner="a", at="2026-01-01T00:00:00Z")
    await store.turn("chat-a", "completed", owner="a", task_id=older)
    tokens = {name: f"token-of-{name}-0123456789" for name in ("a", "b", "ab", "nobody")}
    answers: dict[tuple[str, str], set[bytes]] = {}
    for caps in ({}, {"max_turn_bytes": 300}, {"max_response_bytes": 700}):
        client = await open_sidecar(store, tokens_file=tokens_file(tmp_path, tokens), **caps)
        for token in (rig.TOKEN, *tokens.values()):
            for query in ("", "?limit=1", "?limit=2", "?limit=3", "?order=created", "?limit=3&order=created"):
                for _ in range(2):
                    headers = {"Authorization": f"Bearer {token}"}
                    response = await client.get(TURNS + query, headers=headers)
                    answers.setdefault((TURNS, response.headers["etag"]), set()).add(response.content)
    assert len(answers) > 10
    assert {1} == {len(bodies) for bodies in answers.values()}


def tokens_file(folder: Path, tokens: dict[str, str]) -> Path:
    """A tokens file whose tokens see the rows of the owners that their names are made of."""
    path = folder / "tokens.toml"
    each = [
        f'[[token]]\nname = "{name}"\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\nscopes = ["read"]\n'
        f"owners = {json.dumps(list(name))}\n"
        for name, token in tokens.items()
    ]
    path.write_text("\n".join(each))
    path.chmod(0o600)
    return path


async def test_a_validator_of_another_owner(store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path) -> None:
    """On each route the validator that one token was given never spares another one its own answer."""
    for owner in "ab":
        await store.turn("chat-a", "input-required", owner=owner)
    tokens = {"a": "token-of-a-0123456789", "b": "token-of-b-0123456789"}
    client = await open_sidecar(store, tokens_file=tokens_file(tmp_path, tokens))
    for path in ROUTES:
        for first, second in (("a", "b"), ("b", "a"), ("a", "b")):
            asked = [{"Authorization": f"Bearer {tokens[name]}"} for name in (first, second)]
            given = await client.get(path, headers=asked[0])
            other = await client.get(path, headers={**asked[1], "If-None-Match": given.headers["etag"]})
            plain = await client.get(path, headers=asked[1])
            if given.content != plain.content:
                assert (200, plain.content) == (other.status_code, other.content), path


async def test_slashes_in_ids(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """`chat-a/turns` as an id and the turns of `chat-a` share no validator, whichever was asked first."""
    names = ("chat-a", "chat-a/turns", "chat-a/turns/turns", "chat-a%2Fturns")
    for name in names:
        await store.turn(name, text=f"The answer of {name}")
    encoded = [quote(name, safe="") for name in names]
    paths = [f"{INDEX}/{name}{tail}" for name in encoded for tail in ("", "/turns")]
    pollers = await polling(sidecar, *paths, *(path.replace("%2F", "%2f") for path in paths))
    etags = {poller.etag: poller.body for poller in pollers}
    assert {poller.body for poller in pollers} == set(etags.values())
    for poller in pollers:
        for etag in etags:
            response = await sidecar.get(poller.path, headers={"If-None-Match": etag})
            assert (304 if etags[etag] == poller.body else 200) == response.status_code


# What a 304 costs


@asynccontextmanager
async def spied(store: rig.Store) -> AsyncIterator[tuple[httpx.AsyncClient, Starlette, list[str]]]:
    """A sidecar, its client, and the statements that its readers run."""
    app = create_app(rig.config_for(store))
    statements = rig.spy(app)
    async with rig.client(app) as client:
        yield client, app, statements


@on_sqlite
async def test_unchanged_file_costs_one_pragma(store: rig.Store) -> None:
    """As long as nobody commits, a 304 of any route runs no statement but the one that asks for the version."""
    await store.turn("chat-a", "input-required")
    async with spied(store) as (client, app, statements):
        pollers = await polling(client, *ROUTES)
        statements.clear()
        await app.state.database._sentinel._connection.set_trace_callback(statements.append)
        for poller in pollers:
            assert 304 == await poller.poll()
        assert ["PRAGMA data_version"] * len(ROUTES) == statements


@on_postgres
@pytest.mark.parametrize("path", [TURNS, f"{TURNS}?order=created"])
async def test_unchanged_rows_cost_no_json(path: str, store: rig.Store, prepare: rig.Prepare) -> None:
    """A 304 of the turns is one statement that names no transcript and unpacks no stored value, the status' neither."""
    await prepare(store)
    for number in range(10):
        noise = "".join(map(chr, random.Random(number).choices(range(0x4E00, 0x9FFF), k=4000)))
        await store.turn("chat-a", "working", noise, noise, status_text=noise)
    async with spied(store) as (client, _, _):
        etag = (await client.get(path)).headers["etag"]
    before = await unpacked(store)
    assert before > 0
    async with spied(store) as (client, _, statements):
        for _ in range(5):
            assert 304 == (await client.get(path, headers={"If-None-Match": etag})).status_code
        await asyncio.sleep(0)  # asyncpg tells of a query a moment later
        asked = [each for each in statements if "context_id" in each]
        assert 5 == len(asked)
        assert not [each for each in asked if "artifacts" in each or "history" in each]
    assert before == await unpacked(store)


async def unpacked(store: rig.Store) -> int:
    """How many blocks of large values were ever read; a connection has told of all of them when it has ended."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with asyncio.timeout(5):
        while (await store.raw(others))[0][0]:  # noqa: ASYNC110  # no event tells of another session's end
            await asyncio.sleep(0.01)
    (row,) = await store.raw(
        "SELECT toast_blks_hit + toast_blks_read FROM pg_statio_user_tables WHERE relname = 'tasks'"
    )
    return int(row[0])


# What happens to the database


def file_of(store: rig.Store) -> Path:
    return Path(store.url.removeprefix("sqlite+aiosqlite:///"))


@pytest.mark.parametrize("mode", ["DELETE", "TRUNCATE", "PERSIST", "WAL"])
@on_sqlite
async def test_journal_modes(mode: str, store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """In every journal mode, and while it changes, each commit of any connection is seen, and nothing else is."""
    await store.turn("chat-a", at=FIRST)
    task = await store.turn("chat-a", "working", at=FIRST)
    with closing(sqlite3.connect(file_of(store), isolation_level=None)) as held:
        assert [(mode.lower(),)] == held.execute(f"PRAGMA journal_mode = {mode}").fetchall()
        client = await open_sidecar(store)
        turns, index = await polling(client, TURNS, INDEX)
        for number in range(5):
            await store.turn("chat-a", "working", [f"chunk {number}"], at=FIRST, task_id=task)
            await turns.sees_change()
            held.execute("UPDATE tasks SET artifacts = :new WHERE id = :id", {"new": f"[{number}]", "id": task})
            await turns.sees_change()
            held.execute("BEGIN")
            held.execute("DELETE FROM tasks WHERE id = ?", (task,))
            assert 304 == await turns.poll()  # in rollback modes a writer that has not committed yet locks nobody out
            held.execute("ROLLBACK")
            assert 304 == await turns.poll()
            held.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            assert 304 == await turns.poll()
        await store.turn("chat-a")
        await index.sees_change()
        # back again nobody may go while others have the file open
        assert [("wal",)] == held.execute("PRAGMA journal_mode = WAL").fetchall()
        await turns.poll()
        await store.turn("chat-a", "working", ["the last chunk"], at=FIRST, task_id=task)
        await turns.sees_change()


@pytest.mark.parametrize("wal", [False, True])
@on_sqlite
async def test_file_replaced(wal: bool, store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path) -> None:
    """Another file at the path is another answer, and so is the first one when it comes back."""
    await store.turn("chat-a", "input-required")
    client = await open_sidecar(store)
    pollers = await polling(client, *ROUTES)
    async with rig.sqlite_store(tmp_path / "new.db") as new:
        await new.raw(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
        for _ in range(2):
            await new.turn("chat-a", "input-required", "Of the other file")
        await new.raw("PRAGMA journal_mode = DELETE")  # all of it in one file
    for _ in range(2):
        file_of(store).rename(tmp_path / "old.db")
        (tmp_path / "new.db").rename(file_of(store))
        for poller in pollers:
            await poller.sees_change()
        (tmp_path / "old.db").rename(tmp_path / "new.db")
    shutil.copy(file_of(store), tmp_path / "copy.db")
    (tmp_path / "copy.db").rename(file_of(store))
    for poller in pollers:
        assert 304 == await poller.poll()


async def test_vacuum(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """Rows that move give no wrong answer, whatever was saved before, between and after."""
    client = await open_sidecar(store)
    tasks = [await store.turn("chat-a", "working", at=FIRST) for _ in range(4)]
    pollers = await polling(client, *ROUTES)
    for number in range(6):
        await store.turn("chat-a", "working", ["chunk"] * number, at=FIRST, task_id=tasks[number % 4])
        if number == 2:
            await store.delete(tasks.pop())
            tasks.append(await store.turn("chat-a", "working", at=FIRST))
        await run_outside(store, "VACUUM" if number % 2 else "VACUUM FULL tasks")
        for poller in pollers:
            await poller.poll()
            assert await poller.is_current()
            assert 304 == await poller.poll()


async def run_outside(store: rig.Store, sql: str) -> None:
    """A statement that refuses to run in a transaction; SQLite knows one kind of VACUUM."""
    if store.kind == "sqlite":
        with closing(sqlite3.connect(file_of(store), isolation_level=None)) as connection:
            connection.execute("VACUUM")
        return
    async with store.engine.connect() as connection:
        autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await autocommit.exec_driver_sql(sql)


@on_postgres
async def test_restart(store: rig.Store, sidecar: httpx.AsyncClient, own_cluster: Cluster) -> None:
    """Row versions mean something on a running server only: after a restart every answer is given anew."""
    task = await store.turn("chat-a", "working", at=FIRST)
    (turns,) = await polling(sidecar, TURNS)
    etag, body = turns.etag, turns.body
    own_cluster.restart("immediate")
    assert 200 == await turns.poll()
    assert (body, False) == (turns.body, etag == turns.etag)
    assert 304 == await turns.poll()
    own_cluster.stop()
    own_cluster.start()
    await store.turn("chat-a", "working", ["chunk"], at=FIRST, task_id=task)
    await turns.sees_change()


# A commit between two steps of one answer


Between = Callable[[], Awaitable[Any]]


async def get_with_commit(app: Starlette, poller: Poller, step: str, commit: Between) -> None:
    """One more request, in which somebody commits right after the sidecar has taken this step."""
    database = app.state.database
    original = getattr(database, step)

    async def and_commit(*args: Any, **kwargs: Any) -> Any:
        setattr(database, step, original)
        found = await original(*args, **kwargs)
        await commit()
        return found

    setattr(database, step, and_commit)
    await poller.poll()
    assert original == getattr(database, step), "the step was taken"


@pytest.mark.parametrize("path", [INDEX, PARKED, SESSION, TURNS])
async def test_commit_after_the_answer_was_read(path: str, store: rig.Store) -> None:
    """What was committed while an answer was being written is seen by the next request."""
    await store.turn("chat-a", at=FIRST)
    async with spied(store) as (client, app, _):
        await polling(client, path)
        poller = Poller(client, path)
        await get_with_commit(app, poller, "read", lambda: store.turn("chat-a", "input-required"))
        assert not await poller.is_current()
        await poller.sees_change()
        assert await poller.is_current()


@pytest.mark.parametrize("path", [INDEX, PARKED, SESSION, TURNS])
@on_sqlite
async def test_commit_after_the_version_was_asked(path: str, store: rig.Store) -> None:
    """A turn that came in the middle of a request, and went again, is not shown for ever."""
    await store.turn("chat-a", at=FIRST)
    async with spied(store) as (client, app, _):
        poller = Poller(client, path)
        await polling(client, path)  # another client, after which the sidecar remembers the validator
        await get_with_commit(app, poller, "version", lambda: store.turn("chat-a", "input-required", task_id="second"))
        await store.delete("second")
        await poller.poll()
        assert await poller.is_current()


@on_postgres
async def test_commit_after_the_validator_was_asked(store: rig.Store) -> None:
    """The same on PostgreSQL, with a turn whose time nobody knows: then the rows' versions are no validator."""
    await store.turn("chat-a", at=FIRST)
    async with spied(store) as (client, app, _):
        poller = Poller(client, TURNS, etag='"of an earlier answer"')
        await get_with_commit(app, poller, "read", lambda: store.turn("chat-a", "submitted", at=None, task_id="second"))
        await store.delete("second")
        await poller.poll()
        assert await poller.is_current()


# Writers and pollers at once


class Writer:
    """Saves, chunks, deletions, clearings and retirements at random, one at a time while the gate is open."""

    def __init__(self, store: rig.Store, client: httpx.AsyncClient, seed: int) -> None:
        self.store = store
        self.client = client
        self.dice = random.Random(seed)
        self.gate = asyncio.Lock()
        self.tasks: dict[str, str] = {}
        self.commits = 0

    async def work(self) -> None:
        while True:
            async with self.gate:
                await self.dice.choice((self.save, self.save, self.chunk, self.chunk, self.chunk, self.remove))()
                self.commits += 1
            await asyncio.sleep(self.dice.choice((0, 0, 0.002)))

    async def save(self) -> None:
        session = self.dice.choice(("chat-a", "chat-a", "chat-b", f"chat-new-{self.commits}"))
        at = self.dice.choice((FIRST, "next", "next", None))
        state = self.dice.choice(("working", "completed", "input-required"))
        self.tasks[await self.store.turn(session, state, f"turn {self.commits}", at=at)] = session

    async def chunk(self) -> None:
        if not self.tasks:
            return
        task = self.dice.choice(list(self.tasks))
        at = self.dice.choice((FIRST, FIRST, None))
        await self.store.turn(self.tasks[task], "working", [f"chunk {self.commits}"], at=at, task_id=task)

    async def remove(self) -> None:
        if len(self.tasks) < 4:
            return
        task = self.dice.choice(list(self.tasks))
        session = self.tasks[task]
        if session == "chat-a":
            del self.tasks[task]
            await self.store.delete(task)
            return
        query = "?retire=false" if session == "chat-b" else ""
        assert 200 == (await self.client.delete(f"{INDEX}/{session}{query}")).status_code
        self.tasks = {task: of for task, of in self.tasks.items() if of != session}


@pytest.mark.parametrize("wal", [False, True])
async def test_pollers_never_miss_a_commit(
    wal: bool, store: rig.Store, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare, full: bool
) -> None:
    """Whoever always sends its last validator holds what anybody else is given, whenever nothing is being committed."""
    if store.kind == "sqlite":
        await store.raw(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
    elif wal:
        await prepare(store)
    client = await open_sidecar(store)
    await store.turn("chat-a")
    writer = Writer(store, client, seed=random.randrange(2**32))
    paths = (*ROUTES, f"{TURNS}?limit=2", f"{INDEX}?limit=1", f"{INDEX}/chat-b/turns")
    statuses: dict[int, int] = {}
    until = time.monotonic() + (30 if full else 1.2)

    async def poll(poller: Poller) -> None:
        while time.monotonic() < until:
            for _ in range(writer.dice.randrange(8)):
                status = await poller.poll()
                statuses[status] = statuses.get(status, 0) + 1
            async with writer.gate:
                await poller.poll()
                assert await poller.is_current(), (poller.path, writer.commits)

    working = asyncio.create_task(writer.work())
    try:
        async with asyncio.TaskGroup() as pollers:
            for path in paths:
                pollers.create_task(poll(Poller(client, path)))
    finally:
        working.cancel()
        await asyncio.wait([working])
    print(f"\n{store.kind}: {writer.commits} commits, {statuses}")
    assert writer.commits > 1
    assert statuses[304] > 10
