"""The handlers: parameters, then one reader or writer, then bytes; they hold no SQL and no rule of their own."""

import asyncio
import gzip
import logging
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from sidecar import observe, params, sessions, turns, wire
from sidecar.auth import Principal, require
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
    SidecarError,
)
from sidecar.outgoing import LARGE_BYTES, Outgoing
from sidecar.sentinel import Remembered
from sidecar.sweeper import delete_hidden
from tombstones import retire as tombstones

SESSIONS = "/api/chat/sessions"
SESSION = SESSIONS + "/{session_id}"
TURNS = SESSION + "/turns"

Handler = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")
R = TypeVar("R")

# Smaller answers gain nothing.
_GZIP_FROM_BYTES = 1024
_GZIP_LEVEL = 4
_VARY = "Authorization, Origin, Accept-Encoding"


class ApiRoute(Route):
    """A route whose template names it in log lines and metrics."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["route"] = self.path
        await super().handle(scope, receive, send)


class RawRoute(BaseRoute):
    """All that is below a prefix, by templates of the raw path: the decoded one cannot tell `%2F` from a slash.

    `handlers` maps each template to its handlers by method; their path parameters are raw bytes.
    """

    def __init__(self, prefix: str, handlers: Mapping[str, Mapping[str, Handler]]) -> None:
        self.handlers = handlers
        self._prefix = prefix
        self._patterns = {template: _pattern(template.removeprefix(f"{prefix}/")) for template in handlers}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        rest = _after_prefix(scope, self._prefix) if scope["type"] == "http" else None
        if rest is None:
            return Match.NONE, {}
        for template, pattern in self._patterns.items():
            if match := pattern.fullmatch(rest):
                return Match.FULL, {"path_params": {**match.groupdict(), "template": template}}
        return Match.FULL, {"path_params": {"template": None}}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        template = scope["path_params"]["template"]
        if template is None:
            raise NotFound("No such route. A slash inside an id is written %2F.")
        scope["state"]["route"] = template
        handlers = self.handlers[template]
        handler = handlers.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if handler is None:
            allow = ", ".join(sorted({*handlers, "HEAD"} if "GET" in handlers else handlers))
            raise MethodNotAllowed(f"This route takes {allow}.", {"Allow": allow})
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)


def _pattern(template: str) -> re.Pattern[bytes]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]*)", template).encode())


def _after_prefix(scope: Scope, prefix: str) -> bytes | None:
    """What follows the prefix and a slash in the raw path, below whatever path the app is mounted at."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    names = (scope.get("root_path", "") + prefix).encode().split(b"/")
    *before, rest = raw.split(b"/", len(names))
    return rest if [unquote_to_bytes(name) for name in before] == names else None


def core_routes() -> list[BaseRoute]:
    """The routes of seed 003."""
    return [
        ApiRoute(SESSIONS, index, methods=["GET"]),
        RawRoute(SESSIONS, {SESSION: {"GET": summary, "DELETE": retire}, TURNS: {"GET": session_turns}}),
    ]


async def index(request: Request) -> Response:
    """`GET /api/chat/sessions`: the session index, or the sessions that wait on the operator."""
    principal = require(request, "read")
    query = params.index_query(request.scope["query_string"])
    prefix = _config(request).session_prefix
    window = sessions.Window(query.limit, query.parked, query.cursor, prefix, principal.owners)
    fresh = await Fresh.of(request, principal)
    if fresh.is_unchanged():
        return fresh.unchanged()
    page = await _with_cursor(_database(request).read(sessions.read, window))
    fresh.etag = None
    flags = {"limit": query.limit, **({"parked": "true"} if query.parked else {})}
    link = _older(request, SESSIONS, flags, page.older)
    return await answer(fresh, wire.sessions_body(page.sessions, parked=query.parked), link)


async def session_turns(request: Request) -> Response:
    """`GET …/{session_id}/turns`: the newest turns, ascending; an unknown and a retired session have none."""
    principal = require(request, "read")
    session_id = params.parse_session_id(request.path_params["session_id"])
    query = params.turns_query(session_id, request.scope["query_string"])
    config, database, outgoing = _config(request), _database(request), _outgoing(request)
    bounds = (config.max_turn_bytes, config.max_response_bytes)
    window = turns.Window(session_id, query.limit, query.order, query.cursor, principal.owners, *bounds)
    fresh = await Fresh.of(request, principal)
    if not fresh.is_unchanged() and fresh.candidates and not fresh.is_versioned:
        fresh.etag = await _with_cursor(database.read(turns.validator, window))
    if fresh.is_unchanged():
        return fresh.unchanged()
    async with outgoing.making():
        page = await _with_cursor(database.read(turns.read, window))
        if fresh.etag is None or not await fresh.still_stands(database):
            fresh.etag = page.etag
        size = sum(cell.octets or 0 for turn in page.turns for cell in (turn.artifacts, turn.history))
        body = await _beside(size, wire.turns_body, page.turns)
        flags = {"limit": query.limit, **({"order": "created"} if query.order == "created" else {})}
        response = await answer(fresh, body, _older(request, _path(session_id) + "/turns", flags, page.older))
        return await outgoing.admit(response)


async def summary(request: Request) -> Response:
    """`GET …/{session_id}`: one session and the turn that a client may reattach to."""
    principal = require(request, "read")
    session_id = params.parse_session_id(request.path_params["session_id"])
    fresh = await Fresh.of(request, principal)
    if fresh.is_unchanged():
        return fresh.unchanged()
    found = await _database(request).read(sessions.summary, session_id, principal.owners)
    if found is None:
        raise NotFound("No such session: it is unknown, retired, or not visible to this token.")
    fresh.etag = None
    row = {**wire.session_row(found.session, with_state=True), "live_task_id": found.live_task_id}
    return await answer(fresh, msgspec.json.encode(row))


