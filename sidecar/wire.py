"""Rows to response bytes: stored JSON is spliced in as it is, cursors and validators are made here; no database.

Seed 003 promises status, artifacts and history untransformed. A cell is therefore checked to be strict JSON and then
copied, never decoded and encoded again: number spelling, key order, duplicate keys and escapes survive.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

T = TypeVar("T")
# What a cursor may hold: a forged one must not reach the database as a value that a driver refuses.
UtcTime = Annotated[datetime, msgspec.Meta(tz=False)]
ZonedTime = Annotated[datetime, msgspec.Meta(tz=True)]
RowNumber = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

CELLS = ("status", "artifacts", "history")

_encode = msgspec.json.encode
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
MAX_SESSION_ID = 255


def valid_session_id(session_id: str) -> bool:
    """1 to 255 characters, no control character, no lone surrogate: what a path can carry and PostgreSQL can store."""
    return 0 < len(session_id) <= MAX_SESSION_ID and not _CONTROLS.search(session_id)


def iso(moment: datetime | None) -> str | None:
    """A naive UTC time with its zone: without one a browser reads it as local time."""
    return None if moment is None else moment.isoformat() + "Z"


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A stored JSON text with its size in bytes; `text` is None for SQL NULL, and when it was too large to fetch."""

    text: bytes | None
    octets: int | None


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One stored turn, as the wire needs it."""

    task_id: str
    state: str
    activity: datetime | None
    status: Cell
    artifacts: Cell
    history: Cell


def turns_body(turns: Iterable[Turn]) -> bytes:
    """`{"turns": [...]}` of seed 003, each turn's keys in its order."""
    pieces = [b'{"turns":[']
    for number, turn in enumerate(turns):
        if number:
            pieces.append(b",")
        _append_turn(pieces, turn)
    pieces.append(b"]}")
    # one join of everything: the cells are copied once
    return b"".join(pieces)


def _append_turn(pieces: list[bytes], turn: Turn) -> None:
    omitted: list[str] = []
    status = _spliced("status", turn.status, b"{}", omitted)
    artifacts, text = _artifacts(turn.artifacts, omitted)
    history = _spliced("history", turn.history, b"[]", omitted)
    pieces += (
        b'{"task_id":',
        _string(turn.task_id),
        b',"state":',
        _string(turn.state),
        b',"last_updated":',
        _encode(iso(turn.activity)),
        b',"text":',
        _string(text),
        b',"status":',
        status,
        b',"artifacts":',
        artifacts,
        b',"history":',
        history,
        b',"omitted":' + _encode(omitted) if omitted else b"",
        b"}",
    )


def _spliced(name: str, cell: Cell, empty: bytes, omitted: list[str]) -> bytes:
    """The stored bytes, or what a client may iterate in their place; `omitted` learns of a cell that was left out."""
    if cell.octets is None:
        return empty
    if cell.text is None or not is_strict_json(cell.text):
        omitted.append(name)
        return empty
    return empty if empty == b"[]" and cell.text.strip() == b"null" else cell.text


def _artifacts(cell: Cell, omitted: list[str]) -> tuple[bytes, str]:
    """The artifacts as `_spliced` gives them, and their text; what the SDK writes is checked and read in one pass."""
    if cell.text is not None:
        try:
            _check_utf8(cell.text)
            return cell.text, _joined(_decode_artifacts(cell.text))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    artifacts = _spliced("artifacts", cell, b"[]", omitted)
    try:
        return artifacts, "".join(_odd_texts(artifacts))
    except RecursionError:  # nested as deep as the check just follows
        omitted.append("artifacts")
        return b"[]", ""


def artifacts_text(cell: bytes | None) -> str:
    """The `text` of a turn with these artifacts; what is no strict JSON has none."""
    return _artifacts(Cell(cell, None if cell is None else len(cell)), [])[1]


_skim = msgspec.json.Decoder(msgspec.Raw).decode


