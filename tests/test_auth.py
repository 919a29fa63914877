"""The gate and the guard through a real application: RFC 6750 answers, token files that change, hosts and origins."""

import hashlib
import logging
import os
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from sidecar import auth, edge
from sidecar.auth import ALL_SCOPES, Keyring, Principal, ScopeName, require
from sidecar.config import Config, ConfigError
from sidecar.errors import Unauthorized
from sidecar.observe import Event, TokensKept, TokensLoaded

TOKEN = "operator-token-0123456789"
OTHER = "console-token-0123456789"
REALM = 'Bearer realm="a2a-sidecar"'
INVALID_TOKEN = f'{REALM}, error="invalid_token"'
INVALID_REQUEST = f'{REALM}, error="invalid_request"'
Headers = list[tuple[bytes, bytes]]


async def who(request: Request) -> JSONResponse:
    """Says who asks, if the token has the scope of the path."""
    scope: ScopeName = request.path_params["scope"]
    principal = require(request, scope)
    return JSONResponse([principal.name, sorted(principal.scopes), principal.owners and sorted(principal.owners)])


async def public(request: Request) -> JSONResponse:
    """A page that needs no token."""
    return JSONResponse("public")


def application(config: Config) -> Starlette:
    """A small application behind the real layers."""
    paths = sorted([*auth.PUBLIC, "/livez/more", "/secret"])
    return Starlette(
        routes=[
            Route("/who/{scope}", who, methods=["GET", "POST", "DELETE"]),
            *(Route(path, public) for path in paths),
        ],
        middleware=edge.middleware(config, Keyring(config)),
        exception_handlers=edge.exception_handlers,
    )


async def ask(
    app: Starlette | Config, path: str, headers: Headers | None = None, method: str = "GET", host: str = "localhost"
) -> httpx.Response:
    """One request to an application, or to a new one of this configuration."""
    app = application(app) if isinstance(app, Config) else app
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
        return await client.request(method, path, headers=headers or [])


def bearer(token: str = TOKEN) -> Headers:
    """The header of a token."""
    return [(b"Authorization", f"Bearer {token}".encode())]


