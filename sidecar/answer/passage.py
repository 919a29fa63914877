"""A passage as retrieval finds it, a model is told it and an answer cites it; it knows no database."""

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of one field of a turn: characters `start` to `end` of its text, lone surrogates replaced.

    `truncated`: it is not the whole field. `title` is the session's, `state` spelled as stored, `time` RFC 3339.
    """

    text: str
    truncated: bool
    title: str | None
    state: str
    time: str | None
    score: int
    session_id: str
    task_id: str
    field: str
    position: int
    start: int
    end: int

    def citation(self) -> Json:
        """Where it stands."""
        names = ("session_id", "task_id", "field", "position", "start", "end")
        return {name: getattr(self, name) for name in names}

    def body(self) -> Json:
        """As the answers carry it."""
        names = ("text", "truncated", "title", "state", "time", "score")
        return {**{name: getattr(self, name) for name in names}, "citation": self.citation()}
