"""The rig itself: its PostgreSQL, its stores and its client; nothing of the sidecar."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import make_url
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests import rig
from tests.postgres import Cluster, Server


@pytest.mark.parametrize("kind", ["postgres"])
async def test_a_database_speaks_utf8_whatever_our_locale(own_cluster: Cluster, bare_store: rig.Store) -> None:
    """A new database is UTF-8, sorts by bytes, and its server runs in a zone that can't be taken for UTC."""
    sql = """SELECT current_setting('server_encoding'), datcollate, current_setting('timezone')
        FROM pg_database WHERE datname = current_database()"""

    assert [("UTF8", "C.UTF-8", "Asia/Kolkata")] == await bare_store.raw(sql)


@pytest.mark.skipif(os.geteuid() != 0, reason="we are not root, so the server runs as ourselves")
def test_the_server_runs_unprivileged(own_cluster: Cluster) -> None:
    """Run by root, the server belongs to another account, and no other may look into its folder."""
    assert own_cluster.process is not None
    account = Path(f"/proc/{own_cluster.process.pid}").stat().st_uid
    folder = own_cluster.folder.stat()

    assert 0 != account
    assert (account, 0o700) == (folder.st_uid, stat.S_IMODE(folder.st_mode))


@pytest.mark.parametrize("kind", ["postgres"])
async def test_a_killed_server_recovers_what_was_committed(own_cluster: Cluster, store: rig.Store) -> None:
    """After SIGKILL to all of the server nobody answers; started again, it holds every acknowledged row."""
    saved = [await store.turn("chat-1") for _ in range(20)]

    own_cluster.kill()
    with pytest.raises(ConnectionRefusedError):
        await store.column_text("status")
    own_cluster.start()

    assert set(saved) == set(await store.column_text("status"))


def test_no_server_outlives_its_tests() -> None:
    """Tests that die of SIGKILL leave neither the server's folder nor a process of it."""
    script = """if True:
        import sys
        from tests.postgres import running_cluster
        with running_cluster() as cluster:
            print(cluster.folder, cluster.process.pid, flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        folder, pid = tests.stdout.readline().split()
        tests.send_signal(signal.SIGKILL)

    deadline = time.monotonic() + 30
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(folder).exists()
    assert not Path(f"/proc/{pid}/exe").exists()


async def test_roles_are_plain_sql(cluster: Server) -> None:
    """A role made by SQL opens a database under its own name through `url`."""
    name = make_url(await cluster.create_database()).database
    assert name is not None
    await cluster.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    try:
        url = make_url(cluster.url(name, name, "secret")).set(drivername="postgresql")
        connection = await asyncpg.connect(url.render_as_string(hide_password=False))
        assert name == await connection.fetchval("SELECT current_user")
        await connection.close()
    finally:
        await cluster.drop_database(name)
        await cluster.execute(f"DROP ROLE {name}")


async def test_a_turn_is_what_the_sdk_stores(store: rig.Store) -> None:
    """A turn is written by the SDK: its columns, and the JSON text that its own encoder makes."""
    task_id = await store.turn("chat-1", "input-required", ["a", "é"], prompt=None, owner="alice", status_text="Which?")

    [status] = (await store.column_text("status")).values()
    assert status is not None
    assert status.startswith(b'{"state": "TASK_STATE_INPUT_REQUIRED", "message": {"messageId": ')
    assert status.endswith(b'"parts": [{"text": "Which?"}]}, "timestamp": "2026-01-05T09:00:00Z"}')
    artifacts = rb'[{"artifactId": "answer", "parts": [{"text": "a"}, {"text": "\u00e9"}]}]'
    assert {task_id: artifacts} == await store.column_text("artifacts")
    assert {task_id: b"[]"} == await store.column_text("history")
    assert [("chat-1", "alice", "1.0")] == await store.raw("SELECT context_id, owner, protocol_version FROM tasks")


async def test_turns_follow_each_other_and_can_be_saved_again(store: rig.Store) -> None:
    """Each turn is a minute after the one before; saving one again moves it, and None takes its time away."""
    first, second = await store.turn("chat-1"), await store.turn("chat-1")
    await store.turn("chat-1", task_id=first)
    untimed = await store.turn("chat-1", at=None)

    expected = {first: "2026-01-05 09:02:00", second: "2026-01-05 09:01:00", untimed: None}
    rows = await store.raw("SELECT id, substr(CAST(last_updated AS VARCHAR(26)), 1, 19) FROM tasks")
    assert expected == {row[0]: row[1] for row in rows}


async def test_raw_rows_are_stored_as_given(store: rig.Store) -> None:
    """Spelling, duplicate keys, NUL escapes and SQL NULL arrive in the table unchanged, past the SDK."""
    status = r'{ "state":"x","state":"\u0000\ud83d", "n":1.0e2 }'
    task_id = await store.insert_raw(status=status, history=None, last_updated="2026-01-05 09:00:00.000001")

    assert {task_id: status.encode()} == await store.column_text("status")
    assert {task_id: None} == await store.column_text("history")
    [(at,)] = await store.raw("SELECT CAST(last_updated AS VARCHAR(26)) FROM tasks")
    assert "2026-01-05 09:00:00.000001" == at


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_raw_rows_may_be_broken_on_sqlite(store: rig.Store) -> None:
    """SQLite takes text that is neither JSON nor UTF-8."""
    task_id = await store.insert_raw(status=b"{\xff", history="[")

    assert {task_id: b"{\xff"} == await store.column_text("status")
    assert {task_id: b"["} == await store.column_text("history")


@pytest.mark.parametrize(("name", "rows"), [("0.3.26", 19), ("1.3.0", 19), ("mixed-0.3.26-to-1.3.0", 26)])
async def test_sdk_databases_load(sdk_database: rig.LoadSdkDatabase, name: str, rows: int) -> None:
    """The databases of older SDKs open on both kinds, and this SDK goes on writing to those with its columns."""
    store = await sdk_database(name)

    assert rows == len(await store.column_text("status"))
    if name != "0.3.26":
        assert await store.turn("chat-late") in await store.column_text("status")


async def test_the_client_drives_an_app_like_a_server() -> None:
    """Paths arrive percent-encoded as sent, with the lifespan's state and the token; a crash is a 500."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, str]]:
        yield {"greeting": "hello"}
        ended.append(True)

    async def echo(request: Request) -> PlainTextResponse:
        seen = f"{request.scope['raw_path'].decode()} {request.state.greeting} {request.headers['authorization']}"
        return PlainTextResponse(seen)

    async def crash(request: Request) -> PlainTextResponse:
        raise ZeroDivisionError

    ended: list[bool] = []
    app = Starlette(routes=[Route("/crash", crash), Route("/{path:path}", echo)], lifespan=lifespan)
    async with rig.client(app, "secret") as client:
        for path in ("/a%2Fb", "/a%2fb/turns", "/a%00b", "/a%zzb", "/a%", "/%E4%B8", "/%2e%2e/a", "/a%20b", "/a//b"):
            assert f"{path} hello Bearer secret" == (await client.get(path)).text
        assert 500 == (await client.get("/crash")).status_code
        assert [] == ended
    assert [True] == ended


async def test_a_failed_startup_is_raised() -> None:
    """An app that can't start fails its test with its own error."""

    def lifespan(_app: Starlette) -> AbstractAsyncContextManager[None]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with rig.client(Starlette(lifespan=lifespan)):
            pass
