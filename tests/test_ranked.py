"""Ranked alternatives on both databases: each signal, each filter, what no longer holds, and every bound."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import httpx
import pytest

from sidecar.app import create_app
from sidecar.index import Scope
from sidecar.search import ranked, service, words
from sidecar.search.ranked import Question, Reasons
from sidecar.search.service import Found, Search
from tests import rig
from tests.test_search import operator, retired

ANY_FIELD = frozenset({"prompt", "steers", "content"})
EVERYBODY = Scope("", None)
At = tuple[str, str]
"""A turn's id and one of its fields."""


@dataclass
class Asked:
    """A sidecar as routes see it: its search, and a client to retire with."""

    search: Search
    client: httpx.AsyncClient

    async def find(self, text: str, scope: Scope = EVERYBODY, **more: Any) -> list[Found]:
        """What a question of these words finds, in a whole index."""
        assert (await self.search.availability()).pending == 0
        return await self.find_now(text, scope, **more)

    async def find_now(self, text: str, scope: Scope = EVERYBODY, **more: Any) -> list[Found]:
        """The same in the index as it is."""
        question = Question(words.terms(text), scope, **{"fields": ANY_FIELD, **more})
        return [found async for found in self.search.ranked(question)]


@asynccontextmanager
async def asking(store: rig.Store) -> AsyncIterator[Asked]:
    app = create_app(rig.config_for(store))
    async with rig.client(app) as client:
        yield Asked(Search(app.state.database, rig.config_for(store)), client)


@pytest.fixture
async def asked(store: rig.Store) -> AsyncIterator[Asked]:
    async with asking(store) as asked:
        yield asked


def order(found: Sequence[Found]) -> list[At]:
    return [(each.candidate.task_id, each.candidate.field) for each in found]


def reasons(match: int, matched: int, **more: int) -> Reasons:
    """Of an answer in a turn that nobody opened, the newest one."""
    least = {"conversation": 0, "actor": 0, "participation": 0, "recency": 10}
    return Reasons(match, matched, **{**least, **more})


# --- signals


class Turn(NamedTuple):
    """One turn, and its id."""

    task_id: str
    text: str
    prompt: str | None = None
    context_id: str = "chat-a"


class Signal(NamedTuple):
    """Turns in the order of their creation, what is asked, and the fields that are found, best first."""

    turns: Sequence[Turn]
    question: str
    expected: Sequence[tuple[At, Reasons]]
    near: str | None = None


SIGNALS = {
    "a better match comes before a newer turn": Signal(
        [Turn("both", "deploy the rollback"), Turn("one", "deploy")],
        "rollback deploy",
        [(("both", "content"), reasons(17, 2, recency=9)), (("one", "content"), reasons(8, 1))],
    ),
    "a rare word comes before a common one": Signal(
        [Turn("rare", "zebra"), *(Turn(name, "deploy") for name in ("first", "second", "third"))],
        "deploy zebra",
        [
            (("rare", "content"), reasons(9, 1, recency=8)),
            (("third", "content"), reasons(7, 1)),
            (("second", "content"), reasons(7, 1, recency=9)),
            (("first", "content"), reasons(7, 1, recency=8)),
        ],
    ),
    "the current conversation comes first": Signal(
        [Turn("here", "zebra"), Turn("there", "zebra", context_id="chat-b")],
        "zebra",
        [(("here", "content"), reasons(8, 1, conversation=1, recency=9)), (("there", "content"), reasons(8, 1))],
        near="chat-a",
    ),
    "the requester comes before the agent": Signal(
        [Turn("turn", "zebra", prompt="zebra")],
        "zebra",
        [
            (("turn", "prompt"), reasons(8, 1, actor=1, participation=1)),
            (("turn", "content"), reasons(8, 1, participation=1)),
        ],
    ),
    "a turn that a person opened comes before one that nobody did": Signal(
        [Turn("opened", "zebra", prompt="?"), Turn("fired", "zebra")],
        "zebra",
        [(("opened", "content"), reasons(8, 1, participation=1, recency=9)), (("fired", "content"), reasons(8, 1))],
    ),
    "a newer turn comes before an older one, even when they count as equally new": Signal(
        [Turn(name, "智能") for name in ("first", "second", "third", "fourth")],
        "智能",
        [
            (("fourth", "content"), reasons(7, 1)),
            (("third", "content"), reasons(7, 1, recency=9)),
            (("second", "content"), reasons(7, 1, recency=8)),
            (("first", "content"), reasons(7, 1, recency=8)),
        ],
    ),
}


