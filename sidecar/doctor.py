"""What stands in the store and what would make it better; it reads, creates nothing and looks into no transcript."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ScalarSelect, Table, case, distinct, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sidecar.errors import ReadOnly, SidecarError, TaskStoreMissing, TombstonesUnavailable
from sidecar.turns import key_columns, key_of
from sidecar.wire import iso
from tombstones.prepare import index_bodies, indexes, retirement_obstacle
from tombstones.state import naive_utc, parse_time
from tombstones.table import CREATED, Shape

PREPARE = "a2a-sidecar prepare"
GRANTS = "psql -f deploy/sql/grants.sql"
SWEEP = "a2a-sidecar sweep"
SETTINGS = "a2a-sidecar config"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `fix` is the command that helps, empty where nothing needs help."""

    name: str
    result: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Tombstones:
    """How many sessions are retired and tasks cleared; the newest retired sessions with their UTC times."""

    sessions: int
    tasks: int
    newest: list[tuple[str, datetime]]


async def examine(conn: AsyncConnection, shape: Shape, prefix: str) -> list[Check]:
    """The findings about a store that can be read."""
    return [
        await _database(conn, shape),
        _table(shape),
        *await _content(conn, shape, prefix),
        _side_tables(shape),
        _creation_order(shape),
        await _indexes(conn, shape),
        await _retirement(conn, shape),
        await _tombstones(conn, shape),
    ]


def unreadable(error: SidecarError) -> Check:
    """The finding about a store that answered with this error."""
    if isinstance(error, TaskStoreMissing):
        return Check("task table", "fail", error.detail, SETTINGS)
    if isinstance(error, ReadOnly | TombstonesUnavailable):
        return Check("privileges", "fail", error.detail, GRANTS)
    return Check("database", "fail", error.detail, SETTINGS)


async def _database(conn: AsyncConnection, shape: Shape) -> Check:
    name, version = ("SQLite", "SELECT sqlite_version()") if shape.sqlite else ("PostgreSQL", "SHOW server_version")
    return Check("database", "ok", f"{name} {(await conn.execute(text(version))).scalar_one()}")


def _table(shape: Shape) -> Check:
    if "last_updated" in shape.columns:
        return Check("task table", "ok", f"{shape.name}, as a2a-sdk 1.x makes it")
    return Check("task table", "ok", f"{shape.name}, as a2a-sdk 0.x makes it: times are read from each status")


async def _content(conn: AsyncConnection, shape: Shape, prefix: str) -> list[Check]:
    of_session = case((shape.has_prefix(prefix), shape.tasks.c.context_id))
    counts = (func.count(), func.count(of_session), func.count(distinct(of_session)), physical_rows(shape))
    alive, turns, sessions, stored = (await conn.execute(select(*counts).where(shape.alive()))).one()
    found = Check("sessions", "ok", f"{sessions}, turns: {turns}, turns in other contexts: {alive - turns}")
    if alive and not sessions:
        fix = "a2a-sidecar sessions --session-prefix ''"
        found = Check("sessions", "warn", f"of {alive} turns none is in a context that starts with {prefix!r}", fix)
    late = Check("late rows", "ok", "none")
    if stored > alive:
        late = Check("late rows", "warn", f"{stored - alive} saved after their retirement, hidden", SWEEP)
    oldest = iso(await _oldest(conn, shape, prefix)) or "none has a time"
    return [found, Check("oldest turn", "ok", oldest), late]


def physical_rows(shape: Shape) -> ScalarSelect[int]:
    """The number of all rows of the task table, those with a tombstone included."""
    return select(func.count()).select_from(shape.tasks.alias("stored")).scalar_subquery()


async def _oldest(conn: AsyncConnection, shape: Shape, prefix: str) -> datetime | None:
    """How far back the history reaches; rows without last_updated cost a pass over their status."""
    visible = (shape.has_prefix(prefix), shape.alive())
    least: Any = (await conn.execute(select(func.min(shape.last_updated)).where(*visible))).scalar_one()
    times = [parse_time(least) if isinstance(least, str) else least]
    undated = select(*key_columns(shape)).where(*visible, shape.undated())
    times += [key_of(row).activity for row in await conn.execute(undated)]
    return min((time for time in times if time is not None), default=None)


def _side_tables(shape: Shape) -> Check:
    if not shape.missing_side_tables:
        return Check("side tables", "ok", "present")
    missing = ", ".join(table.name for table in shape.missing_side_tables)
    return Check("side tables", "warn", f"missing until the first read or retirement: {missing}", PREPARE)


def _creation_order(shape: Shape) -> Check:
    if not shape.has_creation_order:
        return Check("creation order", "warn", "not recorded: last_updated has to stand in for it", PREPARE)
    return Check("creation order", "ok", "the rowid" if shape.sqlite else f"recorded in {CREATED}")


async def _indexes(conn: AsyncConnection, shape: Shape) -> Check:
    present, invalid = await indexes(conn, shape)
    missing = sorted(set(index_bodies(shape)) - present)
    faults = [
        f"{word}: {', '.join(names)}" for word, names in (("missing", missing), ("invalid", sorted(invalid))) if names
    ]
    if faults:
        return Check("indexes", "warn", "; ".join(faults), PREPARE)
    return Check("indexes", "ok", f"{len(present)} present")


async def _retirement(conn: AsyncConnection, shape: Shape) -> Check:
    obstacle = await retirement_obstacle(conn, shape)
    if obstacle is None:
        return Check("retirement", "ok", "possible")
    fix = SETTINGS if shape.sqlite else PREPARE if shape.missing_side_tables else GRANTS
    return Check("retirement", "warn", obstacle, fix)


async def _tombstones(conn: AsyncConnection, shape: Shape) -> Check:
    stones = await tombstones(conn, shape, 0)
    return Check("tombstones", "ok", f"sessions retired: {stones.sessions}, tasks cleared: {stones.tasks}")


async def tombstones(conn: AsyncConnection, shape: Shape, limit: int) -> Tombstones:
    """What was retired and cleared; a table that is missing has never held a tombstone."""
    retired, cleared, _ = shape.side
    newest: list[tuple[str, datetime]] = []
    if retired.name in shape.existing:
        latest = select(retired).order_by(retired.c.retired_at.desc(), retired.c.session_id).limit(limit)
        newest = [(row.session_id, naive_utc(row.retired_at)) for row in await conn.execute(latest)]
    return Tombstones(await _count(conn, shape, retired), await _count(conn, shape, cleared), newest)


async def _count(conn: AsyncConnection, shape: Shape, table: Table) -> int:
    if table.name not in shape.existing:
        return 0
    return int((await conn.execute(select(func.count()).select_from(table))).scalar_one())
