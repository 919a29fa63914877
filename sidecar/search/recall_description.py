"""What the agents' own search publishes of itself; it may not import the routes that it describes."""

from sidecar import errors
from sidecar.openapi import STORE, Json, exact, operation, parameter, ref, response
from sidecar.search.queries import MAX_QUERY_BYTES
from sidecar.search.recall_queries import (
    DEFAULT_EVENTS,
    DEFAULT_HITS,
    MAX_EVENTS,
    MAX_HITS,
    MAX_LOADED,
    MAX_LOADED_CHARACTERS,
    MAX_NUMBER,
    RUN_HEADER,
    SPEAKERS,
    TURN_HEADER,
)
from sidecar.wire import MAX_SESSION_ID

_ID_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+$"
_ID: Json = {"type": "string", "minLength": 1, "maxLength": MAX_SESSION_ID, "pattern": _ID_PATTERN}
_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_EVENT_ID: Json = {"type": "integer", "minimum": 1}
_TIME_OR_NULL: Json = {"type": ["string", "null"], "format": "date-time"}

WORKSPACE = parameter(
    "workspace_public_id",
    "The id in `SIDECAR_WORKSPACE`; any other is not found.",
    {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[A-Za-z0-9._-]+$"},
    place="path",
    example="default",
)
_RUN = parameter(
    RUN_HEADER,
    "The run that asks; its runtime sends it, never its model. What a run is shown is counted by this id.",
    {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$"},
    place="header",
    required=True,
    example="run-1",
)
_CURRENT_TURN = parameter(
    TURN_HEADER,
    "The turn that the run works on: its messages are left out, and its conversation ranks higher.",
    _ID,
    place="header",
)
_EVENTS = (
    WORKSPACE,
    parameter(
        "limit",
        f"How many at most. More than {MAX_EVENTS} is accepted and answered with {MAX_EVENTS}.",
        {"type": "integer", "minimum": 1, "maximum": MAX_NUMBER, "default": DEFAULT_EVENTS},
    ),
    parameter(
        "before",
        "`pagination.next_before` of the answer before.",
        {"type": "integer", "minimum": 1, "maximum": 10**18 - 1},
    ),
)


def paths() -> Json:
    """The wing's paths of seed 002."""
    return {
        "/agent_api/v1/workspaces/{workspace_public_id}/history_search": {"post": _search()},
        "/agent_api/v1/workspaces/{workspace_public_id}/search_audit": {"get": _audit()},
    }


def _search() -> Json:
    return operation(
        "searchHistory",
        "Search an agent's own history",
        "Words are alternatives, the best matches first, each with up to two messages on either side. Messages that "
        "the run has before it are left out. A run is shown at most 400 distinct messages, after which "
        "`search_budget_exhausted` is true. Each search is recorded before it is answered. Whose history it is follows "
        "from the token alone. 404 without the extra `search`.",
        {
            "200": response(
                '`{"hits": [{"turn_public_id", "message_id", "text", "before", "after"}], "search_audit", '
                '"search_budget_exhausted"}` and more.',
                ref("HistoryEvidence"),
                "Cache-Control",
                "Vary",
            )
        },
        scope="search",
        parameters=(WORKSPACE, _RUN, _CURRENT_TURN),
        body={"schema": ref("HistoryQuestion"), "example": {"query": "migration decided", "limit": 5}},
        refusals=(
            errors.ParameterInvalid,
            errors.RunRequired,
            errors.NotFound,
            errors.SearchUnavailable,
            errors.AuditUnavailable,
            *STORE,
        ),
    )


def _audit() -> Json:
    return operation(
        "listSearches",
        "Inspect what agents were shown",
        "One event a search, newest first: who asked, by what filters, what was selected and why, how much was left "
        "out. Of the query there is a keyed digest alone. A token that is narrowed to owners sees its own events.",
        {
            "200": response(
                '`{"events": [{"event_id", "at", "run_id", "digest", "selected"}], "pagination": {"next_before"}}`.',
                ref("SearchEvents"),
                "Cache-Control",
                "Vary",
            )
        },
        scope="audit",
        parameters=_EVENTS,
        refusals=(errors.ParameterInvalid, errors.NotFound, errors.AuditUnavailable),
    )


def schemas() -> Json:
    """The schemas of its bodies."""
    exclusions = exact({"current_turn": _COUNT, "loaded": _COUNT, "budget": _COUNT})
    neighbours: Json = {"type": "array", "maxItems": 2, "items": ref("HistoryMessage")}
    audited: Json = {"event_id": _EVENT_ID, "at": {**_TEXT, "format": "date-time"}}
    return {
        "HistoryQuestion": exact(_question(), optional=[name for name in _question() if name != "query"]),
        "HistoryEvidence": exact(
            {
                "hits": {"type": "array", "maxItems": MAX_HITS, "items": ref("HistoryHit")},
                "search_audit": exact({**audited, "digest": _TEXT, "exclusions": exclusions}),
                "search_budget_exhausted": {**_FLAG, "description": "The run is shown nothing new any more."},
                "query_lexemes": {"type": "array", "items": _TEXT, "description": "What was looked for."},
                "ignored_terms": {"type": "array", "items": _TEXT, "description": "Terms that no index holds."},
                "availability": ref("Availability"),
            }
        ),
        "HistoryHit": exact(
            {
                "conversation_public_id": _TEXT,
                **_message(1000),
                "reasons": exact({**_reasons(), "terms": {"type": "array", "items": _TEXT}}),
                "before": {**neighbours, "description": "What was said before it, oldest first."},
                "after": neighbours,
            }
        ),
        "HistoryMessage": exact(_message(250)),
        "SearchEvents": exact(
            {
                "events": {"type": "array", "maxItems": MAX_EVENTS, "items": ref("SearchEvent")},
                "pagination": exact({"next_before": {"type": ["integer", "null"], "minimum": 1}}),
            }
        ),
        "SearchEvent": exact(
            {
                **audited,
                "token": {**_TEXT, "description": "The name of the token that asked."},
                "run_id": _TEXT,
                "digest": {**_TEXT, "description": "HMAC-SHA-256 of the query under `SIDECAR_AUDIT_KEY`."},
                "filters": {"type": "object"},
                "selected": {"type": "array", "maxItems": MAX_HITS, "items": _selected()},
                "exclusions": exclusions,
                "new_messages": {**_COUNT, "description": "How many the run had not been shown before."},
                "search_budget_exhausted": _FLAG,
                "request_id": _TEXT,
            }
        ),
    }


def _question() -> Json:
    return {
        "query": {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_BYTES, "pattern": r"\S"},
        "speaker": {"enum": [*SPEAKERS, None], "default": SPEAKERS[0]},
        "since": {**_TIME_OR_NULL, "description": "Only what was last updated then or later."},
        "until": {**_TIME_OR_NULL, "description": "Only what was last updated before; later than `since`."},
        "limit": {
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": MAX_NUMBER,
            "default": DEFAULT_HITS,
            "description": f"How many hits at most; more than {MAX_HITS} is accepted and answered with {MAX_HITS}.",
        },
        "conversation_public_id": {**_ID, "type": ["string", "null"], "description": "Only this one, of any prefix."},
        "loaded_message_ids": {
            "type": ["array", "null"],
            "maxItems": MAX_LOADED,
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_LOADED_CHARACTERS, "pattern": r"\S"},
            "description": "What the run's model has before it; the runtime sends them, never the model.",
        },
    }


def _message(characters: int) -> Json:
    return {
        "turn_public_id": _TEXT,
        "message_id": {**_TEXT, "description": "Stable: that of the stored message, or made of its place."},
        "time": _TIME_OR_NULL,
        "speaker": {"enum": ["requester", "you"]},
        "text": {**_TEXT, "maxLength": characters, "description": "Plain text, never to be taken for HTML."},
        "truncated": {**_FLAG, "description": "The text is not the whole message."},
    }


def _reasons() -> Json:
    names = ("match", "matched", "conversation", "actor", "participation", "recency", "score")
    return {name: {"type": "integer"} for name in names}


def _selected() -> Json:
    message: Json = {"turn_public_id": _TEXT, "message_id": _TEXT}
    beside: Json = {"type": "array", "maxItems": 2, "items": exact(message)}
    return exact({**message, "reasons": exact(_reasons()), "before": beside, "after": beside})
