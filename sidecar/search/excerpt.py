"""The piece of a text that shows why it was found; plain original text, cut where no visible character breaks.

One place is looked for, and the text is read in bounded chunks, once: call it in a worker thread on long text.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from sidecar.search.characters import LETTERS, MARKS
from sidecar.search.cuts import first_cut, last_cut
from sidecar.search.words import HAN, in_lower_case

MAX_CHARACTERS = 500

_CHUNK = 2**14
_PLACES = 1000
_TELLING = 32  # as many characters of a lexeme as are compared
_WORD = re.compile(rf"(?!{HAN})[0-9A-Za-z{LETTERS}]")
_WORD_START = rf"(?:(?<![0-9A-Za-z{LETTERS}{MARKS}])|(?<={HAN}))"


def excerpt(text: str, wanted: frozenset[str]) -> tuple[str, bool]:
    """At most MAX_CHARACTERS of the text, and whether that is less than the whole (see `span`)."""
    start, end = span(text, wanted, MAX_CHARACTERS)
    return text[start:end], end - start < len(text)


def span(text: str, wanted: frozenset[str], most: int) -> tuple[int, int]:
    """Where a piece of at most so many characters begins and ends: all of a text that is no longer.

    It is centred on the longest of the wanted lexemes that is seen in the text, at its first place: a Chinese lexeme
    anywhere, another one where a word begins with it. When none is, it is the beginning. Of lexemes that are seen a
    thousand times before the longest one is, the longest so far will do.
    """
    if len(text) <= most:
        return 0, len(text)
    begin, end = _place(text, _finder(wanted)) if wanted else (0, 0)
    start = max(0, min(begin, (begin + end - most) // 2, len(text) - most))
    start = first_cut(text, start, min(start + most, len(text)))
    return start, last_cut(text, start, min(start + most, len(text)))


class _Finder(NamedTuple):
    """A pattern of spellings, and which of them tells more: 0 is best."""

    pattern: re.Pattern[str]
    ranks: dict[str, int]

    def places(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Rank, beginning and end of what stands in the text; what stands across two chunks comes twice."""
        for chunk in range(0, len(text), _CHUNK):
            before = min(chunk, 1)  # the character that decides whether a word begins with the chunk
            piece = in_lower_case(text[chunk - before : chunk + _CHUNK + _TELLING])
            for found in self.pattern.finditer(piece, before):
                yield self.ranks[found[0]], chunk - before + found.start(), chunk - before + found.end()


def _place(text: str, finder: _Finder) -> tuple[int, int]:
    """Where the best spelling stands first; (0, 0) when none does."""
    best = (len(finder.ranks), 0, 0)
    for found in islice(finder.places(text), _PLACES):
        if found[0] < best[0]:
            best = found
        if best[0] == 0:
            break
    return best[1:]


@lru_cache(maxsize=64)
def _finder(wanted: frozenset[str]) -> _Finder:
    ranks: dict[str, int] = {}
    for rank, lexeme in enumerate(sorted(wanted, key=lambda lexeme: (-len(lexeme), lexeme))):
        for spelling in _spellings(lexeme):
            ranks.setdefault(spelling[:_TELLING], rank)
    words = [each for each in ranks if _WORD.match(each)]
    others = [each for each in ranks if not _WORD.match(each)]
    # most places are ruled out by their one character
    first = "".join({re.escape(each[0]) for each in ranks})
    pattern = f"(?=[{first}])(?:{_WORD_START}{_any_of(words)}|{_any_of(others)})"
    return _Finder(re.compile(pattern), ranks)


def _spellings(lexeme: str) -> set[str]:
    """A lexeme is composed where the text may not be, and Snowball turns a final y into i."""
    composed = {lexeme, lexeme[:-1] + "y"} if len(lexeme) > 2 and lexeme.isascii() and lexeme[-1] == "i" else {lexeme}
    return composed | {unicodedata.normalize("NFD", each) for each in composed}


def _any_of(spellings: Sequence[str]) -> str:
    """The longest of these, as a regular expression that tries no common beginning twice."""
    if len(spellings) == 1:
        return re.escape(spellings[0])
    tails: dict[str, list[str]] = {}
    for spelling in spellings:
        tails.setdefault(spelling[:1], []).append(spelling[1:])
    may_end_here = tails.pop("", None)
    branches = "|".join(re.escape(head) + _any_of(tail) for head, tail in tails.items()) or "(?!)"
    return f"(?:{branches}){'?' if may_end_here else ''}"
