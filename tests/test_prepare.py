"""The opt-in DDL: what it makes, that it harms no producer, that many may run it at once, and its undo."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy.exc import SQLAlchemyError

from sidecar.db import Database
from tests import rig
from tombstones import prepare as ddl
from tombstones.table import CREATED, Shape, introspect

INDEXES = {"tasks_sidecar_session", "tasks_sidecar_activity", "tasks_sidecar_parked"}
SIDE_TABLES = {"tasks_session_tombstones", "tasks_task_tombstones", "tasks_retirements"}


async def run(store: rig.Store, work: Callable[..., Awaitable[int]] = ddl.prepare, **options: bool) -> list[str]:
    """Runs the DDL and answers the statements it said."""
    said: list[str] = []
    database = Database(rig.config_for(store))
    try:
        number = await database.alter(work, said.append, **options)
    finally:
        await database.close()
    assert number == len(said)
    return said


async def shape_of(store: rig.Store) -> Shape:
    database = Database(rig.config_for(store))
    try:
        async with database._engine.connect() as conn:
            return await introspect(conn, "tasks")
    finally:
        await database.close()


async def indexes_of(store: rig.Store) -> set[str]:
    if store.kind == "sqlite":
        rows = await store.raw("SELECT name FROM sqlite_master WHERE type = 'index'")
    else:
        rows = await store.raw("SELECT indexname AS name FROM pg_indexes WHERE tablename = 'tasks'")
    return {row.name for row in rows} & INDEXES


async def test_prepare_twice(store: rig.Store) -> None:
    """It makes indexes, side tables and PostgreSQL's creation order, and a second run finds nothing to do."""
    said = await run(store)
    shape = await shape_of(store)
    assert SIDE_TABLES <= shape.existing
    assert await indexes_of(store) == INDEXES
    assert (CREATED in shape.columns) == (store.kind == "postgres")
    assert len(said) == (6 if store.kind == "sqlite" else 22)
    assert await run(store) == []


async def test_dry_run_changes_nothing(store: rig.Store) -> None:
    """`--dry-run` says exactly what a run would do."""
    dry = await run(store, dry_run=True)
    assert await indexes_of(store) == set()
    assert not SIDE_TABLES & (await shape_of(store)).existing
    assert await run(store) == dry


async def test_undo_keeps_the_tombstones(store: rig.Store) -> None:
    """`--undo` takes indexes and column away, and never what was retired."""
    await run(store)
    await run(store, ddl.undo)
    shape = await shape_of(store)
    assert await indexes_of(store) == set()
    assert CREATED not in shape.columns
    assert SIDE_TABLES <= shape.existing


async def test_prepare_of_a_store_of_0x(kind: rig.Kind, sdk_database: rig.LoadSdkDatabase) -> None:
    """A table without last_updated gets what can be had."""
    store = await sdk_database("0.3.26")
    await run(store)
    assert await indexes_of(store) == INDEXES - {"tasks_sidecar_activity"}


async def test_producer_saves_anything_into_a_prepared_store(store: rig.Store) -> None:
    """No index takes JSON apart: a status with NUL is saved, and older rows keep their place before newer ones."""
    await store.turn("chat-a")
    await run(store)
    await store.turn("chat-a", "input-required", status_text="a\x00b")
    assert len(await store.raw("SELECT id FROM tasks")) == 2
    if store.kind == "postgres":
        rows = await store.raw(f"SELECT {CREATED} AS created FROM tasks ORDER BY {CREATED} NULLS FIRST")
        assert [row.created is None for row in rows] == [True, False]


async def test_saving_again_keeps_the_creation_time(store: rig.Store) -> None:
    """The SDK names its columns when it saves, so the time of the first save survives the later ones."""
    if store.kind == "sqlite":
        pytest.skip("SQLite's creation order is the rowid")
    await run(store)
    task = await store.turn("chat-a", "working")
    (first,) = await store.raw(f"SELECT {CREATED} AS created FROM tasks")
    await store.turn("chat-a", task_id=task)
    assert await store.raw(f"SELECT {CREATED} AS created FROM tasks") == [first]