@pytest.mark.usefixtures("sqlite_suffices")
@pytest.mark.parametrize("signal", SIGNALS.values(), ids=list(SIGNALS))
async def test_signals(signal: Signal, store: rig.Store, asked: Asked) -> None:
    """Each signal gives the order, and each hit says why it stands where it does."""
    for turn in signal.turns:
        await store.turn(turn.context_id, text=turn.text, prompt=turn.prompt, task_id=turn.task_id)
    found = await asked.find(signal.question, near=signal.near)
    told = [((each.candidate.task_id, each.candidate.field), each.candidate.reasons) for each in found]
    assert list(signal.expected) == told


def test_a_score_is_a_sum_of_integers() -> None:
    """A match counts most, then the conversation; recency decides between equals."""
    assert 8 * 9 + 6 + 2 + 2 + 10 == Reasons(9, 1, 1, 1, 1, 10).score
    names = ("match", "matched", "conversation", "actor", "participation", "recency")
    assert dict(zip(names, range(1, 7), strict=True)) == Reasons(1, 2, 3, 4, 5, 6).body()


@pytest.mark.parametrize(
    ("fields", "depth", "expected"),
    [(0, 256, 0), (1, 256, 9), (2, 256, 8), (3, 256, 7), (128, 256, 2), (129, 256, 1), (256, 256, 1), (32, 32, 1)],
)
def test_the_weight_of_a_term(fields: int, depth: int, expected: int) -> None:
    """The fewer fields hold a term the more it tells; one that nobody wrote tells nothing."""
    assert expected == ranked.weight(fields, depth)


async def test_a_hit(store: rig.Store, asked: Asked) -> None:
    """A hit has its place, its row as it is stored, what the turn says, and the terms that it holds."""
    steer = operator("deploy the zebra")
    task_id = await store.turn("chat-a", text="运行 deploys", prompt="Now?", history=[steer])
    second, first = await asked.find("DEPLOY 运行 zebra nothing", fields=frozenset({"steers", "content"}))
    assert ("content", "steers") == (first.candidate.field, second.candidate.field)
    assert [frozenset({"deploy", "运行"}), frozenset({"deploy", "zebra"})] == [first.terms, second.terms]
    assert ("chat-a", task_id, 1) == (first.candidate.context_id, first.row.id, second.candidate.position)
    assert ("Now?", ("deploy the zebra",), "运行 deploys") == (
        first.texts.prompt,
        first.texts.steers,
        first.texts.content,
    )


async def test_what_finds_nothing(store: rig.Store, asked: Asked) -> None:
    """No terms find nothing, nor do those that nobody wrote; a title is never found."""
    await store.turn("chat-a", prompt="okapi", text="zebra")
    assert [[]] * 4 == [await asked.find(text) for text in ("", "the of", "…", "nothing")]
    assert ["prompt"] == [each.candidate.field for each in await asked.find("okapi")]


# --- filters


async def fill(store: rig.Store) -> None:
    """Turns that all say zebra."""
    await store.turn("chat-a", task_id="a1", text="zebra", prompt=None, at="2026-01-05T09:00:00Z", owner="alice")
    await store.turn("chat-b", task_id="b1", text="zebra", prompt=None, at="2026-01-05T10:00:00Z", owner="bob")
    await store.turn("chat-a", task_id="a2", text="x", prompt="zebra", at="2026-01-05T11:00:00Z", owner="alice")
    await store.turn("api-c", task_id="c1", text="zebra", prompt=None, at=None, owner="")


FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"a1", "b1", "a2", "c1"}),
    ({"since": datetime(2026, 1, 5, 10)}, {"b1", "a2"}),
    ({"until": datetime(2026, 1, 5, 10)}, {"a1", "b1"}),
    ({"since": datetime(2026, 1, 5, 9, 0, 0, 1), "until": datetime(2026, 1, 5, 10, 59)}, {"b1"}),
    ({"since": datetime(2026, 1, 5, 12)}, set()),
    ({"until": datetime(2025, 1, 1)}, set()),
    ({"since": datetime.min}, {"a1", "b1", "a2"}),
    ({"until": datetime.max}, {"a1", "b1", "a2"}),
    ({"conversation": "chat-a"}, {"a1", "a2"}),
    ({"conversation": "chat-a", "until": datetime(2026, 1, 5, 9)}, {"a1"}),
    ({"conversation": "chat-none"}, set()),
    ({"task_id": "b1"}, {"b1"}),
    ({"task_id": "b1", "conversation": "chat-b"}, {"b1"}),
    ({"task_id": "b1", "conversation": "chat-a"}, set()),
    ({"fields": frozenset({"prompt"})}, {"a2"}),
    ({"fields": frozenset({"steers"})}, set()),
    ({"fields": frozenset({"content"}), "conversation": "chat-a"}, {"a1"}),
    ({"scope": Scope("chat-", None)}, {"a1", "b1", "a2"}),
    ({"scope": Scope("api-", None), "conversation": "chat-a"}, set()),
    ({"scope": Scope("", frozenset({"alice"}))}, {"a1", "a2"}),
    ({"scope": Scope("", frozenset({"bob", ""}))}, {"b1", "c1"}),
    ({"scope": Scope("", frozenset({"nobody"}))}, set()),
    ({"scope": Scope("", frozenset({"bob"})), "conversation": "chat-a"}, set()),
    ({"scope": Scope("", frozenset({"bob"})), "since": datetime(2026, 1, 5)}, {"b1"}),
]


async def test_filters(store: rig.Store, asked: Asked) -> None:
    """Only turns that pass every filter are found; one without a time passes no bound."""
    await fill(store)
    for more, expected in FILTERS:
        found = {each.candidate.task_id for each in await asked.find("zebra", **more)}
        assert expected == found, more


async def test_the_weight_tells_nothing_of_others_turns(store: rig.Store, asked: Asked) -> None:
    """A term weighs for a narrowed token as if the turns of the others were not there."""
    await store.turn("chat-a", text="zebra", prompt=None, owner="alice")
    (alone,) = await asked.find("zebra", Scope("", frozenset({"alice"})))
    for number in range(40):
        await store.turn(f"chat-{number}", text="zebra", prompt=None, owner="bob")
    (among,) = await asked.find("zebra", Scope("", frozenset({"alice"})))
    assert alone.candidate.reasons == among.candidate.reasons == reasons(9, 1)


async def test_an_odd_time_matches_no_bound(store: rig.Store, asked: Asked) -> None:
    """SQLite stores what it was given, though it may sort between two times; PostgreSQL has times that Python lacks."""
    odd = ("'2026-01-05 garbage'", "20260105", "CAST('2026-01-05 09:00:00.000000' AS BLOB)")
    endless = ("'infinity'", "'-infinity'", "'4000-01-01 BC'")
    for time in odd if store.kind == "sqlite" else endless:
        task_id = await store.turn("chat-a", text="zebra", prompt=None)
        await store.raw(f"UPDATE tasks SET last_updated = {time} WHERE id = :id", id=task_id)
    assert 3 == len(await asked.find("zebra"))
    assert [] == await asked.find("zebra", since=datetime(2020, 1, 1), until=datetime(2030, 1, 1))
    assert [] == await asked.find("zebra", since=datetime.min, until=datetime.max)


async def test_a_store_without_times(sdk_database: rig.LoadSdkDatabase) -> None:
    """On a 0.x store nothing matches a bound, a narrowed token sees nothing, and the rest is as anywhere."""
    async with asking(await sdk_database("0.3.26")) as asked:
        assert await asked.find("plan")
        assert [] == await asked.find("plan", since=datetime(2020, 1, 1))
        assert [] == await asked.find("plan", Scope("", frozenset({""})))


# --- what no longer holds


