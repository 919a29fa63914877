"""The layers around a real small application: ids, problem answers, bounds, CORS, and what is reported of requests."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidecar import edge
from sidecar.auth import Keyring
from sidecar.config import Config
from sidecar.errors import Busy, ParameterInvalid
from sidecar.observe import Answered, Event, Failed

TOKEN = "operator-token-0123456789"
CONSOLE = "https://console.example"
CONFIG = Config(token=TOKEN, cors_origins=(CONSOLE,))
BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def fine(request: Request) -> Response:
    """An ordinary answer of a named route."""
    request.state.route = "/fine/{id}"
    return JSONResponse({"id": request.state.request_id})


async def known_fault(request: Request) -> Response:
    """A fault with a known answer."""
    raise Busy("Try again in 2 seconds.", {"Retry-After": "2"})


async def bad_parameter(request: Request) -> Response:
    """A fault of the client."""
    raise ParameterInvalid("`limit` is not a whole number.")


async def unforeseen(request: Request) -> Response:
    """A fault that nobody foresaw, with text that must not reach the client."""
    raise RuntimeError("secret internals")


async def teapot(request: Request) -> Response:
    """A status that only Starlette could have meant."""
    raise HTTPException(418, "secret internals")


async def torn(request: Request) -> Response:
    """An answer that fails after its first bytes."""

    async def body() -> AsyncIterator[bytes]:
        yield b"begun"
        raise RuntimeError("secret internals")

    return StreamingResponse(body())


async def count(request: Request) -> Response:
    """Reads the whole body."""
    return JSONResponse(len(await request.body()))


def application(config: Config = CONFIG) -> Starlette:
    """A small application behind the real layers."""
    return Starlette(
        routes=[
            Route("/fine/{id:path}", fine),
            Route("/known", known_fault),
            Route("/bad", bad_parameter),
            Route("/unforeseen", unforeseen),
            Route("/teapot", teapot),
            Route("/torn", torn),
            Route("/count", count, methods=["POST"]),
            Route("/livez", fine),
        ],
        middleware=edge.middleware(config, Keyring(config)),
        exception_handlers=edge.exception_handlers,
    )


async def ask(
    path: str, headers: Any = None, method: str = "GET", content: Any = None, config: Config = CONFIG
) -> httpx.Response:
    """One request with the operator's token, unless other headers are given."""
    transport = httpx.ASGITransport(application(config), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.request(method, path, headers=BEARER if headers is None else headers, content=content)


def events(caplog: pytest.LogCaptureFixture) -> list[Event]:
    """Everything that was emitted."""
    return [record.event for record in caplog.records if hasattr(record, "event")]


PROBLEMS = [
    ("GET", "/nowhere", 404, "not_found"),
    ("DELETE", "/fine/1", 405, "method_not_allowed"),
    ("GET", "/count", 405, "method_not_allowed"),
    ("GET", "/known", 503, "busy"),
    ("GET", "/bad", 400, "parameter_invalid"),
    ("GET", "/unforeseen", 500, "internal_error"),
    ("GET", "/teapot", 500, "internal_error"),
    ("GET", f"/fine/{'x' * 9000}", 414, "target_too_long"),
    ("GET", "/fine/1?token=x", 400, "invalid_request"),
]


@pytest.mark.parametrize(("method", "path", "status", "code"), PROBLEMS)
async def test_every_refusal_is_a_problem(method: str, path: str, status: int, code: str) -> None:
    """One shape for every error, wherever it arises, with the request's id inside and beside it."""
    answer = await ask(path, method=method)
    assert (status, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
    body = answer.json()
    assert ["type", "title", "status", "detail", "code", "request_id"] == list(body)
    assert (f"/docs#{code}", status, code) == (body["type"], body["status"], body["code"])
    assert answer.headers["x-request-id"] == body["request_id"]
    assert "secret" not in answer.text


@pytest.mark.parametrize(("method", "path", "status", "code"), PROBLEMS)
async def test_every_refusal_is_readable_across_origins(method: str, path: str, status: int, code: str) -> None:
    """A console on a configured origin can read why it was refused, server faults included."""
    answer = await ask(path, BEARER | {"Origin": CONSOLE}, method)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["access-control-allow-origin"] == CONSOLE
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": CONSOLE}, "unauthorized"),
        ({"Origin": CONSOLE, "Host": "evil.example"}, "host_not_allowed"),
        ({"Origin": CONSOLE, "X-Big": "x" * 17_000}, "headers_too_large"),
    ],
)
async def test_refusals_before_the_routes_are_readable_across_origins(headers: dict[str, str], code: str) -> None:
    """The gate, the guard and the bounds answer with CORS headers as well."""
    answer = await ask("/fine/1", headers)
    assert (answer.json()["code"], answer.headers["access-control-allow-origin"]) == (code, CONSOLE)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_a_preflight_needs_no_token(method: str) -> None:
    """A configured origin is told what it may send, for ten minutes."""
    headers = {
        "Origin": CONSOLE,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization, content-type, if-none-match, last-event-id",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = await ask("/fine/1", headers, "OPTIONS")
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, CONSOLE)
    assert answer.headers["access-control-allow-methods"] == "GET, POST, DELETE"
    assert answer.headers["access-control-max-age"] == "600"
    assert answer.headers["access-control-allow-private-network"] == "true"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("config", [CONFIG, Config(token=TOKEN)])
