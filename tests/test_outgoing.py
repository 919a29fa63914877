"""Large answers to clients that read slowly, or not at all, over real sockets; nothing here looks at what they say."""

import asyncio
import gzip
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.applications import Starlette

from sidecar import outgoing
from sidecar.app import create_app
from sidecar.serve import listen, running
from tests import rig
from tests.test_degradation import locked, within
from tests.test_process import resident_mib, serving

MIB = 2**20
INDEX = "/api/chat/sessions"
SMALL, LARGE = f"{INDEX}/chat-small/turns", f"{INDEX}/chat-large/turns"
TEXT_BYTES = 5 * MIB // 2
LARGE_BODY = 2 * TEXT_BYTES  # the text stands in the artifacts, and again beside them
ROOM = 3  # bodies of that size
SHORT_WAIT = 0.4

# how an answer leaves has nothing to do with where it came from
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])


@dataclass(frozen=True)
class Answer:
    """What came back over a socket; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Peer:
    """One connection to the server; it reads only when it is told to."""

    def __init__(self, port: int, receive_bytes: int) -> None:
        self._port = port
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.setblocking(False)
        self._is_connected = False
        self._buffer = b""

    async def ask(self, path: str, method: str = "GET", **headers: str) -> None:
        """Send one request."""
        loop = asyncio.get_running_loop()
        if not self._is_connected:
            await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
            self._is_connected = True
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {rig.TOKEN}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await loop.sock_sendall(self._socket, "\r\n".join([*lines, "", ""]).encode())

    async def answer(self, *, has_body: bool = True, pause: float = 0.0) -> Answer:
        """Read one whole answer, with a pause after each piece."""
        while b"\r\n\r\n" not in self._buffer:
            await self._read()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        status, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        length = int(headers["content-length"]) if has_body else 0
        pieces, rest = [self._buffer[:length]], length - len(self._buffer[:length])
        self._buffer = self._buffer[length:]
        while rest:
            await asyncio.sleep(pause)
            await self._read()
            pieces.append(self._buffer[:rest])
            rest -= len(pieces[-1])
            self._buffer = self._buffer[len(pieces[-1]) :]
        return Answer(int(status.split()[1]), headers, b"".join(pieces))

    async def _read(self) -> None:
        piece = await asyncio.get_running_loop().sock_recv(self._socket, 256 * 1024)
        assert piece, "the server closed the connection"
        self._buffer += piece

    def vanish(self) -> None:
        """End the connection without a word of farewell."""
        self._socket.close()


@dataclass
class Server:
    """A running sidecar."""

    app: Starlette
    port: int
    opened: AsyncExitStack

    def peer(self, receive_bytes: int = 256 * 1024) -> Peer:
        peer = Peer(self.port, receive_bytes)
        self.opened.callback(peer.vanish)
        return peer

    async def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        peer = self.peer()
        await peer.ask(path, method, **headers)
        found = await peer.answer(has_body=method != "HEAD")
        peer.vanish()
        return found

    async def stalled(self, path: str = LARGE, **headers: str) -> Peer:
        """A client whose answer has its room and cannot leave."""
        held = self.held
        peer = self.peer(receive_bytes=4096)
        await peer.ask(path, **headers)
        await until(lambda: self.held > held)
        return peer

    @property
    def held(self) -> int:
        """Bytes of the budget that are taken."""
        held: int = self.app.state.outgoing._held
        return held


async def until(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)


Start = Callable[..., Awaitable[Server]]


@pytest.fixture
async def start(store: rig.Store) -> AsyncIterator[Start]:
    """`await start(**settings)`: a sidecar behind its own server, with room for three large answers."""
    await store.turn("chat-small")
    await store.turn("chat-large", text=incompressible(TEXT_BYTES))
    async with AsyncExitStack() as opened:

        async def open_server(**settings: Any) -> Server:
            settings = {"max_response_bytes": ROOM * LARGE_BODY // 2 + MIB // 2, **settings}
            app = create_app(rig.config_for(store, **settings))
            listener = listen("127.0.0.1", 0)
            await opened.enter_async_context(running(app, listener))
            return Server(app, listener.getsockname()[1], opened)

        yield open_server


def incompressible(octets: int) -> str:
    """Text that gzip can do little about."""
    return random.Random(1).randbytes(octets // 2).hex()


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds no room is told so sooner than after two seconds."""
    monkeypatch.setattr(outgoing, "WAIT_SECONDS", SHORT_WAIT)


def assert_busy(answer: Answer) -> None:
    assert 503 == answer.status
    assert b'"code":"busy"' in answer.body
    assert answer.headers["retry-after"].isdigit()


