"""The opt-in DDL, and its undo: our tables, indexes, and on PostgreSQL the creation order; never run by a GET.

No index may take JSON apart: the producer's own INSERT would fail on a status that holds \\u0000.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from tombstones.ddl import create
from tombstones.table import CREATED, CREATED_BY_ANOTHER, PARKED_PATTERNS, SDK_SIDE_TABLES, Shape, introspect

Say = Callable[[str], None]

# An ALTER that waits for its lock makes every save behind it wait: it gives up soon, and tries again later.
_ALTER_LOCK_MILLISECONDS = 100
_ALTER_TRIES = 50
_POLL_SECONDS = 0.2


def index_bodies(shape: Shape) -> dict[str, str]:
    """Our indexes on the task table, name to definition: by session, by activity, and of what may be parked.

    The first one holds all that counting and ordering a session's turns needs, so that its rows are not looked at.
    """
    activity = "last_updated, " if "last_updated" in shape.columns else ""
    creation = f"{CREATED}, " if CREATED in shape.columns else ""  # every SQLite index ends with the rowid anyway
    status = "status" if shape.sqlite else "(status::text)"
    parked = " OR ".join(f"{status} LIKE '{pattern}'" for pattern in PARKED_PATTERNS)
    bodies = {
        "session": f"(context_id, {activity}{creation}id)",
        "activity": "(last_updated, context_id)",
        "parked": f"(context_id) WHERE {parked}",
    }
    if not activity:
        del bodies["activity"]
    return {shape.index_name(purpose): body for purpose, body in bodies.items()}


def table_statements(shape: Shape) -> list[str]:
    """The DDL for our side tables and for PostgreSQL's creation order, as far as they are missing.

    On PostgreSQL also that for the search index and the records, so that the serving role needs no CREATE.
    """
    ddl = [create(table, shape.dialect) for table in shape.missing_side_tables]
    if not shape.sqlite and not shape.has_search:
        ddl += shape.search.ddl
    if not shape.sqlite and not shape.has_records:
        ddl += shape.records.ddl(shape.dialect)
    if not shape.sqlite and CREATED not in shape.columns:
        # two statements, both instant: a default given together with the column would date every older row
        ddl += [
            f"ALTER TABLE {shape.qualified()} ADD COLUMN IF NOT EXISTS {CREATED} timestamptz",
            f"ALTER TABLE {shape.qualified()} ALTER COLUMN {CREATED} SET DEFAULT clock_timestamp()",
        ]
    return ddl


def index_statements(shape: Shape, present: frozenset[str]) -> list[str]:
    """The DDL for those of our indexes that do not stand yet."""
    create = "CREATE INDEX" if shape.sqlite else "CREATE INDEX CONCURRENTLY"
    return [
        f'{create} IF NOT EXISTS "{name}" ON {shape.qualified()} {body}'
        for name, body in index_bodies(shape).items()
        if name not in present
    ]


def undo_statements(shape: Shape) -> list[str]:
    """Takes our indexes and our column away. Tombstones stay: dropping them would bring back what was retired."""
    drop = "DROP INDEX IF EXISTS" if shape.sqlite else "DROP INDEX CONCURRENTLY IF EXISTS"
    ddl = [f"{drop} {shape.qualified(name)}" for name in index_bodies(shape)]
    if not shape.sqlite:
        ddl.append(f"ALTER TABLE {shape.qualified()} DROP COLUMN IF EXISTS {CREATED}")
    return ddl


async def prepare(conn: AsyncConnection, shape: Shape, say: Say, *, dry_run: bool = False) -> int:
    """Runs the missing DDL, each statement said first, and answers their number; several may prepare at once.

    The connection is in autocommit, and the role owns the task table. Raises DBAPIError.
    """
    async with _alone(conn, shape):
        shape = await introspect(conn, shape.name, shape.schema)
        ddl = table_statements(shape)
        await _run(conn, ddl, say, dry_run)
        # a dry run describes the indexes of the table as it will be
        shape = _with_creation_order(shape) if dry_run else await introspect(conn, shape.name, shape.schema)
        present, invalid = await indexes(conn, shape)
        # a build that failed leaves an index that is written and never read
        builds = [f"DROP INDEX CONCURRENTLY IF EXISTS {shape.qualified(name)}" for name in sorted(invalid)]
        builds += index_statements(shape, present - invalid)
        await _run(conn, builds, say, dry_run)
        return len(ddl) + len(builds)


async def undo(conn: AsyncConnection, shape: Shape, say: Say, *, dry_run: bool = False) -> int:
    """Takes away what `prepare` made on the task table; answers the number of statements. Raises DBAPIError."""
    async with _alone(conn, shape):
        ddl = undo_statements(shape)
        await _run(conn, ddl, say, dry_run)
        return len(ddl)


async def indexes(conn: AsyncConnection, shape: Shape) -> tuple[frozenset[str], frozenset[str]]:
    """Which of our indexes stand, and which of those are invalid."""
    rows: Any
    if shape.sqlite:
        rows = await conn.exec_driver_sql("SELECT name, 1 AS valid FROM sqlite_master WHERE type = 'index'")
    else:
        rows = await conn.execute(_POSTGRES_INDEXES, {"schema": shape.schema})
    ours = {row.name: row.valid for row in rows if row.name in index_bodies(shape)}
    return frozenset(ours), frozenset(name for name, valid in ours.items() if not valid)


_POSTGRES_INDEXES = text("""
    SELECT c.relname AS name, i.indisvalid AS valid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema
