"""Keyword search over HTTP on both databases: what is found, in which order, page by page, and what never is."""

import asyncio
import hashlib
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from sidecar.app import create_app
from sidecar.routes import SESSIONS
from tests import rig
from tombstones.retire import BATCH

SEARCH = "/agent_api/v1/workspaces/default/conversation_search"
CASES = json.loads((Path(__file__).parent / "data/search-cases-dev.json").read_text("utf-8"))["cases"]
STEERED = "application/vnd.protolabs.steer-consumed-v1+json"


async def search(client: httpx.AsyncClient, query: str, **params: Any) -> dict[str, Any]:
    response = await client.get(SEARCH, params={"query": query, **params})
    assert 200 == response.status_code, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def every_match(client: httpx.AsyncClient, query: str, **params: Any) -> list[dict[str, Any]]:
    """The matches of all pages."""
    matches: list[dict[str, Any]] = []
    while True:
        page = await search(client, query, **params)
        matches += page["matches"]
        if page["pagination"]["next_after"] is None:
            return matches
        params["after"] = page["pagination"]["next_after"]


async def found(client: httpx.AsyncClient, query: str, **params: Any) -> list[tuple[str | None, str]]:
    """Turn and field of every match, in order."""
    return [(each["turn_public_id"], each["field"]) for each in await every_match(client, query, **params)]


def operator(text: str, **metadata: Any) -> rig.Json:
    return rig.message("ROLE_USER", text, metadata=metadata)


def written(text: Any) -> str:
    """The text of a case: pieces, repeated or counted."""
    pieces = []
    for piece in [text] if isinstance(text, str) else text:
        if isinstance(piece, str):
            pieces.append(piece)
        elif "repeat" in piece:
            pieces.append(piece["text"] * piece["repeat"])
        else:
            pieces += [piece["format"] % number for number in range(piece["start"], piece["start"] + piece["count"])]
    return "".join(pieces)


