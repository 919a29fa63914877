"""The only doors to a connection: `read`, `write`, `maintain`, `alter`; it knows drivers' faults and no query of ours.

Each door hands its work the connection and the store's shape, and turns a fault of the database into an error with a
known answer. A read goes to the driver itself, a write through SQLAlchemy.
"""

import asyncio
import math
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import asyncpg
from sqlalchemy import event
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi
from sqlalchemy.exc import DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.util import greenlet_spawn

from sidecar import dsn
from sidecar.config import Config
from sidecar.errors import Busy, DatabaseUnavailable, ReadOnly, SidecarError, TaskStoreMissing, TombstonesUnavailable
from sidecar.reading import Reading
from sidecar.sentinel import Sentinel
from tombstones.table import Shape, create_side_tables, introspect

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L")
Read = Callable[Concatenate[Reading, Shape, P], Awaitable[T]]
Write = Callable[Concatenate[AsyncConnection, Shape, P], Awaitable[T]]
Look = Callable[[AsyncConnection, Shape], Awaitable[L]]
WriteAfter = Callable[[AsyncConnection, Shape, L | None, bool], Awaitable[T]]

# What a statement raises: through SQLAlchemy, from a driver itself, from the network below it.
FAULTS = (
    SQLAlchemyError,
    sqlite3.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    AsyncAdapt_asyncpg_dbapi.Error,  # what SQLAlchemy's pool makes of a connection that fails
    OSError,
)

POOL_WAIT_SECONDS = 2.0
LOCK_WAIT_SECONDS = 2.0
# How often a deletion looks at a session for as long as somebody commits meanwhile.
LOOKS = 3
# How long a closing sidecar waits for the work under way.
CLOSE_SECONDS = 5.0
# How much longer than a statement may take we wait for the server to say so.
SILENCE_SECONDS = 1.0
# How long a schema is believed; a migration beside us is seen after that, or at the first statement it breaks.
SHAPE_SECONDS = 1.0
# How long a refused creation of our tables is not tried again by a read; a DELETE always tries.
CREATION_PAUSE_SECONDS = 30.0
_SQLITE_STEPS_BETWEEN_CHECKS = 50_000
RETRY_AFTER = {"Retry-After": "2"}


class _RolledBackError(Exception):
    """A write met a schema that changed, or a connection that had ended; nothing of it was committed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class WrongTableError(TaskStoreMissing):
    """There is a table of the name, and it is not the SDK's."""


class UnforeseenFaultError(SQLAlchemyError):
    """A fault without a known answer, told by its code and its place alone: its message may quote a stored row."""


