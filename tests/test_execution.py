"""Execution snapshots: rounds, calls, pages, reasons, budgets; on rows of the SDK and on content nobody writes."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from sidecar.demo.steps import HITL, TOOL_CALL
from sidecar.search.budget import Budget
from sidecar.search.entries import MARKERS, Cells, Markers
from sidecar.search.execution import CALL_CHARACTERS, CALLS, ROUNDS, BranchMissingError, Selection, snapshot
from sidecar.wire import CursorError, encode_cursor, is_strict_json
from tests import rig
from tests.test_entries import JSON, MESSAGE_POISON, POISON, REASONING, agent, cell, marker, old, sdk_rows, user
from tests.test_poison import BROKEN

Json = dict[str, Any]
NEWEST = Selection(None, None)


def said(text: str, message_id: str) -> Json:
    return agent({"text": text}, messageId=message_id)


def shot(
    history: Iterable[Json] = (),
    message: Json | None = None,
    state: str = "working",
    before: str | None = None,
    budget: Budget | None = None,
    markers: Markers = MARKERS,
) -> Json:
    cells = Cells(cell({"state": state, "message": message}), None, cell(list(history)))
    found = snapshot("t-1", cells, Selection(before, None), budget or Budget(), markers)
    assert found is not None
    json.dumps(found).encode()
    return found


def calling(message_id: str, *payloads: Json) -> list[Json]:
    """One message for each payload, as the demo's agent sends them."""
    return [agent(messageId=f"{message_id}{n}", metadata={TOOL_CALL: each}) for n, each in enumerate(payloads)]


def test_shape() -> None:
    """The answer has the seed's keys; the round in the status is the last one, with the turn's state."""
    round_1 = {"key": "m1", "status": "completed", "preview": "Looking", "error": None, "timing": None}
    round_2 = {"key": "m2", "status": "TASK_STATE_WORKING", "preview": "Found", "error": None, "timing": None}
    rest = {"call_count": 0, "calls": [], "truncated": False}
    assert {
        "turn_public_id": "t-1",
        "variant_public_id": "t-1",
        "active": True,
        "status": "TASK_STATE_WORKING",
        "run_public_id": "t-1",
        "run_status": "TASK_STATE_WORKING",
        "rounds": [round_1 | rest, round_2 | rest],
        "pagination": {"next_before": None, "has_older": False},
        "branches": [],
        "truncated": False,
    } == shot([user("Hi", "u"), said("Looking", "m1")], said("Found", "m2"), "TASK_STATE_WORKING")


STARTED = {"toolCallId": "c1", "name": "deploy", "phase": "started", "args": "5 percent"}
DONE = {"toolCallId": "c1", "name": "deploy", "phase": "completed", "result": "3 of 60"}
FAILED = {"toolCallId": "c1", "name": "deploy", "phase": "failed", "error": "no quota"}


def call(status: str, preview: str | None = None, error: str | None = None, **other: str) -> Json:
    return {"key": "c1", "name": "deploy", "status": status, "preview": preview, "error": error, **other}


