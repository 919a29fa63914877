"""Any sequence of saves, deletions and searches: both databases find what a model in memory finds, in its order."""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import pytest

from sidecar import sweeper
from sidecar.app import create_app
from sidecar.search import words
from tests import rig
from tests.postgres import Server
from tests.test_search import SEARCH, narrowed, operator, search
from tests.test_search_routes import window
from tests.test_store_cases import path

T = TypeVar("T")

TABLES = (
    *("tasks", "tasks_session_tombstones", "tasks_task_tombstones", "tasks_retirements"),
    *("tasks_search_turns", "tasks_search_contexts", "tasks_search_lexemes"),
)
CONTEXTS = ("chat-a", "chat-b", "chat-c", "api-d")
# a reader's token, and the owners that it is narrowed to
READERS = {rig.TOKEN: None, "alice-token-0123456789": ("alice",), "bob-token-01234567890": ("bob",)}
FIELDS = ("title", "steers", "prompt", "content")  # in the order of their places
VOCABULARY = (
    *("deploy", "Deploys", "deployment", "rollback", "running", "runs", "team's", "the", "of", "and"),
    *("人工智能", "智能", "检索系统", "研究", "x-ray", "a@b.example", "naïve", "v1.2", "😀", "…"),
)
WEIGHTS = [6, 3, 3, 3, 2, 1, 1, 1, 1, 1, 4, 2, 2, 1, 1, 1, 1, 1, 1, 1]
SEPARATORS = (" ", " ", "\n", "")
LONG = " ".join(["filler"] * 120)

OPENINGS = ("shown", "shown", "shown", "shown", "display", "hidden", "fired", "incognito", "none")
STATES = ("working", "input-required", "completed")


class Told(NamedTuple):
    """What a turn says, and how its prompt was sent."""

    opening: str
    prompt: str
    steers: list[tuple[str, bool]]
    content: str

    def history(self) -> list[rig.Json]:
        """What the producer stores of it."""
        first = {
            "shown": [operator(self.prompt)],
            "hidden": [operator(self.prompt, hidden=True)],
            "fired": [operator(self.prompt, origin="scheduler")],
            "display": [operator("deploy 研究 rollback", display=self.prompt)],
            "incognito": [operator(self.prompt, incognito=True)],
            "none": [],
        }[self.opening]
        later = [operator(text, hidden=True) if is_hidden else operator(text) for text, is_hidden in self.steers]
        return [*first, rig.message("ROLE_AGENT", "deploy 人工智能"), *(later if first else [])]

    def field(self, name: str) -> str:
        """What of it a person saw, and search finds."""
        seen = self.prompt if self.opening in ("shown", "display") else ""
        if name == "prompt":
            return seen
        if name == "title":
            return next((line.strip() for line in seen.splitlines() if line.strip()), "")
        if name == "content":
            return self.content
        if self.opening == "none":
            return ""
        return "\n\n".join(text for text, is_hidden in self.steers if text and not is_hidden)


@dataclass
class Row:
    """One row of the task table; `created`: as the how manieth it was inserted."""

    task_id: str
    context_id: str
    owner: str
    state: str
    told: Told
    created: int


class Place(NamedTuple):
    """What the index gives a turn when it first sees it."""

    context_id: str
    seq: int
    position: int


class Found(NamedTuple):
    """A match of the model, and where it stands."""

    at: int
    match: dict[str, Any]


