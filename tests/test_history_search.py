"""An agent's search of its own history over HTTP: what is found, what stands beside it, and what it never shows."""

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from sidecar.app import create_app
from sidecar.db import Database
from sidecar.openapi import ref
from sidecar.reading import Reading
from sidecar.search import ranked
from sidecar.search.neighbours import Side, beside
from sidecar.search.recall_queries import MAX_LOADED, MAX_LOADED_CHARACTERS
from sidecar.search.service import Search
from tests import rig
from tests.test_openapi import conforms
from tests.test_paths import on_sqlite
from tests.test_ranked_plans import Explaining, Plan
from tests.test_search import STEERED, operator, retired
from tombstones.table import Shape

RECALL = "/agent_api/v1/workspaces/default/history_search"
KEY = "the-key-of-the-digests-of-tests-0123"
RUN = {"X-Run-Id": "run-1"}


async def recall(client: httpx.AsyncClient, query: str, headers: rig.Json | None = None, **body: Any) -> rig.Json:
    """The answer to a search; of `run-1`, unless the headers name another."""
    response = await client.post(RECALL, json={"query": query, **body}, headers={**RUN, **(headers or {})})
    assert 200 == response.status_code, response.text
    answer: rig.Json = response.json()
    return answer


def texts(messages: list[rig.Json]) -> list[str]:
    return [message["text"] for message in messages]


def tokens_file(folder: Path, scopes: str = '"search", "audit"', **owners: str) -> Path:
    """A file of tokens by their names, each with its one owner; `*` is all of them."""
    file = folder / "tokens.toml"
    tables = (
        f'[[token]]\nname = "{name}"\nsha256 = "{hashlib.sha256(token_of(name).encode()).hexdigest()}"\n'
        f'scopes = [{scopes}]\nowners = ["{owner}"]\n'
        for name, owner in owners.items()
    )
    file.write_text("".join(tables))
    file.chmod(0o600)
    return file


def token_of(name: str) -> str:
    return f"the-token-of-{name}-0123456789"


@pytest.fixture
async def agent(store: rig.Store, open_sidecar: rig.OpenSidecar) -> httpx.AsyncClient:
    """The client of a sidecar that may record searches."""
    return await open_sidecar(store, audit_key=KEY)


# --- what is found


