"""Which turns the search index lacks, or has of an older row; it reads no cell and writes nothing.

After a whole look only rows that may have changed since are compared, for a while. On SQLite a finished turn counts as
unchanged while its `last_updated` stands.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Integer,
    Select,
    String,
    Text,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    union,
    union_all,
)
from sqlalchemy.types import TypeEngine, UserDefinedType

from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.search.index import NO_MARKER, creation_order, has_row, is_row, key_of
from sidecar.turns import moment
from tombstones.table import Shape

# No statement hands the event loop more rows than it can take in a few milliseconds.
KEYS_AT_ONCE = 5_000
AFTER_ALL = 2**60
"""A seq that no turn reaches."""


class Horizon(NamedTuple):
    """What tells the rows that may have changed since a survey: PostgreSQL's transactions, SQLite's rows and times.

    `newest` is the id in SQLite's last row, whose number is given again once it is deleted.
    """

    transaction: int | None
    row: int | None
    newest: str | None
    time: str | None


@dataclass(frozen=True, slots=True)
class Survey:
    """How far the index is behind: the next keys to register and turns to read, how many of each there are in all,
    how many turns are registered, and how many of these have no row any more, if everything was looked at. `is_built`:
    some were read before.
    """

    keys: list[Any]
    seqs: list[int]
    unregistered: int
    outdated: int
    registered: int
    orphans: int
    is_built: bool
    horizon: Horizon


async def version(conn: Reading, shape: Shape) -> tuple[Hashable, Hashable] | None:
    """Which PostgreSQL and which index it is, and what stands there until any transaction begins or ends; None on
    SQLite.
    """
    if shape.sqlite:
        return None
    (row,) = await conn.fetch(_version(shape))
    return (row.started, row.file), row.snapshot


@lru_cache(STATEMENTS_KEPT)
def _version(shape: Shape) -> Select[Any]:
    # a table that was dropped and made again, or emptied, has another file
    table = func.to_regclass(literal(shape.qualified(shape.search.turns.name)))
    return select(
        func.pg_postmaster_start_time().label("started"),
        func.pg_relation_filenode(table).label("file"),
        cast(func.txid_current_snapshot(), Text).label("snapshot"),
    )


async def is_begun(conn: Reading, shape: Shape) -> bool:
    """Whether the index was begun."""
    return shape.has_search


async def survey(
    conn: Reading,
    shape: Shape,
    fingerprint: str,
    since: Horizon | None,
    below: int = AFTER_ALL,
    context_id: str | None = None,
) -> Survey:
    """Compares the index with the table, with what may have changed in it, or with one context of it.

    Of registered turns it names those before a place. Keys are rowids on SQLite and ids on PostgreSQL, in the order of
    creation; turns to be read come newest first.
    """
    values = {"fingerprint": fingerprint, "below": below, "context_id": context_id, "rows": KEYS_AT_ONCE}
    if since is not None:
        values |= {**since._asdict(), "time": _a_little_before(since.time)}
    *listed, counts = await conn.fetch(_survey(shape, context_id is not None, since is not None), values)
    has_all = since is None and context_id is None
    return Survey(
        [row.key for row in listed if row.seq is None],
        [row.seq for row in listed if row.seq is not None],
        counts.unregistered,
        counts.outdated,
        counts.registered,
        max(counts.registered - counts.table_rows + counts.missing, 0) if has_all else 0,
        bool(counts.is_built),
        Horizon(counts.transaction, counts.row, counts.newest, counts.time),
    )


def _a_little_before(time: str | None) -> str:
    """SQLite's horizon is looked for a little before itself: clocks and saves are out of order for a while."""
    found = moment(time)
    return "" if found is None else (max(found, _EARLIEST) - _OUT_OF_ORDER).isoformat(" ", "microseconds")


_OUT_OF_ORDER = timedelta(minutes=10)
_EARLIEST = datetime(1, 1, 2)


async def registered(conn: Reading, shape: Shape, below: int) -> list[int]:
    """The next registered turns before a place, newest first."""
    return [row.seq for row in await conn.fetch(_registered(shape), {"below": below, "rows": KEYS_AT_ONCE})]


async def orphans(conn: Reading, shape: Shape) -> list[int]:
    """Registered turns whose row is gone, by the producer's own deletion."""
    return [row.seq for row in await conn.fetch(_orphans(shape), {"rows": KEYS_AT_ONCE})]


def _has_text_ids(shape: Shape) -> ColumnElement[bool]:
    """SQLite may hold other ids, which nothing could name."""
    return and_(true(), *(func.typeof(shape.tasks.c[name]) == "text" for name in ("id", "context_id") if shape.sqlite))


def _is_outdated(shape: Shape) -> ColumnElement[bool]:
    turns = shape.search.turns
    read_otherwise = or_(turns.c.marker == NO_MARKER, turns.c.fingerprint != parameter("fingerprint", Text()))
    if not shape.sqlite:
        return or_(read_otherwise, turns.c.marker != shape.row_version)
    # a turn that has not ended is read again each time
    return or_(read_otherwise, turns.c.settled.is_distinct_from(func.coalesce(shape.last_updated, "")))


_COUNTS: dict[str, TypeEngine[Any]] = {
    **dict.fromkeys(("unregistered", "outdated", "missing", "table_rows", "registered"), BigInteger()),
    "is_built": Boolean(),
    "transaction": BigInteger(),
    "row": BigInteger(),
    "newest": Text(),
    "time": Text(),
}


