"""The published description of the HTTP interface, OpenAPI 3.1, by hand; it may not import the routes it describes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import groupby
from typing import Any

from sidecar import errors
from sidecar.errors import SidecarError
from sidecar.wire import MAX_SESSION_ID

Json = dict[str, Any]

# What any request may be refused with, what any route with a token may, and what any route with the task store may.
_EDGE = (
    errors.InvalidRequest,
    errors.OriginNotAllowed,
    errors.MethodNotAllowed,
    errors.BodyTooLarge,
    errors.TargetTooLong,
    errors.HeadersTooLarge,
    errors.InternalError,
)
_GATE = (errors.HostNotAllowed, errors.Unauthorized)
ANY_SCOPE = ""
"""The scope of an operation that any token may ask for."""
STORE = (
    errors.TaskStoreMissing,
    errors.TombstonesUnavailable,
    errors.ReadOnly,
    errors.Busy,
    errors.DatabaseUnavailable,
)
_PROBLEM_HEADERS = {
    400: ["WWW-Authenticate"],
    401: ["WWW-Authenticate"],
    403: ["WWW-Authenticate"],
    405: ["Allow"],
    503: ["Retry-After"],
}


@dataclass(frozen=True, eq=False, slots=True)
class Fragment:
    """What one part of the sidecar publishes: its path items, and the schemas that they refer to by name."""

    paths: Mapping[str, Json]
    schemas: Mapping[str, Json]


@cache
def document(*wings: Fragment) -> Json:
    """The OpenAPI 3.1 document of the core and these wings; everyone is given the same one, to be read only."""
    parts = (Fragment({**_session_paths(), **_operations_paths()}, _schemas()), *wings)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "a2a-session-sidecar",
            "version": version("a2a-session-sidecar"),
            "summary": "The sessions and turns of an A2A task store.",
            "description": "Every route that takes GET takes HEAD. Answers above 1 KiB are gzipped for clients that "
            "accept it. Every refusal is a problem of RFC 9457, whose `code` is listed with each operation.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {path: item for part in parts for path, item in part.paths.items()},
        "components": {
            "schemas": {name: schema for part in parts for name, schema in part.schemas.items()},
            "headers": _header_components(),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The operator token has every scope; `x-required-scope` names the needed one.",
                }
            },
        },
    }


def operation(
    name: str,
    summary: str,
    description: str,
    answers: Json,
    *,
    scope: str | None,
    parameters: Sequence[Json] = (),
    body: Json | None = None,
    refusals: Iterable[type[SidecarError]] = (),
) -> Json:
    """One operation; `refusals` are those beyond the edge's and, where it has a scope, the gate's.

    `body` is the media type object of the JSON that it takes: `schema`, and the `example` of its curl line.

    `scope` None makes it public; unless it takes any Host, it then names HostNotAllowed itself.
    """
    return {
        "operationId": name,
        "summary": summary,
        "description": description,
        **_access(scope),
        "parameters": list(parameters),
        **({} if body is None else {"requestBody": {"required": True, "content": {"application/json": body}}}),
        "responses": dict(sorted({**answers, **_problems({*_EDGE, *refusals, *_gate(scope)})}.items())),
    }


def _access(scope: str | None) -> Json:
    """The members that say which token an operation needs."""
    if not scope:
        return {"security": [] if scope is None else [{"bearer": []}]}
    return {"x-required-scope": scope, "security": [{"bearer": [scope]}]}


def _gate(scope: str | None) -> tuple[type[SidecarError], ...]:
    if not scope:
        return () if scope is None else _GATE
    return (*_GATE, errors.InsufficientScope)


def parameter(
    name: str,
    description: str,
    schema: Json,
    *,
    place: str = "query",
    required: bool = False,
    example: Any = None,
) -> Json:
    """A parameter, required in a path; one with an example is part of the curl line on the documentation page."""
    is_required = required or place == "path"
    plain = {"name": name, "in": place, "description": description, "required": is_required, "schema": schema}
    return plain if example is None else {**plain, "example": example}


def response(description: str, schema: Json, *headers: str, media_type: str = "application/json") -> Json:
    """One answer with a body; every answer has an `X-Request-Id`, `headers` are the others."""
    return {
        "description": description,
        "headers": _headers(headers),
        "content": {media_type: {"schema": schema}},
    }


def exact(properties: Json, optional: Sequence[str] = ()) -> Json:
    """The schema of an object that has these keys and no other."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def ref(schema: str) -> Json:
    """A reference to a schema by its name."""
    return {"$ref": f"#/components/schemas/{schema}"}


