"""Rows with their cells to what an envelope shows of them (seed 000); no database. Run it in a worker thread."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidecar.search import words
from sidecar.search.budget import FIELD_CHARACTERS, Budget, order
from sidecar.search.entries import Cells, read_texts
from sidecar.search.excerpt import excerpt
from sidecar.search.execution import Selection, snapshot
from sidecar.search.history import TargetMissingError, Window
from sidecar.search.index import cells_of, marker_of
from sidecar.search.keyword import Hit
from sidecar.search.queries import HistoryQuery
from sidecar.turns import moment
from sidecar.wire import CELLS, iso, plain
from tombstones.state import naive_utc, read_status

TEXT_FIELDS = ("prompt", "steers", "content")
_KEPT_CHARACTERS = FIELD_CHARACTERS + 1  # tells that there is more


@dataclass(frozen=True, slots=True)
class Told:
    """One turn of a window: its keys in the answer, the beginnings of its texts, its cells for the execution.

    left_out: the cells that were too large to be read, whose text is missing.
    """

    seq: int
    keys: dict[str, Any]
    texts: dict[str, str]
    cells: Cells
    left_out: frozenset[str]


def matches(
    rows: Iterable[Any], hits: Mapping[int, Sequence[Hit]], lexemes: frozenset[str]
) -> dict[int, dict[str, Any]]:
    """What is shown of the hits in these rows, by their places; of a row saved since, only what still holds."""
    shown: dict[int, Any] = {}
    for row in rows:
        texts = read_texts(cells_of(row))
        for hit in hits[row.seq]:
            text = texts.field(hit.field)
            was_saved = not hit.marker == row.marker == marker_of(row)
            if not was_saved or (not texts.incognito and lexemes <= words.lexemes(text)):
                shown[hit.at] = _match(hit, row, text, lexemes)
    return shown


def _match(hit: Hit, row: Any, text: str, lexemes: frozenset[str]) -> dict[str, Any]:
    piece, truncated = excerpt(text, lexemes)
    is_title = hit.field == "title"
    task_id = None if is_title else plain(hit.task_id)
    return {
        "conversation_public_id": plain(hit.context_id),
        "title": hit.title,
        "turn_public_id": task_id,
        "variant_public_id": task_id,
        "position": None if is_title else hit.position,
        "field": hit.field,
        "inherited": False,
        "excerpt": plain(piece),
        "truncated": truncated,
        "state": None if is_title else read_status(row.status_text).state,
    }


def told(rows: Iterable[Any], registered: Mapping[int, Any], *, with_cells: bool) -> dict[int, Told]:
    """The turns of these rows, by seq, but those that became incognito."""
    found = {}
    for row in rows:
        cells = cells_of(row)
        texts = read_texts(cells)
        if not texts.incognito:
            beginnings = {name: plain(texts.field(name)[:_KEPT_CHARACTERS]) for name in TEXT_FIELDS}
            kept = cells if with_cells else Cells(None, None, None)
            keys = _keys(row, registered[row.seq], has_prompt=texts.prompt is not None)
            found[row.seq] = Told(row.seq, keys, beginnings, kept, _left_out(row))
    return found


def _left_out(row: Any) -> frozenset[str]:
    unread = (name for name in CELLS if getattr(row, f"{name}_text") is None)
    return frozenset(name for name in unread if getattr(row, f"{name}_octets") is not None)


def _keys(row: Any, registered: Any, *, has_prompt: bool) -> dict[str, Any]:
    first_seen = row.created or moment(registered.first_seen)
    return {
        "public_id": plain(row.id),
        "position": registered.position,
        "kind": None if registered.kind is None else plain(registered.kind),
        "role": "user" if has_prompt else "agent",
        "status": read_status(row.status_text).state,
        "created_at": None if first_seen is None else iso(naive_utc(first_seen)),
    }


def page(turns: Sequence[Told], window: Window, query: HistoryQuery) -> dict[str, Any]:
    """The history envelope. Raises TargetMissingError when the target has gone since the window was read, and
    BranchMissingError and CursorError for the selectors of the execution.
    """
    budget = Budget()
    target = next((place for place, turn in enumerate(turns) if turn.keys["public_id"] == query.around), None)
    if query.around is not None and target is None:
        raise TargetMissingError(query.around)
    selected = None
    if query.include_execution and turns:
        selected = len(turns) - 1 if target is None else target
    shown: dict[int, dict[str, Any]] = {}
    execution = None
    for place in order(len(turns), target, query.after_position is None, selected):
        shown[place] = _turn(turns[place], budget)
        if place == selected:
            selection = Selection(query.execution_before, query.execution_prefix)
            execution = snapshot(turns[place].keys["public_id"], turns[place].cells, selection, budget)
            if execution is not None and "history" in turns[place].left_out:
                execution["truncated"] = True
    positions = [turn.keys["position"] for turn in turns]
    return {
        "conversation": {"public_id": query.conversation, "title": window.title},
        "turns": [shown[place] for place in sorted(shown)],
        "pagination": {
            "before_position": positions[0] if positions else None,
            "after_position": positions[-1] if positions else None,
            "has_older": window.has_older,
            "has_newer": window.has_newer,
        },
        "truncated": budget.truncated or any(turn.left_out for turn in turns),
        **({"execution": execution} if query.include_execution else {}),
    }


def _turn(turn: Told, budget: Budget) -> dict[str, Any]:
    taken = {name: budget.take(text) for name, text in turn.texts.items() if text}
    texts = {name: text for name, (text, _) in taken.items()}
    truncated = bool(turn.left_out) or any(is_cut for _, is_cut in taken.values())
    return {**turn.keys, "truncated": truncated, **texts}
