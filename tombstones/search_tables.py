"""The tables of the search index, which stand beside the task table; this file alone names and creates them.

Retirement removes their rows in the transaction that removes the turn's, so they are known here and not in the wing
that fills them.
"""

from dataclasses import dataclass
from functools import cache

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Index,
    Integer,
    MetaData,
    Table,
    TableClause,
    Text,
    column,
    table,
    text,
)

from tombstones.ddl import create

FIELDS_A_TURN = 4
"""A field's lexemes stand at the place `seq * FIELDS_A_TURN + field`, so that places alone give the order of hits.

The title's is field 0.
"""


@dataclass(frozen=True)
class SearchTables:
    """Per turn its place in the order and what of it is indexed; per field its lexemes; per context its last position.

    `turns.marker` is the version of the row that was read last, `""` before the first time; `turns.settled` is what
    must not have changed for a finished turn on SQLite to be left unread, None while it is unfinished.
    """

    turns: Table
    contexts: Table
    lexemes: TableClause
    names: tuple[str, str, str]
    ddl: tuple[str, ...]

    @property
    def place(self) -> ColumnElement[int]:
        """The place of a field's lexemes; an FTS5 table has no column for it but the rowid."""
        place: ColumnElement[int] = self.lexemes.c["rowid" if "rowid" in self.lexemes.c else "place"]
        return place


@cache
def search_tables(name: str, schema: str | None, dialect: str) -> SearchTables:
    """The search tables of a task table, with the statements that create them one by one."""
    names = (f"{name}_search_turns", f"{name}_search_contexts", f"{name}_search_lexemes")
    metadata, number = MetaData(schema=schema), BigInteger().with_variant(Integer, "sqlite")
    turns = Table(
        names[0],
        metadata,
        Column("seq", number, primary_key=True, autoincrement=False),
        Column("task_id", Text, nullable=False, unique=True),
        Column("context_id", Text, nullable=False),
        Column("position", BigInteger, nullable=False),
        Column("first_seen", DateTime(timezone=True)),
        Column("marker", Text, nullable=False),
        Column("settled", Text),
        Column("fingerprint", Text, nullable=False),
        Column("incognito", Boolean, nullable=False),
        Column("title", Text),
    )
    by_position = Index(f"{name}_search_positions", turns.c.context_id, turns.c.position)
    contexts = Table(
        names[1],
        metadata,
        Column("context_id", Text, primary_key=True),
        Column("positions", BigInteger, nullable=False),
    )
    if dialect == "sqlite":
        lexemes: TableClause = table(
            # the hidden column of the table's name is what MATCH takes, and with `rank` what commands are written to
            names[2],
            column("rowid", Integer),
            column("lexemes", Text),
            column(names[2], Text),
            column("rank", Integer),
        )
        unfinished = Index(f"{name}_search_unfinished", turns.c.task_id, sqlite_where=turns.c.settled.is_(None))
        ddl = [create(unfinished, dialect), _fts5(names[2])]
    else:
        stored = Table(
            names[2],
            metadata,
            Column("place", BigInteger, primary_key=True, autoincrement=False),
            Column("lexemes", ARRAY(Text), nullable=False),
        )
        by_lexeme = Index(f"{name}_search_words", stored.c.lexemes, postgresql_using="gin")
        # looking for titles among all fields would read each field that holds the words
        of_titles = text(f"place & {FIELDS_A_TURN - 1} = 0")
        by_title = Index(f"{name}_search_titles", stored.c.lexemes, postgresql_using="gin", postgresql_where=of_titles)
        lexemes, ddl = stored, [create(each, dialect) for each in (stored, by_lexeme, by_title)]
    ddl = [create(each, dialect) for each in (turns, by_position, contexts)] + ddl
    return SearchTables(turns, contexts, lexemes, names, tuple(ddl))


def _fts5(name: str) -> str:
    """Lexemes alone: no positions, no sizes. Each is one token of the tokenizer `ascii` (see the wing's `tokens`)."""
    options = "detail=none, columnsize=0, tokenize=ascii"
    return f'CREATE VIRTUAL TABLE IF NOT EXISTS "{name}" USING fts5(lexemes, {options})'
