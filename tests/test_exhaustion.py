"""Everything that uses up a process, at once and again: clients that stall or vanish, locks, a full pool."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests import rig
from tests.test_degradation import locked
from tests.test_outgoing import Peer, incompressible
from tests.test_process import PATIENCE_SECONDS, Sidecar, resident_mib, serving

INDEX = "/api/chat/sessions"
LARGE = f"{INDEX}/chat-large/turns"
LARGE_TEXT_BYTES = 2 * 2**20
ROUNDS, CLIENTS = 3, 12
# what an allocator may keep: it gives free pieces back late; one round holds 48 MiB of answers
GROWTH_MIB = 24


@pytest.mark.usefixtures("sqlite_suffices")
async def test_rounds_of_exhaustion_leave_nothing_behind(store: rig.Store, full: bool) -> None:
    """Each fault is answered, /livez all the while; descriptors return exactly, memory stops growing."""
    await store.turn("chat-small")
    await store.turn("chat-large", text=incompressible(LARGE_TEXT_BYTES))
    rounds = 12 if full else ROUNDS
    with serving(store.url, SIDECAR_POOL_SIZE="2", SIDECAR_STATEMENT_TIMEOUT="1") as sidecar:
        process = Path(f"/proc/{sidecar.process.pid}")
        if not process.exists():
            pytest.skip("only Linux tells the files and the memory of a process in /proc")
        descriptors, memory = [], []
        for _ in range(rounds):
            async with watched(sidecar):
                statuses = await _round(sidecar, store)
            assert {200, 503} >= set(statuses), statuses
            assert statuses[503] > 0, "nothing was exhausted"
            assert 200 == sidecar.get().status_code
            descriptors.append(await settled(process))
            memory.append(resident_mib(sidecar.process.pid))
        print(f"\n{store.kind}: descriptors {descriptors}, MiB {[round(each) for each in memory]}")
        assert len(set(descriptors)) == 1
        assert memory[-1] <= memory[-2] + GROWTH_MIB
        assert 0 == sidecar.stop()


async def _round(sidecar: Sidecar, store: rig.Store) -> Counter[int]:
    """The statuses that patient clients were answered with, while others stall, vanish and dawdle."""
    port = int(sidecar.url.rpartition(":")[2])
    async with AsyncExitStack() as opened:

        async def stalling(path: str) -> Peer:
            peer = Peer(port, receive_bytes=4096)
            opened.callback(peer.vanish)
            await peer.ask(path)
            return peer

        for _ in range(CLIENTS):
            await stalling(LARGE)  # is never read
            (await stalling(LARGE)).vanish()
            half = (await asyncio.open_connection("127.0.0.1", port))[1]
            opened.callback(half.close)
            half.write(b"GET /livez HTTP/1.1\r\nHost: loc")
        async with sidecar.client() as client, locked(store):
            answers = await asyncio.gather(*(client.get(INDEX) for _ in range(CLIENTS)))
        async with sidecar.client() as client:
            answers += await asyncio.gather(*(client.get(f"{INDEX}/chat-small/turns") for _ in range(CLIENTS)))
    return Counter(answer.status_code for answer in answers)


@asynccontextmanager
async def watched(sidecar: Sidecar) -> AsyncIterator[None]:
    """/livez is answered as long as this lasts."""
    statuses: Counter[int] = Counter()

    async def watch() -> None:
        async with httpx.AsyncClient(base_url=sidecar.url, timeout=PATIENCE_SECONDS, verify=False) as client:
            while True:
                statuses[(await client.get("/livez")).status_code] += 1
                await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    yield
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert [200] == list(statuses)
    assert statuses[200] > 10


async def settled(process: Path) -> int:
    """The number of open files once closed connections are gone: the same for half a second."""
    found, since = -1, time.monotonic()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while time.monotonic() - since < 0.5:
            now = len(list((process / "fd").iterdir()))
            if now != found:
                found, since = now, time.monotonic()
            await asyncio.sleep(0.05)
    return found
