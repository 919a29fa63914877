"""The execution snapshot of one turn (seed 000): its rounds and their tool calls; no database, and no content raises.

It shows what the producer stored; reasoning, other data parts, tool titles and arguments have no place in it.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from sidecar.search.budget import FIELD_CHARACTERS, Budget
from sidecar.search.cuts import beginning
from sidecar.search.entries import MARKERS, Cells, Markers, Message, Status, members, read_history, read_status
from sidecar.wire import decode_cursor, dicts, encode_cursor, plain
from tombstones.state import FINISHED, PARKED

ROUNDS = 20
"""Rounds of a page."""

CALLS = 24
"""Tool calls that a round displays; its `call_count` may be higher."""

CALL_CHARACTERS = 500
"""Of a call's result or error, and of a round's error."""

NAME_CHARACTERS = 255
"""Of keys, names and statuses; these are not taken from the budget."""

_FAILED = FINISHED - {"completed", "TASK_STATE_COMPLETED"}
_REASONS = {**dict.fromkeys(PARKED, "attention_reason"), **dict.fromkeys(_FAILED, "failure_reason")}

RoundCount = Annotated[int, msgspec.Meta(ge=1)]


class BranchMissingError(LookupError):
    """A task has no delegated branches, so there is none with this prefix."""


@dataclass(frozen=True, slots=True)
class Selection:
    """`execution_before` and `execution_prefix` of a request."""

    before: str | None
    prefix: str | None


def snapshot(
    task_id: str, cells: Cells, selection: Selection, budget: Budget, markers: Markers = MARKERS
) -> dict[str, Any] | None:
    """The seed's `execution` of a turn; None when its status is no readable JSON object.

    A round is an entry of the history that is not the operator's; the current status message is the last one:
    {"key": messageId, or "{task_id}:{n}" (n from 1) where there is none of its own,
     "status": "completed" once it stands in the history, the turn's state as stored while it is the current one,
     "preview": its text, "error": the beginning of that text when the turn failed with it, else null,
     "timing": null, since it is not stored, "call_count", "calls": at most CALLS,
     "truncated": whether some text of it or of its calls is left out}.
    A call stands in the first round that mentions its id; what later rounds say of it is shown there:
    {"key": toolCallId, or "{round key}:{n}", "name",
     "status": its phase as stored (started, completed, failed), else "completed" with a result, "unfinished" without,
     "preview": its result, as JSON unless it is text, or null, "error": likewise}.

    Texts are taken from the budget, the newest first: after the selected turn's, before the neighbours'.

    Raises BranchMissingError for any prefix, CursorError for a `before` that belongs to no page of this turn.
    """
    status = read_status(cells.status)
    if status is not None and selection.prefix is not None:
        raise BranchMissingError(selection.prefix)
    bound_to = ("execution", plain(task_id), selection.prefix or "")
    before = None if selection.before is None else decode_cursor(selection.before, bound_to, RoundCount)
    if status is None:
        return None
    rounds = _rounds(plain(task_id), read_history(cells.history), status, markers)
    # rounds are only ever added at the end, so their number stays a place
    end = len(rounds) if before is None else min(before, len(rounds))
    start = max(0, end - ROUNDS)
    reason, is_cut = budget.take(plain(_reason(status, markers)))
    shown = [_shown_round(each, budget) for each in reversed(rounds[start:end])]
    return {
        "turn_public_id": plain(task_id),
        "variant_public_id": plain(task_id),
        "active": True,
        "status": _name(status.state),
        "run_public_id": plain(task_id),
        "run_status": _name(status.state),
        **({_REASONS[status.state]: reason} if reason else {}),
        "rounds": shown[::-1],
        "pagination": {"next_before": encode_cursor(bound_to, start) if start else None, "has_older": start > 0},
        "branches": [],
        "truncated": is_cut or any(each["truncated"] for each in shown),
    }


@dataclass(slots=True)
class _Call:
    key: str
    name: str = ""
    phase: str = ""
    result: Any = None
    error: Any = None

    def learn(self, payload: dict[str, Any]) -> None:
        """Take over what an entry says of the call."""
        name, phase = payload.get("name"), payload.get("phase")
        self.name = name if isinstance(name, str) and name else self.name
        if isinstance(phase, str) and not (phase == "started" and self.phase):
            self.phase = phase or self.phase
        self.result = payload.get("result", self.result)
        self.error = payload.get("error", self.error)

    @property
    def status(self) -> str:
        return self.phase or ("unfinished" if self.result is None else "completed")


@dataclass(slots=True)
class _Round:
    key: str
    text: str
    status: str = "completed"
    has_failed: bool = False
    calls: list[_Call] = field(default_factory=list)


def _rounds(task_id: str, history: Iterable[Message], status: Status, markers: Markers) -> list[_Round]:
    """All rounds of a turn, the oldest first."""
    entries = [*history, *([status.message] if status.message else [])]
    rounds: list[_Round] = []
    calls: dict[str, _Call] = {}
    keys: set[str] = set()
    for number, entry in enumerate((each for each in entries if not each.by_operator), start=1):
        own = bool(entry.id) and len(entry.id) <= NAME_CHARACTERS and entry.id not in keys
        each = _Round(entry.id if own else f"{task_id}:{number}", entry.text)
        keys.add(each.key)
        if entry is status.message:
            each.status, each.has_failed = status.state, status.state in _FAILED
        for payload in _call_payloads(entry, markers):
            _call(payload, each, calls).learn(payload)
        rounds.append(each)
    return rounds


def _call(payload: dict[str, Any], mentioned_in: _Round, known: dict[str, _Call]) -> _Call:
    """The call that a payload speaks of, which is new when its id is."""
    call_id = payload.get("toolCallId")
    if not isinstance(call_id, str) or not call_id:
        call_id = f"{mentioned_in.key}:{len(mentioned_in.calls) + 1}"
    if call_id not in known:
        known[call_id] = _Call(call_id)
        mentioned_in.calls.append(known[call_id])
    return known[call_id]


def _call_payloads(entry: Message, markers: Markers) -> list[dict[str, Any]]:
    """What an entry says of tool calls: in its metadata, in that of its parts, in data parts of their shape."""
    found = _under(entry.metadata, markers)
    for part in entry.parts:
        found += _under(part.metadata, markers)
        data = members(part.data)
        if isinstance(data.get("toolCallId"), str) and ("name" in data or "phase" in data):
            found.append(data)
    return dicts(found)


def _under(metadata: msgspec.Raw, markers: Markers) -> list[Any]:
    return [payload for name, payload in members(metadata).items() if name in markers.tool_calls]


def _reason(status: Status, markers: Markers) -> str:
    """Why a turn waits or has failed: the text of its message, else what its pause asks; "" in any other state."""
    if status.state not in _REASONS or status.message is None:
        return ""
    return status.message.text or next(_questions(status.message, markers), "")


def _questions(message: Message, markers: Markers) -> Iterator[str]:
    for part in message.parts:
        if part.is_one_of(markers.pauses):
            pause = members(part.data)
            yield from (text for name in ("question", "title") if isinstance(text := pause.get(name), str) and text)


def _shown_round(shown: _Round, budget: Budget) -> dict[str, Any]:
    """A round as it is answered; what it says comes before what its calls say, the newest call first."""
    preview, is_cut = budget.take(plain(shown.text), FIELD_CHARACTERS)
    error, error_is_cut = _preview(shown.text if shown.has_failed and shown.text else None, budget)
    calls = [_shown_call(call, budget) for call in reversed(shown.calls[:CALLS])]
    return {
        "key": _name(shown.key),
        "status": _name(shown.status),
        "preview": preview,
        "error": error,
        "timing": None,
        "call_count": len(shown.calls),
        "calls": [call for call, _ in calls[::-1]],
        "truncated": is_cut or error_is_cut or any(call_is_cut for _, call_is_cut in calls),
    }


def _shown_call(call: _Call, budget: Budget) -> tuple[dict[str, Any], bool]:
    preview, is_cut = _preview(call.result, budget)
    error, error_is_cut = _preview(call.error, budget)
    shown = {"key": _name(call.key), "name": _name(call.name), "status": _name(call.status)}
    return {**shown, "preview": preview, "error": error}, is_cut or error_is_cut


def _preview(said: Any, budget: Budget) -> tuple[str | None, bool]:
    if said is None:
        return None, False
    return budget.take(plain(_as_text(said)), CALL_CHARACTERS)


def _as_text(said: Any) -> str:
    if isinstance(said, str):
        return said
    try:
        return json.dumps(said, ensure_ascii=False)
    except RecursionError:
        return ""


def _name(text: str) -> str:
    return plain(beginning(text, NAME_CHARACTERS))
