"""The way of the commands to a running sidecar over HTTP: one request a call; it decides nothing and shows nothing.

The token goes to the given address alone: certificates are verified, redirects are not followed, and the proxies of
the environment are not used.
"""

import json
import re
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection
from ssl import SSLCertVerificationError, SSLError, create_default_context
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from sidecar.config import is_loopback

if TYPE_CHECKING:
    from sidecar.search.queries import SearchQuery

Query = Mapping[str, str | int | None]

SESSIONS = "/api/chat/sessions"
SEARCH = "/agent_api/v1/workspaces/{workspace}/conversation_search"
JSON, PROBLEM = "application/json", "application/problem+json"


class RemoteError(Exception):
    """What a sidecar refused, with the code and detail of its problem answer, or why nothing of it came at all."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Remote:
    """A sidecar at a base URL; each socket operation may take `seconds`. Raises ValueError for what is no such URL.

    Its methods answer with the body as it came and whether there are older rows. They raise RemoteError.
    """

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        self._base = _base(url)
        self._seconds = seconds
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    @property
    def exposes_token(self) -> bool:
        """Whoever is between here and there can read the token."""
        return bool(self._headers) and self._base.scheme == "http" and not is_loopback(self._base.hostname or "")

    def sessions(self, limit: int, parked: bool) -> tuple[bytes, bool]:
        """The index, or the sessions that wait on the operator."""
        return self._read(SESSIONS, "sessions", {"limit": limit, "parked": "true" if parked else None})

    def turns(self, session_id: str, limit: int, order: str) -> tuple[bytes, bool]:
        """The newest turns of a session."""
        return self._read(f"{_path(session_id)}/turns", "turns", {"limit": limit, "order": order})

    def search(self, workspace: str, query: "SearchQuery") -> bytes:
        """The turns and titles that hold all words of the query."""
        given: dict[str, str | int | None] = {"query": query.query, "limit": query.limit, "after": query.after}
        given["include_auxiliary"] = "true" if query.include_auxiliary else None
        return self._read(SEARCH.format(workspace=quote(workspace, safe="")), "matches", given)[0]

    def delete(self, session_id: str, retires: bool, refuses_active: bool) -> dict[str, Any]:
        """Retires or clears a session, and gives the parsed answer."""
        query = {"retire": None if retires else "false", "if_active": "refuse" if refuses_active else None}
        status, headers, body = self._exchange("DELETE", _path(session_id), query)
        return self._checked(status, headers, body, "deleted")

    def _read(self, path: str, key: str, query: Query) -> tuple[bytes, bool]:
        status, headers, body = self._exchange("GET", path, query)
        self._checked(status, headers, body, key)
        return body, 'rel="next"' in headers.get("Link", "")

    def _exchange(self, method: str, path: str, query: Query) -> tuple[int, HTTPMessage, bytes]:
        given = urlencode({name: value for name, value in query.items() if value is not None})
        target = f"{self._base.path.rstrip('/')}{path}?{given}"
        try:
            with closing(self._connection()) as connection:
                connection.request(method, target, headers=self._headers)
                response = connection.getresponse()
                return response.status, response.headers, response.read()
        except (OSError, HTTPException, UnicodeError) as error:
            silence = f"{self._base.geturl()} does not answer: {_reason(error)}."
            raise RemoteError("remote_unreachable", silence) from None

    def _connection(self) -> HTTPConnection:
        host = self._base.hostname or ""
        if self._base.scheme == "http":
            return HTTPConnection(host, self._base.port or 80, timeout=self._seconds)
        return HTTPSConnection(host, self._base.port or 443, timeout=self._seconds, context=create_default_context())

    def _checked(self, status: int, headers: HTTPMessage, body: bytes, key: str) -> dict[str, Any]:
        """The parsed answer, which has the key. Raises RemoteError for a problem, and for what no sidecar says."""
        kind = headers.get_content_type()
        content = _object(body) if kind in (JSON, PROBLEM) else {}
        if kind == PROBLEM and {"code", "detail"} <= content.keys():
            advice = " Name a file that holds one: --token-file." if status == 401 else ""
            raise RemoteError(str(content["code"]), f"{content['detail']}{advice}")
        if status != 200 or kind != JSON or key not in content:
            answer = f"{self._base.geturl()} answers {status} with {kind}, as no sidecar does"
            raise RemoteError("remote_unexpected", f"{answer}; correct --url, or ask whoever runs a proxy there.")
        return content


def _base(url: str) -> SplitResult:
    """The parts of an address of visible ASCII. Raises ValueError."""
    parts = urlsplit(url if re.fullmatch(r"https?://[!-~]+", url) else "")
    has_more = "@" in parts.netloc or parts.query or parts.fragment
    if not parts.hostname or parts.port == 0 or has_more:
        raise ValueError("is no base URL; write https://host:port, without credentials, query or fragment")
    return parts


def _path(session_id: str) -> str:
    return f"{SESSIONS}/{quote(session_id, safe='')}"


def _reason(error: Exception) -> str:
    """Why nothing came, and what to do about it."""
    if isinstance(error, SSLCertVerificationError):
        return f"{error.verify_message}; SSL_CERT_FILE may name the certificates to trust"
    if isinstance(error, SSLError):
        return f"TLS fails ({error.reason}); a sidecar without a proxy before it is asked by http://"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{reason}; start the sidecar there, or correct --url"


def _object(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    try:
        content = json.loads(body, parse_int=_number)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _number(digits: str) -> float:
    """A whole number, which in what agents store may be longer than Python reads."""
    return int(digits) if len(digits) < 20 else float(digits)
