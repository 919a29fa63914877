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
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, column, delete, literal, select, table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

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
    tombstones = shape.side.session_tombstones
    await _insert_once(conn, tombstones, [{"session_id": session_id, "retired_at": datetime.now(UTC)}])
    deleted, left = await _take(conn, shape, session_id)
    return await _settle(conn, shape, "retire", session_id, deleted, left, actor, refuse_active)


async def clear(
    conn: AsyncConnection, shape: Shape, session_id: str, actor: Actor, *, refuse_active: bool = False
) -> Outcome:
    """Deletes a session's turns and keeps its id: each deleted task has a tombstone, a new turn appears again.

    Raises AlreadyRetiredError, SessionActiveError or OwnerNotAllowedError: roll back.
    """
    if await _any(conn, shape.side.session_tombstones.c.session_id == session_id):
        raise AlreadyRetiredError
    deleted, left = await _take(conn, shape, session_id)
    if _ids(deleted):
        now = datetime.now(UTC)
        rows = [{"task_id": task_id, "cleared_at": now} for task_id in _ids(deleted)]
        await _insert_once(conn, shape.side.task_tombstones, rows)
    return await _settle(conn, shape, "clear", session_id, deleted, left, actor, refuse_active)


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
    deleted: Sequence[Row[Any]],
    left: Sequence[str],
    actor: Actor,
    refuse_active: bool,
) -> Outcome:
    """Judges what was deleted, before anything is committed, and writes the audit row."""
    await _check_owners(conn, shape, action, session_id, deleted, actor)
    active = sum(read_status(row.status).state in ACTIVE for row in deleted)
    if active and refuse_active:
        raise SessionActiveError
    await conn.execute(
        shape.side.retirements.insert().values(
            at=datetime.now(UTC),
            token=actor.token,
            action=action,
            session_id=session_id,
            turns_deleted=len(deleted),
            request_id=actor.request_id,
        )
    )
    return Outcome(len(deleted), active, left)


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


async def _take(conn: AsyncConnection, shape: Shape, session_id: str) -> tuple[Sequence[Row[Any]], Sequence[str]]:
    """A session's turns, deleted, and the ids of those that are only to be deleted: its tombstones hide them."""
    mine = shape.tasks.c.context_id == session_id
    if shape.sqlite:  # whose write lock we hold: nothing is saved between this statement and the commit
        turns = (await conn.execute(select(*_known(shape)).where(mine))).all()
        if len(turns) > BATCH and len(ids := _ids(turns)) == len(turns):
            return turns, ids
    return await _delete_turns(conn, shape, mine), ()


def _known(shape: Shape) -> tuple[ColumnElement[Any], ...]:
    """What is told of a deleted row."""
    tasks = shape.tasks
    owner = tasks.c.owner if "owner" in shape.columns else literal(None).label("owner")
    return (tasks.c.id, tasks.c.context_id, owner, shape.stored("status").label("status"))


async def _delete_turns(conn: AsyncConnection, shape: Shape, where: ColumnElement[bool]) -> Sequence[Row[Any]]:
    """Deletes task rows and what the SDK keeps beside them; answers id, context_id, owner and status of each."""
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
    return deleted


def _ids(deleted: Sequence[Row[Any]]) -> list[str]:
    """The ids of deleted turns, but those that are no text: SQLite may hold such, and no producer saves them again."""
    return [row.id for row in deleted if isinstance(row.id, str) and not _SURROGATES.search(row.id)]


async def _delete_beside(conn: AsyncConnection, shape: Shape, name: str, task_ids: Any) -> None:
    beside = table(name, column("task_id"), schema=shape.schema)
    await conn.execute(delete(beside).where(beside.c.task_id.in_(task_ids)))


async def _insert_once(conn: AsyncConnection, into: Table, rows: list[dict[str, Any]]) -> None:
    """Inserts what is not there yet and leaves the rest as it is: DO UPDATE would need the UPDATE privilege."""
    insert = sqlite.insert if conn.dialect.name == "sqlite" else postgresql.insert
    await conn.execute(insert(into).on_conflict_do_nothing(), rows)
