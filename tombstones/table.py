"""The task table as we read it, and our side tables: what stands in the database now; it never alters the SDK's table.

Columns are introspected, since the SDK made two shapes of the table (0.2-0.3 and 1.x) and migrates one into the other.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    DateTime,
    Executable,
    FromClause,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    TableClause,
    Text,
    and_,
    case,
    cast,
    column,
    exists,
    false,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    table,
    text,
    true,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from tombstones.record_tables import RecordTables, record_tables
from tombstones.search_tables import SearchTables, search_tables

# The SDK's clustered store and push configurations keep transcripts and secrets of a task beside it.
SDK_SIDE_TABLES = ("task_versions", "task_events", "push_notification_configs")
REQUIRED_COLUMNS = ("id", "context_id", "status", "artifacts", "history")
CREATED = "sidecar_created_at"

# Everything that may be parked, in both spellings. The text is a constant of the SQL, not a parameter, so that the
# planner finds the partial index; no JSON is taken apart, since a stored \u0000 would fail the whole statement.
PARKED_PATTERNS = ("%INPUT_REQUIRED%", "%AUTH_REQUIRED%", "%input-required%", "%auth-required%")

# The first and the last time. Python knows one more at either end, which asyncpg gives for the infinities.
TIMES = ("0001-01-01 00:00:00.000001", "9999-12-31 23:59:59.999998")


@dataclass(frozen=True)
class SideTables:
    """Our tables, named after the task table and standing in its schema. This file alone creates them."""

    session_tombstones: Table
    task_tombstones: Table
    retirements: Table

    def __iter__(self) -> Iterator[Table]:
        return iter((self.session_tombstones, self.task_tombstones, self.retirements))


@cache
def side_tables(name: str, schema: str | None) -> SideTables:
    """The side tables of a task table; times are UTC."""
    metadata = MetaData(schema=schema)
    moment = DateTime(timezone=True)
    return SideTables(
        Table(
            f"{name}_session_tombstones",
            metadata,
            Column("session_id", Text, primary_key=True),
            Column("retired_at", moment, nullable=False),
        ),
        Table(
            f"{name}_task_tombstones",
            metadata,
            Column("task_id", Text, primary_key=True),
            Column("cleared_at", moment, nullable=False),
        ),
        Table(
            f"{name}_retirements",
            metadata,
            Column("id", BigInteger().with_variant(Integer, "sqlite"), Identity(always=True), primary_key=True),
            Column("at", moment, nullable=False),
            Column("token", Text, nullable=False),
            Column("action", Text, nullable=False),
            Column("session_id", Text, nullable=False),
            Column("turns_deleted", Integer, nullable=False),
            Column("request_id", Text, nullable=False),
        ),
    )


@dataclass(frozen=True)
class Shape:
    """The store as introspection found it: the dialect, the names, the columns of the task table, the tables beside it.

    Expressions over the table are built here, so that the two databases differ in one place.
    """

    dialect: str
    name: str
    schema: str | None
    columns: frozenset[str]
    existing: frozenset[str]
    indexes: frozenset[str]
    may_create: bool

    @property
    def sqlite(self) -> bool:
        return self.dialect == "sqlite"

    @cached_property
    def side(self) -> SideTables:
        return side_tables(self.name, self.schema)

    @cached_property
    def search(self) -> SearchTables:
        return search_tables(self.name, self.schema, self.dialect)

    @property
    def has_search(self) -> bool:
        """The search index was begun; a deletion then takes its rows along."""
        return self.existing.issuperset(self.search.names)

    @cached_property
    def records(self) -> RecordTables:
        return record_tables(self.name, self.schema)

    @property
    def has_records(self) -> bool:
        """Something was recorded or answered; a deletion then takes along what chats remember of the turns."""
        return self.existing.issuperset(self.records.names)

    @property
    def remembered(self) -> tuple[str, str]:
        """The tables from which a deletion takes what chats remember."""
        return (self.records.exchanges.name, self.records.sources.name)

    @property
    def lock_key(self) -> int:
        """The key of the advisory locks of this store on PostgreSQL: preparing holds it, the sweep the next one,
        whoever writes to the search index the one after, and whoever makes the side tables the last.
        """
        return zlib.crc32(f"a2a-sidecar:{self.schema}.{self.name}".encode())

    def index_name(self, purpose: str) -> str:
        """The name of one of the indexes that `prepare` makes."""
        return f"{self.name}_sidecar_{purpose}"

    def qualified(self, name: str | None = None) -> str:
        """A table of the store, the task table itself or one beside it, as SQL spells it."""
        return ".".join(f'"{part}"' for part in (self.schema, name or self.name) if part)

    @property
    def can_walk(self) -> bool:
        """The newest rows can be walked one by one, and a session's rows counted, along indexes."""
        return {self.index_name("activity"), self.index_name("session")} <= self.indexes

    @property
    def missing_side_tables(self) -> list[Table]:
        return [each for each in self.side if each.name not in self.existing]

    @property
    def missing_columns(self) -> list[str]:
        return [name for name in REQUIRED_COLUMNS if name not in self.columns]

    @cached_property
    def tasks(self) -> TableClause:
        """The task table, light: it takes any name and can never issue DDL for a table that is not ours."""
        return table(
            self.name,
            column("id", String),
            column("context_id", String),
            column("kind", String),
            column("owner", String),
            # SQLite stores what it was given; the text is parsed by us, so that no odd value fails a fetch
            column("last_updated", String if self.sqlite else DateTime),
            column("status", Text),
            column("artifacts", Text),
            column("history", Text),
            column("rowid", Integer),
            column(CREATED, DateTime(timezone=True)),
            column("xmin", Text),
            column("ctid", Text),
            schema=self.schema,
        )

    @property
    def last_updated(self) -> ColumnElement[Any]:
        """When a status last came, or NULL; for what is read. An index sorts and seeks the column itself alone."""
        if "last_updated" not in self.columns:
            return self._absent(DateTime())
        return case((self.dated(), self.tasks.c.last_updated))

    def dated(self, rows: FromClause | None = None, until: ColumnElement[Any] | None = None) -> ColumnElement[bool]:
        """The row has a last_updated that is a time: on 0.x stores none has, on 1.x it may be NULL or anything.

        `until` stands for the last time: SQLite seeks by one upper bound, and chooses among two as it likes.
        """
        if "last_updated" not in self.columns:
            return false()
        time: ColumnElement[Any] = self._of(rows).last_updated
        first, last = self._times
        return time.between(first, last if until is None else until)

    def undated(self) -> ColumnElement[bool]:
        """The row's time stands in its status, if anywhere."""
        return or_(*self.undated_ranges)

    @property
    def undated_ranges(self) -> list[ColumnElement[bool]]:
        """Where the undated rows stand in an index: SQLite sorts NULL, numbers, texts and bytes in this order.

        Each alone is a seek; where all are asked for together, SQLite expects most rows there and reads them all.
        """
        if "last_updated" not in self.columns:
            return [true()]
        time, (first, last) = self.tasks.c.last_updated, self._times
        return [time.is_(None), time < first, time > last]

    @property
    def _times(self) -> list[ColumnElement[Any]]:
        suffix = "" if self.sqlite else "::timestamp"
        return [literal_column(f"'{time}'{suffix}") for time in TIMES]

    @property
    def created(self) -> ColumnElement[Any]:
        """When the row was first saved, where `prepare` lets PostgreSQL record it; else NULL."""
        return self.tasks.c[CREATED] if CREATED in self.columns else self._absent(DateTime(timezone=True))

    @property
    def version(self) -> ColumnElement[Any]:
        """What changes with every save of a row on PostgreSQL: its inserting transaction and its place.

        A restore may repeat both, and starts a server; SQLite has nothing of the kind.
        """
        if self.sqlite:
            return null()
        return func.concat_ws(literal_column("' '"), self.row_version, cast(func.pg_postmaster_start_time(), Text))

    @property
    def row_version(self) -> ColumnElement[Any]:
        """The same of a row that is known to be of this server; it outlives a restart, and VACUUM FULL may move it."""
        if self.sqlite:
            return null()
        return func.concat_ws(literal_column("' '"), *(cast(self.tasks.c[name], Text) for name in ("xmin", "ctid")))

    @property
    def has_creation_order(self) -> bool:
        """The store records which row was created first; a prepared PostgreSQL does, SQLite always."""
        return self.sqlite or CREATED in self.columns

    @property
    def sequence(self) -> ColumnElement[Any]:
        """SQLite's creation order; PostgreSQL has none of its own."""
        return self.tasks.c.rowid if self.sqlite else self._absent(Integer())

    def _absent(self, kind: TypeEngine[Any]) -> ColumnElement[Any]:
        """NULL in the place of a column that the table lacks; PostgreSQL wants to know of what type."""
        return null() if self.sqlite else cast(null(), kind)

    def octets(self, name: str) -> ColumnElement[int]:
        """The size of a cell's stored text in bytes; NULL for SQL NULL."""
        cell = self.tasks.c[name]
        return func.length(cast(cell, LargeBinary)) if self.sqlite else func.octet_length(cast(cell, Text))

    def stored(self, name: str, rows: FromClause | None = None) -> ColumnElement[bytes]:
        """A cell's stored text as bytes; the cast spares the driver's decoding and fails on no content."""
        cell: ColumnElement[Any] = self._of(rows)[name]
        if self.sqlite:
            return cast(cell, LargeBinary)
        return func.convert_to(cast(cell, Text), literal_column("'UTF8'"), type_=LargeBinary)

    def _of(self, rows: FromClause | None) -> Any:
        return (self.tasks if rows is None else rows).c

    def has_prefix(self, prefix: str, rows: FromClause | None = None) -> ColumnElement[bool]:
        """The context's id starts with the prefix, literally and case-sensitively: LIKE is neither on SQLite."""
        if not prefix:
            # SQLite may hold an id that is no text, which nothing could name
            return func.typeof(self._of(rows).context_id) == "text" if self.sqlite else true()
        return func.substr(self._of(rows).context_id, 1, len(prefix)) == prefix

    def owned_by(self, owners: frozenset[str] | None, rows: FromClause | None = None) -> ColumnElement[bool]:
        """The row is visible to these owners; None sees all, NULL and legacy owners included."""
        if owners is None:
            return true()
        return self._of(rows).owner.in_(sorted(owners)) if "owner" in self.columns else false()

    def may_be_parked(self) -> ColumnElement[bool]:
        """The status text may say that the turn waits on the operator; the few candidates are parsed in Python."""
        status = self.tasks.c.status if self.sqlite else cast(self.tasks.c.status, Text)
        return or_(*(status.like(literal_column(f"'{pattern}'")) for pattern in PARKED_PATTERNS))

    def alive(self, rows: FromClause | None = None) -> ColumnElement[bool]:
        """Neither the session nor the task is retired: the clause that every read of the task table carries.

        A tombstone table that does not exist has never held a tombstone. `rows` is what stands for the task table:
        an alias, or a subquery with its columns.
        """
        sessions, tasks, of = self.side.session_tombstones, self.side.task_tombstones, self._of(rows)
        clauses: list[ColumnElement[bool]] = []
        if sessions.name in self.existing:
            clauses.append(~exists(select(literal(1)).where(sessions.c.session_id == of.context_id)))
        if tasks.name in self.existing:
            clauses.append(~exists(select(literal(1)).where(tasks.c.task_id == of.id)))
        return and_(true(), *clauses)


