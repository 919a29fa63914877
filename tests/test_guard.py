"""The opt-in guard of deploy/sql: what is retired is not even stored, and no save of a producer fails for it."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest
from a2a.server.cluster.database_task_store import VersionedDatabaseTaskStore
from a2a.server.cluster.version import TaskVersion
from a2a.server.context import ServerCallContext
from a2a.server.tasks import DatabaseTaskStore
from a2a.types import Task, TaskArtifactUpdateEvent, TaskState, TaskStatus
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from sidecar.db import Database
from sidecar.sweeper import sweep_all
from tests import rig
from tests.postgres import Server
from tests.test_cli import on_postgres, on_sqlite
from tests.test_degradation import count, file_of
from tests.test_grants import address, new_role
from tests.test_retire import delete, shown

SQL = Path(__file__).parents[1] / "deploy/sql"
NOBODY = ServerCallContext(user=rig.Owner(""))
NAME = "tasks_sidecar_guard"


def sql_of(store: rig.Store, action: str) -> str:
    """`guard` or `unguard`, for the store's database."""
    return (SQL / f"{action}_{store.kind}.sql").read_text("utf-8")


async def run(store: rig.Store, sql: str) -> None:
    """Run a file as its owner would, from the first statement that fails to none after it."""
    if store.kind == "sqlite":
        with closing(sqlite3.connect(file_of(store), isolation_level=None)) as shell:
            shell.executescript(sql)
    else:
        await Server(make_url(store.url)).execute(sql, store.engine.url.database)


async def install(store: rig.Store) -> None:
    await run(store, sql_of(store, "guard"))


async def uninstall(store: rig.Store) -> None:
    await run(store, sql_of(store, "unguard"))


async def guards(store: rig.Store) -> int:
    """How many triggers and functions of ours stand."""
    of_sqlite = f"SELECT count(*) FROM sqlite_master WHERE name LIKE '{NAME}%'"
    of_postgres = (
        f"SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE '{NAME}%')"
        f" + (SELECT count(*) FROM pg_proc WHERE proname LIKE '{NAME}%')"
    )
    return int((await store.raw(of_sqlite if store.kind == "sqlite" else of_postgres))[0][0])


@pytest.fixture
async def guarded(store: rig.Store, prepare: rig.Prepare) -> rig.Store:
    """A prepared store with the guard; its file may be run again."""
    await prepare(store)
    for _ in range(2):
        await install(store)
    return store


@asynccontextmanager
async def agent_of(store: rig.Store, server: Server) -> AsyncIterator[rig.Store]:
    """The SDK's store under a role that may touch the task table and nothing else."""
    async with new_role(store, server) as role:
        await store.raw(f"GRANT USAGE ON SCHEMA public TO {role}")
        await store.raw(f"GRANT SELECT, INSERT, UPDATE, DELETE ON tasks TO {role}")
        engine = create_async_engine(address(store, server, role), poolclass=NullPool)
        yield rig.Store("postgres", store.url, engine, DatabaseTaskStore(engine))
        await engine.dispose()


@pytest.fixture
async def producer(guarded: rig.Store, server: Server | None) -> AsyncIterator[rig.Store]:
    """The agent's view of `guarded`; on PostgreSQL it has a role of its own."""
    if server is None:
        yield guarded
        return
    async with agent_of(guarded, server) as store:
        yield store


