"""Which sessions stand first by activity, and how many turns each has; it reads no artifacts and no history.

On a prepared store the newest rows are walked along an index until they name enough sessions, and only those are
counted: that is independent of the table's size. Where the walk finds too few, and on any other store, one pass over
the table answers. Rows without last_updated have their time in the status: they are parsed here, since SQL that took
the JSON apart would fail on one stored \\u0000.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    DateTime,
    FromClause,
    Integer,
    LargeBinary,
    ScalarSelect,
    Select,
    String,
    and_,
    cast,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.types import TypeEngine

from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.turns import key_columns, key_of, moment
from sidecar.wire import Session, UtcTime
from tombstones.table import Shape

T = TypeVar("T")

# How many rows are walked: most pages need few, and beyond the last number one pass is no slower.
WALKS = (1_000, 20_000)


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose sessions: ids with this prefix, rows of these owners (None = all)."""

    prefix: str
    owners: frozenset[str] | None

    def visible(self, shape: Shape, rows: FromClause | None = None) -> ColumnElement[bool]:
        """The clause of every read of the index: of this scope, and not retired."""
        return and_(shape.has_prefix(self.prefix, rows), shape.alive(rows), shape.owned_by(self.owners, rows))


class Position(NamedTuple):
    """Where the index stands after a session, whose id SQLite may hold in bytes that are no UTF-8."""

    activity: UtcTime | None
    session_id: bytes


def position(session: Session) -> Position:
    """Where the index stands after this session."""
    return Position(session.activity, session.session_id.encode("utf-8", "surrogateescape"))


def rank(place: Session | Position) -> tuple[bool, Any, bytes]:
    """Sorts newest activity first, unknown last, ties by the bytes of the id, as both databases compare them."""
    activity, session_id = place if isinstance(place, Position) else position(place)
    return (activity is None, datetime.max - (activity or datetime.max), session_id)


async def newest(conn: Reading, shape: Shape, scope: Scope, limit: int, after: Position | None) -> Sequence[Session]:
    """The sessions after a position, in order; one more than `limit` where there are more."""
    values: dict[str, Any] = {"rows": limit + 1}
    if after is not None:
        # behind the last dated session stand those of unknown time: no dated one is wanted any more
        time = after.activity or datetime.min
        values["activity"] = time.isoformat(" ", "microseconds") if shape.sqlite else time
        # PostgreSQL has no id with a NUL or without UTF-8, and takes none from a forged cursor
        text = after.session_id.decode("utf-8", "replace").replace("\0", "")
        values["session_id"] = after.session_id if shape.sqlite else text
    for steps in WALKS if shape.can_walk else ():
        rows = await conn.fetch(_walk(shape, scope, after is not None), {**values, "steps": steps})
        walked = next(row for row in rows if row.context_id is None)
        found = _certain(_merged([row for row in rows if row is not walked], after), walked, limit, steps)
        if found is not None:
            return found
    return _merged(await conn.fetch(_one_pass(shape, scope, after is not None), values), after)


def _merged(rows: Sequence[Any], after: Position | None) -> list[Session]:
    """Rows with a session's count and newest last_updated, and rows without last_updated, to ordered sessions."""
    activity: dict[str, datetime | None] = {}
    turns: dict[str, int] = {}
    for row in rows:
        if row.turns is None:
            time = key_of(row).activity
        else:
            time, turns[row.context_id] = moment(row.last_updated), row.turns
        activity[row.context_id] = later(activity.get(row.context_id), time)
    found = sorted((Session(each, activity[each], count) for each, count in turns.items()), key=rank)
    return found if after is None else [session for session in found if rank(session) > rank(after)]


def _certain(found: list[Session], walked: Any, limit: int, steps: int) -> list[Session] | None:
    """The sessions that no row beyond the walk can come before, if they fill the page or there is no such row."""
    if walked.turns < steps:
        return found
    reached = moment(walked.last_updated)
    certain = [each for each in found if each.activity is not None and reached is not None and each.activity > reached]
    return certain if len(certain) > limit else None


def later(one: datetime | None, other: datetime | None) -> datetime | None:
    """The later of two times, of which either may be unknown."""
    return max((each for each in (one, other) if each is not None), default=None)


def _undated(shape: Shape, scope: Scope) -> CompoundSelect[Any]:
    """The rows whose time stands in the status, in the columns that the other arms fill with blanks."""
    visible = select(shape.tasks.c.context_id, _blank("turns"), *key_columns(shape)).where(scope.visible(shape))
    return union_all(*(visible.where(each) for each in shape.undated_ranges))


def _arm(context_id: Any, turns: Any, last_updated: Any) -> Select[Any]:
    """A session's row beside the undated ones."""
    times = (last_updated.label("last_updated"), _blank("created"))
    return select(context_id, turns.label("turns"), _blank("id"), *times, _blank("sequence"), _blank("status"))


_KINDS: dict[str, TypeEngine[Any]] = {
    "turns": BigInteger(),
    "id": String(),
    "created": DateTime(timezone=True),
    "sequence": Integer(),
    "status": LargeBinary(),
}


def _blank(name: str) -> ColumnElement[Any]:
    """NULL where the other arms of a union have a column of this kind; PostgreSQL would take it for text."""
    return cast(null(), _KINDS[name]).label(name)


