"""Clients that never finish asking, over real sockets, for both parsers; what an answer says is not looked at."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from sidecar import protocol
from sidecar.app import create_app
from sidecar.serve import listen, running
from tests import rig

HEAD_SECONDS = 0.6
SLOW_CLIENTS = 200
REQUEST = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = REQUEST[:20]
FILES = Path("/proc/self/fd")

# how a head is read has nothing to do with the database
pytestmark = pytest.mark.parametrize("kind", ["sqlite"])


@pytest.fixture(params=["httptools", "h11"])
async def port(request: pytest.FixtureRequest, store: rig.Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a sidecar that gives a head less time."""
    if request.param == "h11":
        monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
    else:
        pytest.importorskip("httptools")
    monkeypatch.setattr(protocol, "HEAD_SECONDS", HEAD_SECONDS)
    listener = listen("127.0.0.1", 0)
    async with running(create_app(rig.config_for(store)), listener):
        yield listener.getsockname()[1]


class Peer:
    """One connection; it sends what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connected(cls, port: int) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, content: bytes, pause: float = 0.0) -> None:
        """All at once, or with a pause after each byte."""
        for piece in [bytes([each]) for each in content] if pause else [content]:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(pause)

    async def status(self) -> int:
        """The status of the next answer, which is read to its end."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        await self._reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
        return int(head.split()[1])

    async def is_closed(self, within: float = HEAD_SECONDS * 5) -> bool:
        """The server ends the connection, and says nothing."""
        try:
            async with asyncio.timeout(within):
                return await self._reader.read() == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    async def is_closed_while_sending(self, content: bytes) -> bool:
        """The same to a client that goes on sending byte by byte."""
        sending = asyncio.create_task(self.send(content, pause=HEAD_SECONDS / 20))
        try:
            return await self.is_closed()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


@pytest.fixture
async def peer(port: int) -> AsyncIterator[Peer]:
    """A connection to the sidecar."""
    opened = await Peer.connected(port)
    yield opened
    await opened.close()


async def test_a_connection_without_a_request(peer: Peer) -> None:
    """Who connects and says nothing is not waited for."""
    assert await peer.is_closed()


async def test_a_head_that_does_not_end(peer: Peer) -> None:
    """Each byte comes soon after the one before, and the head never ends."""
    assert await peer.is_closed_while_sending(HALF + b"X: " + b"x" * 1000)


async def test_a_second_head_that_does_not_end(peer: Peer) -> None:
    """The same on a connection that was used well before."""
    await peer.send(REQUEST)
    assert 200 == await peer.status()
    assert await peer.is_closed_while_sending(HALF + b"X: " + b"x" * 1000)


async def test_a_body_that_does_not_end(peer: Peer) -> None:
    """What follows an answer is no request under way, even where it was announced."""
    await peer.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
    assert 200 == await peer.status()
    assert await peer.is_closed_while_sending(b"x" * 1000)


async def test_a_slow_head_in_time(peer: Peer) -> None:
    """A head that comes in pieces is answered, and each one has its own time: the connection outlives them."""
    for _ in range(4):
        await peer.send(REQUEST, pause=HEAD_SECONDS / 2 / len(REQUEST))
        assert 200 == await peer.status()


async def test_requests_behind_each_other(peer: Peer) -> None:
    """Several heads in one piece are all answered, and nothing is kept of the deadline between them."""
    await peer.send(REQUEST * 5)
    assert [200] * 5 == [await peer.status() for _ in range(5)]
    await asyncio.sleep(HEAD_SECONDS * 1.5)
    await peer.send(REQUEST)
    assert 200 == await peer.status()


async def test_many_slow_clients(port: int) -> None:
    """They hold nobody up, and leave no descriptor behind."""
    before = _descriptors()
    slow = [await Peer.connected(port) for _ in range(SLOW_CLIENTS)]
    for each in slow:
        await each.send(HALF)
    for _ in range(10):
        other = await Peer.connected(port)
        await other.send(REQUEST)
        assert 200 == await other.status()
        await other.close()
    assert all(await asyncio.gather(*(each.is_closed() for each in slow)))
    for each in slow:
        await each.close()
    await asyncio.sleep(0.1)
    assert before == _descriptors()


def _descriptors() -> int:
    if not FILES.exists():
        pytest.skip("only Linux lists a process's open files in /proc")
    return len(list(FILES.iterdir()))
