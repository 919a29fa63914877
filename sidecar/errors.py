"""The error tree: one class a code, its HTTP status, and its RFC 9457 answer; it may not import anything of ours.

SidecarError
├── 400 ParameterInvalid · SessionIdInvalid · NotASession · InvalidRequest · HostNotAllowed · RunRequired ·
│       InvalidSearchScope
├── 401 Unauthorized
├── 403 InsufficientScope · OwnerNotAllowed · OriginNotAllowed
├── 404 NotFound · WorkspaceNotFound
├── 405 MethodNotAllowed
├── 409 SessionActive · AlreadyRetired
├── 413 BodyTooLarge
├── 414 TargetTooLong
├── 431 HeadersTooLarge
├── 500 InternalError
├── 502 ModelFailed
├── 504 ModelTimeout
└── 503 TaskStoreMissing · TombstonesUnavailable · ReadOnly · Busy · DatabaseUnavailable ·
        SearchUnavailable · AuditUnavailable · ModelNotConfigured
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from starlette.responses import Response


class SidecarError(Exception):
    """A fault with a known answer. `detail` says what to do next and carries no internals, secrets or transcript."""

    code: ClassVar[str]
    status: ClassVar[int]
    title: ClassVar[str]
    help: ClassVar[str]

    def __init__(self, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.headers = dict(headers or {})


class ParameterInvalid(SidecarError):
    code, status, title = "parameter_invalid", 400, "A parameter is not acceptable"
    help = "The detail names the parameter and the values it takes. Nothing was read or changed."


class SessionIdInvalid(SidecarError):
    code, status, title = "session_id_invalid", 400, "The session id is not acceptable"
    help = "Ids are 1 to 255 characters of UTF-8 without control characters, percent-encoded in the path."


class NotASession(SidecarError):
    code, status, title = "not_a_session", 400, "The id does not have the session prefix"
    help = "Only contexts whose id starts with SIDECAR_SESSION_PREFIX can be retired or cleared."


class InvalidRequest(SidecarError):
    code, status, title = "invalid_request", 400, "The request is malformed"
    help = "Send exactly one header `Authorization: Bearer <token>`, and never a token in the query string."


class HostNotAllowed(SidecarError):
    code, status, title = "host_not_allowed", 400, "The Host header is not allowed"
    help = "Reach the sidecar by a loopback name, or add the name to SIDECAR_ALLOWED_HOSTS."


class Unauthorized(SidecarError):
    code, status, title = "unauthorized", 401, "A bearer token is required"
    help = "Send `Authorization: Bearer <token>` with the operator token, or with one of SIDECAR_TOKENS_FILE."


class InsufficientScope(SidecarError):
    code, status, title = "insufficient_scope", 403, "The token lacks a scope"
    help = "Use a token whose `scopes` hold the one that the detail names."


class OwnerNotAllowed(SidecarError):
    code, status, title = "owner_not_allowed", 403, "The session is not wholly owned by this token's owners"
    help = "A token narrowed by `owners` retires or clears only sessions that it sees whole. Nothing was changed."


class OriginNotAllowed(SidecarError):
    code, status, title = "origin_not_allowed", 403, "The Origin is not allowed"
    help = "Add the console's exact origin to SIDECAR_CORS_ORIGINS."


class NotFound(SidecarError):
    code, status, title = "not_found", 404, "There is nothing here"
    help = "The route or the session does not exist. A retired session answers the same as an unknown one."


class MethodNotAllowed(SidecarError):
    code, status, title = "method_not_allowed", 405, "The method is not allowed here"
    help = "The `Allow` header lists the methods of this route."


class SessionActive(SidecarError):
    code, status, title = "session_active", 409, "A turn of this session is active"
    help = "Cancel the turn first (A2A tasks/cancel), or send the request without `if_active=refuse`."


class AlreadyRetired(SidecarError):
    code, status, title = "already_retired", 409, "The session is retired"
    help = "A retired session has no history to clear; nothing was changed. Start a new session under a new id."


class BodyTooLarge(SidecarError):
    code, status, title = "body_too_large", 413, "The request body is too large"
    help = "The detail names the limit in bytes."


class TargetTooLong(SidecarError):
    code, status, title = "target_too_long", 414, "The request target is too long"
    help = "The detail names the limit in bytes for path and query together."


class HeadersTooLarge(SidecarError):
    code, status, title = "headers_too_large", 431, "The request headers are too large"
    help = "The detail names the limit in bytes for all headers together."


class InternalError(SidecarError):
    code, status, title = "internal_error", 500, "The sidecar failed"
    help = "The log line with this answer's request_id holds the traceback. Please report it."


class TaskStoreMissing(SidecarError):
    code, status, title = "task_store_missing", 503, "The task store does not exist yet"
    help = "Start the agent, or correct SIDECAR_DATABASE_URL or SIDECAR_TASKS_TABLE; no restart is needed."


class TombstonesUnavailable(SidecarError):
    code, status, title = "tombstones_unavailable", 503, "The tombstone tables cannot be used"
    help = "Run `a2a-sidecar prepare` as the owner of the task table, then the grants of deploy/sql/grants.sql."


class ReadOnly(SidecarError):
    code, status, title = "read_only", 503, "The database does not accept this write"
    help = "Grant the privilege that the detail names, or point the sidecar at the primary. Nothing was changed."


class Busy(SidecarError):
    code, status, title = "busy", 503, "The database is busy"
    help = "Try again after the seconds of `Retry-After`: a lock was held, or a statement or the queue took too long."


class DatabaseUnavailable(SidecarError):
    code, status, title = "database_unavailable", 503, "The database cannot be reached"
    help = "Try again after the seconds of `Retry-After`; the sidecar reconnects by itself. Repeating a DELETE is safe."


class SearchUnavailable(SidecarError):
    code, status, title = "search_unavailable", 503, "Conversations cannot be searched"
    help = "The detail says what the search index needs. Sessions and turns are still read, and sessions retired."


class RunRequired(SidecarError):
    code, status, title = "run_required", 400, "The search names no run"
    help = "The runtime, not the model, sends the id of its run: the header `X-Run-Id`, or `_meta` of the tool's call."


class AuditUnavailable(SidecarError):
    code, status, title = "audit_unavailable", 503, "The search cannot be recorded"
    help = "An agent's search is answered only once its audit record is stored. The detail says what that needs."


class WorkspaceNotFound(SidecarError):
    code, status, title = "workspace_not_found", 404, "There is no such workspace"
    help = "SIDECAR_WORKSPACE names the one workspace that is here."


class InvalidSearchScope(SidecarError):
    code, status, title = "invalid_search_scope", 400, "The filters name nothing that this token may search"
    help = "The conversation or turn is unknown, retired or another owner's, or the turn is of another conversation."


class ModelNotConfigured(SidecarError):
    code, status, title = "model_not_configured", 503, "No model is configured"
    help = "Set SIDECAR_MODEL_URL and SIDECAR_MODEL, and SIDECAR_MODEL_KEY where the endpoint asks for a key."


class ModelFailed(SidecarError):
    code, status, title = "model_failed", 502, "The model did not answer"
    help = "The endpoint refused, broke off, or sent what is no answer. Nothing of the exchange was stored; ask again."


class ModelTimeout(SidecarError):
    code, status, title = "model_timeout", 504, "The model took too long"
    help = "It was silent for SIDECAR_MODEL_TIMEOUT seconds. Nothing of the exchange was stored; ask again."


def codes() -> list[type[SidecarError]]:
    """Every error class, by status and code: the source of the documentation and of the OpenAPI description."""
    return sorted(SidecarError.__subclasses__(), key=lambda error: (error.status, error.code))


def problem(error: SidecarError, request_id: str) -> Response:
    """The RFC 9457 answer of one error; `type` is an anchor of our own offline documentation page."""
    body = {
        "type": f"/docs#{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "request_id": request_id,
    }
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **error.headers}
    return Response(msgspec.json.encode(body), error.status, headers, media_type="application/problem+json")
