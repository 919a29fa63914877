"""The search index in the task database: which turns it lacks and what it stores of each; it analyzes no text.

A turn is registered first, which gives it its place for good, and read afterwards, in any order. What was read carries
the version of its row, so that a difference tells what has changed since: `xmin` on PostgreSQL, a digest of the cells
on SQLite, where a finished turn counts as unchanged while its `last_updated` stands.
"""

import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from heapq import merge
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    String,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    union,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine, UserDefinedType

from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.search.entries import FIELDS
from sidecar.turns import key_columns, moment, with_cells
from sidecar.wire import CELLS
from tombstones.forget import forget
from tombstones.search_tables import FIELDS_A_TURN
from tombstones.table import Shape

# No statement hands the event loop more rows than it can take in a few milliseconds.
KEYS_AT_ONCE = 5_000
NO_MARKER = ""
AFTER_ALL = 2**60
"""A seq that no turn reaches."""
_ALL_BYTES = 2**62


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


@dataclass(frozen=True, slots=True)
class Indexed:
    """One turn as it was read: its marker, the one that this replaces, per field its distinct lexemes as `written`,
    and how many they are together.
    """

    seq: int
    task_id: str
    marker: str
    replaces: str
    settled: str | None
    incognito: bool
    title: str | None
    fields: dict[str, str]
    weight: int


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


async def read(
    conn: Reading, shape: Shape, seqs: Sequence[int], cap: int, room: int, owners: frozenset[str] | None = None
) -> list[Any]:
    """Those turns with their cells, the newest first; one that `room` bytes have no place for has `fits` False.

    A cell above `cap` bytes is None. A turn that is gone, hidden or not of these owners is not among them.
    """
    values = {"wanted": json.dumps(seqs) if shape.sqlite else seqs, "cap": cap, "room": room}
    rows = await conn.fetch(_cells(shape, owners), values)
    return sorted(rows, key=lambda row: -row.seq)


def marker_of(row: Any) -> str:
    """The version of a row with its cells; of a cell that was too large to be read, its size stands for it."""
    if row.version is not None:
        return str(row.version)
    digest = hashlib.blake2b(repr(row.owner).encode(errors="replace"), digest_size=16)
    for name in CELLS:
        digest.update(b"%d " % (getattr(row, f"{name}_octets") or 0))
        digest.update(getattr(row, f"{name}_text") or b"")
    return digest.hexdigest()


def lexeme_of(owner: str) -> str:
    """What stands for an owner among the lexemes of each field, so that a narrowed search finds its own rows at once.

    No word begins with a control character.
    """
    return f"\1{hashlib.blake2b(owner.encode(errors='replace'), digest_size=16).hexdigest()}"


def is_row(shape: Shape, turns: FromClause | None = None, tasks: FromClause | None = None) -> ColumnElement[bool]:
    """The task table's row of a registered turn: one that moved to another context is a new turn there."""
    turn, task = (shape.search.turns if turns is None else turns).c, (shape.tasks if tasks is None else tasks).c
    return and_(turn.task_id == task.id, turn.context_id == task.context_id)


async def register(conn: AsyncConnection, shape: Shape, keys: Sequence[Any], *, first_seen: bool) -> list[int]:
    """Gives turns their places in the order of their creation, and answers them; `first_seen`: now is worth recording.

    A key that is gone, hidden or registered by another meanwhile gets none.
    """
    await _alone(conn, shape)
    turns, contexts = shape.search.turns, shape.search.contexts
    here = select(shape.tasks.c.id).where(_key(shape).in_(keys))
    moved = (await conn.execute(select(turns.c.seq).where(turns.c.task_id.in_(here), ~_has_row(shape)))).scalars().all()
    if moved:
        await prune(conn, shape, moved)
    last = (await conn.execute(select(func.coalesce(func.max(turns.c.seq), 0)))).scalar_one()
    now = datetime.now(UTC) if first_seen else None
    columns = ("seq", "task_id", "context_id", "position", "first_seen", "marker", "fingerprint", "incognito")
    adding = insert(turns).from_select(columns, _new(shape, keys, last, now)).returning(turns.c.seq)
    seqs = list((await conn.execute(adding)).scalars())
    given = (
        select(turns.c.context_id, func.max(turns.c.position)).where(turns.c.seq > last).group_by(turns.c.context_id)
    )
    upsert: Any = (sqlite.insert if shape.sqlite else postgresql.insert)(contexts)
    upsert = upsert.from_select(["context_id", "positions"], given)
    newest = {"positions": upsert.excluded.positions}
    await conn.execute(upsert.on_conflict_do_update(index_elements=["context_id"], set_=newest))
    return seqs


