"""What a stored turn says: prompt, steers and answer, and the entries they come from; no database, and nothing raises.

The shapes are those of contract 5a, in the spelling of either SDK. A cell that is no strict JSON says nothing.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from sidecar.search.cuts import beginning
from sidecar.wire import artifacts_text, dicts, load_odd_json

T = TypeVar("T")

FIELDS = ("title", "steers", "prompt", "content")
TITLE_CHARACTERS = 80

_OPERATOR = frozenset({"ROLE_USER", "user"})


@dataclass(frozen=True, slots=True)
class Markers:
    """The names under which producers store what is no plain text: media types of data parts, keys of metadata."""

    steers: frozenset[str] = frozenset({"application/vnd.protolabs.steer-consumed-v1+json"})
    pauses: frozenset[str] = frozenset({"application/vnd.protolabs.hitl-v1+json"})
    tool_calls: frozenset[str] = frozenset({"https://proto-labs.ai/a2a/ext/tool-call-v1"})


MARKERS = Markers()


@dataclass(frozen=True, slots=True)
class Cells:
    """The stored JSON texts of one turn; None is SQL NULL, or not fetched."""

    status: bytes | None
    artifacts: bytes | None
    history: bytes | None


@dataclass(frozen=True, slots=True)
class Texts:
    """What a person can read of one turn; lone surrogates may be among it.

    prompt: the first operator message as a person saw it, "" without words; None when there is none, or no bubble.
    steers: later interjections in the same row, in the order of the entries. content: `text` of the turns route.
    incognito: the whole turn is left out of search, history and chat. The ids are those that producers gave the
    prompt and the steers, "" for none; what is said does not differ by them.
    """

    prompt: str | None
    steers: tuple[str, ...]
    content: str
    incognito: bool
    prompt_id: str = dataclasses.field(default="", compare=False)
    steer_ids: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def title(self) -> str | None:
        """The first line of the prompt that is not blank, at most TITLE_CHARACTERS long; None when there is none."""
        line = next((line for line in (self.prompt or "").splitlines() if line.strip()), "")
        return beginning(line.strip(), TITLE_CHARACTERS).strip() or None

    def field(self, name: str) -> str:
        """The text of one of FIELDS; "" when absent."""
        if name == "steers":
            return "\n\n".join(self.steers)
        return {"title": self.title, "prompt": self.prompt, "content": self.content}[name] or ""


class Part(msgspec.Struct, gc=False):
    """A part, whose text alone is text; data and metadata stay JSON until somebody asks (`value`)."""

    text: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")
    media_type: str | None = msgspec.field(default=None, name="mediaType")
    metadata: msgspec.Raw = msgspec.Raw(b"null")

    def is_one_of(self, media_types: frozenset[str]) -> bool:
        """1.x has a field for it, 0.3 had none: producers of both write `mimeType` into the metadata."""
        return self.media_type in media_types or _text(members(self.metadata).get("mimeType")) in media_types


class Message(msgspec.Struct, gc=False):
    """An entry of a turn: a message of its history, or that of its status."""

    id: str = msgspec.field(default="", name="messageId")
    role: str = ""
    parts: list[Part] = msgspec.field(default_factory=list)
    metadata: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def by_operator(self) -> bool:
        return self.role in _OPERATOR

    @property
    def text(self) -> str:
        """Its text parts, joined with nothing."""
        return "".join([part.text for part in self.parts])


class Status(msgspec.Struct, gc=False):
    """A turn's state as stored, "" when absent, and the message that is not in its history yet."""

    state: str = ""
    message: Message | None = None


_decode_status = msgspec.json.Decoder(Status).decode
_decode_history = msgspec.json.Decoder(list[Message]).decode
_decode_value = msgspec.json.Decoder().decode


