"""What the answer wing publishes of itself, for the OpenAPI document; it may not import the routes it describes."""

from sidecar import errors
from sidecar.answer import chat_description
from sidecar.answer.queries import (
    DEFAULT_LIMIT,
    ENHANCEMENTS,
    FILTERS,
    MAX_CONCURRENCY,
    MAX_FILTER,
    MAX_LIMIT,
    MAX_LIST,
    MAX_QUERIES,
    MAX_QUESTION,
    MAX_WORKSPACE,
    STATES,
)
from sidecar.openapi import ANY_SCOPE, STORE, Fragment, Json, exact, operation, parameter, ref, response
from sidecar.wire import MAX_SESSION_ID

_ID: Json = {"type": "string", "minLength": 1, "maxLength": MAX_SESSION_ID, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$"}
_TEXT: Json = {"type": "string"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_COUNT: Json = {"type": "integer", "minimum": 0}


def _words(most: int) -> Json:
    return {"type": "string", "minLength": 1, "maxLength": most, "pattern": r"\S"}


_LIST: Json = {**_words(MAX_LIST), "pattern": r"^\s*[^,\s][^,]*(,\s*[^,\s][^,]*)*$"}
_INPUT: dict[str, tuple[str, Json]] = {
    "q": ("A question or keywords; any word may match.", _words(MAX_QUESTION)),
    "workspaceId": ("The id in `SIDECAR_WORKSPACE`; any other is not found.", _words(MAX_WORKSPACE)),
    "limit": (
        f"How many passages at most; outside 1 to {MAX_LIMIT} is refused.",
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    ),
    "documentId": ("Only this session: an A2A context id.", _ID),
    "runId": ("Only this turn: an A2A task id, of `documentId` where both are given.", _ID),
    "filenameContains": ("Only turns with an artifact part whose file name contains this.", _words(MAX_FILTER)),
    "tags": (
        f"Only turns in one of these task states, separated by commas: {', '.join(STATES)}, or as `TASK_STATE_…`.",
        _LIST,
    ),
    "mimeTypes": (
        "Only turns with an artifact part of one of these media types, separated by commas.",
        _LIST,
    ),
}
_OPTIONAL = ("limit", *FILTERS)
_EXAMPLES = {"q": "support hours", "workspaceId": "default", "limit": 3}
_REFUSALS = (
    errors.ParameterInvalid,
    errors.InvalidSearchScope,
    errors.NotFound,
    errors.WorkspaceNotFound,
    errors.SearchUnavailable,
    *STORE,
)
_DESCRIPTION = (
    "Words are alternatives: the more and the rarer of them a field holds, the higher it ranks. One passage a field, "
    "each cited by the characters of the field that it is; sessions alone, no incognito turn. Rewriting, reranking "
    "and the like are not built: `false` is accepted, anything else refused. 404 without the extra `search`."
)


def _paths() -> Json:
    answer = {"200": response(_SHOWN, ref("PassageAnswer"), "Cache-Control", "Vary")}
    return {
        "/v1/search": {
            "get": operation(
                "getPassages",
                "Find passages",
                _DESCRIPTION,
                answer,
                scope="search",
                parameters=[
                    parameter(
                        name,
                        description,
                        schema,
                        required=name in ("q", "workspaceId"),
                        example=_EXAMPLES.get(name),
                    )
                    for name, (description, schema) in _INPUT.items()
                ],
                refusals=_REFUSALS,
            ),
            "post": operation(
                "findPassages",
                "Find passages, for a question in a body",
                _DESCRIPTION,
                answer,
                scope="search",
                body={"schema": ref("PassageQuery"), "example": _EXAMPLES},
                refusals=_REFUSALS,
            ),
        },
        "/v1/search/batch": {"post": _batch()},
    }


_SHOWN = '`{"results": [{"text", "title", "citation": {"session_id", "task_id", "field", "start", "end"}}]}` and more.'


def _batch() -> Json:
    return operation(
        "findPassagesOfMany",
        "Find passages for many questions",
        "The whole envelope is checked before any search begins. The results stand in the order of the queries, each "
        "an answer or an error of its own: `FORBIDDEN` (the token lacks the scope `search`), `WORKSPACE_NOT_FOUND`, "
        "`INVALID_SEARCH_SCOPE`, `SEARCH_FAILED`, `REQUEST_ABORTED`. 404 without the extra `search`.",
        {"200": response('`{"results": [{"ok", "data"} or {"ok", "error"}]}`.', ref("BatchAnswer"), "Cache-Control")},
        scope=ANY_SCOPE,
        body={"schema": ref("BatchQuery"), "example": {"queries": [_EXAMPLES], "concurrency": MAX_CONCURRENCY}},
        refusals=[errors.ParameterInvalid, errors.NotFound],
    )


def _schemas() -> Json:
    return {
        "PassageQuery": _query(),
        "PassageAnswer": exact(
            {
                "results": {"type": "array", "maxItems": MAX_LIMIT, "items": ref("Passage")},
                "sessionId": {"type": "null", "description": "A search begins no chat."},
                "availability": ref("Availability"),
                "usage": ref("Usage"),
            }
        ),
        "Passage": exact(
            {
                "text": {**_TEXT, "maxLength": 1000, "description": "Plain text, never to be taken for HTML."},
                "truncated": {"type": "boolean", "description": "The text is not the whole field."},
                "title": {**_TEXT_OR_NULL, "description": "The session's."},
                "state": _TEXT,
                "time": _TEXT_OR_NULL,
                "score": {"type": "integer", "description": "Higher is better, among the results of one answer."},
                "citation": ref("Citation"),
            }
        ),
        "Citation": exact(
            {
                "session_id": _TEXT,
                "task_id": _TEXT,
                "field": {"enum": ["prompt", "steers", "content"]},
                "position": {"type": "integer", "minimum": 1},
                "start": {**_COUNT, "description": "In the field's text, in characters (code points)."},
                "end": _COUNT,
            }
        ),
        "Usage": exact(
            {
                "source": {"enum": ["none", "provider", "estimate"], "description": "Who counted; no invoice."},
                "model": _TEXT_OR_NULL,
                "inputTokens": _COUNT,
                "outputTokens": _COUNT,
                "totalTokens": _COUNT,
            }
        ),
        "BatchQuery": exact(
            {
                "queries": {"type": "array", "minItems": 1, "maxItems": MAX_QUERIES, "items": ref("PassageQuery")},
                "concurrency": {
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "maximum": MAX_CONCURRENCY,
                    "default": MAX_CONCURRENCY,
                },
            },
            optional=["concurrency"],
        ),
        "BatchAnswer": exact(
            {"results": {"type": "array", "minItems": 1, "maxItems": MAX_QUERIES, "items": ref("BatchItem")}}
        ),
        "BatchItem": {
            "oneOf": [
                exact({"ok": {"const": True}, "data": ref("PassageAnswer")}),
                exact({"ok": {"const": False}, "error": ref("BatchError")}),
            ]
        },
        "BatchError": exact(
            {
                "code": {
                    "enum": [
                        "FORBIDDEN",
                        "WORKSPACE_NOT_FOUND",
                        "INVALID_SEARCH_SCOPE",
                        "SEARCH_FAILED",
                        "REQUEST_ABORTED",
                    ]
                },
                "message": _TEXT,
                "status": {"enum": [400, 403, 404, 499, 500]},
            }
        ),
    }


def _query() -> Json:
    """What is optional may be null as well."""
    properties = {name: {**schema, "description": description} for name, (description, schema) in _INPUT.items()}
    for name in _OPTIONAL:
        properties[name]["type"] = [properties[name]["type"], "null"]
    refused = {name: {"enum": [False, None], "description": "Not built."} for name in ENHANCEMENTS}
    return exact({**properties, **refused}, optional=[*_OPTIONAL, *ENHANCEMENTS])


FRAGMENT = Fragment({**_paths(), **chat_description.PATHS}, {**_schemas(), **chat_description.SCHEMAS})