async def store(conn: AsyncConnection, shape: Shape, fingerprint: str, read: Sequence[Indexed], cap: int) -> int:
    """Stores what was read, but of turns that were deleted or stored by another meanwhile; answers of how many."""
    await _alone(conn, shape)
    turns, lexemes = shape.search.turns, shape.search.lexemes
    live = select(turns.c.seq, turns.c.task_id, turns.c.marker).join(shape.tasks, is_row(shape)).where(shape.alive())
    found = await conn.execute(live.where(turns.c.seq.in_([each.seq for each in read])))
    replaced = {(row.seq, row.task_id): row.marker for row in found}  # a seq may be another turn's by now
    fresh = [each for each in read if replaced.get((each.seq, each.task_id)) == each.replaces]
    again = await _as_indexed(conn, shape, [each.seq for each in fresh if each.replaces != NO_MARKER], cap)
    fresh = [each for each in fresh if each.seq not in again]
    known = [place for each in fresh if each.replaces != NO_MARKER for place in _places(each.seq)]
    if known:
        await conn.execute(delete(lexemes).where(shape.search.place.in_(known)))
    added = [
        {"at": _places(each.seq)[FIELDS.index(name)], "words": written}
        for each in fresh
        for name, written in each.fields.items()
    ]
    if added:
        await conn.execute(_new_lexemes(shape), added)
    if fresh:
        await conn.execute(_marked(shape, fingerprint), [_values(each) for each in fresh])
    return len(fresh)


async def _as_indexed(conn: AsyncConnection, shape: Shape, seqs: Sequence[int], cap: int) -> set[int]:
    """Those of the turns that say again what is indexed, so that another took them for unchanged: digests repeat."""
    if not shape.sqlite or not seqs:
        return set()
    values = {"wanted": json.dumps(seqs), "cap": cap, "room": _ALL_BYTES}
    return {row.seq for row in await conn.execute(_cells(shape, None), values) if marker_of(row) == row.marker}


async def prune(conn: AsyncConnection, shape: Shape, seqs: Sequence[int]) -> None:
    """Takes registered turns away whose row is (still) gone."""
    await forget(conn, shape, and_(shape.search.turns.c.seq.in_(seqs), ~_has_row(shape)))


def spelled(lexeme: str) -> str:
    """A lexeme as one token of SQLite's tokenizer `ascii`, and no two alike: it splits at ASCII's punctuation."""
    if lexeme.isalnum() and not lexeme.startswith(_HEX):
        return lexeme
    return _HEX + lexeme.encode().hex()


_HEX = "\u00ff"


def written(lexemes: Iterable[str], *, sqlite: bool) -> str:
    """A field's lexemes as `store` hands them to the database; call it in a worker thread.

    They are sorted: a quarter of a million and more then hold SQLite's lock for a fraction of the time, as FTS5 merges
    what follows one another at no cost. Sorted in pieces, since one long sort stops all other threads.
    """
    words = list(map(spelled, lexemes) if sqlite else lexemes)
    pieces = (sorted(words[start : start + _SORTED_AT_ONCE]) for start in range(0, len(words), _SORTED_AT_ONCE))
    return (" " if sqlite else "\n").join(merge(*pieces))


_SORTED_AT_ONCE = 10_000


def _values(indexed: Indexed) -> dict[str, Any]:
    return {
        "at": indexed.seq,
        "marker": indexed.marker,
        "settled": indexed.settled,
        "incognito": indexed.incognito,
        "title": indexed.title,
    }


def _places(seq: int) -> range:
    return range(seq * FIELDS_A_TURN, (seq + 1) * FIELDS_A_TURN)


async def _alone(conn: AsyncConnection, shape: Shape) -> None:
    """One writer at a time, and no deletion between a look for tombstones and the commit; SQLite has one writer."""
    if not shape.sqlite:
        await conn.execute(select(func.pg_advisory_xact_lock(shape.lock_key + 2)))


def _key(shape: Shape) -> ColumnElement[Any]:
    return shape.tasks.c.rowid if shape.sqlite else shape.tasks.c.id


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
    creation = [column.label(f"creation_{number}") for number, column in enumerate(_creation(shape))]
    # whether it is hidden is looked up for these rows alone
    found = select(_key(shape).label("key"), turns.c.seq, shape.alive().label("is_seen"), *creation)
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


