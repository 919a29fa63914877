"""The route of the tools of the Model Context Protocol, with what each wing offers; it describes and answers none.

What the tools need beyond the core, and takes time to import, is imported by the first request that may use it.
"""

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from sidecar.answer.routes import retrieval_of
from sidecar.auth import require
from sidecar.bodies import json_body
from sidecar.routes import ApiRoute
from sidecar.search.recall_queries import header_values
from sidecar.search.routes import check_extras, recall_of, service_of

if TYPE_CHECKING:
    from sidecar.exchange import Exchange

TOOLS = "/mcp"

_INSTRUCTIONS = (
    "Conversations of the past. Find turns by keywords with session_search, then read around a hit with session_read; "
    "ask for the messages that fit best with history_search, for passages to cite with workspace.search."
)


def tool_routes() -> list[BaseRoute]:
    """The route of all tools."""
    return [ApiRoute(TOOLS, tools, methods=["POST"])]


async def tools(request: Request) -> ASGIApp:
    """`POST /mcp`: one message of a model's client."""
    principal = require(request, "search")
    check_extras("search", "mcp")
    body = await json_body(request)
    exchange = await _exchange_of(request)
    return exchange.answer(principal, request.state.request_id, header_values(request.headers), body)


async def _exchange_of(request: Request) -> "Exchange":
    """The tools of this application, put together by the first request that needs them."""
    state = request.app.state
    if not hasattr(state, "exchange"):
        names = ("sidecar.exchange", "sidecar.search.tools", "sidecar.answer.tools")
        module, search, answer = [await asyncio.to_thread(import_module, name) for name in names]
        searching = search.offered(await service_of(request), await recall_of(request))
        offered = [*searching, *answer.offered(await retrieval_of(request))]
        state.exchange = module.Exchange(offered, _INSTRUCTIONS)
    exchange: Exchange = state.exchange
    return exchange