@lru_cache(STATEMENTS_KEPT)
def _survey(shape: Shape, of_context: bool, is_partial: bool) -> Any:
    """What is to be done, and in the last row the counts, in one pass."""
    turns, tasks = shape.search.turns, shape.tasks
    creation = [column.label(f"creation_{number}") for number, column in enumerate(creation_order(shape))]
    # whether it is hidden is looked up for these rows alone
    found = select(key_of(shape).label("key"), turns.c.seq, shape.alive().label("is_seen"), *creation)
    found = found.select_from(tasks.outerjoin(turns, is_row(shape)))
    is_unregistered = and_(turns.c.seq.is_(None), _has_text_ids(shape))
    found = found.where(or_(is_unregistered, and_(turns.c.seq < parameter("below", BigInteger()), _is_outdated(shape))))
    if of_context:
        found = found.where(tasks.c.context_id == parameter("context_id", String()))
    elif is_partial:
        found = found.where(_may_have_changed(shape))
    behind = found.cte("behind").prefix_with("MATERIALIZED")
    newest_first = func.coalesce(-behind.c.seq, -AFTER_ALL)
    order = [newest_first, *(behind.c[column.name] for column in creation)]
    listed = select(behind.c.key, behind.c.seq).where(behind.c.is_seen).order_by(*order)
    page = listed.limit(parameter("rows", Integer())).subquery("page")
    counts = {
        "unregistered": func.count(case((and_(behind.c.is_seen, behind.c.seq.is_(None)), 1))),
        "outdated": func.count(case((and_(behind.c.is_seen, behind.c.seq.is_not(None)), 1))),
        "missing": func.count(case((behind.c.seq.is_(None), 1))),
        "table_rows": null() if is_partial else select(func.count()).select_from(tasks).scalar_subquery(),
        "registered": select(func.count()).select_from(turns).scalar_subquery(),
        "is_built": exists(select(literal(1)).where(turns.c.marker != NO_MARKER)),
        **_horizon(shape),
    }
    last = (cast(counts[name], kind).label(name) for name, kind in _COUNTS.items())
    blanks = (cast(null(), kind).label(name) for name, kind in _COUNTS.items())
    none = (null().label("key"), null().label("seq"))
    return union_all(select(page.c.key, page.c.seq, *blanks), select(*none, *last).select_from(behind))


def _horizon(shape: Shape) -> dict[str, ColumnElement[Any]]:
    if not shape.sqlite:
        # whatever is not seen by this statement comes from this transaction or a later one
        oldest = func.txid_snapshot_xmin(func.txid_current_snapshot())
        return {"transaction": oldest, "row": null(), "newest": null(), "time": null()}
    tasks = shape.tasks
    row, time = (select(func.max(column)).scalar_subquery() for column in (tasks.c.rowid, shape.last_updated))
    newest = select(tasks.c.id).order_by(tasks.c.rowid.desc()).limit(1).scalar_subquery()
    return {
        "transaction": null(),
        "row": func.coalesce(row, 0),
        "newest": newest,
        "time": func.coalesce(time, ""),
    }


def _may_have_changed(shape: Shape) -> ColumnElement[bool]:
    """Rows saved since the horizon. On SQLite: new ones, those as late, and those that had not ended."""
    tasks, turns = shape.tasks, shape.search.turns
    if not shape.sqlite:
        # xmin is the transaction's number modulo 2**32, which only `age` can compare
        number = parameter("transaction", BigInteger()) % literal_column(str(2**32))
        since = func.age(cast(cast(number, Text), _TransactionNumber()))
        # a subquery is asked once, an expression for every row
        return func.age(tasks.c.xmin) <= select(since).scalar_subquery()
    rows = select(tasks.c.rowid)
    ranges = [tasks.c.rowid > case((_stands(shape), parameter("row", BigInteger())), else_=_BEFORE_ALL_ROWS)]
    ranges += shape.undated_ranges if shape.can_walk else [shape.undated()]
    if "last_updated" in shape.columns:
        ranges.append(tasks.c.last_updated >= parameter("time", Text()))
    unfinished = rows.join(turns, is_row(shape)).where(turns.c.settled.is_(None))
    # each by an index of its own: of one OR SQLite makes a pass
    return tasks.c.rowid.in_(union(*(each.correlate(None) for each in (unfinished, *map(rows.where, ranges)))))


class _TransactionNumber(UserDefinedType[str]):
    """PostgreSQL's `xid`."""

    def get_col_spec(self, **_: Any) -> str:
        return "xid"


_BEFORE_ALL_ROWS: ColumnElement[int] = literal_column(str(-(2**63)))


def _stands(shape: Shape) -> ColumnElement[bool]:
    """The horizon's last row is there and registered: then no number up to its own was given again, and none of a
    turn that the index has lost.
    """
    row, turn = shape.tasks.alias("last_row"), shape.search.turns.alias("last_turn")
    is_last = and_(row.c.rowid == parameter("row", BigInteger()), row.c.id == parameter("newest", Text()))
    return exists(select(literal(1)).select_from(row.join(turn, is_row(shape, turn, row))).where(is_last))


@lru_cache(STATEMENTS_KEPT)
def _registered(shape: Shape) -> Select[Any]:
    turns = shape.search.turns
    found = select(turns.c.seq).where(turns.c.seq < parameter("below", BigInteger()))
    return found.order_by(turns.c.seq.desc()).limit(parameter("rows", Integer()))


@lru_cache(STATEMENTS_KEPT)
def _orphans(shape: Shape) -> Select[Any]:
    return select(shape.search.turns.c.seq).where(~has_row(shape)).limit(parameter("rows", Integer()))