async def retire(request: Request) -> Response:
    """`DELETE …/{session_id}`: retires the session, or with `retire=false` clears its history."""
    principal = require(request, "retire")
    session_id = params.parse_session_id(request.path_params["session_id"])
    query = params.retire_request(session_id, request.scope["query_string"])
    actor = tombstones.Actor(principal.name, principal.owners, request.state.request_id)
    prefix = _config(request).session_prefix
    outcome = await delete_session(_database(request), prefix, actor, session_id, query.retire, query.refuse_active)
    return _json(deletion_body(session_id, query.retire, outcome))


def deletion_body(session_id: str, retires: bool, outcome: tombstones.Outcome) -> dict[str, Any]:
    """What is answered to a deletion."""
    return {
        "deleted": True,
        "session_id": session_id,
        "retired": retires,
        "turns_deleted": outcome.turns_deleted,
        "active_turns": outcome.active_turns,
    }


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
    look = partial(tombstones.look, session_id=session_id)
    delete = tombstones.retire if retires else tombstones.clear
    work = partial(delete, session_id=session_id, actor=actor, refuse_active=refuse_active)
    try:
        outcome = await database.write_after(look, work)
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
    try:
        await delete_hidden(database, outcome.left)
    except SidecarError as error:  # the deletion stands: no reader sees them, and the next sweep takes them away
        observe.emit(observe.Note(logging.WARNING, f"hidden turns were left to the sweep: {error.code}"))
    return outcome


class Fresh:
    """What is known of an answer before it is read: the client's validators, and ours where it still stands.

    Once a body is read its validator comes from that read: somebody may have committed in between.
    """

    def __init__(self, request: Request, key: Hashable, version: Hashable | None) -> None:
        self.candidates = request.headers.getlist("if-none-match")
        self.accepts_gzip = _accepts_gzip(request.headers.get("accept-encoding", ""))
        self._remembered: Remembered = request.app.state.remembered
        self._key, self._version = key, version
        self.etag = self._remembered.etag(key, version)

    @classmethod
    async def of(cls, request: Request, principal: Principal) -> "Fresh":
        """Asks for the store's version, which must be older than what is read next."""
        path = request.scope.get("raw_path") or request.scope["path"]
        key = (path, request.scope["query_string"], principal.owners)
        return cls(request, key, await _database(request).version())

    @property
    def is_versioned(self) -> bool:
        """The store says by itself whether anything was committed."""
        return self._version is not None

    async def still_stands(self, database: Database) -> bool:
        """Nobody has committed between the version and what was read since, so our validator is that body's, too."""
        return self._version is not None and await database.version() == self._version

    def is_unchanged(self) -> bool:
        """The client holds the answer as it is."""
        return self.etag is not None and _matches(self.candidates, self.etag)

    def unchanged(self) -> Response:
        """304, with the headers of the answer that the client holds."""
        return Response(status_code=304, headers=self.headers())

    def headers(self) -> dict[str, str]:
        """The headers of the answer and of the 304 alike."""
        return {"ETag": self.etag or "", "Cache-Control": "private, no-cache", "Vary": _VARY}

    async def validate(self, body: bytes, link: str | None) -> None:
        """Makes the validator of an answer that none came with."""
        if self.etag is None:
            self.etag = await _beside(len(body), partial(wire.etag, body), (link or "").encode())
        if self._version is not None:
            self._remembered.remember(self._key, self._version, self.etag)


async def answer(fresh: Fresh, body: bytes, link: str | None = None) -> Response:
    """A readable answer with its validator: 304 when the client has it, compressed when the client can."""
    await fresh.validate(body, link)
    if fresh.is_unchanged():
        return fresh.unchanged()
    headers = fresh.headers() | ({} if link is None else {"Link": link})
    return await _encoded(body, headers, fresh.accepts_gzip)


async def unstored(request: Request, content: Any) -> Response:
    """A readable answer that nobody may keep, for what is made anew each time; compressed when the client can."""
    accepts_gzip = _accepts_gzip(request.headers.get("accept-encoding", ""))
    return await _encoded(msgspec.json.encode(content), {"Cache-Control": "no-store", "Vary": _VARY}, accepts_gzip)


async def _encoded(body: bytes, headers: dict[str, str], accepts_gzip: bool) -> Response:
    if len(body) >= _GZIP_FROM_BYTES and accepts_gzip:
        body = await _beside(len(body), _gzip, body)
        headers = {**headers, "Content-Encoding": "gzip"}
    return Response(body, headers={**headers, "X-Content-Type-Options": "nosniff"}, media_type="application/json")


async def _beside(size: int, work: Callable[[T], R], argument: T) -> R:
    """Runs what takes long for its size beside the event loop."""
    return await asyncio.to_thread(work, argument) if size > LARGE_BYTES else work(argument)


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
    encoded = quote(session_id, safe="")
    # in a Link clients would take the ids `.` and `..` for steps up the path
    return f"{SESSIONS}/{encoded if encoded.strip('.') else encoded.replace('.', '%2E')}"


def _older(request: Request, path: str, flags: dict[str, Any], cursor: str | None) -> str | None:
    if cursor is None:
        return None
    root = quote(request.scope.get("root_path", ""))
    return f'<{root}{path}?{urlencode({**flags, "cursor": cursor})}>; rel="next"'


def _outgoing(request: Request) -> Outgoing:
    outgoing: Outgoing = request.app.state.outgoing
    return outgoing


def _config(request: Request) -> Config:
    config: Config = request.app.state.config
    return config


def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database
