"""The handlers of the search wing: gate, parameters, one call of the service, bytes; they hold no SQL and no rule.

What the wing needs beyond the core, and takes time to import, is imported by the first request that may use it.
"""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from sidecar.auth import require
from sidecar.bodies import json_body
from sidecar.errors import NotFound
from sidecar.params import decoded, parse_session_id
from sidecar.routes import ApiRoute, RawRoute, unstored
from sidecar.search.extras import Extra, lacking
from sidecar.search.queries import history_query, search_query

if TYPE_CHECKING:
    from sidecar.search.service import Search

WORKSPACES = "/agent_api/v1/workspaces"
SEARCH = WORKSPACES + "/{workspace_public_id}/conversation_search"
HISTORY = WORKSPACES + "/{workspace_public_id}/conversations/{conversation_public_id}/history"
TOOLS = "/mcp"


def search_routes() -> list[BaseRoute]:
    """The routes of seed 000, and its tools."""
    return [
        RawRoute(WORKSPACES, {SEARCH: {"GET": search}, HISTORY: {"GET": history}}),
        ApiRoute(TOOLS, tools, methods=["POST"]),
    ]


async def search(request: Request) -> Response:
    """`GET …/conversation_search`: the turns and titles that hold every keyword."""
    principal = require(request, "search")
    check_extras("search")
    _check_workspace(request)
    query = search_query(request.scope["query_string"])
    service = await service_of(request)
    return await unstored(request, await service.search(query, principal.owners))


async def history(request: Request) -> Response:
    """`GET …/conversations/{conversation_public_id}/history`: a window of one conversation's turns."""
    principal = require(request, "search")
    check_extras("search")
    _check_workspace(request)
    conversation = parse_session_id(request.path_params["conversation_public_id"])
    query = history_query(conversation, request.scope["query_string"])
    service = await service_of(request)
    return await unstored(request, await service.read(query, principal.owners))


async def tools(request: Request) -> ASGIApp:
    """`POST /mcp`: the same for a model, as the tools `session_search` and `session_read`."""
    principal = require(request, "search")
    check_extras("search", "mcp")
    body = await json_body(request)
    exchange = await _exchange(request)
    return exchange(await service_of(request), principal.owners, request.state.request_id, body)


def check_extras(*needed: Extra) -> None:
    if hint := lacking(*needed):
        raise NotFound(hint)


def _check_workspace(request: Request) -> None:
    """Nothing says which ids other workspaces have: a broken one is not found, either."""
    try:
        workspace = decoded(request.path_params["workspace_public_id"])
    except ValueError:
        workspace = ""
    if workspace != request.app.state.config.workspace:
        raise NotFound("No such workspace; SIDECAR_WORKSPACE names the one that is here.")


async def service_of(request: Request) -> "Search":
    """The service of this application, made by the first request that needs it."""
    state = request.app.state
    if not hasattr(state, "search"):
        module = await asyncio.to_thread(import_module, "sidecar.search.service")
        if not hasattr(state, "search"):  # another request was faster
            state.search = module.Search(state.database, state.config)
    service: Search = state.search
    return service


async def _exchange(request: Request) -> Callable[..., ASGIApp]:
    """`tools.exchange`, whose imports take longer than many requests."""
    state = request.app.state
    if not hasattr(state, "exchange"):
        state.exchange = (await asyncio.to_thread(import_module, "sidecar.search.tools")).exchange
    exchange: Callable[..., ASGIApp] = state.exchange
    return exchange