async def test_an_answer_is_as_published(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """A hit names conversation, turn, message, time, speaker, text and reasons, with what was said beside it."""
    first = await store.turn("chat-a", prompt="Which animal?", text="The okapi.", at="2026-01-05T09:00:00Z")
    await store.turn("chat-a", prompt="Really?", text="Yes.", at=None)
    answer = await recall(agent, "okapi")
    assert conforms(ref("HistoryEvidence"), answer), answer
    (hit,) = answer["hits"]
    assert ("chat-a", first, f"{first}:content:0") == tuple(
        hit[name] for name in ("conversation_public_id", "turn_public_id", "message_id")
    )
    assert ("2026-01-05T09:00:00Z", "you", "The okapi.", False) == tuple(
        hit[name] for name in ("time", "speaker", "text", "truncated")
    )
    assert ["okapi"] == hit["reasons"]["terms"]
    assert ["Which animal?"] == texts(hit["before"])
    assert ["Really?", "Yes."] == texts(hit["after"])
    assert ["requester", "you"] == [message["speaker"] for message in hit["after"]]
    assert (["okapi"], False) == (answer["query_lexemes"], answer["search_budget_exhausted"])


async def test_words_are_alternatives_and_more_of_them_rank_higher(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Any word may match, the field with more of them comes first, though it is older, and says which they are."""
    both = await store.turn("chat-a", text="The migration of the okapi.")
    one = await store.turn("chat-b", text="The okapi.")
    hits = (await recall(agent, "okapi migration unheard-of"))["hits"]
    assert [both, one] == [hit["turn_public_id"] for hit in hits]
    assert [["migrat", "okapi"], ["okapi"]] == [hit["reasons"]["terms"] for hit in hits]
    assert hits[0]["reasons"]["score"] > hits[1]["reasons"]["score"]


async def test_signals_decide_among_equal_matches(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """The current conversation, the requester's own words, a turn that a person opened, the newer turn: all told."""
    names = ("conversation", "actor", "participation")
    await store.turn("chat-old", prompt=None, text="okapi old")
    await store.turn("chat-new", prompt=None, text="okapi new")
    await store.turn("chat-opened", prompt="Go", text="okapi opened")
    await store.turn("chat-asked", prompt="okapi asked", text="Yes.")
    await store.turn("chat-here", prompt=None, text="okapi here")
    current = await store.turn("chat-here", "working", prompt="Now", text=None)
    hits = (await recall(agent, "okapi", {"X-Current-Turn": current}))["hits"]
    told = [(hit["text"].removeprefix("okapi "), *(hit["reasons"][name] for name in names)) for hit in hits]
    assert [
        ("here", 1, 0, 0),
        ("asked", 0, 1, 1),
        ("opened", 0, 0, 1),
        ("new", 0, 0, 0),
        ("old", 0, 0, 0),
    ] == told
    assert hits[3]["reasons"]["recency"] > hits[4]["reasons"]["recency"]


@pytest.mark.usefixtures("sqlite_suffices")
async def test_words_that_no_index_holds_find_nothing(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Stop words alone are no error, and say so."""
    await store.turn("chat-a", text="The okapi.")
    answer = await recall(agent, "the")
    assert ([], [], ["the"]) == (answer["hits"], answer["query_lexemes"], answer["ignored_terms"])


@pytest.mark.parametrize(("given", "shown"), [({}, 8), ({"limit": None}, 8), ({"limit": 1}, 1), ({"limit": 99}, 20)])
@pytest.mark.usefixtures("sqlite_suffices")
async def test_limits(given: rig.Json, shown: int, store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Eight hits unless another number is asked for, and never more than twenty."""
    for number in range(21):
        await store.turn(f"chat-{number}", text="An okapi.")
    assert shown == len((await recall(agent, "okapi", **given))["hits"])


@pytest.mark.parametrize(
    ("given", "speakers"),
    [
        ({}, {"requester", "you"}),
        ({"speaker": "anyone"}, {"requester", "you"}),
        ({"speaker": "requester"}, {"requester"}),
        ({"speaker": "you"}, {"you"}),
    ],
    ids=["all", "anyone", "requester", "you"],
)
@pytest.mark.usefixtures("sqlite_suffices")
async def test_speakers(given: rig.Json, speakers: set[str], store: rig.Store, agent: httpx.AsyncClient) -> None:
    """The requester says prompts and interjections, the agent its answers; neighbours are of either."""
    await store.turn("chat-a", prompt="okapi", history=[operator("okapi, please")], text="okapi!")
    hits = (await recall(agent, "okapi", **given))["hits"]
    assert speakers == {hit["speaker"] for hit in hits}
    everything = {each["text"] for hit in hits for each in (hit, *hit["before"], *hit["after"])}
    assert {"okapi", "okapi, please", "okapi!"} == everything


TIMES: list[tuple[rig.Json, set[str]]] = [
    ({"since": "2026-01-05T10:00:00Z"}, {"ten", "eleven"}),
    ({"until": "2026-01-05T10:00:00Z"}, {"nine"}),
    ({"since": "2026-01-05T10:00:00Z", "until": "2026-01-05T11:00:00Z"}, {"ten"}),
    ({"since": "2026-01-05T12:00:00.000001+02:00", "until": "2026-01-05t11:00:00.0000010z"}, {"eleven"}),
    ({"since": "0001-01-01T00:00:00Z"}, {"nine", "ten", "eleven"}),
    ({"until": "0001-01-01T00:00:00Z"}, set()),
    ({"until": "9999-12-31T23:59:59Z"}, {"nine", "ten", "eleven"}),
]


async def test_times(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """`since` is the first moment that counts and `until` the first that does not; a turn without a time never does."""
    for hour, text in ((9, "nine"), (10, "ten"), (11, "eleven")):
        await store.turn(f"chat-{hour}", text=f"okapi {text}", at=f"2026-01-05T{hour:02}:00:00Z")
    await store.turn("chat-undated", text="okapi sometime", at=None)
    for bounds, found in TIMES:
        hits = (await recall(agent, "okapi", **bounds))["hits"]
        assert {f"okapi {each}" for each in found} == set(texts(hits)), bounds


async def test_one_conversation(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Without a name the sessions are searched; any context by its name; one that is not there has nothing."""
    for context in ("chat-a", "chat-b", "side-c"):
        await store.turn(context, text="An okapi.")
    named = {name: (await recall(agent, "okapi", conversation_public_id=name))["hits"] for name in ("side-c", "chat-x")}
    assert ["side-c"] == [hit["conversation_public_id"] for hit in named["side-c"]]
    assert [] == named["chat-x"]
    hits = (await recall(agent, "okapi"))["hits"]
    assert {"chat-a", "chat-b"} == {hit["conversation_public_id"] for hit in hits}


# --- messages


@pytest.mark.usefixtures("sqlite_suffices")
async def test_messages_have_stable_ids(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """The stored id of a message or of a marker's item; else one of the turn, the field and the number."""
    prompt, later = operator("okapi prompt"), operator("okapi later")
    items = {"items": [{"id": "item-1", "text": "okapi item"}, {"text": "okapi nameless"}]}
    marker = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"data": items, "mediaType": STEERED}]}
    odd = {**operator("okapi odd"), "messageId": "x" * 256}
    turn = await store.turn("chat-a", prompt=None, history=[prompt, marker, later, odd], text="Done.")
    told = await recall(agent, "prompt item nameless later odd done", speaker="anyone")
    everything = [each for hit in told["hits"] for each in (hit, *hit["before"], *hit["after"])]
    ids = {each["text"]: each["message_id"] for each in everything}
    assert ids == {
        "okapi prompt": prompt["messageId"],
        "okapi item": "item-1",
        "okapi nameless": f"{turn}:steers:1",
        "okapi later": later["messageId"],
        "okapi odd": f"{turn}:steers:3",
        "Done.": f"{turn}:content:0",
    }
    assert told["hits"] == (await recall(agent, "prompt item nameless later odd done"))["hits"]


@pytest.mark.usefixtures("sqlite_suffices")
async def test_no_two_messages_of_a_turn_have_one_id(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Of two that their producer gave the same, or that of another's place, one is told by its own place."""
    items = {"items": [{"id": "twice", "text": "okapi item"}]}
    marker = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"data": items, "mediaType": STEERED}]}
    history = [marker, {**operator("okapi asked"), "messageId": "twice"}]
    await store.turn("chat-a", prompt=None, history=history, text="zebra", task_id="turn-1")
    history = [{**operator("giraffe asked"), "messageId": "turn-2:content:0"}]
    await store.turn("chat-b", prompt=None, history=history, text="giraffe told", task_id="turn-2")
    (hit,) = (await recall(agent, "zebra"))["hits"]
    before = [(each["message_id"], each["text"]) for each in hit["before"]]
    assert [("twice", "okapi asked"), ("turn-1:steers:0", "okapi item")] == before
    hits = (await recall(agent, "giraffe"))["hits"]
    ids = {"giraffe asked": "turn-2:prompt:0", "giraffe told": "turn-2:content:0"}
    assert ids == {each["text"]: each["message_id"] for each in hits}
    beside = {each["text"]: (texts(each["before"]), texts(each["after"])) for each in hits}
    assert {"giraffe asked": ([], ["giraffe told"]), "giraffe told": (["giraffe asked"], [])} == beside


