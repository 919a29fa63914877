"""Ranks the fields that hold any term of a question, by integers alone; it decodes no cell and analyzes no text.

The newest fields of each term are candidates, and both databases order them alike. What a candidate names may have
been saved, retired or hidden since: whoever shows it reads its row again.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sidecar.index import Scope
from sidecar.reading import Reading
from sidecar.search import places
from sidecar.search.entries import FIELDS
from sidecar.search.places import AFTER_ALL, Times
from tombstones.search_tables import FIELDS_A_TURN
from tombstones.state import name_of, read_status
from tombstones.table import TIMES, Shape

CANDIDATES = 2048
"""So many fields are ranked: those that match best, as far as their terms' newest fields tell."""
FIELDS_A_TERM = (32, 256)
"""How many of the newest fields of each term are candidates at least, of very many terms, and at most."""
TURNS_OF_A_NAME = 20_000
"""So many of a conversation's newest turns count, and of those of some time tell where the others stand."""
FIELDS_LOOKED_AT = 50_000
"""Where few may be seen, the newest fields of all terms that are looked at are not more than that."""
_MORE = 4
_FIRST_TIME, _LAST_TIME = map(datetime.fromisoformat, TIMES)


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for (seeds 002 and 004): terms that are alternatives, and the fields of which turns count.

    terms: distinct lexemes; none finds nothing. fields: some of prompt, steers and content. since, until: naive UTC,
    both included, on `last_updated`; a row without a time never matches a bound. near: the conversation that counts as
    the current one. states: as `name_of` spells them, none is any. passed_over: so many of what is found the asker will
    leave out.
    """

    terms: tuple[str, ...]
    scope: Scope
    fields: frozenset[str]
    conversation: str | None = None
    task_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    near: str | None = None
    states: frozenset[str] = frozenset()
    passed_over: int = 0

    @property
    def times(self) -> Times | None:
        """The first and the last time that match, of those that a row may have; None when any does, and none."""
        if self.since is None and self.until is None:
            return None
        return max(self.since or _FIRST_TIME, _FIRST_TIME), min(self.until or _LAST_TIME, _LAST_TIME)

    def covers(self, time: datetime | None) -> bool:
        """Whether a row of that `last_updated` matches the bounds."""
        times = self.times
        return times is None or (time is not None and times[0] <= time <= times[1])

    def wants(self, state: str) -> bool:
        """Whether a row of that state matches."""
        return not self.states or name_of(state) in self.states

    @property
    def names(self) -> dict[str, str]:
        """By what the turns that count are known, when they are few."""
        names = {"context_id": self.conversation, "task_id": self.task_id}
        return {name: value for name, value in names.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a candidate stands where it does.

    match: the weights of the terms that it holds, together; matched: how many these are. 0 or 1: conversation, whether
    it is of the current one; actor, whether the requester said it; participation, whether a person opened its turn.
    recency: 0 to 10, 10 for the turn of the newest candidate.
    """

    match: int
    matched: int
    conversation: int
    actor: int
    participation: int
    recency: int

    @property
    def score(self) -> int:
        """What orders the candidates."""
        return 8 * self.match + 6 * self.conversation + 2 * self.actor + 2 * self.participation + self.recency

    def body(self) -> dict[str, int]:
        """As answers carry them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A field that holds some terms; `at` is its place in the order, `marker` the version that was indexed."""

    at: int
    seq: int
    field: str
    task_id: str
    context_id: str
    position: int
    marker: str
    terms: frozenset[str]
    reasons: Reasons


