"""What tests share: stores written by the real SDK, and the app served in process; it may not judge."""

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.tasks import DatabaseTaskStore
from a2a.types import Task
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]  # protobuf ships no types
from sqlalchemy import event, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from tests.postgres import Server

if TYPE_CHECKING:  # tests of single modules run while others are broken
    from sidecar.config import Config

Kind = Literal["sqlite", "postgres"]
Json = dict[str, Any]

SDK_DATABASES = Path(__file__).parent / "data/sdk-dbs"
TOKEN = "operator-token-0123456789"
FIRST_TURN = datetime(2026, 1, 5, 9)
POSTGRES_TYPES = {
    "status": "json",
    "artifacts": "json",
    "history": "json",
    "metadata": "json",
    "last_updated": "timestamp",
}


@dataclass(frozen=True)
class Owner(User):
    """The authenticated user on whose behalf the SDK saves; the empty name is what it stores for nobody."""

    name: str

    @property
    def is_authenticated(self) -> bool:
        return self.name != ""

    @property
    def user_name(self) -> str:
        return self.name


@dataclass
class Store:
    """One task database as its producer sees it; `url` is how the sidecar is told of it."""

    kind: Kind
    url: str
    engine: AsyncEngine
    tasks: DatabaseTaskStore
    turns_written: int = field(default=0, init=False)

    async def save(self, task: Task | Json, owner: str = "") -> str:
        """Save a task, or its protobuf JSON, through the SDK's own store and return its id."""
        saved: Task = task if isinstance(task, Task) else ParseDict(task, Task())
        await self.tasks.save(saved, ServerCallContext(user=Owner(owner)))
        return saved.id

    async def delete(self, task_id: str, owner: str = "") -> None:
        """Delete a task through the SDK's own store."""
        await self.tasks.delete(task_id, ServerCallContext(user=Owner(owner)))

    async def turn(
        self,
        context_id: str,
        state: str = "completed",
        text: str | Sequence[str] | None = "The answer.",
        prompt: str | None = "The question?",
        at: str | None = "next",
        task_id: str | None = None,
        owner: str = "",
        metadata: Json | None = None,
        history: Sequence[Json] = (),
        status_text: str | None = None,
    ) -> str:
        """Save one turn and return its task id; an existing `task_id` is saved again, as a later state of it.

        state: as the wire spells it, `input-required`; "" leaves the key out. text: the answer, or its chunks, which
        become the parts of one artifact; None leaves the turn without artifacts. at: RFC 3339 time of the status;
        None leaves it without, "next" is a minute after the turn before. history: protobuf JSON messages after the
        prompt. status_text: the agent's message in the status.
        """
        task_id = task_id or str(uuid.uuid4())
        about = {"contextId": context_id, "taskId": task_id}
        if at == "next":
            at = f"{FIRST_TURN + timedelta(minutes=self.turns_written):%Y-%m-%dT%H:%M:%SZ}"
        self.turns_written += 1
        status: Json = {} if at is None else {"timestamp": at}
        if state:
            status["state"] = f"TASK_STATE_{state.upper().replace('-', '_')}"
        if status_text is not None:
            status["message"] = message("ROLE_AGENT", status_text, **about)
        prompts = [] if prompt is None else [message("ROLE_USER", prompt, **about)]
        chunks = [text] if isinstance(text, str) else text or []
        task = {
            "id": task_id,
            "contextId": context_id,
            "status": status,
            "artifacts": [{"artifactId": "answer", "parts": [{"text": chunk} for chunk in chunks]}] if chunks else [],
            "history": [*prompts, *history],
            "metadata": metadata or {},
        }
        return await self.save(task, owner)

    async def raw(self, sql: str, **params: object) -> list[Any]:
        """Run one statement in a transaction of its own and return its rows; `:name` stands for a parameter."""
        async with self.engine.begin() as connection:
            result = await connection.execute(text(sql), params)
            return list(result) if result.returns_rows else []

    async def column_text(self, column: str) -> dict[str, bytes | None]:
        """The stored bytes of one column by task id."""
        stored = f"CAST({column} AS BLOB)" if self.kind == "sqlite" else f"convert_to({column}::text, 'UTF8')"
        return {row.id: row.stored for row in await self.raw(f"SELECT id, {stored} AS stored FROM tasks")}

    async def insert_raw(self, **columns: str | bytes | None) -> str:
        """Insert a row as given, past the SDK, and return its id; bytes (SQLite) may be no UTF-8, None is SQL NULL.

        `last_updated` is `2026-01-05 09:00:00.000000`. Columns not named take their default, or the least there can be.
        """
        least = {"id": str(uuid.uuid4()), "context_id": "chat-raw", "kind": "task", "status": "{}"}
        row = {**least, **columns}
        values = [f"CAST(:{name} AS TEXT)" for name in row]
        if self.kind == "postgres":
            values = [f"CAST(CAST(:{name} AS text) AS {POSTGRES_TYPES.get(name, 'text')})" for name in row]
        await self.raw(f"INSERT INTO tasks ({', '.join(row)}) VALUES ({', '.join(values)})", **row)
        return str(row["id"])


