"""What is shown of one hit, with the messages beside it that its model has not seen (seed 002); it reads no store."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sidecar.search.audit import Selected
from sidecar.search.evidence import Evidence, Json, Key, Message
from sidecar.search.neighbours import Side
from sidecar.search.recall_queries import Run
from sidecar.wire import plain

NEIGHBOURS = 2
"""How many messages are shown on each side of a hit (seed 002)."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Tells what the run's model has not before it, and keeps which messages were left out since it has."""

    run: Run
    of_current_turn: set[Key] = field(default_factory=set)
    loaded: set[Key] = field(default_factory=set)

    def holds(self, message: Message) -> bool:
        """Whether it may be shown."""
        if message.turn == self.run.current_turn:
            self.of_current_turn.add(message.key)
        elif message.id in self.run.loaded:
            self.loaded.add(message.key)
        else:
            return True
        return False

    def exclusions(self) -> dict[str, int]:
        """How many were left out."""
        return {"current_turn": len(self.of_current_turn), "loaded": len(self.loaded)}


@dataclass(slots=True)
class Reach:
    """The messages on one side of a hit, the nearest first; `side` is that of the turn that was looked at last."""

    side: Side
    messages: list[Message] = field(default_factory=list)
    has_ended: bool = False

    @property
    def is_short(self) -> bool:
        """It has too few messages, and there may be more."""
        return not self.has_ended and len(self.messages) < NEIGHBOURS

    def take(self, some: Sequence[Message], unseen: Unseen) -> None:
        """Adds as many of a turn's messages as are wanted."""
        for message in some if self.side.newer else reversed(some):
            if len(self.messages) < NEIGHBOURS and unseen.holds(message):
                self.messages.append(message)

    def go_on(self, seq: int | None) -> None:
        """The next turn was looked at, or there is none."""
        if seq is None:
            self.has_ended = True
        else:
            self.side = Side(seq, self.side.newer)


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found, in its turn, with what stands before and after it in the conversation."""

    evidence: Evidence
    before: Reach
    after: Reach

    @staticmethod
    def of(evidence: Evidence, unseen: Unseen) -> "Hit":
        """With what stands beside it in its own turn."""
        seq, ids = evidence.candidate.seq, [each.id for each in evidence.messages]
        at = ids.index(evidence.hit.id)
        hit = Hit(evidence, Reach(Side(seq, newer=False)), Reach(Side(seq, newer=True)))
        hit.before.take(evidence.messages[:at], unseen)
        hit.after.take(evidence.messages[at + 1 :], unseen)
        return hit

    def selected(self) -> Selected:
        """As it is recorded."""
        before = tuple(each.key for each in reversed(self.before.messages))
        after = tuple(each.key for each in self.after.messages)
        reasons = self.evidence.candidate.reasons
        return Selected(self.evidence.hit.key, before, after, {**reasons.body(), "score": reasons.score})

    def body(self, selected: Selected) -> Json:
        """As it is answered, with those of its neighbours that are still selected."""
        named = {each.key: each.body() for each in (*self.before.messages, *self.after.messages)}
        return {
            "conversation_public_id": plain(self.evidence.candidate.context_id),
            **self.evidence.hit.body(),
            "reasons": {**selected.reasons, "terms": sorted(self.evidence.terms)},
            "before": [named[key] for key in selected.before],
            "after": [named[key] for key in selected.after],
        }
