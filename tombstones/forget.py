"""Takes turns out of the search index and out of what chats remember, in the transaction that deletes them.

It may not touch the task table.
"""

from sqlalchemy import ColumnElement, Table, delete, func, insert, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from tombstones.search_tables import FIELDS_A_TURN
from tombstones.table import Shape

# Merging so many pages holds SQLite's write lock for 5 to 30 ms.
_PAGES_A_STEP = 64


async def forget(conn: AsyncConnection, shape: Shape, which: ColumnElement[bool]) -> None:
    """Deletes the turns of `shape.search.turns` that the clause names, with their lexemes, where there is an index.

    Whoever fills the index holds the lock alone and looks for tombstones under it: what it stored before is seen and
    deleted here, and what was deleted here it will not store again.
    """
    if not shape.sqlite:
        await conn.execute(select(func.pg_advisory_xact_lock_shared(shape.lock_key + 2)))
    if not await _has_search(conn, shape):
        return
    turns = shape.search.turns
    places = (select(turns.c.seq * FIELDS_A_TURN + field).where(which) for field in range(FIELDS_A_TURN))
    await conn.execute(delete(shape.search.lexemes).where(shape.search.place.in_(union_all(*places))))
    await conn.execute(delete(turns).where(which))


async def forget_positions(conn: AsyncConnection, shape: Shape, context_id: str) -> None:
    """Deletes what would give a context's next turn its position: a retired one has none."""
    if await _has_search(conn, shape):
        contexts = shape.search.contexts
        await conn.execute(delete(contexts).where(contexts.c.context_id == context_id))


async def forget_exchanges(conn: AsyncConnection, shape: Shape, context_id: str) -> None:
    """Deletes what chats remember that came from a context's turns; to be called after `forget`, which holds the lock.

    Whoever stores an exchange holds that lock alone and looks for its turns under it, as whoever fills the index.
    """
    exchanges, sources = shape.records.exchanges, shape.records.sources
    if not await _stands(conn, shape, sources, shape.has_records):
        return
    of_context = select(sources.c.exchange_id).where(sources.c.context_id == context_id)
    await conn.execute(delete(exchanges).where(exchanges.c.id.in_(of_context)))
    await conn.execute(delete(sources).where(sources.c.exchange_id.in_(of_context)))


async def compact(conn: AsyncConnection, shape: Shape, *, begins: bool) -> bool:
    """Takes a step at rewriting SQLite's index, after which no word of a deleted turn stands in it; answers whether
    that was the last one.

    FTS5 notes a deletion beside the words, and drops both when it merges them. Whoever `begins` has all merged.
    """
    if not shape.has_search or not shape.sqlite:
        return True
    lexemes, changes = shape.search.lexemes, select(func.total_changes())
    before = (await conn.execute(changes)).scalar_one()
    pages = -_PAGES_A_STEP if begins else _PAGES_A_STEP
    await conn.execute(insert(lexemes).values({lexemes.name: "merge", "rank": pages}))
    # the command itself counts as one
    return bool((await conn.execute(changes)).scalar_one() - before < 2)


async def _has_search(conn: AsyncConnection, shape: Shape) -> bool:
    return await _stands(conn, shape, shape.search.turns, shape.has_search)


async def _stands(conn: AsyncConnection, shape: Shape, table: Table, stood: bool) -> bool:
    """Whether there is such a table now: on PostgreSQL it may have come since the schema was looked at."""
    if shape.sqlite or stood:
        return stood
    # read from the table itself: to_regclass may answer from what this connection has cached
    found = await conn.execute(_BEGUN, {"schema": shape.schema, "name": table.name})
    return found.first() is not None


_BEGUN = text("""
    SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = :schema AND c.relname = :name
""")