def _headers(names: Iterable[str]) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-Id", *names)}


def _conditional(description: str, schema: Json, *headers: str) -> Json:
    """The answers of a read that has a validator."""
    names = ("ETag", "Cache-Control", "Vary", *headers)
    unchanged = {"description": "What `If-None-Match` names is still current; no body.", "headers": _headers(names)}
    return {"200": response(description, schema, *names), "304": unchanged}


def _problems(refusals: Iterable[type[SidecarError]]) -> Json:
    by_status = groupby(sorted(refusals, key=lambda error: (error.status, error.code)), lambda error: error.status)
    return {str(status): _problem(status, list(group)) for status, group in by_status}


def _problem(status: int, refusals: Sequence[type[SidecarError]]) -> Json:
    narrowed = {"status": {"const": status}, "code": {"enum": [error.code for error in refusals]}}
    return response(
        " ".join(f"`{error.code}`: {error.title}." for error in refusals),
        {**ref("Problem"), "properties": narrowed},
        "Cache-Control",
        *_PROBLEM_HEADERS.get(status, ()),
        media_type="application/problem+json",
    )


def choice(name: str, description: str, *values: str, default: str | None = None, example: str | None = None) -> Json:
    """A parameter that takes few values."""
    schema: Json = {"type": "string", "enum": list(values)}
    return parameter(name, description, schema if default is None else {**schema, "default": default}, example=example)