@dataclass
class Model:
    """The stored turns, which of them nobody may see any more, and their places."""

    rows: dict[str, Row] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    places: dict[str, Place] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    inserted: int = 0
    saved: dict[str, Row] = field(default_factory=dict)

    def alive(self) -> list[Row]:
        rows = (row for row in self.rows.values() if row.context_id not in self.retired)
        return sorted((row for row in rows if row.task_id not in self.cleared), key=lambda row: row.created)

    def save(self, task_id: str, context_id: str, owner: str, state: str, told: Told) -> None:
        known = self.rows.get(task_id)
        if known is None:
            self.inserted += 1
        row = Row(task_id, context_id, owner, state, told, known.created if known else self.inserted)
        self.rows[task_id] = self.saved[task_id] = row

    def look(self) -> None:
        """What a search does first: it forgets what is gone, and gives what is new its places."""
        alive = self.alive()
        here = {row.task_id: row.context_id for row in alive}
        self.places = {key: place for key, place in self.places.items() if here.get(key) == place.context_id}
        last = max((place.seq for place in self.places.values()), default=0)
        new = [row for row in alive if row.task_id not in self.places]
        for number, row in enumerate(new, start=1):
            position = self.positions[row.context_id] = self.positions.get(row.context_id, 0) + 1
            self.places[row.task_id] = Place(row.context_id, last + number, position)

    def seen(self, owners: tuple[str, ...] | None) -> list[Row]:
        """The rows that a reader may see, as they stand in the order."""
        rows = [row for row in self.alive() if row.told.opening != "incognito"]
        rows = [row for row in rows if owners is None or row.owner in owners]
        return sorted(rows, key=lambda row: self.places[row.task_id].seq)

    def find(self, query: str, owners: tuple[str, ...] | None, auxiliary: bool) -> list[Found]:
        """Every match, in order."""
        wanted = words.lexemes(query)
        found: list[Found] = []
        for context_id in CONTEXTS if auxiliary else CONTEXTS[:3]:
            rows = [row for row in self.seen(owners) if row.context_id == context_id]
            titled = next((row for row in rows if row.told.field("title")), None)
            title = titled.told.field("title") if titled else None
            for row in rows:
                found += self._of(row, title, wanted)
            if title and wanted <= words.lexemes(title):
                newest = self.places[rows[-1].task_id]
                found.append(Found(newest.seq * 4, shown(context_id, title, None, "title", title)))
        return sorted(found, key=lambda each: -each.at) if wanted else []

    def _of(self, row: Row, title: str | None, wanted: frozenset[str]) -> Iterator[Found]:
        place = self.places[row.task_id]
        for number, name in enumerate(FIELDS):
            text = row.told.field(name)
            if name != "title" and wanted <= words.lexemes(text):
                match = shown(row.context_id, title, row.task_id, name, text)
                state = f"TASK_STATE_{row.state.upper().replace('-', '_')}"
                yield Found(place.seq * 4 + number, {**match, "position": place.position, "state": state})


def shown(context_id: str, title: str | None, task_id: str | None, name: str, text: str) -> dict[str, Any]:
    return {
        "conversation_public_id": context_id,
        "title": title,
        "turn_public_id": task_id,
        "variant_public_id": task_id,
        "position": None,
        "field": name,
        "inherited": False,
        "excerpt": text,
        "truncated": False,
        "state": None,
    }


class World:
    """A store of each kind, on an event loop of their own; each story begins with them empty, and with new sidecars."""

    def __init__(self, runner: asyncio.Runner, stores: list[rig.Store], tokens: Path) -> None:
        self.run, self.stores, self.tokens = runner.run, stores, tokens
        self.pages = self.matches = 0
        self.clients: list[httpx.AsyncClient] = []
        self.opened = AsyncExitStack()

    def both(self, ask: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]) -> list[httpx.Response]:
        """The answers of both sidecars."""

        async def asked() -> list[httpx.Response]:
            return list(await asyncio.gather(*map(ask, self.clients)))

        return self.run(asked())

    async def begin(self) -> None:
        """Two sidecars that have looked at an empty store."""
        await self.opened.aclose()
        apps = [create_app(rig.config_for(store, tokens_file=self.tokens)) for store in self.stores]
        self.clients = [await self.opened.enter_async_context(rig.client(app)) for app in apps]
        for client, store in zip(self.clients, self.stores, strict=True):
            await search(client, "x")  # makes our own tables
            for table in TABLES:
                await store.raw(f"DELETE FROM {table}")
            await search(client, "x")


@dataclass
class Walk:
    """A reader on its way through the pages of a search."""

    token: str
    query: str
    auxiliary: bool
    limit: int
    after: str | None = None
    at: int = 2**62


