"""Retrieval as tools of the Model Context Protocol (seed 004): the routes' service and answers; it serves nothing."""

from functools import partial
from typing import Any

from sidecar.answer.batch import run
from sidecar.answer.queries import (
    DEFAULT_LIMIT,
    MAX_CONCURRENCY,
    MAX_LIMIT,
    MAX_QUERIES,
    MAX_QUESTION,
    STATES,
    PassageQuery,
    batch_query,
    passage_query,
)
from sidecar.answer.retrieval import Retrieval
from sidecar.offered import Offered, Runtime, text_schema, tool

Json = dict[str, Any]

_ROUTE = "/mcp"
_REQUIRED = ("q", "workspaceId")
_INPUT: Json = {
    "q": text_schema(f"A question or keywords, at most {MAX_QUESTION} characters; any word may match."),
    "workspaceId": text_schema("The id of the workspace."),
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    "documentId": text_schema("Only this conversation: citation.session_id of a result."),
    "runId": text_schema("Only this turn: citation.task_id of a result."),
    "filenameContains": text_schema("Only turns that made a file whose name contains this."),
    "tags": text_schema(f"Only turns in one of these states, separated by commas: {', '.join(STATES)}."),
    "mimeTypes": text_schema("Only turns that made a file of one of these media types, separated by commas."),
}
_SEARCH = tool(
    "workspace.search",
    "Find passages",
    "Find the passages of past conversations that answer a question best, each with a citation of where it stands. "
    "English words match by their stem, Chinese by its words; more and rarer words that match rank higher.",
    _REQUIRED,
    _INPUT,
    idempotent=False,
)
_SEARCH_MANY = tool(
    "workspace.search-many",
    "Find passages for many questions",
    "The same for several questions at once: their results in the same order, each an answer or an error.",
    ("queries",),
    {
        "queries": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_QUERIES,
            "items": {
                "type": "object",
                "properties": _INPUT,
                "required": [*_REQUIRED],
                "additionalProperties": False,
            },
        },
        "concurrency": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_CONCURRENCY,
            "default": MAX_CONCURRENCY,
            "description": "How many are answered at a time.",
        },
    },
    idempotent=False,
)


def offered(retrieval: Retrieval) -> list[Offered]:
    """The tools over one retrieval; what they answer is recorded as used by whoever calls them."""
    return [
        Offered(_SEARCH, partial(_search, retrieval)),
        Offered(_SEARCH_MANY, partial(_search_many, retrieval)),
    ]


async def _search(retrieval: Retrieval, given: Json, runtime: Runtime) -> Json:
    return await retrieval.answer(passage_query(given), runtime.principal, _ROUTE, runtime.request_id)


async def _search_many(retrieval: Retrieval, given: Json, runtime: Runtime) -> Json:
    async def answer(query: PassageQuery) -> Json:
        return await retrieval.answer(query, runtime.principal, _ROUTE, runtime.request_id)

    return await run(batch_query(given), answer, runtime.request_id, lambda: False)