async def assert_small_ones_pass(server: Server) -> None:
    """What needs no room is answered at once."""
    for path in ("/livez", INDEX, f"{INDEX}?parked=true", f"{INDEX}/chat-large", SMALL):
        with within(0.3):
            assert 200 == (await server.get(path)).status, path


# Room


@on_sqlite
@pytest.mark.usefixtures("sqlite_suffices")
async def test_room_is_full(start: Start) -> None:
    """Who asks for a large answer beyond the room waits two seconds and is refused; the others notice nothing."""
    server = await start()
    stalled = [await server.stalled() for _ in range(ROOM)]
    assert ROOM * LARGE_BODY <= server.held <= (ROOM + 1) * LARGE_BODY
    started = time.monotonic()
    waiting = [asyncio.create_task(server.get(LARGE)) for _ in range(2)]
    await asyncio.sleep(0.2)
    await assert_small_ones_pass(server)
    for answer in await asyncio.gather(*waiting):
        assert_busy(answer)
    assert 2.0 <= time.monotonic() - started < 3.0
    for peer in stalled:
        peer.vanish()
    await until(lambda: server.held == 0)
    assert 200 == (await server.get(LARGE)).status


@on_sqlite
@pytest.mark.usefixtures("sqlite_suffices")
async def test_small_turns_while_many_wait_for_room(start: Start) -> None:
    """As many waiting for room as there are readers do not keep the turns of a small session waiting."""
    server = await start(pool_size=2)
    for _ in range(ROOM):
        await server.stalled()
    waiting = [asyncio.create_task(server.get(LARGE)) for _ in range(2)]
    await asyncio.sleep(0.2)
    try:
        await assert_small_ones_pass(server)
    finally:
        await asyncio.gather(*waiting)


@on_sqlite
async def test_room_that_comes_free_is_used(start: Start) -> None:
    """Whoever waits gets the room of a client that reads on."""
    server = await start()
    stalled = [await server.stalled() for _ in range(ROOM)]
    waiting = asyncio.create_task(server.get(LARGE))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    assert LARGE_BODY < len((await stalled[0].answer()).body)
    assert 200 == (await waiting).status


@on_sqlite
@pytest.mark.usefixtures("short_wait")
async def test_clients_that_vanish(start: Start) -> None:
    """Clients that go while they are sent to, while they wait for room and while their answer is made leave nothing."""
    server = await start()
    for _ in range(3):
        peers = [await server.stalled() for _ in range(ROOM)]
        for _ in range(8):
            peers.append(server.peer())
            await peers[-1].ask(LARGE)
        await asyncio.sleep(0.05)
        for peer in peers:
            peer.vanish()
        await until(lambda: server.held == 0)
    readers = server.app.state.outgoing._readers
    await until(lambda: readers._value == server.app.state.config.pool_size)
    assert [200] * ROOM == [answer.status for answer in await asyncio.gather(*(server.get(LARGE) for _ in range(ROOM)))]
    await until(lambda: server.held == 0)