class Story:
    """What producers and operators do, by chance, and searches that go on between."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.model, self.dice = world, Model(), random.Random(seed)
        self.walks: list[Walk] = []
        self.saves = 0

    def tell(self, steps: int) -> None:
        self.world.run(self.world.begin())
        for _ in range(8):
            self.save()
        rules = {self.save: 3, self.save_again: 2, self.move: 1, self.take_away: 1, self.delete: 1}
        rules |= {self.search: 5, self.go_on: 8, self.read: 1}
        for rule in self.dice.choices(list(rules), list(rules.values()), k=steps):
            rule()
        self.end()

    # --- chance

    def text(self) -> str:
        found = self.dice.choices(VOCABULARY, WEIGHTS, k=self.dice.randint(0, 5))
        return "".join(word + self.dice.choice(SEPARATORS) for word in found)

    def told(self) -> Told:
        steers = [(self.text(), self.dice.random() < 0.3) for _ in range(self.dice.choice((0, 0, 1, 2)))]
        content = " ".join([self.text(), self.dice.choice(("", "", "", LONG)), self.text()])
        return Told(self.dice.choice(OPENINGS), self.text(), steers, content)

    def query(self) -> str:
        return " ".join(self.dice.choices(VOCABULARY, WEIGHTS, k=self.dice.choice((1, 1, 1, 2))))

    # --- what producers do

    def put(self, task_id: str, context_id: str, owner: str, state: str, told: Told) -> None:
        """Saves to both stores; no time of a status comes twice, as SQLite takes such a turn for unchanged."""
        self.saves += 1
        at, history = f"2026-01-05T09:{self.saves // 60:02}:{self.saves % 60:02}Z", told.history()

        async def save() -> None:
            for store in self.world.stores:
                await store.turn(
                    context_id, state, told.content, None, at=at, task_id=task_id, owner=owner, history=history
                )

        self.world.run(save())
        self.model.save(task_id, context_id, owner, state, told)

    def save(self) -> None:
        """A new turn, whose id says nothing of the order."""
        task_id = str(uuid.UUID(int=self.dice.getrandbits(128)))
        self.put(
            task_id,
            self.dice.choice(CONTEXTS),
            self.dice.choice(("", "alice", "bob")),
            self.dice.choice(STATES),
            self.told(),
        )

    def save_again(self) -> None:
        """A turn says something else, which may have been retired or cleared in the meantime."""
        row = self.dice.choice(self.known())
        self.put(row.task_id, row.context_id, row.owner, self.dice.choice(STATES), self.told())

    def move(self) -> None:
        """A turn is saved under another context."""
        row = self.dice.choice(self.known())
        here = [context_id for context_id in CONTEXTS if context_id not in self.model.retired]
        self.put(row.task_id, self.dice.choice(here), row.owner, row.state, row.told)

    def take_away(self) -> None:
        """The producer itself deletes a turn, but not the newest: when its place is free again is nobody's concern."""
        newest = max(self.model.places, key=lambda task_id: self.model.places[task_id].seq, default=None)
        rows = [row for row in self.model.rows.values() if row.task_id != newest]
        if rows:
            row = self.dice.choice(rows)
            del self.model.rows[row.task_id], self.model.saved[row.task_id]
            for store in self.world.stores:
                self.world.run(store.delete(row.task_id, row.owner))

    def known(self) -> list[Row]:
        """Every turn as it was saved last, deleted ones too."""
        return list(self.model.saved.values())

    # --- what operators do

    def delete(self) -> None:
        """Clears a session, or retires it."""
        context_id = self.dice.choice(CONTEXTS[:3])
        retires = context_id in self.model.retired or self.dice.random() < 0.2
        params = {"retire": str(retires).lower()}
        answers = self.world.both(lambda client: client.delete(path(context_id), params=params))
        assert [200, 200] == [answer.status_code for answer in answers]
        gone = {row.task_id for row in self.model.rows.values() if row.context_id == context_id}
        for task_id in gone:
            del self.model.rows[task_id]
        if retires:
            self.model.retired.add(context_id)
        else:
            self.model.cleared |= gone

    # --- searches

    def search(self) -> None:
        """The first page of a search that may go on later."""
        token, auxiliary = self.dice.choice(list(READERS)), self.dice.random() < 0.5
        self.walks.append(Walk(token, self.query(), auxiliary, self.dice.randint(1, 4)))
        self.turn_page(self.walks[-1])

    def go_on(self) -> None:
        """The next page of a search that was begun, whatever has happened since."""
        if self.walks:
            self.turn_page(self.dice.choice(self.walks))

    def read(self) -> None:
        """The newest window of a conversation."""
        context_id, token = self.dice.choice(CONTEXTS), self.dice.choice(list(READERS))
        headers = {"Authorization": f"Bearer {token}"}
        answers = self.world.both(lambda client: client.get(window(context_id), headers=headers))
        self.model.look()
        rows = [row for row in self.model.seen(READERS[token]) if row.context_id == context_id]
        expected = [(row.task_id, self.model.places[row.task_id].position) for row in rows][-20:]
        for answer in answers:
            assert (200 if rows else 404) == answer.status_code, answer.text
            turns = answer.json().get("turns", [])
            assert expected == [(turn["public_id"], turn["position"]) for turn in turns]

    def end(self) -> None:
        """Every word is looked for once more, and each search is read to its end."""
        for word in VOCABULARY:
            self.walks.append(Walk(rig.TOKEN, word, True, 50))
        while self.walks:
            self.turn_page(self.walks[-1])
        for store in self.world.stores:
            assert {"turns": 0, "lexemes": 0} == self.world.run(strays(store))

    def turn_page(self, walk: Walk) -> None:
        params: dict[str, Any] = {"query": walk.query, "limit": walk.limit}
        params |= {"include_auxiliary": str(walk.auxiliary).lower(), **({"after": walk.after} if walk.after else {})}
        headers = {"Authorization": f"Bearer {walk.token}"}
        first, second = (
            each.json() for each in self.world.both(lambda client: client.get(SEARCH, params=params, headers=headers))
        )
        for answer in (first, second):
            assert "availability" in answer, answer
            assert answer.pop("availability")["complete"]
        assert first == second
        self.model.look()
        every = self.model.find(walk.query, READERS[walk.token], walk.auxiliary)
        expected = [each for each in every if each.at < walk.at]
        page = expected[: walk.limit]
        assert [(each.match["turn_public_id"], each.match["field"]) for each in page] == [
            (each["turn_public_id"], each["field"]) for each in first["matches"]
        ]
        wanted = words.lexemes(walk.query)
        for each, match in zip(page, first["matches"], strict=True):
            assert cut(each.match, match, wanted) == match
        self.world.pages += 1
        self.world.matches += len(page)
        walk.after = first["pagination"]["next_after"]
        assert (walk.after is not None) == (len(expected) > len(page))
        if walk.after is None:
            self.walks.remove(walk)
        else:
            walk.at = page[-1].at


