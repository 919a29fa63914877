"""What the search index stores of each turn, in the task database; it analyzes no text and knows of nothing missing.

A turn is registered first, which gives it its place for good, and read afterwards, in any order. What was read carries
the version of its row, so that a difference tells what has changed since: `xmin` on PostgreSQL, a digest of the cells
on SQLite.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from heapq import merge
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    FromClause,
    Select,
    String,
    TableValuedAlias,
    Text,
    and_,
    bindparam,
    cast,
    column,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    null,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.search.entries import FIELDS, Cells
from sidecar.turns import key_columns, with_cells
from sidecar.wire import CELLS
from tombstones.forget import forget
from tombstones.search_tables import FIELDS_A_TURN
from tombstones.table import Shape, stand_alone

NO_MARKER = ""
_ALL_BYTES = 2**62


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


async def read(
    conn: Reading, shape: Shape, seqs: Sequence[int], cap: int, room: int, owners: frozenset[str] | None = None
) -> list[Any]:
    """Those turns with their cells, the newest first; one that `room` bytes have no place for has `fits` False.

    A cell above `cap` bytes is None. A turn that is gone, hidden or not of these owners is not among them.
    """
    values = {"wanted": json.dumps(seqs) if shape.sqlite else seqs, "cap": cap, "room": room}
    rows = await conn.fetch(_cells(shape, owners), values)
    return sorted(rows, key=lambda row: -row.seq)


def cells_of(row: Any) -> Cells:
    """The cells of a row that was read."""
    return Cells(*(getattr(row, f"{name}_text") for name in CELLS))


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


def numbers(shape: Shape, name: str) -> TableValuedAlias:
    """A parameter's numbers as rows with a `value`: a JSON array on SQLite, an array on PostgreSQL."""
    value = column("value", BigInteger)
    if shape.sqlite:
        return func.json_each(parameter(name, String())).table_valued(value)
    return func.unnest(parameter(name, ARRAY(BigInteger))).table_valued(value).render_derived(name=name)


def is_row(shape: Shape, turns: FromClause | None = None, tasks: FromClause | None = None) -> ColumnElement[bool]:
    """The task table's row of a registered turn: one that moved to another context is a new turn there."""
    turn, task = (shape.search.turns if turns is None else turns).c, (shape.tasks if tasks is None else tasks).c
    return and_(turn.task_id == task.id, turn.context_id == task.context_id)


async def register(conn: AsyncConnection, shape: Shape, keys: Sequence[Any], *, first_seen: bool) -> list[int]:
    """Gives turns their places in the order of their creation, and answers them; `first_seen`: now is worth recording.

    A key that is gone, hidden or registered by another meanwhile gets none.
    """
    await stand_alone(conn, shape)
    turns, contexts = shape.search.turns, shape.search.contexts
    here = select(shape.tasks.c.id).where(key_of(shape).in_(keys))
    moved = (await conn.execute(select(turns.c.seq).where(turns.c.task_id.in_(here), ~has_row(shape)))).scalars().all()
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
    await stand_alone(conn, shape)
    turns, lexemes = shape.search.turns, shape.search.lexemes
    live = select(turns.c.seq, turns.c.task_id, turns.c.marker).join(shape.tasks, is_row(shape)).where(shape.alive())
    found = await conn.execute(live.where(turns.c.seq.in_([each.seq for each in read])))
    replaced = {(row.seq, row.task_id): row.marker for row in found}  # a seq may be another turn's by now
    fresh = [each for each in read if replaced.get((each.seq, each.task_id)) == each.replaces]
    again = await _as_indexed(conn, shape, [each.seq for each in fresh if each.replaces != NO_MARKER], cap)
    # what was read as it is indexed comes with another time alone
    fresh = [each for each in fresh if each.seq not in again or each.marker == each.replaces]
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
    await forget(conn, shape, and_(shape.search.turns.c.seq.in_(seqs), ~has_row(shape)))


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


def key_of(shape: Shape) -> ColumnElement[Any]:
    """By what a row of the task table is told before it is registered."""
    return shape.tasks.c.rowid if shape.sqlite else shape.tasks.c.id


_TIMESTAMP: ColumnElement[str] = literal_column(r"""'"timestamp"\s*:\s*"([^"]*)"'""")


def creation_order(shape: Shape) -> list[ColumnElement[Any]]:
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
    order = creation_order(shape)
    chosen = select(
        tasks.c.id,
        tasks.c.context_id,
        func.row_number().over(order_by=order).label("number"),
        func.row_number().over(partition_by=tasks.c.context_id, order_by=order).label("ordinal"),
    )
    chosen = chosen.where(key_of(shape).in_(keys), shape.alive(), ~exists().where(is_row(shape)))
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


def has_row(shape: Shape) -> ColumnElement[bool]:
    """The registered turn's row is there and not hidden."""
    return exists(select(literal(1)).select_from(shape.tasks).where(is_row(shape), shape.alive()))


@lru_cache(STATEMENTS_KEPT)
def _cells(shape: Shape, owners: frozenset[str] | None) -> Select[Any]:
    turns = shape.search.turns
    wanted = numbers(shape, "wanted")
    # SQLite may hold an owner that is no text, and would rather look at all rows of some owners than at those of turns
    owner = cast(shape.tasks.c.owner if "owner" in shape.columns else null(), String)
    keys = select(
        *key_columns(shape),
        shape.tasks.c.context_id,
        owner.label("owner"),
        *(turns.c[name] for name in ("seq", "marker", "settled", "fingerprint")),
        shape.row_version.label("version"),
        func.row_number().over(order_by=turns.c.seq.desc()).label("place"),
    )
    keys = keys.select_from(turns).join(shape.tasks, is_row(shape))
    keys = keys.where(turns.c.seq.in_(select(wanted.c.value)), shape.alive())
    return with_cells(shape, keys if owners is None else keys.where(owner.in_(sorted(owners))))


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