SESSION_ID = parameter(
    "session_id",
    "The A2A context id, percent-encoded: a slash inside an id is written `%2F`.",
    {"type": "string", "minLength": 1, "maxLength": MAX_SESSION_ID, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$"},
    place="path",
    example="chat-1",
)
LIMIT = parameter(
    "limit",
    "How many at most. More than 200 is accepted and answered with 200.",
    {"type": "integer", "minimum": 1, "maximum": 9_999_999_999, "default": 50},
    example=20,
)
CURSOR = parameter(
    "cursor",
    "Where to go on: the `Link` header of the page before holds it. It fits only the parameters it was given for.",
    {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
)
IF_NONE_MATCH = parameter(
    "If-None-Match", "`ETag` values that the client holds, or `*`.", {"type": "string"}, place="header"
)
_PARKED = choice(
    "parked",
    "Only sessions whose newest-created turn waits on the operator; each row also has `last_state`.",
    "true",
    "false",
    default="false",
    example="true",
)
_ORDER = choice(
    "order",
    "By last activity, unknown last, or by creation: the chronology of the chat.",
    "activity",
    "created",
    default="activity",
)
_RETIRE = choice("retire", "`false` clears the history and keeps the id usable.", "true", "false", default="true")
_IF_ACTIVE = choice("if_active", "`refuse` changes nothing when a turn has not ended.", "refuse", example="refuse")
_HARVEST = choice("harvest", "Accepted for consoles that send it; nothing is ever harvested.", "false")

_DELETED = 'It is durable: `{"deleted", "session_id", "retired", "turns_deleted", "active_turns"}`.'


def _session_paths() -> Json:
    return {
        "/api/chat/sessions": {
            "get": operation(
                "listSessions",
                "List the sessions",
                "Newest activity first, unknown activity last. Lists the contexts whose id starts with "
                "`SIDECAR_SESSION_PREFIX`, and no retired one.",
                _conditional(
                    '`{"sessions": [{"session_id", "last_updated", "turn_count"}]}`; `Link` leads to older ones.',
                    ref("SessionList"),
                    "Link",
                ),
                scope="read",
                parameters=[LIMIT, _PARKED, CURSOR, IF_NONE_MATCH],
                refusals=[errors.ParameterInvalid, *STORE],
            ),
        },
        "/api/chat/sessions/{session_id}": {
            "get": operation(
                "getSession",
                "Get one session",
                "The index row of any context id, with the state of its newest turn and the task to reattach to.",
                _conditional(
                    '`{"session_id", "last_updated", "turn_count", "last_state", "live_task_id"}`.',
                    ref("SessionSummary"),
                ),
                scope="read",
                parameters=[SESSION_ID, IF_NONE_MATCH],
                refusals=[errors.SessionIdInvalid, errors.NotFound, *STORE],
            ),
            "delete": operation(
                "retireSession",
                "Retire a session, or clear its history",
                "Removes the session's turns. A retired id stays hidden for good, turns that are saved late included; "
                "with `retire=false` the id stays usable. An unknown id is retired all the same, repeating is safe, "
                "and a parameter that is not listed here is refused.",
                {"200": response(_DELETED, ref("Deletion"), "Cache-Control")},
                scope="retire",
                parameters=[SESSION_ID, _RETIRE, _IF_ACTIVE, _HARVEST],
                refusals=[
                    errors.SessionIdInvalid,
                    errors.ParameterInvalid,
                    errors.NotASession,
                    errors.OwnerNotAllowed,
                    errors.SessionActive,
                    errors.AlreadyRetired,
                    *STORE,
                ],
            ),
        },
        "/api/chat/sessions/{session_id}/turns": {
            "get": operation(
                "listTurns",
                "List a session's turns",
                "The newest `limit` turns, in ascending order. An unknown and a retired session have none.",
                _conditional(
                    '`{"turns": [{"task_id", "state", "last_updated", "text", "status", "artifacts", "history"}]}`; '
                    "a turn with a column left out also has `omitted`. `Link` leads to older ones.",
                    ref("TurnList"),
                    "Link",
                ),
                scope="read",
                parameters=[SESSION_ID, LIMIT, _ORDER, CURSOR, IF_NONE_MATCH],
                refusals=[errors.SessionIdInvalid, errors.ParameterInvalid, *STORE],
            ),
        },
    }


def _operations_paths() -> Json:
    alive = response("The process answers.", ref("Alive"), "Cache-Control")
    ready = {
        "200": response("Sessions can be read.", ref("Ready"), "Cache-Control"),
        "503": response("The last of the checks failed.", ref("NotReady"), "Cache-Control"),
    }
    exposition = response("The metrics.", {"type": "string"}, media_type="text/plain; version=0.0.4; charset=utf-8")
    page = response("The page.", {"type": "string"}, media_type="text/html; charset=utf-8")
    any_host = "Any `Host` is accepted, since probes come by address."
    return {
        "/livez": {"get": operation("getLiveness", "Ask for life", any_host, {"200": alive}, scope=None)},
        "/healthz": {
            "get": operation("getHealth", "Ask for life, by another name", any_host, {"200": alive}, scope=None)
        },
        "/readyz": {
            "get": operation(
                "getReadiness",
                "Ask whether the task store can be used",
                f"`retirement` says why sessions cannot be deleted; reading goes on without. {any_host}",
                ready,
                scope=None,
            )
        },
        "/metrics": {
            "get": operation(
                "getMetrics",
                "Get the metrics",
                "Prometheus's text format; 404 without the extra `metrics`.",
                {"200": exposition},
                scope="read",
                refusals=[errors.NotFound],
            )
        },
        "/openapi.json": {
            "get": operation(
                "getDescription",
                "Get this description",
                "OpenAPI 3.1.",
                _conditional("The description.", {"type": "object"}),
                scope=None,
                parameters=[IF_NONE_MATCH],
                refusals=[errors.HostNotAllowed],
            )
        },
        "/docs": {
            "get": operation(
                "getDocumentation",
                "Get the documentation page",
                "Works offline; the `type` of every problem is an anchor of it.",
                {"200": page},
                scope=None,
                refusals=[errors.HostNotAllowed],
            )
        },
    }


def _schemas() -> Json:
    text, count = {"type": "string"}, {"type": "integer", "minimum": 0}
    state = {"type": "string", "description": "As stored: `TASK_STATE_INPUT_REQUIRED`, `input-required`, or empty."}
    session: Json = {
        "session_id": text,
        "last_updated": {"type": ["string", "null"], "format": "date-time", "description": "UTC; null when unknown."},
        "turn_count": {"type": "integer", "minimum": 1},
    }
    with_state = {**session, "last_state": state}
    return {
        "Session": exact(with_state, optional=["last_state"]),
        "SessionList": exact({"sessions": {"type": "array", "maxItems": 200, "items": ref("Session")}}),
        "SessionSummary": exact(
            {
                **with_state,
                "live_task_id": {"type": ["string", "null"], "description": "The unfinished task to reattach to."},
            }
        ),
        "Turn": exact(_turn_properties(session["last_updated"], state), optional=["omitted"]),
        "TurnList": exact({"turns": {"type": "array", "maxItems": 200, "items": ref("Turn")}}),
        "Deletion": exact(
            {
                "deleted": {"const": True},
                "session_id": text,
                "retired": {"type": "boolean", "description": "False when only the history was cleared."},
                "turns_deleted": count,
                "active_turns": {**count, "description": "How many of the deleted turns had not ended."},
            }
        ),
        "Alive": exact({"status": {"const": "ok"}}),
        "Ready": exact({"status": {"const": "ready"}, "checks": exact(_check_properties())}),
        "NotReady": exact(
            {
                "status": {"const": "failed"},
                "checks": exact(
                    {"database": text, "task_table": text, "privileges": text}, optional=["task_table", "privileges"]
                ),
            }
        ),
        "Problem": exact(_problem_properties()),
    }


def _turn_properties(last_updated: Json, state: Json) -> Json:
    stored = "The stored JSON, byte for byte."
    columns = ["status", "artifacts", "history"]
    return {
        "task_id": {"type": "string"},
        "state": state,
        "last_updated": last_updated,
        "text": {"type": "string", "description": "The text parts of all artifacts, joined with nothing."},
        **{name: {"description": stored} for name in columns},
        "omitted": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"enum": columns},
            "description": "The columns left out, too large or no JSON: they read `[]`, the status `{}`.",
        },
    }