# Name: history, then the calls of each round.
CALLING: dict[str, tuple[list[Json], list[list[Json]]]] = {
    "unfinished": (calling("m", STARTED), [[call("started")]]),
    "completed": (calling("m", STARTED, DONE), [[call("completed", "3 of 60")], []]),
    "failed": (calling("m", STARTED, FAILED), [[call("failed", None, "no quota")], []]),
    "only its end": (calling("m", DONE), [[call("completed", "3 of 60")]]),
    "end before start": (calling("m", DONE, STARTED), [[call("completed", "3 of 60")], []]),
    "no phase, no result": (calling("m", {"toolCallId": "c1", "name": "deploy"}), [[call("unfinished")]]),
    "no phase, a result": (calling("m", {"toolCallId": "c1", "result": ""}), [[call("completed", "", name="")]]),
    "name comes later": (
        calling("m", {"toolCallId": "c1", "phase": "started"}, DONE),
        [[call("completed", "3 of 60")], []],
    ),
    "two calls": (
        calling("m", STARTED, STARTED | {"toolCallId": "c2"}, DONE),
        [[call("completed", "3 of 60")], [call("started", key="c2")], []],
    ),
    "words between": (
        [*calling("m", STARTED), said("hm", "x"), *calling("n", DONE)],
        [[call("completed", "3 of 60")], [], []],
    ),
    "no id": (calling("m", {"name": "deploy", "phase": "started"}), [[call("started", key="m0:1")]]),
    "odd id": (calling("m", STARTED | {"toolCallId": 7}), [[call("started", key="m0:1")]]),
    "result is JSON": (
        calling("m", DONE | {"result": {"ok": True, "说": [1]}}),
        [[call("completed", '{"ok": true, "说": [1]}')]],
    ),
    "result is null": (calling("m", DONE | {"result": None}), [[call("completed")]]),
    "in a part's metadata": ([agent({"text": "", "metadata": {TOOL_CALL: STARTED}})], [[call("started")]]),
    "as a data part": ([agent({"data": STARTED}), agent({"data": DONE})], [[call("completed", "3 of 60")], []]),
    "in metadata and part": ([agent({"data": STARTED}, metadata={TOOL_CALL: STARTED})], [[call("started")]]),
    "payload is no object": ([agent(metadata={TOOL_CALL: [STARTED]})], [[]]),
    "other data": ([agent({"data": {"toolCallId": "c1"}}, {"data": {"name": "x", "phase": "started"}})], [[]]),
    "operator's": ([user("a") | {"metadata": {TOOL_CALL: STARTED}}], []),
}  # fmt: skip


@pytest.mark.parametrize("spelling", [dict, old], ids=["1.x", "0.3"])
@pytest.mark.parametrize("name", CALLING)
def test_calls(name: str, spelling: Any) -> None:
    """A call stands once, where it is mentioned first, with what its entries say of it; in both spellings."""
    history, expected = CALLING[name]
    rounds = shot(map(spelling, history))["rounds"]
    assert expected == [each["calls"] for each in rounds]
    assert [len(calls) for calls in expected] == [each["call_count"] for each in rounds]


def test_call_of_the_status_message() -> None:
    """What has just started stands in the status, and completes a call of the history."""
    rounds = shot(calling("m", STARTED), calling("n", DONE)[0])["rounds"]
    assert [[call("completed", "3 of 60")], []] == [each["calls"] for each in rounds]


def test_calls_of_other_producers() -> None:
    """The names under which metadata holds calls can be extended."""
    history = [agent(metadata={"https://example.com/calls": STARTED})]
    markers = Markers(tool_calls=MARKERS.tool_calls | {"https://example.com/calls"})
    assert [[call("started")]] == [each["calls"] for each in shot(history, markers=markers)["rounds"]]


def test_nothing_hidden_is_shown() -> None:
    """Reasoning, steer texts, tool arguments, titles and other metadata have no place in the snapshot."""
    history = [
        agent(REASONING),
        agent(marker({"id": "s", "text": "secret steer"})),
        agent({"url": "secret"}, {"data": {"secret": 1}}),
        agent(metadata={"title": "secret", TOOL_CALL: STARTED | {"title": "secret"}}),
        *calling("m", STARTED | {"args": "secret"}),
    ]  # fmt: skip
    assert "secret" not in json.dumps(shot(history))


def test_a_fan_is_counted_and_bounded() -> None:
    """Of many calls in one round the first 24 are shown, and all are counted."""
    parts = [{"data": STARTED | {"toolCallId": f"c{n}"}} for n in range(30)]
    (only,) = shot([agent(*parts)])["rounds"]
    assert [f"c{n}" for n in range(CALLS)] == [each["key"] for each in only["calls"]]
    assert (30, False) == (only["call_count"], only["truncated"])


