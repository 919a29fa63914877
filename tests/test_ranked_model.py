"""Both databases rank any question as a model in memory does, which knows the texts and none of the SQL."""

import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sidecar.index import Scope
from sidecar.search import ranked, words
from sidecar.search.ranked import Question, Reasons
from sidecar.search.service import Found
from tests import rig
from tests.postgres import Server
from tests.test_ranked import ANY_FIELD, Asked, asking
from tests.test_search import retired
from tests.test_search_model import OPENINGS, VOCABULARY, WEIGHTS, Told

FIELDS = ("steers", "prompt", "content")  # in the order of their places


@dataclass(frozen=True)
class Row:
    """One turn as the model knows it: what is indexed of it, and what it says now."""

    seq: int
    task_id: str
    context_id: str
    position: int
    owner: str
    time: datetime | None
    told: Told
    now: Told


@dataclass
class World:
    """The same turns in both databases and in memory."""

    stores: list[rig.Store]
    asked: list[Asked]
    dice: random.Random
    rows: list[Row] = field(default_factory=list)

    async def fill(self, turns: int) -> None:
        for _ in range(turns):
            await self.add()
        await self.index()
        for context_id, retire in (("chat-retired", "true"), ("chat-cleared", "false")):
            for asked in self.asked:
                await retired(asked.client, context_id, retire=retire)
            self.rows = [row for row in self.rows if row.context_id != context_id]
        for place in self.dice.sample(range(len(self.rows)), turns // 8):
            row = self.rows[place]
            self.rows[place] = replace(row, now=await self.save(row, self.told()))

    async def add(self) -> None:
        """A turn that both have indexed."""
        seq, told = len(self.rows) + 1, self.told()
        context_id = self.dice.choice(("chat-a", "chat-b", "chat-retired", "chat-cleared", "api-c"))
        position = 1 + sum(row.context_id == context_id for row in self.rows)
        time = None if self.dice.random() < 0.1 else rig.FIRST_TURN + timedelta(minutes=seq)
        owner = self.dice.choice(("", "alice", "bob"))
        task_id = str(uuid.UUID(int=self.dice.getrandbits(128)))
        row = Row(seq, task_id, context_id, position, owner, time, told, told)
        self.rows.append(row)
        await self.save(row, told)
        if time is None or self.dice.random() < 0.1:  # on a store that is not prepared those without a time come last
            await self.index()

    async def index(self) -> None:
        for asked in self.asked:
            assert (await asked.search.availability()).pending == 0

    async def save(self, row: Row, told: Told) -> Told:
        at = None if row.time is None else f"{row.time:%Y-%m-%dT%H:%M:%SZ}"
        state, history = self.dice.choice(("working", "input-required", "completed")), told.history()
        for store in self.stores:
            await store.turn(row.context_id, state, told.content, None, at, row.task_id, row.owner, history=history)
        return told

    def told(self) -> Told:
        steers = [(self.text(), False)] if self.dice.random() < 0.3 else []
        return Told(self.dice.choice(OPENINGS), self.text(), steers, self.text())

    def text(self) -> str:
        return " ".join(self.dice.choices(VOCABULARY, WEIGHTS, k=self.dice.randint(0, 5)))

    def question(self) -> Question:
        """Anything that may be asked."""
        one = self.dice.choice(self.rows)
        owners = self.dice.choice((None, None, frozenset({"alice"}), frozenset({"bob", ""})))
        since, until = sorted(rig.FIRST_TURN + timedelta(minutes=self.dice.randint(-5, 80)) for _ in range(2))
        return Question(
            words.terms(" ".join(self.dice.choices(VOCABULARY, WEIGHTS, k=self.dice.choice((1, 2, 3, 5))))),
            Scope(self.dice.choice(("", "chat-")), owners),
            frozenset(self.dice.sample(sorted(ANY_FIELD), self.dice.choice((1, 2, 3, 3)))),
            conversation=self.dice.choice((None, None, None, one.context_id)),
            task_id=self.dice.choice((None, None, None, None, one.task_id)),
            since=self.dice.choice((None, None, since)),
            until=self.dice.choice((None, None, until)),
            near=self.dice.choice((None, "chat-a", "chat-b")),
        )

    def expected(self, question: Question) -> list[tuple[Any, ...]]:
        """What the model finds, best first."""
        rows = {row.seq: row for row in self.rows if self.counts(row, question)}
        held = {
            (seq, number): words.lexemes(row.told.field(name)).intersection(question.terms)
            for seq, row in rows.items()
            for number, name in enumerate(FIELDS)
            if name in question.fields
        }
        least, most = ranked.FIELDS_A_TERM
        depth = max(least, min(most, ranked.CANDIDATES // max(1, len(question.terms))))
        newest = {
            term: sorted((at for at in held if term in held[at]), reverse=True)[:depth] for term in question.terms
        }
        weights = {term: (depth // len(some)).bit_length() if some else 0 for term, some in newest.items()}

        def known(at: tuple[int, int]) -> int:
            return sum(weights[term] for term, some in newest.items() if at in some)

        every = {at for some in newest.values() for at in some}
        best = sorted(every, key=lambda at: (known(at), at), reverse=True)[: ranked.CANDIDATES]
        last = max((seq for seq, _ in best), default=0)
        found = []
        for seq, number in best:
            row, name, terms = rows[seq], FIELDS[number], held[seq, number]
            why = Reasons(
                match=sum(weights[term] for term in terms),
                matched=len(terms),
                conversation=int(row.context_id == question.near),
                actor=int(name != "content"),
                participation=int(row.told.field("title") != ""),
                recency=max(0, 10 - (last - seq).bit_length()),
            )
            holds = words.lexemes(row.now.field(name)).intersection(question.terms)
            if holds and row.now.opening != "incognito":
                found.append(((why.score, seq, number), (row.task_id, name, row.position, why, terms, holds)))
        return [hit for _, hit in sorted(found, key=lambda each: each[0], reverse=True)]

    @staticmethod
    def counts(row: Row, question: Question) -> bool:
        owners, timed = question.scope.owners, question.since or question.until
        first, last = question.since or datetime.min, question.until or datetime.max
        return (
            row.told.opening != "incognito"
            and row.context_id.startswith(question.scope.prefix)
            and (owners is None or row.owner in owners)
            and question.conversation in (None, row.context_id)
            and question.task_id in (None, row.task_id)
            and (not timed or (row.time is not None and first <= row.time <= last))
        )


def told_of(found: Found) -> tuple[Any, ...]:
    """What the model knows of a hit."""
    it = found.candidate
    return (it.task_id, it.field, it.position, it.reasons, it.terms, found.terms)


@pytest.fixture
async def open_world(cluster: Server, tmp_path: Path) -> AsyncIterator[Callable[[int], Awaitable[World]]]:
    """`await open_world(seed)`: both databases, empty and as the SDK makes them, and sidecars on them."""
    async with AsyncExitStack() as opened:

        async def start(seed: int) -> World:
            stores = [
                await opened.enter_async_context(rig.sqlite_store(tmp_path / f"{seed}.db")),
                await opened.enter_async_context(rig.postgres_store(cluster)),
            ]
            for store in stores:
                await store.tasks.initialize()
            return World(
                stores, [await opened.enter_async_context(asking(each)) for each in stores], random.Random(seed)
            )

        yield start


async def test_both_databases_rank_as_the_model_does(
    full: bool, open_world: Callable[[int], Awaitable[World]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order, reasons and terms of any question are those that the texts give, also where each bound is reached."""
    hits = 0
    for seed in range(10 if full else 1):
        print(f"seed {seed}")
        world = await open_world(seed)
        await world.fill(200 if full else 60)
        for candidates, fields in ((2048, (32, 256)), (8, (2, 5))):
            monkeypatch.setattr(ranked, "CANDIDATES", candidates)
            monkeypatch.setattr(ranked, "FIELDS_A_TERM", fields)
            for _ in range(300 if full else 40):
                question = world.question()
                answers = [[told_of(each) async for each in asked.search.ranked(question)] for asked in world.asked]
                expected = world.expected(question)
                assert [expected, expected] == answers, question
                hits += len(expected)
    print(f"{hits} hits, each from both databases and as the model has it")
    assert hits > 100
