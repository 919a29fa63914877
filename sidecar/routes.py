"""The handlers: parameters, then one reader or writer, then bytes; they hold no SQL and no rule of their own."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from sidecar import observe, params, sessions, turns, wire
from sidecar.auth import require
from sidecar.config import Config
from sidecar.db import Database
from sidecar.errors import (
    AlreadyRetired,
    MethodNotAllowed,
    NotASession,
    NotFound,
    OwnerNotAllowed,
    ParameterInvalid,
    SessionActive,
)
from tombstones import retire as tombstones

SESSIONS = "/api/chat/sessions"
SESSION = SESSIONS + "/{session_id}"
TURNS = SESSION + "/turns"

Handler = Callable[[Request], Awaitable[Response]]

# Smaller answers gain nothing; larger ones are compressed, hashed and scanned beside the event loop.
_GZIP_FROM_BYTES = 1024
_GZIP_LEVEL = 4
_THREAD_FROM_BYTES = 64 * 1024
_VARY = "Authorization, Origin, Accept-Encoding"


class ApiRoute(Route):
    """A route whose template names it in log lines and metrics."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["route"] = self.path
        await super().handle(scope, receive, send)


class SessionRoute(BaseRoute):
    """`SESSION` and `TURNS`, told apart in the raw path: the decoded one cannot tell `%2F` from a slash."""

    def __init__(self, handlers: dict[str, dict[str, Handler]]) -> None:
        self.handlers = handlers

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        rest = _after_prefix(scope) if scope["type"] == "http" else None
        if rest is None:
            return Match.NONE, {}
        raw_id, slash, tail = rest.partition(b"/")
        template = {b"": SESSION, b"/turns": TURNS}.get(slash + tail)
        return Match.FULL, {"path_params": {"raw_id": raw_id, "template": template}}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        template = scope["path_params"]["template"]
        if template is None:
            raise NotFound("No such route. A slash inside a session id is written %2F.")
        scope["state"]["route"] = template
        handlers = self.handlers[template]
        handler = handlers.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if handler is None:
            allow = ", ".join(sorted({*handlers, "HEAD"}))
            raise MethodNotAllowed(f"This route takes {allow}.", {"Allow": allow})
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)


