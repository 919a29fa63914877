"""The outer layers of every HTTP request: request id, problem answers, bounds, CORS; the gate itself is `auth`'s.

Edge → Cors → Problems → Guard → Bounds → Gate → the routes. CORS stands outside, so that a console on another origin
can read every refusal, the guard's included; it takes part for configured origins only.
"""

import re
import time
import uuid
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, ExceptionHandler, Message, Receive, Scope, Send

from sidecar.auth import PUBLIC, Gate, Guard, Keyring, route_path
from sidecar.config import Config
from sidecar.errors import (
    BodyTooLarge,
    HeadersTooLarge,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    ParameterInvalid,
    SidecarError,
    TargetTooLong,
    problem,
)
from sidecar.observe import Answered, Failed, emit

MAX_TARGET_BYTES = 8 * 1024
MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 64 * 1024
# A question has up to 16,000 characters (seed 004), of which a target spells one with 9 bytes and a batch holds 20.
_TARGET_BYTES = dict.fromkeys(("/v1/search", "/v1/search/chat/stream"), 160 * 1024)
_BODY_BYTES = {
    **dict.fromkeys(("/v1/search", "/v1/chat", "/v1/search/chat", "/v1/chat/completions"), 256 * 1024),
    "/v1/search/batch": 4 * 1024 * 1024,
}
UNMATCHED = "unmatched"
# What a page of a configured origin may send.
ALLOWED_METHODS = ("GET", "POST", "DELETE")
ALLOWED_HEADERS = ("Authorization", "Content-Type", "If-None-Match", "Last-Event-ID", "X-Request-Id")


def middleware(config: Config, keyring: Keyring, public: frozenset[str] = PUBLIC) -> list[Middleware]:
    """The layers of an application, outermost first; to be used with `exception_handlers`."""
    return [
        Middleware(Edge),
        Middleware(Cors, **_cors_options(config)),
        Middleware(Problems),
        Middleware(Guard, config),
        Middleware(Bounds),
        Middleware(Gate, keyring, public),
    ]


async def _pass_on(request: Request, error: Exception) -> NoReturn:
    raise error


# Starlette's own handler would answer in plain text before `Problems` sees the error.
exception_handlers: Mapping[Any, ExceptionHandler] = {HTTPException: _pass_on}


class Edge:
    """Gives the request its id, reports how it was answered, and answers for a layer that failed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).getlist("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id)
        started = time.perf_counter()
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:
            emit(Failed(request_id, error))
            if answer.status is not None:
                raise
            await problem(_INTERNAL_ERROR, request_id)(scope, receive, answer.send)
        finally:
            emit(_answered(scope, answer, time.perf_counter() - started))


class _Answer:
    """Counts an answer on its way out and marks it with the request id."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status: int | None = None
        self.size = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message.setdefault("headers", [])
            MutableHeaders(scope=message)["X-Request-Id"] = self._request_id
        self.size += len(message.get("body", b""))
        await self._send(message)


def _answered(scope: Scope, answer: _Answer, seconds: float) -> Answered:
    state = scope["state"]
    principal = state.get("principal")
    return Answered(
        method=scope["method"],
        route=state.get("route", UNMATCHED),
        status=answer.status or InternalError.status,
        seconds=seconds,
        size=answer.size,
        request_id=state["request_id"],
        token=principal.name if principal else None,
    )


def _request_id(given: list[str]) -> str:
    if len(given) == 1 and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given[0]):
        return given[0]
    return uuid.uuid4().hex


