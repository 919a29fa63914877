"""Finds the fields that hold every lexeme of a query, newest turn first; it decodes no cell and analyzes no text.

Every hit comes from a join of the index with the live row, which is neither retired nor another owner's, in the same
statement: the index can lack a turn for a moment, and never bring one back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    ScalarSelect,
    Select,
    Text,
    and_,
    case,
    exists,
    literal,
    literal_column,
    select,
    true,
    union_all,
)

from sidecar.index import Scope
from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.search.entries import FIELDS
from sidecar.search.index import is_row, spelled
from tombstones.search_tables import FIELDS_A_TURN
from tombstones.table import Shape

TITLE = FIELDS.index("title")
BEFORE_ALL = 2**62
"""A place that every hit comes after."""
_FIELDS_MORE, _FIELDS_MOST = 20, 4096


@dataclass(frozen=True, slots=True)
class Hit:
    """A field that holds the lexemes; `at` is its place in the order, `marker` the version that was indexed."""

    at: int
    seq: int
    field: str
    task_id: str
    context_id: str
    position: int
    marker: str
    title: str | None


async def find(
    conn: Reading, shape: Shape, lexemes: Iterable[str], scope: Scope, after: int, rows: int
) -> Sequence[Hit]:
    """The next hits after a place, newest turn first; a title counts as its conversation's newest turn.

    The newest fields that hold the lexemes are looked at, and more of them as long as too few may be seen.
    """
    wanted: Any = list(lexemes)
    if shape.sqlite:
        wanted = " AND ".join(f'"{spelled(lexeme)}"' for lexeme in wanted)
    found: list[Hit] = []
    fields = rows + _FIELDS_MORE
    while True:
        values = {"wanted": wanted, "after": after, "fields": fields, "rows": rows}
        # the rarest words are one field's, the commonest every field's
        async with conn.planned_anew():
            looked_at = await conn.fetch(_hits(shape, scope), values)
        places = [row.place for row in looked_at if row.place % FIELDS_A_TURN != TITLE]
        reached = min(places) if len(places) == fields else 0
        # a title that counts as an older turn than was reached comes later
        hits = [_hit(row) for row in looked_at if row.is_seen and row.at >= reached]
        found += sorted(hits, key=lambda hit: -hit.at)
        if len(found) >= rows or not reached:
            return found[:rows]
        after, fields = reached, min(fields * 4, _FIELDS_MOST)


def _hit(row: Any) -> Hit:
    field = FIELDS[row.place % FIELDS_A_TURN]
    return Hit(row.at, row.seq, field, row.task_id, row.context_id, row.position, row.marker, row.title)


@lru_cache(STATEMENTS_KEPT)
def _hits(shape: Shape, scope: Scope) -> Select[Any]:
    """Which fields are looked at is settled first: no planner can know how many of them may be seen."""
    turns, place, after = shape.search.turns, shape.search.place, parameter("after", BigInteger())
    is_title = place.bitwise_and(literal_column(str(FIELDS_A_TURN - 1))) == literal_column(str(TITLE))
    columns = (turns.c.seq, turns.c.task_id, turns.c.context_id, turns.c.position, turns.c.marker)
    is_seen = and_(~turns.c.incognito, shape.has_prefix(scope.prefix, turns), _is_seen(shape, scope, turns))

    newest = select(place.label("place")).where(_holds(shape), ~is_title, place < after).order_by(place.desc())
    fields = newest.limit(parameter("fields", Integer())).cte("fields").prefix_with("MATERIALIZED")
    texts = select(fields.c.place.label("at"), fields.c.place, *columns, is_seen.label("is_seen"))
    texts = texts.join_from(fields, turns, turns.c.seq == fields.c.place // FIELDS_A_TURN)

    titled = select(place.label("place")).where(_holds(shape), is_title).cte("titled").prefix_with("MATERIALIZED")
    # a title counts as its conversation's newest turn, and only while no older turn of it has one
    at = _newest(shape, scope) * FIELDS_A_TURN + TITLE
    titles = select(at.label("at"), titled.c.place, *columns, true().label("is_seen"))
    titles = titles.join_from(titled, turns, turns.c.seq == titled.c.place // FIELDS_A_TURN)
    firsts = titles.where(is_seen, ~_has_older_title(shape, scope)).subquery("firsts")
    page = select(firsts).where(firsts.c.at < after).order_by(firsts.c.at.desc())
    page_of_titles = page.limit(parameter("rows", Integer())).subquery("page_of_titles")
    both = union_all(texts, select(page_of_titles)).subquery("both")
    return select(both, case((both.c.is_seen, title_of(shape, scope, both.c.context_id))).label("title"))


def _holds(shape: Shape) -> ColumnElement[bool]:
    """The field holds every lexeme."""
    lexemes = shape.search.lexemes
    if shape.sqlite:
        return lexemes.c[lexemes.name].op("MATCH")(parameter("wanted", Text()))
    return lexemes.c.lexemes.op("@>")(parameter("wanted", ARRAY(Text)))


def _is_seen(shape: Shape, scope: Scope, turn: FromClause) -> ColumnElement[bool]:
    """The turn's row is there and may be seen; a limit keeps PostgreSQL from making a join of the look-up."""
    row = shape.tasks.alias("row")
    mine = select(literal(1)).where(is_row(shape, turn, row), shape.alive(row), shape.owned_by(scope.owners, row))
    return mine.limit(1).scalar_subquery().is_not(None)


def _turn(shape: Shape, scope: Scope, context_id: Any, name: str) -> tuple[FromClause, ColumnElement[bool]]:
    """Another turn of the conversation, and that it may be seen."""
    turn = shape.search.turns.alias(name)
    return turn, and_(turn.c.context_id == context_id, ~turn.c.incognito, _is_seen(shape, scope, turn))


def _newest(shape: Shape, scope: Scope) -> ScalarSelect[int]:
    turn, is_seen = _turn(shape, scope, shape.search.turns.c.context_id, "newest")
    return select(turn.c.seq).where(is_seen).order_by(turn.c.position.desc()).limit(1).scalar_subquery()


def _has_older_title(shape: Shape, scope: Scope) -> ColumnElement[bool]:
    turns = shape.search.turns
    turn, is_seen = _turn(shape, scope, turns.c.context_id, "older")
    is_older = and_(turn.c.position < turns.c.position, turn.c.title.is_not(None))
    return exists(select(literal(1)).select_from(turn).where(is_older, is_seen))


def title_of(shape: Shape, scope: Scope, context_id: Any) -> ScalarSelect[str]:
    """The title of a conversation: that of its first visible turn that has one."""
    turn, is_seen = _turn(shape, scope, context_id, "titled_turn")
    found = select(turn.c.title).where(turn.c.title.is_not(None), is_seen)
    return found.order_by(turn.c.position).limit(1).scalar_subquery()
