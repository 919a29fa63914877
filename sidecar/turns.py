"""One session's turns, the newest first to be found and the oldest first to be shown; it reads and changes nothing.

One statement picks, sizes and fetches a page. Only where rows have no `last_updated` (0.x stores, fresh tasks) can SQL
not order them, since their time stands inside the status: then the keys are ordered here and the page is fetched by
id, both in one snapshot.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

import msgspec
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    DateTime,
    FromClause,
    Integer,
    Select,
    String,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    tuple_,
)

from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.wire import (
    CELLS,
    Cell,
    CursorError,
    RowNumber,
    Turn,
    UtcTime,
    ZonedTime,
    decode_cursor,
    encode_cursor,
    etag,
    plain,
)
from tombstones.state import naive_utc, parse_time, read_status
from tombstones.table import Shape

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
    """The turns, ascending, the cursor of the next older ones, and a validator where the rows have versions."""

    turns: list[Turn]
    older: str | None
    etag: str | None


class Key(msgspec.Struct, array_like=True, frozen=True):
    """Where a turn stands in both orders; `by_sql` says that the database could order the session's rows itself."""

    task_id: str
    activity: UtcTime | None
    created: ZonedTime | None
    sequence: RowNumber | None
    by_sql: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for a forged time that its zone moves out of the calendar."""
        try:
            if self.created is not None:
                self.created.astimezone(UTC)
        except OverflowError:
            raise ValueError(self.created) from None


def key_of(row: Any) -> Key:
    """The key of a row with id, last_updated, created, sequence and, where last_updated is NULL, status.

    The effective time is the column, else the status' own time, else the time of the first save.
    """
    activity = moment(row.last_updated)
    if activity is None:
        activity = read_status(row.status).time
    if activity is None and row.created is not None:
        activity = naive_utc(row.created)
    return Key(row.id, activity, row.created, row.sequence)


def moment(value: Any) -> datetime | None:
    """A last_updated as either driver gives it; SQLite may hold what is no time."""
    return parse_time(value) if isinstance(value, str) else value if isinstance(value, datetime) else None


def key_columns(shape: Shape, *, of_dated: bool = False) -> tuple[ColumnElement[Any], ...]:
    """What `key_of` reads; of dated rows alone it is the column itself, by which an index sorts."""
    # SQLite may hold an id that is no text
    task_id = cast(shape.tasks.c.id, String).label("id") if shape.sqlite else shape.tasks.c.id
    return (
        task_id,
        (shape.tasks.c.last_updated if of_dated else shape.last_updated).label("last_updated"),
        shape.created.label("created"),
        shape.sequence.label("sequence"),
        case((shape.dated(), null()), else_=shape.stored("status")).label("status"),
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


async def read(conn: Reading, shape: Shape, window: Window) -> Page:
    """The newest turns of a session that are older than the cursor. Raises CursorError for a foreign one."""
    after = _position(shape, window)
    bounds = {"cap": window.max_turn_bytes, "room": window.max_page_bytes}
    if "last_updated" in shape.columns and (after is None or after.by_sql):
        newest = _newest(shape, window.order, window.owners, after is not None)
        rows = await conn.fetch(newest, {**_newest_values(shape, window, after), **bounds})
        if _are_ordered(rows, window.order) or (not rows and after is not None):
            return _page(rows, window, by_sql=True)
    mine = {"session_id": window.session_id}
    async with conn.snapshot():
        chosen = _places(await conn.fetch(_keys(shape, window.owners), mine), window, after)
        wanted: Any = [key.task_id for key in chosen]
        if shape.sqlite:
            wanted = json.dumps([key.sequence for key in chosen])
        rows = await conn.fetch(_chosen(shape, window.owners), {**mine, **bounds, "wanted": wanted})
    return _page(rows, window, by_sql=False)


async def validator(conn: Reading, shape: Shape, window: Window) -> str | None:
    """The validator that `read` would give its page, at the cost of the page's keys; None where only `read` knows."""
    after = _position(shape, window)
    if shape.sqlite or "last_updated" not in shape.columns or (after is not None and not after.by_sql):
        return None
    keys = _newest_keys(shape, window.order, window.owners, after is not None)
    rows = await conn.fetch(keys, _newest_values(shape, window, after))
    return _etag(rows, window) if _are_ordered(rows, window.order) else None


