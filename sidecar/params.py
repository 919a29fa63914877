"""Raw paths and query strings to frozen dataclasses, or a 400 that names the fault and the fix; it reads no store."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote_to_bytes

from sidecar.errors import ParameterInvalid, SessionIdInvalid
from sidecar.wire import MAX_SESSION_ID, valid_session_id

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
        session_id = decoded(raw)
    except ValueError:
        raise SessionIdInvalid("The id in the path is not percent-encoded UTF-8; encode each byte as %XX.") from None
    return checked_session_id(session_id)


def checked_session_id(session_id: str) -> str:
    """The id itself. Raises SessionIdInvalid."""
    if not valid_session_id(session_id):
        raise SessionIdInvalid(f"An id has 1 to {MAX_SESSION_ID} characters and no control characters.")
    return session_id


def index_query(query_string: bytes) -> IndexQuery:
    """Raises ParameterInvalid; a parameter that this server does not know is ignored."""
    given = known(pairs(query_string), ("limit", "parked", "cursor"))
    return IndexQuery(limit(given), flag(given, "parked", default=False), given.get("cursor"))


def turns_query(session_id: str, query_string: bytes) -> TurnsQuery:
    """Raises ParameterInvalid; a parameter that this server does not know is ignored."""
    given = known(pairs(query_string), ("limit", "order", "cursor"))
    order: Order = "created" if choice(given, "order", ("activity", "created")) == "created" else "activity"
    return TurnsQuery(session_id, limit(given), order, given.get("cursor"))


def retire_request(session_id: str, query_string: bytes) -> RetireRequest:
    """Raises ParameterInvalid, also for a parameter that this server does not know: a deletion never guesses.

    `harvest=false` is accepted: consoles of seed 003's origin send it, and nothing is ever harvested here.
    """
    given_pairs = pairs(query_string)
    names = ("retire", "if_active", "harvest")
    for name, _ in given_pairs:
        if name not in names:
            raise ParameterInvalid(f"`{name}` is unknown here and a deletion never guesses; remove it.")
    given = known(given_pairs, names)
    choice(given, "harvest", ("false",))
    refuse_active = choice(given, "if_active", ("refuse",)) is not None
    return RetireRequest(session_id, flag(given, "retire", default=True), refuse_active)


def pairs(query_string: bytes) -> list[tuple[str, str]]:
    """The names and values of a query string, strictly percent-decoded. Raises ParameterInvalid."""
    pieces = (piece.replace(b"+", b" ").partition(b"=") for piece in query_string.split(b"&") if piece)
    try:
        return [(decoded(name), decoded(value)) for name, _, value in pieces]
    except ValueError:
        raise ParameterInvalid("The query is not percent-encoded UTF-8; encode each byte as %XX.") from None


def decoded(encoded: bytes) -> str:
    """Strict percent-decoding: a replacement character would address another session. Raises ValueError."""
    if re.search(rb"%(?![0-9A-Fa-f]{2})", encoded):
        raise ValueError("a percent sign without two hexadecimal digits")
    return unquote_to_bytes(encoded).decode()


def known(given_pairs: Iterable[tuple[str, str]], names: Collection[str]) -> dict[str, str]:
    """The parameters of these names. Raises ParameterInvalid for a repeated one."""
    given: dict[str, str] = {}
    for name, value in given_pairs:
        if name in given:
            raise ParameterInvalid(f"`{name}` is repeated; send it once.")
        if name in names:
            given[name] = value
    return given


def limit(given: Mapping[str, str], default: int = DEFAULT_LIMIT, most: int = MAX_LIMIT) -> int:
    """How many rows at most; more than `most` is lowered to it. Raises ParameterInvalid."""
    text = given.get("limit", str(default))
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
        raise ParameterInvalid(f"`limit` is not a whole number; send one from 1 to {most}.")
    return min(int(text), most)


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """`true` or `false`. Raises ParameterInvalid."""
    text = choice(given, name, ("true", "false"))
    return default if text is None else text == "true"


def choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    """The value of a parameter that takes few, None when it is absent. Raises ParameterInvalid."""
    text = given.get(name)
    if text is not None and text not in choices:
        raise ParameterInvalid(f"`{name}` takes {' or '.join(choices)} and nothing else.")
    return text