class Cors(CORSMiddleware):
    """Starlette's, for configured origins only: any other request goes on to the guard, which knows our own host."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self.is_allowed_origin(Headers(scope=scope).get("origin", "")):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await self._preflight(headers, scope["state"]["request_id"])(scope, receive, send)
        else:
            await self.simple_response(scope, receive, send, request_headers=headers)

    def _preflight(self, request_headers: Headers, request_id: str) -> Response:
        """Starlette's verdict and its headers, without its plain text: empty, or a problem."""
        verdict = self.preflight_response(request_headers)
        headers = {name: value for name, value in verdict.headers.items() if not name.startswith("content-")}
        if verdict.status_code == 200:
            return Response(headers=headers)
        methods, names = ", ".join(ALLOWED_METHODS), ", ".join(ALLOWED_HEADERS)
        detail = f"A page of another origin may send the methods {methods} with the headers {names}."
        return problem(ParameterInvalid(detail, headers), request_id)

    @staticmethod
    def allow_explicit_origin(headers: MutableHeaders, origin: str) -> None:
        """Starlette's, but an answer that varies by the origin already says so once."""
        headers["Access-Control-Allow-Origin"] = origin
        if "Origin" not in headers.get("Vary", ""):
            headers.add_vary_header("Origin")


def _cors_options(config: Config) -> dict[str, Any]:
    return {
        "allow_origins": config.cors_origins,
        "allow_methods": ALLOWED_METHODS,
        "allow_headers": ALLOWED_HEADERS,
        "expose_headers": ("ETag", "Link", "Retry-After", "X-Request-Id"),
        # a public console that reads a sidecar on the loopback; its origin is configured, so it was meant
        "allow_private_network": True,
        "max_age": 600,
    }


_INTERNAL_ERROR = InternalError("The sidecar failed; search its log for this request_id.")


class Problems:
    """Turns what the inner layers raise into a problem answer; after an answer has begun nothing can be turned."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if has_begun:
                raise
            request_id = scope["state"]["request_id"]
            await problem(_as_sidecar_error(error, request_id), request_id)(scope, receive, send)


def _as_sidecar_error(error: Exception, request_id: str) -> SidecarError:
    """The error to answer with; one that was not foreseen is reported here and answered without its internals."""
    if isinstance(error, SidecarError):
        return error
    if isinstance(error, HTTPException) and error.status_code == NotFound.status:
        return NotFound("No route has this path; /openapi.json lists them all.")
    if isinstance(error, HTTPException) and error.status_code == MethodNotAllowed.status:
        allow = dict(error.headers or {})
        return MethodNotAllowed(f"Use one of {allow.get('Allow', 'the methods in /openapi.json')} here.", allow)
    emit(Failed(request_id, error))
    return _INTERNAL_ERROR


class Bounds:
    """Refuses a target that is none, and a target, headers or a body larger than any client of ours sends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            route = route_path(scope)
            _check_target(scope, _TARGET_BYTES.get(route, MAX_TARGET_BYTES))
            most = _BODY_BYTES.get(route, MAX_BODY_BYTES)
            _check_headers(scope, most)
            receive = _bounded(receive, most)
        await self._app(scope, receive, send)


def _check_target(scope: Scope, most: int) -> None:
    path = scope.get("raw_path") or scope["path"].encode()
    query = scope["query_string"]
    # where the server keeps a fragment, `a#b` would be another id than a client means; a decoded path may hold a `#`
    if b"#" in (scope.get("raw_path") or b"") or b"#" in query:
        raise InvalidRequest("A request target has no fragment: spell a `#` of an id as %23.")
    if len(path) + len(query) + bool(query) > most:
        raise TargetTooLong(f"Path and query may have {most} bytes together; shorten them.")


def _check_headers(scope: Scope, most_of_body: int) -> None:
    headers = scope["headers"]
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise HeadersTooLarge(f"All headers may have {MAX_HEADER_BYTES} bytes together; send fewer or shorter ones.")
    for name, value in headers:
        # ten digits are beyond any limit of ours, and Python refuses to read thousands
        if name == b"content-length" and value.isdigit() and (len(value) > 10 or int(value) > most_of_body):
            raise _body_too_large(most_of_body)


def _bounded(receive: Receive, most: int) -> Receive:
    """Counts a body whose length was not announced. Raises BodyTooLarge in whoever reads past the limit."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise _body_too_large(most)
        return message

    return counted


def _body_too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"A body may have {most} bytes; send less.")