def _etag(rows: Sequence[Any], window: Window) -> str | None:
    """A digest of the page's row versions; every save of a row and every tombstone changes it."""
    if not rows or rows[0].version is None:
        return None
    asked = (window.session_id, window.limit, window.order, window.cursor, window.max_turn_bytes, window.max_page_bytes)
    return etag(msgspec.json.encode([asked, [(row.id, row.version) for row in sorted(rows, key=_place)]]))


def _place(row: Any) -> int:
    place: int = row.place
    return place


def _position(shape: Shape, window: Window) -> Key | None:
    """The key that the cursor holds, of the kind that this store's rows have. Raises CursorError."""
    if window.cursor is None:
        return None
    after = decode_cursor(window.cursor, window.bound_to, Key)
    if (after.sequence is not None) != shape.sqlite:
        raise CursorError
    return after


def _visible(shape: Shape, owners: frozenset[str] | None) -> ColumnElement[bool]:
    mine = shape.tasks.c.context_id == parameter("session_id", String())
    return and_(mine, shape.alive(), shape.owned_by(owners))


def _are_ordered(rows: Sequence[Any], order: Order) -> bool:
    """SQL could order the session's turns: by activity when each has last_updated, by creation when it is known."""
    if order == "activity":
        return bool(rows) and not rows[0].has_undated
    return all(row.last_updated is not None or row.sequence is not None or row.created is not None for row in rows)


def _ranks(shape: Shape, order: Order, rows: FromClause) -> dict[str, ColumnElement[Any]]:
    """`creation_rank` and `activity_rank` in SQL; turns without last_updated count as newest."""
    activity: ColumnElement[Any] = rows.c.last_updated
    creation: dict[str, ColumnElement[Any]] = {}
    if shape.sqlite:
        creation["sequence"] = rows.c.sequence
    else:
        if shape.has_creation_order:
            creation["created"] = func.coalesce(rows.c.created, literal_column("'-infinity'::timestamptz"))
        if order == "created":
            creation["activity"] = func.coalesce(activity, literal_column("'infinity'::timestamp"))
        creation["task_id"] = rows.c.id
    return creation if order == "created" else {"activity": activity, **creation}


def _newest_values(shape: Shape, window: Window, after: Key | None) -> dict[str, Any]:
    values: dict[str, Any] = {"session_id": window.session_id, "rows": window.limit + 1}
    if after is not None:
        activity = after.activity or datetime.max
        values |= {
            "activity": activity.isoformat(" ", "microseconds") if shape.sqlite else activity,
            "created": after.created or _BEFORE_ALL,
            "sequence": after.sequence,
            # PostgreSQL has no id with a NUL, and takes none from a forged cursor
            "task_id": after.task_id if shape.sqlite else after.task_id.replace("\0", ""),
        }
    return values