""")


async def retirement_obstacle(conn: AsyncConnection, shape: Shape) -> str | None:
    """Why a session could not be retired here, or None; it looks at privileges and changes nothing."""
    if shape.sqlite:
        (file,) = (await conn.exec_driver_sql("SELECT file FROM pragma_database_list WHERE name = 'main'")).one()
        writable = os.access(file, os.W_OK) and os.access(Path(file).parent, os.W_OK)
        return None if writable else "unavailable: the database file or its folder is read-only for this process"
    if (await conn.exec_driver_sql("SHOW transaction_read_only")).scalar_one() == "on":
        return "unavailable: the database is read-only: a standby, or default_transaction_read_only"
    if shape.missing_side_tables:
        names = ", ".join(table.name for table in shape.missing_side_tables)
        return None if shape.may_create else f"unavailable: {names} is missing, and the role may not create it"
    for name, privileges in _needed_privileges(shape).items():
        held = select(*(func.has_table_privilege(shape.qualified(name), privilege) for privilege in privileges))
        lacking = [each for each, has in zip(privileges, (await conn.execute(held)).one(), strict=True) if not has]
        if lacking:
            return f"unavailable: the role lacks {' and '.join(lacking)} on {name}"
    return None


def _needed_privileges(shape: Shape) -> dict[str, tuple[str, ...]]:
    beside = [name for name in SDK_SIDE_TABLES if name in shape.existing]
    return {
        **dict.fromkeys([shape.name, *beside], ("SELECT", "DELETE")),
        **dict.fromkeys([table.name for table in shape.side], ("SELECT", "INSERT")),
        **dict.fromkeys(shape.search.names if shape.has_search else (), ("SELECT", "DELETE")),
        **dict.fromkeys(shape.remembered if shape.has_records else (), ("SELECT", "DELETE")),
    }


def _with_creation_order(shape: Shape) -> Shape:
    return shape if shape.sqlite else replace(shape, columns=shape.columns | {CREATED})


async def _run(conn: AsyncConnection, ddl: list[str], say: Say, dry_run: bool) -> None:
    for statement in ddl:
        say(statement)
        if not dry_run:
            await _execute(conn, statement)


async def _execute(conn: AsyncConnection, statement: str) -> None:
    waits = statement.startswith(("ALTER", "CREATE TABLE", "CREATE INDEX IF"))
    tries = _ALTER_TRIES if waits else 1
    for left in reversed(range(tries)):
        try:
            await conn.exec_driver_sql(statement)
            return
        except DBAPIError as error:
            state = getattr(error.orig, "sqlstate", None)
            if statement.startswith(("CREATE TABLE", "CREATE INDEX IF")) and state in CREATED_BY_ANOTHER:
                return  # a first read or search came before us
            if state != "55P03" or not left:
                raise
        await asyncio.sleep(_POLL_SECONDS)


@asynccontextmanager
async def _alone(conn: AsyncConnection, shape: Shape) -> AsyncIterator[None]:
    """One preparer at a time. It polls: a blocked waiter's snapshot would deadlock with the concurrent builds."""
    if shape.sqlite:
        yield
        return
    await conn.exec_driver_sql("SET statement_timeout = 0")
    await conn.exec_driver_sql(f"SET lock_timeout = {_ALTER_LOCK_MILLISECONDS}")
    # no event tells of another session's lock
    while not (await conn.execute(select(func.pg_try_advisory_lock(shape.lock_key)))).scalar_one():  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        await conn.execute(select(func.pg_advisory_unlock(shape.lock_key)))
        for setting in ("statement_timeout", "lock_timeout"):
            await conn.exec_driver_sql(f"RESET {setting}")
