"""Find host names and mail addresses in a piece, as PostgreSQL's default parser does; it knows no other tokens.

PostgreSQL reads on from each label and each "@" to see whether a host comes of it; here each stretch is read once.
"""

import re
from typing import NamedTuple

_RUN = re.compile(r"[0-9A-Za-z]++(?:[-_.][0-9A-Za-z]++)*+")
_LAST_LABEL = re.compile(r"\.[A-Za-z]{2,}+(?![0-9])")
_PORT = re.compile(r":[0-9]++")
_URL_PATH = re.compile(r"/[!#-;=?-\[\]_a-z~]++")
EXPONENT = re.compile(r"[0-9]++[eE][+-]?[0-9]++")


class Run(NamedTuple):
    """Labels joined by ".", "-" or "_"; a host ends at `host_end`, its last label starting at `dot` (-1: no host)."""

    start: int
    end: int
    dot: int
    host_end: int


class Hosts:
    """The hosts of one piece."""

    def __init__(self, piece: str) -> None:
        self.piece = piece
        self.run = Run(0, 0, -1, -1)
        self.mail_ends: dict[int, int | None] = {}

    def at(self, position: int) -> tuple[str, int, int] | None:
        """Kind (`email`, `url`, `host`), end, and end without the path of a URL, of what starts at this label."""
        run = self._run(position)
        if (end := self.mail_end(run.end)) is not None:
            return "email", end, end
        if (end := self._host_end(run, position)) is None:
            return None
        path = _URL_PATH.match(self.piece, end)
        return ("url", path.end(), end) if path else ("host", end, end)

    def mail_end(self, position: int) -> int | None:
        """The end of the mail address whose "@" is here; None without "@" or without a host behind it."""
        if not self.piece.startswith("@", position):
            return None
        if position not in self.mail_ends:
            self.mail_ends[position] = self._host_after(position + 1)
        return self.mail_ends[position]

    def _host_after(self, position: int) -> int | None:
        if EXPONENT.match(self.piece, position):
            return None
        return self._host_end(self._run(position), position)

    def _host_end(self, run: Run, position: int) -> int | None:
        if run.dot < position:
            return None
        port = _PORT.match(self.piece, run.host_end)
        return port.end() if port else run.host_end

    def _run(self, position: int) -> Run:
        """The rest of the run that holds this position; an empty one where no label is."""
        if self.run.start <= position < self.run.end:
            return self.run
        found = _RUN.match(self.piece, position)
        if found is None:
            return Run(position, position, -1, -1)
        dot, host_end = -1, -1
        for label in _LAST_LABEL.finditer(self.piece, position, found.end()):
            dot, host_end = label.span()
        self.run = Run(position, found.end(), dot, host_end)
        return self.run
