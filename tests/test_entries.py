"""What a stored turn says: the shapes of contract 5a in both spellings, rows of real SDKs, content nobody writes."""

import itertools
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.demo.steps import STEER_CONSUMED, TOOL_CALL
from sidecar.search.entries import FIELDS, MARKERS, Cells, Markers, Texts, read_history, read_status, read_texts
from sidecar.wire import Cell, Turn, plain, turns_body
from tests import rig
from tests.test_poison import ATOMS, BROKEN, SHAPES

Json = dict[str, Any]


def cell(value: Any) -> bytes:
    """A cell as the SDK writes it."""
    return json.dumps(value).encode()


def texts(history: Any = (), status: Any = None, artifacts: Any = (), markers: Markers = MARKERS) -> Texts:
    return read_texts(Cells(cell(status or {}), cell(list(artifacts)), cell(list(history))), markers)


def user(text: str | None, message_id: str = "", **metadata: Any) -> Json:
    """An operator's message in the spelling of 1.x."""
    parts = [] if text is None else [{"text": text}]
    return {"messageId": message_id, "role": "ROLE_USER", "parts": parts, "metadata": metadata}


def agent(*parts: Json, **fields: Any) -> Json:
    return {"messageId": "a", "role": "ROLE_AGENT", "parts": list(parts), **fields}


def marker(*items: Any, media_type: str = STEER_CONSUMED) -> Json:
    return {"data": {"items": list(items)}, "metadata": {"mimeType": media_type}, "mediaType": "application/json"}


def old(message: Json) -> Json:
    """The same message as 0.3 wrote it: a kind for everything, every unset field null."""
    kinds = {"text": "text", "data": "data", "url": "file", "raw": "file"}
    parts = []
    for part in message["parts"]:
        kind = next(kinds[name] for name in kinds if name in part)
        kept = {key: value for key, value in part.items() if key in ("text", "data")}
        parts.append({"kind": kind, "metadata": part.get("metadata"), **kept})
    role = message["role"].removeprefix("ROLE_").lower()
    nothing = {"extensions": None, "referenceTaskIds": None, "kind": "message"}
    return {**nothing, "metadata": None, **message, "role": role, "parts": parts}


REASONING = {
    "data": {"text": "secret thought"},
    "metadata": {"mimeType": "application/vnd.protolabs.reasoning-v1+json"},
}
ITEM = {"id": "s1", "text": "Stop at 25."}
# Name: history, status message, then prompt and steers.
MESSAGES: dict[str, tuple[list[Json], Json | None, str | None, list[str]]] = {
    "nothing": ([], None, None, []),
    "prompt": ([user("Hi")], None, "Hi", []),
    "parts are joined": ([agent() | {"role": "ROLE_USER", "parts": [{"text": "a"}, {"text": "b"}]}], None, "ab", []),
    "picture": ([agent() | {"role": "ROLE_USER", "parts": [{"raw": "AAH/"}, {"url": "x:y"}]}], None, "", []),
    "hidden": ([user("Hi", hidden=True)], None, None, []),
    "hidden as text": ([user("Hi", hidden="no")], None, None, []),
    "hidden as object": ([user("Hi", hidden={})], None, None, []),
    "not hidden": ([user("Hi", hidden=False, origin="")], None, "Hi", []),
    "origin": ([user("Hi", origin="scheduler")], None, None, []),
    "form answer": ([user("Hi", hitl_resume=True)], None, "Hi", []),
    "display": ([user("dump", display="Hi")], None, "Hi", []),
    "display without words": ([user("dump", display="")], None, "", []),
    "display is no text": ([user("Hi", display=True)], None, "Hi", []),
    "display of a hidden one": ([user("dump", display="Hi", hidden=True)], None, None, []),
    "resumed": ([user("a", "1"), agent({"text": "For how many?"}), user("four", "2")], None, "a", ["four"]),
    "resumed by a form": ([user("a", "1"), user("four", "2", hitl_resume=True)], None, "a", ["four"]),
    "hidden prompt, later message": ([user("a", "1", hidden=True), user("b", "2")], None, None, ["b"]),
    "hidden later": ([user("a", "1"), user("b", "2", hidden=True), user("c", "3")], None, "a", ["c"]),
    "later display": ([user("a", "1"), user("dump", "2", display="b")], None, "a", ["b"]),
    "same message twice": ([user("a", "1"), user("a", "1")], None, "a", []),
    "hidden, then the same": ([user("a", "1", hidden=True), user("a", "1")], None, None, []),
    "no ids": ([user("a"), user("b"), user("b")], None, "a", ["b", "b"]),
    "marker": ([user("a", "1"), agent(marker(ITEM))], None, "a", ["Stop at 25."]),
    "marker in the status": ([user("a", "1")], agent(marker(ITEM)), "a", ["Stop at 25."]),
    "marker before a message": ([user("a", "1"), agent(marker(ITEM)), user("b", "2")], None, "a", ["Stop at 25.", "b"]),
    "marker and message": ([user("a", "1"), agent(marker(ITEM)), user("Stop at 25.", "s1")], None, "a", [ITEM["text"]]),
    "message and marker": ([user("a", "1"), user("Stop at 25.", "s1"), agent(marker(ITEM))], None, "a", [ITEM["text"]]),
    "marker twice": ([user("a", "1"), agent(marker(ITEM)), agent(marker(ITEM))], None, "a", [ITEM["text"]]),
    "several items": (
        [agent(marker(ITEM, {"id": "2", "text": "b"}, {"text": "c"}))], None, None, [ITEM["text"], "b", "c"]
    ),
    "odd items": ([agent(marker("x", None, [], {"id": 7, "text": "b"}, {"id": "8"}, {"text": 9}))], None, None, ["b"]),
    "marker of the operator": ([user("a") | {"parts": [{"text": "a"}, marker(ITEM)]}], None, "a", []),
    "foreign marker": ([agent(marker(ITEM, media_type="application/x.other+json"))], None, None, []),
    "agent's words": ([agent({"text": "Working"})], agent({"text": "Done"}), None, []),
    "reasoning": ([agent(REASONING)], agent(REASONING), None, []),
    "status only": ([], user("typed"), "typed", []),
}  # fmt: skip