def _after_prefix(scope: Scope) -> bytes | None:
    """What follows `SESSIONS/` in the raw path, below whatever path the app is mounted at."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root = quote(scope.get("root_path", "")).encode()
    prefix = (SESSIONS + "/").encode()
    path = raw.removeprefix(root)
    return path[len(prefix) :] if path.startswith(prefix) else None


def core_routes() -> list[BaseRoute]:
    """The routes of seed 003."""
    return [
        ApiRoute(SESSIONS, index, methods=["GET"]),
        SessionRoute({SESSION: {"GET": summary, "DELETE": retire}, TURNS: {"GET": session_turns}}),
    ]


async def index(request: Request) -> Response:
    """`GET /api/chat/sessions`: the session index, or the sessions that wait on the operator."""
    principal = require(request, "read")
    query = params.index_query(request.scope["query_string"])
    prefix = _config(request).session_prefix
    window = sessions.Window(query.limit, query.parked, query.cursor, prefix, principal.owners)
    page = await _with_cursor(_database(request).read(sessions.read, window))
    flags = {"limit": query.limit, **({"parked": "true"} if query.parked else {})}
    link = _older(request, SESSIONS, flags, page.older)
    return await answer(request, wire.sessions_body(page.sessions, parked=query.parked), link)


async def session_turns(request: Request) -> Response:
    """`GET …/{session_id}/turns`: the newest turns, ascending; an unknown and a retired session have none."""
    principal = require(request, "read")
    session_id = params.parse_session_id(request.path_params["raw_id"])
    query = params.turns_query(session_id, request.scope["query_string"])
    config = _config(request)
    bounds = (config.max_turn_bytes, config.max_response_bytes)
    window = turns.Window(session_id, query.limit, query.order, query.cursor, principal.owners, *bounds)
    page = await _with_cursor(_database(request).read(turns.read, window))
    large = sum(cell.octets or 0 for turn in page.turns for cell in (turn.artifacts, turn.history)) > _THREAD_FROM_BYTES
    body = await asyncio.to_thread(wire.turns_body, page.turns) if large else wire.turns_body(page.turns)
    flags = {"limit": query.limit, **({"order": "created"} if query.order == "created" else {})}
    return await answer(request, body, _older(request, _path(session_id) + "/turns", flags, page.older))


async def summary(request: Request) -> Response:
    """`GET …/{session_id}`: one session and the turn that a client may reattach to."""
    principal = require(request, "read")
    session_id = params.parse_session_id(request.path_params["raw_id"])
    found = await _database(request).read(sessions.summary, session_id, principal.owners)
    if found is None:
        raise NotFound("No such session: it is unknown, retired, or not visible to this token.")
    row = {**wire.session_row(found.session, with_state=True), "live_task_id": found.live_task_id}
    return await answer(request, msgspec.json.encode(row))


async def retire(request: Request) -> Response:
    """`DELETE …/{session_id}`: retires the session, or with `retire=false` clears its history."""
    principal = require(request, "retire")
    session_id = params.parse_session_id(request.path_params["raw_id"])
    query = params.retire_request(session_id, request.scope["query_string"])
    actor = tombstones.Actor(principal.name, principal.owners, request.state.request_id)
    prefix = _config(request).session_prefix
    outcome = await delete_session(_database(request), prefix, actor, session_id, query.retire, query.refuse_active)
    return _json(
        {
            "deleted": True,
            "session_id": session_id,
            "retired": query.retire,
            "turns_deleted": outcome.turns_deleted,
            "active_turns": outcome.active_turns,
        }
    )


async def delete_session(
    database: Database,
    prefix: str,
    actor: tombstones.Actor,
    session_id: str,
    retires: bool,
    refuse_active: bool,
) -> tombstones.Outcome:
    """Retires or clears one session, durably, and tells of it. Raises the SidecarError of each refusal."""
    if not session_id.startswith(prefix):
        raise NotASession(f"Only ids that start with {prefix!r} can be retired or cleared.")
    work = tombstones.retire if retires else tombstones.clear
    try:
        outcome = await database.write(work, session_id, actor, refuse_active=refuse_active)
    except tombstones.AlreadyRetiredError:
        raise AlreadyRetired("The session is retired: its history is gone already. Nothing was changed.") from None
    except tombstones.SessionActiveError:
        raise SessionActive("A turn of the session waits or runs. Cancel it first, or drop `if_active`.") from None
    except tombstones.OwnerNotAllowedError:
        raise OwnerNotAllowed(
            "The session has turns of other owners, or none of this token's. Nothing was changed."
        ) from None
    action = "retired" if retires else "cleared"
    observe.emit(
        observe.Retired(action, session_id, outcome.turns_deleted, outcome.active_turns, actor.token, actor.request_id)
    )
    return outcome


async def answer(request: Request, body: bytes, link: str | None = None) -> Response:
    """A readable answer with its validator: 304 when the client has it, compressed when the client can."""
    large = len(body) > _THREAD_FROM_BYTES
    etag = await asyncio.to_thread(wire.etag, body) if large else wire.etag(body)
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": _VARY}
    if link is not None:
        headers["Link"] = link
    if _matches(request.headers.getlist("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    if len(body) >= _GZIP_FROM_BYTES and _accepts_gzip(request.headers.get("accept-encoding", "")):
        body = await asyncio.to_thread(_gzip, body) if large else _gzip(body)
        headers["Content-Encoding"] = "gzip"
    return Response(body, headers={**headers, "X-Content-Type-Options": "nosniff"}, media_type="application/json")


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, _GZIP_LEVEL, mtime=0)


def _json(content: Any) -> Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(msgspec.json.encode(content), headers=headers, media_type="application/json")


def _matches(fields: Sequence[str], etag: str) -> bool:
    """RFC 9110 If-None-Match: weak comparison, lists, `*`."""
    candidates = [each.strip() for field in fields for each in field.split(",")]
    return "*" in candidates or etag.removeprefix("W/") in (each.removeprefix("W/") for each in candidates)


def _accepts_gzip(field: str) -> bool:
    """RFC 9110 Accept-Encoding: gzip or `*` is listed, and not with the weight 0."""
    weights: dict[str, bool] = {}
    for each in field.lower().split(","):
        coding, _, weight = each.partition(";")
        weights[coding.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return weights.get("gzip", weights.get("*", False))


async def _with_cursor(reading: Awaitable[Any]) -> Any:
    try:
        return await reading
    except wire.CursorError:
        raise ParameterInvalid("cursor is not one that this request gave out; take it from a Link header.") from None


def _path(session_id: str) -> str:
    return f"{SESSIONS}/{quote(session_id, safe='')}"


def _older(request: Request, path: str, flags: dict[str, Any], cursor: str | None) -> str | None:
    if cursor is None:
        return None
    root = quote(request.scope.get("root_path", ""))
    return f'<{root}{path}?{urlencode({**flags, "cursor": cursor})}>; rel="next"'


def _config(request: Request) -> Config:
    config: Config = request.app.state.config
    return config


def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database
