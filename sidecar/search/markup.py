"""Cut text into pieces without white space, tags and scripts, as PostgreSQL's default parser does; it knows no tokens.

The tokens of one piece don't depend on another piece, so each distinct piece needs to be looked at once.
"""

import re
from collections.abc import Iterator

from sidecar.search.characters import LETTERS, SPACES

_SPACE = rf"\t-\r {SPACES}"
_ALNUM = rf"0-9A-Za-z{LETTERS}"
_BLANK = re.compile(f"[{_SPACE}]++")
_GAP = re.compile(rf"[^{_ALNUM}<\-+&/]*+")  # starts no token after a blank, where "." and "~" don't start a path
_CHUNK = 2**16  # characters given to one call of a C function, which stops all other threads
_TAG_NAME = re.compile(rf"<(?:/?[A-Za-z]|[:_])[{_ALNUM}:_.\-]*+")
_DECLARATION = re.compile(r"<(?:\?x|![Dd])")
_ATTRIBUTES = re.compile(rf"[{_SPACE}#%&\-./0-9:=?A-Z_a-z~]*+")
# Where the text ends inside of a quote and with an escaped character, PostgreSQL drops it from that tag on.
_QUOTED = re.compile(
    r"""  "(?:[^"\\]|\\.(?!\Z))*+(?:"|(\\.\Z))  |  '(?:[^'\\]|\\.(?!\Z))*+(?:'|(\\.\Z))  """, re.DOTALL | re.VERBOSE
)
_MUTES = {"<script": True, "<style": True, "</script": False, "</style": False}


def pieces(text: str) -> Iterator[str]:
    """The pieces by first appearance, most repetitions left out; in linear time whatever the text."""
    tags, muted, joined, position = _Tags(text), False, True, 0
    while position < len(text):
        end = text.find("<", position)
        end = len(text) if end < 0 else end
        if not muted:
            yield from _between_tags(text, position, end, joined)
        if end < len(text):
            muted = tags.mutes(end, muted)
        after = tags.end(end)
        joined, position = after is not None, after or end + 1


def _between_tags(text: str, position: int, end: int, joined: bool) -> Iterator[str]:
    """The pieces of a stretch; `joined`: it follows a tag or the start of the text, not a blank."""
    while position < end:
        blank = _BLANK.search(text, position + _CHUNK, end)
        stop = blank.start() if blank else end
        words = _BLANK.split(text[position:stop])
        if words[-1].endswith("..") and text.startswith("<", stop):
            words[-1] += "<"  # ".." is a path at the end of a piece, but not before a "<"
        if joined:
            yield words[0]
            words[0], joined = "", False
        for word in dict.fromkeys(words):
            if gap := _GAP.match(word):
                yield word[gap.end() :]
        position = stop


class _Tags:
    """Where the tags of a text end.

    That no comment ends any more is found out once. Quotes need no memory: of the tags that begin inside each other's
    quotes no two can be in the same state, so each character is read three times at most.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.open_comment = False

    def mutes(self, start: int, muted: bool) -> bool:
        """Whether the text from here on is script or style; PostgreSQL decides before it knows that the tag is one."""
        name = _TAG_NAME.match(self.text, start)
        if name is None or not self._blank_or(">", name.end()):
            return muted
        return _MUTES.get(name[0].lower(), muted)

    def end(self, start: int) -> int | None:
        """The end of the tag, declaration or comment that starts at this "<"; None when there is none."""
        if self.text.startswith("<!--", start):
            return self._comment_end(start + 4)
        if declaration := _DECLARATION.match(self.text, start):
            return self._attributes_end(declaration.end())
        name = _TAG_NAME.match(self.text, start)
        if name is None:
            return None
        if self.text.startswith("/>", name.end()):
            return name.end() + 2
        return self._attributes_end(name.end()) if self._blank_or(">", name.end()) else None

    def _blank_or(self, character: str, position: int) -> bool:
        return self.text.startswith(character, position) or bool(_BLANK.match(self.text, position))

    def _comment_end(self, position: int) -> int | None:
        found = -1 if self.open_comment else self.text.find("-->", position)
        self.open_comment = found < 0
        return None if found < 0 else found + 3

    def _attributes_end(self, position: int) -> int | None:
        while True:
            if attributes := _ATTRIBUTES.match(self.text, position):
                position = attributes.end()
            if self.text.startswith(">", position):
                return position + 1
            quoted = _QUOTED.match(self.text, position)
            if quoted is None:
                return None
            position = quoted.end()
            if quoted.lastindex:
                return position