@pytest.mark.parametrize("spelling", [dict, old], ids=["1.x", "0.3"])
@pytest.mark.parametrize("name", MESSAGES)
def test_prompt_and_steers(name: str, spelling: Any) -> None:
    """Each shape gives its prompt and steers, alike in the spelling of 1.x and of 0.3."""
    history, message, prompt, steers = MESSAGES[name]
    status = {"state": "x", "message": spelling(message) if message else None}
    found = texts(map(spelling, history), status)
    assert (prompt, tuple(steers), "", False) == (found.prompt, found.steers, found.content, found.incognito)


@pytest.mark.parametrize("name", MESSAGES)
def test_odd_members_change_nothing(name: str) -> None:
    """A member of a type that no SDK writes, or a lone surrogate, leaves what the other members say."""
    history, message, prompt, steers = MESSAGES[name]
    odd = [5, None, {"role": 5, "parts": {}}, {"role": "agent", "parts": [5, {"text": 7}], "metadata": "\ud83d"}]
    found = texts([*history, *odd], {"state": 5, "message": message})
    assert (prompt, tuple(steers)) == (found.prompt, found.steers)


@pytest.mark.parametrize(
    ("part", "taken"),
    [
        ({"data": {"items": [ITEM]}, "mediaType": STEER_CONSUMED}, True),
        ({"data": {"items": [ITEM]}, "metadata": {"mimeType": STEER_CONSUMED}}, True),
        ({"kind": "data", "data": {"items": [ITEM]}, "metadata": {"mimeType": STEER_CONSUMED}}, True),
        ({"data": {"items": [ITEM]}, "mediaType": STEER_CONSUMED.upper()}, False),
        ({"data": {"items": [ITEM]}}, False),
        ({"data": [ITEM], "mediaType": STEER_CONSUMED}, False),
        ({"text": "Stop", "mediaType": STEER_CONSUMED}, False),
    ],
)
def test_steer_marker_spellings(part: Json, taken: bool) -> None:
    """A marker is known by its media type, whichever field holds it."""
    assert ((ITEM["text"],) if taken else ()) == texts([agent(part)]).steers


def test_markers_of_other_producers() -> None:
    """The table of media types can be extended, by an argument."""
    other = marker(ITEM, media_type="application/x.other+json")
    markers = Markers(steers=MARKERS.steers | {"application/x.other+json"})
    assert (ITEM["text"],) == texts([agent(other)], markers=markers).steers