def _rank_parameters(shape: Shape, ranks: dict[str, ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    kinds = {
        "activity": String() if shape.sqlite else DateTime(),
        "created": DateTime(timezone=True),
        "sequence": Integer(),
        "task_id": String(),
    }
    return [parameter(name, kinds[name]) for name in ranks]


@lru_cache(STATEMENTS_KEPT)
def _newest(shape: Shape, order: Order, owners: frozenset[str] | None, continues: bool) -> Select[Any]:
    """The turns of a page and one more."""
    return with_cells(shape, _newest_keys(shape, order, owners, continues))


@lru_cache(STATEMENTS_KEPT)
def _newest_keys(shape: Shape, order: Order, owners: frozenset[str] | None, continues: bool) -> Select[Any]:
    """Their keys, numbered from the newest."""
    any_turn = select(literal(1)).where(_visible(shape, owners))
    ranges = shape.undated_ranges if shape.can_walk else [shape.undated()]
    has_undated = select(or_(*(any_turn.where(each).exists() for each in ranges))).scalar_subquery()
    beside = (shape.version.label("version"), has_undated.label("has_undated"))
    mine = select(*key_columns(shape, of_dated=order == "activity"), *beside).where(_visible(shape, owners))
    if order == "activity":
        mine = mine.where(shape.dated())
    keys = mine.subquery("mine")
    ranks = _ranks(shape, order, keys)
    page = select(keys).order_by(*(rank.desc() for rank in ranks.values())).limit(parameter("rows", Integer()))
    if continues:
        page = page.where(tuple_(*ranks.values()) < tuple_(*_rank_parameters(shape, ranks)))
    found = page.subquery("found")
    newest_first = [rank.desc() for rank in _ranks(shape, order, found).values()]
    return select(found, func.row_number().over(order_by=newest_first).label("place"))


@lru_cache(STATEMENTS_KEPT)
def _keys(shape: Shape, owners: frozenset[str] | None) -> Select[Any]:
    """The keys of the whole session."""
    return select(*key_columns(shape)).where(_visible(shape, owners))


def _places(rows: Sequence[Any], window: Window, after: Key | None) -> list[Key]:
    """The keys of a page and one more, from the newest."""
    rank = creation_rank if window.order == "created" else activity_rank
    keys = sorted(map(key_of, rows), key=rank, reverse=True)
    if after is not None:
        keys = [key for key in keys if rank(key) < rank(after)]
    return keys[: window.limit + 1]


@lru_cache(STATEMENTS_KEPT)
def _chosen(shape: Shape, owners: frozenset[str] | None) -> Select[Any]:
    """The wanted turns, numbered in their order: a JSON array of rowids on SQLite, an array of ids on PostgreSQL."""
    if shape.sqlite:
        wanted = func.json_each(parameter("wanted", String())).table_valued("value", "key")
        place, is_wanted = wanted.c.key + 1, shape.tasks.c.rowid == wanted.c.value
    else:
        wanted = func.unnest(parameter("wanted", ARRAY(String))).table_valued("value", with_ordinality="key")
        wanted = wanted.render_derived(name="wanted")
        place, is_wanted = wanted.c.key, shape.tasks.c.id == wanted.c.value
    keys = select(*key_columns(shape), place.label("place")).join_from(wanted, shape.tasks, is_wanted)
    return with_cells(shape, keys.where(_visible(shape, owners)))


def with_cells(shape: Shape, keys: Select[Any]) -> Select[Any]:
    """The page's cells, sized first: none over its cap is fetched, nor a turn that the whole page has no room for."""
    cap, room = (parameter(name, Integer()) for name in ("cap", "room"))
    page, tasks = keys.cte("page"), shape.tasks
    sizes = [shape.octets(name).label(f"{name}_octets") for name in CELLS]
    # materialized: PostgreSQL would unpack the cells again for every mention of a size
    sized = select(page, *sizes).join(tasks, _is_row(shape, page)).cte("sized").prefix_with("MATERIALIZED")
    octets = [sized.c[f"{name}_octets"] for name in CELLS]
    # the artifacts count twice: their text is in the answer, too
    weight = sum((case((size <= cap, size), else_=0) for size in (*octets, octets[1])), start=literal(0))
    weighed = select(sized, func.sum(weight).over(order_by=sized.c.place).label("running")).cte("weighed")
    fits = or_(weighed.c.running <= room, weighed.c.place == 1)
    cells = [
        case((and_(fits, weighed.c[f"{name}_octets"] <= cap), shape.stored(name))).label(f"{name}_text")
        for name in CELLS
    ]
    # not ordered here: the database would carry the cells through its sort
    return select(weighed, fits.label("fits"), *cells).join(tasks, _is_row(shape, weighed))


def _is_row(shape: Shape, keys: FromClause) -> ColumnElement[bool]:
    """The row that a key was read from, in the same statement."""
    return shape.tasks.c.rowid == keys.c.sequence if shape.sqlite else shape.tasks.c.id == keys.c.id


def _page(rows: Sequence[Any], window: Window, *, by_sql: bool) -> Page:
    shown = [row for row in sorted(rows, key=_place)[: window.limit] if row.fits]
    older = None
    if shown and len(shown) < len(rows):
        last = key_of(shown[-1])
        last = msgspec.structs.replace(last, task_id=plain(last.task_id), by_sql=by_sql)
        older = encode_cursor(window.bound_to, last)
    return Page([_turn(row) for row in reversed(shown)], older, _etag(rows, window) if by_sql else None)


def _turn(row: Any) -> Turn:
    cells = [Cell(getattr(row, f"{name}_text"), getattr(row, f"{name}_octets")) for name in CELLS]
    return Turn(row.id, read_status(row.status_text).state, key_of(row).activity, *cells)
