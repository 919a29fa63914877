"""How many characters of text a history page may carry, and which turn gets them first; it reads no turn.

Seed 000: 2,000 characters a field and 12,000 a page, counted as code points. Rows stay, even when no text is left.
"""

from sidecar.search.cuts import beginning

FIELD_CHARACTERS = 2_000
PAGE_CHARACTERS = 12_000


class Budget:
    """What is left of a page's characters; every text of the page, execution previews included, is taken from it."""

    def __init__(self, characters: int = PAGE_CHARACTERS) -> None:
        self.left = characters
        self.truncated = False
        """Whether any text so far was not given whole: the page's flag."""

    def take(self, text: str, at_most: int = FIELD_CHARACTERS) -> tuple[str, bool]:
        """As much of the text's beginning as there is room for, and whether some of it was left out."""
        taken = beginning(text, min(at_most, self.left))
        self.left -= len(taken)
        truncated = len(taken) < len(text)
        self.truncated |= truncated
        return taken, truncated


def order(count: int, target: int | None, newest_first: bool, selected: int | None = None) -> list[int]:
    """In which order the turns of a window (0 is the oldest) take their text.

    With a target: the target, then its nearest neighbours, the newer one of two. Without: newest or oldest first.
    `selected` is the turn whose execution is shown: it precedes the others, and its previews follow it.
    """
    if target is not None:
        return sorted(range(count), key=lambda place: (abs(place - target), -place))
    places = sorted(range(count), reverse=newest_first)
    return sorted(places, key=lambda place: place != selected)
