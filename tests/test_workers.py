"""Several worker processes behind one socket, and several sidecars on one store: they answer as one."""

import asyncio
import os
import signal
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from itertools import repeat
from pathlib import Path
from threading import Event
from typing import NamedTuple

import httpx
import pytest

from tests import rig
from tests.bench.generate import START, Planned, load
from tests.postgres import children
from tests.test_outgoing import TEXT_BYTES, incompressible
from tests.test_process import HEADERS, INDEX, PATIENCE_SECONDS, Sidecar, ended, environment, on_sqlite, serving

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells who holds a socket")
on_postgres = pytest.mark.parametrize("kind", ["postgres"])
PIECE_BYTES = 64 * 1024


def working(database_url: str, count: int, *flags: str, **settings: str) -> AbstractContextManager[Sidecar]:
    """`serve` with so many workers."""
    return serving(database_url, "--workers", str(count), *flags, **settings)


def workers(sidecar: Sidecar) -> set[int]:
    """The process ids of the workers; `multiprocessing` has one more process, which tracks its resources."""
    found = set()
    for pid in children(sidecar.process.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def worker_behind(response: httpx.Response, sidecar: Sidecar) -> int:
    """The worker that holds the other end of the connection."""
    stream = response.extensions["network_stream"]
    ends = [f"{stream.get_extra_info(name)[1]:04X}" for name in ("server_addr", "client_addr")]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()]
    sockets = {f"socket:[{row[9]}]" for row in rows if [row[1][-4:], row[2][-4:]] == ends}
    for link in (link for pid in workers(sidecar) for link in Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):
            if str(link.readlink()) in sockets:
                return int(link.parts[2])
    raise LookupError(sockets)


def client_of(sidecar: Sidecar) -> httpx.Client:
    """A client that keeps its connection."""
    return httpx.Client(base_url=sidecar.url, headers=HEADERS, timeout=PATIENCE_SECONDS, verify=False)


@contextmanager
def connections(sidecar: Sidecar, count: int) -> Iterator[dict[int, httpx.Client]]:
    """A client for each of the workers, once all of them answer."""
    found: dict[int, httpx.Client] = {}
    with ExitStack() as opened:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {len(found)} workers answered"
            client = opened.enter_context(client_of(sidecar))
            found.setdefault(worker_behind(client.get("/livez"), sidecar), client)
        yield found