@on_sqlite
async def test_client_that_stalls(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes nothing for long gives its room to others; one that reads slowly is left in peace."""
    monkeypatch.setattr(outgoing, "STALL_SECONDS", 0.3)
    server = await start()
    peer = server.peer()
    await peer.ask(LARGE)
    slow = asyncio.create_task(peer.answer(pause=0.02))
    await server.stalled()
    assert LARGE_BODY < len((await slow).body)
    await until(lambda: server.held == 0)


@on_sqlite
@pytest.mark.usefixtures("short_wait")
async def test_many_at_once(start: Start) -> None:
    """Of many slow readers each gets its whole answer or a 503, and the budget is never overdrawn."""
    server = await start(pool_size=3)
    budget = 2 * server.app.state.config.max_response_bytes
    expected = (await server.get(LARGE)).body
    most = 0

    async def read(number: int) -> int:
        nonlocal most
        peer = server.peer()
        await peer.ask(LARGE)
        found = await peer.answer(pause=0.01 if number % 2 else 0.0)
        most = max(most, server.held)
        if found.status == 200:
            assert expected == found.body
        else:
            assert_busy(found)
        return found.status

    statuses = await asyncio.gather(*(read(number) for number in range(20)))
    assert 200 in statuses
    assert LARGE_BODY < most <= budget
    await until(lambda: server.held == 0)


@on_sqlite
@pytest.mark.usefixtures("short_wait")
async def test_places_of_readers(store: rig.Store, start: Start) -> None:
    """Who finds every reader at work is told so soon, and `/livez` needs none."""
    server = await start(pool_size=1, statement_timeout=1.5)
    assert 200 == (await server.get(SMALL)).status
    async with locked(store):
        first = asyncio.create_task(server.get(SMALL))
        await asyncio.sleep(0.1)
        with within(SHORT_WAIT + 0.5):
            assert_busy(await server.get(SMALL))
        with within(0.2):
            assert 200 == (await server.get("/livez")).status
    assert 200 == (await first).status


@on_sqlite
async def test_small_budget(start: Start) -> None:
    """An answer of one large turn, which is given whatever the bound, is counted also where the bound is small."""
    server = await start(max_response_bytes=16 * 1024)
    peer = server.peer(receive_bytes=4096)
    await peer.ask(LARGE)
    await until(lambda: server.held > 0, seconds=0.5)


# Bodies


@on_sqlite
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_slow_reader_gets_every_byte(encoding: str, store: rig.Store, start: Start) -> None:
    """A body that leaves in many slices arrives whole, and a second answer follows on the same connection."""
    server = await start()
    async with rig.client(create_app(rig.config_for(store))) as client:
        expected = (await client.get(LARGE, headers={"Accept-Encoding": "identity"})).content
    peer = server.peer(receive_bytes=64 * 1024)
    for _ in range(2):
        await peer.ask(LARGE, Accept_Encoding=encoding)
        found = await peer.answer(pause=0.001)
        assert (200, encoding == "gzip") == (found.status, "content-encoding" in found.headers)
        assert expected == (gzip.decompress(found.body) if encoding == "gzip" else found.body)
    await until(lambda: server.held == 0)


@on_sqlite
async def test_head(start: Start) -> None:
    """HEAD of a large answer has the headers of GET and no body, and takes no room for long."""
    server = await start()
    with_body = await server.get(LARGE)
    peer = server.peer()
    for _ in range(5):
        await peer.ask(LARGE, "HEAD")
        found = await peer.answer(has_body=False)
        names = ("content-length", "content-type", "etag", "cache-control", "vary")
        assert [with_body.headers[name] for name in names] == [found.headers[name] for name in names]
    await peer.ask(SMALL)
    assert b"The answer." in (await peer.answer()).body
    await until(lambda: server.held == 0)


@on_sqlite
async def test_unchanged_needs_no_room(start: Start) -> None:
    """A 304 of a large answer is given while the room is full."""
    server = await start()
    etag = (await server.get(LARGE)).headers["etag"]
    for _ in range(ROOM):
        await server.stalled()
    with within(0.3):
        peer = server.peer()
        await peer.ask(LARGE, If_None_Match=etag)
        assert 304 == (await peer.answer(has_body=False)).status


# Memory of the real process

ANSWERS, ANSWER_BYTES, TURNS = 16, 8 * MIB, 50
PEAK_MIB = 256


@pytest.mark.parametrize(("kind", "encoding"), [("sqlite", "identity"), ("postgres", "identity"), ("sqlite", "gzip")])
@pytest.mark.usefixtures("sqlite_suffices")
async def test_memory(encoding: str, store: rig.Store, full: bool) -> None:
    """Sixteen answers of 8 MiB at once, half of which wait to be sent, cost a bounded memory."""
    if encoding == "gzip" and not full:
        pytest.skip("compressing 128 MiB takes seconds; --full runs it")
    for number in range(TURNS):
        text = random.Random(number).randbytes(ANSWER_BYTES // TURNS // 4).hex()
        await store.turn("chat-large", text=[text[start : start + 200] for start in range(0, len(text), 200)])
    with serving(store.url) as sidecar:
        port = int(sidecar.url.rpartition(":")[2])
        assert 200 == sidecar.get().status_code
        process = sidecar.process.pid
        idle = resident_mib(process)
        sizes = await asyncio.gather(*(read(port, encoding, pause=number % 2) for number in range(ANSWERS)))
        peak = resident_mib(process, peak=True) - idle
        refused = sizes.count(0)
        print(f"\n{store.kind} {encoding}: {peak:.0f} MiB over idle ({idle:.0f}), {refused} of {ANSWERS} refused")
        assert peak <= PEAK_MIB
        assert max(sizes) > (ANSWER_BYTES if encoding == "identity" else ANSWER_BYTES / 4)
        assert 0 == sidecar.stop()


async def read(port: int, encoding: str, pause: float) -> int:
    """How many bytes the answer has that one client reads, after a pause; 0 when it is refused."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MIB)
    lines = [f"GET {LARGE} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {rig.TOKEN}"]
    lines += [f"Accept-Encoding: {encoding}", "Connection: close", "", ""]
    writer.write("\r\n".join(lines).encode())
    head = await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(pause)
    size = 0
    while piece := await reader.read(MIB):
        size += len(piece)
    writer.close()
    return size if b" 200 " in head[:20] else 0
