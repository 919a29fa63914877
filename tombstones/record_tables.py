"""The tables of what was asked and answered, which stand beside the task table; this file alone names them.

Retirement removes the exchanges that a session's turns went into, so they are known here and not in the wings that
fill them. What the other two hold has no word of any conversation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Identity, Index, Integer, MetaData, Table, Text

from tombstones.ddl import create


@dataclass(frozen=True)
class RecordTables:
    """The audit of agent searches, the usage of searches and models, and what chats remember.

    `events` is an append-only audit (seed 002): JSON texts of filters, of what was selected and why, and of how much
    was left out; `fresh` is how many messages were shown to the run for the first time. `usage` has one row for each
    answered retrieval and chat (seed 004). A chat is a row of `chats`, owned by a token's name; each of its
    `exchanges` has in `sources` the turns whose text went into it.
    """

    events: Table
    usage: Table
    chats: Table
    exchanges: Table
    sources: Table

    def __iter__(self) -> Iterator[Table]:
        return iter((self.events, self.usage, self.chats, self.exchanges, self.sources))

    def ddl(self, dialect: str) -> list[str]:
        """The statements that create them one by one."""
        created: list[Table | Index] = []
        for table in self:
            created += [table, *table.indexes]
        return [create(each, dialect) for each in created]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(table.name for table in self)


@cache
def record_tables(name: str, schema: str | None) -> RecordTables:
    """The record tables of a task table; times are UTC."""
    metadata, moment = MetaData(schema=schema), DateTime(timezone=True)

    def number() -> "Column[int]":
        return Column("id", BigInteger().with_variant(Integer, "sqlite"), Identity(always=True), primary_key=True)

    events = Table(
        f"{name}_conversation_search_events",
        metadata,
        number(),
        Column("at", moment, nullable=False),
        Column("token", Text, nullable=False),
        Column("run_id", Text, nullable=False),
        Column("digest", Text, nullable=False),
        Column("filters", Text, nullable=False),
        Column("selected", Text, nullable=False),
        Column("exclusions", Text, nullable=False),
        Column("fresh", Integer, nullable=False),
        Column("exhausted", Boolean, nullable=False),
        Column("request_id", Text, nullable=False),
    )
    Index(f"{name}_search_runs", events.c.token, events.c.run_id, events.c.fresh)
    usage = Table(
        f"{name}_usage",
        metadata,
        number(),
        Column("at", moment, nullable=False),
        Column("token", Text, nullable=False),
        Column("route", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("model", Text),
        Column("input_tokens", BigInteger, nullable=False),
        Column("output_tokens", BigInteger, nullable=False),
        Column("request_id", Text, nullable=False),
    )
    chats = Table(
        f"{name}_answer_sessions",
        metadata,
        Column("id", Text, primary_key=True),
        Column("token", Text, nullable=False),
        Column("created_at", moment, nullable=False),
    )
    exchanges = Table(
        f"{name}_answer_exchanges",
        metadata,
        number(),
        Column("chat_id", Text, nullable=False),
        Column("at", moment, nullable=False),
        Column("question", Text, nullable=False),
        Column("answer", Text, nullable=False),
    )
    Index(f"{name}_answer_chats", exchanges.c.chat_id, exchanges.c.id)
    sources = Table(
        f"{name}_answer_sources",
        metadata,
        Column("exchange_id", BigInteger, primary_key=True, autoincrement=False),
        Column("task_id", Text, primary_key=True),
        Column("context_id", Text, nullable=False),
    )
    Index(f"{name}_answer_contexts", sources.c.context_id)
    return RecordTables(events, usage, chats, exchanges, sources)