def wait_until(holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Returns as soon as it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, holds
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def refuses(sidecar: Sidecar) -> bool:
    """Whether nobody listens any more."""
    host, _, port = sidecar.url.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionError:
        return True
    return False


@pytest.mark.usefixtures("sqlite_suffices")
async def test_all_workers_give_the_same_answers(store: rig.Store) -> None:
    """Each worker takes connections; bodies and validators are the same, so one's validator is good for another."""
    for number in range(5):
        await store.turn("chat-a", text=f"answer {number}")
    with working(store.url, 3) as sidecar, connections(sidecar, 3) as clients:
        assert workers(sidecar) == set(clients)
        for path in (INDEX, f"{INDEX}/chat-a", f"{INDEX}/chat-a/turns"):
            answers = [client.get(path) for client in clients.values()]
            assert [200] * 3 == [answer.status_code for answer in answers]
            assert 1 == len({(answer.content, answer.headers["etag"]) for answer in answers})
            known = {"If-None-Match": answers[0].headers["etag"]}
            assert [304] * 3 == [client.get(path, headers=known).status_code for client in clients.values()]


@pytest.mark.usefixtures("sqlite_suffices")
async def test_a_deletion_is_seen_by_all_workers(store: rig.Store) -> None:
    """After the 200 to a DELETE no worker shows a turn: on old connections and new ones, with the old validator too."""
    sessions = [f"chat-{number}" for number in range(4)]
    for session in sessions:
        await store.turn(session)
    with (
        working(store.url, 2) as sidecar,
        connections(sidecar, 2) as clients,
        ThreadPoolExecutor(16) as pool,
    ):
        for number, session in enumerate(sessions):
            path = f"{INDEX}/{session}/turns"
            old = [client.get(path).headers["etag"] for client in clients.values()]
            assert 1 == len(set(old))
            polling, deleted = Event(), Event()
            late = pool.submit(_turns_after, deleted, polling, sidecar, path)
            polling.wait(PATIENCE_SECONDS)
            assert 200 == list(clients.values())[number % 2].delete(f"{INDEX}/{session}").status_code
            deleted.set()
            for client in clients.values():
                response = client.get(path, headers={"If-None-Match": old[0]})
                assert (200, b'{"turns":[]}') == (response.status_code, response.content)
            fresh = list(pool.map(sidecar.get, [path] * 20))
            assert {(200, b'{"turns":[]}')} == {(each.status_code, each.content) for each in fresh}
            assert 0 == late.result()
        assert {"sessions": []} == sidecar.get().json()


def _turns_after(deleted: Event, polling: Event, sidecar: Sidecar, path: str) -> int:
    """Polls over new connections, across a deletion; the number of turns in answers to requests begun after it."""
    late, after = 0, 0
    while after < 5:
        begun_after = deleted.is_set()
        turns = sidecar.get(path).json()["turns"]
        polling.set()
        if begun_after:
            after += 1
            late += len(turns)
    return late


@on_sqlite
async def test_metrics_sum_over_workers(store: rig.Store) -> None:
    """Any worker tells the counts of all of them, and none is lost with a worker that dies."""
    await store.turn("chat-a")
    path = f"{INDEX}/chat-a/turns"
    line = 'sidecar_requests_total{method="GET",route="/api/chat/sessions/{session_id}/turns",status="200"} 7.0'
    seconds = 'sidecar_request_seconds_count{route="/api/chat/sessions/{session_id}/turns"} 7.0'
    with working(store.url, 2) as sidecar, connections(sidecar, 2) as clients:
        for number, client in enumerate(clients.values()):
            for _ in range(3 + number):
                assert 200 == client.get(path).status_code

        def is_told_by(client: httpx.Client) -> bool:
            text = client.get("/metrics").text
            return line in text and seconds in text

        # a request is counted a moment after its answer
        wait_until(lambda: all(is_told_by(client) for client in clients.values()))
        (killed, _), (_, kept) = clients.items()
        os.kill(killed, signal.SIGKILL)
        assert is_told_by(kept)
        with connections(sidecar, 2) as both_again:
            assert all(is_told_by(client) for client in both_again.values())


@on_sqlite
@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
async def test_a_signal_lets_all_workers_finish(number: int, to_all: bool, store: rig.Store, tmp_path: Path) -> None:
    """What is in flight anywhere is answered and the tree exits with 0, whether or not the signal went to all of it.

    A service manager's and a terminal's signal go to each process of the group.
    """
    await store.turn("chat-a")
    with (
        working(store.url, 2, TMPDIR=str(tmp_path)) as sidecar,
        connections(sidecar, 2) as clients,
        closing(sqlite3.connect(tmp_path / "tasks.db")) as writer,
        ThreadPoolExecutor(8) as pool,
    ):
        assert {200} == {client.get(INDEX).status_code for client in clients.values()}
        tree = [sidecar.process.pid, *children(sidecar.process.pid)]
        writer.execute("BEGIN EXCLUSIVE")
        slow = [pool.submit(client.get, INDEX) for client in clients.values()]
        slow += [pool.submit(sidecar.get) for _ in range(6)]
        await asyncio.sleep(1)
        began = time.monotonic()
        for pid in reversed(tree) if to_all else tree[:1]:
            os.kill(pid, number)
        wait_until(lambda: refuses(sidecar))
        assert not any(each.done() for each in slow)
        writer.execute("ROLLBACK")
        assert Counter({200: 8}) == Counter(each.result().status_code for each in slow)
        assert 0 == sidecar.process.wait(PATIENCE_SECONDS)
        assert time.monotonic() - began < 10
        wait_until(lambda: not any(is_running(pid) for pid in tree), 1)
        assert 0 == len(list(tmp_path.glob("a2a-sidecar-*")))
    assert not any("Traceback" in line or "takes its place" in line for line in sidecar.log), sidecar.log


class Attempt(NamedTuple):
    """One request over a connection of its own; without an answer it has no octets."""

    path: str
    began: float
    ended: float
    octets: int | None


def until_refused(sidecar: Sidecar, method: str, paths: Iterable[str], pause: float = 0.0) -> list[Attempt]:
    """Requests until one is refused or closed without an answer; with a pause after each piece of an answer."""
    attempts: list[Attempt] = []
    for path in paths:
        began = time.monotonic()
        octets = answered_octets(sidecar, method, path, pause)
        attempts.append(Attempt(path, began, time.monotonic(), octets))
        if octets is None:
            break
    return attempts


def answered_octets(sidecar: Sidecar, method: str, path: str, pause: float) -> int | None:
    """The size of an answer, which is a whole 200, or None."""
    with closing(HTTPConnection(sidecar.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)) as connection:
        try:
            connection.request(method, path, headers=HEADERS)
            response = connection.getresponse()
        except (OSError, HTTPException):
            return None
        assert 200 == response.status
        octets = 0
        while piece := response.read(PIECE_BYTES):
            octets += len(piece)
            time.sleep(pause)
        assert response.headers["Content-Length"] == str(octets)
        return octets


@pytest.mark.parametrize(("kind", "count"), [("sqlite", 1), ("postgres", 1), ("sqlite", 2)])
async def test_a_signal_under_load(count: int, store: rig.Store) -> None:
    """What had begun is answered, large answers and deletions too; what comes later is answered whole or not at all."""
    await store.turn("chat-large", text=incompressible(TEXT_BYTES))
    sessions = [f"chat-{number}" for number in range(600)]
    await load(store, [Planned(session, START) for session in sessions])
    deletions = [[f"{INDEX}/{session}" for session in sessions[half::2]] for half in (0, 1)]
    with working(store.url, count, "--prepare") as sidecar, ThreadPoolExecutor(6) as pool:
        sidecar.get()  # the tables stand and a worker listens
        reads = repeat(f"{INDEX}/chat-large/turns")
        loads = [pool.submit(until_refused, sidecar, "GET", reads, pause) for pause in (0.0, 0.0, 0.005, 0.01)]
        loads += [pool.submit(until_refused, sidecar, "DELETE", paths) for paths in deletions]
        await asyncio.sleep(1)
        signalled = time.monotonic()
        sidecar.process.terminate()
        attempts = [attempt for load in loads for attempt in load.result()]
        assert 0 == sidecar.process.wait(PATIENCE_SECONDS)
        assert time.monotonic() - signalled < 10
    assert not any("Traceback" in line or "traceback" in line for line in sidecar.log), sidecar.log
    answered = [attempt for attempt in attempts if attempt.octets is not None]
    assert any(attempt.began < signalled < attempt.ended for attempt in answered)
    # a connection that nobody had accepted yet when the signal came is none that had begun
    assert all(attempt.began > signalled - 0.3 for attempt in attempts if attempt.octets is None)
    await assert_deleted(store, {attempt.path.removeprefix(f"{INDEX}/") for attempt in answered})


async def assert_deleted(store: rig.Store, answered: set[str]) -> None:
    """What was acknowledged is deleted, and nothing is half deleted."""
    tombstones = {row[0] for row in await store.raw("SELECT session_id FROM tasks_session_tombstones")}
    audits = {row[0] for row in await store.raw("SELECT session_id FROM tasks_retirements")}
    stored = {row[0] for row in await store.raw("SELECT DISTINCT context_id FROM tasks")}
    assert tombstones == audits
    assert answered - {"chat-large/turns"} <= tombstones
    assert set() == tombstones & stored


@on_sqlite
async def test_a_killed_worker_is_replaced(store: rig.Store) -> None:
    """Requests go on without it, another process takes its place; and when all die, requests wait for the next ones."""
    await store.turn("chat-a")
    with working(store.url, 2, "--prepare") as sidecar:
        with connections(sidecar, 2) as clients:
            killed, kept = clients
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: not is_running(killed))
            assert [200] * 20 == [sidecar.get().status_code for _ in range(20)]
            wait_until(lambda: len(workers(sidecar)) == 2)
            assert kept in workers(sidecar)
        for pid in workers(sidecar):
            os.kill(pid, signal.SIGKILL)
        assert 200 == sidecar.get().status_code
        sidecar.process.terminate()
        assert 0 == sidecar.process.wait(PATIENCE_SECONDS)
    assert 3 == sum("another one takes its place" in line for line in sidecar.log), sidecar.log
    assert 1 == sum("prepared the store" in line for line in sidecar.log), sidecar.log


