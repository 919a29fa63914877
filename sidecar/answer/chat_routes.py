"""The handlers of grounded chat: gate, body, one call of the service, bytes or events; they hold no SQL and no rule.

What the wing needs beyond the core, and takes time to import, is imported by the first request that may use it.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from sidecar.answer import completions
from sidecar.answer.chat_queries import ChatQuery, chat_query, chat_query_string
from sidecar.answer.sse import Events, event, unless_gone
from sidecar.auth import Principal, require
from sidecar.bodies import json_object
from sidecar.errors import MethodNotAllowed, SidecarError
from sidecar.routes import ApiRoute, unstored
from sidecar.search.routes import check_extras, once, service_of

if TYPE_CHECKING:
    from sidecar.answer.chat import Asked, Chat

CHAT = "/v1/chat"
ALIAS = "/v1/search/chat"
STREAM = "/v1/search/chat/stream"
COMPLETIONS = "/v1/chat/completions"


def chat_routes() -> list[BaseRoute]:
    """The routes of seed 004's grounded chat."""
    return [
        ApiRoute(CHAT, chat, methods=["POST"]),
        ApiRoute(ALIAS, chat, methods=["POST"]),
        ApiRoute(STREAM, stream, methods=["GET"]),
        ApiRoute(COMPLETIONS, complete, methods=["POST"]),
    ]


async def chat(request: Request) -> Response:
    """`POST /v1/chat` and its alias: an answer that cites its passages."""
    principal = _let_in(request)
    query = chat_query(await json_object(request))

    async def answered() -> Response:
        service, asked = await _prepared(request, query, principal)
        return await unstored(request, (await service.answer(asked)).body)

    return await unless_gone(request, answered())


async def stream(request: Request) -> ASGIApp:
    """`GET /v1/search/chat/stream`: the same as events `passages`, `delta`, and `done` or `error`."""
    if request.method == "HEAD":
        raise MethodNotAllowed("This route takes GET: its headers alone would cost an answer.", {"Allow": "GET"})
    principal = _let_in(request)
    query = chat_query_string(request.scope["query_string"])
    return Events(_events(*await _prepared(request, query, principal)))


async def complete(request: Request) -> ASGIApp:
    """`POST /v1/chat/completions`: the same in OpenAI's protocol, whole or in chunks."""
    principal = _let_in(request)
    completion = completions.completion(await json_object(request), request.app.state.config.workspace)
    if completion.streams:
        service, asked = await _prepared(request, completion.query, principal)
        return Events(_chunks(service, asked, completion.includes_usage))

    async def answered() -> Response:
        service, asked = await _prepared(request, completion.query, principal)
        answer = await service.answer(asked)
        return await unstored(request, completions.Frame(asked.model).whole(answer.body, answer.finish_reason))

    return await unless_gone(request, answered())


def _let_in(request: Request) -> Principal:
    principal = require(request, "chat")
    check_extras("search", "answer")
    return principal


async def _prepared(request: Request, query: ChatQuery, principal: Principal) -> "tuple[Chat, Asked]":
    """The service, and the question with all that comes before the model. Raises what `Chat.prepare` raises."""
    service = await _chat_of(request)
    return service, await service.prepare(query, principal, request.state.route, request.state.request_id)


async def _chat_of(request: Request) -> "Chat":
    """The chat of this application."""
    state, search = request.app.state, await service_of(request)
    service: Chat = await once(
        request, "chat", "sidecar.answer.chat", lambda module: module.Chat(search, state.database, state.config)
    )
    return service


async def _events(service: "Chat", asked: "Asked") -> AsyncGenerator[bytes, None]:
    yield event({"passages": asked.passages()}, "passages")
    try:
        async with aclosing(service.stream(asked)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    yield event({"text": piece}, "delta")
                else:
                    yield event(piece.body, "done")
    except SidecarError as error:
        yield event({"code": error.code, "message": error.detail, "status": error.status}, "error")


async def _chunks(service: "Chat", asked: "Asked", includes_usage: bool) -> AsyncGenerator[bytes, None]:
    frame = completions.Frame(asked.model)
    yield event(frame.begin())
    try:
        async with aclosing(service.stream(asked)) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    yield event(frame.piece(piece))
                    continue
                yield event(frame.end(piece.body, piece.finish_reason))
                if includes_usage:
                    yield event(frame.usage(piece.body))
                yield completions.DONE
    except SidecarError as error:
        yield event(completions.failure(error))
