"""How HTTP is read: by httptools where it is installed, else h11, in bounded size and time; it knows no route."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# `edge` refuses heads that are smaller, but only when they are complete: its longest target and all headers fit.
HEAD_BYTES = 192 * 1024
# uvicorn closes a connection that has been silent for 5 seconds, and waits for ever for one that sends byte by byte.
HEAD_SECONDS = 10.0


def http_protocol() -> type[asyncio.Protocol]:
    """uvicorn's protocol for the parser at hand.

    A head beyond `HEAD_BYTES` ends its connection with 400; one that is not whole `HEAD_SECONDS` after its first byte,
    or after the connection was made, ends it without a word.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return _H11

    class Bounded(_Deadline, HttpToolsProtocol):
        """httptools itself gathers a head without any bound, in quadratic time, before any token is asked for."""

        _head_bytes = 0

        def on_url(self, url: bytes) -> None:
            # `edge` refuses a fragment, but httptools would leave it out, and a deletion of `a#b` would delete `a`
            if b"#" in url:
                raise ValueError("a fragment in the target")  # which is answered with 400
            super().on_url(url)

        def data_received(self, data: bytes) -> None:
            self._head_bytes += len(data)
            super().data_received(data)
            if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

        def on_headers_complete(self) -> None:
            self._head_bytes = 0
            # httptools takes a target of 64 KiB at most apart, and a question may be longer
            self.url, _, query = self.url.partition(b"?")
            super().on_headers_complete()
            self.scope["query_string"] = query

        def on_body(self, body: bytes) -> None:
            self._head_bytes = 0
            super().on_body(body)

    return Bounded


class _Deadline(asyncio.Protocol):
    """Closes a connection on which bytes come and no request begins; whatever follows an answer counts as a head."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any  # the request under way, or the last one

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unwatch()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _H11(_Deadline, H11Protocol):
    """h11, which bounds a head itself."""

    def send_400_response(self, msg: str) -> None:
        """Refuses a request; where its body is at fault its answer may be under way, and has nowhere to go any more."""
        super().send_400_response(msg)
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
