"""What the search wing publishes of itself, for the OpenAPI document; it may not import the routes it describes."""

from sidecar import errors
from sidecar.openapi import STORE, Fragment, Json, choice, exact, operation, parameter, ref, response
from sidecar.search import recall_description
from sidecar.search.recall_description import WORKSPACE
from sidecar.search.recall_queries import LOADED_META, RUN_HEADER, RUN_META, TURN_HEADER, TURN_META
from sidecar.wire import MAX_SESSION_ID

_ID: Json = {"type": "string", "minLength": 1, "maxLength": MAX_SESSION_ID, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$"}
_TEXT: Json = {"type": "string"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_FLAG: Json = {"type": "boolean"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_POSITION_OR_NULL: Json = {"type": ["integer", "null"], "minimum": 0}
_CURSOR: Json = {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"}

_CONVERSATION = parameter(
    "conversation_public_id",
    "The A2A context id, percent-encoded: a slash inside an id is written `%2F`.",
    _ID,
    place="path",
    example="chat-1",
)
_QUERY = parameter(
    "query",
    "Keywords, at most 1,024 bytes in UTF-8. One field must hold them all.",
    {"type": "string", "minLength": 1, "maxLength": 1024, "pattern": r"\S"},
    required=True,
    example="error",
)
_ARCHIVED = choice(
    "archived",
    "The task store knows no archive: `include` is as `exclude`, and `only` finds nothing.",
    "exclude",
    "include",
    "only",
    default="exclude",
)
_LIMIT = parameter(
    "limit",
    "How many at most. More than 50 is accepted and answered with 50.",
    {"type": "integer", "minimum": 1, "maximum": 9_999_999_999, "default": 20},
)
_POSITION: Json = {"type": "integer", "maximum": 9_999_999_999}


def _flag(name: str, description: str) -> Json:
    return choice(name, description, "true", "false", default="false")


_SEARCH_PARAMETERS = (
    WORKSPACE,
    _QUERY,
    _ARCHIVED,
    _flag("include_auxiliary", "Also search contexts without the prefix `SIDECAR_SESSION_PREFIX`."),
    _LIMIT,
    parameter("after", "`pagination.next_after` of the page before; it fits only its own query and filters.", _CURSOR),
)
_HISTORY_PARAMETERS = (
    WORKSPACE,
    _CONVERSATION,
    _LIMIT,
    parameter("around_turn_public_id", "The turn to read around; 404 when it is not there to be seen.", _ID),
    parameter("before_position", "Only turns before this position.", {**_POSITION, "minimum": 1}),
    parameter("after_position", "Only turns after this position.", {**_POSITION, "minimum": 0}),
    _flag("include_execution", "Add `execution`: how the selected turn was or is being worked on."),
    parameter(
        "execution_before",
        "`execution.pagination.next_before` of the answer before; without effect unless `include_execution`.",
        _TEXT,
    ),
    parameter(
        "execution_prefix",
        "A key of `execution.branches`, of which a task store has none; without effect unless `include_execution`.",
        _TEXT,
    ),
)
_REFUSALS = (errors.ParameterInvalid, errors.NotFound, errors.SearchUnavailable, *STORE)


def _paths() -> Json:
    return {
        "/agent_api/v1/workspaces/{workspace_public_id}/conversation_search": {
            "get": operation(
                "searchConversations",
                "Search the conversations",
                "Keywords in titles, prompts, answers and interjections, newest turn first; no phrases, no parts of "
                "words. English by stems, Chinese by words. 404 without the extra `search`.",
                {
                    "200": response(
                        '`{"matches": [{"conversation_public_id", "turn_public_id", "field", "excerpt"}], '
                        '"pagination": {"next_after"}}` and more.',
                        ref("SearchAnswer"),
                        "Cache-Control",
                        "Vary",
                    )
                },
                scope="search",
                parameters=_SEARCH_PARAMETERS,
                refusals=_REFUSALS,
            )
        },
        "/agent_api/v1/workspaces/{workspace_public_id}/conversations/{conversation_public_id}/history": {
            "get": operation(
                "readHistory",
                "Read a window of a conversation",
                "The newest turns, or those around a turn, before or after a position: at most one of the three is "
                "given. Ascending, at most 2,000 characters a field and 12,000 in all. 404 without the extra `search`.",
                {
                    "200": response(
                        '`{"conversation", "turns": [{"public_id", "position", "prompt", "content"}], "pagination", '
                        '"truncated"}`, and `execution` on demand.',
                        ref("HistoryAnswer"),
                        "Cache-Control",
                        "Vary",
                    )
                },
                scope="search",
                parameters=_HISTORY_PARAMETERS,
                refusals=[errors.SessionIdInvalid, *_REFUSALS],
            )
        },
        **recall_description.paths(),
        "/mcp": {"post": _tools()},
    }


def _tools() -> Json:
    published = operation(
        "callTools",
        "Use the search as tools of a model",
        "The Model Context Protocol over streamable HTTP, one JSON answer a message, without sessions. The tools are "
        "`session_search`, `session_read`, `history_search`, `workspace.search` and `workspace.search-many`; what a "
        "tool refuses stands in its result, under `isError`. `history_search` takes its run from the headers "
        f"`{RUN_HEADER}` and `{TURN_HEADER}`, or from `{RUN_META}`, `{TURN_META}` and `{LOADED_META}` in the call's "
        "`_meta`. 404 without the extras `search` and `mcp`.",
        {
            "200": response("The JSON-RPC response, an error included.", ref("RpcResponse"), "Cache-Control"),
            "202": {"description": "A notification was taken; no body."},
            "406": {"description": "`Accept` takes no JSON."},
        },
        scope="search",
        body={
            "schema": ref("RpcMessage"),
            "example": {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "session_search", "arguments": {"query": "error"}},
            },
        },
        refusals=[errors.ParameterInvalid, errors.NotFound],
    )
    # what is no message, or no method of the newest protocol, is told so by a JSON-RPC error
    for status in ("400", "404"):
        published["responses"][status]["content"]["application/json"] = {"schema": ref("RpcResponse")}
    return published


def _schemas() -> Json:
    return {
        "SearchAnswer": exact(
            {
                "matches": {"type": "array", "maxItems": 50, "items": ref("Match")},
                "pagination": exact({"next_after": _TEXT_OR_NULL}),
                "query_lexemes": {"type": "array", "items": _TEXT, "description": "What was looked for."},
                "ignored_terms": {"type": "array", "items": _TEXT, "description": "Terms that no index holds."},
                "availability": ref("Availability"),
            }
        ),
        "Match": exact(_match_properties(), optional=["state"]),
        "Availability": exact(
            {
                "indexed": {**_COUNT, "description": "Turns in the index."},
                "pending": {**_COUNT, "description": "Turns that are not in it yet; repeat the request."},
                "complete": {**_FLAG, "description": "Every turn stored before the request was considered."},
                "checked": {"description": "What of the store was looked through for changes."},
            }
        ),
        "HistoryAnswer": exact(
            {
                "conversation": exact({"public_id": _TEXT, "title": _TEXT_OR_NULL}),
                "turns": {"type": "array", "maxItems": 50, "items": ref("HistoryTurn")},
                "pagination": exact(
                    {
                        "before_position": _POSITION_OR_NULL,
                        "after_position": _POSITION_OR_NULL,
                        "has_older": _FLAG,
                        "has_newer": _FLAG,
                    }
                ),
                "truncated": _FLAG,
                "execution": {"oneOf": [ref("Execution"), {"type": "null"}]},
                "availability": ref("Availability"),
            },
            optional=["execution"],
        ),
        "HistoryTurn": exact(_turn_properties(), optional=["prompt", "steers", "content"]),
        "Execution": exact(_execution_properties(), optional=["branches", "attention_reason", "failure_reason"]),
        **recall_description.schemas(),
        "RpcMessage": {
            "type": "object",
            "properties": {
                "jsonrpc": {"const": "2.0"},
                "id": {"description": "A number or a string; a message without one is a notification."},
                "method": _TEXT,
                "params": {"type": ["object", "null"]},
            },
            "required": ["jsonrpc", "method"],
        },
        "RpcResponse": {
            "type": "object",
            "properties": {
                "jsonrpc": {"const": "2.0"},
                "id": {"type": ["string", "integer", "null"]},
                "result": {"type": "object"},
                "error": {"type": "object"},
            },
            "required": ["jsonrpc", "id"],
        },
    }


def _match_properties() -> Json:
    return {
        "conversation_public_id": _TEXT,
        "title": _TEXT_OR_NULL,
        "turn_public_id": {**_TEXT_OR_NULL, "description": "Null for a hit in the title."},
        "variant_public_id": _TEXT_OR_NULL,
        "position": _POSITION_OR_NULL,
        "field": {"enum": ["title", "prompt", "content", "steers"]},
        "inherited": {"const": False},
        "excerpt": {**_TEXT, "maxLength": 500, "description": "Plain text, never to be taken for HTML."},
        "truncated": {**_FLAG, "description": "The excerpt is not the whole field."},
        "state": _TEXT_OR_NULL,
    }


def _turn_properties() -> Json:
    field: Json = {"type": "string", "maxLength": 2000}
    return {
        "public_id": _TEXT,
        "position": {"type": "integer", "minimum": 1},
        "kind": _TEXT_OR_NULL,
        "role": {"enum": ["user", "agent"]},
        "status": _TEXT,
        "created_at": {**_TEXT_OR_NULL, "description": "When the sidecar first saw it; null when it is older."},
        "truncated": _FLAG,
        "prompt": field,
        "steers": field,
        "content": field,
    }


def _execution_properties() -> Json:
    return {
        "turn_public_id": _TEXT,
        "variant_public_id": _TEXT,
        "active": _FLAG,
        "status": _TEXT,
        "run_public_id": _TEXT,
        "run_status": _TEXT,
        "attention_reason": _TEXT,
        "failure_reason": _TEXT,
        "rounds": {"type": "array", "maxItems": 20, "items": {"type": "object"}},
        "branches": {"type": "array", "maxItems": 0},
        "pagination": exact({"next_before": _TEXT_OR_NULL, "has_older": _FLAG}),
        "truncated": _FLAG,
    }


FRAGMENT = Fragment(_paths(), _schemas())
