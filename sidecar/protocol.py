"""Which parser reads HTTP: httptools where it is installed, else h11, both within a bound; it knows no route."""

import asyncio

# What h11 takes by default. `edge` refuses heads that are far smaller, but only when they are complete.
HEAD_BYTES = 64 * 1024


def http_protocol() -> type[asyncio.Protocol]:
    """uvicorn's protocol for the parser at hand; a head that goes beyond `HEAD_BYTES` ends its connection with 400."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        return H11Protocol

    class Bounded(HttpToolsProtocol):
        """httptools itself gathers a head without any bound, in quadratic time, before any token is asked for."""

        _head_bytes = 0

        def data_received(self, data: bytes) -> None:
            self._head_bytes += len(data)
            super().data_received(data)
            if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

        def on_headers_complete(self) -> None:
            self._head_bytes = 0
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._head_bytes = 0
            super().on_body(body)

    return Bounded
