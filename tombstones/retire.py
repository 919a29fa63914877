"""Retire, clear and sweep: the only statements that delete turns; the caller opens and commits the transaction.

The order is the promise: tombstone first, rows after it, in one transaction, so that a reader whose one statement
leaves out what has a tombstone sees all of a session or none of it. A row that a producer saves later is stored,
stays hidden and is swept. So is what a long session leaves on SQLite: its one write lock is held neither to read
thousands of rows nor to delete them, while every producer waits.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, DateTime, Row, Table, column, delete, exists, func, literal, select, table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from tombstones.forget import forget, forget_exchanges, forget_positions
from tombstones.state import ACTIVE, read_status
from tombstones.table import SDK_SIDE_TABLES, Shape

# The versions row is what the SDK's clustered store locks first; taking the rows in its order avoids deadlocks.
_VERSIONS = SDK_SIDE_TABLES[0]
# Deleting so many turns of ordinary size holds SQLite's write lock for 5 to 15 ms, where they are indexed for 20 to 35.
BATCH = 250
_SURROGATES = re.compile(r"[\ud800-\udfff]")
# Both drivers cap the parameters of one statement.
_ID_BATCH = 1000


@dataclass(frozen=True)
class Actor:
    """Who retires: the token's name for the audit row, the owners it is narrowed to (None = all), the request."""

    token: str
    owners: frozenset[str] | None
    request_id: str


@dataclass(frozen=True)
class Outcome:
    """What was deleted: the number of turns, how many of them waited or ran, and the ids of those left to `sweep`."""

    turns_deleted: int
    active_turns: int
    left: Sequence[str]


class Turns(NamedTuple):
    """A session's turns: their owners and ids, how many a reader saw, and how many of those waited or ran.

    Those of a long session are not deleted but left to `sweep`: their tombstones hide them.
    """

    owners: frozenset[str | None]
    ids: Sequence[str]
    seen: int
    active: int
    are_left: bool


class SessionActiveError(Exception):
    """A turn of the session waits or runs, and the caller asked to refuse then; nothing may be committed."""


class AlreadyRetiredError(Exception):
    """The session has a tombstone: there is no history to clear; nothing may be committed."""


class OwnerNotAllowedError(Exception):
    """The session has no row of the actor's owners, or one of another owner; nothing may be committed."""


async def look(conn: AsyncConnection, shape: Shape, session_id: str) -> Turns | None:
    """What a long session holds, on SQLite alone; None for any other, which is deleted in the transaction itself.

    It reads all the statuses, so it comes before the transaction, in pieces: without WAL a reader holds up a commit.
    """
    tasks = shape.tasks
    places = (await conn.execute(select(tasks.c.rowid).where(tasks.c.context_id == session_id))).scalars().all()
    if len(places) <= BATCH:
        return None
    rows: list[Row[Any]] = []
    for start in range(0, len(places), _ID_BATCH):
        rows += await _read(conn, shape, tasks.c.rowid.in_(places[start : start + _ID_BATCH]))
    turns = _judge(rows, are_left=True)
    return turns if len(rows) == len(turns.ids) else None


async def retire(
    conn: AsyncConnection,
    shape: Shape,
    before: Turns | None,
    stands: bool,
    session_id: str,
    actor: Actor,
    *,
    refuse_active: bool = False,
) -> Outcome:
    """Deletes a session for good: its id has a tombstone from now on, whether it has turns or not.

    `before` is what `look` found; it stands when nobody has committed since. Raises SessionActiveError or
    OwnerNotAllowedError: roll back.
    """
    tombstone = {"session_id": session_id, "retired_at": datetime.now(UTC)}
    is_first = await _insert_once(conn, shape.side.session_tombstones, tombstone) > 0
    turns = await _take(conn, shape, before, stands, session_id, exact=_is_judged(actor, refuse_active))
    await forget_positions(conn, shape, session_id)
    await forget_exchanges(conn, shape, session_id)
    if not is_first:
        turns = turns._replace(seen=0, active=0)
    return await _settle(conn, shape, "retire", session_id, turns, actor, refuse_active)


