"""Windows of a conversation over HTTP: which turns, in which order, what each says, what is never shown."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from sidecar.openapi import ref
from tests import rig
from tests.test_openapi import conforms
from tests.test_search import STEERED, every_match, narrowed, operator, retired, search
from tests.test_search_routes import window

LIMITS = (1, 4, 19, 50)


async def read(client: httpx.AsyncClient, conversation: str = "chat-a", **params: Any) -> rig.Json:
    """The envelope of a window."""
    response = await client.get(window(conversation), params=params)
    assert 200 == response.status_code, response.text
    answer: rig.Json = response.json()
    return answer


async def refusal(client: httpx.AsyncClient, conversation: str = "chat-a", **params: Any) -> tuple[int, str]:
    response = await client.get(window(conversation), params=params)
    return response.status_code, response.json()["code"]


def positions(answer: rig.Json) -> list[int]:
    return [turn["position"] for turn in answer["turns"]]


async def written(store: rig.Store, count: int, conversation: str = "chat-a") -> list[str]:
    """Turns whose answers are their positions."""
    return [await store.turn(conversation, text=str(number), prompt=None) for number in range(1, count + 1)]


# --- which turns ----------------------------------------------------------------------------------------------------

# Of nine turns: parameters, where `around` is a position; positions shown, and whether there are older and newer ones.
WINDOWS: list[tuple[rig.Json, list[int], bool, bool]] = [
    ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9], False, False),
    ({"limit": 9}, [1, 2, 3, 4, 5, 6, 7, 8, 9], False, False),
    ({"limit": 4}, [6, 7, 8, 9], True, False),
    ({"limit": 1}, [9], True, False),
    ({"around": 5, "limit": 1}, [5], True, True),
    ({"around": 5, "limit": 2}, [5, 6], True, True),
    ({"around": 5, "limit": 3}, [4, 5, 6], True, True),
    ({"around": 5, "limit": 4}, [4, 5, 6, 7], True, True),
    ({"around": 5, "limit": 8}, [2, 3, 4, 5, 6, 7, 8, 9], True, False),
    ({"around": 5, "limit": 9}, [1, 2, 3, 4, 5, 6, 7, 8, 9], False, False),
    ({"around": 5}, [1, 2, 3, 4, 5, 6, 7, 8, 9], False, False),
    ({"around": 1, "limit": 1}, [1], False, True),
    ({"around": 1, "limit": 4}, [1, 2, 3, 4], False, True),
    ({"around": 2, "limit": 5}, [1, 2, 3, 4, 5], False, True),
    ({"around": 3, "limit": 6}, [1, 2, 3, 4, 5, 6], False, True),
    ({"around": 8, "limit": 5}, [5, 6, 7, 8, 9], True, False),
    ({"around": 9, "limit": 4}, [6, 7, 8, 9], True, False),
    ({"around": 9, "limit": 1}, [9], True, False),
    ({"before_position": 5, "limit": 2}, [3, 4], True, True),
    ({"before_position": 5, "limit": 4}, [1, 2, 3, 4], False, True),
    ({"before_position": 2}, [1], False, True),
    ({"before_position": 1}, [], False, True),
    ({"before_position": 10}, [1, 2, 3, 4, 5, 6, 7, 8, 9], False, False),
    ({"before_position": 9_999_999_999, "limit": 1}, [9], True, False),
    ({"after_position": 0, "limit": 3}, [1, 2, 3], False, True),
    ({"after_position": 0}, [1, 2, 3, 4, 5, 6, 7, 8, 9], False, False),
    ({"after_position": 4, "limit": 2}, [5, 6], True, True),
    ({"after_position": 4, "limit": 5}, [5, 6, 7, 8, 9], True, False),
    ({"after_position": 8}, [9], True, False),
    ({"after_position": 9}, [], True, False),
    ({"after_position": 9_999_999_999}, [], True, False),
]


async def test_windows(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Newest, around (centred, and filled up where a side has fewer), before and after; ascending, with true flags."""
    turns = await written(store, 9)
    wrong = []
    for params, expected, has_older, has_newer in WINDOWS:
        given = dict(params)
        if "around" in given:
            given["around_turn_public_id"] = turns[given.pop("around") - 1]
        answer = await read(sidecar, **given)
        edges = {
            "before_position": expected[0] if expected else None,
            "after_position": expected[-1] if expected else None,
            "has_older": has_older,
            "has_newer": has_newer,
        }
        assert conforms(ref("HistoryAnswer"), answer), answer
        shown = [(turn["position"], turn["public_id"], turn["content"]) for turn in answer["turns"]]
        if ([(each, turns[each - 1], str(each)) for each in expected], edges) != (shown, answer["pagination"]):
            wrong.append((params, shown, answer["pagination"]))
    assert [] == wrong


