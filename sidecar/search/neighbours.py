"""Which turns stand beside others in their conversations; it decodes no cell.

A turn is named by its place in the index, so that an id that is no UTF-8 need not be spelled.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Select, literal, literal_column, select

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
            for row in await conn.fetch(_next(shape, owners, side.newer), {"seq": side.seq}):
                if row.seq is not None:
                    found[side] = row.seq
    return found


@lru_cache(STATEMENTS_KEPT)
def _next(shape: Shape, owners: frozenset[str] | None, newer: bool) -> Select[Any]:
    turns, here = shape.search.turns, shape.search.turns.alias("here")
    beyond = turns.c.position > here.c.position if newer else turns.c.position < here.c.position
    order = turns.c.position if newer else turns.c.position.desc()
    mine = select(literal(1)).where(is_row(shape), shape.alive(), shape.owned_by(owners))
    # each asked for one value: PostgreSQL would join and sort all that was said on that side
    is_seen = mine.limit(literal_column("1")).scalar_subquery().is_not(None)
    found = select(turns.c.seq).where(turns.c.context_id == here.c.context_id, beyond, ~turns.c.incognito, is_seen)
    nearest = found.order_by(order).limit(literal_column("1")).scalar_subquery()
    return select(nearest.label("seq")).where(here.c.seq == parameter("seq", BigInteger()))