def row(name: str, token: str, scopes: str = '["read"]', owners: str = '["*"]') -> str:
    """One token of a tokens file."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\nscopes = {scopes}\nowners = {owners}\n'


def events(caplog: pytest.LogCaptureFixture) -> list[Event]:
    """What was emitted about token files."""
    found = [getattr(record, "event", None) for record in caplog.records]
    return [event for event in found if isinstance(event, TokensKept | TokensLoaded)]


@pytest.mark.parametrize(
    ("authorization", "status", "challenge"),
    [
        ([], 401, REALM),
        ([b""], 401, REALM),
        ([b"Basic b3BlcmF0b3I6eA=="], 401, REALM),
        ([b"Bearerx"], 401, REALM),
        ([TOKEN.encode()], 401, REALM),
        ([f"Bearer {OTHER}".encode()], 401, INVALID_TOKEN),
        ([f"Bearer {TOKEN}0".encode()], 401, INVALID_TOKEN),
        ([f"Bearer {TOKEN.upper()}".encode()], 401, INVALID_TOKEN),
        ([f"Bearer {TOKEN[:-1]}".encode()], 401, INVALID_TOKEN),
        ([b"Bearer " + b"x" * 10_000], 401, INVALID_TOKEN),
        ([b"Bearer"], 400, INVALID_REQUEST),
        ([b"Bearer "], 400, INVALID_REQUEST),
        ([b"bearer    "], 400, INVALID_REQUEST),
        (["Bearer é".encode()], 400, INVALID_REQUEST),
        (["Bearer é".encode("latin-1")], 400, INVALID_REQUEST),
        ([b"Bearer \xff\xfe"], 400, INVALID_REQUEST),
        ([b"Bearer two words"], 400, INVALID_REQUEST),
        ([b"Bearer ==="], 400, INVALID_REQUEST),
        ([f"Bearer {TOKEN}, Bearer {TOKEN}".encode()], 400, INVALID_REQUEST),
        ([f"Bearer {TOKEN}".encode()] * 2, 400, INVALID_REQUEST),
        ([f"Bearer {TOKEN}".encode(), b"Basic eA=="], 400, INVALID_REQUEST),
        ([b"Bearer " + b"x" * 20_000], 431, None),
        ([f"Bearer {TOKEN}".encode()], 200, None),
        ([f"bearer {TOKEN}".encode()], 200, None),
        ([f"BEARER   {TOKEN} ".encode()], 200, None),
    ],
)
async def test_bearer_answers(authorization: list[bytes], status: int, challenge: str | None) -> None:
    """Every row of the contract's section 3, as problem answers with RFC 6750's challenges."""
    answer = await ask(Config(token=TOKEN), "/who/read", [(b"Authorization", value) for value in authorization])
    assert (status, challenge) == (answer.status_code, answer.headers.get("www-authenticate"))
    if status != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        codes = {401: "unauthorized", 400: "invalid_request", 431: "headers_too_large"}
        assert codes[status] == answer.json()["code"]
        assert TOKEN not in answer.text


@pytest.mark.parametrize("path", sorted(auth.PUBLIC))
async def test_public_paths_need_no_token(path: str) -> None:
    """Health, description and documentation are open, even beside a malformed header."""
    assert (await ask(Config(token=TOKEN), path)).status_code == 200
    assert (await ask(Config(token=TOKEN), path, [(b"Authorization", b"Bearer")])).status_code == 200


@pytest.mark.parametrize("path", ["/livez/more", "/livez/", "/Livez", "/secret", "/nowhere", "/docs%2F", "/console"])
async def test_public_paths_are_exact(path: str) -> None:
    """A path that only begins like a public one is closed, and so is one that does not exist."""
    assert (await ask(Config(token=TOKEN), path)).status_code == 401


async def test_public_paths_below_a_mount_point() -> None:
    """An agent may mount the sidecar: public paths are those below its mount point."""
    app = Starlette(routes=[Mount("/sidecar", application(Config(token=TOKEN)))])
    assert (await ask(app, "/sidecar/livez")).status_code == 200
    assert (await ask(app, "/sidecar/secret")).status_code == 401
    assert (await ask(app, "/sidecar/secret", bearer())).status_code == 200


@pytest.mark.parametrize(
    "query", ["token=x", f"access_token={TOKEN}", "limit=1&token", "%74oken=x", "Token=x", "a=%zz&token=x"]
)
@pytest.mark.parametrize("path", ["/who/read", "/livez", "/nowhere"])
async def test_a_token_in_the_query_is_refused(path: str, query: str, caplog: pytest.LogCaptureFixture) -> None:
    """On every path and whatever else is right; the query reaches neither the answer nor the log."""
    with caplog.at_level(logging.DEBUG, "sidecar"):
        answer = await ask(Config(token=TOKEN), f"{path}?{query}", bearer())
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert query not in answer.text + caplog.text


async def test_a_parameter_that_only_resembles_a_token_passes() -> None:
    """`tokens` and a token as a value are parameters like any other."""
    assert (await ask(Config(token=TOKEN), "/who/read?tokens=1&q=token", bearer())).status_code == 200


async def test_the_operator_has_all_scopes() -> None:
    """The operator token does everything and sees all owners."""
    assert ["operator", sorted(ALL_SCOPES), None] == (await ask(Config(token=TOKEN), "/who/retire", bearer())).json()


async def test_named_tokens(tmp_path: Path) -> None:
    """A tokens file gives each token its scopes and owners, beside the operator token."""
    path = tmp_path / "tokens.toml"
    narrowed = row("narrowed", OTHER, '["read", "search"]', '["alice", ""]')
    path.write_text(narrowed + row("all", "x" * 20, owners='["bob", "*"]'))
    app = application(Config(token=TOKEN, tokens_file=path))
    assert (await ask(app, "/who/read", bearer(OTHER))).json() == ["narrowed", ["read", "search"], ["", "alice"]]
    assert (await ask(app, "/who/read", bearer("x" * 20))).json() == ["all", ["read"], None]
    assert (await ask(app, "/who/read", bearer())).json()[0] == "operator"


async def test_a_missing_scope(tmp_path: Path) -> None:
    """403 names the scope, for people and in the challenge."""
    path = tmp_path / "tokens.toml"
    path.write_text(row("reader", OTHER))
    answer = await ask(Config(tokens_file=path), "/who/retire", bearer(OTHER), "DELETE")
    assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_scope")
    assert f'{REALM}, error="insufficient_scope", scope="retire"' == answer.headers["www-authenticate"]
    assert answer.json()["detail"] == "The token `reader` lacks the scope `retire`; use one that has it."


async def test_without_authentication_everyone_is_anonymous() -> None:
    """The insecure mode asks for nothing, but still refuses a token in the query."""
    app = application(Config(insecure_no_auth=True))
    for headers in ([], bearer(), [(b"Authorization", b"Bearer")]):
        assert ["anonymous", sorted(ALL_SCOPES), None] == (await ask(app, "/who/retire", headers)).json()
    assert (await ask(app, "/who/read?token=x")).status_code == 400


async def test_no_token_configured_lets_nobody_in() -> None:
    """Without tokens and without the insecure mode the gate stays closed."""
    assert (await ask(Config(), "/who/read", bearer())).status_code == 401


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("token = []", "length >= 1"),
        ("[[token]", "Expected"),
        (row("a", OTHER).replace("name", "nmae"), "nmae"),
        (row("a", OTHER) + "extra = 1", "extra"),
        (row("a", OTHER).replace("owners", "#"), "owners"),
        (row("a", OTHER, owners="[]"), "owners"),
        (row("a", OTHER, scopes="[]"), "scopes"),
        (row("a", OTHER, scopes='["write"]'), "write"),
        (row("a b", OTHER), "name"),
        (row("a", OTHER).replace('sha256 = "', 'sha256 = "0'), "sha256"),
        (row("operator", OTHER), "names"),
        (row("anonymous", OTHER), "names"),
        (row("a", OTHER) + row("a", TOKEN), "names"),
        (row("a", OTHER) + row("b", OTHER), "sha256"),
        (row("a", OTHER) + re.sub("[0-9a-f]{64}", lambda digest: digest[0].upper(), row("b", OTHER)), "sha256"),
    ],
)
def test_an_unusable_tokens_file_stops_the_start(tmp_path: Path, text: str, reason: str) -> None:
    """Every fault of the file is one of the configuration, and names what to correct."""
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Keyring(Config(tokens_file=path))
    (fault,) = caught.value.faults
    assert fault.startswith("SIDECAR_TOKENS_FILE: ")
    assert reason in fault


def test_missing_files_stop_the_start_together(tmp_path: Path) -> None:
    """Both files are named at once."""
    with pytest.raises(ConfigError) as caught:
        Keyring(Config(token_file=tmp_path / "a", tokens_file=tmp_path / "b"))
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["SIDECAR_TOKEN_FILE", "SIDECAR_TOKENS_FILE"]


def test_a_rotated_token_file_is_read_within_five_seconds(tmp_path: Path) -> None:
    """The new token is valid and the old one is not, without a restart, as soon as the clock allows a look."""
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    keyring = Keyring(Config(token_file=path))
    assert keyring.principal([f"Bearer {TOKEN}".encode()]).name == "operator"
    path.write_text(f"{OTHER}\n")
    deadline = time.monotonic() + 5
    while not accepts(keyring, OTHER) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (accepts(keyring, OTHER), accepts(keyring, TOKEN)) == (True, False)


def accepts(keyring: Keyring, token: str) -> bool:
    """Whether a token opens the gate now."""
    try:
        return isinstance(keyring.principal([f"Bearer {token}".encode()]), Principal)
    except Unauthorized:
        return False


def test_a_swapped_symbolic_link_is_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kubernetes swaps a link to the folder of a secret: same path, same size, even the same modification time."""
    monkeypatch.setattr(auth, "RECHECK_SECONDS", 0.0)
    for name, token in (("one", TOKEN), ("two", OTHER + "0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(token)
        os.utime(tmp_path / name / "token", ns=(0, 0))
    (tmp_path / "data").symlink_to("one")
    keyring = Keyring(Config(token_file=tmp_path / "data" / "token"))
    assert accepts(keyring, TOKEN)
    (tmp_path / "new").symlink_to("two")
    with caplog.at_level(logging.INFO, "sidecar"):
        (tmp_path / "new").replace(tmp_path / "data")
        assert (accepts(keyring, OTHER + "0"), accepts(keyring, TOKEN)) == (True, False)
    assert [TokensLoaded(tmp_path / "data" / "token", 1)] == events(caplog)


@pytest.mark.parametrize("damage", ["empty", "invalid", "missing", "folder"])
def test_an_unusable_new_file_keeps_the_old_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """Nobody is locked out by a bad rotation, which is said exactly once; the next good file counts again."""
    monkeypatch.setattr(auth, "RECHECK_SECONDS", 0.0)
    path = tmp_path / "tokens.toml"
    path.write_text(row("console", TOKEN))
    keyring = Keyring(Config(tokens_file=path))
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_text({"empty": "", "invalid": f'[[token]]\nname = "{TOKEN}"'}[damage])
    with caplog.at_level(logging.INFO, "sidecar"):
        assert all(accepts(keyring, TOKEN) for _ in range(3))
    (event,) = events(caplog)
    assert isinstance(event, TokensKept)
    assert (event.path, TOKEN in caplog.text) == (path, False)
    if damage == "folder":
        path.rmdir()
    path.write_text(row("console", OTHER))
    assert (accepts(keyring, OTHER), accepts(keyring, TOKEN)) == (True, False)


@pytest.mark.parametrize(
    ("host", "allowed", "status"),
    [
        ("localhost", (), 200),
        ("LOCALHOST:8765", (), 200),
        ("127.0.0.1:1", (), 200),
        ("127.3.2.1", (), 200),
        ("[::1]:8765", (), 200),
        ("evil.example", (), 400),
        ("localhost.evil.example", (), 400),
        ("127.0.0.1.evil.example", (), 400),
        ("evil.example:8765", ("console.example",), 400),
        ("10.0.0.1", (), 400),
        ("console.example:8765", ("console.example",), 200),
        ("Console.Example", ("console.example",), 200),
        ("[fd00::1]", ("fd00::1",), 200),
        ("localhost", ("console.example",), 200),
        ("evil.example", ("*",), 200),
        ("localhost:", (), 400),
        ("localhost:port", (), 400),
        ("localhost/", ("*",), 400),
        ("user@localhost", ("*",), 400),
        ("[]", ("*",), 400),
        ("", ("*",), 400),
        ("localhöst", ("*",), 400),
    ],
)
async def test_the_host_guard(host: str, allowed: tuple[str, ...], status: int) -> None:
    """A name that a page could have rebound to us is refused before the bearer is looked at."""
    headers = [(b"Host", host.encode()), *bearer()]
    answer = await ask(Config(token=TOKEN, allowed_hosts=allowed), "/who/read", headers)
    assert status == answer.status_code
    if status == 400:
        assert answer.json()["code"] == "host_not_allowed"
        unauthorized = await ask(Config(token=TOKEN, allowed_hosts=allowed), "/who/read", headers[:1])
        assert unauthorized.json()["code"] == "host_not_allowed"


@pytest.mark.parametrize("hosts", [[], [b"localhost", b"localhost"]])
async def test_exactly_one_host(hosts: list[bytes]) -> None:
    """A missing or repeated Host is refused even where any name is allowed."""
    answered = await raw(Config(token=TOKEN, allowed_hosts=("*",)), [(b"host", host) for host in hosts])
    assert answered == 400


async def raw(config: Config, headers: Headers) -> int:
    """The status of a request whose headers no client library touches."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/who/read", "query_string": b"", "headers": headers}
    await application(config)(scope, receive, send)
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
async def test_health_is_answered_under_any_host(path: str) -> None:
    """Kubelet and load balancers probe by address; nothing else is open to them."""
    for host in (b"10.1.2.3:8765", b"", b"not a host"):
        assert (await ask(Config(token=TOKEN), path, [(b"Host", host)])).status_code == 200
    assert (await ask(Config(token=TOKEN), "/docs", [(b"Host", b"10.1.2.3")])).status_code == 400


@pytest.mark.parametrize(
    ("origins", "status"),
    [
        ([], 200),
        (["http://localhost:8765"], 200),
        (["https://localhost:8765"], 200),
        (["https://console.example"], 200),
        (["http://localhost"], 403),
        (["http://localhost:8766"], 403),
        (["http://console.example"], 403),
        (["https://console.example:8443"], 403),
        (["https://evil.example"], 403),
        (["https://console.example.evil.example"], 403),
        (["null"], 403),
        ([""], 403),
        (["*"], 403),
        (["https://console.example", "https://console.example"], 403),
        (["https://console.example", "https://evil.example"], 403),
    ],
)
async def test_the_origin_guard(origins: list[str], status: int) -> None:
    """A page reads here only from our own host or a configured origin."""
    config = Config(token=TOKEN, cors_origins=("https://console.example",))
    headers = [(b"Host", b"localhost:8765"), *bearer(), *((b"Origin", origin.encode()) for origin in origins)]
    answer = await ask(config, "/who/read", headers)
    assert status == answer.status_code
    if status == 403:
        assert answer.json()["code"] == "origin_not_allowed"
