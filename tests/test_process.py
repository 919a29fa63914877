"""The real `serve` process on a real port: its start, its signals, its refusals; every other test runs in process."""

import asyncio
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread

import httpx
import pytest

from tests import rig

INDEX = "/api/chat/sessions"
HEADERS = {"Authorization": f"Bearer {rig.TOKEN}"}
START_SECONDS = 1.5
PATIENCE_SECONDS = 15.0
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])


@dataclass
class Sidecar:
    """A running process, where it listens, and how long that took."""

    process: "subprocess.Popen[str]"
    url: str
    start_seconds: float
    log: list[str]
    reading: Thread

    def get(self, path: str = INDEX) -> httpx.Response:
        # plain http needs no certificates, whose loading takes longer than the request
        return httpx.get(self.url + path, headers=HEADERS, timeout=PATIENCE_SECONDS, verify=False)

    def client(self) -> httpx.AsyncClient:
        """A client that sends the token and keeps its connections."""
        return httpx.AsyncClient(base_url=self.url, headers=HEADERS, timeout=PATIENCE_SECONDS, verify=False)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code; its log is whole then."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_SECONDS)
        self.reading.join()
        return code


def environment(database_url: str, **settings: str) -> dict[str, str]:
    """This process's own environment, with these settings and no others; an empty one is left out."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}
    given = {"SIDECAR_DATABASE_URL": database_url, "SIDECAR_TOKEN": rig.TOKEN, **settings}
    return {**others, **{name: value for name, value in given.items() if value}}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sidecar", *arguments]


@contextmanager
def serving(database_url: str, *flags: str, **settings: str) -> Iterator[Sidecar]:
    """`serve` on a free port, from its line that it listens; it is killed at the end.

    Its log is read all the time, for a full pipe would stop it.
    """
    started = time.monotonic()
    log: list[str] = []
    listening: Queue[str] = Queue()
    with subprocess.Popen(
        command("serve", "--port", "0", *flags),
        env=environment(database_url, **settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        reading = Thread(target=_read, args=(process, log, listening))
        reading.start()
        try:
            url = listening.get(timeout=PATIENCE_SECONDS * 2)
            assert url, "\n".join(["it never listened", *log])
            yield Sidecar(process, url, time.monotonic() - started, log, reading)
        finally:
            process.kill()
            reading.join()


def _read(process: "subprocess.Popen[str]", log: list[str], listening: "Queue[str]") -> None:
    """Keeps the log, and tells where it listens, or at its end nothing."""
    assert process.stdout is not None
    for line in process.stdout:
        log.append(line.rstrip())
        if found := re.search(r"listening on (http://[^\s\"]+)", line):
            listening.put(found[1])
    listening.put("")


def ended(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """A command that ends by itself."""
    return subprocess.run(command(*arguments), env=environ, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


async def test_serves_soon_and_small(store: rig.Store) -> None:
    """It answers soon after its start, logs one JSON object a line, and takes little memory."""
    await store.turn("chat-a")
    with serving(store.url) as sidecar:
        response = sidecar.get()
        memory = resident_mib(sidecar.process.pid)
        print(f"\n{store.kind}: listening after {sidecar.start_seconds:.2f} s, {memory:.0f} MiB resident")
        assert ["chat-a"] == [each["session_id"] for each in response.json()["sessions"]]
        assert "server" not in response.headers
        assert sidecar.start_seconds < 5, f"the aim is {START_SECONDS} s"
        assert memory < 100
        assert 0 == sidecar.stop()
    events = [json.loads(line) for line in sidecar.log]
    assert ["note", "answered"] == [each["event"] for each in events]
    assert rig.TOKEN not in str(events)


def resident_mib(process_id: int, *, peak: bool = False) -> float:
    """What a process holds of memory, or held at most, as Linux tells it."""
    status = Path(f"/proc/{process_id}/status")
    if not status.exists():
        pytest.skip("only Linux tells the memory of a process in /proc")
    found = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", status.read_text("utf-8"))
    assert found is not None
    return int(found[1]) / 1024


@on_sqlite
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_requests_finish(number: int, store: rig.Store) -> None:
    """What is in flight when the signal comes is answered; then the exit code is 0, within ten seconds."""
    await store.turn("chat-a")
    with serving(store.url) as sidecar, closing(sqlite3.connect(_file(store))) as writer:
        assert 200 == sidecar.get().status_code
        writer.execute("BEGIN EXCLUSIVE")
        slow = asyncio.create_task(asyncio.to_thread(sidecar.get))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        stopping = asyncio.create_task(asyncio.to_thread(sidecar.stop, number))
        await asyncio.sleep(0.5)
        assert not slow.done()
        with pytest.raises(httpx.ConnectError):
            await asyncio.to_thread(sidecar.get)
        writer.execute("ROLLBACK")
        assert 200 == (await slow).status_code
        assert 0 == await stopping
        assert time.monotonic() - began < 10
        assert not any("Traceback" in line or "traceback" in line for line in sidecar.log), sidecar.log


def _file(store: rig.Store) -> str:
    return store.url.partition(":///")[2]


@on_sqlite
async def test_a_store_that_appears_later(bare_store: rig.Store) -> None:
    """A sidecar may start before its agent: it says what is missing, creates no file, and answers as soon as it can."""
    with serving(bare_store.url) as sidecar:
        assert any("There is no database file" in line and "Serving all the same" in line for line in sidecar.log)
        missing = sidecar.get()
        assert (503, "task_store_missing") == (missing.status_code, missing.json()["code"])
        assert not Path(_file(bare_store)).exists()
        await bare_store.tasks.initialize()
        await bare_store.turn("chat-a")
        assert ["chat-a"] == [each["session_id"] for each in sidecar.get().json()["sessions"]]


async def test_a_foreign_table_is_refused(bare_store: rig.Store) -> None:
    """A table that can never be read ends the start with 2, and the missing column is named."""
    await bare_store.raw("CREATE TABLE tasks (id TEXT, status TEXT, artifacts TEXT, history TEXT)")
    done = ended("serve", "--port", "0", **environment(bare_store.url))
    assert (2, "") == (done.returncode, done.stdout)
    assert "error: SIDECAR_TASKS_TABLE: The table tasks has no column context_id" in done.stderr


def test_a_database_that_does_not_answer() -> None:
    """A database that does not answer delays the start by a second at most, and ends nothing."""
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        serving(f"postgresql://reader@127.0.0.1:{deaf.getsockname()[1]}/agent") as sidecar,
    ):
        assert sidecar.start_seconds < 5
        assert any("has not answered yet" in line for line in sidecar.log)
        assert 200 == sidecar.get("/livez").status_code
        assert 503 == sidecar.get("/readyz").status_code


async def test_prepare_at_the_start(store: rig.Store) -> None:
    """With `--prepare` the indexes stand before the first request is answered."""
    with serving(store.url, "--prepare") as sidecar:
        assert any("prepared the store" in line for line in sidecar.log)
        assert 200 == sidecar.get().status_code
    found = "sqlite_master WHERE name" if store.kind == "sqlite" else "pg_indexes WHERE indexname"
    assert 3 == (await store.raw(f"SELECT count(*) FROM {found} LIKE 'tasks_sidecar_%'"))[0][0]


@on_sqlite
async def test_a_failing_prepare_ends_nothing(bare_store: rig.Store) -> None:
    """What could not be prepared, such as a view, is said, and the sidecar serves."""
    await bare_store.raw("CREATE TABLE stored (id TEXT, context_id TEXT, status TEXT, artifacts TEXT, history TEXT)")
    await bare_store.raw("CREATE VIEW tasks AS SELECT * FROM stored")
    with serving(bare_store.url, "--prepare") as sidecar:
        assert any("The store was not prepared" in line for line in sidecar.log)
        assert 200 == sidecar.get("/livez").status_code


def test_a_taken_port() -> None:
    """A port that is taken ends the start with 1 and one line that says so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = ended("serve", "--port", port, **environment("sqlite:///tasks.db"))
    assert 1 == done.returncode
    fault = f"cannot listen on 127.0.0.1, port {port}: Address already in use. Choose another with --host or --port."
    assert f"error: {fault}\n" == done.stderr


