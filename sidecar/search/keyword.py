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
    exists,
    literal,
    select,
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
    """The next hits after a place, newest turn first; a title counts as its conversation's newest turn."""
    wanted: Any = list(lexemes)
    if shape.sqlite:
        wanted = " AND ".join(f'"{spelled(lexeme)}"' for lexeme in wanted)
    found = await conn.fetch(_hits(shape, scope), {"wanted": wanted, "after": after, "rows": rows})
    hits = (Hit(row.at, row.seq, FIELDS[row.place % FIELDS_A_TURN], *row[3:]) for row in found)
    return sorted(hits, key=lambda hit: -hit.at)


@lru_cache(STATEMENTS_KEPT)
def _hits(shape: Shape, scope: Scope) -> Select[Any]:
    place, after, rows = shape.search.place, parameter("after", BigInteger()), parameter("rows", Integer())
    is_title = place % FIELDS_A_TURN == TITLE
    texts = _matching(shape, scope, place).where(~is_title, place < after).order_by(place.desc()).limit(rows)
    # a title counts as its conversation's newest turn, and only while no older turn of it has one
    newest = _newest(shape, scope) * FIELDS_A_TURN + TITLE
    titles = _matching(shape, scope, newest).where(is_title, ~_has_older_title(shape, scope)).subquery("titles")
    both = union_all(select(texts.subquery("texts")), select(titles).where(titles.c.at < after)).subquery("both")
    page = select(both).order_by(both.c.at.desc()).limit(rows).subquery("page")
    return select(page, title_of(shape, scope, page.c.context_id).label("title"))


def _matching(shape: Shape, scope: Scope, at: ColumnElement[int]) -> Select[Any]:
    """The fields that hold every lexeme."""
    search, place = shape.search, shape.search.place
    if shape.sqlite:
        holds = search.lexemes.c[search.lexemes.name].op("MATCH")(parameter("wanted", Text()))
    else:
        holds = search.lexemes.c.lexemes.op("@>")(parameter("wanted", ARRAY(Text)))
    turns = search.turns
    columns = (turns.c.seq, place.label("place"), turns.c.task_id, turns.c.context_id, turns.c.position, turns.c.marker)
    found = select(at.label("at"), *columns).select_from(search.lexemes)
    found = found.join(turns, turns.c.seq == place // FIELDS_A_TURN).join(shape.tasks, is_row(shape))
    return found.where(holds, ~turns.c.incognito, scope.visible(shape))


def _turn(shape: Shape, scope: Scope, context_id: Any, name: str) -> tuple[FromClause, Any, ColumnElement[bool]]:
    """Another turn of the conversation: its registration, where it stands, and that it may be seen."""
    turn, task = shape.search.turns.alias(name), shape.tasks.alias(f"{name}_row")
    mine = and_(turn.c.context_id == context_id, ~turn.c.incognito)
    seen = and_(shape.alive(task), shape.owned_by(scope.owners, task))
    return turn, turn.join(task, is_row(shape, turn, task)), and_(mine, seen)


def _newest(shape: Shape, scope: Scope) -> ScalarSelect[int]:
    turn, rows, is_seen = _turn(shape, scope, shape.search.turns.c.context_id, "newest")
    return (
        select(turn.c.seq).select_from(rows).where(is_seen).order_by(turn.c.position.desc()).limit(1).scalar_subquery()
    )


def _has_older_title(shape: Shape, scope: Scope) -> ColumnElement[bool]:
    turns = shape.search.turns
    turn, rows, is_seen = _turn(shape, scope, turns.c.context_id, "older")
    older = and_(turn.c.position < turns.c.position, turn.c.title.is_not(None))
    return exists(select(literal(1)).select_from(rows).where(is_seen, older))


def title_of(shape: Shape, scope: Scope, context_id: Any) -> ScalarSelect[str]:
    """The title of a conversation: that of its first visible turn that has one."""
    turn, rows, is_seen = _turn(shape, scope, context_id, "titled")
    found = select(turn.c.title).select_from(rows).where(is_seen, turn.c.title.is_not(None))
    return found.order_by(turn.c.position).limit(1).scalar_subquery()
