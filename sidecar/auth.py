"""Who may ask: bearer tokens with scopes and owners, and the guards of Host and Origin; it touches no database.

The middlewares raise a SidecarError for a refusal; `edge.Problems` turns it into the answer.
"""

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args
from urllib.parse import unquote_plus

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from sidecar import console
from sidecar.config import Config, ConfigError, is_loopback, operator_token, read_secret
from sidecar.errors import HostNotAllowed, InsufficientScope, InvalidRequest, OriginNotAllowed, Unauthorized
from sidecar.observe import TokensKept, TokensLoaded, emit

ScopeName = Literal["read", "retire", "search", "chat", "audit"]
ALL_SCOPES: frozenset[str] = frozenset(get_args(ScopeName))
HEALTH = frozenset({"/livez", "/readyz", "/healthz"})
PUBLIC = HEALTH | {"/openapi.json", "/docs"} | console.FILES.keys()
RECHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: a token's name for the log, what it may do, and the owners it is narrowed to; None is all of them."""

    name: str
    scopes: frozenset[str]
    owners: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Token:
    """A token is kept as its SHA-256 digest only."""

    digest: bytes
    principal: Principal


OPERATOR = "operator"
ANONYMOUS = Principal("anonymous", ALL_SCOPES, None)


class Keyring:
    """The tokens of a configuration; their files are read again when they change. Raises ConfigError at the start."""

    def __init__(self, config: Config) -> None:
        self._is_open = config.insecure_no_auth
        self._fixed = [_operator(config.token)] if config.token else []
        self._files: list[_TokenFile] = []
        faults: list[str] = []
        for setting, path, parse in (
            ("SIDECAR_TOKEN_FILE", config.token_file, _operator_alone),
            ("SIDECAR_TOKENS_FILE", config.tokens_file, _named_tokens),
        ):
            try:
                self._files += [_TokenFile(path, parse)] if path else []
            except ValueError as fault:
                faults.append(f"{setting}: {fault}.")
        if faults:
            raise ConfigError(faults)
        self._checked_at = time.monotonic()

    def principal(self, authorization: Sequence[bytes]) -> Principal:
        """Whose token the values of the `Authorization` headers carry, after RFC 6750 §3.

        Raises Unauthorized without credentials and for a wrong token, InvalidRequest for a malformed header.
        """
        if self._is_open:
            return ANONYMOUS
        digest = hashlib.sha256(_bearer(authorization)).digest()
        self._refresh()
        found: Principal | None = None
        # no early exit: the time must not tell how far the search came
        for token in (*self._fixed, *(token for file in self._files for token in file.tokens)):
            if hmac.compare_digest(token.digest, digest):
                found = token.principal
        if found is None:
            raise Unauthorized("The token is not valid here; it may have been rotated.", _challenge("invalid_token"))
        return found

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._checked_at >= RECHECK_SECONDS:
            self._checked_at = now
            for file in self._files:
                file.refresh()


class _TokenFile:
    """A file of tokens, as of its last usable state. Raises ValueError when its first state is not usable."""

    def __init__(self, path: Path, parse: Callable[[str], list[Token]]) -> None:
        self._path = path
        self._parse = parse
        self._load()

    def refresh(self) -> None:
        """Reads the file again if it changed; an unusable one leaves the tokens as they are and says so once."""
        if _stamp(self._path) == self._read_stamp:
            return
        try:
            self._load()
        except ValueError as fault:
            emit(TokensKept(self._path, str(fault)))

    def _load(self) -> None:
        # taken before the reading, so that a change during it is seen the next time
        self._read_stamp = _stamp(self._path)
        text = read_secret(self._path)
        if not text:
            raise ValueError(f"{self._path} is empty")
        self.tokens = self._parse(text)
        emit(TokensLoaded(self._path, len(self.tokens)))


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes with a file's content, also when a symbolic link above it is swapped, as Kubernetes does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _operator(text: str) -> Token:
    return Token(hashlib.sha256(text.encode()).digest(), Principal(OPERATOR, ALL_SCOPES, None))


def _operator_alone(text: str) -> list[Token]:
    return [_operator(operator_token(text))]


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9A-Fa-f]{64}\Z")]
    scopes: Annotated[list[ScopeName], msgspec.Meta(min_length=1)]
    owners: Annotated[list[str], msgspec.Meta(min_length=1)]


class _Rows(msgspec.Struct, forbid_unknown_fields=True):
    token: Annotated[list[_Row], msgspec.Meta(min_length=1)]