async def test_retired_sessions(producer: rig.Store, guarded: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Neither an old nor a new task of a retired session is stored, at its first save or later; no save fails."""
    old = await producer.turn("chat-a", "working")
    await delete(sidecar, "chat-a")
    new = [await producer.turn("chat-a", "working", task_id=old), await producer.turn("chat-a", "submitted")]
    for task in new:
        await producer.turn("chat-a", task_id=task, text="The whole transcript again.")
        assert await producer.tasks.get(task, NOBODY) is None
    assert 0 == await count(guarded)
    assert [] == await shown(sidecar, "chat-a")


async def test_cleared_tasks(producer: rig.Store, guarded: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A cleared task is not stored again; new turns of its session are, from the first save to the last."""
    old = [await producer.turn("chat-a", "working") for _ in range(2)]
    await delete(sidecar, "chat-a", retire="false")
    for task in old:
        for state in ("working", "completed"):
            await producer.turn("chat-a", state, task_id=task)
    assert 0 == await count(guarded)
    new = await producer.turn("chat-a", "working", text=None)
    await producer.turn("chat-a", task_id=new, text="Done.")
    assert [new] == await shown(sidecar, "chat-a")
    assert "Done." == (await sidecar.get("/api/chat/sessions/chat-a/turns")).json()["turns"][0]["text"]


async def test_other_sessions(producer: rig.Store, guarded: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A session that merely resembles a retired one is stored, updated and deleted as ever."""
    await delete(sidecar, "chat-a")
    for session_id in ("chat-A", "chat-a ", "chat-ab", "other"):
        task = await producer.turn(session_id, "working")
        await producer.turn(session_id, task_id=task, text="Done.")
    assert 4 == await count(guarded)
    assert 4 == len(await guarded.raw("SELECT id FROM tasks WHERE CAST(artifacts AS TEXT) LIKE '%Done.%'"))
    await producer.delete(task)
    assert 3 == await count(guarded)


async def test_rows_beside_a_dropped_one(guarded: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Of one INSERT of several rows only those that are retired are left out."""
    await delete(sidecar, "chat-a")
    rows = ", ".join(f"('{number}', 'chat-{name}', 'task', '{{}}')" for number, name in enumerate("bab"))
    await guarded.raw(f"INSERT INTO tasks (id, context_id, kind, status) VALUES {rows}")
    assert ["0", "2"] == sorted(row.id for row in await guarded.raw("SELECT id FROM tasks"))


async def test_the_sidecar_goes_on(
    producer: rig.Store, guarded: rig.Store, sidecar: httpx.AsyncClient, prepare: rig.Prepare
) -> None:
    """Retiring again, clearing, sweeping what was late before the guard, preparing, and every read work as before."""
    await uninstall(guarded)
    await delete(sidecar, "chat-late")
    await producer.turn("chat-late")
    await install(guarded)
    assert 1 == await count(guarded)
    assert 0 == (await delete(sidecar, "chat-retired"))["turns_deleted"]
    kept = await producer.turn("chat-kept", "input-required")
    await prepare(guarded)
    database = Database(rig.config_for(guarded))
    assert 1 == await sweep_all(database)
    await database.close()
    assert [kept] == await shown(sidecar, "chat-kept")
    assert ["chat-kept"] == [
        each["session_id"] for each in (await sidecar.get("/api/chat/sessions?parked=true")).json()["sessions"]
    ]
    assert 1 == (await delete(sidecar, "chat-kept", retire="false"))["turns_deleted"]
    assert "ready" == (await sidecar.get("/readyz")).json()["status"]


async def test_retire_under_saves(producer: rig.Store, guarded: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Sessions are retired while a producer saves new tasks into them: no save fails, and nothing is seen.

    On PostgreSQL an INSERT that had begun before the retirement may still get through; the sweep takes it.
    """
    sessions = [f"chat-{number}" for number in range(10)]

    async def save(session_id: str) -> None:
        for _ in range(5):
            await producer.turn(session_id)

    await asyncio.gather(*map(save, sessions), *(delete(sidecar, each) for each in sessions))
    for session_id in sessions:
        await producer.turn(session_id)
        assert [] == await shown(sidecar, session_id)
    late = await count(guarded)
    database = Database(rig.config_for(guarded))
    assert late == await sweep_all(database)
    await database.close()
    assert 0 == await count(guarded)
    if guarded.kind == "sqlite":
        assert 0 == late
    print(f"\n{guarded.kind}: {late} late rows of {len(sessions)} retirements under saves")


async def test_uninstall(guarded: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Nothing of it is left, and late rows are stored and hidden again; it may be run again."""
    await delete(sidecar, "chat-a")
    assert 0 < await guards(guarded)
    for _ in range(2):
        await uninstall(guarded)
        assert 0 == await guards(guarded)
    await guarded.turn("chat-a")
    assert 1 == await count(guarded)
    assert [] == await shown(sidecar, "chat-a")


async def test_without_tombstone_tables_nothing_is_made(store: rig.Store) -> None:
    """A guard that would look into missing tables is refused as a whole, and saves go on."""
    with pytest.raises(Exception, match=r"tombstones|CHECK constraint"):
        await install(store)
    assert 0 == await guards(store)
    await store.turn("chat-a")


@on_sqlite
async def test_a_shell_that_goes_on_after_errors(store: rig.Store) -> None:
    """SQLite's shell runs the rest of a file after an error: even so nothing is made without the tables."""
    statements: list[str] = [""]
    for line in sql_of(store, "guard").splitlines(keepends=True):
        statements[-1] += line
        if sqlite3.complete_statement(statements[-1]):
            statements.append("")
    failed = 0
    with closing(sqlite3.connect(file_of(store), isolation_level=None)) as shell:
        for statement in statements:
            try:
                shell.execute(statement)
            except sqlite3.Error:
                failed += 1
    assert 3 == failed
    assert 0 == await guards(store)


@on_postgres
@pytest.mark.parametrize("table", ["tasks_session_tombstones", "tasks_task_tombstones"])
async def test_a_dropped_tombstone_table_fails_no_save(
    table: str, producer: rig.Store, guarded: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """Without one of the tables nothing is guarded; when the sidecar has made it again, everything is."""
    await producer.turn("chat-a")
    await guarded.raw(f"DROP TABLE {table}")
    await producer.turn("chat-a")
    assert 2 == len(await shown(sidecar, "chat-a"))
    await delete(sidecar, "chat-a")
    await producer.turn("chat-a")
    assert 0 == await count(guarded)


@on_postgres
async def test_the_owner_needs_no_more(
    store: rig.Store, cluster: Server, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """The tables' owner, who is no superuser, installs it; when he may no longer read tombstones, no save fails."""
    await prepare(store)
    async with new_role(store, cluster) as owner, agent_of(store, cluster) as producer:
        await store.raw(f"GRANT USAGE, CREATE ON SCHEMA public TO {owner}")
        for table in ("tasks", "tasks_session_tombstones", "tasks_task_tombstones"):
            await store.raw(f"ALTER TABLE {table} OWNER TO {owner}")
        as_owner = Server(make_url(address(store, cluster, owner)))
        await as_owner.execute(sql_of(store, "guard"), store.engine.url.database)
        await delete(await open_sidecar(store), "chat-a")
        await producer.turn("chat-a")
        assert 0 == await count(store)
        await store.raw("ALTER TABLE tasks_session_tombstones OWNER TO CURRENT_USER")
        await producer.turn("chat-a")
        assert 1 == await count(store)


@on_postgres
@pytest.mark.filterwarnings("ignore:This declarative base:sqlalchemy.exc.SAWarning")  # the SDK makes a second model
async def test_other_names(bare_store: rig.Store, cluster: Server, open_sidecar: rig.OpenSidecar) -> None:
    """Another schema and another table take their names by plain replacement, as the file says."""
    tasks = DatabaseTaskStore(bare_store.engine, table_name="turns")
    await bare_store.raw("CREATE SCHEMA agent")
    await bare_store.raw(f'ALTER DATABASE "{bare_store.engine.url.database}" SET search_path = agent')
    await tasks.initialize()
    store = rig.Store("postgres", bare_store.url, bare_store.engine, tasks)
    client = await open_sidecar(store, tasks_table="agent.turns")
    await delete(client, "chat-a")
    for action in ("guard", "unguard"):
        await run(store, sql_of(store, action).replace("public", "agent").replace("tasks", "turns"))
        await store.turn("chat-a")
        assert (action == "unguard") == await count(store, "agent.turns")


async def test_the_clustered_store(store: rig.Store, prepare: rig.Prepare, sidecar: httpx.AsyncClient) -> None:
    """No event, which holds text, outlives its task's row; a healthy session keeps its events; no save fails."""
    versioned = VersionedDatabaseTaskStore(store.engine)
    await versioned.initialize()
    await prepare(store)
    guard = sql_of(store, "guard")
    if store.kind == "sqlite":
        before, mark, optional = guard.partition("-- DROP TRIGGER")
        trigger, end, after = (mark + optional).partition("-- END;\n")
        guard = before + (trigger + end).replace("-- ", "") + after
    await run(store, guard)

    async def save(session_id: str, state: TaskState, version: TaskVersion) -> TaskVersion:
        task = Task(id=f"task-of-{session_id}", context_id=session_id, status=TaskStatus(state=state))
        event = TaskArtifactUpdateEvent(task_id=task.id, context_id=session_id)
        return await versioned.save(task, event=event, prev_version=version, context=NOBODY)

    await delete(sidecar, "chat-retired")
    for session_id in ("chat-retired", "chat-kept"):
        version = await save(session_id, TaskState.TASK_STATE_WORKING, TaskVersion.MISSING)
        await save(session_id, TaskState.TASK_STATE_COMPLETED, version)
    assert [("task-of-chat-kept",)] == await store.raw("SELECT id FROM tasks")
    assert [("task-of-chat-kept", 2)] == await store.raw("SELECT task_id, count(*) FROM task_events GROUP BY task_id")
    assert 1 == (await delete(sidecar, "chat-kept"))["turns_deleted"]
    assert 0 == await count(store, "task_events")
    await uninstall(store)
    assert 0 == await guards(store)
