"""The fixtures of all tests; it may not import the sidecar before a test asks for one."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis.configuration import set_hypothesis_home_dir
from sqlalchemy import make_url

from tests import rig
from tests.postgres import Cluster, Server, running_cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long variants too")


@pytest.fixture(scope="session", autouse=True)
def _hypothesis_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What Hypothesis notes, it notes elsewhere than beside the code."""
    set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the long variants are wanted."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Server]:
    """A PostgreSQL: that of TEST_POSTGRES_URL (a superuser's address), else one of our own."""
    if address := os.environ.get("TEST_POSTGRES_URL"):
        yield Server(make_url(address))
        return
    with running_cluster() as own:
        yield own


@pytest.fixture
def own_cluster(cluster: Server) -> Iterator[Cluster]:
    """The PostgreSQL of all tests, which this one may stop, kill and restart; it runs again afterwards."""
    if not isinstance(cluster, Cluster):
        pytest.skip("TEST_POSTGRES_URL is set, and that server is not ours to stop")
    yield cluster
    if cluster.process is None:
        cluster.start()


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> rig.Kind:
    """The database of `store`; for one only: `@pytest.mark.parametrize("kind", ["postgres"])`."""
    kind: rig.Kind = request.param
    return kind


@pytest.fixture
def sqlite_suffices(kind: rig.Kind, full: bool) -> None:
    """For what takes long and hangs on no database: PostgreSQL has its turn with --full."""
    if kind == "postgres" and not full:
        pytest.skip("on SQLite alone; --full runs it on PostgreSQL, too")


@pytest.fixture
def server(kind: rig.Kind, request: pytest.FixtureRequest) -> Server | None:
    """The PostgreSQL when the test's kind needs one: tests on SQLite alone start none."""
    return request.getfixturevalue("cluster") if kind == "postgres" else None


@pytest.fixture
async def bare_store(server: Server | None, tmp_path: Path) -> AsyncIterator[rig.Store]:
    """A task database in which the agent has created nothing yet."""
    opening = rig.postgres_store(server) if server else rig.sqlite_store(tmp_path / "tasks.db")
    async with opening as store:
        yield store


@pytest.fixture
async def store(bare_store: rig.Store) -> rig.Store:
    """A task database with the SDK's empty table (1.x)."""
    await bare_store.tasks.initialize()
    return bare_store


@pytest.fixture
async def sdk_database(kind: rig.Kind, server: Server | None, tmp_path: Path) -> AsyncIterator[rig.LoadSdkDatabase]:
    """`await sdk_database("1.3.0")`: a copy of one of the databases in data/sdk-dbs, of the test's kind."""
    async with AsyncExitStack() as opened:

        async def load(name: str) -> rig.Store:
            return await opened.enter_async_context(rig.load_sdk_database(name, kind, tmp_path, server))

        yield load


@pytest.fixture
async def open_sidecar() -> AsyncIterator[rig.OpenSidecar]:
    """`await open_sidecar(store, token=…, **settings)`: one more sidecar, and its client, open until the test ends."""
    from sidecar.app import create_app

    async with AsyncExitStack() as opened:

        async def start(store: rig.Store, token: str | None = rig.TOKEN, **settings: Any) -> httpx.AsyncClient:
            app = create_app(rig.config_for(store, **settings))
            return await opened.enter_async_context(rig.client(app, token))

        yield start


@pytest.fixture
async def sidecar(store: rig.Store, open_sidecar: rig.OpenSidecar) -> httpx.AsyncClient:
    """The client of a sidecar with default settings on `store`."""
    return await open_sidecar(store)


@pytest.fixture
def prepare() -> rig.Prepare:
    """`await prepare(store)`: what `a2a-sidecar prepare` does."""
    return rig.prepare