def _named_tokens(text: str) -> list[Token]:
    """The tokens of a TOML text. Raises ValueError naming the row and key that is wrong."""
    rows = msgspec.toml.decode(text, type=_Rows).token
    names = [row.name for row in rows]
    if len(set(names)) < len(names) or {OPERATOR, ANONYMOUS.name} & set(names):
        raise ValueError(f"names must differ from each other and from {OPERATOR} and {ANONYMOUS.name}")
    if len({row.sha256.lower() for row in rows}) < len(rows):
        raise ValueError("two rows have the same sha256")
    return [Token(bytes.fromhex(row.sha256), _principal(row)) for row in rows]


def _principal(row: _Row) -> Principal:
    return Principal(row.name, frozenset(row.scopes), None if "*" in row.owners else frozenset(row.owners))


def _bearer(authorization: Sequence[bytes]) -> bytes:
    """The one bearer token of the headers. Raises Unauthorized without one, InvalidRequest for a malformed header."""
    if len(authorization) > 1:
        raise _invalid_request("The Authorization header is repeated; send it once.")
    header = authorization[0] if authorization else b""
    scheme = header.split(b" ", 1)[0]
    if scheme.lower() != b"bearer":
        raise Unauthorized("Send `Authorization: Bearer <token>`.", _challenge())
    match = re.fullmatch(rb" +([A-Za-z0-9._~+/-]+=*) *", header[len(scheme) :])
    if not match:
        raise _invalid_request("The bearer token is empty or holds illegal characters; send the token alone.")
    return match[1]


def _invalid_request(detail: str) -> InvalidRequest:
    return InvalidRequest(detail, _challenge("invalid_request"))


def _challenge(error: str | None = None, **parameters: str) -> dict[str, str]:
    """The WWW-Authenticate header of a refusal; without an error code where no credentials came (RFC 6750 §3.1)."""
    pairs = {"realm": "a2a-sidecar"} | ({"error": error} if error else {}) | parameters
    return {"WWW-Authenticate": "Bearer " + ", ".join(f'{name}="{value}"' for name, value in pairs.items())}


def require(request: Request, scope: ScopeName) -> Principal:
    """Who asks, if the token has this scope. Raises InsufficientScope."""
    principal: Principal = request.state.principal
    if scope not in principal.scopes:
        raise InsufficientScope(
            f"The token `{principal.name}` lacks the scope `{scope}`; use one that has it.",
            _challenge("insufficient_scope", scope=scope),
        )
    return principal


def route_path(scope: Scope) -> str:
    """The decoded path below the mount point of the application."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


class Gate:
    """ASGI middleware that lets a request in with a valid bearer token, or to a public path; paths match exactly."""

    def __init__(self, app: ASGIApp, keyring: Keyring, public: frozenset[str] = PUBLIC) -> None:
        self._app = app
        self._keyring = keyring
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _refuse_token_in_query(scope["query_string"])
            if route_path(scope) not in self._public:
                authorization = [value for name, value in scope["headers"] if name == b"authorization"]
                scope.setdefault("state", {})["principal"] = self._keyring.principal(authorization)
        await self._app(scope, receive, send)


def _refuse_token_in_query(query_string: bytes) -> None:
    names = (unquote_plus(piece.partition("=")[0]).lower() for piece in query_string.decode("latin-1").split("&"))
    if not {"token", "access_token"}.isdisjoint(names):
        raise _invalid_request(
            "A token in the query ends up in logs and histories; send it in the header and renew it."
        )


class Guard:
    """ASGI middleware that refuses foreign `Host` values (DNS rebinding) and foreign origins.

    The health routes take any Host: kubelet and load balancers probe by address.
    """

    def __init__(self, app: ASGIApp, config: Config) -> None:
        self._app = app
        self._hosts = frozenset(config.allowed_hosts)
        self._origins = frozenset(config.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host = _only(headers.getlist("host"))
            if route_path(scope) not in HEALTH:
                self._check_host(host)
            self._check_origin(headers.getlist("origin"), host)
        await self._app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        match = re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?", host)
        name = match[1].lower().strip("[]") if match else ""
        if not name:
            raise HostNotAllowed("Send exactly one Host header that holds a host name and at most a port.")
        if not is_loopback(name) and self._hosts.isdisjoint({name, "*"}):
            raise HostNotAllowed(f"The host `{name}` is not known here; add it to SIDECAR_ALLOWED_HOSTS.")

    def _check_origin(self, origins: list[str], host: str) -> None:
        if not origins:
            return
        origin = _only(origins)
        if origin not in self._origins and origin.lower() not in {f"http://{host.lower()}", f"https://{host.lower()}"}:
            raise OriginNotAllowed("A page of this origin may not read here; add it to SIDECAR_CORS_ORIGINS.")


def _only(values: list[str]) -> str:
    """The one value, "" for none or several."""
    return values[0] if len(values) == 1 else ""
