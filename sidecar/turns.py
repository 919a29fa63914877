"""One session's turns, the newest first to be found and the oldest first to be shown; it reads and changes nothing.

One statement picks, sizes and fetches a page. Only where rows have no `last_updated` (0.x stores, fresh tasks) can SQL
not order them, since their time stands inside the status: then the keys are ordered here and the page is fetched by
id, both in one snapshot.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Row, Select, and_, case, func, literal, literal_column, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from sidecar.db import snapshot
from sidecar.wire import Cell, Turn, decode_cursor, encode_cursor
from tombstones.state import parse_time, read_status
from tombstones.table import Shape

CELLS = ("status", "artifacts", "history")
Order = Literal["activity", "created"]


@dataclass(frozen=True, slots=True)
class Window:
    """Which turns: at most `limit`, older than `cursor`; cells and the whole page bounded in bytes."""

    session_id: str
    limit: int
    order: Order
    cursor: str | None
    owners: frozenset[str] | None
    max_turn_bytes: int
    max_page_bytes: int

    @property
    def bound_to(self) -> tuple[str, ...]:
        return ("turns", self.session_id, self.order)


@dataclass(frozen=True, slots=True)
class Page:
    """The turns, ascending, and the cursor of the next older ones."""

    turns: list[Turn]
    older: str | None


class Key(msgspec.Struct, array_like=True, frozen=True):
    """Where a turn stands in both orders; `by_sql` says that the database could order the session's rows itself."""

    task_id: str
    activity: datetime | None
    created: datetime | None
    sequence: int | None
    by_sql: bool = True


def key_of(row: Any) -> Key:
    """The key of a row with id, last_updated, created, sequence and, where last_updated is NULL, status.

    The effective time is the column, else the status' own time, else the time of the first save.
    """
    activity = parse_time(row.last_updated) if isinstance(row.last_updated, str) else row.last_updated
    if activity is None:
        activity = read_status(row.status).time
    if activity is None and row.created is not None:
        activity = row.created.astimezone(UTC).replace(tzinfo=None)
    return Key(row.id, activity, row.created, row.sequence)


def key_columns(shape: Shape) -> tuple[ColumnElement[Any], ...]:
    """What `key_of` reads."""
    return (
        shape.tasks.c.id,
        shape.last_updated.label("last_updated"),
        shape.created.label("created"),
        shape.sequence.label("sequence"),
        case((shape.last_updated.is_(None), shape.stored("status"))).label("status"),
    )


_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


def creation_rank(key: Key) -> tuple[Any, ...]:
    """Sorts by creation: SQLite's rowid; on PostgreSQL the time that `prepare` records, rows older than it first."""
    if key.sequence is not None:
        return (key.sequence,)
    return (key.created or _BEFORE_ALL, key.activity or datetime.max, key.task_id)


def activity_rank(key: Key) -> tuple[Any, ...]:
    """Sorts by effective time, unknown last, ties by creation."""
    return (key.activity or datetime.max, *creation_rank(key))


async def read(conn: AsyncConnection, shape: Shape, window: Window) -> Page:
    """The newest turns of a session that are older than the cursor. Raises CursorError for a foreign one."""
    after = decode_cursor(window.cursor, window.bound_to, Key) if window.cursor is not None else None
    if "last_updated" in shape.columns and (after is None or after.by_sql):
        rows = (await conn.execute(_with_cells(shape, window, _newest(shape, window, after)))).all()
        if not any(_is_misplaced(row, window.order) for row in rows):
            return _page(rows, window, by_sql=True)
    async with snapshot(conn):
        places = await _places(conn, shape, window, after)
        chosen = select(*key_columns(shape), case(places, value=shape.tasks.c.id).label("place"))
        page = chosen.where(shape.tasks.c.id.in_(places), _visible(shape, window))
        rows = (await conn.execute(_with_cells(shape, window, page))).all() if places else []
    return _page(rows, window, by_sql=False)


def _visible(shape: Shape, window: Window) -> ColumnElement[bool]:
    mine = shape.tasks.c.context_id == window.session_id
    return and_(mine, shape.alive(), shape.owned_by(window.owners))


def _is_misplaced(row: Row[Any], order: Order) -> bool:
    """SQL put a row without last_updated last; its true place may be another."""
    if row.last_updated is not None:
        return False
    return order == "activity" or (row.sequence is None and row.created is None)


