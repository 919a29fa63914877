"""Finds the fields that hold every lexeme of a query, newest turn first; it decodes no cell and analyzes no text.

Every hit comes from a join of the index with the live row, which is neither retired nor another owner's, in the same
statement: the index can lack a turn for a moment, and never bring one back.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    ScalarSelect,
    Select,
    and_,
    exists,
    literal,
    literal_column,
    select,
    union_all,
)

from sidecar.index import Scope
from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.search.entries import FIELDS
from sidecar.search.index import is_row, numbers
from sidecar.search.matching import asked, holds
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

    Neither the lexemes nor the scope's owners, unless these are all, are empty. The newest fields that hold the lexemes
    are looked at, and more of them as long as too few may be seen.
    """
    wanted = asked(shape, lexemes, scope.owners)
    found: list[Hit] = []
    fields = rows + _FIELDS_MORE
    while True:
        async with conn.planned_anew():  # the rarest words are one field's, the commonest every field's
            places = await conn.fetch(_places(shape, scope), {**wanted, "after": after, "fields": fields})
        listed: Any = [row.place for row in places]
        reached = listed[-1] if len(listed) == fields else 0
        values = {"places": json.dumps(listed) if shape.sqlite else listed, "after": after, "rows": rows}
        rows_found = await conn.fetch(_hits(shape, scope), {**wanted, **values})
        # a title that counts as an older turn than was reached comes later
        found += sorted((_hit(row) for row in rows_found if row.at >= reached), key=lambda hit: -hit.at)
        if len(found) >= rows or not reached:
            return found[:rows]
        after, fields = reached, min(fields * 4, _FIELDS_MOST)


def _hit(row: Any) -> Hit:
    field = FIELDS[row.place % FIELDS_A_TURN]
    return Hit(row.at, row.seq, field, row.task_id, row.context_id, row.position, row.marker, row.title)


def _is_title(shape: Shape) -> ColumnElement[bool]:
    return shape.search.place.bitwise_and(literal_column(str(FIELDS_A_TURN - 1))) == literal_column(str(TITLE))


@lru_cache(STATEMENTS_KEPT)
def _places(shape: Shape, scope: Scope) -> Select[Any]:
    """The newest fields but titles that hold the words, whoever may see them."""
    place = shape.search.place
    held = (holds(shape, is_narrowed=scope.owners is not None), ~_is_title(shape))
    found = select(place.label("place")).where(*held, place < parameter("after", BigInteger()))
    return found.order_by(place.desc()).limit(parameter("fields", Integer()))


@lru_cache(STATEMENTS_KEPT)
def _hits(shape: Shape, scope: Scope) -> Select[Any]:
    """Those of the fields that may be seen, and the titles that hold the words."""
    place, after = shape.search.place, parameter("after", BigInteger())
    given = numbers(shape, "places")
    held = (holds(shape, is_narrowed=scope.owners is not None), _is_title(shape))
    titled = select(place.label("place")).where(*held).subquery("titled")
    # materialized: whether a turn may be seen is to be asked for these alone
    fields = _turns_at(shape, given.c.value).select_from(given).cte("fields").prefix_with("MATERIALIZED")
    titles = _turns_at(shape, titled.c.place).select_from(titled).cte("titles").prefix_with("MATERIALIZED")
    is_field, is_title = (
        and_(shape.has_prefix(scope.prefix, turn), _is_seen(shape, scope, turn)) for turn in (fields, titles)
    )
    texts = select(fields.c.place.label("at"), fields).where(is_field)
    # a title counts as its conversation's newest turn, and only while no older turn of it has one
    at = _newest(shape, scope, titles) * FIELDS_A_TURN + TITLE
    firsts = select(at.label("at"), titles).where(is_title, ~_has_older_title(shape, scope, titles)).subquery("firsts")
    page = select(firsts).where(firsts.c.at < after).order_by(firsts.c.at.desc())
    page_of_titles = page.limit(parameter("rows", Integer())).subquery("page_of_titles")
    both = union_all(texts, select(page_of_titles)).subquery("both")
    return select(both, title_of(shape, scope, both.c.context_id).label("title"))


def _turns_at(shape: Shape, place: ColumnElement[int]) -> Select[Any]:
    """The registered turns of places."""
    turns = shape.search.turns
    names = ("seq", "task_id", "context_id", "position", "marker", "incognito")
    found = select(place.label("place"), *(turns.c[name] for name in names))
    return found.where(turns.c.seq == place // FIELDS_A_TURN)


def _is_seen(shape: Shape, scope: Scope, turn: FromClause) -> ColumnElement[bool]:
    """The turn's row is there and may be seen, whatever its context's prefix is."""
    row = shape.tasks.alias("row")
    mine = select(literal(1)).where(is_row(shape, turn, row), shape.alive(row), shape.owned_by(scope.owners, row))
    # a limit keeps PostgreSQL from making a join of the look-up
    return and_(~turn.c.incognito, mine.limit(1).scalar_subquery().is_not(None))


def _newest(shape: Shape, scope: Scope, of: FromClause) -> ScalarSelect[int]:
    turn = shape.search.turns.alias("newest")
    found = select(turn.c.seq).where(turn.c.context_id == of.c.context_id, _is_seen(shape, scope, turn))
    return found.order_by(turn.c.position.desc()).limit(1).scalar_subquery()


def _has_older_title(shape: Shape, scope: Scope, of: FromClause) -> ColumnElement[bool]:
    turn = shape.search.turns.alias("older")
    is_older = and_(turn.c.context_id == of.c.context_id, turn.c.position < of.c.position, turn.c.title.is_not(None))
    return exists(select(literal(1)).select_from(turn).where(is_older, _is_seen(shape, scope, turn)))


def title_of(shape: Shape, scope: Scope, context_id: Any) -> ScalarSelect[str]:
    """The title of a conversation: that of its first visible turn that has one."""
    turn = shape.search.turns.alias("titled_turn")
    mine = and_(turn.c.context_id == context_id, turn.c.title.is_not(None))
    found = select(turn.c.title).where(mine, _is_seen(shape, scope, turn))
    return found.order_by(turn.c.position).limit(1).scalar_subquery()
