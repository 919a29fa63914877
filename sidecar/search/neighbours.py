"""Which turns stand beside others in their conversations; it decodes no cell.

A turn is named by its place in the index, so that an id that is no UTF-8 need not be spelled.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Select, literal_column, select

from sidecar.index import Scope
from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.search.index import is_row
from tombstones.table import Shape


class Side(NamedTuple):
    """One side of a turn: what was said after it, or before."""

    seq: int
    newer: bool


async def beside(conn: Reading, shape: Shape, sides: Iterable[Side], owners: frozenset[str] | None) -> dict[Side, int]:
    """The next visible turn on each side, which is not known to be incognito; none at either end."""
    found: dict[Side, int] = {}
    async with conn.snapshot():
        for side in sides:
            for row in await conn.fetch(_next(shape, Scope("", owners), side.newer), {"seq": side.seq}):
                found[side] = row.seq
    return found


@lru_cache(STATEMENTS_KEPT)
def _next(shape: Shape, scope: Scope, newer: bool) -> Select[Any]:
    turns, here = shape.search.turns, shape.search.turns.alias("here")
    beyond = turns.c.position > here.c.position if newer else turns.c.position < here.c.position
    found = select(turns.c.seq).select_from(here).join(turns, turns.c.context_id == here.c.context_id)
    found = found.join(shape.tasks, is_row(shape)).where(here.c.seq == parameter("seq", BigInteger()))
    found = found.where(beyond, ~turns.c.incognito, scope.visible(shape))
    order = turns.c.position if newer else turns.c.position.desc()
    return found.order_by(order).limit(literal_column("1"))