@pytest.mark.parametrize(
    ("history", "message", "keys"),
    [
        ([said("a", "m1"), said("b", "m2")], None, ["m1", "m2"]),
        ([said("a", ""), said("b", "")], None, ["t-1:1", "t-1:2"]),
        ([said("a", "m1"), user("x", "u"), said("b", "m1")], said("c", "m1"), ["m1", "t-1:2", "t-1:3"]),
        ([said("a", "m" * 255), said("b", "m" * 256)], None, ["m" * 255, "t-1:2"]),
        ([{"role": "agent"}, {"role": "agent", "messageId": 5}], None, ["t-1:1", "t-1:2"]),
        ([], user("typed", "u"), []),
    ],
)
def test_keys(history: list[Json], message: Json | None, keys: list[str]) -> None:
    """A round's key is its message's id, or its number where it has none of its own: no key stands twice."""
    assert keys == [each["key"] for each in shot(history, message)["rounds"]]


@pytest.mark.parametrize(
    ("state", "message", "reasons", "error"),
    [
        ("TASK_STATE_INPUT_REQUIRED", said("Which?", "m"), {"attention_reason": "Which?"}, None),
        ("auth-required", said("Sign in", "m"), {"attention_reason": "Sign in"}, None),
        ("failed", said("Exit 1", "m"), {"failure_reason": "Exit 1"}, "Exit 1"),
        ("TASK_STATE_REJECTED", said("No", "m"), {"failure_reason": "No"}, "No"),
        ("canceled", said("By you", "m"), {"failure_reason": "By you"}, "By you"),
        ("failed", agent(), {}, None),
        ("failed", None, {}, None),
        ("working", said("Looking", "m"), {}, None),
        ("TASK_STATE_COMPLETED", said("Done", "m"), {}, None),
        ("", said("Done", "m"), {}, None),
        (
            "input-required",
            agent({"data": {"question": "Which?"}, "metadata": {"mimeType": HITL}}),
            {"attention_reason": "Which?"},
            None,
        ),
        (
            "input-required",
            agent({"data": {"question": 5, "title": "Form"}, "mediaType": HITL}),
            {"attention_reason": "Form"},
            None,
        ),
        ("input-required", agent({"data": {"question": "Which?"}}), {}, None),
    ],
)
def test_reasons(state: str, message: Json | None, reasons: Json, error: str | None) -> None:
    """A waiting or failed turn says why, in its message's words or its pause's question; any other has no such key."""
    found = shot([said("before", "b")], message, state)
    assert reasons == {key: text for key, text in found.items() if key.endswith("_reason")}
    assert (state, state) == (found["status"], found["run_status"])
    if message:
        assert (state, error) == (found["rounds"][-1]["status"], found["rounds"][-1]["error"])


def walk(history: list[Json], message: Json | None = None) -> list[list[str]]:
    """The previews of every page, newest page first."""
    pages, before = [], None
    while True:
        found = shot(history, message, before=before)
        pages.append([each["preview"] for each in found["rounds"]])
        before = found["pagination"]["next_before"]
        assert found["pagination"]["has_older"] == (before is not None)
        if before is None:
            return pages


@pytest.mark.parametrize("count", [0, 1, 20, 21, 40, 45])
def test_pages(count: int) -> None:
    """At most 20 rounds a page, each round once, chronological in the page and over all pages."""
    everything = [f"{n}" for n in range(count)]
    pages = walk([user("Hi", "u"), *(said(each, f"m{each}") for each in everything)])
    assert everything == [preview for page in reversed(pages) for preview in page]
    assert all(len(page) == ROUNDS for page in pages[:-1])


def test_a_cursor_stays_while_rounds_come() -> None:
    """The page that a cursor names is the same after newer rounds, and after the status moved into the history."""
    history = [said(f"{n}", f"m{n}") for n in range(30)]
    first = shot(history, said("30", "m30"))
    grown = [*history, said("30", "m30"), *(said(f"{n}", f"m{n}") for n in range(31, 60))]
    before = first["pagination"]["next_before"]
    assert shot(history, said("30", "m30"), before=before)["rounds"] == shot(grown, before=before)["rounds"]
    assert [f"{n}" for n in range(11)] == [each["preview"] for each in shot(grown, before=before)["rounds"]]