def _check_properties() -> Json:
    return {
        "database": {"const": "ok"},
        "task_table": {"const": "ok"},
        "retirement": {"type": "string", "description": "`ok`, or why sessions cannot be retired."},
        "creation_order": {"enum": ["recorded", "by last_updated"]},
    }


def _problem_properties() -> Json:
    codes = [error.code for error in errors.codes()]
    return {
        "type": {"enum": [f"/docs#{code}" for code in codes]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong, and what to do next."},
        "code": {"enum": codes},
        "request_id": {"type": "string", "description": "As in `X-Request-Id` and in the log."},
    }


def _header_components() -> Json:
    def header(description: str, required: bool, **schema: Any) -> Json:
        return {"description": description, "required": required, "schema": {"type": "string", **schema}}

    return {
        "X-Request-Id": header("The request's own id, or one made for it.", True, pattern="^[A-Za-z0-9._-]{1,64}$"),
        "ETag": header("A validator that changes with every change of the answer.", True, pattern='^W/"[0-9a-f]+"$'),
        "Cache-Control": header("Who may keep the answer.", True, enum=["private, no-cache", "no-store"]),
        "Vary": header("The request headers that the answer depends on.", True),
        "Link": header('`<…?cursor=…>; rel="next"`: the older page; absent on the oldest.', False),
        "Allow": header("The methods of the route.", True),
        "WWW-Authenticate": header("The challenge of RFC 6750, for refused credentials and scopes.", False),
        "Retry-After": header("Seconds, for `busy` and `database_unavailable`.", False, pattern="^[0-9]+$"),
    }