@pytest.mark.parametrize("kind", ["postgres"])
async def test_planner_uses_the_parked_index(store: rig.Store) -> None:
    """The partial index's predicate is the clause of the parked query, to the letter."""
    await run(store)
    for number in range(50):
        await store.turn(f"chat-{number}")
    from sqlalchemy import select
    from sqlalchemy.dialects import postgresql

    shape = await shape_of(store)
    statement = select(shape.tasks.c.context_id).where(shape.may_be_parked())
    compiled = statement.compile(dialect=postgresql.dialect(paramstyle="named"))  # type: ignore[no-untyped-call]  # SQLAlchemy's
    await store.raw("ANALYZE tasks")
    async with store.engine.connect() as connection:
        await connection.exec_driver_sql("SET enable_seqscan = off")
        plan = await connection.exec_driver_sql(f"EXPLAIN {compiled}")
        assert "tasks_sidecar_parked" in "\n".join(row[0] for row in plan)


@pytest.mark.parametrize("kind", ["postgres"])
async def test_invalid_index_is_built_again(store: rig.Store) -> None:
    """A failed concurrent build leaves an index that is written and never read: it is dropped and built anew."""
    await run(store)
    await store.raw("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'tasks_sidecar_activity'::regclass")
    said = await run(store)
    assert [statement.split(" IF")[0] for statement in said] == [
        "DROP INDEX CONCURRENTLY",
        "CREATE INDEX CONCURRENTLY",
    ]
    assert await invalid_indexes(store) == []


async def invalid_indexes(store: rig.Store) -> list[str]:
    rows = await store.raw(
        "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE NOT i.indisvalid"
    )
    return [row.relname for row in rows]


PREPARE = """
import asyncio, json, sys
from sidecar.config import Config
from sidecar.db import Database
from tombstones.prepare import prepare

async def main():
    database = Database(Config(database_url=sys.argv[1]))
    print(json.dumps(await database.alter(prepare, lambda statement: None)))
    await database.close()

asyncio.run(main())
"""


async def test_eight_processes_prepare_at_once(store: rig.Store) -> None:
    """Exactly one works, the others wait; a producer saves meanwhile, and nothing fails."""
    for number in range(100):
        await store.turn(f"chat-{number}", "input-required")
    done, failures, saved = asyncio.Event(), [], 0

    async def produce() -> None:
        nonlocal saved
        while not done.is_set():
            try:
                await store.turn("chat-live")
                saved += 1
            except SQLAlchemyError as error:
                failures.append(error)
            await asyncio.sleep(0.005)

    producer = asyncio.create_task(produce())
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PREPARE,
            store.url,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(8)
    ]
    outputs = await asyncio.gather(*(process.communicate() for process in processes))
    done.set()
    await producer
    assert [process.returncode for process in processes] == [0] * 8, [err.decode() for _, err in outputs]
    assert failures == []
    assert saved > 0
    numbers = sorted(json.loads(out) for out, _ in outputs)
    assert await indexes_of(store) == INDEXES
    if store.kind == "postgres":
        assert numbers == [0] * 7 + [22]
        assert await invalid_indexes(store) == []


@pytest.mark.parametrize("kind", ["postgres"])
async def test_alter_does_not_queue_producers_behind_it(store: rig.Store) -> None:
    """While a long transaction holds the table, the ALTER gives up and tries again; saves go through meanwhile."""
    async with store.engine.begin() as holder:
        await holder.exec_driver_sql("LOCK TABLE tasks IN ACCESS SHARE MODE")
        preparing = asyncio.create_task(run(store))
        slowest = 0.0
        for _ in range(20):
            started = asyncio.get_running_loop().time()
            await store.turn("chat-a")
            slowest = max(slowest, asyncio.get_running_loop().time() - started)
            await asyncio.sleep(0.02)
        assert not preparing.done()
        assert slowest < 1.0
    assert len(await preparing) == 22
    with contextlib.suppress(asyncio.CancelledError):
        await preparing