async def test_a_turn_saved_since_says_what_it_says_now(store: rig.Store, asked: Asked) -> None:
    """Of a turn saved after it was indexed only the terms that its field holds now count, and without one it is gone.

    It stands where the index puts it.
    """
    for task_id in ("none", "fewer", "more", "incognito", "later"):
        text = "deploy" if task_id == "more" else "deploy zebra"
        await store.turn("chat-a", task_id=task_id, text=text, prompt=None, at="2026-01-05T09:00:00Z")
    assert 5 == len(await asked.find("deploy zebra"))
    hidden = [operator("?", incognito=True)]
    for task_id, text, history in (
        *(("none", "okapi", []), ("fewer", "zebras", []), ("more", "zebra deploys", [])),
        *(("incognito", "deploy zebra", hidden), ("later", "deploy zebra", [])),
    ):
        at = "2026-01-06T09:00:00Z" if task_id == "later" else "2026-01-05T09:00:01Z"
        await store.turn("chat-a", "working", text, None, at=at, task_id=task_id, history=history)
    found = await asked.find_now("deploy zebra", until=datetime(2026, 1, 5, 12))
    assert [("fewer", frozenset({"zebra"})), ("more", frozenset({"deploy", "zebra"}))] == [
        (each.candidate.task_id, each.terms) for each in found
    ]
    assert ["zebras", "zebra deploys"] == [each.texts.content for each in found]
    assert [2, 1] == [each.candidate.reasons.matched for each in found]


@pytest.mark.parametrize("how", ["retired", "cleared", "deleted", "moved"])
async def test_what_was_taken_away_is_not_found(how: str, store: rig.Store, asked: Asked) -> None:
    """A turn that is gone, or another conversation's by now, is not found in an index that does not know it yet."""
    task_id = await store.turn("chat-a", text="zebra", prompt=None)
    assert [(task_id, "content")] == order(await asked.find("zebra"))
    if how == "deleted":
        await store.delete(task_id)
    elif how == "moved":
        await store.turn("chat-c", text="zebra", prompt=None, task_id=task_id)
    else:
        await retired(asked.client, "chat-a", retire=str(how == "retired").lower())
        await store.turn("chat-a", text="zebra", prompt=None, task_id=task_id)
    assert [[], []] == [await asked.find_now("zebra", conversation=each) for each in (None, "chat-a")]
    assert await asked.search.standing(task_id, None) is None


