"""Looks up for a ranking which places of the index hold a term, and which turns may be seen; it ranks nothing.

Each statement does little: which plan is good hangs on the term, and whether a turn may be seen is asked for once.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    DateTime,
    FromClause,
    Integer,
    Select,
    String,
    Text,
    any_,
    false,
    func,
    literal,
    literal_column,
    select,
    true,
)

from sidecar.index import Scope
from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.search.entries import FIELDS
from sidecar.search.index import is_row, numbers
from sidecar.search.matching import asked, holds
from tombstones.search_tables import FIELDS_A_TURN
from tombstones.table import Shape

Times = tuple[datetime, datetime]
"""The first and the last `last_updated` that is wanted, naive UTC, among those that a row may have."""
AFTER_ALL = 2**62
"""A place that comes after every other."""


async def tune(conn: Reading, shape: Shape) -> None:
    """Has PostgreSQL plan for an index that is in memory, until the transaction ends.

    It takes a look into an array for cheaper than it is, beside what a page on a turning disk would cost.
    """
    if not shape.sqlite:
        await conn.fetch(_TUNED)


_TUNED = select(
    func.set_config("random_page_cost", "1.1", true()).label("pages"),
    # compiling takes longer than any of the statements
    func.set_config("jit", "off", true()).label("jit"),
)


async def newest(
    conn: Reading, shape: Shape, scope: Scope, fields: frozenset[str], term: str, within: tuple[int, int], rows: int
) -> list[int]:
    """The newest places of some fields that hold a term and were indexed as the scope's owners', whoever has them now.

    within: the first place, and that after the last.
    """
    values = {"low": within[0], "below": within[1], "rows": rows, **asked(shape, [term], scope.owners)}
    return [row.place for row in await conn.fetch(_newest(shape, fields, scope.owners is not None), values)]


async def holding(conn: Reading, shape: Shape, places: Sequence[int], terms: Sequence[str]) -> dict[str, list[int]]:
    """Which of the places hold a term, by terms."""
    found: dict[str, list[int]] = {term: [] for term in terms}
    if not places or not terms:
        return found
    if shape.sqlite:
        given = {"places": json.dumps(places), "first": min(places), "last": max(places)}
        for term in terms:
            rows = await conn.fetch(_holding(shape), {**given, **asked(shape, [term], None)})
            found[term] = [row.place for row in rows]
    else:
        for row in await conn.fetch(_holding(shape), {"places": places, "terms": terms}):
            found[row.term].append(row.place)
    return found


async def turns_at(
    conn: Reading, shape: Shape, scope: Scope, times: Times | None, seqs: Iterable[int], *, with_status: bool
) -> Sequence[Any]:
    """Those of the registered turns that may be seen and have such a time.

    A row has seq, task_id, context_id, position and marker, whether a person opened the turn, and its status on demand.
    """
    given = list(seqs)
    values = {"seqs": json.dumps(given) if shape.sqlite else given, "most": len(given)}
    statement = _turns(shape, scope, times is not None, (), with_status)
    return await conn.fetch(statement, {**values, **_spelled(shape, times)})


async def turns_of(
    conn: Reading,
    shape: Shape,
    scope: Scope,
    times: Times | None,
    names: dict[str, str],
    most: int,
    *,
    with_status: bool = False,
) -> Sequence[Any]:
    """The newest of those by the names that they have: of a context_id, of a task_id or of both."""
    statement = _turns(shape, scope, times is not None, tuple(sorted(names)), with_status)
    return await conn.fetch(statement, {**names, "most": most, **_spelled(shape, times)})


async def reach(conn: Reading, shape: Shape, scope: Scope, times: Times, turns: int) -> tuple[int, int]:
    """From which place on, and below which, all turns of these times stand; of more than so many turns the latest tell.

    Both are 0 when there is no such turn.
    """
    statement = _reach(shape, scope)
    ((first, last, found),) = await conn.fetch(statement, {**_spelled(shape, times), "turns": turns})
    if last is None:
        return 0, 0
    return (first if found < turns else 0) * FIELDS_A_TURN, (last + 1) * FIELDS_A_TURN


def _spelled(shape: Shape, times: Times | None) -> dict[str, Any]:
    named = dict(zip(("since", "until"), times or (), strict=False))
    return {name: time.isoformat(" ", "microseconds") if shape.sqlite else time for name, time in named.items()}


@lru_cache(STATEMENTS_KEPT)
def _newest(shape: Shape, fields: frozenset[str], is_narrowed: bool) -> Select[Any]:
    place = shape.search.place
    # which fields not: PostgreSQL takes an equation for rarely true
    number = place.bitwise_and(literal_column(str(FIELDS_A_TURN - 1)))
    others = [number != literal_column(str(each)) for each, name in enumerate(FIELDS) if name not in fields]
    within = (place >= parameter("low", BigInteger()), place < parameter("below", BigInteger()))
    found = select(place.label("place")).where(holds(shape, is_narrowed=is_narrowed), *others, *within)
    return found.order_by(place.desc()).limit(parameter("rows", Integer()))


@lru_cache(STATEMENTS_KEPT)
def _holding(shape: Shape) -> Select[Any]:
    """Those of the places that hold the one term on SQLite; each with all its terms on PostgreSQL."""
    lexemes, place, given = shape.search.lexemes, shape.search.place, numbers(shape, "places")
    if shape.sqlite:
        between = place.between(parameter("first", BigInteger()), parameter("last", BigInteger()))
        # FTS5 would begin anew for each place that it is asked for itself
        is_given = (place + literal_column("0")).in_(select(given.c.value))
        return select(place.label("place")).where(holds(shape, is_narrowed=False), between, is_given)
    # PostgreSQL makes no join of a look-up that gives several rows
    every = select(func.unnest(lexemes.c.lexemes).label("term")).where(place == given.c.value).lateral("every")
    is_wanted = every.c.term == any_(parameter("terms", ARRAY(Text)))
    return select(given.c.value.label("place"), every.c.term).select_from(given.join(every, true())).where(is_wanted)


@lru_cache(STATEMENTS_KEPT)
def _turns(shape: Shape, scope: Scope, is_timed: bool, names: tuple[str, ...], with_status: bool) -> Select[Any]:
    turns = shape.search.turns
    columns = (turns.c[name] for name in ("seq", "task_id", "context_id", "position", "marker", "incognito"))
    met = select(*columns, turns.c.title.is_not(None).label("is_opened"))
    if names:
        met = met.where(*(turns.c[name] == parameter(name, String()) for name in names))
    else:
        given = numbers(shape, "seqs")
        met = met.select_from(given.join(turns, turns.c.seq == given.c.value))
    # materialized: whether a turn may be seen is to be asked for these alone
    of = met.cte("met").prefix_with("MATERIALIZED")
    row = shape.tasks.alias("row")
    mine = [is_row(shape, of, row), shape.alive(row), shape.owned_by(scope.owners, row)]
    if is_timed:
        mine.append(_is_between(shape, row))
    # a limit keeps PostgreSQL from making a join of the look-up
    has_row = select(literal(1)).where(*mine).limit(1).scalar_subquery().is_not(None)
    status = [select(shape.stored("status", row)).where(*mine).limit(1).scalar_subquery().label("status")]
    found = select(of, *(status if with_status else ())).where(
        shape.has_prefix(scope.prefix, of), ~of.c.incognito, has_row
    )
    return found.order_by(of.c.seq.desc()).limit(parameter("most", Integer()))


def _is_between(shape: Shape, rows: FromClause) -> ColumnElement[bool]:
    """No row without a time; SQLite compares by kind first, and what is no text is no time."""
    if "last_updated" not in shape.columns:
        return false()
    kind = String() if shape.sqlite else DateTime()
    time: ColumnElement[Any] = rows.c.last_updated
    return time.between(parameter("since", kind), parameter("until", kind))


@lru_cache(STATEMENTS_KEPT)
def _reach(shape: Shape, scope: Scope) -> Select[Any, Any, int]:
    tasks, turns = shape.tasks, shape.search.turns
    wanted = select(tasks.c.id, tasks.c.context_id).where(scope.visible(shape), _is_between(shape, tasks))
    if "last_updated" in shape.columns:
        wanted = wanted.order_by(tasks.c.last_updated.desc())
    latest = wanted.limit(parameter("turns", Integer())).subquery("latest")
    found = select(func.min(turns.c.seq), func.max(turns.c.seq), func.count())
    return found.select_from(latest.outerjoin(turns, is_row(shape, tasks=latest)))
