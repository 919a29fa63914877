"""Turns to the messages that an agent is shown of them, found or beside what was found (seed 002); no database.

A message is the prompt of a turn, one of its steers, or its answer. Run this in a worker thread: texts may be long.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from sidecar.search import words
from sidecar.search.cuts import beginning
from sidecar.search.entries import Texts, read_texts
from sidecar.search.excerpt import span
from sidecar.search.index import cells_of
from sidecar.search.ranked import Candidate
from sidecar.search.service import Found
from sidecar.turns import key_of
from sidecar.wire import iso, plain, valid_session_id

HIT_CHARACTERS = 1000
NEIGHBOUR_CHARACTERS = 250

Json = dict[str, Any]
Key = tuple[str, str]
"""A turn's id and a message's: what tells a run's messages apart."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a turn; `field` is where it was found, and its text is cut already."""

    turn: str
    id: str
    field: str
    time: str | None
    text: str
    truncated: bool

    @property
    def key(self) -> Key:
        return self.turn, self.id

    def body(self) -> Json:
        """As the answers carry it."""
        return {
            "turn_public_id": self.turn,
            "message_id": self.id,
            "time": self.time,
            "speaker": "you" if self.field == "content" else "requester",
            "text": self.text,
            "truncated": self.truncated,
        }


class _Part(NamedTuple):
    """A message with its whole text."""

    field: str
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A field in which something was found: the message to be shown for it, and those of its turn in order, as its
    neighbours. terms: those that the field holds.
    """

    candidate: Candidate
    terms: frozenset[str]
    hit: Message
    messages: tuple[Message, ...]


def evidence(found: Found, may_be_shown: Callable[[Message], bool]) -> Evidence | None:
    """What a field that was found says; of its steers the first that may be shown, by how many terms each holds."""
    texts, row, field = found.texts, found.row, found.candidate.field
    parts = [part for part in _parts(texts, row.id) if part.field == field]
    if field == "steers":
        matched = {part: len(found.terms & words.lexemes(part.text)) for part in parts}
        parts = sorted((part for part in parts if matched[part]), key=lambda part: -matched[part])
    hit = next(filter(may_be_shown, (_excerpt(row, part, found.terms) for part in parts)), None)
    return None if hit is None else Evidence(found.candidate, found.terms, hit, _messages(row, texts))


def _excerpt(row: Any, part: _Part, terms: frozenset[str]) -> Message:
    start, end = span(part.text, terms, HIT_CHARACTERS)
    return _message(row, part, part.text[start:end])


def by_turn(rows: Iterable[Any]) -> dict[int, tuple[Message, ...]]:
    """The messages of rows with their cells, by the turns' places in the index."""
    return {row.seq: _messages(row, read_texts(cells_of(row))) for row in rows}


def _messages(row: Any, texts: Texts) -> tuple[Message, ...]:
    """Those of one turn in order, by their beginnings; none of an incognito turn."""
    if texts.incognito:
        return ()
    return tuple(_message(row, part, beginning(part.text, NEIGHBOUR_CHARACTERS)) for part in _parts(texts, row.id))


def _message(row: Any, part: _Part, piece: str) -> Message:
    time, truncated = iso(key_of(row).activity), len(piece) < len(part.text)
    return Message(plain(row.id), part.id, part.field, time, plain(piece), truncated)


def _parts(texts: Texts, task_id: str) -> Iterator[_Part]:
    """Each message has its producer's id, where there is one that no other of the turn has, else one of its place."""
    said = [("prompt", 0, texts.prompt_id, texts.prompt or "")]
    said += [("steers", number, *steer) for number, steer in enumerate(zip(texts.steer_ids, texts.steers, strict=True))]
    said += [("content", 0, "", texts.content)]
    of_places = [f"{plain(task_id)}:{field}:{number}" for field, number, _, _ in said]
    taken = set(of_places)
    for of_place, (field, _, given, text) in zip(of_places, said, strict=True):
        if text:
            is_own = valid_session_id(given) and given not in taken
            taken.add(given)
            yield _Part(field, given if is_own else of_place, text)