@pytest.mark.usefixtures("sqlite_suffices")
async def test_what_goes_while_hits_are_read_is_not_shown(
    store: rig.Store, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are read in pieces, each as it is then: what was retired after the ranking is left out of the later ones."""
    monkeypatch.setattr(service, "_CANDIDATES_A_READ", 1)
    for context_id in ("chat-a", "chat-b", "chat-c"):
        await store.turn(context_id, text="zebra", prompt=None)
    await asked.search.availability()
    shown = []
    async for found in asked.search.ranked(Question(("zebra",), EVERYBODY, ANY_FIELD)):
        shown.append(found.candidate.context_id)
        if len(shown) == 1:
            await retired(asked.client, "chat-b")
    assert ["chat-c", "chat-a"] == shown


async def test_standing(store: rig.Store, asked: Asked) -> None:
    """A turn's conversation is told to whoever may see the turn, once it is indexed."""
    task_id = await store.turn("chat-a", owner="alice")
    incognito = await store.turn("chat-a", prompt=None, history=[operator("?", incognito=True)])
    await asked.search.availability()
    standing = asked.search.standing
    assert ["chat-a", "chat-a"] == [await standing(task_id, each) for each in (None, frozenset({"alice", "bob"}))]
    assert [None, None, None] == [
        await standing(task_id, frozenset({"bob"})),
        await standing(incognito, None),
        await standing("unknown", None),
    ]


async def test_the_first_conversation_is_taken_in_first(store: rig.Store, asked: Asked) -> None:
    """The availability is that of the search."""
    await store.turn("chat-a")
    availability = await asked.search.availability(first="chat-a")
    assert (1, 0) == (availability.indexed, availability.pending)


# --- bounds


@pytest.mark.usefixtures("sqlite_suffices")
async def test_of_many_fields_the_newest_count(store: rig.Store, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A term's older fields are candidates through another term alone, and then it counts, too."""
    monkeypatch.setattr(ranked, "FIELDS_A_TERM", (2, 2))
    for task_id, text in (("rare", "zebra deploy"), ("old", "deploy"), ("new", "deploy"), ("newest", "deploy")):
        await store.turn("chat-a", task_id=task_id, text=text, prompt=None)
    assert ["newest", "new"] == [task_id for task_id, _ in order(await asked.find("deploy"))]
    found = await asked.find("zebra deploy")
    assert ["rare", "newest", "new"] == [task_id for task_id, _ in order(found)]
    assert (frozenset({"zebra", "deploy"}), 2 + 1) == (found[0].terms, found[0].candidate.reasons.match)
    assert ["newest", "new"] == [task_id for task_id, _ in order(await asked.find("deploy", conversation="chat-a"))]


@pytest.mark.usefixtures("sqlite_suffices")
async def test_of_many_candidates_the_best_are_ranked(
    store: rig.Store, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What matches best is ranked, however old; of what matches alike the newest."""
    monkeypatch.setattr(ranked, "CANDIDATES", 3)
    for task_id, text in (("rare", "zebra"), *((f"common{number}", "deploy") for number in range(5))):
        await store.turn("chat-a", task_id=task_id, text=text, prompt=None)
    found = order(await asked.find("zebra deploy"))
    assert ["rare", "common4", "common3"] == [task_id for task_id, _ in found]


@pytest.mark.usefixtures("sqlite_suffices")
@pytest.mark.parametrize(("looked_at", "expected"), [(50_000, 2), (20, 0), (0, 0)])
async def test_where_few_may_be_seen_older_fields_are_looked_at(
    looked_at: int, expected: int, store: rig.Store, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A term's fields are followed back until enough of them may be seen, or very many were looked at."""
    monkeypatch.setattr(ranked, "FIELDS_A_TERM", (2, 2))
    monkeypatch.setattr(ranked, "FIELDS_LOOKED_AT", looked_at)
    for number in range(40):
        await store.turn("chat-a" if number < 3 else "api-b", text="zebra", prompt=None)
    assert expected == len(await asked.find("zebra", Scope("chat-", None)))


@pytest.mark.usefixtures("sqlite_suffices")
async def test_a_term_that_was_not_followed_to_its_end_counts_as_a_common_one(
    store: rig.Store, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field that another term leads to holds it all the same."""
    monkeypatch.setattr(ranked, "FIELDS_A_TERM", (2, 2))
    monkeypatch.setattr(ranked, "FIELDS_LOOKED_AT", 20)
    await store.turn("chat-a", text="zebra okapi", prompt=None)
    for _ in range(20):
        await store.turn("api-b", text="zebra", prompt=None)
    (found,) = await asked.find("zebra okapi", Scope("chat-", None))
    assert (frozenset({"zebra", "okapi"}), reasons(1 + 2, 2)) == (found.terms, found.candidate.reasons)


@pytest.mark.usefixtures("sqlite_suffices")
async def test_times_of_very_many_turns(store: rig.Store, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more turns of a time than are looked at the latest tell from where on fields are looked for."""
    monkeypatch.setattr(ranked, "TURNS_OF_A_NAME", 2)
    for number in range(8):
        await store.turn("chat-a", task_id=f"t{number}", text="zebra", prompt=None)
    found = await asked.find("zebra", since=rig.FIRST_TURN, until=rig.FIRST_TURN + timedelta(minutes=5))
    assert [f"t{number}" for number in (5, 4, 3, 2, 1, 0)] == [task_id for task_id, _ in order(found)]
    assert ["t7", "t6"] == [task_id for task_id, _ in order(await asked.find("zebra", conversation="chat-a"))]


@pytest.mark.usefixtures("sqlite_suffices")
async def test_long_turns_come_in_their_order(store: rig.Store, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that have no place in memory together are read one after the other, best first."""
    monkeypatch.setattr(service, "_BYTES_A_READ", 20_000)
    expected = []
    for number in range(7):
        text = f"{'deploy' if number % 2 else ''} zebra {'filler ' * 800 * (number % 4)}"
        await store.turn("chat-a", task_id=f"t{number}", text=text, prompt=None)
        expected.append((number % 2, number))
    found = await asked.find("deploy zebra")
    assert [f"t{number}" for _, number in sorted(expected, reverse=True)] == [each.row.id for each in found]
    assert all("zebra" in each.texts.content for each in found)


async def test_a_question_of_many_terms(store: rig.Store, asked: Asked) -> None:
    """A question may have as many terms as `terms` gives."""
    text = " ".join(f"w{number}" for number in range(400))
    await store.turn("chat-a", text=text, prompt=None)
    (found,) = await asked.find(text)
    assert (words.MOST_TERMS, frozenset(words.terms(text))) == (len(found.terms), found.terms)
