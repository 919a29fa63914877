"""Execution snapshots over HTTP: when there is one and of which turn, its pages, its reasons, what is refused."""

import json
from typing import Any

import httpx

from sidecar.demo.steps import HITL, REASONING, TOOL_CALL
from tests import rig
from tests.test_entries import old
from tests.test_history import positions, read
from tests.test_poison import BROKEN
from tests.test_search import search
from tests.test_search_routes import window

Json = dict[str, Any]


async def execution(client: httpx.AsyncClient, conversation: str = "chat-a", **params: Any) -> Any:
    return (await read(client, conversation, include_execution="true", **params))["execution"]


async def refusal(client: httpx.AsyncClient, **params: Any) -> tuple[int, str, str]:
    response = await client.get(window("chat-a"), params={"include_execution": "true", **params})
    problem = response.json()
    return response.status_code, problem["code"], problem["detail"]


def said(text: str, message_id: str, *parts: Json, **metadata: Any) -> Json:
    message = rig.message("ROLE_AGENT", text, metadata=metadata)
    return {**message, "messageId": message_id, "parts": [*message["parts"], *parts]}


def call(call_id: str, **fields: Any) -> Json:
    """What the demo's agent stores of a call: a message without parts."""
    payload = {"toolCallId": call_id, "name": "deploy", **fields}
    return {"messageId": f"{call_id}-{fields['phase']}", "role": "ROLE_AGENT", "metadata": {TOOL_CALL: payload}}