async def rank(conn: Reading, shape: Shape, question: Question) -> list[Candidate]:
    """The candidates, best first; of those that are alike the newest first."""
    look = _Look(conn, shape, question)
    async with conn.planned_anew():  # the rarest terms are one field's, the commonest every field's
        await places.tune(conn, shape)
        newest = await (look.into_turns() if question.names else look.for_terms())
        # below its place a term's fields are not known
        common = look.unfinished | {term: some[-1] for term, some in newest.items() if len(some) == look.depth}
        weights = {term: 1 if term in common else weight(len(some), look.depth) for term, some in newest.items()}
        held = _by_place(newest)
        best = sorted(held, key=lambda place: (-_match(held[place], weights), -place))[
            : CANDIDATES + question.passed_over
        ]
        older = [place for place in best if place < max(common.values(), default=0)]
        for term, some in (await places.holding(conn, shape, older, list(common))).items():
            for place in some:
                held[place].add(term)
    last = max(best, default=0) // FIELDS_A_TURN
    found = [
        _candidate(place, held[place], look.seen[place // FIELDS_A_TURN], weights, last, question) for place in best
    ]
    return sorted(found, key=lambda each: (-each.reasons.score, -each.at))


async def standing(conn: Reading, shape: Shape, task_id: str, owners: frozenset[str] | None) -> str | None:
    """The conversation of a turn that is indexed and may be seen."""
    rows = await places.turns_of(conn, shape, Scope("", owners), None, {"task_id": task_id}, most=1)
    return rows[0].context_id if rows else None


def weight(fields: int, depth: int) -> int:
    """What a term counts that so many fields hold: 1 for `depth` and more for fewer, 9 for one of 256; 0 for none."""
    return (depth // fields).bit_length() if fields else 0


def _match(terms: Iterable[str], weights: Mapping[str, int]) -> int:
    return sum(weights[term] for term in terms)


def _by_place(found: Mapping[str, Iterable[int]]) -> dict[int, set[str]]:
    held: dict[int, set[str]] = {}
    for term, some in found.items():
        for place in some:
            held.setdefault(place, set()).add(term)
    return held


def _candidate(
    place: int, terms: Collection[str], turn: Any, weights: Mapping[str, int], last: int, question: Question
) -> Candidate:
    name = FIELDS[place % FIELDS_A_TURN]
    reasons = Reasons(
        match=_match(terms, weights),
        matched=len(terms),
        conversation=int(turn.context_id == question.near),
        actor=int(name != "content"),
        participation=int(turn.is_opened),
        recency=max(0, 10 - (last - turn.seq).bit_length()),
    )
    known = (turn.task_id, turn.context_id, turn.position, turn.marker)
    return Candidate(place, turn.seq, name, *known, frozenset(terms), reasons)


class _Look:
    """One look for a question's terms.

    seen: those of the turns it met that may be seen and are asked for. unfinished: terms of which too few fields may be
    seen, and the place down to which there are no others.
    """

    def __init__(self, conn: Reading, shape: Shape, question: Question) -> None:
        self._conn, self._shape, self._question = conn, shape, question
        least, most = FIELDS_A_TERM
        terms = max(1, len(question.terms))
        passed_over = min(question.passed_over, FIELDS_LOOKED_AT // terms // 2)
        self.depth = max(least, min(most, CANDIDATES // terms)) + passed_over
        self.seen: dict[int, Any] = {}
        self.unfinished: dict[str, int] = {}
        self._met: set[int] = set()

    async def for_terms(self) -> dict[str, list[int]]:
        """The newest fields of each term; older ones are looked for as long as too few may be seen."""
        found: dict[str, list[int]] = {term: [] for term in self._question.terms}
        low, high = await self._reach()
        below, rows, left = dict.fromkeys(found, high), self.depth, FIELDS_LOOKED_AT
        while below and (left := left - rows * len(below)) >= 0:
            some = {term: await self._newest(term, (low, under), rows) for term, under in below.items()}
            await self._meet({place // FIELDS_A_TURN for each in some.values() for place in each})
            for term, each in some.items():
                found[term] += [place for place in each if place // FIELDS_A_TURN in self.seen]
            unfinished = [term for term, each in some.items() if len(each) == rows and len(found[term]) < self.depth]
            below, rows = {term: some[term][-1] for term in unfinished}, rows * _MORE
        self.unfinished = below
        return {term: each[: self.depth] for term, each in found.items()}

    async def into_turns(self) -> dict[str, list[int]]:
        """The same where few turns count."""
        question, (conn, shape) = self._question, (self._conn, self._shape)
        asked = (question.scope, question.times, question.names, TURNS_OF_A_NAME)
        self._see(await places.turns_of(conn, shape, *asked, with_status=bool(question.states)))
        fields = [FIELDS.index(name) for name in question.fields]
        every = [seq * FIELDS_A_TURN + number for seq in self.seen for number in fields]
        found = await places.holding(conn, shape, every, question.terms)
        return {term: sorted(some, reverse=True)[: self.depth] for term, some in found.items()}

    async def _reach(self) -> tuple[int, int]:
        """Between which places there is something to be found."""
        scope, times = self._question.scope, self._question.times
        if times is None:
            return 0, AFTER_ALL
        return await places.reach(self._conn, self._shape, scope, times, TURNS_OF_A_NAME)

    async def _newest(self, term: str, within: tuple[int, int], rows: int) -> list[int]:
        scope, fields = self._question.scope, self._question.fields
        return await places.newest(self._conn, self._shape, scope, fields, term, within, rows)

    async def _meet(self, seqs: set[int]) -> None:
        """Looks at the turns that were not met before."""
        new, question = seqs - self._met, self._question
        self._met |= new
        if new:
            asked = (question.scope, question.times, new)
            self._see(await places.turns_at(self._conn, self._shape, *asked, with_status=bool(question.states)))

    def _see(self, turns: Iterable[Any]) -> None:
        question = self._question
        wanted = (turn for turn in turns if not question.states or question.wants(read_status(turn.status).state))
        self.seen |= {turn.seq: turn for turn in wanted}