@pytest.mark.parametrize(
    ("history", "incognito"),
    [
        ([user("a", incognito=True)], True),
        ([user("a", hidden=True, incognito="yes")], True),
        ([user("a"), user("b", incognito=True)], True),
        ([user("a", incognito=False)], False),
        ([user("a"), agent(metadata={"incognito": True})], False),
    ],
)
def test_incognito(history: list[Json], incognito: bool) -> None:
    """One operator message that says so makes the turn incognito."""
    assert incognito == texts(history).incognito


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        (None, None),
        ("", None),
        (" \n\t\n", None),
        ("One\nTwo", "One"),
        ("\n  \r\n  第一行  \nTwo", "第一行"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 80),
        ("x" * 79 + "e\u0301", "x" * 79),
        ("x" * 79 + "👩🏽", "x" * 79),
        ("x" * 78 + " yz", "x" * 78 + " y"),
        ("x" * 79 + " y", "x" * 79),
        ("a" + "\u0301" * 90, None),
    ],
)
def test_title(prompt: str | None, title: str | None) -> None:
    """The title is the first line with words, at most 80 characters, and no visible character is cut."""
    assert title == Texts(prompt, (), "", incognito=False).title


def test_fields() -> None:
    """A field is its text; interjections are parted by a blank line, and nothing is the empty text."""
    said = Texts("\nOne\nTwo", ("a", "b"), "Answer", incognito=False)
    nothing = Texts(None, (), "", incognito=False)
    assert ["One", "a\n\nb", "\nOne\nTwo", "Answer"] == [said.field(name) for name in FIELDS]
    assert ["", "", "", ""] == [nothing.field(name) for name in FIELDS]


def sdk_rows(name: str) -> dict[str, Cells]:
    """The cells of a database that an SDK wrote, by context and creation."""
    connection = sqlite3.connect(rig.SDK_DATABASES / f"{name}.sqlite3")
    stored = "SELECT context_id, CAST(status AS BLOB), CAST(artifacts AS BLOB), CAST(history AS BLOB) FROM tasks"
    rows = connection.execute(f"{stored} ORDER BY rowid").fetchall()
    connection.close()
    return {f"t{number:02}": Cells(*cells) for number, (_, *cells) in enumerate(rows, start=1)}


def test_rows_of_real_sdks() -> None:
    """Rows that the SDK's own store wrote say the same in 0.3.26 and in 1.3.0."""
    found = {name: read_texts(cells) for name, cells in sdk_rows("1.3.0").items()}
    assert found == {name: read_texts(cells) for name, cells in sdk_rows("0.3.26").items()}
    assert Texts(None, (), "Rotate the deployment keys with `keys rotate`. ✅", False) == found["t01"]  # has an origin
    assert Texts("Never mind, what is the plan name?", (), "Team plan", False) == found["t05"]
    assert Texts("人工智能研究的进展如何？请总结 2026 年的论文。", (), "", False) == found["t06"]
    assert Texts("Compare these files", (), found["t07"].content, False) == found["t07"]
    assert Texts(None, (), "", False) == found["t08"]
    assert Texts("Book a table", ("four, 四位",), "Booked for 4.", False) == found["t18"]
    assert Texts("retry me", (), "", False) == found["t19"]


async def test_markers_as_the_sdk_stores_them(tmp_path: Path) -> None:
    """A marker, a tool call and a later message survive the SDK's own store."""
    call = {TOOL_CALL: {"toolCallId": "c", "name": "deploy", "phase": "started", "args": "5 percent"}}
    history = [agent(metadata=call), agent(marker(ITEM)), agent(REASONING), user("and then?", "u2")]
    async with rig.sqlite_store(tmp_path / "tasks.db") as store:
        task_id = await store.turn("chat-1", history=history, status_text="Working")
        stored = [(await store.column_text(column))[task_id] for column in ("status", "artifacts", "history")]
    assert Texts("The question?", (ITEM["text"], "and then?"), "The answer.", False) == read_texts(Cells(*stored))