async def test_every_case_of_the_oracle(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The lexemes of each query and the fields that it matches are those that PostgreSQL computed."""
    names: dict[str, tuple[str, str]] = {}
    for case in CASES:
        turns: dict[str, dict[str, str]] = {}
        for document in case["documents"]:
            turns.setdefault(document["turn"], {})[document["field"]] = written(document["text"])
        for turn, texts in turns.items():
            # a steer comes after a first message, here one that was no bubble
            steers = [operator("", hidden=True), operator(texts["steers"])] if "steers" in texts else []
            prompt = texts.get("prompt")
            task_id = await store.turn(
                f"chat-{case['id']}", text=texts.get("content"), prompt=prompt, history=steers[prompt is not None :]
            )
            names[task_id] = (case["id"], turn)
    wrong = {}
    for case in CASES:
        answer = await search(sidecar, case["query"], limit=50)
        matches = await every_match(sidecar, case["query"], limit=50)
        own = {
            (names[each["turn_public_id"]][1], each["field"])
            for each in matches
            if each["field"] != "title" and names[each["turn_public_id"]][0] == case["id"]
        }
        expected = case["expected"]
        if own != {(each["turn"], each["field"]) for each in expected["matches"]}:
            wrong[case["id"]] = own
        if set(answer["query_lexemes"]) != set(expected["query_lexemes"]):
            wrong[case["id"]] = answer["query_lexemes"]
    assert 40 == len(CASES)
    assert {} == wrong


async def test_an_envelope(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Every key of the seed, and beside them what was searched for, of how much."""
    task_id = await store.turn("chat-a", text="人工智能 research is running.", prompt="Research\nsecond line")
    answer = await search(sidecar, "the 人工智能 runs")
    assert {
        "matches": [
            {
                "conversation_public_id": "chat-a",
                "title": "Research",
                "turn_public_id": task_id,
                "variant_public_id": task_id,
                "position": 1,
                "field": "content",
                "inherited": False,
                "excerpt": "人工智能 research is running.",
                "truncated": False,
                "state": "TASK_STATE_COMPLETED",
            }
        ],
        "pagination": {"next_after": None},
        "query_lexemes": ["run", "人工", "人工智能", "智能"],
        "ignored_terms": ["the"],
        "availability": {
            "indexed": 1,
            "pending": 0,
            "complete": True,
            "checked": "all" if store.kind == "postgres" else "changed",
        },
    } == answer


async def test_a_title_hit_has_no_turn(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A title is the first line of the first prompt that was seen, and counts as the conversation's newest turn."""
    first = await store.turn("chat-a", prompt="Lisbon trip\nplease", text="Booked.")
    other = await store.turn("chat-b", prompt="Lisbon weather", text="Sunny.")
    last = await store.turn("chat-a", prompt="And the lisbon hotel?", text="Booked, too.")
    matches = (await search(sidecar, "lisbon"))["matches"]
    assert [(last, "prompt"), (None, "title"), (other, "prompt"), (None, "title"), (first, "prompt")] == [
        (each["turn_public_id"], each["field"]) for each in matches
    ]
    title = matches[1]
    assert ("chat-a", "Lisbon trip", "Lisbon trip") == tuple(
        title[name] for name in ("conversation_public_id", "title", "excerpt")
    )
    assert {None} == {title[name] for name in ("variant_public_id", "position", "state")}


async def test_a_title_moves_on_with_its_turn(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """When the first prompt's turn is deleted the next one gives the title."""
    first = await store.turn("chat-a", prompt="Alpha plan", text="one")
    await store.turn("chat-a", prompt="Beta plan", text="two")
    assert [None] == [turn for turn, field in await found(sidecar, "alpha") if field == "title"]
    await store.delete(first)
    assert [] == await found(sidecar, "alpha")
    assert [None] == [turn for turn, field in await found(sidecar, "beta") if field == "title"]


async def test_keywords_are_anded_within_one_field(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Words that stand in two fields of a turn do not match together."""
    await store.turn("chat-a", prompt="deploy", text="rollback")
    together = await store.turn("chat-a", prompt="?", text="rollback, then deploy")
    assert [(together, "content")] == await found(sidecar, "deploy rollback")


@pytest.mark.parametrize("query", ["the and of", "😀 …", "!"])
async def test_a_query_without_lexemes_matches_nothing(
    query: str, store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """Stop words, emoji and punctuation find nothing, and the answer says that they were ignored."""
    await store.turn("chat-a", prompt=query, text=query)
    answer = await search(sidecar, query)
    assert ([], query.split()) == (answer["matches"], answer["ignored_terms"])


async def test_a_page_is_full_and_the_next_goes_on(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Pages of any size give each match once, newest turn first, then content, prompt, steers and title."""
    turns = [await store.turn(f"chat-{n % 3}", prompt=f"word {n}", text=f"word {n}") for n in range(10)]
    whole = await found(sidecar, "word", limit=50)
    newest_of = {turns[9]: True, turns[8]: True, turns[7]: True}
    expected = []
    for turn in reversed(turns):
        expected += [(turn, "content"), (turn, "prompt")] + ([(None, "title")] if turn in newest_of else [])
    assert expected == whole
    for limit in (1, 2, 7):
        assert whole == await found(sidecar, "word", limit=limit)


async def test_a_cursor_is_bound_to_query_and_filters(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Another query's cursor is refused, and so is anything else."""
    for n in range(3):
        await store.turn("chat-a", text=f"word {n}", prompt=None)
    after = (await search(sidecar, "word", limit=1))["pagination"]["next_after"]
    for params in (
        {"query": "words", "after": after},
        {"query": "word", "after": after, "include_auxiliary": "true"},
        {"query": "word", "after": after, "archived": "include"},
        {"query": "word", "after": "%%%"},
        {"query": "word", "after": ""},
    ):
        response = await sidecar.get(SEARCH, params=params)
        assert (400, "parameter_invalid") == (response.status_code, response.json()["code"])
        assert "after" in response.json()["detail"]
    assert 2 == len((await search(sidecar, "word", limit=5, after=after))["matches"])


async def test_archived_and_auxiliary(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Nothing is archived here; contexts without the session prefix are auxiliary."""
    chat = await store.turn("chat-a", text="word", prompt=None)
    side = await store.turn("api-b", text="word", prompt=None)
    assert [(chat, "content")] == await found(sidecar, "word")
    assert [(chat, "content")] == await found(sidecar, "word", archived="include")
    assert [] == await found(sidecar, "word", archived="only")
    assert [(side, "content"), (chat, "content")] == await found(sidecar, "word", include_auxiliary="true")


async def test_what_a_person_did_not_see_is_not_found(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Hidden and server-fired prompts never match while their answers do; an incognito turn is left out whole."""
    hidden = await store.turn("chat-a", prompt=None, history=[operator("secret", hidden=True)], text="answer one")
    fired = await store.turn("chat-a", prompt=None, history=[operator("secret", origin="scheduler")], text="answer two")
    await store.turn("chat-a", prompt=None, history=[operator("secret", incognito=True)], text="answer three")
    form = await store.turn("chat-a", prompt=None, history=[operator("resumed", hitl_resume=True)], text="four")
    shown = await store.turn("chat-a", prompt=None, history=[operator("secret dump", display="bubble")], text="five")
    assert [] == await found(sidecar, "secret")
    assert [(fired, "content"), (hidden, "content")] == await found(sidecar, "answer")
    assert [(form, "prompt")] == [each for each in await found(sidecar, "resumed") if each[1] != "title"]
    assert [(shown, "prompt")] == await found(sidecar, "bubble")


async def test_interjections_are_found_as_steers(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Later operator messages and the items of steer markers, in both spellings of a data part."""
    later = await store.turn("chat-a", prompt="go", history=[operator("use the zebra branch")], text="ok")
    items = {"items": [{"id": "s1", "text": "no, the giraffe"}]}
    marker = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"data": items, "mediaType": STEERED}]}
    marked = await store.turn("chat-a", prompt="go", history=[marker], text="ok")
    old = {"kind": "data", "data": {"items": [{"id": "s2", "text": "the okapi"}]}, "metadata": {"mimeType": STEERED}}
    history = json.dumps([{"kind": "message", "messageId": "x", "role": "agent", "parts": [old]}])
    older = await store.insert_raw(context_id="chat-a", history=history, status='{"state": "completed"}')
    for query, turn in (("zebra", later), ("giraffe", marked), ("okapi", older)):
        assert [(turn, "steers")] == await found(sidecar, query)


async def test_what_is_no_text_is_not_found(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Agent messages of the history, the status message, reasoning, data and file parts are never searched."""
    reasoning = {"data": {"text": "walrus"}, "mediaType": "application/vnd.protolabs.reasoning-v1+json"}
    agent = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "walrus"}, reasoning]}
    await store.turn("chat-a", prompt="go", history=[agent], text="done", status_text="walrus")
    assert [] == await found(sidecar, "walrus")


async def test_tokens_of_a_stream_are_joined(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C10: an answer that came in pieces is one text."""
    task_id = await store.turn("chat-a", prompt=None, text=["deploy", "ment of 人工", "智能"])
    assert [(task_id, "content")] == await found(sidecar, "deployment 人工智能")


async def test_escaped_chinese_is_found(sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar) -> None:
    """C11, C30: what an SDK stored as `\\uXXXX` is found, and an answer stands in the artifacts."""
    for name in ("0.3.26", "1.3.0", "mixed-0.3.26-to-1.3.0"):
        store = await sdk_database(name)
        sidecar = await open_sidecar(store)
        chinese = await every_match(sidecar, "人工智能")
        assert {"chat-c3-中文-😀"} == {each["conversation_public_id"] for each in chinese}
        assert {"content"} <= {each["field"] for each in await every_match(sidecar, "team plan")}


async def test_nul_and_cut_emoji(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C21, C22: a NUL separates words, half an emoji is U+FFFD, and neither hurts another turn."""
    nul = await store.turn("chat-a", prompt="alpha\0beta", text="gamma\0delta")
    artifacts = '[{"artifactId": "a", "parts": [{"text": "cut \\ud83d gamma"}]}]'
    cut = await store.insert_raw(context_id="chat-b", artifacts=artifacts, status='{"state": "completed"}')
    assert {(nul, "content"), (cut, "content")} == set(await found(sidecar, "gamma"))
    assert (nul, "prompt") in await found(sidecar, "beta")
    excerpts = {each["turn_public_id"]: each["excerpt"] for each in (await search(sidecar, "gamma"))["matches"]}
    assert {nul: "gamma\0delta", cut: "cut \ufffd gamma"} == excerpts


async def test_a_long_body_is_found_by_its_last_word(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A body of 3 MB is indexed whole, and its excerpt is centred near the word."""
    filler = "Lorem ipsum dolor sit amet, consectetur adipiscing elit. "
    task_id = await store.turn("chat-a", prompt=None, text=filler * (3 * 2**20 // len(filler)) + "unmistakable")
    (match,) = (await search(sidecar, "unmistakable"))["matches"]
    assert (task_id, True) == (match["turn_public_id"], match["truncated"])
    assert match["excerpt"].endswith("elit. unmistakable")
    assert 400 < len(match["excerpt"]) <= 500


async def test_a_changed_turn_is_found_by_its_new_words_alone(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Chunks are found while a turn runs, though its time stands still; replaced words are gone."""
    task_id = await store.turn("chat-a", state="working", prompt=None, text=["first "], at="2026-01-05T09:00:00Z")
    assert [(task_id, "content")] == await found(sidecar, "first")

    async def save(text: list[str], state: str) -> None:
        await store.turn("chat-a", state, text, None, at="2026-01-05T09:00:00Z", task_id=task_id)

    await save(["first ", "second"], "working")
    assert [(task_id, "content")] == await found(sidecar, "first second")
    await save(["third"], "completed")
    assert [] == await found(sidecar, "first")
    assert [(task_id, "content")] == await found(sidecar, "third")


async def test_owners_narrow_a_search(store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path) -> None:
    """A token with owners finds their turns, and titles that their turns give."""
    alice = await store.turn("chat-a", prompt="word of alice", text="word", owner="alice")
    await store.turn("chat-a", prompt="word of bob", text="word", owner="bob")
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(narrowed("alice-token-0123456789", "alice") + narrowed("carol-token-0123456789", "carol"))
    narrow = await open_sidecar(store, token="alice-token-0123456789", tokens_file=tokens)
    assert [(alice, "content"), (alice, "prompt"), (None, "title")] == await found(narrow, "word")
    assert [] == await found(narrow, "bob")
    other = await open_sidecar(store, token="carol-token-0123456789", tokens_file=tokens)
    assert [] == await found(other, "word")


async def test_an_owner_is_found_among_many(store: rig.Store, tmp_path: Path) -> None:
    """A narrowed search looks at its own rows alone, however many others hold the words; a row that changed hands is
    its new owner's.
    """
    alice = [await store.turn("chat-a", prompt=None, text="zebra", owner="alice") for _ in range(2)]
    for n in range(100):
        await store.turn(f"chat-{n}", prompt=None, text="zebra", owner="bob")
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(narrowed("alice-token-0123456789", "alice"))
    app = create_app(rig.config_for(store, tokens_file=tokens))
    statements = rig.spy(app)
    async with rig.client(app, "alice-token-0123456789") as client:
        assert [(turn, "content") for turn in reversed(alice)] == await found(client, "zebra", limit=5)
        statements.clear()
        assert [(turn, "content") for turn in reversed(alice)] == await found(client, "zebra", limit=5)
        # one for the fields and one for the titles; FTS5's own begin with a comment
        asked = [each for each in statements if "tasks_search_lexemes" in each and not each.startswith("--")]
        assert 2 == len(asked)
        taken = await store.turn("chat-1", prompt=None, text="zebra", owner="bob")
        assert 2 == len(await found(client, "zebra"))
        await store.turn("chat-1", task_id=taken, prompt=None, text="zebra", owner="alice")
        assert (taken, "content") == (await found(client, "zebra"))[0]


def narrowed(token: str, owner: str) -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f'[[token]]\nname = "{owner}"\nsha256 = "{digest}"\nscopes = ["search"]\nowners = ["{owner}"]\n'


async def retired(client: httpx.AsyncClient, session_id: str, **params: Any) -> None:
    response = await client.delete(f"{SESSIONS}/{quote(session_id, safe='')}", params=params)
    assert 200 == response.status_code, response.text


async def indexed_rows(store: rig.Store) -> list[int]:
    """How many rows stand in each table of the index."""
    names = ("turns", "lexemes", "contexts")
    return [(await store.raw(f"SELECT count(*) FROM tasks_search_{name}"))[0][0] for name in names]


@pytest.mark.parametrize("turns", [3, BATCH + 10], ids=["short", "long"])
async def test_a_retired_session_leaves_the_index(turns: int, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C05, C35: retired turns are never found again, whatever is saved late, and none of their words stays."""
    if store.kind == "postgres" and turns > BATCH:
        pytest.skip("only SQLite leaves a long session to the sweep")
    task_ids = [await store.turn("chat-a", prompt=f"zebra {n}", text=f"zebra {n}") for n in range(turns)]
    kept = await store.turn("chat-b", prompt=None, text="zebra")
    assert 2 * turns + 2 == len(await found(sidecar, "zebra", limit=50))
    await retired(sidecar, "chat-a")
    assert [1, 1, 1] == await indexed_rows(store)
    await store.turn("chat-a", task_id=task_ids[0], prompt="zebra late", text="zebra late")
    assert [(kept, "content")] == await found(sidecar, "zebra")
    assert [1, 1, 1] == await indexed_rows(store)


async def test_a_cleared_session_goes_on_at_the_next_position(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Positions are never used again: a cursor of before stays right."""
    task_ids = [await store.turn("chat-a", prompt=None, text=f"zebra {n}") for n in range(3)]
    assert [3, 2, 1] == [each["position"] for each in await every_match(sidecar, "zebra")]
    await retired(sidecar, "chat-a", retire="false")
    assert [0, 0, 1] == await indexed_rows(store)
    await store.turn("chat-a", task_id=task_ids[0], prompt=None, text="zebra late")
    fresh = await store.turn("chat-a", prompt=None, text="zebra fresh")
    (match,) = await every_match(sidecar, "zebra")
    assert (fresh, 4) == (match["turn_public_id"], match["position"])


async def test_positions_are_kept_when_the_producer_deletes(
    store: rig.Store, sidecar: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention takes turns away; the others keep their positions, and no word of those gone stays for long."""
    task_ids = [await store.turn("chat-a", prompt=None, text=f"zebra {n}") for n in range(3)]
    assert 3 == len(await found(sidecar, "zebra"))
    await store.delete(task_ids[0])
    await store.delete(task_ids[2])
    fresh = await store.turn("chat-a", prompt=None, text="zebra 3")
    matches = [(each["turn_public_id"], each["position"]) for each in await every_match(sidecar, "zebra")]
    assert [(fresh, 4), (task_ids[1], 2)] == matches
    monkeypatch.setattr("sidecar.search.refresh.time.monotonic", lambda: time.perf_counter() + 1e6)
    await store.turn("chat-a", prompt=None, text="a minute later")
    assert 2 == len(await found(sidecar, "zebra"))
    assert [3, 3, 1] == await indexed_rows(store)


async def test_a_turn_that_moves_to_another_context_is_new_there(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The same id saved under another context is found there alone."""
    task_id = await store.turn("chat-a", prompt=None, text="zebra")
    assert ["chat-a"] == [each["conversation_public_id"] for each in await every_match(sidecar, "zebra")]
    await store.turn("chat-b", task_id=task_id, prompt=None, text="zebra")
    assert ["chat-b"] == [each["conversation_public_id"] for each in await every_match(sidecar, "zebra")]


async def test_eight_sidecars_build_one_index(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """First searches race for the tables and the turns: each answers in the end, and nothing is indexed twice."""
    for n in range(40):
        await store.turn(f"chat-{n % 4}", prompt=f"zebra {n}", text=f"zebra {n}")
    sidecars = [await open_sidecar(store) for _ in range(8)]

    async def when_complete(sidecar: httpx.AsyncClient) -> list[tuple[str | None, str]]:
        while not (await search(sidecar, "zebra"))["availability"]["complete"]:
            pass
        return await found(sidecar, "zebra", limit=50)

    answers = await asyncio.gather(*map(when_complete, sidecars))
    assert 1 == len({tuple(each) for each in answers})
    assert 84 == len(answers[0])
    # of the titles only each conversation's first is found
    assert [40, 120, 4] == await indexed_rows(store)


async def test_the_answer_says_what_is_still_to_be_read(
    store: rig.Store, open_sidecar: rig.OpenSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search works on a backlog for a bounded time, answers with what it has, and the next ones finish it."""
    for n in range(3):
        await store.turn("chat-a", prompt=None, text=f"zebra {n}")
    sidecar = await open_sidecar(store)
    monkeypatch.setattr("sidecar.search.refresh.WORK_SECONDS", 0.0)
    answer = await search(sidecar, "zebra")
    assert ([], False) == (answer["matches"], answer["availability"]["complete"])
    monkeypatch.undo()
    answer = await search(sidecar, "zebra")
    assert (3, True) == (len(answer["matches"]), answer["availability"]["complete"])
