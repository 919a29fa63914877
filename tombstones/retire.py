"""Retire, clear and sweep: the only statements that delete turns; the caller opens and commits the transaction.

The order is the promise: tombstone first, rows after it, in one transaction, so that a reader whose one statement
leaves out what has a tombstone sees all of a session or none of it. A row that a producer saves later is stored,
stays hidden and is swept. So is what a long session leaves on SQLite: its one write lock is not held for thousands of
rows, while every producer waits.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Table, column, delete, exists, literal, select, table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from tombstones.forget import forget, forget_positions
from tombstones.state import ACTIVE, read_status
from tombstones.table import SDK_SIDE_TABLES, Shape

# The versions row is what the SDK's clustered store locks first; taking the rows in its order avoids deadlocks.
_VERSIONS = SDK_SIDE_TABLES[0]
# Deleting so many turns holds SQLite's write lock for 5 to 15 ms.
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


class _Turns(NamedTuple):
    """A session's turns, and the ids of those that are only to be deleted: their tombstones hide them."""

    rows: Sequence[Row[Any]]
    left: Sequence[str]


class SessionActiveError(Exception):
    """A turn of the session waits or runs, and the caller asked to refuse then; nothing may be committed."""


class AlreadyRetiredError(Exception):
    """The session has a tombstone: there is no history to clear; nothing may be committed."""


class OwnerNotAllowedError(Exception):
    """The session has no row of the actor's owners, or one of another owner; nothing may be committed."""


async def retire(
    conn: AsyncConnection, shape: Shape, session_id: str, actor: Actor, *, refuse_active: bool = False
) -> Outcome:
    """Deletes a session for good: its id has a tombstone from now on, whether it has turns or not.

    Raises SessionActiveError or OwnerNotAllowedError: roll back.
    """
    tombstone = {"session_id": session_id, "retired_at": datetime.now(UTC)}
    is_first = await _insert_once(conn, shape.side.session_tombstones, tombstone) > 0
    turns = await _take(conn, shape, session_id)
    await forget_positions(conn, shape, session_id)
    seen = [turn for turn in turns.rows if turn.was_seen] if is_first else []
    return await _settle(conn, shape, "retire", session_id, turns, seen, actor, refuse_active)


async def clear(
    conn: AsyncConnection, shape: Shape, session_id: str, actor: Actor, *, refuse_active: bool = False
) -> Outcome:
    """Deletes a session's turns and keeps its id: each deleted task has a tombstone, a new turn appears again.

    Raises AlreadyRetiredError, SessionActiveError or OwnerNotAllowedError: roll back.
    """
    if await _any(conn, shape.side.session_tombstones.c.session_id == session_id):
        raise AlreadyRetiredError
    turns = await _take(conn, shape, session_id)
    if ids := _ids(turns.rows):
        now = datetime.now(UTC)
        await _insert_once(conn, shape.side.task_tombstones, [{"task_id": each, "cleared_at": now} for each in ids])
    seen = [turn for turn in turns.rows if turn.was_seen]
    return await _settle(conn, shape, "clear", session_id, turns, seen, actor, refuse_active)


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


async def _settle(
    conn: AsyncConnection,
    shape: Shape,
    action: str,
    session_id: str,
    turns: _Turns,
    seen: Sequence[Row[Any]],
    actor: Actor,
    refuse_active: bool,
) -> Outcome:
    """Judges what was deleted, before anything is committed, and writes the audit row.

    Turns that no reader saw any more, since an earlier deletion hid them, count for nothing.
    """
    await _check_owners(conn, shape, action, session_id, turns.rows, actor)
    active = sum(read_status(row.status).state in ACTIVE for row in seen)
    if active and refuse_active:
        raise SessionActiveError
    await conn.execute(
        shape.side.retirements.insert().values(
            at=datetime.now(UTC),
            token=actor.token,
            action=action,
            session_id=session_id,
            turns_deleted=len(seen),
            request_id=actor.request_id,
        )
    )
    return Outcome(len(seen), active, turns.left)


async def _check_owners(
    conn: AsyncConnection, shape: Shape, action: str, session_id: str, deleted: Sequence[Row[Any]], actor: Actor
) -> None:
    """A narrowed token changes only what it sees whole; its own repeated retirement finds no row and is fine."""
    if actor.owners is None:
        return
    if deleted:
        allowed = all(row.owner in actor.owners for row in deleted)
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


async def _take(conn: AsyncConnection, shape: Shape, session_id: str) -> _Turns:
    """Deletes a session's turns, or leaves them to `sweep`."""
    mine = shape.tasks.c.context_id == session_id
    if shape.sqlite:  # whose write lock we hold: nothing is saved between this statement and the commit
        turns = (await conn.execute(select(*_known(shape)).where(mine))).all()
        if len(turns) > BATCH and len(ids := _ids(turns)) == len(turns):
            return _Turns(turns, ids)
    return _Turns(await _delete_turns(conn, shape, mine), ())


def _known(shape: Shape) -> tuple[ColumnElement[Any], ...]:
    """What is told of a deleted row."""
    tasks, cleared = shape.tasks, shape.side.task_tombstones
    owner = tasks.c.owner if "owner" in shape.columns else literal(None).label("owner")
    was_seen = ~exists(select(literal(1)).where(cleared.c.task_id == tasks.c.id).correlate(tasks))
    return (tasks.c.id, tasks.c.context_id, owner, shape.stored("status").label("status"), was_seen.label("was_seen"))


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