@pytest.mark.usefixtures("sqlite_suffices")
async def test_of_the_steers_the_one_that_fits_best_is_the_hit(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """The first of those with most of the words; what was said around it stands beside it."""
    steers = [operator(text) for text in ("an okapi", "an okapi and a zebra", "a zebra and an okapi", "nothing")]
    await store.turn("chat-a", prompt="go", history=steers, text="Done.")
    (hit,) = (await recall(agent, "okapi zebra"))["hits"]
    assert ("an okapi and a zebra", steers[1]["messageId"]) == (hit["text"], hit["message_id"])
    assert (["go", "an okapi"], ["a zebra and an okapi", "nothing"]) == (texts(hit["before"]), texts(hit["after"]))


@pytest.mark.usefixtures("sqlite_suffices")
async def test_texts_are_bounded(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """A hit has 1,000 characters around its word, a neighbour the first 250, and both say when that is not all."""
    await store.turn("chat-a", prompt="p" * 251, text=f"{'a ' * 2000}okapi{' b' * 2000}")
    await store.turn("chat-a", prompt="q" * 250, text="x")
    (hit,) = (await recall(agent, "okapi"))["hits"]
    assert (1000, True) == (len(hit["text"]), hit["truncated"])
    assert 480 < hit["text"].index("okapi") < 520
    assert [("p" * 250, True)] == [(each["text"], each["truncated"]) for each in hit["before"]]
    assert [("q" * 250, False), ("x", False)] == [(each["text"], each["truncated"]) for each in hit["after"]]


async def test_neighbours_are_of_any_speaker_and_time(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """They are the two messages nearest on each side, in the conversation's order, whatever the filters leave out."""
    for number in range(5):
        animal = "okapi" if number == 2 else "zebra"
        await store.turn(
            "chat-a", prompt=f"ask {number}", text=f"{animal} {number}", at=f"2026-01-0{number + 1}T00:00:00Z"
        )
        await store.turn("chat-b", prompt="elsewhere", text="elsewhere")
    (hit,) = (await recall(agent, "okapi", speaker="you", since="2026-01-03T00:00:00Z", until="2026-01-03T00:00:01Z"))[
        "hits"
    ]
    assert (["zebra 1", "ask 2"], ["ask 3", "zebra 3"]) == (texts(hit["before"]), texts(hit["after"]))


async def test_neighbours_beyond_turns_without_a_message(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """A turn that says nothing is passed over, and so are four of them; further away nothing is looked for."""
    for silent, text in ((0, "far"), (4, "okapi"), (3, "near")):
        for _ in range(silent):
            await store.turn("chat-a", prompt=None, text=None)
        await store.turn("chat-a", prompt=None, text=text)
    (hit,) = (await recall(agent, "okapi"))["hits"]
    assert ([], ["near"]) == (texts(hit["before"]), texts(hit["after"]))


@pytest.mark.parametrize("kind", ["postgres"])
async def test_neighbours_in_a_long_conversation_are_read_one_by_one(store: rig.Store) -> None:
    """By the plan of their statement nothing is sorted, and no table is read whole."""
    await store.raw(
        "INSERT INTO tasks (id, context_id, kind, owner, status) "
        "SELECT 't-' || number, 'chat-a', 'task', '', '{}' FROM generate_series(1, 3000) AS number"
    )
    await rig.prepare(store)
    config = rig.config_for(store)
    database = Database(config)
    await Search(database, config).reindex(lambda done, todo: None)
    await store.raw("ANALYZE")

    async def explained(conn: Reading, shape: Shape) -> list[Plan]:
        explaining = Explaining(conn._driver, conn._dialect)
        explaining.plans = []
        sides = [Side(1500, newer) for newer in (False, True)]
        assert [1499, 1501] == [(await beside(explaining, shape, sides, None))[side] for side in sides]
        return explaining.plans

    plans = await database.read(explained)
    await database.close()
    wholes = ("Sort ", "Seq Scan tasks ", "Seq Scan tasks_search_turns ")
    assert [] == [step for plan in plans for step in plan.steps if step.startswith(wholes)]


# --- what is never shown


@pytest.mark.parametrize("how", ["deleted", "cleared", "incognito", "hidden"])
async def test_what_may_not_be_seen_is_no_hit_and_no_neighbour(
    how: str, store: rig.Store, agent: httpx.AsyncClient
) -> None:
    """A deleted or an incognito turn is passed over, and of one without a bubble the answer alone is told."""
    await store.turn("chat-a", prompt=None, text="okapi before")
    hidden = {"incognito": {"incognito": True}, "hidden": {"hidden": True}}.get(how, {})
    turn = await store.turn("chat-a", prompt=None, history=[operator("okapi asked", **hidden)], text="okapi told")
    await store.turn("chat-a", prompt=None, text="okapi after")
    if how == "deleted":
        await recall(agent, "okapi")
        await store.delete(turn)
    if how == "cleared":
        await recall(agent, "okapi")
        await store.raw("INSERT INTO tasks_task_tombstones VALUES (:id, CURRENT_TIMESTAMP)", id=turn)
    told = ["okapi told"] if how == "hidden" else []
    hits = (await recall(agent, "okapi"))["hits"]
    assert sorted(["okapi before", *told, "okapi after"]) == sorted(texts(hits))
    (before,) = (hit for hit in hits if hit["text"] == "okapi before")
    assert [*told, "okapi after"] == texts(before["after"])


async def test_a_saved_turn_is_shown_as_it_is_now(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Texts come from the stored turn: what it does not say any more is neither found nor told beside a hit."""
    turn = await store.turn("chat-a", text="An okapi.")
    await store.turn("chat-a", prompt=None, text="A zebra.")
    assert 1 == len((await recall(agent, "okapi"))["hits"])
    await store.turn("chat-a", text="A giraffe.", task_id=turn)
    assert [] == (await recall(agent, "okapi"))["hits"]
    (hit,) = (await recall(agent, "zebra"))["hits"]
    assert ["The question?", "A giraffe."] == texts(hit["before"])


@pytest.mark.parametrize("retire", ["true", "false"])
async def test_a_retired_or_cleared_session_is_gone(retire: str, store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Neither is found again, and a late save brings nothing back."""
    turn = await store.turn("chat-gone", text="okapi gone")
    await store.turn("chat-kept", text="okapi kept")
    assert 2 == len((await recall(agent, "okapi"))["hits"])
    await retired(agent, "chat-gone", retire=retire)
    await store.turn("chat-gone", text="okapi gone", task_id=turn)
    assert ["okapi kept"] == texts((await recall(agent, "okapi"))["hits"])


async def test_a_token_sees_its_owners_alone(store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path) -> None:
    """What others own is no hit and no neighbour, in one conversation, too, and counts as no current turn."""
    await store.turn("chat-a", prompt=None, text="okapi one", owner="alice")
    other = await store.turn("chat-a", prompt=None, text="okapi two", owner="bob")
    await store.turn("chat-a", prompt=None, text="okapi three", owner="alice")
    tokens = tokens_file(tmp_path, alice="alice")
    client = await open_sidecar(store, token_of("alice"), tokens_file=tokens, audit_key=KEY)
    answer = await recall(client, "okapi", {"X-Current-Turn": other})
    assert ["okapi three", "okapi one"] == texts(answer["hits"])
    assert (["okapi one"], ["okapi three"]) == (texts(answer["hits"][0]["before"]), texts(answer["hits"][1]["after"]))
    assert 0 == answer["search_audit"]["exclusions"]["current_turn"]
    assert {0} == {hit["reasons"]["conversation"] for hit in answer["hits"]}


# --- what the model has before it


async def test_the_current_turn_is_left_out_and_counted(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """None of its messages is a hit or a neighbour; other turns of its conversation rank above those of others."""
    await store.turn("chat-a", prompt="okapi first", text="zebra first")
    current = await store.turn("chat-a", "working", prompt="okapi now", text="okapi draft")
    await store.turn("chat-b", prompt="okapi elsewhere", text="zebra elsewhere")
    answer = await recall(agent, "okapi", {"X-Current-Turn": current})
    assert ["okapi first", "okapi elsewhere"] == texts(answer["hits"])
    assert [1, 0] == [hit["reasons"]["conversation"] for hit in answer["hits"]]
    assert ["zebra first"] == texts(answer["hits"][0]["after"])
    assert {"current_turn": 2, "loaded": 0, "budget": 0} == answer["search_audit"]["exclusions"]
    unknown = await recall(agent, "okapi", {"X-Current-Turn": "unknown-turn"})
    assert 4 == len(unknown["hits"])


async def test_loaded_messages_are_left_out_and_counted(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Neither hits nor neighbours, by their ids alone: what stands beyond them takes their place."""
    steers = [operator("okapi two"), operator("okapi three")]
    turn = await store.turn("chat-a", prompt="okapi one", history=steers, text="okapi four")
    await store.turn("chat-a", prompt="zebra", text="okapi five")
    loaded = [steers[0]["messageId"], f"{turn}:content:0", "of-no-message"]
    answer = await recall(agent, "okapi", loaded_message_ids=loaded)
    assert {"okapi one", "okapi three", "okapi five"} == set(texts(answer["hits"]))
    three = next(hit for hit in answer["hits"] if hit["text"] == "okapi three")
    assert (["okapi one"], ["zebra", "okapi five"]) == (texts(three["before"]), texts(three["after"]))
    assert {"current_turn": 0, "loaded": 2, "budget": 0} == answer["search_audit"]["exclusions"]


async def test_loaded_messages_hide_no_older_ones(
    store: rig.Store, agent: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of what is newest the model has before it, what it has not is found."""
    monkeypatch.setattr(ranked, "FIELDS_A_TERM", (2, 2))
    await store.turn("chat-a", prompt=None, text="an okapi of old")
    loaded = [await store.turn("chat-b", prompt=None, text="okapi") for _ in range(9)]
    answer = await recall(agent, "okapi", loaded_message_ids=[f"{turn}:content:0" for turn in loaded])
    assert ["an okapi of old"] == texts(answer["hits"])


# --- requests


@pytest.fixture
async def client_and_statements(store: rig.Store) -> Any:
    """A client of an empty store, and the statements that its requests make."""
    app = create_app(rig.config_for(store, audit_key=KEY))
    statements = rig.spy(app)
    async with rig.client(app) as client:
        yield client, statements


REFUSED: list[tuple[Any, str]] = [
    ({}, "`query` is missing"),
    ({"query": None}, "`query` is missing"),
    ({"query": " \n"}, "`query` is not a text, or blank"),
    ({"query": 7}, "`query` is not a text"),
    ({"query": "x" * 1025}, "`query` has more than 1024 characters"),
    ({"query": "é" * 513}, "`query` has more than 1024 bytes"),
    ({"query": "x", "speaker": "me"}, "`speaker` takes anyone or requester or you"),
    ({"query": "x", "speaker": ["you"]}, "`speaker` takes"),
    ({"query": "x", "since": "2026-01-05"}, "`since` is no time of RFC 3339"),
    ({"query": "x", "since": "2026-01-05T09:00:00"}, "`since` is no time of RFC 3339 with a zone"),
    ({"query": "x", "until": "2026-02-30T09:00:00Z"}, "`until` is no time"),
    ({"query": "x", "until": "2026-01-05T09:00:00+25:00"}, "`until` is no time"),
    ({"query": "x", "until": "0001-01-01T00:00:00+01:00"}, "`until` is no time"),
    ({"query": "x", "until": "٢٠٢٦-01-05T09:00:00Z"}, "`until` is no time"),
    ({"query": "x", "until": 1767600000}, "`until` is no time"),
    ({"query": "x", "since": "2026-01-05T09:00:00Z", "until": "2026-01-05T10:00:00+01:00"}, "`since` is not before"),
    ({"query": "x", "limit": 0}, "`limit` is not a whole number"),
    ({"query": "x", "limit": 1.0}, "`limit` is not a whole number"),
    ({"query": "x", "limit": True}, "`limit` is not a whole number"),
    ({"query": "x", "limit": "8"}, "`limit` is not a whole number"),
    ({"query": "x", "limit": 10**10}, "`limit` is not a whole number"),
    ({"query": "x", "conversation_public_id": ""}, "`conversation_public_id` is no id"),
    ({"query": "x", "conversation_public_id": "a\0"}, "`conversation_public_id` is no id"),
    ({"query": "x", "conversation_public_id": "a" * 256}, "`conversation_public_id` is no id"),
    ({"query": "x", "loaded_message_ids": "m"}, "`loaded_message_ids` is not a list"),
    ({"query": "x", "loaded_message_ids": [7]}, "`loaded_message_ids` is not a text"),
    ({"query": "x", "loaded_message_ids": [None]}, "`loaded_message_ids` is not a list of at most 1000 texts"),
    ({"query": "x", "loaded_message_ids": ["m"] * (MAX_LOADED + 1)}, "`loaded_message_ids` is not a list of at most"),
    ({"query": "x", "loaded_message_ids": ["m" * (MAX_LOADED_CHARACTERS + 1)]}, "`loaded_message_ids` has more than"),
    ({"query": "x", "owner": "bob"}, "`owner` is unknown here"),
    ({"query": "x", "audience": "all"}, "Whose history is searched follows from the token alone."),
    ({"query": "x", "agent_id": "bob"}, "Whose history is searched follows from the token alone."),
    ({"query": "x", "run_id": "r"}, "`run_id` is unknown here"),
    (["x"], "The body is not a JSON object"),
]


@on_sqlite
@pytest.mark.parametrize(("body", "detail"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
async def test_wrong_bodies_reach_no_database(body: Any, detail: str, client_and_statements: Any) -> None:
    """Each is refused by a detail that names the parameter, and an owner or audience by one that tells whose it is."""
    client, statements = client_and_statements
    response = await client.post(RECALL, json=body, headers=RUN)
    assert (400, "parameter_invalid") == (response.status_code, response.json()["code"])
    assert detail in response.json()["detail"]
    assert [] == statements


@on_sqlite
async def test_greatest_bodies_are_taken(agent: httpx.AsyncClient) -> None:
    """What stands at a bound is within it, and null is as good as nothing."""
    nulls = dict.fromkeys(("speaker", "since", "until", "limit", "conversation_public_id", "loaded_message_ids"))
    await recall(agent, "é" * 512, **nulls)
    longest = "m" * MAX_LOADED_CHARACTERS
    await recall(agent, "x", limit=9_999_999_999, conversation_public_id="ü" * 255, loaded_message_ids=[longest] * 99)
    await recall(agent, "x", loaded_message_ids=[f"message-{number}" for number in range(MAX_LOADED)])


@on_sqlite
@pytest.mark.parametrize(
    ("headers", "code", "named"),
    [
        ([], "run_required", "X-Run-Id"),
        ([("X-Run-Id", "")], "parameter_invalid", "X-Run-Id"),
        ([("X-Run-Id", "run 1")], "parameter_invalid", "X-Run-Id"),
        ([("X-Run-Id", "läuft".encode())], "parameter_invalid", "X-Run-Id"),
        ([("X-Run-Id", "r" * 129)], "parameter_invalid", "X-Run-Id"),
        ([("X-Run-Id", "run-1"), ("X-Run-Id", "run-1")], "parameter_invalid", "X-Run-Id"),
        ([("X-Run-Id", "run-1"), ("X-Current-Turn", "")], "parameter_invalid", "X-Current-Turn"),
        ([("X-Run-Id", "run-1"), ("X-Current-Turn", "t" * 256)], "parameter_invalid", "X-Current-Turn"),
    ],
)
async def test_the_runtime_says_which_run_asks(headers: Any, code: str, named: str, client_and_statements: Any) -> None:
    """Without one visible id of a run nothing is searched, nor with a current turn that is none."""
    client, statements = client_and_statements
    response = await client.post(RECALL, json={"query": "x"}, headers=headers)
    assert (400, code) == (response.status_code, response.json()["code"])
    assert named in response.json()["detail"]
    assert [] == statements


@on_sqlite
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
async def test_a_current_turn_may_have_any_letters(encoding: str, store: rig.Store, agent: httpx.AsyncClient) -> None:
    """A header has bytes: they are read as UTF-8 where they are that, else as HTTP has it."""
    await store.turn("chat-a", text="okapi", task_id="zug-für-dich")
    answer = await recall(agent, "okapi", {"X-Current-Turn": "zug-für-dich".encode(encoding)})
    assert ([], 1) == (answer["hits"], answer["search_audit"]["exclusions"]["current_turn"])


@on_sqlite
async def test_the_longest_ids_are_taken(agent: httpx.AsyncClient) -> None:
    """128 visible characters name a run, 255 a turn."""
    await recall(agent, "x", {"X-Run-Id": "!~" * 64, "X-Current-Turn": "t" * 255})


@on_sqlite
async def test_without_a_key_nothing_is_searched(store: rig.Store) -> None:
    """The answer names the setting, and no statement is run."""
    app = create_app(rig.config_for(store))
    statements = rig.spy(app)
    async with rig.client(app) as client:
        response = await client.post(RECALL, json={"query": "x"}, headers=RUN)
    assert (503, "audit_unavailable") == (response.status_code, response.json()["code"])
    assert "SIDECAR_AUDIT_KEY" in response.json()["detail"]
    assert [] == statements


@on_sqlite
async def test_gate_path_and_method(store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path) -> None:
    """The scope `search` is needed, there is one workspace, and the one method is POST."""
    tokens = tokens_file(tmp_path, '"read"', alice="alice")
    client = await open_sidecar(store, tokens_file=tokens, audit_key=KEY)
    refused = await client.post(
        RECALL, json={"query": "x"}, headers={**RUN, "Authorization": f"Bearer {token_of('alice')}"}
    )
    assert (403, "insufficient_scope") == (refused.status_code, refused.json()["code"])
    elsewhere = await client.post(RECALL.replace("default", "other"), json={"query": "x"}, headers=RUN)
    assert (404, "not_found") == (elsewhere.status_code, elsewhere.json()["code"])
    for method in ("GET", "HEAD", "PUT"):
        assert (405, "POST") == ((answer := await client.request(method, RECALL)).status_code, answer.headers["allow"])


@on_sqlite
async def test_ids_that_are_no_utf_8_break_nothing(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """A hit of such a conversation and turn is shown with its neighbours, its ids with replacement characters."""
    said = json.dumps([{"artifactId": "a", "parts": [{"text": "okapi"}]}])
    history = json.dumps([{"messageId": "\ud800", "role": "ROLE_USER", "parts": [{"text": "Which?"}]}])
    await store.insert_raw(id=b"t\xff", context_id=b"chat-\xff", artifacts=said, history=history)
    (hit,) = (await recall(agent, "okapi"))["hits"]
    assert ("chat-\ufffd", "t\ufffd", ["Which?"]) == (
        hit["conversation_public_id"],
        hit["turn_public_id"],
        texts(hit["before"]),
    )
    assert "t\ufffd:prompt:0" == hit["before"][0]["message_id"]
