"""Answers on their way out: in slices, and within one budget of bytes; it knows nothing of what they say."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sidecar.errors import Busy

# A slice is handed over when the one before it has left: a client that stops reading holds no more than its body.
SLICE_BYTES = 512 * 1024
# Smaller answers are not worth counting.
LARGE_BYTES = 64 * 1024
WAIT_SECONDS = 2.0
# A client that takes no slice for so long gives its room to others.
STALL_SECONDS = 30.0
_TOO_MANY = "Too many large answers are being read or sent. Try again in a moment."


class Outgoing:
    """Admission for large answers: so many are made at once, and so many bytes of them wait to be sent."""

    def __init__(self, readers: int, budget: int) -> None:
        self._readers = asyncio.Semaphore(readers)
        self._may_wait = readers - 1
        self._waiting = 0
        self._budget = budget
        self._held = 0
        self._released = asyncio.Condition()

    @asynccontextmanager
    async def making(self) -> AsyncIterator[None]:
        """A place among those who read and render an answer. Raises Busy after two seconds without one."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._readers.acquire()
        except TimeoutError:
            raise Busy(_TOO_MANY, {"Retry-After": "2"}) from None
        try:
            yield
        finally:
            self._readers.release()

    async def admit(self, response: Response) -> Response:
        """The response, once there is room for its body; to be called while `making`, so that no body piles up.

        Raises Busy after two seconds without room, and at once when nobody who makes a small answer would be left.
        """
        if len(response.body) < LARGE_BYTES:
            return response
        size = min(len(response.body), self._budget)
        await self._take(size)
        return _Sliced(bytes(response.body), response.status_code, response.headers, self, size)

    async def _take(self, size: int) -> None:
        if self._held + size > self._budget and self._waiting >= self._may_wait:
            raise Busy(_TOO_MANY, {"Retry-After": "2"})
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._released:
                await self._released.wait_for(lambda: self._held + size <= self._budget)
                self._held += size
        except TimeoutError:
            raise Busy(_TOO_MANY, {"Retry-After": "2"}) from None
        finally:
            self._waiting -= 1

    async def release(self, size: int) -> None:
        """Gives the room of a sent body to the next."""
        async with self._released:
            self._held -= size
            self._released.notify_all()


class _Sliced(Response):
    """A body that leaves in slices, and its room when it has left or its client is gone."""

    def __init__(self, body: bytes, status: int, headers: Mapping[str, str], outgoing: Outgoing, size: int) -> None:
        super().__init__(body, status, headers)
        self._outgoing = outgoing
        self._size = size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            rest = memoryview(self.body)
            while rest:
                piece, rest = rest[:SLICE_BYTES], rest[SLICE_BYTES:]
                async with asyncio.timeout(STALL_SECONDS):
                    await send({"type": "http.response.body", "body": piece, "more_body": bool(rest)})
        except TimeoutError:
            return  # the server closes the connection of an answer that was not completed
        finally:
            await self._outgoing.release(self._size)
