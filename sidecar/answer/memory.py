"""What chats remember: whose they are, their last exchanges, and the turns that went into each; it asks no model.

An exchange is given to a model only while every turn that went into it may be seen, and is deleted with the first of
them that is retired or cleared.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, String, and_, delete, exists, insert, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sidecar.answer.prompt import Message
from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from tombstones.table import Shape, stand_alone

MOST_EXCHANGES = 6
MOST_CHARACTERS = 12_000
MOST_SOURCES = 256
"""An exchange came from the turns of those before it, too: a chat that has had so many begins to remember anew."""


class Source(NamedTuple):
    """A turn whose text went into an exchange."""

    task_id: str
    context_id: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What a chat remembers, oldest first, and the turns that this came from."""

    messages: tuple[Message, ...] = ()
    sources: frozenset[Source] = frozenset()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question with its answer, of a chat that may be new, asked with a token of this name.

    `sources` are the turns that went into it, none where nobody knows them.
    """

    chat_id: str
    is_first: bool
    token: str
    question: str
    answer: str
    sources: frozenset[Source]


class NotOwnedError(LookupError):
    """The chat is unknown, or another token's."""


async def verify(conn: Reading, shape: Shape, chat_id: str | None, token: str) -> None:
    """Raises NotOwnedError unless the chat is one of this token's; None is a new chat."""
    if chat_id is None:
        return
    if not await conn.fetch(_owned(shape), {"chat_id": _storable(chat_id), "token": token}):
        raise NotOwnedError(chat_id)


async def recall(conn: Reading, shape: Shape, chat_id: str | None, owners: frozenset[str] | None) -> Memory:
    """What a chat remembers of what these owners may see, and is not incognito as far as the index knows; None is a
    new chat.
    """
    if chat_id is None:
        return Memory()
    return _memory(await conn.fetch(_last(shape, owners), {"chat_id": _storable(chat_id)}))


async def keep(conn: AsyncConnection, shape: Shape, exchange: Exchange) -> None:
    """Stores a chat's exchange, unless a turn that went into it was retired meanwhile, or none is known by which to
    delete it; the chat itself in any case. Exchanges that are not given to a model any more are deleted.

    A deletion waits for it, and finds what was stored before.
    """
    chats, exchanges, sources = shape.records.chats, shape.records.exchanges, shape.records.sources
    now = datetime.now(UTC)
    await stand_alone(conn, shape)
    if exchange.is_first:
        await conn.execute(insert(chats).values(id=exchange.chat_id, token=exchange.token, created_at=now))
    if not exchange.sources or not await _stand(conn, shape, exchange.sources):
        return
    said = {"question": _storable(exchange.question), "answer": _storable(exchange.answer)}
    adding = insert(exchanges).values(chat_id=exchange.chat_id, at=now, **said).returning(exchanges.c.id)
    number = (await conn.execute(adding)).scalar_one()
    rows = [{"exchange_id": number, **source._asdict()} for source in sorted(exchange.sources)]
    await conn.execute(insert(sources), rows)
    of_chat = select(exchanges.c.id).where(exchanges.c.chat_id == exchange.chat_id).order_by(exchanges.c.id.desc())
    # SQLite knows no offset without a limit
    forgotten = (await conn.execute(of_chat.offset(MOST_EXCHANGES).limit(MOST_EXCHANGES))).scalars().all()
    await conn.execute(delete(sources).where(sources.c.exchange_id.in_(forgotten)))
    await conn.execute(delete(exchanges).where(exchanges.c.id.in_(forgotten)))


async def _stand(conn: AsyncConnection, shape: Shape, sources: frozenset[Source]) -> bool:
    """Whether all of the turns are still there."""
    tasks = shape.tasks
    named = tasks.c.id.in_(sorted({source.task_id for source in sources}))
    found = await conn.execute(select(tasks.c.id, tasks.c.context_id).where(named, shape.alive()))
    return sources <= {Source(row.id, row.context_id) for row in found}


def _storable(text: str) -> str:
    """The text without NUL, which PostgreSQL cannot hold."""
    return text.replace("\0", "\ufffd")


def _memory(rows: Iterable[Any]) -> Memory:
    """As many of the exchanges as there is room for, the newest first; each has a row for each of its sources."""
    kept: list[Any] = []
    sources: frozenset[Source] = frozenset()
    room = MOST_CHARACTERS
    for _, same in groupby(rows, key=attrgetter("id")):
        joined = list(same)
        room -= len(joined[0].question) + len(joined[0].answer)
        told = sources.union(Source(row.task_id, row.context_id) for row in joined if row.task_id is not None)
        if room < 0 or len(told) > MOST_SOURCES:
            break
        kept.append(joined[0])
        sources = told
    return Memory(tuple(_messages(reversed(kept))), sources)


def _messages(exchanges: Any) -> Iterator[Message]:
    for exchange in exchanges:
        yield Message("user", exchange.question)
        yield Message("assistant", exchange.answer)


@lru_cache(STATEMENTS_KEPT)
def _owned(shape: Shape) -> Select[Any]:
    chats = shape.records.chats
    mine = and_(chats.c.id == parameter("chat_id", String()), chats.c.token == parameter("token", String()))
    return select(literal(1).label("one")).where(mine)


@lru_cache(STATEMENTS_KEPT)
def _last(shape: Shape, owners: frozenset[str] | None) -> Select[Any]:
    """A chat's last exchanges, the newest first, whose turns are all there to be seen, joined with these."""
    exchanges, sources = shape.records.exchanges, shape.records.sources
    of_chat = exchanges.c.chat_id == parameter("chat_id", String())
    columns = (exchanges.c.id, exchanges.c.question, exchanges.c.answer)
    chosen = select(*columns).where(of_chat, ~_has_lost(shape, owners, exchanges.c.id))
    last = chosen.order_by(exchanges.c.id.desc()).limit(MOST_EXCHANGES).subquery("last")
    found = select(last, sources.c.task_id, sources.c.context_id)
    joined = found.select_from(last.outerjoin(sources, sources.c.exchange_id == last.c.id))
    return joined.order_by(last.c.id.desc())


def _has_lost(shape: Shape, owners: frozenset[str] | None, exchange_id: Any) -> ColumnElement[bool]:
    """A turn went into the exchange that may not be seen any more, or became incognito."""
    source, row, turn = (
        shape.records.sources.alias("source"),
        shape.tasks.alias("row"),
        shape.search.turns.alias("turn"),
    )
    is_row = and_(row.c.id == source.c.task_id, row.c.context_id == source.c.context_id)
    is_turn = and_(turn.c.task_id == source.c.task_id, turn.c.context_id == source.c.context_id)
    stands = exists(select(literal(1)).select_from(row).where(is_row, shape.alive(row), shape.owned_by(owners, row)))
    is_incognito = exists(select(literal(1)).select_from(turn).where(is_turn, turn.c.incognito))
    has_lost = and_(source.c.exchange_id == exchange_id, or_(~stands, is_incognito))
    return exists(select(literal(1)).select_from(source).where(has_lost))