POISON = [shape.replace("@", atom) for atom, shape in itertools.product(ATOMS.values(), SHAPES.values())]
MESSAGE_POISON = [
    shape.replace("@", atom)
    for atom, shape in itertools.product(
        [*ATOMS.values(), f'"{STEER_CONSUMED}"'],
        [
            '[{"role": "user", "messageId": @, "parts": [{"text": @}], "metadata": {"display": @, "hidden": @}}]',
            '[{"role": @, "parts": @, "metadata": @}]',
            '[{"role": "agent", "parts": [{"data": @, "mediaType": @, "metadata": {"mimeType": @}}]}]',
            f'[{{"parts": [{{"data": {{"items": [@, {{"id": @, "text": @}}]}}, "mediaType": "{STEER_CONSUMED}"}}]}}]',
        ],
    )
]


def route_text(artifacts: bytes) -> str:
    """The `text` that the turns route gives these artifacts."""
    stored = Turn("t", "", None, Cell(None, None), Cell(artifacts, len(artifacts)), Cell(None, None))
    text = json.loads(turns_body([stored]), parse_int=float)["turns"][0]["text"]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("poison", ["[" * 3000 + "]" * 3000, *POISON, *MESSAGE_POISON], ids=lambda text: text[:40])
def test_poison_raises_nothing(poison: str) -> None:
    """Whatever a cell holds, the other cells say what they say, and the content is the `text` of the turns route."""
    bad, good = poison.encode(), Cells(cell({"message": user("b", "2")}), cell([]), cell([user("a", "1")]))
    assert route_text(bad) == plain(read_texts(Cells(good.status, bad, good.history)).content)
    assert ("a", ("b",)) == (lambda found: (found.prompt, found.steers))(read_texts(good))
    assert "a" == read_texts(Cells(bad, bad, good.history)).prompt
    read_texts(Cells(good.status, good.artifacts, bad))


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_broken_cell_says_nothing(broken: bytes) -> None:
    """What is no strict JSON has no texts, though its beginning may be readable."""
    mixed = broken.replace(b"]", b"").removeprefix(b"\xef\xbb\xbf") + cell([user("a")])
    assert ([], None, "") == (read_history(broken), read_status(broken), read_texts(Cells(None, broken, None)).content)
    if broken:
        assert Texts(None, (), "", False) == read_texts(Cells(mixed, mixed, mixed))


def test_what_is_skipped_must_be_strict_too() -> None:
    """Bad UTF-8 or NaN in a member that nobody reads makes the cell unreadable, as it does for the turns route."""
    for unread in (b'"\xff"', b"NaN"):
        assert [] == read_history(b'[{"role": "user", "parts": [{"text": "a", "file": ' + unread + b"}]}]")


def test_lone_surrogates_stay() -> None:
    """A cut emoji is kept as it is stored, in an operator's words and in a marker."""
    found = texts(
        [user("a\ud83d"), agent(marker({"id": "1", "text": "b\ude00"}))], {}, [{"parts": [{"text": "\ud83d"}]}]
    )
    assert Texts("a\ud83d", ("b\ude00",), "\ud83d", False) == found


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_bytes_raise_nothing(status: bytes, artifacts: bytes, history: bytes) -> None:
    """No bytes raise."""
    read_texts(Cells(status, artifacts, history))


KEYS = ["messageId", "role", "parts", "metadata", "text", "data", "mediaType", "mimeType", "items", "id", "message"]
LEAVES = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1.5, "", "a", "\ud83d"])
    | st.sampled_from(["user", STEER_CONSUMED])
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, JSON)
@settings(max_examples=60, deadline=None)
def test_json_raises_nothing(status: Any, history: Any) -> None:
    """No JSON of the messages' own keys raises, and every text is one."""
    found = read_texts(Cells(cell(status), cell(history), cell(history)))
    assert all(isinstance(found.field(name), str) for name in FIELDS)


def test_time_grows_with_the_cell() -> None:
    """Ten times as many entries take about ten times as long; operators and markers are no exception."""

    def seconds(entries: int) -> float:
        history = cell([each for n in range(entries) for each in (user("a", f"u{n}"), agent(marker({"id": f"{n}"})))])
        start = time.thread_time()
        read_texts(Cells(None, None, history))
        return time.thread_time() - start

    assert min(seconds(4_000) for _ in range(2)) < 40 * min(seconds(400) for _ in range(3))