async def clear(
    conn: AsyncConnection,
    shape: Shape,
    before: Turns | None,
    stands: bool,
    session_id: str,
    actor: Actor,
    *,
    refuse_active: bool = False,
) -> Outcome:
    """Deletes a session's turns and keeps its id: each deleted task has a tombstone, a new turn appears again.

    `before` and `stands` as for `retire`. Raises AlreadyRetiredError, SessionActiveError or OwnerNotAllowedError: roll
    back.
    """
    if await _any(conn, shape.side.session_tombstones.c.session_id == session_id):
        raise AlreadyRetiredError
    turns = await _take(conn, shape, before, stands, session_id, exact=_is_judged(actor, refuse_active))
    now = datetime.now(UTC)
    if turns.are_left:
        await _hide(conn, shape, session_id, now)
    elif turns.ids:
        rows = [{"task_id": each, "cleared_at": now} for each in turns.ids]
        await _insert_once(conn, shape.side.task_tombstones, rows)
    await forget_exchanges(conn, shape, session_id)
    return await _settle(conn, shape, "clear", session_id, turns, actor, refuse_active)


async def late_rows(conn: AsyncConnection, shape: Shape, since: timedelta | None) -> list[str]:
    """The ids of rows saved after their session was retired or their task was cleared; reads only.

    `since` narrows to sessions and tasks retired that recently; None looks at every tombstone.
    """
    tasks, sessions, cleared = shape.tasks, shape.side.session_tombstones, shape.side.task_tombstones
    of_sessions = select(tasks.c.id).join(sessions, sessions.c.session_id == tasks.c.context_id)
    of_tasks = select(tasks.c.id).join(cleared, cleared.c.task_id == tasks.c.id)
    if since is not None:
        start = datetime.now(UTC) - since
        of_sessions = of_sessions.where(sessions.c.retired_at >= start)
        of_tasks = of_tasks.where(cleared.c.cleared_at >= start)
    return list((await conn.execute(of_sessions.union(of_tasks))).scalars())


async def sweep(conn: AsyncConnection, shape: Shape, task_ids: Sequence[str]) -> list[str]:
    """Deletes those hidden rows, `BATCH` at most, and answers the session id of each.

    A row without a tombstone is never touched.
    """
    deleted = await _delete_turns(conn, shape, shape.tasks.c.id.in_(task_ids) & ~shape.alive())
    return [row.context_id for row in deleted]


def _is_judged(actor: Actor, refuse_active: bool) -> bool:
    """What the turns are may forbid the deletion: they must be known as they are in the transaction."""
    return refuse_active or actor.owners is not None


async def _settle(
    conn: AsyncConnection,
    shape: Shape,
    action: str,
    session_id: str,
    turns: Turns,
    actor: Actor,
    refuse_active: bool,
) -> Outcome:
    """Judges what was deleted, before anything is committed, and writes the audit row.

    Turns that no reader saw any more, since an earlier deletion hid them, count for nothing.
    """
    await _check_owners(conn, shape, action, session_id, turns.owners, actor)
    if turns.active and refuse_active:
        raise SessionActiveError
    await conn.execute(
        shape.side.retirements.insert().values(
            at=datetime.now(UTC),
            token=actor.token,
            action=action,
            session_id=session_id,
            turns_deleted=turns.seen,
            request_id=actor.request_id,
        )
    )
    return Outcome(turns.seen, turns.active, turns.ids if turns.are_left else ())


async def _check_owners(
    conn: AsyncConnection, shape: Shape, action: str, session_id: str, owners: frozenset[str | None], actor: Actor
) -> None:
    """A narrowed token changes only what it sees whole; its own repeated retirement finds no row and is fine."""
    if actor.owners is None:
        return
    if owners:
        allowed = owners <= actor.owners
    else:
        log = shape.side.retirements
        own = select(literal(1)).where(
            log.c.session_id == session_id, log.c.action == action, log.c.token == actor.token
        )
        allowed = (await conn.execute(own.limit(1))).first() is not None
    if not allowed:
        raise OwnerNotAllowedError


async def _any(conn: AsyncConnection, where: ColumnElement[bool]) -> bool:
    return (await conn.execute(select(literal(1)).where(where).limit(1))).first() is not None