def cut(expected: dict[str, Any], match: dict[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """What is expected, with the piece of a long text that was shown: any piece of it that shows why."""
    whole, piece = expected["excerpt"], match["excerpt"]
    if len(whole) <= 500:
        return expected
    assert piece in whole
    assert 400 < len(piece) <= 500
    assert any(lexeme in piece.lower() for lexeme in wanted)
    return {**expected, "excerpt": piece, "truncated": True}


async def strays(store: rig.Store) -> dict[str, int]:
    """How many rows of the index belong to a turn that was retired or cleared, or to none."""
    place = "rowid" if store.kind == "sqlite" else "place"
    counts = {
        "turns": "SELECT count(*) FROM tasks_search_turns WHERE task_id IN (SELECT task_id FROM tasks_task_tombstones)"
        " OR context_id IN (SELECT session_id FROM tasks_session_tombstones)",
        "lexemes": f"SELECT count(*) FROM tasks_search_lexemes"
        f" WHERE {place} / 4 NOT IN (SELECT seq FROM tasks_search_turns)",
    }
    return {name: (await store.raw(sql))[0][0] for name, sql in counts.items()}


@pytest.fixture
def world(cluster: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world whose sidecars never sweep by themselves; PostgreSQL is prepared, so that it knows what came first."""
    monkeypatch.setattr(sweeper, "INTERVAL_SECONDS", 1e6)
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("".join(narrowed(token, names[0]) for token, names in READERS.items() if names))
    with asyncio.Runner() as runner:
        opened = AsyncExitStack()
        sqlite = runner.run(opened.enter_async_context(rig.sqlite_store(tmp_path / "tasks.db")))
        postgres = runner.run(opened.enter_async_context(rig.postgres_store(cluster)))
        for store in (sqlite, postgres):
            runner.run(store.tasks.initialize())
            runner.run(rig.prepare(store))
        world = World(runner, [sqlite, postgres], tokens)
        yield world
        runner.run(world.opened.aclose())
        runner.run(opened.aclose())


def test_both_databases_find_what_the_model_finds(full: bool, world: World) -> None:
    """Matches, their order, excerpts, titles, positions and pages are the same whatever happens between the pages."""
    for seed in range(100 if full else 4):
        print(f"seed {seed}")
        Story(world, seed).tell(120 if full else 60)
    print(f"{world.pages} pages with {world.matches} matches, each from both databases and as the model has it")