@lru_cache(STATEMENTS_KEPT)
def _walk(shape: Shape, scope: Scope, continues: bool) -> Any:
    """The newest rows' sessions, counted; the undated rows and their sessions; last, how far the walk came."""
    tasks = shape.tasks
    walked = select(tasks.c.id, tasks.c.context_id, tasks.c.owner, tasks.c.last_updated)
    if "owner" not in shape.columns:
        walked = select(tasks.c.id, tasks.c.context_id, tasks.c.last_updated)
    if scope.owners is not None and len(scope.owners) == 1:
        walked = walked.where(shape.owned_by(scope.owners))  # the SDK's own index has one owner's rows in this order
    walked = walked.where(shape.dated(until=_activity(shape) if continues else None))
    steps = walked.order_by(tasks.c.last_updated.desc()).limit(parameter("steps", Integer())).cte("walked")
    recent = select(steps.c.context_id, func.max(steps.c.last_updated).label("last_updated"))
    undated = _undated(shape, scope).cte("undated")
    # sessions with an undated row are all fetched, and take no place on the page
    dated = steps.c.context_id.not_in(select(undated.c.context_id))
    recent = recent.where(scope.visible(shape, steps), dated).group_by(steps.c.context_id)
    time, session_id = func.max(steps.c.last_updated), _comparable(shape, steps.c.context_id)
    if continues:
        recent = recent.where(~_has_newer(shape, scope, steps.c.context_id)).having(_is_after(shape, time, session_id))
    page = recent.order_by(time.desc(), session_id).limit(parameter("rows", Integer())).cte("page")
    theirs = select(undated.c.context_id).distinct().subquery("theirs")
    return union_all(
        select(undated),
        _arm(
            page.c.context_id,
            of_session(shape, scope, page.c.context_id, number_of_turns),
            page.c.last_updated,
        ),
        _arm(
            theirs.c.context_id,
            of_session(shape, scope, theirs.c.context_id, number_of_turns),
            of_session(shape, scope, theirs.c.context_id, newest_time, dated=True),
        ),
        _arm(null().label("context_id"), func.count(), func.min(steps.c.last_updated)).select_from(steps),
    )


def _activity(shape: Shape) -> ColumnElement[Any]:
    return parameter("activity", String() if shape.sqlite else DateTime())


def _comparable(shape: Shape, context_id: Any) -> Any:
    """An id that compares by its bytes, as Python and SQLite compare it."""
    return context_id if shape.sqlite else context_id.collate("C")


def _is_after(shape: Shape, time: Any, session_id: Any) -> ColumnElement[bool]:
    """`rank` compared with the position, in SQL."""
    after = cast(parameter("session_id", LargeBinary()), String) if shape.sqlite else parameter("session_id", String())
    behind = and_(time == _activity(shape), session_id > after)
    return or_(time < _activity(shape), behind)


def of_session(
    shape: Shape, scope: Scope, context_id: Any, measure: Callable[[Any], ColumnElement[T]], *, dated: bool = False
) -> ScalarSelect[T]:
    """One measure over a session's visible turns, or its dated ones, for an outer select; it is given their columns."""
    turn = shape.tasks.alias("turn")
    mine = _is_of(shape, scope, context_id, turn)
    wanted = and_(mine, shape.dated(turn)) if dated else mine
    return select(measure(turn.c)).select_from(turn).where(wanted).scalar_subquery()


def _is_of(shape: Shape, scope: Scope, context_id: Any, turn: FromClause) -> ColumnElement[bool]:
    return and_(turn.c.context_id == context_id, shape.alive(turn), shape.owned_by(scope.owners, turn))


def number_of_turns(turn: Any) -> ColumnElement[int]:
    """A measure."""
    return func.count()


def newest_time(turn: Any) -> ColumnElement[Any]:
    """A measure: of dated turns."""
    return func.max(turn.last_updated)


def _has_newer(shape: Shape, scope: Scope, context_id: Any) -> ColumnElement[bool]:
    """A turn after the position: the session stood on an earlier page."""
    turn = shape.tasks.alias("turn")
    return exists(
        select(literal(1)).where(_is_of(shape, scope, context_id, turn), turn.c.last_updated > _activity(shape))
    )


@lru_cache(STATEMENTS_KEPT)
def _one_pass(shape: Shape, scope: Scope, continues: bool) -> Any:
    """Every row once: the page's sessions and those with an undated row, counted, and the undated rows."""
    live = select(shape.tasks.c.context_id, *key_columns(shape)).where(scope.visible(shape)).cte("live")
    counted = select(
        live.c.context_id,
        func.max(live.c.last_updated).label("last_updated"),
        func.count().label("turns"),
        func.count(live.c.last_updated).label("dated"),
    )
    grouped = counted.group_by(live.c.context_id).cte("grouped")
    on_page = grouped.c.context_id.in_(_page_of_dated(shape, grouped, continues))
    shown = _arm(grouped.c.context_id, grouped.c.turns, grouped.c.last_updated)
    keys = (live.c.id, live.c.last_updated, live.c.created, live.c.sequence, live.c.status)
    undated = select(live.c.context_id, _blank("turns"), *keys).where(live.c.last_updated.is_(None))
    return union_all(undated, shown.where(or_(grouped.c.dated < grouped.c.turns, on_page)))


def _page_of_dated(shape: Shape, grouped: Any, continues: bool) -> Select[Any]:
    """One session more than a page, of those without an undated row: the others are all fetched, and take no place."""
    time, session_id = grouped.c.last_updated, _comparable(shape, grouped.c.context_id)
    dated = select(grouped.c.context_id).where(grouped.c.dated == grouped.c.turns)
    if continues:
        dated = dated.where(_is_after(shape, time, session_id))
    return dated.order_by(time.desc(), session_id).limit(parameter("rows", Integer()))
