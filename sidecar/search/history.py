"""Which turns a history window shows, by their positions; it decodes no cell.

Positions are given once, when the index first sees a turn, so that a window's cursors stay right while turns come and
go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, Integer, Select, String, cast, literal, literal_column, null, select

from sidecar.index import Scope
from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.search.index import is_row
from sidecar.search.keyword import title_of
from sidecar.search.queries import HistoryQuery
from tombstones.table import Shape

_AFTER_ALL = 2**62


class TargetMissingError(LookupError):
    """No visible turn of the conversation has this id."""


@dataclass(frozen=True, slots=True)
class Window:
    """The turns in order, as rows with seq, position, first_seen and kind, and whether any lie beside them."""

    turns: Sequence[Any]
    has_older: bool
    has_newer: bool
    title: str | None


async def window(conn: Reading, shape: Shape, query: HistoryQuery, owners: frozenset[str] | None) -> Window | None:
    """The window that the query names; None when the conversation has no visible turn. Raises TargetMissingError."""
    scope, mine = Scope("", owners), {"context_id": query.conversation}

    async def side(newer: bool, of: int, rows: int) -> list[Any]:
        found = await conn.fetch(_side(shape, scope, newer), {**mine, "position": of, "rows": rows})
        return sorted(found, key=lambda row: row.position)

    async with conn.snapshot():
        (of_conversation,) = await conn.fetch(_title(shape, scope), mine)
        title, limit = of_conversation.title, query.limit
        if query.around is not None:
            target = list(await conn.fetch(_target(shape, scope), {**mine, "task_id": query.around}))
            if not target:
                raise TargetMissingError(query.around)
            older = await side(False, target[0].position, limit)
            newer = await side(True, target[0].position, limit)
            behind = min(len(newer), max(limit // 2, limit - 1 - len(older)))
            before = min(len(older), limit - 1 - behind)
            turns = older[len(older) - before :] + target + newer[:behind]
            return Window(turns, before < len(older), behind < len(newer), title)
        if query.after_position is not None:
            newer = await side(True, query.after_position, limit + 1)
            older = await side(False, query.after_position + 1, 1)
            found = Window(newer[:limit], bool(older), len(newer) > limit, title)
        else:
            older = await side(False, query.before_position or _AFTER_ALL, limit + 1)
            newer = await side(True, query.before_position - 1, 1) if query.before_position is not None else []
            found = Window(older[-limit:], len(older) > limit, bool(newer), title)
    return found if found.turns or found.has_older or found.has_newer else None


def _visible(shape: Shape, scope: Scope) -> Select[Any]:
    turns = shape.search.turns
    # SQLite may hold a kind that is no text
    kind = cast(shape.tasks.c.kind if "kind" in shape.columns else null(), String)
    # each asked for one value: PostgreSQL would join and sort all of a conversation to find a few turns of it
    of_row = [
        select(each).where(is_row(shape), scope.visible(shape)).limit(literal_column("1")).scalar_subquery()
        for each in (literal(1), kind)
    ]
    found = select(turns.c.seq, turns.c.position, turns.c.first_seen, of_row[1].label("kind"))
    mine = turns.c.context_id == parameter("context_id", String())
    return found.where(mine, ~turns.c.incognito, of_row[0].is_not(None))


@lru_cache(STATEMENTS_KEPT)
def _side(shape: Shape, scope: Scope, newer: bool) -> Select[Any]:
    position, bound = shape.search.turns.c.position, parameter("position", BigInteger())
    found = _visible(shape, scope).where(position > bound if newer else position < bound)
    return found.order_by(position if newer else position.desc()).limit(parameter("rows", Integer()))


@lru_cache(STATEMENTS_KEPT)
def _target(shape: Shape, scope: Scope) -> Select[Any]:
    return _visible(shape, scope).where(shape.search.turns.c.task_id == parameter("task_id", String()))


@lru_cache(STATEMENTS_KEPT)
def _title(shape: Shape, scope: Scope) -> Select[Any]:
    return select(title_of(shape, scope, parameter("context_id", String())).label("title"))
