"""Turn text into lexemes, for documents and queries on both databases alike; it reads no database and no settings.

Everything is plain computation in linear time and safe in threads: call it in a worker thread, never on the event loop.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from hashlib import sha256
from importlib.metadata import version

import rjieba
from snowballstemmer.english_stemmer import EnglishStemmer

from sidecar.search import characters
from sidecar.search.markup import pieces
from sidecar.search.scanner import tokens

MAX_BYTES = 2046
"""Longer lexemes are dropped, as PostgreSQL does; UTF-8 bytes."""

MOST_TERMS = 256
"""A question's further terms are left out."""

HAN = (
    "[\u2e80-\u2e99\u2e9b-\u2ef3\u2f00-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufa6d\ufa70-\ufad9\U00020000-\U0002a6df\U0002a700-\U0002ebe0\U0002f800-\U0002fa1d\U00030000-\U000323af]"
)
"""One character of what the segmenter is given, as a regular expression."""

_RULES = "1"  # raise it when the same text gives other lexemes than before
_MAX_STEMMED_BYTES = 1000
_MEMO_CHARACTERS = 64
_HAN = re.compile(HAN + "++")
# Latin, and the punctuation of Latin and Chinese: NFC joins none of these to what stands before.
_CUT = re.compile("[\0-\u02ff\u2000-\u206f\u3000-\u3003\uff01-\uff5e]")
_CHUNK = 2**14
_SURROGATE = re.compile("[\ud800-\udfff]")
_LOWER = str.maketrans(characters.UPPER, characters.LOWER)
_STEMMED = {"asciiword", "word", "asciihword", "hword", "hword_asciipart", "hword_part"}
_STOP_LIST = (
    "a about above after again against all am an and any are as at be because been before being below between both "
    "but by can did do does doing don down during each few for from further had has have having he her here hers "
    "herself him himself his how i if in into is it its itself just me more most my myself no nor not now of off on "
    "once only or other our ours ourselves out over own s same she should so some such t than that the their theirs "
    "them themselves then there these they this those through to too under until up very was we were what when "
    "where which while who whom why will with you your yours yourself yourselves"
)
_STOP_WORDS = frozenset(_STOP_LIST.split())
# Words whose stems other versions of Snowball give differently.
_CANARIES = {
    "university": "univers",
    "evening": "even",
    "added": "ad",
    "geologist": "geologist",
    "pasted": "past",
    "人工智能": "人工 人工智能 智能",
}


class AnalyzerMismatchError(RuntimeError):
    """An installed package gives other lexemes than the release this sidecar was made for: an index would not match."""


def lexemes(text: str) -> frozenset[str]:
    """The distinct lexemes of one field, each at most MAX_BYTES long; any `str` is accepted."""
    return frozenset(_lexemes(text))


def terms(text: str) -> tuple[str, ...]:
    """The first MOST_TERMS distinct lexemes of a question, by the first word between white space that has them.

    Of one such word those that are Chinese come first.
    """
    found = lexemes(text)
    in_order = (lexeme for word in dict.fromkeys(text.split()) for lexeme in _lexemes(word) if lexeme in found)
    # a word by itself may look like an unfinished tag, which hides what it says
    return tuple(dict.fromkeys([*in_order, *sorted(found)]))[:MOST_TERMS]


def query_lexemes(text: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """The lexemes that a field must hold all, and the query's terms (between white space) that add none of them."""
    found = lexemes(text)
    return found, tuple(term for term in dict.fromkeys(text.split()) if found.isdisjoint(lexemes(term)))


def in_lower_case(text: str) -> str:
    """The text as lexemes are spelled, each character for itself as PostgreSQL does it: the length stays the same."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def check() -> None:
    """Raises AnalyzerMismatchError, saying what to install, when the analyzer gives other lexemes than it should."""
    for word, expected in _CANARIES.items():
        if (actual := " ".join(sorted(lexemes(word)))) != expected:
            raise AnalyzerMismatchError(
                f"{word!r} becomes {actual!r} instead of {expected!r} with {', '.join(_packages())}; "
                "install the versions that the extra a2a-session-sidecar[search] names"
            )


@cache
def fingerprint() -> str:
    """What the lexemes of a text depend on, as 16 hexadecimal digits; lexemes of another fingerprint are outdated."""
    tables = [getattr(characters, name) for name in ("LETTERS", "MARKS", "SPACES", "UPPER", "LOWER")]
    canaries = [lexeme for word in _CANARIES for lexeme in sorted(lexemes(word))]
    parts = [_RULES, unicodedata.unidata_version, *_packages(), _HAN.pattern, *tables, *sorted(_STOP_WORDS), *canaries]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _packages() -> list[str]:
    return [f"{name} {version(name)}" for name in ("rjieba", "snowballstemmer")]


def _lexemes(text: str) -> dict[str, None]:
    """The same in an order that hangs on the text alone: as they come, Chinese ones first."""
    found: dict[str, None] = {}
    others = []
    for chunk in map(_normalized, _chunks(text)):
        for run in _HAN.finditer(chunk):
            found.update(dict.fromkeys(filter(_fits, rjieba.cut_for_search(run[0]))))
        others.append(_HAN.sub(" ", chunk))
    for piece in pieces("".join(others)):
        found.update(_remembered(piece) if len(piece) <= _MEMO_CHARACTERS else _piece_lexemes(piece))
    return found


def _chunks(text: str) -> Iterator[str]:
    """Cut the text where neither NFC nor a Han run is cut, so that no call of a C function stops other threads long."""
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + _CHUNK)
        end = cut.start() if cut else len(text)
        yield text[start:end]
        start = end


def _normalized(text: str) -> str:
    """NFC without NUL and surrogates."""
    text = text.replace("\0", " ")
    if text.isascii():
        return text
    text = _SURROGATE.sub("\ufffd", text)
    return unicodedata.normalize("NFC", _many_marks().sub(_in_canonical_order, text))


@cache
def _many_marks() -> re.Pattern[str]:
    """Long runs of combining marks: `unicodedata.normalize` takes quadratic time unless they are in order already."""
    marks = (mark for mark in map(chr, range(0x300, 0x20000)) if unicodedata.combining(_decomposed(mark)[0]))
    return re.compile(f"[{''.join(marks)}]{{32,}}+")


def _in_canonical_order(marks: re.Match[str]) -> str:
    return "".join(sorted("".join(map(_decomposed, marks[0])), key=unicodedata.combining))


def _decomposed(character: str) -> str:
    return unicodedata.normalize("NFD", character)


def _piece_lexemes(piece: str) -> dict[str, None]:
    return {lexeme: None for kind, token in dict.fromkeys(tokens(piece)) if (lexeme := _lexeme(kind, token))}


_remembered = lru_cache(maxsize=2**16)(_piece_lexemes)


def _lexeme(kind: str, token: str) -> str | None:
    """What PostgreSQL's configuration `english` makes of a token; None for stop words and what is too long."""
    if not _fits(token):
        return None
    lowered = in_lower_case(token)
    if kind in _STEMMED and len(token.encode()) <= _MAX_STEMMED_BYTES:
        if lowered in _STOP_WORDS:
            return None
        lowered = EnglishStemmer().stemWord(lowered)
    return lowered if _fits(lowered) else None


def _fits(lexeme: str) -> bool:
    return len(lexeme) * 4 <= MAX_BYTES or len(lexeme.encode()) <= MAX_BYTES