_POSTGRES_CATALOG = text("""
    SELECT n.nspname AS schema, c.relname AS table, a.attname AS column,
           has_schema_privilege(n.oid, 'CREATE') AND NOT pg_is_in_recovery() AS may_create
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(:qualified))
      AND c.relname = ANY(:names) AND c.relkind IN ('r', 'p')
    UNION ALL
    SELECT NULL, c.relname, NULL, true FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = to_regclass(:qualified) AND i.indisvalid
""")

_SQLITE_CATALOG = """
    SELECT NULL AS "schema", m.name AS "table", p.name AS "column", 1 AS may_create
    FROM sqlite_master m JOIN pragma_table_info(m.name) p
    WHERE m.type IN ('table', 'view') AND m.name IN ({})
    UNION ALL
    SELECT NULL, name, NULL, 1 FROM sqlite_master WHERE type = 'index'
"""


async def introspect(conn: AsyncConnection, name: str, schema: str | None = None) -> Shape:
    """What stands in the database now, by one statement on the catalog; a missing task table has no columns."""
    names = [name, *(each.name for each in side_tables(name, schema)), *SDK_SIDE_TABLES]
    names += search_tables(name, schema, conn.dialect.name).names
    names += record_tables(name, schema).names
    if conn.dialect.name == "sqlite":
        marks = ",".join("?" * len(names))
        rows: Sequence[Row[Any]] = (await conn.exec_driver_sql(_SQLITE_CATALOG.format(marks), tuple(names))).all()
    else:
        qualified = ".".join(f'"{part}"' for part in (schema, name) if part)
        rows = (await conn.execute(_POSTGRES_CATALOG, {"qualified": qualified, "names": names})).all()
    columns = [row for row in rows if row.column is not None]
    return Shape(
        dialect=conn.dialect.name,
        name=name,
        schema=columns[0].schema if columns else schema,
        columns=frozenset(row.column for row in columns if row.table == name),
        existing=frozenset(row.table for row in columns),
        indexes=frozenset(row.table for row in rows if row.column is None),
        may_create=all(row.may_create for row in columns),
    )