@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_a_preflight_of_a_foreign_origin_is_refused(config: Config, origin: str) -> None:
    """Without CORS headers and as a problem, whether CORS is in use or not."""
    headers = {"Origin": origin, "Access-Control-Request-Method": "GET"}
    answer = await ask("/fine/1", headers, "OPTIONS", config=config)
    assert (answer.status_code, answer.json()["code"]) == (403, "origin_not_allowed")
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_configured_origin_reads_and_our_own_host_needs_no_cors() -> None:
    """CORS headers appear for configured origins only."""
    assert (await ask("/fine/1", BEARER | {"Origin": CONSOLE})).headers["access-control-allow-origin"] == CONSOLE
    own = await ask("/fine/1", BEARER | {"Origin": "http://localhost"})
    assert (own.status_code, "access-control-allow-origin" in own.headers) == (200, False)


async def test_405_keeps_allow() -> None:
    """The methods of the route are named in the header and in the detail."""
    answer = await ask("/count")
    assert (answer.headers["allow"], answer.json()["detail"]) == ("POST", "Use one of POST here.")


async def test_an_error_keeps_its_headers() -> None:
    """A retry can be told when to come."""
    assert (await ask("/known")).headers["retry-after"] == "2"


@pytest.mark.parametrize(
    ("given", "taken_over"),
    [
        (["abc-DEF_1.2"], True),
        (["x" * 64], True),
        (["x" * 65], False),
        ([""], False),
        (["a b"], False),
        (["é"], False),
        (["a\nb"], False),
        (["abc", "abc"], False),
        ([], False),
    ],
)
async def test_request_ids(given: list[str], taken_over: bool) -> None:
    """A well-formed id of the client is echoed; any other is replaced by one of ours."""
    headers = [*BEARER.items(), *(("X-Request-Id", value.encode()) for value in given)]
    answer = await ask("/fine/1", headers)
    request_id = answer.headers["x-request-id"]
    assert answer.json() == {"id": request_id}
    if taken_over:
        assert [request_id] == given
    else:
        assert request_id not in given
        assert len(request_id) == 32


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/fine/{'x' * (8192 - 6)}", 200),
        (f"/fine/{'x' * (8192 - 5)}", 414),
        (f"/fine/x?{'y' * (8192 - 8)}", 200),
        (f"/fine/x?{'y' * (8192 - 7)}", 414),
        (f"/fine/{'%C3%A9' * 1365}", 414),
        (f"/livez?{'y' * 8192}", 414),
    ],
)
async def test_the_target_is_bounded_as_it_was_sent(path: str, status: int) -> None:
    """Path, question mark and query together, percent-encoded, on public paths too."""
    assert (await ask(path)).status_code == status


@pytest.mark.parametrize("spare", [0, -1])
async def test_headers_are_bounded(spare: int) -> None:
    """Names and values of all headers together have 16 KiB."""
    fixed = [("host", "localhost"), *((name.lower(), value) for name, value in BEARER.items())]
    room = 16 * 1024 - sum(len(name) + len(value) for name, value in fixed) - len("x-big") - spare
    status = await raw([*fixed, ("x-big", "x" * room)])
    assert status == (200 if spare == 0 else 431)


