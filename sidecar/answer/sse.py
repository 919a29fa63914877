"""Server-sent events as an answer, and a client that goes before its answer; it knows no event and no route."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sidecar.outgoing import STALL_SECONDS

T = TypeVar("T")

# Proxies close a connection that is silent for a minute, some for half of one.
HEARTBEAT_SECONDS = 10.0
_HEARTBEAT = b": still here\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the events back
    (b"x-content-type-options", b"nosniff"),
]
# What nginx logs for it; nobody is left to read the answer.
GONE = 499


def event(data: object, name: str | None = None) -> bytes:
    """One event whose data is JSON, which has no line end of its own."""
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, msgspec.json.encode(data))


class Events:
    """The ASGI answer of some events, with a comment now and then; they are closed when the client goes."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            async with gone_of(receive) as gone, _running(self._send_all(send)) as sending:
                while not await _any_ended(gone, sending, timeout=HEARTBEAT_SECONDS):
                    await _send(send, _HEARTBEAT)
                if sending.done():
                    sending.result()
        except TimeoutError:
            return  # the server closes the connection of an answer that was not completed

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for each in events:
                await _send(send, each)
                await asyncio.sleep(0)  # a burst of them, too, lets others run, and ends when the client goes
        await send({"type": "http.response.body"})


async def unless_gone(request: Request, work: Awaitable[Response]) -> Response:
    """The answer that the work makes; it is cancelled when the client goes, whose body was read before."""
    async with gone_of(request.receive) as gone, _running(work) as working:
        await _any_ended(gone, working)
        return working.result() if working.done() else Response(status_code=GONE)


async def _any_ended(*tasks: asyncio.Task[None] | asyncio.Task[Response], timeout: float | None = None) -> bool:
    done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def _send(send: Send, body: bytes) -> None:
    """Raises TimeoutError when the client takes none of it."""
    async with asyncio.timeout(STALL_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": True})


@asynccontextmanager
async def gone_of(receive: Receive) -> AsyncIterator[asyncio.Task[None]]:
    """A task that ends when the client goes, whose body was read before."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with _running(watch()) as watching:
        yield watching


@asynccontextmanager
async def _running(work: Awaitable[T]) -> AsyncIterator[asyncio.Task[T]]:
    """A task that has ended when the block has."""

    async def run() -> T:
        return await work

    task = asyncio.create_task(run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