LoadSdkDatabase = Callable[[str], Awaitable[Store]]
OpenSidecar = Callable[..., Awaitable[httpx.AsyncClient]]
Prepare = Callable[[Store], Awaitable[None]]


def message(role: str, text: str, **fields: Any) -> Json:
    """The protobuf JSON of a message with one text part; `fields` are added: contextId, taskId, metadata, …"""
    return {"messageId": str(uuid.uuid4()), "role": role, "parts": [{"text": text}], **fields}


@asynccontextmanager
async def sqlite_store(path: Path) -> AsyncIterator[Store]:
    """A store in a SQLite file, which the first write creates if it isn't there."""
    async with _opened("sqlite", f"sqlite+aiosqlite:///{path}") as store:
        yield store


@asynccontextmanager
async def postgres_store(server: Server, dump: Path | None = None) -> AsyncIterator[Store]:
    """A store in a database of its own, empty or filled from a dump; dropped afterwards."""
    url = await server.create_database()
    database = str(make_url(url).database)
    try:
        if dump is not None:
            await server.execute(dump.read_text("utf-8"), database)
        async with _opened("postgres", url) as store:
            yield store
    finally:
        await server.drop_database(database)


@asynccontextmanager
async def load_sdk_database(name: str, kind: Kind, folder: Path, server: Server | None) -> AsyncIterator[Store]:
    """A copy of one of the databases that SDKs of several versions wrote: a `name` of data/sdk-dbs."""
    if kind == "sqlite":
        copied = shutil.copy(SDK_DATABASES / f"{name}.sqlite3", folder)
        opening = sqlite_store(Path(copied))
    else:
        assert server is not None
        opening = postgres_store(server, SDK_DATABASES / f"{name}.pg.sql")
    async with opening as store:
        yield store


@asynccontextmanager
async def _opened(kind: Kind, url: str) -> AsyncIterator[Store]:
    # Without a pool the store works from any event loop, and no connection of it dies with a killed server.
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        yield Store(kind, url, engine, DatabaseTaskStore(engine))
    finally:
        await engine.dispose()


def config_for(store: Store, **overrides: Any) -> "Config":
    """The sidecar's settings for one store, with the operator token."""
    from sidecar.config import Config

    return Config(**{"database_url": store.url, "token": TOKEN, **overrides})


@asynccontextmanager
async def client(app: Starlette, token: str | None = TOKEN) -> AsyncIterator[httpx.AsyncClient]:
    """The app between its startup and its shutdown, and a client that sends the token.

    Percent-encoded paths reach the app unchanged; httpx resolves literal `/./`, `/../` and leading `//` itself.
    """
    async with _lifespan(app) as state:

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        transport = httpx.ASGITransport(app=application, raise_app_exceptions=False)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as opened:
            yield opened


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[Json]:
    """Run the ASGI lifespan as a server does, in a task of its own, and yield the state that it filled."""
    state: Json = {}
    to_app: asyncio.Queue[Any] = asyncio.Queue()
    from_app: asyncio.Queue[Any] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}
    running = asyncio.create_task(app(scope, to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    if (await from_app.get())["type"] == "lifespan.startup.failed":
        await running  # raises what the startup raised
    try:
        yield state
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        await running


async def prepare(store: Store) -> None:
    """Run `prepare` on a store as its command does."""
    from sidecar.db import Database
    from tombstones.prepare import prepare as run

    database = Database(config_for(store))
    try:
        await database.alter(run, lambda statement: None)
    finally:
        await database.close()


def spy(app: Starlette) -> list[str]:
    """The SQL that the app's drivers are given from now on; to be called before its first request."""
    statements: list[str] = []

    @event.listens_for(app.state.database._engine.sync_engine, "connect")
    def _on_connect(connection: Any, record: Any) -> None:
        driver = connection.driver_connection
        if hasattr(driver, "add_query_logger"):
            driver.add_query_logger(lambda query: statements.append(query.query))
        else:
            connection.run_async(lambda opened: opened.set_trace_callback(statements.append))

    return statements