def is_strict_json(text: bytes) -> bool:
    """RFC 8259, UTF-8, no NaN or Infinity, nesting that a JSON library follows; numbers of any size."""
    try:
        _check_utf8(text)
        _skim(text)
    except UnicodeDecodeError:
        return False
    except (msgspec.DecodeError, RecursionError):
        return _is_json_with_lone_surrogates(text)
    return True


def _check_utf8(text: bytes) -> None:
    """Raises UnicodeDecodeError: msgspec does not look into strings that it skips."""
    if not text.isascii():
        text.decode()


def _is_json_with_lone_surrogates(text: bytes) -> bool:
    """A cut emoji (`\\ud83d`) is valid by the grammar, and 0.x stores hold it; only the standard library agrees."""
    try:
        load_odd_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def load_odd_json(text: bytes) -> Any:
    """The value of strict JSON with lone surrogates, which become lone characters; all numbers are floats.

    Raises ValueError or RecursionError for what `is_strict_json` refuses.
    """
    return json.loads(text.decode(), parse_constant=_refuse, parse_int=float)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


class _Part(msgspec.Struct, gc=False):
    text: str = ""


class _Artifact(msgspec.Struct, gc=False):
    parts: list[_Part] = msgspec.field(default_factory=list)


_decode_artifacts = msgspec.json.Decoder(list[_Artifact]).decode


def _joined(artifacts: list[_Artifact]) -> str:
    """The text parts of all artifacts in stored order, joined with nothing: a streamed answer is one part a chunk."""
    return "".join([part.text for artifact in artifacts for part in artifact.parts])


def _odd_texts(artifacts: bytes) -> Iterable[str]:
    """The same from JSON whose members have types that no SDK writes, or lone surrogates."""
    for artifact in dicts(load_odd_json(artifacts)):
        for part in dicts(artifact.get("parts")):
            text = part.get("text")
            if isinstance(text, str):
                yield text


def dicts(members: Any) -> list[dict[str, Any]]:
    """The objects of a JSON list; none of anything else."""
    return [each for each in members if isinstance(each, dict)] if isinstance(members, list) else []


def plain(text: str) -> str:
    """The text without lone surrogates, which no UTF-8 can carry: from a cut emoji, or from an id that is no UTF-8."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def _string(text: str) -> bytes:
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(plain(text))


@dataclass(frozen=True, slots=True)
class Session:
    """One row of the index; `last_state` and `live_task_id` only where the answer has them."""

    session_id: str
    activity: datetime | None
    turn_count: int
    last_state: str | None = None


def sessions_body(sessions: Sequence[Session], *, parked: bool) -> bytes:
    """`{"sessions": [...]}` of seed 003; a parked row also carries `last_state`."""
    return _encode({"sessions": [session_row(each, with_state=parked) for each in sessions]})


def session_row(session: Session, *, with_state: bool) -> dict[str, Any]:
    """One session's keys in the seed's order."""
    row = {
        "session_id": session.session_id,
        "last_updated": iso(session.activity),
        "turn_count": session.turn_count,
    }
    return {**row, "last_state": session.last_state} if with_state else row


def etag(body: bytes, link: bytes = b"") -> str:
    """A weak validator that changes with every change of the answer: artifact chunks, and where it leads on to."""
    digest = hashlib.sha256(body)
    digest.update(link)
    return f'W/"{digest.hexdigest()[:32]}"'


CURSOR_VERSION = 1


class CursorError(ValueError):
    """The text is no cursor of this request."""


def encode_cursor(bound_to: Sequence[str], position: Any) -> str:
    """An opaque keyset position, bound to the route and filters whose pages it continues."""
    content = _encode([CURSOR_VERSION, list(bound_to), position])
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def decode_cursor(cursor: str, bound_to: Sequence[str], position: type[T]) -> T:
    """The position of a cursor of these filters. Raises CursorError for any other text."""
    try:
        content = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        version, bound, at = msgspec.json.decode(content, type=tuple[int, list[str], msgspec.Raw])
        if (version, bound) == (CURSOR_VERSION, list(bound_to)):
            return msgspec.json.decode(at, type=position)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        pass
    raise CursorError