@on_sqlite
async def test_nothing_outlives_a_killed_parent(store: rig.Store, tmp_path: Path) -> None:
    """Workers whose parent is gone end by themselves, and remove the files of the metrics."""
    with working(store.url, 2, TMPDIR=str(tmp_path)) as sidecar, connections(sidecar, 2):
        orphans = children(sidecar.process.pid)
        assert len(orphans) >= 2
        assert 1 == len(list(tmp_path.glob("a2a-sidecar-*")))
        sidecar.process.kill()
        wait_until(lambda: not any(is_running(pid) for pid in orphans), 5)
        assert 0 == len(list(tmp_path.glob("a2a-sidecar-*")))


@on_postgres
async def test_sidecars_start_together_on_an_empty_store(store: rig.Store, full: bool) -> None:
    """The first requests to sidecars of two workers each are all answered, though all find our tables missing."""
    with ExitStack() as opened, ThreadPoolExecutor(32) as pool:
        starting = [pool.submit(opened.enter_context, working(store.url, 2)) for _ in range(4 if full else 2)]
        sidecars = [each.result() for each in starting]
        answers = list(pool.map(Sidecar.get, sidecars * 8))
        assert {(200, b'{"sessions":[]}')} == {(each.status_code, each.content) for each in answers}
        await store.turn("chat-a")
        with client_of(sidecars[0]) as client:
            assert 200 == client.delete(f"{INDEX}/chat-a").status_code
        await store.turn("chat-a")
        answers = list(pool.map(Sidecar.get, sidecars * 8))
        assert {(200, b'{"sessions":[]}')} == {(each.status_code, each.content) for each in answers}


@on_sqlite
async def test_faults_are_found_before_a_worker_starts(bare_store: rig.Store) -> None:
    """What makes one process refuse to start is said once, by the parent, with the same exit code."""
    await bare_store.raw("CREATE TABLE tasks (id TEXT, status TEXT, artifacts TEXT, history TEXT)")
    for flags, named in ((["--tokens-file", "none.toml"], "SIDECAR_TOKENS_FILE"), ([], "SIDECAR_TASKS_TABLE")):
        done = ended("serve", "--port", "0", "--workers", "2", *flags, **environment(bare_store.url))
        assert (2, "") == (done.returncode, done.stdout)
        assert 1 == done.stderr.count("error: "), done.stderr
        assert f"error: {named}: " in done.stderr
