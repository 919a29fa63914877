"""The degradation matrix: what every state of the database is answered with, over HTTP; it looks at no internals."""

import asyncio
import os
import pwd
import shutil
import signal
import socket
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests import rig
from tests.postgres import Cluster, Server, children
from tests.test_grants import PASSWORD, address, new_role

INDEX = "/api/chat/sessions"
SESSION = f"{INDEX}/chat-a"
READS = (INDEX, f"{INDEX}?parked=true", SESSION, f"{SESSION}/turns")
SIDE_TABLES = {"tasks_session_tombstones", "tasks_task_tombstones", "tasks_retirements"}
SEARCH_TABLES = ("tasks_search_turns", "tasks_search_contexts", "tasks_search_lexemes")
BESIDE = (*SEARCH_TABLES, "tasks_answer_exchanges", "tasks_answer_sources")
TO_REPEAT = {"busy", "database_unavailable"}

on_postgres = pytest.mark.parametrize("kind", ["postgres"])
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])


def assert_refused(response: httpx.Response, code: str, *named: str) -> None:
    """A 503 of this code, whose detail names these things and no part of the database's address."""
    assert (503, code) == (response.status_code, response.json()["code"]), response.text
    assert all(name in response.json()["detail"] for name in named), response.text
    assert (code in TO_REPEAT) == ("Retry-After" in response.headers)
    assert_no_address(response)


def assert_no_address(response: httpx.Response) -> None:
    assert not [part for part in ("sidecar_test_", "127.0.0.1", "+asyncpg", PASSWORD) if part in response.text]


async def assert_reads_refused(client: httpx.AsyncClient, code: str, *named: str) -> None:
    for path in READS:
        assert_refused(await client.get(path), code, *named)


async def assert_deletes_refused(client: httpx.AsyncClient, code: str, *named: str) -> None:
    for query in ("", "?retire=false"):
        assert_refused(await client.delete(SESSION + query), code, *named)


async def assert_reads(client: httpx.AsyncClient, turns: int) -> None:
    """Every route answers, and the session `chat-a` has that many turns."""
    assert [200, 200, 200 if turns else 404, 200] == [(await client.get(path)).status_code for path in READS]
    assert turns == len((await client.get(f"{SESSION}/turns")).json()["turns"])


async def assert_ready(client: httpx.AsyncClient, retirement: str = "ok") -> None:
    """`/readyz` is 200; its word on retirement starts like that."""
    response = await client.get("/readyz")
    assert (200, "ready") == (response.status_code, response.json()["status"]), response.text
    assert response.json()["checks"]["retirement"].startswith(retirement), response.text
    assert_no_address(response)


async def assert_not_ready(client: httpx.AsyncClient, failing: str) -> None:
    """`/readyz` is 503 and its one failing check is this, while the process is alive."""
    response = await client.get("/readyz")
    assert 503 == response.status_code
    assert [failing] == [name for name, found in response.json()["checks"].items() if found != "ok"], response.text
    assert_no_address(response)
    assert 200 == (await client.get("/livez")).status_code


async def side_tables(store: rig.Store) -> set[str]:
    """Those of our tables that stand."""
    catalog = "sqlite_master" if store.kind == "sqlite" else "pg_class"
    name = "name" if store.kind == "sqlite" else "relname"
    return {row[0] for row in await store.raw(f"SELECT {name} FROM {catalog}")} & SIDE_TABLES


async def count(store: rig.Store, table: str = "tasks") -> int:
    return int((await store.raw(f"SELECT count(*) FROM {table}"))[0][0])


def file_of(store: rig.Store) -> Path:
    return Path(store.url.removeprefix("sqlite+aiosqlite:///"))


@asynccontextmanager
async def begun(store: rig.Store, sqlite_begin: str, postgres_statement: str) -> AsyncIterator[None]:
    """Another session is in the middle of a transaction, which it rolls back at the end."""
    if store.kind == "sqlite":
        with closing(sqlite3.connect(file_of(store), isolation_level=None)) as connection:
            connection.execute(sqlite_begin)
            yield
        return
    async with store.engine.connect() as connection:
        await connection.execute(text(postgres_statement))
        yield


