"""Raw paths and query strings to frozen dataclasses, or a 400 that names the fault and the fix; it reads no store."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote_to_bytes

from sidecar.errors import ParameterInvalid, SessionIdInvalid
from sidecar.wire import valid_session_id

Order = Literal["activity", "created"]
DEFAULT_LIMIT = 50
MAX_LIMIT = 200


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """`GET /api/chat/sessions`; the cursor is opaque."""

    limit: int
    parked: bool
    cursor: str | None


@dataclass(frozen=True, slots=True)
class TurnsQuery:
    """`GET /api/chat/sessions/{session_id}/turns`; the cursor is opaque."""

    session_id: str
    limit: int
    order: Order
    cursor: str | None


@dataclass(frozen=True, slots=True)
class RetireRequest:
    """`DELETE /api/chat/sessions/{session_id}`; `retire` False clears the history and keeps the id usable."""

    session_id: str
    retire: bool
    refuse_active: bool


def parse_session_id(raw: bytes) -> str:
    """The id in one percent-encoded piece of the raw path. Raises SessionIdInvalid."""
    try:
        session_id = _decode(raw)
    except ValueError:
        raise SessionIdInvalid("The id in the path is not percent-encoded UTF-8; encode each byte as %XX.") from None
    if not valid_session_id(session_id):
        raise SessionIdInvalid("An id has 1 to 255 characters and no control characters.")
    return session_id


def index_query(query_string: bytes) -> IndexQuery:
    """Raises ParameterInvalid; a parameter that this server does not know is ignored."""
    given = _known(_pairs(query_string), ("limit", "parked", "cursor"))
    return IndexQuery(_limit(given), _flag(given, "parked", default=False), given.get("cursor"))


def turns_query(session_id: str, query_string: bytes) -> TurnsQuery:
    """Raises ParameterInvalid; a parameter that this server does not know is ignored."""
    given = _known(_pairs(query_string), ("limit", "order", "cursor"))
    order: Order = "created" if _choice(given, "order", ("activity", "created")) == "created" else "activity"
    return TurnsQuery(session_id, _limit(given), order, given.get("cursor"))


def retire_request(session_id: str, query_string: bytes) -> RetireRequest:
    """Raises ParameterInvalid, also for a parameter that this server does not know: a deletion never guesses.

    `harvest=false` is accepted: consoles of seed 003's origin send it, and nothing is ever harvested here.
    """
    pairs = _pairs(query_string)
    names = ("retire", "if_active", "harvest")
    for name, _ in pairs:
        if name not in names:
            raise ParameterInvalid(f"`{name}` is unknown here and a deletion never guesses; remove it.")
    given = _known(pairs, names)
    _choice(given, "harvest", ("false",))
    refuse_active = _choice(given, "if_active", ("refuse",)) is not None
    return RetireRequest(session_id, _flag(given, "retire", default=True), refuse_active)


def _pairs(query_string: bytes) -> list[tuple[str, str]]:
    pieces = (piece.replace(b"+", b" ").partition(b"=") for piece in query_string.split(b"&") if piece)
    try:
        return [(_decode(name), _decode(value)) for name, _, value in pieces]
    except ValueError:
        raise ParameterInvalid("The query is not percent-encoded UTF-8; encode each byte as %XX.") from None


def _decode(encoded: bytes) -> str:
    """Strict percent-decoding: a replacement character would address another session. Raises ValueError."""
    if re.search(rb"%(?![0-9A-Fa-f]{2})", encoded):
        raise ValueError("a percent sign without two hexadecimal digits")
    return unquote_to_bytes(encoded).decode()


def _known(pairs: list[tuple[str, str]], names: Collection[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in pairs:
        if name in given:
            raise ParameterInvalid(f"`{name}` is repeated; send it once.")
        if name in names:
            given[name] = value
    return given


def _limit(given: Mapping[str, str]) -> int:
    text = given.get("limit", str(DEFAULT_LIMIT))
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
        raise ParameterInvalid(f"`limit` is not a whole number; send one from 1 to {MAX_LIMIT}.")
    return min(int(text), MAX_LIMIT)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = _choice(given, name, ("true", "false"))
    return default if text is None else text == "true"


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    """The value of a parameter that takes few, None when it is absent."""
    text = given.get(name)
    if text is not None and text not in choices:
        raise ParameterInvalid(f"`{name}` takes {' or '.join(choices)} and nothing else.")
    return text
