"""The handlers of retrieval: gate, body, one call of the service, bytes; they hold no SQL and no rule.

What the wing needs beyond the core, and takes time to import, is imported by the first request that may use it.
"""

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from sidecar.answer.batch import run
from sidecar.answer.chat_routes import chat_routes
from sidecar.answer.queries import BatchBody, PassageQuery, batch_query, passage_query, passage_query_string
from sidecar.answer.sse import gone_of
from sidecar.auth import require
from sidecar.bodies import json_object
from sidecar.routes import ApiRoute, unstored
from sidecar.search.routes import check_extras, once, service_of

if TYPE_CHECKING:
    from sidecar.answer.retrieval import Retrieval

SEARCH = "/v1/search"
BATCH = "/v1/search/batch"


def answer_routes() -> list[BaseRoute]:
    """The routes of seed 004."""
    return [
        ApiRoute(SEARCH, search, methods=["GET", "POST"]),
        ApiRoute(BATCH, batch, methods=["POST"]),
        *chat_routes(),
    ]


async def search(request: Request) -> Response:
    """`GET` and `POST /v1/search`: the passages that a question's words stand in, best first."""
    principal = require(request, "search")
    check_extras("search")
    if request.method == "POST":
        query = passage_query(await json_object(request))
    else:
        query = passage_query_string(request.scope["query_string"])
    retrieval = await retrieval_of(request)
    return await unstored(request, await retrieval.answer(query, principal, SEARCH, request.state.request_id))


async def batch(request: Request) -> Response:
    """`POST /v1/search/batch`: the same for many queries, each of which is let in or refused by itself."""
    check_extras("search")
    asked = batch_query(await json_object(request, BatchBody))
    retrieval, request_id = await retrieval_of(request), request.state.request_id

    async def answer(query: PassageQuery) -> dict[str, Any]:
        return await retrieval.answer(query, require(request, "search"), BATCH, request_id)

    async with gone_of(request.receive) as gone:
        return await unstored(request, await run(asked, answer, request_id, gone.done))


async def retrieval_of(request: Request) -> "Retrieval":
    """The retrieval of this application."""
    state, search = request.app.state, await service_of(request)
    retrieval: Retrieval = await once(
        request,
        "retrieval",
        "sidecar.answer.retrieval",
        lambda module: module.Retrieval(search, state.database, state.config),
    )
    return retrieval