def saving(store: rig.Store) -> AbstractAsyncContextManager[None]:
    """A producer has saved and not yet committed."""
    return begun(store, "BEGIN IMMEDIATE", "SELECT id FROM tasks FOR UPDATE")


def locked(store: rig.Store) -> AbstractAsyncContextManager[None]:
    """Nobody else can even read the task table."""
    return begun(store, "BEGIN EXCLUSIVE", "LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")


def creating(store: rig.Store) -> AbstractAsyncContextManager[None]:
    """Another sidecar is creating our tables."""
    return begun(store, "BEGIN IMMEDIATE", "CREATE TABLE tasks_session_tombstones (session_id text)")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


@contextmanager
def unprivileged() -> Iterator[None]:
    """We are `nobody` when we were root, whom no file permission stops."""
    if os.geteuid() != 0:
        yield
        return
    nobody = pwd.getpwnam("nobody").pw_uid
    os.setresuid(nobody, nobody, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
async def role(bare_store: rig.Store, cluster: Server) -> AsyncIterator[str]:
    """A login role that may not touch a table of the store yet."""
    async with new_role(bare_store, cluster) as name:
        await bare_store.raw(f"GRANT USAGE ON SCHEMA public TO {name}")
        yield name


@pytest.fixture
def readable_folder() -> Iterator[Path]:
    """A folder that another user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def write_protected(folder: Path, files: int = 0o444) -> Iterator[None]:
    """The folder is read-only, its files have this mode, and we are somebody whom that stops."""
    for path in folder.iterdir():
        path.chmod(files)
    folder.chmod(0o555)
    with unprivileged():
        yield


# The task table is missing


async def test_task_table_missing(bare_store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """Until the agent creates its table everything is 503 and nothing is written; then it is seen at once."""
    await bare_store.raw("CREATE TABLE other (id INTEGER)")
    client = await open_sidecar(bare_store)
    await assert_reads_refused(client, "task_store_missing", "table tasks", "SIDECAR_")
    await assert_deletes_refused(client, "task_store_missing", "table tasks", "SIDECAR_")
    await assert_not_ready(client, "task_table")
    assert set() == await side_tables(bare_store)
    await bare_store.tasks.initialize()
    await bare_store.turn("chat-a")
    await assert_reads(client, 1)
    await assert_ready(client)


async def test_task_table_dropped(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A table that goes away under a running sidecar is missing, and one that comes back is seen."""
    await assert_reads(sidecar, 0)
    await store.raw("ALTER TABLE tasks RENAME TO away")
    await assert_reads_refused(sidecar, "task_store_missing", "table tasks")
    await assert_deletes_refused(sidecar, "task_store_missing", "table tasks")
    await store.raw("ALTER TABLE away RENAME TO tasks")
    await assert_reads(sidecar, 0)


@pytest.mark.parametrize("name", ["tasks.db", "absent/tasks.db", "100% ?#é.db"])
async def test_file_missing(name: str, tmp_path: Path, open_sidecar: rig.OpenSidecar) -> None:
    """A missing file is named and never created, neither by a read nor by a DELETE; it may appear later."""
    path = tmp_path / name
    url = f"sqlite:///{tmp_path}/{name.replace('%', '%25').replace('?', '%3F')}"
    async with rig.sqlite_store(tmp_path / "made.db") as made:
        client = await open_sidecar(made, database_url=url)
        await assert_reads_refused(client, "task_store_missing", str(path), "SIDECAR_DATABASE_URL")
        await assert_deletes_refused(client, "task_store_missing", str(path))
        await assert_not_ready(client, "task_table")
        assert [] == list(tmp_path.iterdir())
        await made.turn("chat-a")
        path.parent.mkdir(exist_ok=True)
        file_of(made).rename(path)
        await assert_reads(client, 1)


@on_sqlite
async def test_file_empty(bare_store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """An empty file is named too, since it may be the wrong one, and stays empty."""
    path = file_of(bare_store)
    path.touch()
    client = await open_sidecar(bare_store)
    await assert_reads_refused(client, "task_store_missing", str(path))
    await assert_deletes_refused(client, "task_store_missing", str(path))
    await assert_not_ready(client, "task_table")
    assert b"" == path.read_bytes()
    await bare_store.turn("chat-a")
    await assert_reads(client, 1)


@on_sqlite
async def test_file_is_no_database(bare_store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """A file of something else, or a folder, cannot be used; a database that takes its place can."""
    path = file_of(bare_store)
    path.write_bytes(b"no database at all" * 100)
    client = await open_sidecar(bare_store)
    await assert_reads_refused(client, "database_unavailable", "file")
    await assert_deletes_refused(client, "database_unavailable", "file")
    await assert_not_ready(client, "database")
    path.unlink()
    path.mkdir()
    await assert_reads_refused(client, "database_unavailable", "file")
    await assert_deletes_refused(client, "database_unavailable", "file")
    path.rmdir()
    await bare_store.turn("chat-a")
    await assert_reads(client, 1)


async def test_wrong_table_shape(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A table that lacks a column of the SDK's is refused by the name of the column, and is left alone."""
    for column in ("id", "context_id", "status", "artifacts", "history"):
        await store.raw(f"ALTER TABLE tasks RENAME COLUMN {column} TO other")
        await assert_reads_refused(sidecar, "task_store_missing", "table tasks", column)
        await assert_deletes_refused(sidecar, "task_store_missing", "table tasks", column)
        await assert_not_ready(sidecar, "task_table")
        await store.raw(f"ALTER TABLE tasks RENAME COLUMN other TO {column}")
    assert set() == await side_tables(store)
    await assert_reads(sidecar, 0)


@on_postgres
async def test_wrong_column_types(bare_store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """A table of somebody else's with the same column names is refused too."""
    await bare_store.raw("CREATE TABLE tasks (id int, context_id int, status int, artifacts int, history int)")
    client = await open_sidecar(bare_store)
    await assert_reads_refused(client, "task_store_missing", "table tasks", "columns")
    await assert_deletes_refused(client, "task_store_missing", "table tasks", "columns")


@pytest.mark.parametrize("table", ["tasks_session_tombstones", "tasks_task_tombstones"])
async def test_wrong_side_table(table: str, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A table that has one of our names and not our columns is no tombstone table: nothing is shown past it."""
    await store.raw(f"CREATE TABLE {table} (other INTEGER)")
    await assert_reads_refused(sidecar, "task_store_missing", "columns")


# Our tables


async def test_side_tables_are_created_by_a_read(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The first read creates our tables where it may; asking for readiness does too, or does no harm."""
    await store.turn("chat-a")
    await assert_ready(sidecar)
    await assert_reads(sidecar, 1)
    assert SIDE_TABLES == await side_tables(store)


async def test_side_tables_are_created_by_a_delete(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A DELETE that comes first creates them as well, and retires."""
    await store.turn("chat-a")
    response = await sidecar.delete(SESSION)
    assert (200, 1) == (response.status_code, response.json().get("turns_deleted"))
    assert SIDE_TABLES == await side_tables(store)
    await assert_reads(sidecar, 0)


async def test_side_table_dropped(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """One that is dropped under a running sidecar fails neither a read nor a DELETE, and is created again."""
    for table in SIDE_TABLES:
        await store.turn("chat-a")
        await assert_reads(sidecar, 1)
        await store.raw(f"DROP TABLE {table}")
        await assert_reads(sidecar, 1)
        await store.raw(f"DROP TABLE IF EXISTS {table}")
        assert 200 == (await sidecar.delete(f"{SESSION}?retire=false")).status_code
        assert SIDE_TABLES == await side_tables(store)


async def test_eight_sidecars_create_at_once(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """The first reads of eight sidecars race for the creation, and all are answered."""
    await store.turn("chat-a")
    clients = [await open_sidecar(store) for _ in range(8)]
    responses = await asyncio.gather(*(client.get(path) for client in clients for path in READS))
    assert [200] * 32 == [response.status_code for response in responses]
    assert SIDE_TABLES == await side_tables(store)


async def test_eight_sidecars_delete_at_once(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """The same with first DELETEs."""
    await store.turn("chat-a")
    clients = [await open_sidecar(store) for _ in range(8)]
    responses = await asyncio.gather(*(client.delete(SESSION) for client in clients))
    assert [200] * 8 == [response.status_code for response in responses]
    assert 1 == sum(response.json()["turns_deleted"] for response in responses)


async def test_lock_on_creation(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A creation that has to wait for a lock is left to a later request: the read is answered soon."""
    await store.turn("chat-a")
    async with creating(store):
        with within(1):
            assert 200 == (await sidecar.get(f"{SESSION}/turns")).status_code
    assert 200 == (await sidecar.delete(SESSION)).status_code
    assert SIDE_TABLES == await side_tables(store)


@on_postgres
async def test_may_not_create(
    store: rig.Store, role: str, cluster: Server, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """No table means nothing was ever retired: reads go on; a DELETE says what the owner has to run."""
    await store.turn("chat-a")
    await store.raw(f"GRANT SELECT, DELETE ON tasks TO {role}")
    client = await open_sidecar(store, database_url=address(store, cluster, role))
    await assert_reads(client, 1)
    await assert_ready(client, "unavailable: tasks_session_tombstones")
    named = ("public.tasks_session_tombstones", "a2a-sidecar prepare", "SELECT and INSERT", "grants.sql")
    await assert_deletes_refused(client, "tombstones_unavailable", *named)
    assert (set(), 1) == (await side_tables(store), await count(store))
    await prepare(store)
    for table in SIDE_TABLES:
        await store.raw(f"GRANT SELECT, INSERT ON {table} TO {role}")
    for table in BESIDE:
        await store.raw(f"GRANT SELECT, DELETE ON {table} TO {role}")
    assert 200 == (await client.delete(SESSION)).status_code
    await assert_reads(client, 0)
    await assert_ready(client)


@pytest.mark.parametrize(("table", "status"), [("tasks_session_tombstones", 200), ("tasks_task_tombstones", 503)])
@on_postgres
async def test_tombstones_unreadable(
    table: str,
    status: int,
    store: rig.Store,
    role: str,
    cluster: Server,
    open_sidecar: rig.OpenSidecar,
    prepare: rig.Prepare,
) -> None:
    """Who cannot know what is retired shows nothing; a retirement that is made all the same holds."""
    await store.turn("chat-a")
    await prepare(store)
    await store.raw(f"GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    await store.raw(f"REVOKE SELECT ON {table} FROM {role}")
    client = await open_sidecar(store, database_url=address(store, cluster, role))
    await assert_reads_refused(client, "tombstones_unavailable", "SELECT", table, "grants.sql")
    assert status == (await client.delete(SESSION)).status_code
    await assert_reads_refused(client, "tombstones_unavailable", "SELECT", table, "grants.sql")
    await store.raw(f"GRANT SELECT ON {table} TO {role}")
    await assert_reads(client, 0 if status == 200 else 1)


@pytest.mark.parametrize("table", ["tasks", "tasks_session_tombstones", "tasks_task_tombstones"])
@on_postgres
async def test_unreadable_is_not_ready(
    table: str, store: rig.Store, role: str, cluster: Server, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """A sidecar that may not read what every read needs is not ready."""
    await prepare(store)
    await store.raw(f"GRANT SELECT, INSERT, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
    await store.raw(f"REVOKE SELECT ON {table} FROM {role}")
    client = await open_sidecar(store, database_url=address(store, cluster, role))
    await assert_not_ready(client, "privileges")


@on_postgres
async def test_tombstones_not_insertable(
    store: rig.Store, role: str, cluster: Server, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """A role that may only read reads as ever and retires nothing."""
    await store.turn("chat-a")
    await prepare(store)
    await store.raw(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    for table in ("tasks", *BESIDE):
        await store.raw(f"GRANT DELETE ON {table} TO {role}")
    client = await open_sidecar(store, database_url=address(store, cluster, role))
    await assert_reads(client, 1)
    await assert_ready(client, "unavailable: the role lacks INSERT on tasks_session_tombstones")
    assert_refused(await client.delete(SESSION), "read_only", "tasks_session_tombstones", "grants.sql")
    assert_refused(await client.delete(f"{SESSION}?retire=false"), "read_only", "tasks_task_tombstones", "grants.sql")
    assert 1 == await count(store)


@pytest.mark.parametrize("prepared", [True, False])
@on_postgres
async def test_read_only_transactions(
    prepared: bool, store: rig.Store, role: str, cluster: Server, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """A session that is read-only, as on a standby, reads as ever and retires nothing."""
    await store.turn("chat-a")
    if prepared:
        await prepare(store)
    await store.raw(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    await store.raw(f"GRANT CREATE ON SCHEMA public TO {role}")
    await store.raw(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    client = await open_sidecar(store, database_url=address(store, cluster, role))
    await assert_reads(client, 1)
    await assert_ready(client, "unavailable: the database is read-only")
    code = "read_only" if prepared else "tombstones_unavailable"
    await assert_deletes_refused(client, code, "read-only", "primary")
    assert 1 == await count(store)


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
async def test_file_is_read_only(
    mode: str, prepared: bool, readable_folder: Path, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """A file that we may only read is read, with or without our tables, and nothing is retired."""
    async with rig.sqlite_store(readable_folder / "tasks.db") as store:
        await store.raw(f"PRAGMA journal_mode = {mode}")
        with closing(sqlite3.connect(file_of(store))) as agent:
            await store.turn("chat-a")
            agent.execute("SELECT * FROM tasks").fetchall()  # in WAL mode -shm stays as long as the agent is there
            if prepared:
                await prepare(store)
            with write_protected(readable_folder):
                client = await open_sidecar(store)
                await assert_reads(client, 1)
                await assert_ready(client, "unavailable: the database file or its folder is read-only")
                code = "read_only" if prepared else "tombstones_unavailable"
                await assert_deletes_refused(client, code, "read-only", "write permission")
                await assert_reads(client, 1)


async def test_folder_is_read_only(readable_folder: Path, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare) -> None:
    """A writable file in a folder where SQLite cannot put its journal is as good as read-only."""
    async with rig.sqlite_store(readable_folder / "tasks.db") as store:
        await store.turn("chat-a")
        await prepare(store)
        with write_protected(readable_folder, files=0o666):
            client = await open_sidecar(store)
            await assert_reads(client, 1)
            await assert_ready(client, "unavailable: the database file or its folder is read-only")
            await assert_deletes_refused(client, "read_only", "folder")
        assert 1 == await count(store)


async def test_wal_without_its_index(
    readable_folder: Path, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """A WAL file whose -shm is not there and cannot be made is refused with the reason, not read past its log."""
    async with rig.sqlite_store(readable_folder / "tasks.db") as store:
        await store.raw("PRAGMA journal_mode = WAL")
        await store.turn("chat-a")
        await prepare(store)
        assert [file_of(store)] == list(readable_folder.iterdir())
        with write_protected(readable_folder):
            client = await open_sidecar(store)
            await assert_reads_refused(client, "read_only", "WAL", "-shm", "folder")
            await assert_deletes_refused(client, "read_only", "WAL", "-shm", "folder")
            await assert_not_ready(client, "database")


async def test_file_unreadable(readable_folder: Path, open_sidecar: rig.OpenSidecar) -> None:
    """A file that we may not even read is refused for its permissions."""
    async with rig.sqlite_store(readable_folder / "tasks.db") as store:
        await store.turn("chat-a")
        with write_protected(readable_folder, files=0):
            client = await open_sidecar(store)
            await assert_reads_refused(client, "database_unavailable", "permissions")
            await assert_deletes_refused(client, "database_unavailable", "permissions")
            await assert_not_ready(client, "database")
        file_of(store).chmod(0o644)
        await assert_reads(client, 1)


# The server is down


async def until_answered(client: httpx.AsyncClient, seconds: float) -> None:
    with within(seconds):
        while (await client.get(INDEX)).status_code != 200:
            pass


@on_postgres
async def test_server_killed(store: rig.Store, sidecar: httpx.AsyncClient, own_cluster: Cluster) -> None:
    """While the server is down everything is 503 at once; when it is back the same sidecar goes on."""
    await store.turn("chat-a")
    await asyncio.gather(*(sidecar.get(INDEX) for _ in range(10)))
    own_cluster.kill()
    with within(2):
        await assert_reads_refused(sidecar, "database_unavailable")
        await assert_deletes_refused(sidecar, "database_unavailable")
        await assert_not_ready(sidecar, "database")
    own_cluster.start()
    await until_answered(sidecar, 2)
    await assert_reads(sidecar, 1)
    await assert_ready(sidecar)
    assert 200 == (await sidecar.delete(SESSION)).status_code


@on_postgres
async def test_server_restarts_under_load(store: rig.Store, sidecar: httpx.AsyncClient, own_cluster: Cluster) -> None:
    """A restart breaks requests in flight with 503 and nothing else."""
    await store.turn("chat-a")
    async with polled(sidecar, *[f"{SESSION}/turns"] * 4) as seen:
        for mode in ("fast", "immediate"):
            await asyncio.sleep(0.1)
            await asyncio.to_thread(own_cluster.restart, mode)
            await until_answered(sidecar, 2)
    assert seen <= {(200, ""), (503, "database_unavailable")}
    assert (200, "") in seen


@on_postgres
async def test_server_killed_before_a_commit(
    store: rig.Store, sidecar: httpx.AsyncClient, own_cluster: Cluster
) -> None:
    """A DELETE whose connection dies on the way is 503, and the store is as before it."""
    await store.turn("chat-a")
    await assert_reads(sidecar, 1)
    with suppress(DBAPIError):  # the producer's connection dies too
        async with saving(store):
            deleting = asyncio.create_task(sidecar.delete(SESSION))
            await asyncio.sleep(0.3)
            own_cluster.kill()
            assert_refused(await deleting, "database_unavailable")
    own_cluster.start()
    await until_answered(sidecar, 2)
    await assert_reads(sidecar, 1)
    assert 0 == await count(store, "tasks_session_tombstones")


@on_postgres
async def test_server_killed_during_a_commit(
    store: rig.Store, sidecar: httpx.AsyncClient, own_cluster: Cluster
) -> None:
    """A DELETE whose commit was written and never acknowledged says that nobody knows, and may be repeated."""
    await store.turn("chat-a")
    await assert_reads(sidecar, 1)
    # a commit waits for a standby that never comes, after it was written
    await own_cluster.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    try:
        await own_cluster.execute("SELECT pg_reload_conf()")
        await asyncio.sleep(0.2)
        deleting = asyncio.create_task(sidecar.delete(SESSION))
        await asyncio.sleep(0.3)
        own_cluster.kill()
        assert_refused(await deleting, "database_unavailable", "outcome is unknown", "Repeating the request is safe")
    finally:
        (own_cluster.data / "postgresql.auto.conf").write_text("")
    own_cluster.start()
    await until_answered(sidecar, 2)
    response = await sidecar.delete(SESSION)
    assert (200, 0) == (response.status_code, response.json()["turns_deleted"])


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    """The server is there and does not speak, as behind a network that drops packets."""
    assert cluster.process is not None
    processes = [cluster.process.pid, *children(cluster.process.pid)]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


@on_postgres
async def test_server_frozen(store: rig.Store, open_sidecar: rig.OpenSidecar, own_cluster: Cluster) -> None:
    """A server that falls silent on an open connection is 503 soon after the statement timeout."""
    await store.turn("chat-a")
    client = await open_sidecar(store, statement_timeout=0.5)
    await assert_reads(client, 1)
    with frozen(own_cluster):
        async with asyncio.timeout(5):
            assert_refused(await client.get(INDEX), "database_unavailable")
    await until_answered(client, 2)
    await assert_reads(client, 1)


@on_postgres
async def test_connections_ended(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Connections that an administrator or a proxy ended in the pool are replaced unnoticed."""
    await store.turn("chat-a")
    await asyncio.gather(*(sidecar.get(INDEX) for _ in range(10)))
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    await store.raw(f"{others} AND pid <> pg_backend_pid()")
    await assert_reads(sidecar, 1)
    await store.raw(f"{others} AND pid <> pg_backend_pid()")
    assert 200 == (await sidecar.delete(SESSION)).status_code


@pytest.mark.parametrize(
    ("alter", "undo"),
    [
        ("ALTER ROLE {role} CONNECTION LIMIT 0", "ALTER ROLE {role} CONNECTION LIMIT -1"),
        ("ALTER ROLE {role} NOLOGIN", "ALTER ROLE {role} LOGIN"),
        pytest.param(
            "REVOKE CONNECT ON DATABASE {database} FROM PUBLIC",
            "GRANT CONNECT ON DATABASE {database} TO PUBLIC",
        ),
        pytest.param(
            "ALTER DATABASE {database} ALLOW_CONNECTIONS false",
            "ALTER DATABASE {database} ALLOW_CONNECTIONS true",
        ),
        ("ALTER DATABASE {database} RENAME TO {database}_away", "ALTER DATABASE {database}_away RENAME TO {database}"),
    ],
)
@on_postgres
async def test_connection_refused(
    alter: str, undo: str, store: rig.Store, role: str, cluster: Server, open_sidecar: rig.OpenSidecar
) -> None:
    """A server that does not let us in is 503, and the sidecar enters as soon as it does."""
    await store.turn("chat-a")
    await store.raw(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    names = {"role": role, "database": store.engine.url.database}
    await cluster.execute(alter.format(**names))
    client = await open_sidecar(store, database_url=address(store, cluster, role))
    try:
        await assert_reads_refused(client, "database_unavailable")
        await assert_deletes_refused(client, "database_unavailable")
        await assert_not_ready(client, "database")
    finally:
        await cluster.execute(undo.format(**names))
    await assert_reads(client, 1)


@on_postgres
async def test_server_never_answers(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """A connection that is accepted and never spoken on ends in 503 after `connect_timeout`."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        client = await open_sidecar(store, database_url=f"postgresql://u@127.0.0.1:{port}/d?connect_timeout=0.5")
        with within(1.5):
            reading, _ = await asyncio.gather(client.get(INDEX), assert_not_ready(client, "database"))
            assert_refused(reading, "database_unavailable")


# Locks and limits


async def test_lock_waited_for(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A lock of a second is waited for."""
    await store.turn("chat-a")
    await assert_reads(sidecar, 1)
    async with locked(store):
        reading = asyncio.create_task(sidecar.get(INDEX))
        deleting = asyncio.create_task(sidecar.delete(SESSION))
        await asyncio.sleep(1)
        assert (False, False) == (reading.done(), deleting.done())
    assert [200, 200] == [(await reading).status_code, (await deleting).status_code]


async def test_lock_too_long_for_a_read(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """A lock that outlasts the statement timeout is 503 after it, while the process is alive."""
    await store.turn("chat-a")
    client = await open_sidecar(store, statement_timeout=0.5)
    await assert_reads(client, 1)
    async with locked(store):
        reading = asyncio.gather(*(client.get(path) for path in READS))
        with within(0.3):
            assert 200 == (await client.get("/livez")).status_code
        with within(1.5):
            for response in await reading:
                assert_refused(response, "busy")
    await assert_reads(client, 1)


async def test_lock_too_long_for_a_delete(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """A DELETE that cannot even look at the table gives up as well, and changes nothing."""
    await store.turn("chat-a")
    client = await open_sidecar(store, statement_timeout=0.5)
    await assert_reads(client, 1)
    async with locked(store):
        with within(1.5):
            for response in await asyncio.gather(client.delete(SESSION), client.delete(f"{SESSION}?retire=false")):
                assert_refused(response, "busy")
    await assert_reads(client, 1)
    assert [0, 0, 0] == [await count(store, table) for table in SIDE_TABLES]


@pytest.mark.usefixtures("sqlite_suffices")
async def test_delete_behind_a_producer(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A DELETE gives up on the lock of a producer's save within three seconds, and changes nothing."""
    await store.turn("chat-a")
    await assert_reads(sidecar, 1)
    async with saving(store):
        with within(3):
            assert_refused(await sidecar.delete(SESSION), "busy")
    await assert_reads(sidecar, 1)
    assert [0, 0, 0] == [await count(store, table) for table in SIDE_TABLES]


@on_sqlite
async def test_readiness_is_quick(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """`/readyz` answers within a second or so, whatever is locked."""
    await store.turn("chat-a")
    await assert_reads(sidecar, 1)
    async with locked(store):
        with within(1.5):
            await sidecar.get("/readyz")
    await assert_ready(sidecar)


async def test_pool_exhausted(store: rig.Store, open_sidecar: rig.OpenSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds every connection taken is told so soon; `/livez` needs none."""
    monkeypatch.setattr("sidecar.db.POOL_WAIT_SECONDS", 0.3)
    await store.turn("chat-a")
    client = await open_sidecar(store, pool_size=1, statement_timeout=1.5)
    await assert_reads(client, 1)
    async with locked(store):
        first = asyncio.create_task(client.get(INDEX))
        await asyncio.sleep(0.1)
        with within(0.7):
            assert_refused(await client.get(INDEX), "busy", "SIDECAR_POOL_SIZE")
            assert_refused(await client.delete(SESSION), "busy", "SIDECAR_POOL_SIZE")
        with within(0.1):
            assert 200 == (await client.get("/livez")).status_code
        assert not first.done()
    assert 200 == (await first).status_code


# What changes under a running sidecar


@pytest.mark.parametrize("wal", [False, True])
@on_sqlite
async def test_file_replaced(wal: bool, store: rig.Store, sidecar: httpx.AsyncClient, tmp_path: Path) -> None:
    """The next request reads the new file, and a DELETE goes there."""
    await store.turn("chat-a")
    await assert_reads(sidecar, 1)
    async with rig.sqlite_store(tmp_path / "new.db") as new:
        await new.raw(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
        await new.turn("chat-a")
        await new.turn("chat-a")
        file_of(store).rename(tmp_path / "old.db")
        file_of(new).rename(file_of(store))
    await assert_reads(sidecar, 2)
    shutil.copy(file_of(store), tmp_path / "third.db")
    (tmp_path / "third.db").rename(file_of(store))
    assert 2 == (await sidecar.delete(SESSION)).json()["turns_deleted"]
    await assert_reads(sidecar, 0)
    assert 0 == await count(store)


@on_sqlite
async def test_file_removed(store: rig.Store, sidecar: httpx.AsyncClient, tmp_path: Path) -> None:
    """A file that goes away is missing: nothing is acknowledged into what nobody can open any more."""
    await store.turn("chat-a")
    await assert_reads(sidecar, 1)
    file_of(store).rename(tmp_path / "away.db")
    await assert_reads_refused(sidecar, "task_store_missing", str(file_of(store)))
    await assert_deletes_refused(sidecar, "task_store_missing", str(file_of(store)))
    await assert_not_ready(sidecar, "task_table")
    (tmp_path / "away.db").rename(file_of(store))
    await assert_reads(sidecar, 1)


@asynccontextmanager
async def polled(client: httpx.AsyncClient, *paths: str) -> AsyncIterator[set[tuple[int, str]]]:
    """Requests one after the other on each of the paths, and the set of status and code that they meet."""
    seen: set[tuple[int, str]] = set()
    ends = asyncio.Event()

    async def poll(path: str) -> None:
        while not ends.is_set():
            response = await client.get(path)
            seen.add((response.status_code, response.json().get("code", "")))

    async with asyncio.TaskGroup() as polls:
        for path in paths:
            polls.create_task(poll(path))
        try:
            yield seen
        finally:
            ends.set()


@pytest.mark.parametrize("name", ["0.3.26", "1.3.0"])
async def test_migrations_under_polling(
    name: str, sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """Columns that come and go, prepare and its undo: whoever polls meanwhile is always answered."""
    store = await sdk_database(name)
    client = await open_sidecar(store)
    steps = ["ADD COLUMN added INTEGER", "prepare", "DROP COLUMN added", "undo"]
    if name == "0.3.26":
        steps[:0] = [f"ADD COLUMN {each}" for each in ("owner VARCHAR", "last_updated TIMESTAMP")]
    async with polled(client, *READS[:2], f"{INDEX}/chat-a1", f"{INDEX}/chat-a1/turns") as seen:
        for step in steps:
            if step == "prepare":
                await prepare(store)
            elif step == "undo":
                await undo(store)
            else:
                await store.raw(f"ALTER TABLE tasks {step}")
            await asyncio.sleep(0.1)
    assert {(200, "")} == seen


async def undo(store: rig.Store) -> None:
    """What `a2a-sidecar prepare --undo` does."""
    from sidecar.db import Database
    from tombstones.prepare import undo as run

    database = Database(rig.config_for(store))
    await database.alter(run, lambda statement: None)
    await database.close()
