"""Where a text may be cut so that no visible character breaks; it knows nothing of words and limits.

A cut never parts a base from its combining marks, the letters of a Hangul syllable, an emoji from its modifier,
variation selector, tags or what a zero width joiner joins, the two letters of a flag, the halves of a surrogate pair.
"""

import unicodedata

_JOINER = "\u200d"
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))
# What belongs to the character before it without being a combining mark, by first and last.
_EXTENDING = (
    ("\u1160", "\u11ff"),  # vowels and finals of Hangul syllables
    ("\u200c", _JOINER),
    ("\ud7b0", "\ud7ff"),
    ("\uff9e", "\uff9f"),  # half-width marks of Katakana
    ("\U0001f3fb", "\U0001f3ff"),  # skin tones
    ("\U000e0020", "\U000e007f"),  # tags of regional flags
)


def last_cut(text: str, start: int, end: int) -> int:
    """The last place up to `end` where the text may be cut; `start` when there is none after it."""
    while start < end and not _may_cut(text, end):
        end -= 1
    return end


def first_cut(text: str, start: int, end: int) -> int:
    """The first place from `start` on where the text may be cut; `end` when there is none before it."""
    while start < end and not _may_cut(text, start):
        start += 1
    return start


def beginning(text: str, at_most: int) -> str:
    """The text, or as much of its beginning as `at_most` characters (code points) hold."""
    return text if len(text) <= at_most else text[: last_cut(text, 0, at_most)]


def _may_cut(text: str, at: int) -> bool:
    if not 0 < at < len(text):
        return True
    before, after = text[at - 1], text[at]
    if before == _JOINER or _extends(after):
        return False
    if before in _FLAG_LETTERS and after in _FLAG_LETTERS:
        return (at - len(text[:at].rstrip(_FLAG_LETTERS))) % 2 == 0
    return not ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")


def _extends(character: str) -> bool:
    if character < "\u0300":
        return False
    return unicodedata.category(character)[0] == "M" or any(first <= character <= last for first, last in _EXTENDING)
