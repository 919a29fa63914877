"""Split a piece into the tokens of PostgreSQL's default parser, in linear time; it knows no language and no lexemes.

Kinds, rules and quirks are those of `ts_parse('default', …)`, written anew; tests/test_words.py compares the two.
Tokens without a word are left out: blanks, tags, entities, protocols.
"""

import re
from collections.abc import Iterator

from sidecar.search.characters import LETTERS, MARKS
from sidecar.search.hosts import EXPONENT, Hosts

Token = tuple[str, str]
"""The kind, under PostgreSQL's alias, and the text."""

_LETTER = rf"A-Za-z{LETTERS}"
_INNER = rf"0-9{_LETTER}{MARKS}"
_LETTERED = rf"(?:[{_LETTER}]|[0-9]++(?=[{_LETTER}{MARKS}]))[{_INNER}]*+"  # a word that is no number
_GAP = re.compile(rf"[^0-9{_LETTER}\-+&/]*+")
_WORD = re.compile(rf"[0-9{_LETTER}][{_INNER}]*+")
_PART = re.compile(_LETTERED)
_HYPHENATED = re.compile(rf"(?:-{_LETTERED})++")
_JOINT = re.compile(rf"-(?=[{_INNER}])")
_DIGIT = re.compile(r"[0-9]")
_FRACTION = re.compile(r"[0-9]++\.[0-9]++(?:((?:\.[0-9]++)++)|([eE][+-]?[0-9]++))?+")
# What would be a version but for its sign is one without the sign.
_SIGNED = re.compile(r"[+-](?![0-9]++\.[0-9]++\.[0-9])[0-9]++(\.[0-9]++)?+([eE][+-]?[0-9]++)?+")
_ENTITY = re.compile(rf"&(?:[A-Za-z:_][0-9{_LETTER}:_.\-]*+|#[0-9]++|#[xX][0-9A-Fa-f]++);")
_NAME = r"[0-9A-Za-z_]"
_STEP = rf"/(?:\.\.?/|~/)*(?:[.~]?{_NAME}|\.\.(?=/|\Z))"
_REST = rf"(?:[0-9A-Za-z_\-]|\.(?={_NAME})|{_STEP})*"
_PATH = re.compile(rf"(?:~?{_STEP}|~{_NAME}|\.{_STEP}|\.\.(?:{_STEP}|(?=/|\Z))){_REST}")
_PATH_AFTER_WORD = re.compile(rf"(?:{_STEP}|\.{_NAME}){_REST}")
_PATH_AFTER_NUMBER = re.compile(_STEP + _REST)
_DEAD_END = re.compile(r"(?:/[~.])++")  # where no path starts before these, none starts inside


def tokens(piece: str) -> Iterator[Token]:
    """The tokens of a piece (`markup.pieces`) in their order; of a URL or hyphenated word the whole, then its parts."""
    scan, position = _Scan(piece), 0
    while position < len(piece):
        found, position = scan.at(position)
        yield from found


class _Scan:
    """The rules; each gives the tokens that start at a position, and the position after them."""

    def __init__(self, piece: str) -> None:
        self.piece = piece
        self.hosts = Hosts(piece)
        self.dead_end = 0

    def at(self, position: int) -> tuple[list[Token], int]:
        if word := _WORD.match(self.piece, position):
            return self._word(word)
        if signed := _SIGNED.match(self.piece, position):
            return [("sfloat" if signed[2] else "float" if signed[1] else "int", signed[0])], signed.end()
        if entity := _ENTITY.match(self.piece, position):
            return [], entity.end()
        if path := self._path(position):
            return [("file", path[0])], path.end()
        gap = _GAP.match(self.piece, position + 1)
        return [], gap.end() if gap else len(self.piece)

    def _path(self, position: int) -> re.Match[str] | None:
        if position < self.dead_end or self.piece[position] not in "/.~":
            return None
        path = _PATH.match(self.piece, position)
        if path is None and (dead_end := _DEAD_END.match(self.piece, position)):
            self.dead_end = dead_end.end()
        return path

    def _word(self, word: re.Match[str]) -> tuple[list[Token], int]:
        if exponent := EXPONENT.match(self.piece, word.start()):
            return [("sfloat", exponent[0])], exponent.end()
        following = self.piece[word.end() : word.end() + 1]
        if following and following in ".-_@" and word[0].isascii() and (host := self._host(word.start())):
            return host
        if word[0].isascii() and word[0].isdigit():
            return self._number(word)
        kind = _word_kind(word[0])
        if following == "-" and (compound := _HYPHENATED.match(self.piece, word.end())):
            return self._compound(word.start(), compound.end())
        end = self._longer_end(kind, word.end()) if following else None
        if end is not None:
            return [("email" if following == "@" else "file", self.piece[word.start() : end])], end
        if kind == "asciiword" and self.piece.startswith("://", word.end()):
            return [], word.end() + 3
        return [(kind, word[0])], word.end()

    def _longer_end(self, kind: str, position: int) -> int | None:
        """The end of the mail address or path that the word before this position begins."""
        if kind == "word":
            return None
        if kind == "numword" and (end := self.hosts.mail_end(position)) is not None:
            return end
        path = _PATH_AFTER_WORD.match(self.piece, position)
        return path.end() if path else None

    def _host(self, position: int) -> tuple[list[Token], int] | None:
        found = self.hosts.at(position)
        if found is None:
            return None
        kind, end, host_end = found
        whole = (kind, self.piece[position:end])
        if kind != "url":
            return [whole], end
        return [whole, ("host", self.piece[position:host_end]), ("url_path", self.piece[host_end:end])], end

    def _number(self, digits: re.Match[str]) -> tuple[list[Token], int]:
        if fraction := _FRACTION.match(self.piece, digits.start()):
            return [("version" if fraction[1] else "sfloat" if fraction[2] else "float", fraction[0])], fraction.end()
        if path := _PATH_AFTER_NUMBER.match(self.piece, digits.end()):
            return [("file", self.piece[digits.start() : path.end()])], path.end()
        return [("uint", digits[0])], digits.end()

    def _compound(self, start: int, end: int) -> tuple[list[Token], int]:
        whole = self.piece[start:end]
        found = [(_COMPOUND_KINDS[_word_kind(whole.replace("-", ""))], whole)]
        while part := _PART.match(self.piece, start):
            found.append((_PART_KINDS[_word_kind(part[0])], part[0]))
            joint = _JOINT.match(self.piece, part.end())
            if joint is None:
                return found, part.end()
            start = joint.end()
        return found, start


_COMPOUND_KINDS = {"asciiword": "asciihword", "word": "hword", "numword": "numhword"}
_PART_KINDS = {"asciiword": "hword_asciipart", "word": "hword_part", "numword": "hword_numpart"}


def _word_kind(word: str) -> str:
    if _DIGIT.search(word):
        return "numword"
    return "asciiword" if word.isascii() else "word"
