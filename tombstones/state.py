"""What a stored status says: its state and its time, in both spellings of the SDK; it may not touch a database.

A status cell is JSON text that anybody may have written, so reading one never raises.
"""

import json
import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec


def _both_spellings(*states: str) -> frozenset[str]:
    return frozenset(states) | {"TASK_STATE_" + state.upper().replace("-", "_") for state in states}


PARKED = _both_spellings("input-required", "auth-required")
RUNNING = _both_spellings("submitted", "working")
FINISHED = _both_spellings("completed", "failed", "canceled", "rejected")
# A state that none of the three knows is neither open nor an end: it counts as no activity.
ACTIVE = PARKED | RUNNING


def name_of(state: str) -> str:
    """A state as 0.x spells it, `input-required`, whichever spelling is stored."""
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


_SURROGATES = re.compile(r"[\ud800-\udfff]")


class Status(NamedTuple):
    """The stored state, spelled as stored (`""` when absent), and the naive UTC time of `timestamp`, if it is one."""

    state: str
    time: datetime | None


class _Plain(msgspec.Struct):
    state: str = ""
    timestamp: str | None = None


_decode = msgspec.json.Decoder(_Plain).decode


def read_status(cell: bytes | None) -> Status:
    """State and time of a stored status; whatever is not readable is absent."""
    try:
        plain = _decode(cell or b"")
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _read_odd_status(cell or b"")
    return Status(plain.state, parse_time(plain.timestamp))


def _read_odd_status(cell: bytes) -> Status:
    """A second look with the standard library, which takes lone surrogates and members of any type."""
    try:
        status: Any = json.loads(cell.decode(), parse_int=float)
    except (ValueError, RecursionError):
        return Status("", None)
    members = status if isinstance(status, dict) else {}
    state, timestamp = members.get("state"), members.get("timestamp")
    # a lone surrogate is no text that any answer can carry
    return Status(_SURROGATES.sub("\ufffd", state) if isinstance(state, str) else "", parse_time(timestamp))


def parse_time(text: object) -> datetime | None:
    """A stored ISO 8601 time as naive UTC; one without a zone is UTC already; anything else is no time."""
    if not isinstance(text, str):
        return None
    try:
        return naive_utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


def naive_utc(time: datetime) -> datetime:
    """The time in UTC, without a zone; what has none is UTC already. Raises OverflowError at the ends of time."""
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