def test_a_cursor_outlives_its_rounds() -> None:
    """When the producer has dropped old entries, a cursor beyond the end gives the newest page."""
    before = shot([said(f"{n}", f"m{n}") for n in range(90)])["pagination"]["next_before"]
    assert ["only"] == [each["preview"] for each in shot([said("only", "m")], before=before)["rounds"]]


@pytest.mark.parametrize(
    "before",
    [
        "",
        "%%%",
        "中",
        "\ud800",
        "AAAA",
        encode_cursor(("execution", "t-2", ""), 5),
        encode_cursor(("execution", "t-1", "x"), 5),
        *(encode_cursor(("execution", "t-1", ""), forged) for forged in (0, -1, 1.5, True, "5", None, [5])),
    ],
)
def test_a_foreign_cursor_is_refused(before: str) -> None:
    """What is no cursor of this turn's pages raises, whether or not there is a snapshot."""
    for status in (b"{}", b"broken"):
        with pytest.raises(CursorError):
            snapshot("t-1", Cells(status, None, None), Selection(before, None), Budget())


@pytest.mark.parametrize("prefix", ["x", ""])
def test_there_are_no_branches(prefix: str) -> None:
    """Any prefix is missing from an available execution."""
    with pytest.raises(BranchMissingError):
        snapshot("t-1", Cells(b"{}", None, None), Selection(None, prefix), Budget())
    assert snapshot("t-1", Cells(b"[]", None, None), Selection(None, prefix), Budget()) is None


@pytest.mark.parametrize("status", [None, b"null", b"[]", b'"x"', b"5", *BROKEN.values()])
def test_no_snapshot_without_a_status(status: bytes | None) -> None:
    """A status that is no readable JSON object has no execution, though there is a history."""
    assert snapshot("t-1", Cells(status, None, cell([said("a", "m")])), NEWEST, Budget()) is None


def test_budget_goes_to_the_newest() -> None:
    """Previews take what is left from the newest round to the oldest; keys, statuses and counts remain."""
    results = [{"data": DONE | {"toolCallId": f"c{n}", "result": "字" * 600}} for n in range(2)]
    history = [said("a" * 3000, "m1"), agent({"text": "b" * 1500}, *results, messageId="m2"), said("c" * 2001, "m3")]
    budget = Budget(4600)
    oldest, middle, newest = shot(history, budget=budget)["rounds"]
    assert ("c" * 2000, True) == (newest["preview"], newest["truncated"])
    assert ("b" * 1500, True) == (middle["preview"], middle["truncated"])
    assert [CALL_CHARACTERS, CALL_CHARACTERS] == [len(each["preview"]) for each in middle["calls"]]
    assert ("a" * 100, "m1", True) == (oldest["preview"], oldest["key"], oldest["truncated"])
    assert (0, True) == (budget.left, budget.truncated)


def test_reason_comes_first() -> None:
    """With little left, the reason is given before the rounds; the flag says that text is missing."""
    found = shot([said("older", "m1")], said("Which region?", "m2"), "input-required", budget=Budget(15))
    assert ("Which region?", True) == (found["attention_reason"], found["truncated"])
    assert ["", "Wh"] == [each["preview"] for each in found["rounds"]]
    assert "attention_reason" not in shot([], said("Which?", "m"), "input-required", budget=Budget(0))


def test_untouched_budget() -> None:
    """A snapshot without text takes nothing, and whole texts leave the flags down."""
    budget = Budget(0)
    found = shot([agent(messageId="m1")], budget=budget)
    assert (False, False) == (found["truncated"], budget.truncated)


def test_names_are_bounded() -> None:
    """Keys, names and statuses come whole, but no producer can fill an answer with them."""
    long = "n" * 10_000
    found = shot(calling("m", {"toolCallId": long, "name": long, "phase": long}), said("x", long), long)
    assert len(json.dumps(found)) < 4000