def _ranks(shape: Shape, order: Order) -> list[ColumnElement[Any]]:
    """`creation_rank` and `activity_rank` in SQL, for rows that have last_updated; the others count as newest."""
    far: ColumnElement[Any] = literal_column(
        "'9999-12-31 23:59:59.999999'" if shape.sqlite else "'infinity'::timestamp"
    )
    activity = func.coalesce(shape.last_updated, far)
    if shape.sqlite:
        creation: list[ColumnElement[Any]] = [shape.sequence]
    else:
        creation = [activity, shape.tasks.c.id]
        if shape.has_creation_order:
            creation.insert(0, func.coalesce(shape.created, literal_column("'-infinity'::timestamptz")))
    return creation if order == "created" else [activity, *creation]


def _rank_values(shape: Shape, order: Order, key: Key) -> list[Any]:
    activity: Any = key.activity or datetime.max
    if shape.sqlite:
        creation: list[Any] = [key.sequence]
        activity = activity.isoformat(" ", "microseconds")
    else:
        creation = [activity, key.task_id]
        if shape.has_creation_order:
            creation.insert(0, key.created or _BEFORE_ALL)
    return creation if order == "created" else [activity, *creation]


def _newest(shape: Shape, window: Window, after: Key | None) -> Select[Any]:
    """The keys of a page and of one row more, numbered from the newest."""
    ranks = _ranks(shape, window.order)
    newest_first = [rank.desc() for rank in ranks]
    keys = select(*key_columns(shape), func.row_number().over(order_by=newest_first).label("place"))
    keys = keys.where(_visible(shape, window)).order_by(*newest_first).limit(window.limit + 1)
    if after is not None:
        values = [literal(value) for value in _rank_values(shape, window.order, after)]
        keys = keys.where(tuple_(*ranks) < tuple_(*values))
    return keys


async def _places(conn: AsyncConnection, shape: Shape, window: Window, after: Key | None) -> dict[str, int]:
    """The same from the keys of the whole session: task id to place."""
    rank = creation_rank if window.order == "created" else activity_rank
    rows = await conn.execute(select(*key_columns(shape)).where(_visible(shape, window)))
    keys = sorted(map(key_of, rows), key=rank, reverse=True)
    if after is not None:
        keys = [key for key in keys if rank(key) < rank(after)]
    return {key.task_id: place for place, key in enumerate(keys[: window.limit + 1], 1)}


def _with_cells(shape: Shape, window: Window, keys: Select[Any]) -> Select[Any]:
    """The page's cells, sized first: none over its cap is fetched, nor a turn that the whole page has no room for."""
    page, tasks = keys.cte("page"), shape.tasks
    sizes = [shape.octets(name).label(f"{name}_octets") for name in CELLS]
    sized = select(page, *sizes).join(tasks, tasks.c.id == page.c.id).cte("sized")
    octets = [sized.c[f"{name}_octets"] for name in CELLS]
    weight = sum((case((size <= window.max_turn_bytes, size), else_=0) for size in octets), start=literal(0))
    weighed = select(sized, func.sum(weight).over(order_by=sized.c.place).label("running")).cte("weighed")
    fits = or_(weighed.c.running <= window.max_page_bytes, weighed.c.place == 1)
    cells = [
        case((and_(fits, weighed.c[f"{name}_octets"] <= window.max_turn_bytes), shape.stored(name))).label(
            f"{name}_text"
        )
        for name in CELLS
    ]
    return select(weighed, fits.label("fits"), *cells).join(tasks, tasks.c.id == weighed.c.id).order_by(weighed.c.place)


def _page(rows: Sequence[Row[Any]], window: Window, *, by_sql: bool) -> Page:
    shown = [row for row in rows[: window.limit] if row.fits]
    older = None
    if shown and len(shown) < len(rows):
        last = msgspec.structs.replace(key_of(shown[-1]), by_sql=by_sql)
        older = encode_cursor(window.bound_to, last)
    return Page([_turn(row) for row in reversed(shown)], older)


def _turn(row: Row[Any]) -> Turn:
    cells = [Cell(getattr(row, f"{name}_text"), getattr(row, f"{name}_octets")) for name in CELLS]
    return Turn(row.id, read_status(row.status_text).state, key_of(row).activity, *cells)