class Database:
    """The task database of one sidecar. A given engine stays its owner's: it is used and never disposed."""

    def __init__(self, config: Config, engine: AsyncEngine | None = None) -> None:
        schema, _, name = config.tasks_table.rpartition(".")
        self._name, self._schema = name, schema or None
        self._config = config
        # of a given engine we know the driver and not the address
        self._dsn = dsn.parse(config.database_url) if engine is None else None
        self._path = self._dsn.path if self._dsn is not None else None
        self._engine = engine or _create_engine(dsn.parse(config.database_url), config)
        self._sentinel = Sentinel(self._path) if self._path is not None else None
        self._shape: Shape | None = None
        self._shape_read_at = 0.0
        self._may_create_after = 0.0
        self._creating = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Waits a while for the work under way, then closes our connections."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
        if self._sentinel is not None:
            await self._sentinel.close()
        if self._dsn is not None:
            await self._engine.dispose()

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def forget_shape(self) -> None:
        """Has the next read look at the schema again, after a writer has changed it."""
        self._shape = None

    async def version(self) -> tuple[Hashable, Hashable] | None:
        """Which SQLite file it is, and what stands until somebody commits to it; None for any other store."""
        return None if self._sentinel is None else await self._sentinel.version()

    async def read(self, work: Read[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a reader. Raises a SidecarError for every fault of the database."""
        try:
            return await self._read(work, *args, **kwargs)
        except FAULTS as error:
            if not _is_stale(error) and not _is_lost(error):
                raise self._fault(error) from error
        self._shape = None
        try:
            return await self._read(work, *args, **kwargs)
        except FAULTS as error:
            raise self._fault(error) from error

    async def write(self, work: Write[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a writer in one durable transaction, to its end even when the caller is cancelled.

        Raises a SidecarError for every fault of the database; anything the writer raises rolls back.
        """

        async def write(conn: AsyncConnection, shape: Shape, found: None, stands: bool) -> T:
            return await work(conn, shape, *args, **kwargs)

        return await self.write_after(_see_nothing, write)

    async def write_after(self, look: Look[L], work: WriteAfter[L, T]) -> T:
        """The same, with what `look` found before the transaction, so that SQLite's one write lock is not held for it.

        It is looked again when somebody committed meanwhile, a few times; the writer is told whether the look stands.
        A look that finds None need not stand. On PostgreSQL nobody looks.
        """
        return await self._to_its_end(self._write_again(look, work))

    async def _to_its_end(self, working: Coroutine[Any, Any, T]) -> T:
        running = asyncio.create_task(working)
        self._running.add(running)
        running.add_done_callback(self._forget)
        return await asyncio.shield(running)

    def _forget(self, ended: asyncio.Task[Any]) -> None:
        self._running.discard(ended)
        if not ended.cancelled():
            ended.exception()  # whoever asked may be gone, and then nobody else looks at it

    async def maintain(self, work: Write[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs an inspection through SQLAlchemy in autocommit, and creates nothing of its own accord.

        It ends by itself even when the caller is cancelled. Raises a SidecarError for every fault of the database.
        """
        return await self._to_its_end(self._autocommitted(self._engine, work, *args, **kwargs))

    async def alter(self, work: Write[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for DDL and for counts of everything, on a connection of its own and for as long as it takes."""
        if self._dsn is None:
            return await self._autocommitted(self._engine, work, *args, **kwargs)
        patient = _create_engine(self._dsn, self._config, patient=True)
        try:
            return await self._autocommitted(patient, work, *args, **kwargs)
        finally:
            self._shape = None
            await patient.dispose()

    async def _autocommitted(self, engine: AsyncEngine, work: Write[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            async with engine.connect() as conn:
                await conn.execution_options(isolation_level="AUTOCOMMIT")
                return await work(conn, self._usable(await self._introspect(conn)), *args, **kwargs)
        except FAULTS as error:
            raise self._fault(error) from error

    async def _read(self, work: Read[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        shape = await self._current_shape()
        pooled = await self._engine.raw_connection()
        try:
            return await work(Reading(pooled.driver_connection, self._engine.dialect), shape, *args, **kwargs)
        except FAULTS as error:
            if _is_lost(error):
                await greenlet_spawn(pooled.invalidate)
            if self._dsn is not None and (_is_lost(error) or isinstance(error, TimeoutError)):
                # the other connections of the pool lead to the same end, or to the same silence
                await self._engine.dispose(close=False)
            raise
        finally:
            await greenlet_spawn(pooled.close)

    async def _write_again(self, look: Look[L], work: WriteAfter[L, T]) -> T:
        """Once more, with the schema and the connections that stand now, when nothing was committed."""
        try:
            return await self._write(look, work)
        except _RolledBackError:
            pass
        try:
            return await self._write(look, work)
        except _RolledBackError as fault:
            raise self._fault(fault.error, writing=True) from fault.error

    async def _write(self, look: Look[L], work: WriteAfter[L, T]) -> T:
        committing = False
        try:
            shape = await self._introspected(min(LOCK_WAIT_SECONDS, self._config.statement_timeout))
            await self._create_side_tables(shape)
            async with self._transaction_after(look, shape) as (conn, found, stands):
                # the SDK's side tables may have come since: a deletion must not miss them
                shape = self._usable(await self._introspect(conn))
                result = await work(conn, shape, found, stands)
                committing = True
            return result
        except FAULTS as error:
            if _is_stale(error) or (_is_lost(error) and not committing):
                raise _RolledBackError(error) from error
            fault = self._fault(error, writing=True)
            if committing and isinstance(fault, DatabaseUnavailable):
                raise DatabaseUnavailable(
                    "The connection was lost during the commit: the outcome is unknown. Repeating the request is safe.",
                    RETRY_AFTER,
                ) from error
            raise fault from error

    @asynccontextmanager
    async def _transaction_after(
        self, look: Look[L], shape: Shape
    ) -> AsyncIterator[tuple[AsyncConnection, L | None, bool]]:
        """A transaction, what `look` found before it, and whether nobody has committed since."""
        if not shape.sqlite:
            async with self._transaction() as conn:
                yield conn, None, False
            return
        async with self._engine.connect() as conn, _waiting(conn, LOCK_WAIT_SECONDS):
            for looks_left in reversed(range(LOOKS)):
                version = await _data_version(conn)
                found = await look(conn, shape)
                async with _sqlite_transaction(conn):
                    stands = version == await _data_version(conn)
                    if stands or found is None or not looks_left:
                        yield conn, found, stands
                        return

    @asynccontextmanager
    async def _transaction(self, lock_wait: float = LOCK_WAIT_SECONDS) -> AsyncIterator[AsyncConnection]:
        """A durable write transaction: it waits for locks at most that long and commits on a clean exit."""
        async with self._engine.connect() as conn:
            if conn.dialect.name == "sqlite":
                async with _waiting(conn, lock_wait), _sqlite_transaction(conn):
                    yield conn
            else:
                # a given engine may be in autocommit, or stricter than the deletion needs
                await conn.execution_options(isolation_level="READ COMMITTED")
                async with conn.begin():
                    await conn.exec_driver_sql("SET LOCAL synchronous_commit = on")
                    await conn.exec_driver_sql(f"SET LOCAL lock_timeout = {int(lock_wait * 1000)}")
                    yield conn

    async def _introspected(self, lock_wait: float | None = None) -> Shape:
        """The shape that stands now; on SQLite a lock keeps out even who reads the catalog."""
        async with self._engine.connect() as conn:
            await conn.execution_options(isolation_level="AUTOCOMMIT")
            async with _waiting(conn, lock_wait):
                return self._usable(await self._introspect(conn))

    async def _introspect(self, conn: AsyncConnection) -> Shape:
        return await introspect(conn, self._name, self._schema)

    async def _current_shape(self) -> Shape:
        """The shape, at most a second old; the first read of a store without our tables creates them."""
        if self._shape is not None and time.monotonic() - self._shape_read_at < SHAPE_SECONDS:
            return self._shape
        shape = await self._introspected()
        if shape.missing_side_tables and shape.may_create and time.monotonic() >= self._may_create_after:
            try:
                await self._create_side_tables(shape, lock_wait=0.25)
                shape = await self._introspected()
            except (*FAULTS, SidecarError):
                # no table: nothing was ever retired through us, so the read is right without it
                self._may_create_after = time.monotonic() + CREATION_PAUSE_SECONDS
        # absence is never believed: another sidecar may create the tables and retire a moment later
        self._shape = None if shape.missing_side_tables else shape
        self._shape_read_at = time.monotonic()
        return shape

    async def _create_side_tables(self, shape: Shape, lock_wait: float = LOCK_WAIT_SECONDS) -> None:
        """Creates our tables where they are missing, in a transaction of its own. Raises TombstonesUnavailable."""
        if not shape.missing_side_tables:
            return
        try:
            async with self._creating:
                shape = await self._introspected()
                if shape.missing_side_tables:
                    async with self._transaction(lock_wait) as conn:
                        await create_side_tables(conn, shape)
        except DBAPIError as error:
            fault = self._fault(error, writing=True)
            if not isinstance(fault, ReadOnly):
                raise fault from error
            names = ", ".join(table.fullname for table in shape.missing_side_tables)
            advice = fault.detail
            if getattr(error.orig, "sqlstate", None) == "42501":
                advice = (
                    f"Run `a2a-sidecar prepare` as the owner of {shape.name}, "
                    "then grant SELECT and INSERT on them (deploy/sql/grants.sql)."
                )
            raise TombstonesUnavailable(f"{names} are missing, and the role may not create them. {advice}") from error

    def _usable(self, shape: Shape) -> Shape:
        if not shape.columns:
            raise TaskStoreMissing(self._missing())
        if shape.missing_columns:
            missing = ", ".join(shape.missing_columns)
            raise WrongTableError(f"The table {shape.name} has no column {missing}: it is no task table of the SDK.")
        return shape

    def _missing(self) -> str:
        file = self._path
        if file is not None and not file.exists():
            return f"There is no database file {file}. Start the agent, or correct SIDECAR_DATABASE_URL."
        where = "The database" if file is None else f"The database file {file}"
        return (
            f"{where} has no table {self._name} that this role may see. "
            "Start the agent, or correct SIDECAR_DATABASE_URL or SIDECAR_TASKS_TABLE."
        )

    def _foreign(self) -> str:
        return f"The table {self._name}, or one beside it, has other columns than the SDK and this sidecar give it."

    def _fault(self, error: Exception, *, writing: bool = False) -> SidecarError:
        """The error that a driver's fault is answered with; one that nobody foresaw is raised without its message."""
        if isinstance(error, OSError) and self._path is not None:
            return self._file_fault()
        if isinstance(error, PoolTimeoutError):
            return Busy("Every database connection is taken. Try again, or raise SIDECAR_POOL_SIZE.", RETRY_AFTER)
        cause = error.orig if isinstance(error, DBAPIError) else error
        sqlite_name = getattr(cause, "sqlite_errorname", None)
        if sqlite_name is not None:
            return self._sqlite_fault(error, sqlite_name)
        sqlstate = getattr(cause, "sqlstate", None)
        if sqlstate is not None:
            return self._postgres_fault(error, sqlstate, writing)
        if _is_lost(error) or isinstance(error, OSError):
            return DatabaseUnavailable("The database does not answer. Try again in a moment.", RETRY_AFTER)
        raise _unforeseen(error) from None

    def _sqlite_fault(self, error: Exception, name: str) -> SidecarError:
        if name == "SQLITE_ERROR" and "no such table" in str(error):
            return TaskStoreMissing(self._missing())
        if name == "SQLITE_ERROR" and ("no such column" in str(error) or "has no column" in str(error)):
            return TaskStoreMissing(self._foreign())
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Busy("The database file is locked by a writer. Try again in a moment.", RETRY_AFTER)
        if name == "SQLITE_INTERRUPT":
            return Busy("A statement took longer than SIDECAR_STATEMENT_TIMEOUT. Try again, or raise it.", RETRY_AFTER)
        if name == "SQLITE_READONLY_DIRECTORY":
            return ReadOnly("The database is in WAL mode: grant write permission on its folder, for -shm and -wal.")
        if name.startswith("SQLITE_READONLY") or name in ("SQLITE_PERM", "SQLITE_AUTH"):
            return ReadOnly("The database file is read-only for this process. Grant it write permission.")
        if name.startswith("SQLITE_CANTOPEN"):
            return self._file_fault()
        if name.startswith(("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return DatabaseUnavailable(
                f"The database file cannot be used ({name}). Check it and its disk.", RETRY_AFTER
            )
        raise _unforeseen(error) from None

    def _file_fault(self) -> SidecarError:
        if self._path is not None and not self._path.exists():
            return TaskStoreMissing(self._missing())
        return DatabaseUnavailable("The database file cannot be opened. Check its permissions.", RETRY_AFTER)

    def _postgres_fault(self, error: Exception, sqlstate: str, writing: bool) -> SidecarError:
        if sqlstate == "42P01":
            return TaskStoreMissing(self._missing())
        if sqlstate == "42501":
            return _privilege_fault(str(error), writing)
        if sqlstate == "25006":
            return ReadOnly("The database is read-only: a standby, or default_transaction_read_only. Use the primary.")
        if sqlstate in ("42703", "42883", "42804", "42846"):
            return TaskStoreMissing(self._foreign())
        if sqlstate in ("57014", "55P03", "40P01", "40001"):
            return Busy("A statement waited too long for a lock or took too long. Try again in a moment.", RETRY_AFTER)
        if sqlstate[:2] in ("08", "28", "53", "57", "58") or sqlstate in ("3D000", "3F000", "55000"):
            is_address = sqlstate[:2] == "28" or sqlstate in ("3D000", "3F000")
            advice = "Correct SIDECAR_DATABASE_URL." if is_address else "Try again in a moment."
            return DatabaseUnavailable(f"The database refuses connections (SQLSTATE {sqlstate}). {advice}", RETRY_AFTER)
        raise _unforeseen(error) from None


def _unforeseen(error: Exception) -> UnforeseenFaultError:
    if isinstance(error, UnforeseenFaultError):  # of a door inside the one that meets it now
        return error
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlstate", None) or getattr(cause, "sqlite_errorname", "without a code")
    return UnforeseenFaultError(f"{type(error).__name__}, {code}").with_traceback(error.__traceback__)


def _privilege_fault(message: str, writing: bool) -> SidecarError:
    """Names what to grant; without SELECT on the tombstones nobody can know what is retired, so reads fail closed."""
    if "must be owner" in message:
        return ReadOnly("The role does not own the task table. Run this as its owner.")
    refused = message.partition("permission denied for ")[2].splitlines()
    what = refused[0] if refused else "the task store"
    if what.startswith("database "):  # its name belongs to the address
        return DatabaseUnavailable("The role lacks CONNECT on the database. Grant it.", RETRY_AFTER)
    if not writing:
        return TombstonesUnavailable(f"The role lacks SELECT on {what}. Run the grants of deploy/sql/grants.sql.")
    return ReadOnly(f"The role lacks a privilege on {what}. Run the grants of deploy/sql/grants.sql.")


async def _see_nothing(conn: AsyncConnection, shape: Shape) -> None:
    """For a writer that has nothing to know before its transaction."""


@asynccontextmanager
async def _waiting(conn: AsyncConnection, seconds: float | None) -> AsyncIterator[None]:
    """Waits so long for each lock of a SQLite file; it is given back, since the connection may be the agent's."""
    if seconds is None or conn.dialect.name != "sqlite":
        yield
        return
    before = (await conn.exec_driver_sql("PRAGMA busy_timeout")).scalar_one()
    await conn.exec_driver_sql(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
    try:
        yield
    finally:
        await conn.exec_driver_sql(f"PRAGMA busy_timeout = {before}")


async def _data_version(conn: AsyncConnection) -> int:
    """What stands on this connection until another one commits to the SQLite file."""
    version: int = (await conn.exec_driver_sql("PRAGMA data_version")).scalar_one()
    return version


@asynccontextmanager
async def _sqlite_transaction(conn: AsyncConnection) -> AsyncIterator[None]:
    """BEGIN IMMEDIATE, since a deferred transaction that reads first fails at once when a producer saves between."""
    await conn.exec_driver_sql("SELECT 1")
    driver: Any = (await conn.get_raw_connection()).driver_connection
    if driver.in_transaction:  # a given engine may begin one by itself, by an event of SQLAlchemy
        await driver.rollback()
    before = (await conn.exec_driver_sql("PRAGMA synchronous")).scalar_one()
    # it cannot change inside a transaction; it is given back, since the connection may be the agent's
    await conn.exec_driver_sql("PRAGMA synchronous = FULL")
    try:
        await conn.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield
            await conn.exec_driver_sql("COMMIT")
        except BaseException:
            await conn.exec_driver_sql("ROLLBACK")
            raise
    finally:
        await conn.exec_driver_sql(f"PRAGMA synchronous = {before}")


def _is_stale(error: Exception) -> bool:
    """The statement met another schema than the one it was made for: a migration, a dropped table, a cached plan."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    # SQLAlchemy's own error for an invalid cached plan carries no SQLSTATE
    if type(cause).__name__ == "InvalidCachedStatementError":
        return True
    if getattr(cause, "sqlstate", None) in ("42703", "42P01", "0A000"):
        return True
    return getattr(cause, "sqlite_errorname", "") == "SQLITE_ERROR" and any(
        sign in str(cause) for sign in ("no such column", "no such table", "has no column")
    )


def _is_lost(error: Exception) -> bool:
    """The connection went away under the statement: a restart of the server, a network in between."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or isinstance(error.orig, asyncpg.InterfaceError)
    gone = (
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        asyncpg.PostgresConnectionError,
        AsyncAdapt_asyncpg_dbapi.InterfaceError,
        ConnectionError,
    )
    return isinstance(error, gone)


def _create_engine(source: dsn.Dsn, config: Config, *, patient: bool = False) -> AsyncEngine:
    """A patient engine waits for the server as long as it takes, as building an index may."""
    # hidden: a message of SQLAlchemy would carry parameters into the log
    common: dict[str, Any] = {"hide_parameters": True}
    if patient:
        common["poolclass"] = NullPool
    else:
        # the connection used last: its caches are warm
        common |= {"pool_size": config.pool_size, "max_overflow": 0, "pool_use_lifo": True}
        common["pool_timeout"] = POOL_WAIT_SECONDS
    if source.path is None:
        milliseconds = str(int(config.statement_timeout * 1000))
        settings = {
            "statement_timeout": milliseconds,
            "lock_timeout": str(int(LOCK_WAIT_SECONDS * 1000)),
            "idle_in_transaction_session_timeout": "10000",
            "jit": "off",  # compiling costs more than any of our statements
            **source.arguments["server_settings"],
        }
        arguments = {**source.arguments, "server_settings": settings}
        if not patient:  # a server or network that is gone without a word would hold the request for good
            arguments["command_timeout"] = config.statement_timeout + SILENCE_SECONDS
        engine = create_async_engine(source.url, connect_args=arguments, **common)
        _guard_connections(engine)
        return engine
    # autocommit: a transaction begins where we say BEGIN, and nowhere else
    arguments = {"timeout": config.statement_timeout, "isolation_level": None}
    if not patient:  # each door ends what it began; the pool's rollback would be one more turn of the driver's thread
        common["pool_reset_on_return"] = None
    engine = create_async_engine(source.url, connect_args=arguments, **common)
    _guard_file(engine, source.path, math.inf if patient else config.statement_timeout)
    return engine


def _guard_connections(engine: AsyncEngine) -> None:
    """Leaves a connection that its server has closed; the driver knows of it without asking."""

    @event.listens_for(engine.sync_engine, "checkout")
    def _on_checkout(connection: Any, record: Any, proxy: Any) -> None:
        if connection.driver_connection.is_closed():
            raise DisconnectionError("the server closed the connection")


def _guard_file(engine: AsyncEngine, path: Path, timeout: float) -> None:
    """Ends statements that run too long, and reopens a file that was replaced under us (a restore, a fresh demo)."""

    @event.listens_for(engine.sync_engine, "do_connect")
    def _on_opening(dialect: Any, record: Any, arguments: Any, options: Any) -> None:
        # when the driver fails to open a file, a thread of it is left that may outlive the loop it answers to
        if not path.exists():
            raise FileNotFoundError(path)
        if not path.is_file() or not os.access(path, os.R_OK):
            raise PermissionError(path)

    @event.listens_for(engine.sync_engine, "connect")
    def _on_connect(connection: Any, record: Any) -> None:
        record.info["deadline"] = time.monotonic() + timeout

        def is_late() -> bool:
            return bool(time.monotonic() > record.info["deadline"])

        connection.run_async(lambda driver: driver.set_progress_handler(is_late, _SQLITE_STEPS_BETWEEN_CHECKS))
        # an id that is not UTF-8 must not fail the fetch of the others; it is left out as unreadable
        connection.driver_connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        record.info["file"] = _identity(path)

    @event.listens_for(engine.sync_engine, "checkout")
    def _on_checkout(connection: Any, record: Any, proxy: Any) -> None:
        record.info["deadline"] = time.monotonic() + timeout
        if record.info["file"] != _identity(path):
            raise DisconnectionError("the database file was replaced")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