def test_rows_of_real_sdks() -> None:
    """Rows of 0.3.26 and 1.3.0 give the same rounds; states keep their spelling."""
    rows = zip(sdk_rows("1.3.0").values(), sdk_rows("0.3.26").values(), strict=True)
    for number, pair in enumerate(rows, start=1):
        new, before = (snapshot("t", cells, NEWEST, Budget()) for cells in pair)
        assert new is not None
        assert before is not None
        assert [each["preview"] for each in new["rounds"]] == [each["preview"] for each in before["rounds"]]
        assert [each["key"] for each in new["rounds"]] == [each["key"] for each in before["rounds"]]
        assert new.get("failure_reason") == before.get("failure_reason")
        if number == 2:
            assert "Tool crashed: exit status 1" == new["failure_reason"] == new["rounds"][-1]["error"]
            assert ("TASK_STATE_FAILED", "failed") == (new["status"], before["status"])


async def test_as_the_sdk_stores_it(tmp_path: Path) -> None:
    """A call and its result survive the SDK's own store, whose numbers are floats."""
    history = calling("m", STARTED, DONE | {"result": {"pods": 3}})
    async with rig.sqlite_store(tmp_path / "tasks.db") as store:
        task_id = await store.turn("chat-1", "working", history=history, status_text="Widening")
        stored = [(await store.column_text(column))[task_id] for column in ("status", "artifacts", "history")]
    found = snapshot(task_id, Cells(*stored), NEWEST, Budget())
    assert found is not None
    assert [[call("completed", '{"pods": 3.0}')], [], []] == [each["calls"] for each in found["rounds"]]
    assert ["", "", "Widening"] == [each["preview"] for each in found["rounds"]]


CALL_POISON = [
    f'[{{"metadata": {{"{TOOL_CALL}": {payload}}}, "parts": [{{"data": {payload}}}]}}]'.replace("@", poison)
    for payload, poison in itertools.product(
        [
            "@",
            '{"toolCallId": @, "name": @, "phase": @, "result": @, "error": @}',
            '{"toolCallId": "c", "result": [@]}',
        ],
        ["-1e400", "9" * 5000, r'"\ud83d"', r'"a\u0000b"', "null", "true", "{}", "[" * 400 + "]" * 400],
    )
]


@pytest.mark.parametrize(
    "poison", ["[" * 3000 + "]" * 3000, *POISON, *MESSAGE_POISON, *CALL_POISON], ids=lambda x: x[:30]
)
def test_poison_raises_nothing(poison: str) -> None:
    """Whatever the history or the message holds, there is a snapshot that UTF-8 can carry."""
    bad = poison.encode()
    for status in (b'{"state": "failed"}', b'{"message": ' + bad + b"}", bad):
        found = snapshot("t\ud83d", Cells(status, None, bad), NEWEST, Budget())
        json.dumps(found, ensure_ascii=False).encode()
        if status != bad:
            assert (found is not None) == is_strict_json(status)


def test_no_depth_raises() -> None:
    """Nesting around the depth that the JSON libraries follow raises nothing."""
    shown = set()
    for depth in range(800, 1010, 2):
        deep = "[" * depth + "]" * depth
        for payload in (deep, f'{{"toolCallId": "c", "name": "\\ud83d", "result": {deep}}}'):
            history = f'[{{"metadata": {{"{TOOL_CALL}": {payload}}}}}]'.encode()
            found = snapshot("t", Cells(b"{}", None, history), NEWEST, Budget())
            assert found is not None
            shown.add(len(found["rounds"]))
    assert {0, 1} == shown


@given(JSON, JSON)
@settings(max_examples=60, deadline=None)
def test_json_raises_nothing(message: Any, history: Any) -> None:
    """No JSON raises, and no snapshot's texts pass the budget."""
    budget = Budget(40)
    found = snapshot("t", Cells(cell({"state": "failed", "message": message}), None, cell(history)), NEWEST, budget)
    assert found is not None
    previews = [each["preview"] for each in found["rounds"]]
    assert sum(map(len, previews)) + budget.left <= 40