def test_an_unusable_configuration() -> None:
    """Every fault is a line that names its setting, and the exit code is 2; so is what a token file lacks."""
    done = ended("serve", "--port", "x", **environment("mysql://db/agent", SIDECAR_POOL_SIZE="0"))
    assert (2, "") == (done.returncode, done.stdout)
    named = re.findall(r"^error: (\w+): .*\.$", done.stderr, re.M)
    assert ["SIDECAR_DATABASE_URL", "SIDECAR_POOL_SIZE", "SIDECAR_PORT"] == sorted(named), done.stderr
    done = ended("serve", "--tokens-file", "none.toml", **environment("sqlite:///tasks.db"))
    assert 2 == done.returncode
    assert done.stderr.startswith("error: SIDECAR_TOKENS_FILE: none.toml cannot be read"), done.stderr


def test_no_token_at_all() -> None:
    """Without a token it does not serve: not even on the loopback, unless told so."""
    done = ended("serve", **environment("sqlite:///tasks.db", SIDECAR_TOKEN=""))
    assert 2 == done.returncode
    assert done.stderr.startswith("error: SIDECAR_TOKEN_FILE: no token is configured")
    with serving("sqlite:///tasks.db", "--insecure-no-auth", SIDECAR_TOKEN="") as sidecar:
        assert 503 == sidecar.get().status_code


@on_sqlite
async def test_health(store: rig.Store) -> None:
    """The command for a container's health check is content while the process answers, whatever it is bound to."""
    with serving(store.url, "--host", "0.0.0.0") as sidecar:
        port = sidecar.url.rpartition(":")[2]
        settings = environment(store.url, SIDECAR_HOST="0.0.0.0", http_proxy="http://127.0.0.1:9")
        lives = ended("health", "--port", port, **settings)
        assert (0, "ok\n", "") == (lives.returncode, lives.stdout, lives.stderr)
        assert 0 == sidecar.stop()
        gone = ended("health", "--port", port, **settings)
    assert 1 == gone.returncode
    why = "Connection refused; start it, or correct --host and --port"
    assert f"error: 127.0.0.1, port {port} does not answer: {why}\n" == gone.stderr
