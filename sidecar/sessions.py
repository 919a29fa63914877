"""The session index, the parked sessions and one session's summary; it reads no artifacts and no history."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Integer,
    Select,
    String,
    and_,
    case,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.sql.selectable import NamedFromClause

from sidecar import observe
from sidecar.index import Position, Scope, later, newest, newest_time, number_of_turns, of_session, position, rank
from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.turns import Key, creation_rank, key_columns, key_of, moment
from sidecar.wire import Session, decode_cursor, encode_cursor, plain, valid_session_id
from tombstones.state import FINISHED, PARKED, RUNNING, read_status
from tombstones.table import CREATED, Shape

# A summary looks at this many of a session's newest turns first: among them one has ended, as good as always.
SUMMARY_TURNS = 100


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


@dataclass(frozen=True, slots=True)
class Summary:
    """One session and the turn that a client may reattach to."""

    session: Session
    live_task_id: str | None


async def read(conn: Reading, shape: Shape, window: Window) -> Page:
    """A page of the index, or of the parked sessions. Raises CursorError for a foreign cursor."""
    after = decode_cursor(window.cursor, window.bound_to, Position) if window.cursor is not None else None
    scope = Scope(window.prefix, window.owners)
    if window.parked:
        found: Sequence[Session] = sorted(await _parked(conn, shape, scope), key=rank)
        if after is not None:
            found = [each for each in found if rank(each) > rank(after)]
    else:
        found = await newest(conn, shape, scope, window.limit, after)
    shown = found[: window.limit]
    older = None
    if len(found) > len(shown):
        older = encode_cursor(window.bound_to, position(shown[-1]))
    return Page(_addressable(shown), older)


def _addressable(sessions: Sequence[Session]) -> list[Session]:
    """Only ids that a path can carry: whatever the index lists can be read and retired."""
    valid = [each for each in sessions if valid_session_id(each.session_id)]
    if len(valid) < len(sessions):
        observe.emit(observe.SessionIdsSkipped(len(sessions) - len(valid)))
    return valid


async def _parked(conn: Reading, shape: Shape, scope: Scope) -> Iterable[Session]:
    """The sessions whose newest-created turn waits on the operator."""
    rows: dict[str, list[Any]] = {}
    for row in await conn.fetch(_parked_statement(shape, scope)):
        rows.setdefault(row.context_id, []).append(row)
    return (session for each in rows.values() if (session := _session(each)).last_state in PARKED)


def _session(rows: Sequence[Any]) -> Session:
    """One session from rows among which are its newest-created one and every one without last_updated."""
    last = max(rows, key=lambda row: creation_rank(key_of(row)))
    activity = reduce(later, (key_of(row).activity for row in rows), moment(rows[0].newest))
    return Session(rows[0].context_id, activity, rows[0].turns, read_status(last.status).state)


@lru_cache(STATEMENTS_KEPT)
def _parked_statement(shape: Shape, scope: Scope) -> Any:
    """Of each session that may be parked: its newest-created row, and those that SQL cannot order."""
    tasks = shape.tasks
    # materialized: PostgreSQL would look for the sessions again for every row
    waiting = _waiting(shape, scope).cte("waiting").prefix_with("MATERIALIZED")
    of_session: dict[str, Any] = {"partition_by": tasks.c.context_id}
    live = select(
        tasks.c.context_id,
        *_keys_and_status(shape),
        func.row_number().over(**of_session, order_by=_newest_created(shape)).label("place"),
        func.count().over(**of_session).label("turns"),
        func.max(shape.last_updated).over(**of_session).label("newest"),
    )
    is_waiting: ColumnElement[bool] = tasks.c.context_id.in_(select(waiting.c.context_id))
    if not shape.can_walk:
        # in one pass PostgreSQL shall look each row up; of a bare IN it makes a loop within the loop
        is_waiting = is_waiting.is_(true())
    live = live.where(is_waiting, scope.visible(shape))
    numbered = live.subquery("live")
    return select(numbered).where(or_(numbered.c.place == 1, numbered.c.last_updated.is_(None)))


def _waiting(shape: Shape, scope: Scope) -> Select[Any]:
    """The sessions that may be parked. Most questions that were ever asked have been answered: where the session index
    makes it cheap, a session is left out whose newest such turn was surely followed by another.
    """
    tasks = shape.tasks
    candidates = select(tasks.c.context_id, *_newest_of_session(shape))
    candidates = candidates.where(shape.may_be_parked(), scope.visible(shape)).group_by(tasks.c.context_id)
    asked = candidates.cte("asked")
    waiting = select(asked.c.context_id)
    return waiting.where(~_is_followed(shape, scope, asked)) if shape.can_walk else waiting


def _newest_of_session(shape: Shape) -> list[ColumnElement[Any]]:
    """How far a group of turns reaches in the order of creation; a turn without last_updated may be the newest."""
    unknown = literal_column("'infinity'::timestamp") if not shape.sqlite else literal("9999")
    return [
        func.max(shape.sequence).label("sequence"),
        func.max(shape.created).label("created"),
        func.max(func.coalesce(shape.last_updated, unknown)).label("last_updated"),
    ]


def _is_followed(shape: Shape, scope: Scope, asked: FromClause) -> ColumnElement[bool]:
    """A turn of the session was surely created later."""
    next_turn = shape.tasks.alias("next_turn")
    mine = and_(
        next_turn.c.context_id == asked.c.context_id,
        shape.alive(next_turn),
        shape.owned_by(scope.owners, next_turn),
    )
    return select(next_turn.c.context_id).where(mine, _is_created_later(shape, asked, next_turn)).exists()


def _is_created_later(shape: Shape, asked: FromClause, other: NamedFromClause) -> ColumnElement[bool]:
    """`creation_rank` compared in SQL, as far as SQL can know."""
    if shape.sqlite:
        return other.c.rowid > asked.c.sequence
    by_time = and_(other.c.last_updated > asked.c.last_updated, shape.dated(other))
    if not shape.has_creation_order:
        return by_time
    later_created = other.c[CREATED]
    unrecorded = and_(asked.c.created.is_(None), or_(later_created.is_not(None), by_time))
    return or_(later_created > asked.c.created, unrecorded)


def _keys_and_status(shape: Shape) -> tuple[ColumnElement[Any], ...]:
    return (*key_columns(shape)[:-1], shape.stored("status").label("status"))


def _newest_created(shape: Shape) -> list[ColumnElement[Any]]:
    """`creation_rank` in SQL, newest first; a row without last_updated is fetched anyway, so it may stand last."""
    if shape.sqlite:
        return [shape.sequence.desc()]
    by_time = [case((column.is_(None), 1), else_=0) for column in (shape.created, shape.last_updated)]
    return [by_time[0], shape.created.desc(), by_time[1], shape.last_updated.desc(), shape.tasks.c.id.desc()]


async def summary(conn: Reading, shape: Shape, session_id: str, owners: frozenset[str] | None) -> Summary | None:
    """One session, or None when it has no visible turn."""
    scope = Scope("", owners)
    rows = await conn.fetch(_newest_turns(shape, scope), {"session_id": session_id, "rows": SUMMARY_TURNS})
    if rows and not _is_enough(rows):
        rows = await conn.fetch(_newest_turns(shape, scope), {"session_id": session_id, "rows": rows[0].turns})
    if not rows:
        return None
    turns = [(key_of(row), read_status(row.status).state) for row in rows]
    turns.sort(key=lambda turn: creation_rank(turn[0]))
    activity = reduce(later, (key.activity for key, _ in turns), moment(rows[0].newest))
    return Summary(Session(session_id, activity, rows[0].turns, turns[-1][1]), _live_task(turns))


def _is_enough(rows: Sequence[Any]) -> bool:
    """No turn beyond these can change the summary: they are all, or SQL could order them and one has ended."""
    if len(rows) == rows[0].turns:
        return True
    return rows[0].dated == rows[0].turns and any(read_status(row.status).state in FINISHED for row in rows)


@lru_cache(STATEMENTS_KEPT)
def _newest_turns(shape: Shape, scope: Scope) -> Select[Any]:
    """Key and status of a session's newest-created turns, each with the number and the newest time of all."""
    session_id = parameter("session_id", String())
    counts: list[ColumnElement[Any]] = [of_session(shape, scope, session_id, number_of_turns).label("turns")]
    if "last_updated" in shape.columns:
        counts.append(of_session(shape, scope, session_id, newest_time, dated=True).label("newest"))
        counts.append(of_session(shape, scope, session_id, number_of_turns, dated=True).label("dated"))
    else:
        counts += [shape.last_updated.label("newest"), literal(0).label("dated")]
    mine = and_(shape.tasks.c.context_id == session_id, scope.visible(shape))
    newest_first = select(*_keys_and_status(shape), *counts).where(mine).order_by(*_newest_created(shape))
    return newest_first.limit(parameter("rows", Integer()))


def _live_task(turns: Sequence[tuple[Key, str]]) -> str | None:
    """Of the unfinished turns that no finished one follows: the newest parked, else the oldest running."""
    parked = running = None
    for key, state in reversed(turns):
        if state in FINISHED:
            break
        if state in PARKED:
            parked = parked or plain(key.task_id)
        elif state in RUNNING:
            running = plain(key.task_id)
    return parked or running