async def test_windows_have_gaps_where_turns_are_gone(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A position that is not there any more bounds a window all the same, and neighbours close the gap."""
    turns = await written(store, 9)
    await read(sidecar)
    for gone in (1, 4, 5, 9):
        await store.delete(turns[gone - 1])
    assert [2, 3, 6, 7, 8] == positions(await read(sidecar))
    assert [3, 6, 7] == positions(await read(sidecar, around_turn_public_id=turns[5], limit=3))
    before, after = await read(sidecar, before_position=5), await read(sidecar, after_position=4)
    assert ([2, 3], False, True) == (positions(before), *list(before["pagination"].values())[2:])
    assert ([6, 7, 8], True, False) == (positions(after), *list(after["pagination"].values())[2:])
    assert not (await read(sidecar, before_position=2))["pagination"]["has_older"]
    assert not (await read(sidecar, after_position=8))["pagination"]["has_newer"]


async def test_pages_show_each_turn_once(full: bool, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Back from the newest window and forth from the oldest, with any limit, every turn of sixty comes exactly once."""
    await written(store, 60)
    everything = list(range(1, 61))
    for limit in range(1, 51) if full else LIMITS:
        back = [await read(sidecar, limit=limit)]
        while back[-1]["pagination"]["has_older"]:
            before = back[-1]["pagination"]["before_position"]
            back.append(await read(sidecar, limit=limit, before_position=before))
        assert everything == [each for page in reversed(back) for each in positions(page)], limit
        forth = [await read(sidecar, limit=limit, after_position=0)]
        while forth[-1]["pagination"]["has_newer"]:
            after = forth[-1]["pagination"]["after_position"]
            forth.append(await read(sidecar, limit=limit, after_position=after))
        assert everything == [each for page in forth for each in positions(page)], limit
        assert {limit} == {len(page["turns"]) for page in (*back[:-1], *forth[:-1])}, limit
    assert everything[10:] == positions(await read(sidecar, limit=99))


async def test_a_cursor_stays_right_while_turns_come_and_go(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Between two pages the producer deletes and saves: no turn that stays is skipped or shown twice."""
    turns = await written(store, 12)
    newest = await read(sidecar, limit=4)
    await store.delete(turns[9])
    await store.delete(turns[6])
    fresh = await store.turn("chat-a", text="13", prompt=None)
    older = await read(sidecar, limit=4, before_position=newest["pagination"]["before_position"])
    assert ([9, 10, 11, 12], [5, 6, 8]) == (positions(newest), positions(older)[-3:])
    newer = await read(sidecar, after_position=newest["pagination"]["after_position"])
    assert [(fresh, 13)] == [(turn["public_id"], turn["position"]) for turn in newer["turns"]]


async def test_a_hit_opens_its_window(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The turn and position of a match are those of the window around it."""
    for number in range(30):
        await store.turn("chat-a", prompt=None, text="the zebra" if number == 17 else "grass")
    (match,) = (await search(sidecar, "zebra"))["matches"]
    answer = await read(
        sidecar, match["conversation_public_id"], around_turn_public_id=match["turn_public_id"], limit=5
    )
    assert [16, 17, 18, 19, 20] == positions(answer)
    assert (match["turn_public_id"], match["position"]) == tuple(
        answer["turns"][2][key] for key in ("public_id", "position")
    )


# --- which are never shown ------------------------------------------------------------------------------------------


async def test_a_target_that_is_not_there_to_be_seen(
    store: rig.Store, sidecar: httpx.AsyncClient, open_sidecar: rig.OpenSidecar, tmp_path: Path
) -> None:
    """Of another session, retired, cleared, incognito, deleted, another owner's, unknown: each is 404."""
    here = await store.turn("chat-a", owner="alice")
    incognito = await store.turn("chat-a", prompt=None, history=[operator("x", incognito=True)])
    deleted = await store.turn("chat-a")
    foreign = await store.turn("chat-a", owner="bob")
    elsewhere = await store.turn("chat-b")
    cleared, gone = await store.turn("chat-c"), await store.turn("chat-d")
    assert [1, 3, 4] == positions(await read(sidecar))
    await store.delete(deleted)
    await retired(sidecar, "chat-c", retire="false")
    await retired(sidecar, "chat-d")
    for session_id, task_id in (("chat-c", cleared), ("chat-d", gone)):
        await store.turn(session_id, task_id=task_id)
    kept = await store.turn("chat-c")

    for target in (
        incognito,
        deleted,
        elsewhere,
        cleared,
        gone,
        "unknown",
        here.upper(),
        here[:-1],
        here + "%",
        "\u0130",
    ):
        assert (404, "not_found") == await refusal(sidecar, around_turn_public_id=target), target
    assert (404, "not_found") == await refusal(sidecar, "chat-c", around_turn_public_id=cleared)
    assert (404, "not_found") == await refusal(sidecar, "chat-d", around_turn_public_id=gone)
    assert [kept] == [
        turn["public_id"] for turn in (await read(sidecar, "chat-c", around_turn_public_id=kept))["turns"]
    ]
    assert [here, foreign] == [turn["public_id"] for turn in (await read(sidecar, around_turn_public_id=here))["turns"]]

    token, tokens = "alice-token-0123456789", tmp_path / "tokens.toml"
    tokens.write_text(narrowed(token, "alice"))
    narrow = await open_sidecar(store, token=token, tokens_file=tokens)
    assert [here] == [turn["public_id"] for turn in (await read(narrow))["turns"]]
    assert (404, "not_found") == await refusal(narrow, around_turn_public_id=foreign)
    assert (404, "not_found") == await refusal(narrow, "chat-b")


async def test_a_conversation_that_is_not_there_to_be_seen(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Unknown, retired, cleared, or with nothing but incognito turns: 404, whichever window is asked for."""
    await store.turn("chat-retired")
    await store.turn("chat-cleared")
    await store.turn("chat-incognito", prompt=None, history=[operator("x", incognito=True)])
    await retired(sidecar, "chat-retired")
    await retired(sidecar, "chat-cleared", retire="false")
    for conversation in ("chat-retired", "chat-cleared", "chat-incognito", "chat-unknown", "CHAT-RETIRED"):
        for params in ({}, {"after_position": 0}, {"before_position": 9}, {"include_execution": "true"}):
            assert (404, "not_found") == await refusal(sidecar, conversation, **params), (conversation, params)


async def test_a_conversation_without_the_prefix_can_be_read(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The prefix narrows the lists; by its id any context is read, an odd one too."""
    for conversation in ("api-b", "", "Chat-a", "chat-a/../b?c#d", "研究 🙂"):
        task_id = await store.turn(conversation)
        if conversation:
            answer = await read(sidecar, conversation)
            assert (conversation, [task_id]) == (
                answer["conversation"]["public_id"],
                [turn["public_id"] for turn in answer["turns"]],
            )


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_target_that_became_incognito_unnoticed(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A finished turn that is saved again with its old time is 404 as a target once it is incognito."""
    at = "2026-01-05T09:00:00Z"
    task_id = await store.turn("chat-a", at=at)
    await store.turn("chat-a")
    assert [1, 2] == positions(await read(sidecar))
    await store.turn("chat-a", at=at, task_id=task_id, prompt=None, history=[operator("x", incognito=True)])
    assert [2] == positions(await read(sidecar))
    assert (404, "not_found") == await refusal(sidecar, around_turn_public_id=task_id)


# --- what a turn says -----------------------------------------------------------------------------------------------


async def test_a_turn(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Every key of the seed: a turn that opens with a prompt is the user's, any other the agent's."""
    items = {"items": [{"id": "s1", "text": "Stop at 25."}]}
    marker = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"data": items, "mediaType": STEERED}]}
    asked = await store.turn(
        "chat-a", prompt="Go.\nNow.", history=[marker, operator("And 30?")], text=["An", "swer"], status_text="Done"
    )
    fired = await store.turn("chat-a", "failed", prompt=None, history=[operator("tick", origin="cron")], text="Tock.")
    bare = await store.turn("chat-a", "submitted", prompt=None, text=None)
    shared = {"kind": "task", "created_at": None, "truncated": False}
    assert {
        "conversation": {"public_id": "chat-a", "title": "Go."},
        "turns": [
            {
                "public_id": asked,
                "position": 1,
                "role": "user",
                "status": "TASK_STATE_COMPLETED",
                "prompt": "Go.\nNow.",
                "steers": "Stop at 25.\n\nAnd 30?",
                "content": "Answer",
                **shared,
            },
            {
                "public_id": fired,
                "position": 2,
                "role": "agent",
                "status": "TASK_STATE_FAILED",
                "content": "Tock.",
                **shared,
            },
            {"public_id": bare, "position": 3, "role": "agent", "status": "TASK_STATE_SUBMITTED", **shared},
        ],
        "pagination": {"before_position": 1, "after_position": 3, "has_older": False, "has_newer": False},
        "truncated": False,
        "availability": {
            "indexed": 3,
            "pending": 0,
            "complete": True,
            "checked": "all" if store.kind == "postgres" else "changed",
        },
    } == await read(sidecar)
    assert conforms(ref("HistoryAnswer"), await read(sidecar, include_execution="true"))
    order = ["prompt", "steers", "content"]
    assert order == [key for key in (await read(sidecar))["turns"][0] if key in order]


async def test_a_hidden_prompt_is_absent_while_its_answer_is_there(
    store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """Neither as text nor as title; what a bubble displayed stands in the place of the message."""
    await store.turn("chat-a", prompt=None, history=[operator("secret", hidden=True)], text="one")
    await store.turn("chat-a", prompt=None, history=[operator("secret", display="Shown.")], text="two")
    answer = await read(sidecar)
    assert [("agent", None, "one"), ("user", "Shown.", "two")] == [
        (turn["role"], turn.get("prompt"), turn["content"]) for turn in answer["turns"]
    ]
    assert "Shown." == answer["conversation"]["title"]
    assert "secret" not in str(answer)


async def test_a_running_turn_is_read_as_it_grows(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Its prompt is there before its answer, and then every chunk, though the time of its status stands still."""
    at = "2026-01-05T09:00:00Z"
    task_id = await store.turn("chat-a", "submitted", text=None, prompt="Count.", at=at)
    seen = []
    for chunks in ([], ["one "], ["one ", "two "], ["one ", "two ", "three"]):
        state = "completed" if len(chunks) == 3 else "working"
        await store.turn("chat-a", state, text=chunks or None, prompt="Count.", at=at, task_id=task_id)
        (turn,) = (await read(sidecar))["turns"]
        assert (task_id, 1, "user", "Count.") == tuple(turn[key] for key in ("public_id", "position", "role", "prompt"))
        seen.append((turn["status"], turn.get("content")))
    assert [
        ("TASK_STATE_WORKING", None),
        ("TASK_STATE_WORKING", "one "),
        ("TASK_STATE_WORKING", "one two "),
        ("TASK_STATE_COMPLETED", "one two three"),
    ] == seen


@pytest.mark.parametrize("name", ["0.3.26", "1.3.0"])
async def test_turns_of_real_sdks(name: str, sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar) -> None:
    """Rows of 0.3.26 and 1.3.0 give the same windows, states in their own spelling."""
    sidecar = await open_sidecar(await sdk_database(name))
    answer = await read(sidecar, "chat-b2")
    states = ["TASK_STATE_AUTH_REQUIRED", "TASK_STATE_COMPLETED"]
    if name == "0.3.26":
        states = ["auth-required", "completed"]
    assert {"task"} == {turn["kind"] for turn in answer["turns"]}
    assert states == sorted({turn["status"] for turn in answer["turns"]})
    (told,) = (turn for turn in answer["turns"] if turn.get("content"))
    assert ("Never mind, what is the plan name?", "Team plan") == (told["prompt"], told["content"])


async def test_when_a_turn_was_first_seen(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Null for turns older than the index, and the time of the sighting for later ones, which then stays."""
    await store.turn("chat-a")
    await read(sidecar)
    before = datetime.now(UTC)
    task_id = await store.turn("chat-a")
    old, new = [turn["created_at"] for turn in (await read(sidecar))["turns"]]
    assert old is None
    assert new.endswith("Z")
    seen = datetime.fromisoformat(new)
    assert before - timedelta(seconds=1) <= seen <= datetime.now(UTC) + timedelta(seconds=1)
    await store.turn("chat-a", task_id=task_id, text="changed")
    assert [old, new] == [turn["created_at"] for turn in (await read(sidecar))["turns"]]


async def test_when_the_first_turn_of_all_was_seen(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A turn that comes after its empty store was looked at is younger than the index."""
    assert (404, "not_found") == await refusal(sidecar)
    for _ in range(2):
        await store.turn("chat-a")
        assert None not in [turn["created_at"] for turn in (await read(sidecar))["turns"]]
        await retired(sidecar, "chat-a", retire="false")


@pytest.mark.parametrize("kind", ["postgres"])
async def test_when_a_turn_was_created(store: rig.Store, sidecar: httpx.AsyncClient, prepare: rig.Prepare) -> None:
    """A prepared PostgreSQL knows exactly when a row was first saved, and nothing of the rows before that."""
    await store.turn("chat-a")
    await prepare(store)
    task_id = await store.turn("chat-a")
    rows = await store.raw("SELECT sidecar_created_at AS at FROM tasks WHERE id = :id", id=task_id)
    created = rows[0].at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    assert [None, created] == [turn["created_at"] for turn in (await read(sidecar))["turns"]]


async def test_a_table_without_kinds(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A kind that the table does not have is null."""
    await store.turn("chat-a")
    await store.raw("ALTER TABLE tasks DROP COLUMN kind")
    assert [None] == [turn["kind"] for turn in (await read(sidecar))["turns"]]


async def test_a_cell_that_is_too_large_is_told(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """Text that was left out with its cell raises the flags of turn and page, as text that was cut does."""
    sidecar = await open_sidecar(store, max_turn_bytes=4096)
    await store.turn("chat-a", prompt="Small?", text="zebra " * 1000)
    await store.turn("chat-a", prompt="zebra " * 1000, text="Small.")
    await store.turn("chat-a", prompt="Small?", text="Small.")
    answer = await read(sidecar)
    assert [(True, "Small?", None), (True, None, "Small."), (False, "Small?", "Small.")] == [
        (turn["truncated"], turn.get("prompt"), turn.get("content")) for turn in answer["turns"]
    ]
    assert answer["truncated"]
    assert [] == await every_match(sidecar, "zebra")


async def test_around_and_pages_agree(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Whichever turn is centred, the window goes on seamlessly on both sides."""
    turns = await written(store, 7)
    for target, limit in itertools.product(range(7), (1, 2, 3, 4)):
        middle = await read(sidecar, around_turn_public_id=turns[target], limit=limit)
        before = await read(sidecar, before_position=middle["pagination"]["before_position"])
        after = await read(sidecar, after_position=middle["pagination"]["after_position"])
        assert [1, 2, 3, 4, 5, 6, 7] == positions(before) + positions(middle) + positions(after)
        assert limit == len(middle["turns"])
        assert (bool(before["turns"]), bool(after["turns"])) == tuple(
            middle["pagination"][name] for name in ("has_older", "has_newer")
        )