_TIMESTAMP: ColumnElement[str] = literal_column(r"""'"timestamp"\s*:\s*"([^"]*)"'""")


def _creation(shape: Shape) -> list[ColumnElement[Any]]:
    """The order of creation as far as SQL knows it; the time in an undated row's status is taken as it is spelled."""
    if shape.sqlite:
        return [shape.tasks.c.rowid]
    spelled = func.substring(cast(shape.tasks.c.status, Text), _TIMESTAMP)
    dated = func.to_char(shape.last_updated, literal_column("""'YYYY-MM-DD"T"HH24:MI:SS.US'"""))
    created = func.coalesce(shape.created, literal_column("'-infinity'::timestamptz"))
    return [created, func.coalesce(dated, spelled, "~").collate("C"), shape.tasks.c.id]


def _new(shape: Shape, keys: Sequence[Any], last: int, now: datetime | None) -> Select[Any]:
    """The rows to register: those of the keys that are still to be."""
    tasks, contexts = shape.tasks, shape.search.contexts
    order = _creation(shape)
    chosen = select(
        tasks.c.id,
        tasks.c.context_id,
        func.row_number().over(order_by=order).label("number"),
        func.row_number().over(partition_by=tasks.c.context_id, order_by=order).label("ordinal"),
    )
    chosen = chosen.where(_key(shape).in_(keys), shape.alive(), ~exists().where(is_row(shape)))
    new = chosen.subquery("new")
    moment = bindparam("now", now, type_=shape.search.turns.c.first_seen.type)
    found = select(
        new.c.number + last,
        new.c.id,
        new.c.context_id,
        func.coalesce(contexts.c.positions, 0) + new.c.ordinal,
        moment,
        literal(NO_MARKER),
        literal(NO_MARKER),
        literal(False, Boolean),
    )
    return found.select_from(new.outerjoin(contexts, contexts.c.context_id == new.c.context_id))


@lru_cache(STATEMENTS_KEPT)
def _registered(shape: Shape) -> Select[Any]:
    turns = shape.search.turns
    found = select(turns.c.seq).where(turns.c.seq < parameter("below", BigInteger()))
    return found.order_by(turns.c.seq.desc()).limit(parameter("rows", Integer()))


def _has_row(shape: Shape) -> ColumnElement[bool]:
    return exists(select(literal(1)).select_from(shape.tasks).where(is_row(shape), shape.alive()))


@lru_cache(STATEMENTS_KEPT)
def _orphans(shape: Shape) -> Select[Any]:
    return select(shape.search.turns.c.seq).where(~_has_row(shape)).limit(parameter("rows", Integer()))


@lru_cache(STATEMENTS_KEPT)
def _cells(shape: Shape, owners: frozenset[str] | None) -> Select[Any]:
    turns = shape.search.turns
    if shape.sqlite:
        wanted = func.json_each(parameter("wanted", String())).table_valued("value")
    else:
        wanted = func.unnest(parameter("wanted", ARRAY(BigInteger))).table_valued("value").render_derived(name="wanted")
    keys = select(
        *key_columns(shape),
        shape.tasks.c.context_id,
        # SQLite may hold an owner that is no text
        cast(shape.tasks.c.owner if "owner" in shape.columns else null(), String).label("owner"),
        *(turns.c[name] for name in ("seq", "marker", "settled", "fingerprint")),
        shape.row_version.label("version") if not shape.sqlite else null().label("version"),
        func.row_number().over(order_by=turns.c.seq.desc()).label("place"),
    )
    keys = keys.select_from(turns).join(shape.tasks, is_row(shape))
    return with_cells(shape, keys.where(turns.c.seq.in_(select(wanted.c.value)), shape.alive(), shape.owned_by(owners)))


def _new_lexemes(shape: Shape) -> Any:
    words: ColumnElement[Any] = bindparam("words", type_=Text())
    if not shape.sqlite:  # split there: an array of many words would keep the event loop busy
        words = func.string_to_array(words, literal_column("E'\\n'"))
    return insert(shape.search.lexemes).values({shape.search.place.name: bindparam("at"), "lexemes": words})


def _marked(shape: Shape, fingerprint: str) -> Any:
    turns = shape.search.turns
    names = ("marker", "settled", "incognito", "title")
    read = {name: bindparam(name, type_=turns.c[name].type) for name in names}
    return update(turns).where(turns.c.seq == bindparam("at")).values(fingerprint=fingerprint, **read)