async def _take(
    conn: AsyncConnection, shape: Shape, before: Turns | None, stands: bool, session_id: str, *, exact: bool
) -> Turns:
    """Deletes a session's turns, or leaves those of a long one to `sweep`.

    Only where the answer hangs on it are they all read again under SQLite's lock: to count them takes an index alone.
    """
    mine = shape.tasks.c.context_id == session_id
    if before is None:
        deleted = await _delete_turns(conn, shape, mine)
        # also what is indexed of turns that are gone already
        await forget(conn, shape, shape.search.turns.c.context_id == session_id)
        return _judge(deleted, are_left=False)
    if stands:
        return before
    if exact:
        return _judge(await _read(conn, shape, mine), are_left=True)
    count = select(func.count()).select_from(shape.tasks).where(mine, _was_seen(shape))
    seen = (await conn.execute(count)).scalar_one()
    return before._replace(seen=seen, active=min(before.active, seen))


def _judge(rows: Sequence[Row[Any]], *, are_left: bool) -> Turns:
    seen = [row for row in rows if row.was_seen]
    active = sum(read_status(row.status).state in ACTIVE for row in seen)
    return Turns(frozenset(row.owner for row in rows), _ids(rows), len(seen), active, are_left)


async def _read(conn: AsyncConnection, shape: Shape, where: ColumnElement[bool]) -> Sequence[Row[Any]]:
    return (await conn.execute(select(*_known(shape)).where(where))).all()


def _known(shape: Shape) -> tuple[ColumnElement[Any], ...]:
    """What is told of a row."""
    tasks = shape.tasks
    owner = tasks.c.owner if "owner" in shape.columns else literal(None).label("owner")
    status, was_seen = shape.stored("status").label("status"), _was_seen(shape).label("was_seen")
    return (tasks.c.id, tasks.c.context_id, owner, status, was_seen)


def _was_seen(shape: Shape) -> ColumnElement[bool]:
    """No earlier clear has hidden the row."""
    cleared = shape.side.task_tombstones
    return ~exists(select(literal(1)).where(cleared.c.task_id == shape.tasks.c.id).correlate(shape.tasks))


async def _hide(conn: AsyncConnection, shape: Shape, session_id: str, now: datetime) -> None:
    """Writes the tombstones of all tasks of a session on SQLite, in one statement: it holds the lock."""
    ids = select(shape.tasks.c.id, literal(now, DateTime(timezone=True))).where(shape.tasks.c.context_id == session_id)
    into = sqlite.insert(shape.side.task_tombstones).from_select(["task_id", "cleared_at"], ids)
    await conn.execute(into.on_conflict_do_nothing())


async def _delete_turns(conn: AsyncConnection, shape: Shape, where: ColumnElement[bool]) -> Sequence[Row[Any]]:
    """Deletes task rows, and what the SDK and the search index keep of them; answers what is known of each."""
    tasks = shape.tasks
    if _VERSIONS in shape.existing:
        await _delete_beside(conn, shape, _VERSIONS, select(tasks.c.id).where(where))
    deleted = (await conn.execute(delete(tasks).where(where).returning(*_known(shape)))).all()
    ids = _ids(deleted)
    for start in range(0, len(ids), _ID_BATCH):
        task_ids = ids[start : start + _ID_BATCH]
        for name in SDK_SIDE_TABLES:
            # again for the versions: a task first saved between the two statements would keep its events for good
            if name in shape.existing:
                await _delete_beside(conn, shape, name, task_ids)
        await forget(conn, shape, shape.search.turns.c.task_id.in_(task_ids))
    return deleted


def _ids(deleted: Sequence[Row[Any]]) -> list[str]:
    """The ids of deleted turns, but those that are no text: SQLite may hold such, and no producer saves them again."""
    return [row.id for row in deleted if isinstance(row.id, str) and not _SURROGATES.search(row.id)]


async def _delete_beside(conn: AsyncConnection, shape: Shape, name: str, task_ids: Any) -> None:
    beside = table(name, column("task_id"), schema=shape.schema)
    await conn.execute(delete(beside).where(beside.c.task_id.in_(task_ids)))


async def _insert_once(conn: AsyncConnection, into: Table, rows: dict[str, Any] | list[dict[str, Any]]) -> int:
    """Inserts what is not there yet and leaves the rest as it is: DO UPDATE would need the UPDATE privilege.

    Answers how many rows were inserted, of one that was given.
    """
    insert = sqlite.insert if conn.dialect.name == "sqlite" else postgresql.insert
    return (await conn.execute(insert(into).on_conflict_do_nothing(), rows)).rowcount
