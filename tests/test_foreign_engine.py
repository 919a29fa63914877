"""An agent's own engine, passed to create_app: used as it is set up, whatever that is, and never disposed."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette
from starlette.routing import Mount

from sidecar.app import create_app
from sidecar.config import Config
from tests import rig
from tests.postgres import Server

SESSION = "/side/api/chat/sessions/chat-a"
ENGINES: dict[str, dict[str, Any]] = {
    "default": {},
    "autocommit": {"isolation_level": "AUTOCOMMIT"},
    "serializable": {"isolation_level": "SERIALIZABLE"},
    "no pool": {"poolclass": NullPool},
    "one connection": {"pool_size": 1, "max_overflow": 0},
    "own BEGIN": {},
}


def begin_by_event(engine: AsyncEngine) -> None:
    """SQLAlchemy's documented way to give SQLite real transactions."""

    @event.listens_for(engine.sync_engine, "connect")
    def _on_connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine.sync_engine, "begin")
    def _on_begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


@pytest.fixture(params=ENGINES.keys())
async def engine(store: rig.Store, request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(store.url, **ENGINES[request.param])
    if request.param == "own BEGIN" and store.kind == "sqlite":
        begin_by_event(engine)
    yield engine
    await engine.dispose()


@pytest.fixture
async def mounted(engine: AsyncEngine) -> AsyncIterator[httpx.AsyncClient]:
    """The sidecar under a path of the agent's application, whose Mount runs no lifespan."""
    app = Starlette(routes=[Mount("/side", create_app(Config(token=rig.TOKEN), engine))])
    async with rig.client(app) as client:
        yield client


async def test_reading_and_deleting(store: rig.Store, engine: AsyncEngine, mounted: httpx.AsyncClient) -> None:
    """Everything works on the agent's engine, in real transactions, and leaves it usable."""
    for state in ("completed", "working", "completed"):
        await store.turn("chat-a", state)
    assert len((await mounted.get(f"{SESSION}/turns")).json()["turns"]) == 3
    refused = await mounted.delete(SESSION, params={"if_active": "refuse"})
    assert (refused.status_code, refused.json()["code"]) == (409, "session_active")
    assert len(await store.raw("SELECT id FROM tasks")) == 3
    assert await store.raw("SELECT session_id FROM tasks_session_tombstones") == []
    cleared = await mounted.delete(SESSION, params={"retire": "false"})
    assert (cleared.status_code, cleared.json()["turns_deleted"]) == (200, 3)
    new = await store.turn("chat-a")
    assert [turn["task_id"] for turn in (await mounted.get(f"{SESSION}/turns")).json()["turns"]] == [new]
    assert (await mounted.delete(SESSION)).json()["turns_deleted"] == 1
    await store.turn("chat-a")
    assert (await mounted.get("/side/api/chat/sessions")).json() == {"sessions": []}
    assert (await mounted.get("/side/readyz")).json()["status"] == "ready"
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM tasks"))).scalar_one() == 1


async def test_pages_lead_below_the_mount(store: rig.Store, mounted: httpx.AsyncClient) -> None:
    """`Link` holds the path at which the app is mounted."""
    for _ in range(3):
        await store.turn("chat-a")
    first = await mounted.get(f"{SESSION}/turns", params={"limit": 2})
    second = await mounted.get(first.links["next"]["url"])
    assert len(first.json()["turns"] + second.json()["turns"]) == 3


@pytest.mark.parametrize("kind", ["postgres"])
async def test_server_of_a_given_engine_is_down(server: Server) -> None:
    """The fault is the database's, whatever address the settings would have had."""
    engine = create_async_engine("postgresql+asyncpg://postgres@127.0.0.1:1/nothing")
    async with rig.client(create_app(Config(token=rig.TOKEN), engine)) as client:
        response = await client.get("/api/chat/sessions")
        assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")
        assert response.headers["retry-after"] == "2"
        assert list((await client.get("/readyz")).json()["checks"]) == ["database"]
    await engine.dispose()
