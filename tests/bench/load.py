"""The load: keep-alive clients in a process of their own, cheaper than every server; it decodes no body."""

import asyncio
import re
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

from tests.bench.worker import Worker, work

BUFFER_OCTETS = 1 << 20
PATIENCE_SECONDS = 60.0
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(frozen=True)
class Job:
    """What clients do for some seconds: each goes round the requests, and waits for an answer before the next one.

    every: seconds from a client's request to its next one; 0 = at once.
    """

    port: int
    requests: tuple[str, ...]
    connections: int = 1
    seconds: float = 1.0
    every: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """The seconds of each request, how many answers had which status, and the share of a core that the load took."""

    times: list[float]
    statuses: dict[str, int]
    core: float


class Load:
    """The process of the clients, as a context manager; one job at a time."""

    def __init__(self) -> None:
        self._worker = Worker("tests.bench.load")
        self.highest_core = 0.0

    def __enter__(self) -> "Load":
        self._worker.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._worker.__exit__(*error)

    def begin(self, job: Job) -> None:
        """Start a job."""
        self._worker.begin(asdict(job))

    def outcome(self) -> Outcome:
        """Wait for the end of the job."""
        outcome = Outcome(**self._worker.result())
        self.highest_core = max(self.highest_core, outcome.core)
        return outcome

    def run(self, job: Job, status: int = 200) -> Outcome:
        """Do a job whose answers all have this status. Raises RuntimeError when one has another."""
        self.begin(job)
        outcome = self.outcome()
        if set(outcome.statuses) != {str(status)}:
            raise RuntimeError(f"{job.requests}: answered {outcome.statuses}")
        return outcome


def request(port: int, path: str, headers: Mapping[str, str] | None = None, body: str = "") -> str:
    """The text of a GET, or with a body of a POST."""
    lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", body])


async def _do(fields: dict[str, Any]) -> dict[str, Any]:
    job = Job(**fields)
    clients = [await _Client.connected(job.port) for _ in range(job.connections)]
    try:
        await asyncio.gather(*(client.answered(job.requests[0].encode()) for client in clients))
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(
            *(
                client.work(job, start=job.every * number / job.connections, until=began + job.seconds)
                for number, client in enumerate(clients)
            )
        )
        core = (time.process_time() - cpu) / (time.perf_counter() - began)
    finally:
        for client in clients:
            client.close()
    statuses = sum((client.statuses for client in clients), Counter[str]())
    return asdict(Outcome([each for client in clients for each in client.times], dict(statuses), core))


class _Client:
    """One keep-alive connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray(BUFFER_OCTETS)
        self.times: list[float] = []
        self.statuses = Counter[str]()

    @classmethod
    async def connected(cls, port: int) -> "_Client":
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return cls(connection)

    def close(self) -> None:
        self._connection.close()

    async def work(self, job: Job, start: float, until: float) -> None:
        """Send requests and keep the times; the clients of a job with a pace start spread over it."""
        await asyncio.sleep(start)
        for content in cycle([each.encode() for each in job.requests]):
            began = time.perf_counter()
            if began >= until:
                break
            self.statuses[await self.answered(content)] += 1
            took = time.perf_counter() - began
            self.times.append(took)
            if job.every > took:
                await asyncio.sleep(job.every - took)

    async def answered(self, content: bytes) -> str:
        """Send one request, read its whole answer and return the status."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.get_running_loop().sock_sendall(self._connection, content)
            got = await self._receive()
            while (end := self._buffer.find(b"\r\n\r\n", 0, got)) < 0:
                got += await self._receive(got)
            head = bytes(self._buffer[:end]).lower()
            if b"\r\ntransfer-encoding: chunked" in head:
                await self._read_chunks(bytes(self._buffer[max(end, got - len(_LAST_CHUNK)) : got]))
            elif length := _LENGTH.search(head):
                await self._read(int(length[1]) - (got - end - 4))
        return head[9:12].decode()

    async def _read(self, octets: int) -> None:
        while octets > 0:
            octets -= await self._receive()

    async def _read_chunks(self, tail: bytes) -> None:
        """Read until the last chunk: JSON holds no line end of HTTP's."""
        while not tail.endswith(_LAST_CHUNK):
            got = await self._receive()
            tail = (tail + self._buffer[max(0, got - len(_LAST_CHUNK)) : got])[-len(_LAST_CHUNK) :]

    async def _receive(self, offset: int = 0) -> int:
        into = memoryview(self._buffer)[offset:]
        got = await asyncio.get_running_loop().sock_recv_into(self._connection, into)
        if not got:
            raise ConnectionError("the server closed the connection")
        return got


if __name__ == "__main__":
    work(_do)