async def test_without_include_execution_the_key_is_absent(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """And the selectors have no effect, whatever they hold and however often they come."""
    await store.turn("chat-a", history=[said("Looking", "m1")])
    plain = await read(sidecar)
    assert "execution" not in plain
    for params in (
        {"include_execution": "false"},
        {"execution_before": "%%%"},
        {"execution_prefix": "x"},
        {"include_execution": "false", "execution_before": ["a", "b"], "execution_prefix": ["", ""]},
    ):
        assert plain == await read(sidecar, **params), params


async def test_it_is_of_the_target_or_the_newest_turn_of_the_window(
    store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """Around: the target; any other window: its newest turn, not the conversation's; an empty window has none."""
    turns = [await store.turn("chat-a", "working", history=[said(str(number), "m")]) for number in range(1, 7)]
    windows: list[tuple[Json, int]] = [
        ({}, 6),
        ({"limit": 1}, 6),
        ({"around_turn_public_id": turns[1], "limit": 4}, 2),
        ({"around_turn_public_id": turns[5]}, 6),
        ({"before_position": 4}, 3),
        ({"after_position": 2, "limit": 2}, 4),
    ]
    for params, position in windows:
        answer = await read(sidecar, include_execution="true", **params)
        shown = answer["execution"]
        assert {turns[position - 1]} == {shown[f"{name}_public_id"] for name in ("turn", "variant", "run")}, params
        assert [str(position)] == [each["preview"] for each in shown["rounds"]], params
        (turn,) = (turn for turn in answer["turns"] if turn["position"] == position)
        assert {turn["status"]} == {shown["status"], shown["run_status"]}
    empty: list[Json] = [{"before_position": 1}, {"after_position": 6}]
    for params in empty:
        answer = await read(sidecar, include_execution="true", **params)
        assert ([], None) == (answer["turns"], answer["execution"])


async def test_an_execution_of_the_demos_shape(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Rounds with their keys, states and previews; calls paired by id; the message of the status comes last."""
    thinking = {"data": {"text": "secret"}, "metadata": {"mimeType": REASONING}}
    history = [
        said("", "think", thinking),
        call("c1", phase="started", args="secret"),
        call("c1", phase="completed", result="3 of 60"),
        call("c2", phase="started", args="secret"),
        said("Widening.", "words"),
    ]
    task_id = await store.turn("chat-a", "working", history=history, status_text="Watching.")
    answer = await read(sidecar, include_execution="true")
    done = {"key": "c1", "name": "deploy", "status": "completed", "preview": "3 of 60", "error": None}
    open_call = {"key": "c2", "name": "deploy", "status": "started", "preview": None, "error": None}
    *rounds, last = answer["execution"].pop("rounds")
    assert [
        ("think", "", 0, []),
        ("c1-started", "", 1, [done]),
        ("c1-completed", "", 0, []),
        ("c2-started", "", 1, [open_call]),
        ("words", "Widening.", 0, []),
    ] == [tuple(each[name] for name in ("key", "preview", "call_count", "calls")) for each in rounds]
    assert {("completed", None, None)} == {(each["status"], each["error"], each["timing"]) for each in rounds}
    assert ("TASK_STATE_WORKING", "Watching.") == (last["status"], last["preview"])
    assert {
        "turn_public_id": task_id,
        "variant_public_id": task_id,
        "active": True,
        "status": "TASK_STATE_WORKING",
        "run_public_id": task_id,
        "run_status": "TASK_STATE_WORKING",
        "pagination": {"next_before": None, "has_older": False},
        "branches": [],
        "truncated": False,
    } == answer["execution"]
    assert "secret" not in json.dumps(answer)


async def test_pages_of_rounds(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Of 25 rounds with 30 calls each come 20, then 5, each with 24; pinned, so that a newer turn changes nothing."""
    rounds = []
    for number in range(25):
        calls = [
            {"data": {"toolCallId": f"{number}-{each}", "name": "look", "phase": "completed", "result": "ok"}}
            for each in range(30)
        ]
        rounds.append(said(f"round {number}", f"m{number}", *calls))
    task_id = await store.turn("chat-a", "working", prompt=None, text=None, history=rounds)
    first = await execution(sidecar)
    await store.turn("chat-a")
    before = first["pagination"]["next_before"]
    second = await execution(sidecar, around_turn_public_id=task_id, execution_before=before)
    assert [True, False] == [each["pagination"]["has_older"] for each in (first, second)]
    assert second["pagination"]["next_before"] is None
    assert [range(5, 25), range(5)] == [
        range(int(each["rounds"][0]["key"][1:]), int(each["rounds"][-1]["key"][1:]) + 1) for each in (first, second)
    ]
    for each in [*second["rounds"], *first["rounds"]]:
        number = each["key"].removeprefix("m")
        assert (f"round {number}", 30) == (each["preview"], each["call_count"])
        assert [(f"{number}-{n}", "ok") for n in range(24)] == [(one["key"], one["preview"]) for one in each["calls"]]


async def test_a_cursor_that_was_not_given_out_is_refused(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Nonsense, another turn's cursor, the cursor of a search: 400, and the detail names the parameter."""
    rounds = [said(str(number), f"m{number}") for number in range(21)]
    other, task_id = [await store.turn("chat-a", prompt=None, text="zebra", history=rounds) for _ in range(2)]
    foreign = (await execution(sidecar, around_turn_public_id=other))["pagination"]["next_before"]
    after = (await search(sidecar, "zebra", limit=1))["pagination"]["next_after"]
    for before in ("", "%%%", "0", "人", "\x00", "A" * 400, foreign, after):
        status, code, detail = await refusal(sidecar, around_turn_public_id=task_id, execution_before=before)
        assert (400, "parameter_invalid") == (status, code), before
        assert "execution_before" in detail
    # without a pin the newest turn of the window is meant, whose cursor this is not
    assert 400 == (await refusal(sidecar, execution_before=foreign))[0]


async def test_there_is_no_branch(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Any prefix is not found on an execution that is there; where there is none, it changes nothing."""
    await store.turn("chat-a", history=[said("Looking", "m1")])
    for prefix in ("", "m1", "main", "人", "\x00", "x" * 400):
        status, code, detail = await refusal(sidecar, execution_prefix=prefix)
        assert (404, "not_found") == (status, code), prefix
        assert "execution_prefix" in detail
    await store.insert_raw(context_id="chat-b", status="[]")
    assert await execution(sidecar, "chat-b", execution_prefix="x") is None


async def test_why_a_turn_waits_or_failed(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The words of the status, of a wait and of an end without an answer; no other state has a reason."""
    expected = {
        "input-required": {"attention_reason": "Because."},
        "auth-required": {"attention_reason": "Because."},
        "failed": {"failure_reason": "Because."},
        "canceled": {"failure_reason": "Because."},
        "rejected": {"failure_reason": "Because."},
        "working": {},
        "submitted": {},
        "completed": {},
    }
    for state in expected:
        await store.turn(f"chat-{state}", state, status_text="Because.")
    await store.turn("chat-silent", "failed")
    reasons = {}
    for state in [*expected, "silent"]:
        shown = await execution(sidecar, f"chat-{state}")
        reasons[state] = {name: text for name, text in shown.items() if name.endswith("_reason")}
    assert {**expected, "silent": {}} == reasons


async def test_a_question_is_the_reason_of_a_wait(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A pause without words asks by its data."""
    task_id = await store.turn("chat-a", "input-required", status_text="x")
    pause = {"data": {"question": "Which region?"}, "metadata": {"mimeType": HITL}}
    status = {"state": "TASK_STATE_INPUT_REQUIRED", "message": {"role": "ROLE_AGENT", "parts": [pause]}}
    await store.raw("UPDATE tasks SET status = :status WHERE id = :id", status=json.dumps(status), id=task_id)
    assert "Which region?" == (await execution(sidecar))["attention_reason"]


async def test_without_a_readable_status_there_is_none(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The key is null, and the turn's text is read all the same."""
    statuses: list[str | bytes] = ["null", "[]", '"working"', "7"]
    if store.kind == "sqlite":
        statuses += list(BROKEN.values())
    history = json.dumps([rig.message("ROLE_USER", "Go."), said("Looking", "m1")])
    for number, status in enumerate(statuses):
        await store.insert_raw(context_id=f"chat-{number}", status=status, history=history)
    for number in range(len(statuses)):
        answer = await read(sidecar, f"chat-{number}", include_execution="true")
        assert ("Go.", "", None) == (answer["turns"][0]["prompt"], answer["turns"][0]["status"], answer["execution"])


async def test_the_spelling_of_0_3(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A row as 0.3 wrote it has the same rounds, its state in its own spelling."""
    history = [
        call("c1", phase="started") | {"parts": []},
        call("c1", phase="failed", error="no quota") | {"parts": []},
        said("Tried.", "m1"),
    ]
    message = said("No quota left.", "m2")
    await store.turn("chat-a", "failed", history=history)
    status = json.dumps({"state": "failed", "message": old(message), "timestamp": "2026-01-05T09:00:00+00:00"})
    await store.insert_raw(context_id="chat-old", status=status, history=json.dumps(list(map(old, history))))
    new = json.dumps({"state": "TASK_STATE_FAILED", "message": message})
    await store.raw("UPDATE tasks SET status = :status WHERE context_id = 'chat-a'", status=new)
    shown, before = await execution(sidecar), await execution(sidecar, "chat-old")
    assert ("TASK_STATE_FAILED", "failed") == (shown["status"], before["status"])
    assert "No quota left." == shown["failure_reason"] == before["failure_reason"] == before["rounds"][-1]["error"]
    assert [("failed", "no quota")] == [(each["status"], each["error"]) for each in before["rounds"][0]["calls"]]
    assert shown["rounds"][:-1] == before["rounds"][:-1]


async def test_executions_of_real_sdks(sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar) -> None:
    """Every conversation that 0.3.26 stored is worked on as 1.3.0 stored it, states aside."""
    stores = [await sdk_database(name) for name in ("0.3.26", "1.3.0")]
    conversations = [row.context_id for row in await stores[0].raw("SELECT DISTINCT context_id FROM tasks")]
    before, after = [await open_sidecar(store) for store in stores]
    compared = 0
    for conversation in set(conversations) - {"chat-k11"}:  # made at another time
        for turn in (await read(before, conversation))["turns"]:
            around = {"around_turn_public_id": turn["public_id"]}
            one, other = [await execution(client, conversation, **around) for client in (before, after)]
            assert [(each["key"], each["preview"], each["calls"]) for each in one["rounds"]] == [
                (each["key"], each["preview"], each["calls"]) for each in other["rounds"]
            ]
            compared += len(one["rounds"])
    assert compared > 3


async def test_a_history_that_is_too_large_is_told(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """Rounds that were left out with their cell raise the flag of the execution; the turn stays."""
    sidecar = await open_sidecar(store, max_turn_bytes=4096)
    await store.turn("chat-a", "working", history=[said("x" * 5000, "m1")])
    answer = await read(sidecar, include_execution="true")
    shown = answer["execution"]
    assert ([], True, "TASK_STATE_WORKING") == (shown["rounds"], shown["truncated"], shown["status"])
    assert ([1], True) == (positions(answer), answer["turns"][0]["truncated"])
