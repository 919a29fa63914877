"""An OpenAI-compatible endpoint on the loopback: it answers as it is told, and remembers what it was asked.

It speaks the protocol over HTTP, whole and as events; nothing of any client is replaced.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from sidecar.serve import listen
from tests.rig import Json

KEY = "provider-key-0123456789"
USAGE = {"prompt_tokens": 120, "completion_tokens": 9, "total_tokens": 129}


@dataclass
class Asked:
    """One request that came in; `gone` is set when the client left before it had its answer."""

    body: Json
    headers: dict[str, str]
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def question(self) -> str:
        """The last message."""
        content: str = self.body["messages"][-1]["content"]
        return content


Behaviour = Callable[[Asked, Receive, Send], Awaitable[None]]


def says(text: str | Sequence[str], usage: Json | None = USAGE, finish_reason: str = "stop") -> Behaviour:
    """A whole answer, or one in these pieces where it is asked for in pieces."""
    pieces = [text] if isinstance(text, str) else text

    async def answer(asked: Asked, receive: Receive, send: Send) -> None:
        if not asked.body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "".join(pieces)}}
            whole = {**_about("chat.completion"), "choices": [{**choice, "finish_reason": finish_reason}]}
            body = json.dumps(whole if usage is None else {**whole, "usage": usage})
            await sends(body, media_type="application/json")(asked, receive, send)
            return
        await _begin(send)
        for piece in pieces:
            await _send(send, _event(chunk(piece)))
        await _send(send, _event(chunk(None, finish_reason)))
        if usage is not None and asked.body["stream_options"] == {"include_usage": True}:
            await _send(send, _event({**_about("chat.completion.chunk"), "choices": [], "usage": usage}))
        await _send(send, "data: [DONE]\n\n")
        await send({"type": "http.response.body"})

    return answer


def sends(
    body: str | bytes,
    status: int = 200,
    media_type: str = "text/event-stream",
    headers: Mapping[str, str] | None = None,
) -> Behaviour:
    """Exactly this."""

    async def answer(asked: Asked, receive: Receive, send: Send) -> None:
        await Response(body, status, headers, media_type=media_type)({"type": "http"}, receive, send)

    return answer


def refuses(status: int, message: str) -> Behaviour:
    """An error in the protocol's own shape."""
    error = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "secret_code"}}
    return sends(json.dumps(error), status, "application/json")


def stalls(*pieces: str) -> Behaviour:
    """Silence for ever, before the first byte or after these pieces."""

    async def answer(asked: Asked, receive: Receive, send: Send) -> None:
        if pieces:
            await _begin(send)
        for piece in pieces:
            await _send(send, _event(chunk(piece)))
        while (await receive())["type"] != "http.disconnect":
            pass
        asked.gone.set()

    return answer


def breaks_off(*pieces: str) -> Behaviour:
    """The connection ends after these pieces, in the midst of the answer."""

    async def answer(asked: Asked, receive: Receive, send: Send) -> None:
        await _begin(send)
        for piece in pieces:
            await _send(send, _event(chunk(piece)))

    return answer


def waits(until: asyncio.Event, then: Behaviour) -> Behaviour:
    """Silence, until the test goes on."""

    async def answer(asked: Asked, receive: Receive, send: Send) -> None:
        await until.wait()
        await then(asked, receive, send)

    return answer


class ModelServer:
    """A running endpoint. It behaves as it was told with `will`, one request after the other, and then as the last."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"
        self.asked: list[Asked] = []
        self.came = asyncio.Condition()
        self._behaviours = deque([says("Nothing was scripted [1].")])

    @property
    def settings(self) -> Json:
        """What a sidecar is told of it."""
        return {"model_url": self.url, "model_key": KEY, "model": ("small", "large")}

    def will(self, *behaviours: Behaviour) -> None:
        """From now on."""
        self._behaviours = deque(behaviours)

    async def has_been_asked(self, times: int = 1) -> Asked:
        """Waits for that request."""
        async with self.came:
            await self.came.wait_for(lambda: len(self.asked) >= times)
        return self.asked[times - 1]

    async def answer(self, request: Request) -> "_Answer":
        asked = Asked(await request.json(), dict(request.headers))
        behaviour = self._behaviours.popleft() if len(self._behaviours) > 1 else self._behaviours[0]
        async with self.came:
            self.asked.append(asked)
            self.came.notify_all()
        return _Answer(behaviour, asked)


@dataclass
class _Answer:
    behaviour: Behaviour
    asked: Asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.behaviour(self.asked, receive, send)


@asynccontextmanager
async def running_model() -> AsyncIterator[ModelServer]:
    """An endpoint on a free port, served by uvicorn's protocol; its own server would take a while to stop."""
    with listen("127.0.0.1", 0) as listener:
        model = ModelServer(listener.getsockname()[1])
        app = Starlette(routes=[Route("/v1/chat/completions", model.answer, methods=["POST"])])
        config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        state = ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: H11Protocol(config, state, app_state={}), sock=listener
        )
        try:
            yield model
        finally:
            server.close()
            for connection in tuple(state.connections):
                cast(H11Protocol, connection).transport.close()
            await asyncio.gather(*state.tasks)


def chunk(text: str | None, finish_reason: str | None = None) -> Json:
    """One chunk of an answer."""
    delta = {} if text is None else {"role": "assistant", "content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {**_about("chat.completion.chunk"), "choices": [choice], "usage": None}


def _about(kind: str) -> Json:
    return {"id": "chatcmpl-1", "object": kind, "created": 1767600000, "model": "small-2026"}


def _event(data: Json) -> str:
    return f"data: {json.dumps(data)}\n\n"


async def _begin(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