# Another sidecar created the same table first: duplicate key in the catalog, duplicate table, duplicate object.
CREATED_BY_ANOTHER = {"23505", "42P07", "42710"}


async def create_side_tables(conn: AsyncConnection, shape: Shape) -> None:
    """Creates what is missing of our side tables; the caller's transaction holds them, several may try at once.

    Raises DBAPIError when the role may not create, the database is read-only, or a lock is held too long.
    """
    if not shape.sqlite:
        # IF NOT EXISTS alone loses the race for the catalog's unique keys; the lock makes it a queue
        await conn.execute(select(func.pg_advisory_xact_lock(shape.lock_key + 3)))
    for missing in shape.missing_side_tables:
        await _create_once(conn, CreateTable(missing, if_not_exists=True))


async def create_search_tables(conn: AsyncConnection, shape: Shape) -> None:
    """Creates what is missing of the search tables, like `create_side_tables`. Raises DBAPIError."""
    await _create_all(conn, shape, shape.search.ddl)


async def create_record_tables(conn: AsyncConnection, shape: Shape) -> None:
    """Creates what is missing of the record tables, like `create_side_tables`. Raises DBAPIError."""
    await _create_all(conn, shape, shape.records.ddl(shape.dialect))


async def stand_alone(conn: AsyncConnection, shape: Shape) -> None:
    """Keeps out deletions, and whoever else stores what came from turns, until the transaction ends.

    So nothing is deleted between a look for tombstones and the commit. SQLite has one writer anyway.
    """
    if not shape.sqlite:
        await conn.execute(select(func.pg_advisory_xact_lock(shape.lock_key + 2)))


async def _create_all(conn: AsyncConnection, shape: Shape, ddl: Iterable[str]) -> None:
    await stand_alone(conn, shape)
    for statement in ddl:
        await _create_once(conn, text(statement))


async def _create_once(conn: AsyncConnection, statement: Executable) -> None:
    try:
        async with conn.begin_nested():
            await conn.execute(statement)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) not in CREATED_BY_ANOTHER:
            raise