def read_texts(cells: Cells, markers: Markers = MARKERS) -> Texts:
    """The texts of a turn, whatever its bytes are."""
    status = read_status(cells.status)
    entries = read_history(cells.history)
    if status is not None and status.message is not None:
        entries.append(status.message)
    operators = [entry for entry in entries if entry.by_operator]
    steers = list(_steers(entries, markers))
    return Texts(
        prompt=_shown(operators[0]) if operators else None,
        steers=tuple(text for _, text in steers),
        content=artifacts_text(cells.artifacts),
        incognito=any(_is_true(members(entry.metadata).get("incognito")) for entry in operators),
        prompt_id=operators[0].id if operators else "",
        steer_ids=tuple(key for key, _ in steers),
    )


def read_status(cell: bytes | None) -> Status | None:
    """The stored status; None when it is no JSON object."""
    return _read(cell, _decode_status, _odd_status)


def read_history(cell: bytes | None) -> list[Message]:
    """The stored history, oldest first."""
    return _read(cell, _decode_history, lambda stored: list(map(_odd_message, dicts(stored)))) or []


def value(stored: msgspec.Raw) -> Any:
    """What a stored JSON text says; None for what no library reads."""
    try:
        return _decode_value(stored)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return json.loads(bytes(stored), parse_int=float)
    except (ValueError, RecursionError):
        return None


def members(stored: msgspec.Raw) -> dict[str, Any]:
    """The members of a stored JSON object; none of anything else."""
    found = value(stored)
    return found if isinstance(found, dict) else {}


def _steers(entries: list[Message], markers: Markers) -> Iterator[tuple[str, str]]:
    """Each interjection once, by id and text, though its marker and its message may both be stored, or one message
    twice.
    """
    seen: set[str] = set()
    prompt_is_past = False
    for entry in entries:
        for key, text in _said(entry, markers):
            is_new = not key or key not in seen
            seen.add(key)
            if is_new and text and (prompt_is_past or not entry.by_operator):
                yield key, text
        prompt_is_past |= entry.by_operator


def _said(entry: Message, markers: Markers) -> Iterator[tuple[str, str | None]]:
    """What the operator said in an entry: the id it has wherever it is stored, and the text that was shown."""
    if entry.by_operator:
        yield entry.id, _shown(entry)
        return
    for part in entry.parts:
        if part.is_one_of(markers.steers):
            for item in dicts(members(part.data).get("items")):
                yield _text(item.get("id")), _text(item.get("text"))


def _shown(message: Message) -> str | None:
    """An operator's message as a person saw it; None when it was no bubble."""
    metadata = members(message.metadata)
    if _is_true(metadata.get("hidden")) or _is_true(metadata.get("origin")):
        return None
    display = metadata.get("display")
    return display if isinstance(display, str) else message.text


def _is_true(flag: Any) -> bool:
    """As in a browser, where an empty list or object is true."""
    return isinstance(flag, list | dict) or bool(flag)


def _text(member: Any) -> str:
    return member if isinstance(member, str) else ""


def _read(cell: bytes | None, decode: Callable[[str], T], decode_odd: Callable[[Any], T]) -> T | None:
    """What the SDK writes in one pass that builds only what is asked for; anything else by the standard library."""
    try:
        return decode((cell or b"").decode())
    except UnicodeDecodeError:
        return None
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return decode_odd(load_odd_json(cell or b""))
    except (ValueError, RecursionError):
        return None


def _odd_status(stored: Any) -> Status | None:
    if not isinstance(stored, dict):
        return None
    message = stored.get("message")
    return Status(_text(stored.get("state")), _odd_message(message) if isinstance(message, dict) else None)


def _odd_message(stored: dict[str, Any]) -> Message:
    parts = [_odd_part(part) for part in dicts(stored.get("parts"))]
    return Message(_text(stored.get("messageId")), _text(stored.get("role")), parts, _raw(stored.get("metadata")))


def _odd_part(stored: dict[str, Any]) -> Part:
    media_type = _text(stored.get("mediaType"))
    return Part(_text(stored.get("text")), _raw(stored.get("data")), media_type, _raw(stored.get("metadata")))


def _raw(member: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(member).encode())
