"""The session index, the parked sessions and one session's summary; it reads no artifacts and no history.

Every answer is one statement. Times that stand inside a status are parsed here, not in SQL: one stored \\u0000 would
fail the whole statement.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    case,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from sidecar import observe
from sidecar.turns import Key, creation_rank, key_columns, key_of
from sidecar.wire import Session, decode_cursor, encode_cursor, valid_session_id
from tombstones.state import FINISHED, PARKED, RUNNING, parse_time, read_status
from tombstones.table import Shape


@dataclass(frozen=True, slots=True)
class Window:
    """Which sessions: at most `limit`, after `cursor`, whose ids start with `prefix`, as these owners see them."""

    limit: int
    parked: bool
    cursor: str | None
    prefix: str
    owners: frozenset[str] | None

    @property
    def bound_to(self) -> tuple[str, ...]:
        return ("sessions", "parked" if self.parked else "all", self.prefix)


@dataclass(frozen=True, slots=True)
class Page:
    """The sessions, newest activity first, and the cursor of the next older ones."""

    sessions: list[Session]
    older: str | None


class Position(NamedTuple):
    """Where the index stands after a session."""

    activity: datetime | None
    session_id: str


@dataclass(frozen=True, slots=True)
class Summary:
    """One session and the turn that a client may reattach to."""

    session: Session
    live_task_id: str | None


async def read(conn: AsyncConnection, shape: Shape, window: Window) -> Page:
    """A page of the index. Raises CursorError for a foreign one."""
    after = decode_cursor(window.cursor, window.bound_to, Position) if window.cursor is not None else None
    found = await (_parked(conn, shape, window) if window.parked else _all(conn, shape, window, after))
    ordered = sorted(found, key=_newest_first)
    if after is not None:
        ordered = [each for each in ordered if _newest_first(each) > _newest_first(after)]
    shown = ordered[: window.limit]
    older = None
    if len(ordered) > len(shown):
        older = encode_cursor(window.bound_to, Position(shown[-1].activity, shown[-1].session_id))
    return Page(_addressable(shown), older)


def _newest_first(place: Session | Position) -> tuple[bool, float, str]:
    """Newest activity first, unknown last, ties by id."""
    activity = place.activity
    if activity is None:
        return (True, 0.0, place.session_id)
    return (False, -(activity - datetime.min).total_seconds(), place.session_id)


def _addressable(sessions: Sequence[Session]) -> list[Session]:
    """Only ids that a path can carry: whatever the index lists can be read and retired."""
    valid = [each for each in sessions if valid_session_id(each.session_id)]
    if len(valid) < len(sessions):
        observe.emit(observe.SessionIdsSkipped(len(sessions) - len(valid)))
    return valid


def _visible(shape: Shape, window: Window) -> ColumnElement[bool]:
    return and_(shape.has_prefix(window.prefix), shape.alive(), shape.owned_by(window.owners))


async def _all(conn: AsyncConnection, shape: Shape, window: Window, after: Position | None) -> Iterable[Session]:
    """The sessions that may stand on the page: the newest dated ones, and all that have a row without last_updated."""
    activity: dict[str, datetime | None] = {}
    turns: dict[str, int] = {}
    for row in await conn.execute(_index_statement(shape, window, after)):
        session_id = row.context_id
        if row.turns is not None:
            time, turns[session_id] = _moment(row.last_updated), row.turns
        else:
            time = key_of(row).activity
        activity[session_id] = _later(activity.get(session_id), time)
    return (Session(session_id, activity[session_id], count) for session_id, count in turns.items())


def _index_statement(shape: Shape, window: Window, after: Position | None) -> Any:
    """One pass over the table: a row a session with its count and newest last_updated, then the rows without one."""
    context_id = shape.tasks.c.context_id
    live = select(context_id, *key_columns(shape)).where(_visible(shape, window)).cte("live")
    counted = select(
        live.c.context_id,
        func.max(live.c.last_updated).label("last_updated"),
        func.count().label("turns"),
        func.count(live.c.last_updated).label("dated"),
    )
    grouped = counted.group_by(live.c.context_id).cte("grouped")
    shown = or_(
        grouped.c.dated < grouped.c.turns,
        grouped.c.context_id.in_(_newest_dated(shape, grouped, window.limit, after)),
    )
    blanks = [null().label(name) for name in ("id", "created", "sequence", "status")]
    sessions = select(grouped.c.context_id, grouped.c.last_updated, grouped.c.turns, *blanks).where(shown)
    undated = select(
        live.c.context_id,
        live.c.last_updated,
        null().label("turns"),
        live.c.id,
        live.c.created,
        live.c.sequence,
        live.c.status,
    ).where(live.c.last_updated.is_(None))
    return union_all(sessions, undated)


def _newest_dated(shape: Shape, grouped: Any, limit: int, after: Position | None) -> Select[Any]:
    """One session more than a page: those before them in the final order have a row without last_updated."""
    session_id = grouped.c.context_id if shape.sqlite else grouped.c.context_id.collate("C")
    newest = select(grouped.c.context_id).where(grouped.c.last_updated.is_not(None))
    if after is not None:
        newest = newest.where(_is_after(shape, grouped.c.last_updated, session_id, after))
    return newest.order_by(grouped.c.last_updated.desc(), session_id).limit(limit + 1)


def _is_after(shape: Shape, last_updated: Any, session_id: Any, after: Position) -> ColumnElement[bool]:
    if after.activity is None:
        return literal_column("1 = 0")
    time = literal(after.activity.isoformat(" ", "microseconds") if shape.sqlite else after.activity)
    return or_(last_updated < time, and_(last_updated == time, session_id > after.session_id))


async def _parked(conn: AsyncConnection, shape: Shape, window: Window) -> Iterable[Session]:
    """The sessions whose newest-created turn waits on the operator."""
    rows: dict[str, list[Row[Any]]] = {}
    for row in await conn.execute(_parked_statement(shape, window)):
        rows.setdefault(row.context_id, []).append(row)
    return (session for each in rows.values() if (session := _session(each)).last_state in PARKED)


def _session(rows: Sequence[Row[Any]]) -> Session:
    """One session from rows among which are its newest-created one and every one without last_updated."""
    newest = max(rows, key=lambda row: creation_rank(key_of(row)))
    activity = _moment(rows[0].newest)
    for row in rows:
        activity = _later(activity, key_of(row).activity)
    return Session(rows[0].context_id, activity, rows[0].turns, read_status(newest.status).state)


def _parked_statement(shape: Shape, window: Window) -> Any:
    """Of each session with a row that may be parked: its newest-created row, and those that SQL cannot order."""
    tasks = shape.tasks
    waiting = select(tasks.c.context_id).where(shape.may_be_parked(), _visible(shape, window)).distinct().cte("waiting")
    of_session: dict[str, Any] = {"partition_by": tasks.c.context_id}
    live = select(
        tasks.c.context_id,
        *key_columns(shape)[:-1],
        shape.stored("status").label("status"),
        func.row_number().over(**of_session, order_by=_newest_created(shape)).label("place"),
        func.count().over(**of_session).label("turns"),
        func.max(shape.last_updated).over(**of_session).label("newest"),
    )
    live = live.where(tasks.c.context_id.in_(select(waiting.c.context_id)), _visible(shape, window))
    numbered = live.subquery("live")
    return select(numbered).where(or_(numbered.c.place == 1, numbered.c.last_updated.is_(None)))


def _newest_created(shape: Shape) -> list[ColumnElement[Any]]:
    """`creation_rank` in SQL, newest first; a row without last_updated is fetched anyway, so it may stand last."""
    if shape.sqlite:
        return [shape.sequence.desc()]
    by_time = [case((column.is_(None), 1), else_=0) for column in (shape.created, shape.last_updated)]
    return [by_time[0], shape.created.desc(), by_time[1], shape.last_updated.desc(), shape.tasks.c.id.desc()]


async def summary(
    conn: AsyncConnection, shape: Shape, session_id: str, owners: frozenset[str] | None
) -> Summary | None:
    """One session, or None when it has no visible turn."""
    columns = (*key_columns(shape)[:-1], shape.stored("status").label("status"))
    mine = and_(shape.tasks.c.context_id == session_id, shape.alive(), shape.owned_by(owners))
    rows = (await conn.execute(select(*columns).where(mine))).all()
    if not rows:
        return None
    keyed = sorted(
        ((key_of(row), read_status(row.status).state) for row in rows), key=lambda each: creation_rank(each[0])
    )
    activity: datetime | None = None
    for key, _ in keyed:
        activity = _later(activity, key.activity)
    session = Session(session_id, activity, len(keyed), keyed[-1][1])
    return Summary(session, _live_task(keyed))


def _live_task(turns: Sequence[tuple[Key, str]]) -> str | None:
    """Of the unfinished turns that no finished one follows: the newest parked, else the oldest running."""
    parked = running = None
    for key, state in reversed(turns):
        if state in FINISHED:
            break
        if state in PARKED:
            parked = parked or key.task_id
        elif state in RUNNING:
            running = key.task_id
    return parked or running


def _moment(value: Any) -> datetime | None:
    return parse_time(value) if isinstance(value, str) else value


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((each for each in (one, other) if each is not None), default=None)