async def raw(headers: list[tuple[str, str]]) -> int:
    """The status of a request whose headers no client library touches."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": "/fine/1",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    await application()(scope, receive, send)
    status: int = sent[0]["status"]
    return status


async def chunks(sizes: list[int]) -> AsyncIterator[bytes]:
    """A body whose length is not announced."""
    for size in sizes:
        yield b"x" * size


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"x" * 65536, 200),
        (b"x" * 65537, 413),
        ([65536], 200),
        ([65536, 1], 413),
        ([40000, 20000, 10000], 413),
        ([200000], 413),
    ],
)
async def test_bodies_are_bounded(content: bytes | list[int], status: int) -> None:
    """64 KiB, whether the length was announced or the body came in chunks."""
    body = content if isinstance(content, bytes) else chunks(content)
    answer = await ask("/count", method="POST", content=body)
    assert answer.status_code == status
    if status == 413:
        assert answer.json()["code"] == "body_too_large"


@pytest.mark.parametrize("length", ["65537", "9" * 5000])
async def test_an_announced_length_is_refused_unread(length: str) -> None:
    """A length beyond the limit is refused on every route, however it is spelled."""
    answer = await ask("/fine/1", BEARER | {"Content-Length": length})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


async def test_a_request_is_reported_once_with_template_and_token_name(caplog: pytest.LogCaptureFixture) -> None:
    """The event has the route's template and the token's name; no path, query or token."""
    with caplog.at_level(logging.DEBUG, "sidecar"):
        answer = await ask("/fine/chat-hush?limit=hush", BEARER | {"X-Request-Id": "abc"})
    (event,) = [each for each in events(caplog) if isinstance(each, Answered)]
    assert ("GET", "/fine/{id}", 200, len(answer.content), "abc", "operator") == (
        event.method,
        event.route,
        event.status,
        event.size,
        event.request_id,
        event.token,
    )
    assert 0 < event.seconds < 5
    assert not any(secret in caplog.text for secret in (TOKEN, "hush"))


@pytest.mark.parametrize(
    ("path", "headers", "status", "token"),
    [("/nowhere", BEARER, 404, "operator"), ("/fine/1", {}, 401, None), ("/fine/1", {"Host": "evil"}, 400, None)],
)
async def test_unmatched_requests_are_reported_without_their_path(
    path: str, headers: dict[str, str], status: int, token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """What no route claimed shares one template."""
    with caplog.at_level(logging.DEBUG, "sidecar"):
        await ask(path, headers)
    (event,) = [each for each in events(caplog) if isinstance(each, Answered)]
    assert (event.route, event.status, event.token) == ("unmatched", status, token)


@pytest.mark.parametrize("path", ["/unforeseen", "/torn"])
async def test_an_unforeseen_fault_is_reported_once(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """One event with the error, then the answered request, whether the answer had begun or not."""
    with caplog.at_level(logging.DEBUG, "sidecar"):
        answer = await ask(path)
    request_id = answer.headers["x-request-id"]
    failed, done = [each for each in events(caplog) if isinstance(each, Failed | Answered)]
    assert isinstance(failed, Failed)
    assert (failed.request_id, str(failed.error)) == (request_id, "secret internals")
    assert isinstance(done, Answered)
    assert (done.status, done.size) == (answer.status_code, len(answer.content))


async def test_a_known_fault_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A foreseen answer is reported as an answer, without a traceback."""
    with caplog.at_level(logging.DEBUG, "sidecar"):
        await ask("/known")
    assert [Answered] == [type(each) for each in events(caplog) if isinstance(each, Failed | Answered)]


async def test_a_begun_answer_is_torn_not_completed() -> None:
    """The server learns of the fault, so that it can close the connection instead of ending the body well."""
    transport = httpx.ASGITransport(application())
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=BEARER) as client:
        with pytest.raises(RuntimeError, match="secret internals"):
            await client.get("/torn")


async def test_a_failing_layer_is_answered_by_the_edge(caplog: pytest.LogCaptureFixture) -> None:
    """Even what fails outside of the problem answers is a problem with the request's id."""

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret internals")

    with caplog.at_level(logging.DEBUG, "sidecar"):
        transport = httpx.ASGITransport(edge.Edge(broken))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get("/", headers={"X-Request-Id": "abc"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "abc" == answer.headers["x-request-id"] == answer.json()["request_id"]
    assert [Failed, Answered] == [type(each) for each in events(caplog)]


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_lifespan_and_websockets_pass_untouched(kind: str) -> None:
    """Only HTTP is this module's business: scope and channels of anything else arrive as they are."""
    arrived: list[tuple[Scope, Receive, Send]] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        arrived.append((dict(scope), receive, send))

    async def receive() -> Message:
        return {"type": "never"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    app: ASGIApp = inner
    for layer, args, options in reversed(edge.middleware(CONFIG, Keyring(CONFIG))):
        app = layer(app, *args, **options)
    scope = {"type": kind, "path": "/fine/1", "headers": [(b"host", b"evil.example")]}
    await app(dict(scope), receive, send)
    assert [(scope, receive, send)] == arrived
