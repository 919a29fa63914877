"""The handlers of the search wing: gate, parameters, one call of the service, bytes; they hold no SQL and no rule.

What the wing needs beyond the core, and takes time to import, is imported by the first request that may use it.
"""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from sidecar.auth import require
from sidecar.bodies import json_object
from sidecar.errors import NotFound
from sidecar.params import decoded, parse_session_id
from sidecar.routes import RawRoute, unstored
from sidecar.search.extras import Extra, lacking
from sidecar.search.queries import history_query, search_query
from sidecar.search.recall_queries import events_query, header_values, recall_body, run_of

if TYPE_CHECKING:
    from sidecar.search.recall import Recall
    from sidecar.search.service import Search

WORKSPACES = "/agent_api/v1/workspaces"
SEARCH = WORKSPACES + "/{workspace_public_id}/conversation_search"
HISTORY = WORKSPACES + "/{workspace_public_id}/conversations/{conversation_public_id}/history"
RECALL = WORKSPACES + "/{workspace_public_id}/history_search"
AUDIT = WORKSPACES + "/{workspace_public_id}/search_audit"


def search_routes() -> list[BaseRoute]:
    """The routes of seeds 000 and 002."""
    handlers = {
        SEARCH: {"GET": search},
        HISTORY: {"GET": history},
        RECALL: {"POST": recall},
        AUDIT: {"GET": search_audit},
    }
    return [RawRoute(WORKSPACES, handlers)]


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


async def recall(request: Request) -> Response:
    """`POST …/history_search`: the messages that fit an agent's words best, after they were recorded."""
    principal = require(request, "search")
    check_extras("search")
    _check_workspace(request)
    query, loaded = recall_body(await json_object(request))
    run = run_of(header_values(request.headers), {}, loaded)
    service = await recall_of(request)
    return await unstored(request, await service.search(query, run, principal, request.state.request_id))


async def search_audit(request: Request) -> Response:
    """`GET …/search_audit`: the record of what agents were shown, newest first."""
    principal = require(request, "audit")
    check_extras("search")
    _check_workspace(request)
    query = events_query(request.scope["query_string"])
    service = await recall_of(request)
    return await unstored(request, await service.events(query, principal, request.state.request_id))


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
    """The search of this application."""
    state = request.app.state
    service: Search = await once(
        request, "search", "sidecar.search.service", lambda module: module.Search(state.database, state.config)
    )
    return service


async def recall_of(request: Request) -> "Recall":
    """The agents' search of this application."""
    state, search = request.app.state, await service_of(request)
    service: Recall = await once(
        request, "recall", "sidecar.search.recall", lambda module: module.Recall(search, state.database, state.config)
    )
    return service


async def once(request: Request, name: str, module: str, make: Callable[[Any], Any]) -> Any:
    """What the application has under a name; the first request that needs it makes it, of a module that takes long."""
    state = request.app.state
    if not hasattr(state, name):
        imported = await asyncio.to_thread(import_module, module)
        if not hasattr(state, name):  # another request was faster
            setattr(state, name, make(imported))
    return getattr(state, name)
