"""The public failure cases of readers like ours (C01 … C44), each as its whole kind, through the front door.

Of those that search meets, `tests/test_search.py` has the Chinese of C11, the rows of C35 and the answer of C30, whose
window is in `tests/test_history.py`.
"""

import asyncio
import base64
import hashlib
import itertools
import json
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from a2a.server.cluster import TaskVersion, VersionedDatabaseTaskStore
from a2a.server.context import ServerCallContext
from a2a.server.tasks import DatabasePushNotificationConfigStore
from a2a.types import Task, TaskPushNotificationConfig
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]  # protobuf ships no types

from sidecar import index, sweeper
from sidecar.routes import SESSION, SESSIONS, TURNS
from sidecar.tools import TOOLS
from tests import rig
from tests.test_search import every_match, found, search
from tests.test_search_routes import SEARCHING, window
from tests.test_tools import call

NAMES = ("0.3.26", "1.3.0", "mixed-0.3.26-to-1.3.0")
PARKED = {"input-required", "auth-required"}
SECRET = "the-launch-code-is-0451"


def path(session_id: str, rest: str = "") -> str:
    return f"{SESSIONS}/{quote(session_id, safe='')}{rest}"


async def ok(client: httpx.AsyncClient, url: str, **params: Any) -> dict[str, Any]:
    response = await client.get(url, params=params)
    assert 200 == response.status_code, f"{url} {params} {response.text}"
    answer: dict[str, Any] = response.json()
    return answer


async def listed(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = (await ok(client, SESSIONS, **{"limit": 200, **params}))["sessions"]
    return sessions


async def listed_ids(client: httpx.AsyncClient, **params: Any) -> set[str]:
    return {each["session_id"] for each in await listed(client, **params)}


async def turns(client: httpx.AsyncClient, session_id: str, **params: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await ok(client, path(session_id, "/turns"), **{"limit": 200, **params}))["turns"]
    return rows


async def turn_ids(client: httpx.AsyncClient, session_id: str, **params: Any) -> list[str]:
    return [turn["task_id"] for turn in await turns(client, session_id, **params)]


async def delete(client: httpx.AsyncClient, session_id: str, **params: Any) -> dict[str, Any]:
    response = await client.delete(path(session_id), params=params)
    assert 200 == response.status_code, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def walk(client: httpx.AsyncClient, url: str, key: str, **params: Any) -> list[list[dict[str, Any]]]:
    """All pages of a route through `Link`; a hundred of them mean that it never ends."""
    query = httpx.QueryParams(params)
    pages: list[list[dict[str, Any]]] = []
    link = f"{url}?{query}"
    while link and len(pages) < 100:
        response = await client.get(link)
        assert 200 == response.status_code, f"{link} {response.text}"
        pages.append(response.json()[key])
        link = response.links.get("next", {}).get("url", "")
    assert not link, "the pages never end"
    return pages


def flat(pages: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [each for page in pages for each in page]


# --- the whole reader against a model: C02, C03, C05, C07, C18, C19, C31, C34 --------------------------------------


@dataclass
class Row:
    """What the model knows of one stored row."""

    session_id: str
    task_id: str
    state: str
    at: datetime | None
    created: int
    by_sdk: bool


@dataclass
class Model:
    """Drives a store at random and says what a reader has to answer."""

    store: rig.Store
    prepared: bool
    dice: random.Random
    rows: dict[str, Row] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    saved: int = 0
    first_saves: dict[str, datetime] = field(default_factory=dict)

    async def step(self, client: httpx.AsyncClient) -> None:
        sessions = [f"chat-{letter}" for letter in "abcdef"]
        session_id = self.dice.choice(sessions)
        match self.dice.choices(["save", "resave", "late", "old", "retire", "clear"], [10, 6, 3, 5, 1, 2])[0]:
            case "save":
                await self.save(session_id, None)
            case "resave" if known := [row for row in self.rows.values() if row.by_sdk]:
                row = self.dice.choice(known)
                await self.save(row.session_id, row.task_id)
            case "late" if self.cleared:
                await self.save(session_id, self.dice.choice(sorted(self.cleared)))
            case "old":
                await self.save_old(session_id)
            case "retire":
                await delete(client, session_id)
                self.retired.add(session_id)
                self.forget(session_id)
            case "clear":
                response = await client.delete(path(session_id), params={"retire": "false"})
                assert (409 if session_id in self.retired else 200) == response.status_code
                if session_id not in self.retired:
                    self.cleared |= self.forget(session_id)

    async def save(self, session_id: str, task_id: str | None) -> None:
        state = self.dice.choice(["completed", "working", "input-required", "auth-required", "failed", ""])
        at = self.moment()
        text = None if at is None else f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"
        task_id = await self.store.turn(session_id, state, at=text, task_id=task_id)
        self.note(Row(session_id, task_id, state, at, 0, by_sdk=True))

    async def save_old(self, session_id: str) -> None:
        """A row of a 0.3 producer: its time stands in the status alone, in any zone, and may be no time."""
        state, at = self.dice.choice(["completed", "input-required", "archived"]), self.moment()
        zone = timedelta(hours=self.dice.randrange(-12, 13))
        text = "yesterday" if at is None else (at + zone).isoformat() + ("Z" if not zone else _offset(zone))
        status = json.dumps({"message": None, "state": state, "timestamp": text})
        task_id = await self.store.insert_raw(context_id=session_id, status=status, artifacts="null", history="null")
        self.note(Row(session_id, task_id, state, at, 0, by_sdk=False))

    def moment(self) -> datetime | None:
        """Few different moments, so that many are equal; sometimes none."""
        hours, micros = self.dice.randrange(12), self.dice.choice([0, 0, 1, 500_000])
        at = datetime(2026, 1, 5) + timedelta(hours=hours, microseconds=micros)
        return None if self.dice.random() < 0.2 else at

    def note(self, row: Row) -> None:
        self.saved += 1
        before = self.rows.get(row.task_id)
        row.created = before.created if before else self.saved
        self.rows[row.task_id] = row

    def forget(self, session_id: str) -> set[str]:
        gone = {task_id for task_id, row in self.rows.items() if row.session_id == session_id}
        for task_id in gone:
            del self.rows[task_id]
        return gone

    async def look(self) -> None:
        """Learns when PostgreSQL noted the first saves, which is the time of a row that has no other."""
        if self.store.kind == "postgres" and self.prepared:
            found = await self.store.raw("SELECT id, sidecar_created_at AS at FROM tasks")
            self.first_saves = {row.id: row.at.astimezone(UTC).replace(tzinfo=None) for row in found}

    def visible(self) -> dict[str, list[Row]]:
        sessions: dict[str, list[Row]] = {}
        for row in self.rows.values():
            if row.session_id not in self.retired and row.task_id not in self.cleared:
                sessions.setdefault(row.session_id, []).append(row)
        return sessions

    def time(self, row: Row) -> datetime:
        return row.at or self.first_saves.get(row.task_id, datetime.max)

    def creation(self, row: Row) -> tuple[Any, ...]:
        ordered = self.prepared or self.store.kind == "sqlite"
        return (row.created,) if ordered else (self.time(row), row.task_id)

    def activity(self, row: Row) -> tuple[Any, ...]:
        return (self.time(row), *self.creation(row))

    def index(self) -> list[tuple[str, str | None, int, str]]:
        """Session, time, number of turns and state of the newest-created turn; the newest activity first."""
        answer = []
        for session_id, rows in self.visible().items():
            known = [self.time(row) for row in rows if self.time(row) != datetime.max]
            newest = max(rows, key=self.creation)
            answer.append((max(known, default=None), session_id, len(rows), newest.state))
        answer.sort(
            key=lambda each: (each[0] is None, -(each[0] or datetime.min).timestamp() if each[0] else 0, each[1])
        )
        return [(session_id, _iso(at), count, state) for at, session_id, count, state in answer]


def _offset(zone: timedelta) -> str:
    hours = round(zone.total_seconds() / 3600)
    return f"{hours:+03d}:00"


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat() + "Z"


def _plain(state: str) -> str:
    return state.removeprefix("TASK_STATE_").lower().replace("_", "-")


MODELS = [
    ("sqlite", 1, False),
    ("sqlite", 2, True),
    ("postgres", 1, False),
    ("postgres", 1, True),
    ("postgres", 2, True),
]


@pytest.mark.parametrize(("kind", "seed", "prepared"), MODELS)
async def test_random_stores_are_read_as_a_model_reads_them(
    seed: int,
    prepared: bool,
    full: bool,
    store: rig.Store,
    open_sidecar: rig.OpenSidecar,
    prepare: rig.Prepare,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C02 C03 C05 C07 C18 C19 C31 C34: saves, re-saves, old and late rows, retirements: every answer and every page."""
    monkeypatch.setattr(index, "WALKS", (4, 12))  # so that few rows are many
    if prepared:
        await prepare(store)
    client = await open_sidecar(store)
    model = Model(store, prepared, random.Random(seed))
    for _ in range(500 if full else 40):
        await model.step(client)
    await model.look()
    expected = model.index()

    found = await listed(client)
    assert [each[:3] for each in expected] == [tuple(each.values()) for each in found]
    assert found == flat(await walk(client, SESSIONS, "sessions", limit=2))
    waiting = [each for each in expected if each[3] in PARKED]
    parked = await listed(client, parked="true")
    assert waiting == [(*list(each.values())[:3], _plain(each["last_state"])) for each in parked]
    assert parked == flat(await walk(client, SESSIONS, "sessions", limit=1, parked="true"))

    visible = model.visible()
    for session_id, at, count, state in expected:
        summary = await ok(client, path(session_id))
        assert (session_id, at, count, state) == (*list(summary.values())[:3], _plain(summary["last_state"]))
        for order, rank in (("activity", model.activity), ("created", model.creation)):
            whole = [row.task_id for row in sorted(visible[session_id], key=rank)]
            assert whole == await turn_ids(client, session_id, order=order)
            pages = await walk(client, path(session_id, "/turns"), "turns", limit=2, order=order)
            assert whole == [turn["task_id"] for page in reversed(pages) for turn in page]
    for session_id in {f"chat-{letter}" for letter in "abcdef"} - set(visible):
        assert [] == await turns(client, session_id)
        assert 404 == (await client.get(path(session_id))).status_code


async def test_c03_a_time_inside_a_status_pushes_no_session_off_a_page(
    store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """C03 C18: sessions shown already for a 0.3 row's time take no other session's place on a later page."""
    for hour, session_id in enumerate(("chat-d", "chat-a", "chat-b", "chat-c")):
        await store.turn(session_id, at=f"2026-01-05T0{hour}:00:00Z")
    for session_id, hour in (("chat-a", 12), ("chat-b", 13)):
        await store.insert_raw(context_id=session_id, status=f'{{"timestamp": "2026-01-05T{hour}:00:00+00:00"}}')
    pages = await walk(sidecar, SESSIONS, "sessions", limit=1)
    assert ["chat-b", "chat-a", "chat-c", "chat-d"] == [each["session_id"] for each in flat(pages)]


# --- vocabularies and shapes: C01, C04, C09, C23, C30, C31, C32, C44 ------------------------------------------------


async def test_c01_both_vocabularies_answer_alike(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C01: every state of both spellings is answered as it is stored, and only the two that wait are parked."""
    plain = ["submitted", "working", "completed", "failed", "canceled", "rejected", "input-required", "auth-required"]
    spelled = [*plain, *(f"TASK_STATE_{state.upper().replace('-', '_')}" for state in plain)]
    for number, state in enumerate(spelled):
        status = json.dumps({"state": state})
        await store.insert_raw(context_id=f"chat-{number}", status=status)
        [turn] = await turns(sidecar, f"chat-{number}")
        assert (state, {"state": state}) == (turn["state"], turn["status"])
        assert state == (await ok(sidecar, path(f"chat-{number}")))["last_state"]
    parked = [each["last_state"] for each in await listed(sidecar, parked="true")]
    assert sorted(state for state in spelled if _plain(state) in PARKED) == sorted(parked)


async def test_c04_the_old_schema_gives_the_same_answers(
    sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar
) -> None:
    """C04: a database of 0.3.26 answers as one of 1.3.0 with the same turns does, states in their own spelling."""

    async def answers(name: str) -> Any:
        client = await open_sidecar(await sdk_database(name))
        index = [each for each in await listed(client) if each["session_id"] != "chat-k11"]  # made at another time
        kept = ("task_id", "last_updated", "text")
        sessions = {each["session_id"]: await turns(client, each["session_id"]) for each in index}
        states = {turn["task_id"]: _plain(turn["state"]) or "unknown" for rows in sessions.values() for turn in rows}
        return index, {name: [[turn[key] for key in kept] for turn in rows] for name, rows in sessions.items()}, states

    assert await answers("0.3.26") == await answers("1.3.0")


@pytest.mark.parametrize("seed", [1, 2])
async def test_c09_chunks_are_joined_with_nothing(seed: int, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C09: however a text was cut into chunks, the turn's text is the text."""
    dice = random.Random(seed)
    whole = "".join(dice.choices(' \n\t"\\/é中😀\u200d\u0301\u0000abc', k=400))
    cuts = [0, *sorted(dice.choices(range(len(whole)), k=40)), len(whole)]
    await store.turn("chat-a", text=[whole[a:b] for a, b in itertools.pairwise(cuts)])
    assert [whole] == [turn["text"] for turn in await turns(sidecar, "chat-a")]


@pytest.mark.parametrize("seed", [1, 2])
async def test_c10_words_across_chunks_are_found(seed: int, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C10: however a text was cut into chunks, each of its words is found, and no piece of one."""
    dice = random.Random(seed)
    words = ["deployment", "rollback", "人工智能", "checkout", "研究", "café", "user@example.org", "v1.2.3"]
    whole = " ".join(dice.choices(words, k=60)) + " " + " ".join(words)
    cuts = [0, *sorted(dice.choices(range(len(whole)), k=40)), len(whole)]
    task_id = await store.turn("chat-a", prompt=None, text=[whole[a:b] for a, b in itertools.pairwise(cuts)])
    for word in words:
        assert [(task_id, "content")] == await found(sidecar, word), word
    for piece in ("depl", "ment", "check", "out", "back", "人工智"):
        assert [] == await found(sidecar, piece), piece


EMPTIES = ["null", None, "[]", " null ", "[ ]"]


async def test_c23_json_null_and_sql_null_are_one(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C23: JSON null, SQL NULL and an empty list all read as a list without members and a text without characters."""
    for artifacts, history in itertools.product(EMPTIES, repeat=2):
        await store.insert_raw(context_id="chat-a", artifacts=artifacts, history=history, metadata=artifacts)
    rows = await turns(sidecar, "chat-a")
    assert [("", [], [])] * len(EMPTIES) ** 2 == [(turn["text"], turn["artifacts"], turn["history"]) for turn in rows]
    assert not any("omitted" in turn for turn in rows)


@pytest.mark.parametrize("name", NAMES)
async def test_c23_a_bare_task_of_every_sdk(
    name: str, sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar
) -> None:
    """C23: the task that has nothing but a status (t08) reads alike, whatever the SDK stores for nothing."""
    client = await open_sidecar(await sdk_database(name))
    bare = [turn for turn in await turns(client, "chat-d4") if not turn["artifacts"] and not turn["history"]]
    assert [("", [], [])] == [(turn["text"], turn["artifacts"], turn["history"]) for turn in bare]


@pytest.mark.parametrize("name", NAMES[:2])
async def test_c30_the_answer_stands_in_the_artifacts(
    name: str, sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar
) -> None:
    """C30: the SDK keeps an answer out of the history; a turn carries the question and the answer both."""
    client = await open_sidecar(await sdk_database(name))
    [turn] = [turn for turn in await turns(client, "chat-b2") if turn["text"]]
    assert "Team plan" == turn["text"]
    assert "Never mind, what is the plan name?" == turn["history"][0]["parts"][0]["text"]
    assert "Team plan" not in json.dumps(turn["history"])


async def test_c32_unknown_states_are_no_wait_and_no_crash(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C32: a state that nobody knows is answered as stored, one that is no text as none; neither waits nor runs."""
    states = {
        '{"state": "archived"}': "archived",
        '{"state": "TASK_STATE_UNSPECIFIED"}': "TASK_STATE_UNSPECIFIED",
        '{"state": "Input-Required"}': "Input-Required",
        '{"state": "input-required "}': "input-required ",
        '{"state": ""}': "",
        '{"state": null}': "",
        '{"state": 7}': "",
        '{"state": {"input-required": true}}': "",
        '{"timestamp": "2026-01-05T09:00:00Z"}': "",
        '{"message": {"state": "input-required"}}': "",
        '["input-required"]': "",
        '"input-required"': "",
        "null": "",
        "6": "",
    }
    for number, status in enumerate(states):
        await store.insert_raw(context_id=f"chat-{number}", status=status)
    for number, state in enumerate(states.values()):
        assert [state] == [turn["state"] for turn in await turns(sidecar, f"chat-{number}")]
        summary = await ok(sidecar, path(f"chat-{number}"))
        assert (state, None) == (summary["last_state"], summary["live_task_id"])
    assert [] == await listed(sidecar, parked="true")
    assert len(states) == len(await listed(sidecar))


async def test_c44_large_payloads_weigh_nothing_in_the_index(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C44: rows with raw parts of 5 MB are listed without any of them entering this process; an empty answer is one."""
    parts = [{"raw": base64.b64encode(bytes(5 * 1024 * 1024)).decode(), "mediaType": "image/png"}]
    for number in range(2):
        task = {"id": f"task-{number}", "contextId": f"chat-{number}", "status": {"state": "TASK_STATE_INPUT_REQUIRED"}}
        await store.save({**task, "artifacts": [{"artifactId": "a", "parts": parts}]})
    await store.turn("chat-empty", text=None)
    await listed(sidecar)
    tracemalloc.start()
    try:
        assert 3 == len(await listed(sidecar))
        assert 2 == len(await listed(sidecar, parked="true"))
        assert 1 == (await ok(sidecar, path("chat-0")))["turn_count"]
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()
    assert [("", [])] == [(turn["text"], turn["artifacts"]) for turn in await turns(sidecar, "chat-empty")]
    assert [""] == [turn["text"] for turn in await turns(sidecar, "chat-0")]


# --- tombstones: C05, C06, C07, C33, C34, C35 -----------------------------------------------------------------------

QUERIES = ("", "?limit=200", "?parked=true", "?order=created", "?include_execution=true", "?after_position=0")
WORDS = "?query=launch+code&include_auxiliary=true"


async def every_answer(client: httpx.AsyncClient, session_id: str, task_id: str = "none") -> list[httpx.Response]:
    """The answers of all readable routes: those of seed 003, whatever else is published, and the tools."""
    published = (await client.get("/openapi.json")).json().get("paths", {})
    templates = {SESSIONS, SESSION, TURNS, "/livez", "/readyz", "/healthz", "/metrics", "/docs"}
    templates |= {template for template, item in published.items() if "get" in item}
    place = {"session_id": quote(session_id, safe=""), "workspace_public_id": "default"}
    place["conversation_public_id"] = place["session_id"]
    queries = (*QUERIES, WORDS, f"?around_turn_public_id={task_id}&include_execution=true")
    answers = [await client.get(each.format(**place) + query) for each in sorted(templates) for query in queries]
    for name, arguments in (
        ("session_search", {"query": "launch code", "include_auxiliary": True}),
        ("session_read", {"session_id": session_id, "include_execution": True}),
        ("session_read", {"session_id": session_id, "around_turn_id": task_id}),
    ):
        answers.append(await client.post(TOOLS, json=call(name, **arguments)))
    return answers


def mentions(responses: list[httpx.Response], *words: str) -> set[str]:
    """The paths whose answers contain one of the words, in a header or in the body."""
    return {
        each.request.url.path
        for each in responses
        if any(word in each.text or word in str(each.headers) for word in words)
    }


async def save_late(store: rig.Store, session_id: str, task_id: str) -> None:
    """Every way in which a producer's row may come after the deletion."""
    await store.turn(session_id, "input-required", SECRET, SECRET, task_id=task_id, status_text=SECRET)
    await store.turn(session_id, "working", SECRET, task_id=task_id, owner="alice")
    await store.turn(session_id, "completed", [SECRET] * 3, at=None, task_id=task_id)


@pytest.mark.parametrize("prepared", [False, True])
async def test_c05_c06_no_route_shows_a_retired_session(
    prepared: bool, store: rig.Store, sidecar: httpx.AsyncClient, prepare: rig.Prepare
) -> None:
    """C05 C06: whatever is saved after the deletion, no route shows any of it, on this sidecar or another."""
    if prepared:
        await prepare(store)
    task_id = await store.turn("chat-gone", "input-required", SECRET, SECRET, status_text=SECRET)
    await store.turn("chat-kept", "input-required")
    shown = mentions(await every_answer(sidecar, "chat-gone", task_id), "chat-gone", task_id, SECRET)
    routes = {SESSIONS, path("chat-gone"), path("chat-gone", "/turns"), SEARCHING, window("chat-gone"), TOOLS}
    assert routes == shown

    assert 1 == (await delete(sidecar, "chat-gone"))["turns_deleted"]
    await save_late(store, "chat-gone", task_id)
    other = await store.turn("chat-gone", "auth-required", SECRET)
    old = json.dumps({"state": "input-required", "message": SECRET})
    raw = await store.insert_raw(context_id="chat-gone", status=old, history=f'["{SECRET}"]')

    for saved in (task_id, other, raw):
        answers = await every_answer(sidecar, "chat-gone", saved)
        assert set() == mentions(answers, "chat-gone", task_id, other, raw, SECRET)
    assert {"chat-kept"} == await listed_ids(sidecar) == await listed_ids(sidecar, parked="true")


async def test_c05_c06_no_route_shows_a_cleared_turn(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C05 C06 C07: a cleared turn that is saved again stays hidden on every route; the session's next turn appears."""
    task_id = await store.turn("chat-a", "input-required", SECRET)
    assert TOOLS in mentions(await every_answer(sidecar, "chat-a", task_id), SECRET)
    await delete(sidecar, "chat-a", retire="false")
    await save_late(store, "chat-a", task_id)
    assert set() == mentions(await every_answer(sidecar, "chat-a", task_id), "chat-a", task_id, SECRET)

    following = await store.turn("chat-a", "input-required")
    assert [following] == await turn_ids(sidecar, "chat-a")
    assert [("chat-a", 1)] == [(each["session_id"], each["turn_count"]) for each in await listed(sidecar)]
    assert set() == mentions(await every_answer(sidecar, "chat-a", task_id), task_id, SECRET)


async def test_c07_clearing_hides_no_later_turn(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C07: an id that was cleared, even often and while empty, goes on as any other."""
    for turn in range(3):
        await delete(sidecar, "chat-a", retire="false")
        await delete(sidecar, "chat-a", retire="false")
        assert set() == await listed_ids(sidecar)
        task_id = await store.turn("chat-a", "working", str(turn))
        await store.turn("chat-a", "completed", str(turn), task_id=task_id)
        assert [(task_id, str(turn))] == [(each["task_id"], each["text"]) for each in await turns(sidecar, "chat-a")]
        assert 1 == (await ok(sidecar, path("chat-a")))["turn_count"]


async def stored_rows(store: rig.Store) -> dict[str, int]:
    """How many rows each table of the database has; a deletion that failed changes none."""
    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if store.kind == "postgres":
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    names = [row[0] for row in await store.raw(tables)]
    return {name: (await store.raw(f"SELECT count(*) FROM {name}"))[0][0] for name in names}


@asynccontextmanager
async def forbidden(store: rig.Store, event: str, table: str) -> AsyncIterator[None]:
    """The database itself refuses to insert into or delete from a table."""
    if store.kind == "sqlite":
        await store.raw(f"CREATE TRIGGER no BEFORE {event} ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END")
    else:
        body = "'BEGIN RAISE EXCEPTION ''no''; END'"
        await store.raw(f"CREATE OR REPLACE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS {body}")
        await store.raw(f"CREATE TRIGGER no BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION no()")
    yield
    await store.raw("DROP TRIGGER no" + (f" ON {table}" if store.kind == "postgres" else ""))


FAILING = [
    ("true", "INSERT", "tasks_session_tombstones"),
    ("true", "DELETE", "tasks"),
    ("true", "DELETE", "task_events"),
    ("true", "INSERT", "tasks_retirements"),
    ("false", "DELETE", "tasks"),
    ("false", "INSERT", "tasks_task_tombstones"),
    ("false", "INSERT", "tasks_retirements"),
]


async def test_c33_a_deletion_that_fails_changes_nothing(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C33: whichever statement of a retirement or clearing fails, rows, tombstones and audit stay as they were."""
    clustered = VersionedDatabaseTaskStore(store.engine)
    await save_clustered(clustered, "chat-a", "task-1", "working", TaskVersion.MISSING)
    await listed(sidecar)  # creates our tables
    before = await stored_rows(store)
    for retire, event, table in FAILING:
        async with forbidden(store, event, table):
            response = await sidecar.delete(path("chat-a"), params={"retire": retire})
        assert (500, "internal_error") == (response.status_code, response.json()["code"]), (retire, event, table)
        assert before == await stored_rows(store)
        assert ["task-1"] == await turn_ids(sidecar, "chat-a")
    assert 1 == (await delete(sidecar, "chat-a"))["turns_deleted"]


@pytest.mark.parametrize("repeat", [1, 3])
async def test_c34_an_unseen_session_is_retired_all_the_same(
    repeat: int, store: rig.Store, sidecar: httpx.AsyncClient, open_sidecar: rig.OpenSidecar
) -> None:
    """C34: a session without any row is retired, however often; its first save comes later and stays hidden."""
    for _ in range(repeat):
        answer = await delete(sidecar, "chat-unseen")
        assert (True, 0, 0) == (answer["retired"], answer["turns_deleted"], answer["active_turns"])
    await store.turn("chat-unseen", "input-required")
    for client in (sidecar, await open_sidecar(store)):
        assert set() == await listed_ids(client) | await listed_ids(client, parked="true")
        assert [] == await turns(client, "chat-unseen")
    assert 0 == (await delete(sidecar, "chat-unseen"))["turns_deleted"]  # nobody saw it
    assert [] == await store.raw("SELECT id FROM tasks")


async def test_c33_a_sweep_that_fails_is_tried_again(
    store: rig.Store, open_sidecar: rig.OpenSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C33: after a round whose deletion the database refused, the sweeper goes on, and the late rows go."""
    monkeypatch.setattr(sweeper, "INTERVAL_SECONDS", 0.02)
    client = await open_sidecar(store)
    await delete(client, "chat-a")
    async with forbidden(store, "DELETE", "tasks"):
        await store.turn("chat-a")
        await asyncio.sleep(0.2)
    await asyncio.sleep(0.2)
    assert {} == await store.column_text("id")


async def save_clustered(
    clustered: VersionedDatabaseTaskStore, session_id: str, task_id: str, state: str, version: TaskVersion
) -> TaskVersion:
    """Saves a turn as the clustered store does: the row, its version and the event that led to it."""
    status = {"state": f"TASK_STATE_{state.upper()}", "timestamp": "2026-01-05T09:00:00Z"}
    artifacts = [{"artifactId": "a", "parts": [{"text": SECRET}]}]
    task = ParseDict({"id": task_id, "contextId": session_id, "status": status, "artifacts": artifacts}, Task())
    context = ServerCallContext(user=rig.Owner(""))
    return await clustered.save(task, event=task, prev_version=version, context=context)


async def all_text(store: rig.Store) -> str:
    """Everything that stands in any table of the database."""
    text = ""
    for name in await stored_rows(store):
        text += "\n".join(
            str(bytes(cell) if isinstance(cell, memoryview) else cell)
            for row in await store.raw(f"SELECT * FROM {name}")
            for cell in row
        )
    return text


@pytest.mark.parametrize("retire", ["true", "false"])
async def test_c35_nothing_of_a_deleted_session_is_left_beside_it(
    retire: str, store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """C35: versions, events and push configurations of the SDK's stores go with the turns, also those saved late."""
    clustered = VersionedDatabaseTaskStore(store.engine)
    pushes = DatabasePushNotificationConfigStore(store.engine)
    context = ServerCallContext(user=rig.Owner(""))
    for session_id in ("chat-gone", "chat-kept"):
        version = await save_clustered(clustered, session_id, session_id, "working", TaskVersion.MISSING)
        await save_clustered(clustered, session_id, session_id, "completed", version)
        config = {"id": "push", "taskId": session_id, "url": "https://example.org", "token": f"{SECRET}-{session_id}"}
        await pushes.set_info(session_id, ParseDict(config, TaskPushNotificationConfig()), context)

    assert 1 == (await delete(sidecar, "chat-gone", retire=retire))["turns_deleted"]
    await save_clustered(clustered, "chat-gone", "chat-gone", "completed", TaskVersion.MISSING)
    if retire == "true":
        await delete(sidecar, "chat-gone")
        await delete(sidecar, "chat-kept")
        assert SECRET not in await all_text(store)
    else:
        assert [] == await turns(sidecar, "chat-gone")

    beside = {"task_versions": 1, "task_events": 2, "push_notification_configs": 1}
    left = {name: rows for name, rows in (await stored_rows(store)).items() if name in beside}
    assert (dict.fromkeys(beside, 0) if retire == "true" else {**beside, "task_versions": 2, "task_events": 3}) == left


@pytest.mark.parametrize("retire", ["true", "false"])
async def test_c35_no_word_of_a_deleted_session_is_left(
    retire: str, store: rig.Store, open_sidecar: rig.OpenSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C35: after the next sweep what was indexed of its turns stands in no table: no lexeme and no title."""
    monkeypatch.setattr(sweeper, "INTERVAL_SECONDS", 0.02)
    sidecar = await open_sidecar(store)
    await store.turn("chat-gone", prompt="Okapi?", text="A quagga, 斑马.")
    await store.turn("chat-kept", prompt="Heron?", text="An egret.")
    assert [2, 1] == [len(await found(sidecar, query)) for query in ("okapi", "quagga 斑马")]
    await delete(sidecar, "chat-gone", retire=retire)
    words = ("okapi", "Okapi", "quagga", "斑马", "\\xe6\\x96\\x91")
    for _ in range(100):
        left = [word for word in words if word in await all_text(store)]
        if not left:
            break
        await asyncio.sleep(0.02)
    assert [] == left
    assert 1 == len(await found(sidecar, "egret"))


# --- broken and odd content: C08, C21, C22 --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_c08_an_undecodable_id_of_the_turn_that_waits(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C08: the summary names a turn to reattach to even if its id is no UTF-8, and pages may end at such a turn."""
    for at in ("2026-01-05T09:00:00Z", None):
        for number in range(2):
            task_id = await store.turn("chat-x", "input-required", at=at)
            broken_id = f"CAST(x'ff0{number}{'aa' if at else 'bb'}' AS TEXT)"
            await store.raw(f"UPDATE tasks SET id = {broken_id} WHERE id = :id", id=task_id)
    assert isinstance((await ok(sidecar, path("chat-x")))["live_task_id"], str)
    pages = await walk(sidecar, path("chat-x", "/turns"), "turns", limit=1)
    assert await turns(sidecar, "chat-x") == flat(pages[::-1])


async def test_c21_nul_in_every_text(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C21: a NUL that the SDK saved in any text is answered as \\u0000, and neither index nor deletion minds."""
    nul = "a\x00b"
    task = {
        "id": "task-1",
        "contextId": "chat-nul",
        "status": {
            "state": "TASK_STATE_INPUT_REQUIRED",
            "timestamp": "2026-01-05T09:00:00Z",
            "message": rig.message("ROLE_AGENT", nul, metadata={nul: nul}),
        },
        "artifacts": [{"artifactId": nul, "name": nul, "parts": [{"text": nul}, {"data": {nul: nul}}]}],
        "history": [rig.message("ROLE_USER", nul)],
        "metadata": {nul: nul},
    }
    await store.save(task)
    other = await store.turn("chat-b", "input-required")
    [turn] = await turns(sidecar, "chat-nul")
    assert nul == turn["text"] == turn["history"][0]["parts"][0]["text"] == turn["artifacts"][0]["name"]
    assert nul == turn["status"]["message"]["metadata"][nul]
    assert "omitted" not in turn
    assert {"chat-nul", "chat-b"} == await listed_ids(sidecar, parked="true") == await listed_ids(sidecar)
    assert "task-1" == (await ok(sidecar, path("chat-nul")))["live_task_id"]
    for query in ("b", "a\0b", "b\0"):
        matches = await every_match(sidecar, query)
        assert [("content", nul), ("prompt", nul), ("title", nul)] == [
            (each["field"], each["excerpt"]) for each in matches
        ]
    assert (other, "content") in await found(sidecar, "answer")
    answer = await ok(sidecar, window("chat-nul"), include_execution="true")
    assert (nul, nul) == tuple(answer["turns"][0][name] for name in ("prompt", "content"))
    assert [nul] == [each["preview"] for each in answer["execution"]["rounds"]]
    assert 1 == (await delete(sidecar, "chat-nul"))["active_turns"]
    assert [other] == await turn_ids(sidecar, "chat-b")


async def test_c22_a_cut_emoji_in_every_text(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C22: a lone surrogate, which 0.x stores, passes unchanged where it is spliced and is U+FFFD where we write."""
    cut = '"\\ud83d"'
    status = f'{{"state": {cut}, "timestamp": {cut}, "message": {{"text": {cut}}}}}'
    parts = f'[{{"artifactId": {cut}, "parts": [{{"kind": "text", "text": {cut}}}]}}]'
    await store.insert_raw(context_id="chat-cut", status=status, artifacts=parts, history=f"[{cut}]", metadata=cut)
    other = await store.turn("chat-b")
    response = await sidecar.get(path("chat-cut", "/turns"))
    assert 200 == response.status_code
    assert f'"status":{status},"artifacts":{parts},"history":[{cut}]}}]}}'.encode() in response.content
    [turn] = response.json()["turns"]
    assert ("\ufffd", "\ufffd", None) == (turn["text"], turn["state"], turn["last_updated"])
    assert {"chat-cut", "chat-b"} == await listed_ids(sidecar)
    assert [] == await listed(sidecar, parked="true")
    assert [(other, "content")] == await found(sidecar, "answer")
    assert [] == (await search(sidecar, "\ufffd"))["matches"]
    answer = await ok(sidecar, window("chat-cut"), include_execution="true")
    assert ("\ufffd", "\ufffd") == tuple(answer["turns"][0][name] for name in ("content", "status"))
    assert ("\ufffd", []) == (answer["execution"]["status"], answer["execution"]["rounds"][:-1])


async def test_c22_a_cut_emoji_as_state(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C22: the summary of a session whose state holds a lone surrogate has U+FFFD in its place."""
    await store.insert_raw(context_id="chat-cut", status='{"state": "x\\ud83d"}')
    assert "x\ufffd" == (await ok(sidecar, path("chat-cut")))["last_state"]


# --- owners: C28 ----------------------------------------------------------------------------------------------------

LEGACY = "legacy_v03_no_user_info"
OWNED = {"alice": "alice", "nobody": "", "legacy": LEGACY, "unset": None, "case": "Alice", "space": " "}
NARROWED = {
    "all": (["*"], set(OWNED)),
    "alice": (["alice"], {"alice"}),
    "nobody": ([""], {"nobody"}),
    "legacy": ([LEGACY], {"legacy"}),
    "two": (["alice", ""], {"alice", "nobody"}),
    "word": (["NULL", "None", "null"], set()),
}


def tokens_file(folder: Path) -> Path:
    rows = [
        f'[[token]]\nname = "{name}"\nsha256 = "{hashlib.sha256(token_of(name).encode()).hexdigest()}"\n'
        f'scopes = ["read", "retire"]\nowners = {json.dumps(owners)}\n'
        for name, (owners, _) in NARROWED.items()
    ]
    file = folder / "tokens.toml"
    file.write_text("\n".join(rows), "utf-8")
    file.chmod(0o600)
    return file


def token_of(name: str) -> str:
    return f"token-of-{name}-0123456789"


async def test_c28_owners_are_never_confused(store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path) -> None:
    """C28: nobody, no owner, the legacy owner and a name are four things, on every read and every deletion."""
    for name, owner in OWNED.items():
        task_id = await store.turn(f"chat-{name}", "input-required", owner=owner or "")
        await store.raw("UPDATE tasks SET owner = :owner WHERE id = :id", owner=owner, id=task_id)
    for owner in OWNED.values():
        task_id = await store.turn("chat-mixed", "input-required", text=str(owner), owner=owner or "")
        await store.raw("UPDATE tasks SET owner = :owner WHERE id = :id", owner=owner, id=task_id)
    file = tokens_file(tmp_path)
    operator = await open_sidecar(store)
    for name, (_, visible) in NARROWED.items():
        client = await open_sidecar(store, token_of(name), tokens_file=file)
        expected = {f"chat-{each}" for each in visible} | ({"chat-mixed"} if visible else set())
        assert expected == await listed_ids(client) == await listed_ids(client, parked="true")
        mixed = {"session_id": "chat-mixed", "turn_count": len(visible)}
        assert [mixed] * bool(visible) == [
            {key: each[key] for key in mixed} for each in await listed(client) if each["session_id"] == "chat-mixed"
        ]
        assert {str(OWNED[each]) for each in visible} == {turn["text"] for turn in await turns(client, "chat-mixed")}
        for each in OWNED:
            seen = 200 if each in visible else 404
            assert seen == (await client.get(path(f"chat-{each}"))).status_code
            assert int(each in visible) == len(await turns(client, f"chat-{each}"))
        if name == "all":
            continue
        for refused in {"chat-mixed", "chat-nowhere", *(f"chat-{each}" for each in set(OWNED) - visible)}:
            for retire in ("true", "false"):
                response = await client.delete(path(refused), params={"retire": retire})
                assert (403, "owner_not_allowed") == (response.status_code, response.json()["code"])
    assert 1 + len(OWNED) == len(await listed(operator))
    alice = await open_sidecar(store, token_of("alice"), tokens_file=file)
    assert 1 == (await delete(alice, "chat-alice", retire="false"))["turns_deleted"]
    await store.turn("chat-alice", owner="alice")
    assert [1, 0] == [(await delete(alice, "chat-alice"))["turns_deleted"] for _ in range(2)]
    await store.turn("chat-nowhere")
    assert "chat-nowhere" in await listed_ids(operator)


@pytest.mark.parametrize("name", NAMES)
async def test_c28_owners_of_sdk_databases(
    name: str, sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar, tmp_path: Path
) -> None:
    """C28: all SDKs' rows are the operator's to see; a narrowed token sees its own, and none without the column."""
    store, file = await sdk_database(name), tokens_file(tmp_path)
    operator = await listed_ids(await open_sidecar(store))
    assert {"chat-a1", "chat-i9"} <= operator
    columns = "NULL AS owner" if name == "0.3.26" else "owner"
    rows = await store.raw(f"SELECT context_id, {columns} FROM tasks")
    for token, (owners, _) in NARROWED.items():
        client = await open_sidecar(store, token_of(token), tokens_file=file)
        visible = {row.context_id for row in rows if row.owner in owners} & operator
        assert (operator if token == "all" else visible) == await listed_ids(client)


# --- locks, races, missing stores: C13, C14, C15, C16, C43 ----------------------------------------------------------


@asynccontextmanager
async def locked(store: rig.Store) -> AsyncIterator[None]:
    """A producer that lets nobody read."""
    async with store.engine.connect() as connection:
        if store.kind == "sqlite":
            await connection.exec_driver_sql("BEGIN EXCLUSIVE")
        else:
            await connection.exec_driver_sql("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
        yield
        await connection.rollback()


READS = (SESSIONS, f"{SESSIONS}?parked=true", path("chat-a"), path("chat-a", "/turns"))


async def test_c13_a_read_waits_for_a_short_lock(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C13: while a producer holds the store exclusively, reads wait; the answer comes when it is free."""
    await store.turn("chat-a", "input-required")
    for warm in (False, True):
        async with locked(store):
            reading = [asyncio.create_task(sidecar.get(each)) for each in READS]
            await asyncio.sleep(0.3)
            assert not any(each.done() for each in reading), warm
        assert [200] * len(READS) == [response.status_code for response in await asyncio.gather(*reading)]


async def test_c13_a_lock_held_too_long_is_busy(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """C13: past the limit every route answers 503 `busy` with Retry-After, changes nothing, and recovers by itself."""
    client = await open_sidecar(store, statement_timeout=0.3)
    task_id = await store.turn("chat-a")
    await listed(client)
    async with locked(store):
        asked = [*(client.get(each) for each in READS), client.delete(path("chat-a"))]
        answers = [*await asyncio.gather(*asked), await client.get("/readyz")]
    assert [(503, "busy", True)] * len(asked) == [
        (each.status_code, each.json()["code"], "retry-after" in each.headers) for each in answers[:-1]
    ]
    assert answers[-1].status_code in (200, 503)
    assert [200] * len(READS) == [(await client.get(each)).status_code for each in READS]
    assert [task_id] == await turn_ids(client, "chat-a")


async def test_c14_polling_never_disturbs_a_stream(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C14: while the index and the turns are polled, none of a producer's hundred saves fails, nor any read."""
    chunks = [f"{number}-" + "x" * 50 for number in range(100)]
    streaming, seen = True, 0

    async def poll() -> None:
        nonlocal seen
        while streaming:
            assert {"chat-live"} >= await listed_ids(sidecar) >= await listed_ids(sidecar, parked="true")
            for turn in await turns(sidecar, "chat-live"):
                assert "".join(chunks).startswith(turn["text"])
                seen += 1
            await asyncio.sleep(0.02)

    pollers = [asyncio.create_task(poll()) for _ in range(2)]
    for count in range(1, len(chunks) + 1):
        await store.turn("chat-live", "working", chunks[:count], task_id="task-1")
    streaming = False
    await asyncio.gather(*pollers)
    assert seen > 10
    assert ["".join(chunks)] == [turn["text"] for turn in await turns(sidecar, "chat-live")]


async def test_c15_a_missing_store_is_told_and_found_later(
    bare_store: rig.Store, open_sidecar: rig.OpenSidecar
) -> None:
    """C15: without file, table or column every route answers 503 `task_store_missing`, until they are there."""
    client = await open_sidecar(bare_store)

    async def assert_missing(*words: str) -> None:
        for response in [*[await client.get(each) for each in READS], await client.delete(path("chat-a"))]:
            assert (503, "task_store_missing") == (response.status_code, response.json()["code"])
            assert all(word in response.json()["detail"] for word in words)
        assert 503 == (await client.get("/readyz")).status_code

    await assert_missing()
    await bare_store.raw("CREATE TABLE other (id INTEGER)")
    await assert_missing("tasks")
    await bare_store.raw("CREATE TABLE tasks (id VARCHAR(36) PRIMARY KEY, status TEXT)")
    await assert_missing("context_id", "artifacts", "history")
    await bare_store.raw("DROP TABLE tasks")
    await assert_missing("tasks")
    await bare_store.tasks.initialize()
    await bare_store.turn("chat-a")
    assert {"chat-a"} == await listed_ids(client)
    await bare_store.raw("DROP TABLE tasks")
    await assert_missing("tasks")


async def test_c16_first_requests_race_for_our_tables(
    full: bool, store: rig.Store, open_sidecar: rig.OpenSidecar
) -> None:
    """C16: six sidecars whose first requests come at once all answer, and all see the same tombstones afterwards."""
    clients = [await open_sidecar(store) for _ in range(6)]
    await store.turn("chat-a")
    for _ in range(2 if full else 1):
        asked = [client.get(each) for client in clients for each in READS[:3]]
        asked += [client.delete(path(f"chat-{number}")) for number, client in enumerate(clients)]
        assert {200} == {response.status_code for response in await asyncio.gather(*asked)}
        retired = await store.raw("SELECT session_id FROM tasks_session_tombstones")
        assert {f"chat-{number}" for number in range(6)} == {row.session_id for row in retired}
        for name in ("tasks_session_tombstones", "tasks_task_tombstones", "tasks_retirements"):
            await store.raw(f"DROP TABLE {name}")


async def test_c43_rows_that_a_sweep_takes_and_rows_it_never_takes(
    store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """C43: a turn that goes between two requests is simply not there; an old running one is listed and not parked."""
    month_ago = f"{datetime.now(UTC) - timedelta(days=30):%Y-%m-%dT%H:%M:%SZ}"
    stuck = await store.turn("chat-stuck", "working", at=month_ago)
    untimed = await store.turn("chat-untimed", "submitted", at=None)
    ids = [await store.turn("chat-a") for _ in range(4)]
    first = await sidecar.get(path("chat-a", "/turns"), params={"limit": 2})
    for task_id in (ids[1], ids[2]):
        await store.delete(task_id)
    assert [ids[0]] == [turn["task_id"] for turn in (await sidecar.get(first.links["next"]["url"])).json()["turns"]]
    assert [ids[0], ids[3]] == await turn_ids(sidecar, "chat-a")
    assert 2 == (await ok(sidecar, path("chat-a")))["turn_count"]
    for task_id in (ids[0], ids[3]):
        await store.delete(task_id)
    assert [] == await turns(sidecar, "chat-a")
    assert {"chat-stuck": month_ago, "chat-untimed": None} == {
        each["session_id"]: each["last_updated"] for each in await listed(sidecar)
    }
    assert [] == await listed(sidecar, parked="true")
    for session_id, task_id in (("chat-stuck", stuck), ("chat-untimed", untimed)):
        assert task_id == (await ok(sidecar, path(session_id)))["live_task_id"]


# --- parameters: C17, C20, C27, C37 ---------------------------------------------------------------------------------

LIMITS = {
    "1": 200, "200": 200, "201": 200, "9999999999": 200, "0": 400, "-1": 400, "+1": 400, "1.5": 400, "1e2": 400,
    "abc": 400, "": 400, " 5": 400, "5 ": 400, "01": 400, "0x10": 400, "1_0": 400, "٣": 400, "99999999999": 400,
    "1" + "0" * 20: 400, "9" * 5000: 400, "NaN": 400, "null": 400, "\x00": 400, "1;DROP TABLE tasks": 400,
}  # fmt: skip


async def test_c20_limits_are_the_same_on_both_databases(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C20: a whole number is clamped to 200, anything else is a 400 that names the parameter, and none is a 500."""
    for _ in range(3):
        await store.turn("chat-a", "input-required")
    for url in (READS[0], READS[1], READS[3]):
        base = await sidecar.get(url)
        answers = {}
        for value in LIMITS:
            response = await sidecar.get(httpx.URL(url).copy_add_param("limit", value))
            answers[value] = response.status_code
            if response.status_code == 400:
                assert "parameter_invalid" == response.json()["code"]
                assert "limit" in response.json()["detail"]
            elif value != "1":
                assert base.content == response.content
        assert LIMITS == answers, url


FORGED: list[Any] = [
    None, True, -1, 1.5, 2**63, "", "x", "a\x00b", "2026-01-05T09:00:00", "2026-01-05T09:00:00Z", "0001-01-01T00:00:00",
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999", "9999-12-31T23:59:59.999999Z", [], {},
]  # fmt: skip


def forgeries(cursor: str) -> list[str]:
    """A cursor with each of its values replaced by each of many, and with its position shortened and lengthened."""
    version, bound, position = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    positions = [[*position[:at], value, *position[at + 1 :]] for at in range(len(position)) for value in FORGED]
    positions += [position[:-1], [*position, 1], [], *FORGED]
    contents: list[Any] = [[version, bound, each] for each in positions]
    contents += [
        [version, [*bound, ""], position],
        [None, bound, position],
        [2, bound, position],
        ["1", bound, position],
    ]
    contents += [[version, bound], [version, bound, position, 1], [], {}]
    texts = [json.dumps(each) for each in contents] + ["[1" * 3000, "\ud83d", "\x00", "[1,[],\xff]"]
    return [base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().rstrip("=") for text in texts]


async def test_c17_c27_forged_cursors_are_refused(
    store: rig.Store, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """C17 C27: a cursor is read or refused with 400 `parameter_invalid`, whatever times and numbers are put into it."""
    await prepare(store)
    client = await open_sidecar(store)
    for _ in range(2):
        await store.turn("chat-a", "input-required")
        await store.turn("chat-b", "input-required")
    failed = []
    for url in (READS[0], READS[1], READS[3], f"{READS[3]}?order=created"):
        given = (await client.get(httpx.URL(url).copy_add_param("limit", 1))).links["next"]["url"]
        for cursor in forgeries(httpx.URL(given).params["cursor"]):
            response = await client.get(httpx.URL(url).copy_add_param("cursor", cursor))
            if (response.status_code, response.json().get("code")) not in ((200, None), (400, "parameter_invalid")):
                failed.append((url, base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))))
    assert [] == failed


async def test_c37_long_ids(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """C37: an id longer than the SDK's column is read as unknown and can be retired; above 255 characters it is 400."""
    await store.turn("chat-a")
    for letter, length in itertools.product("x中😀", (36, 37, 255, 256, 300, 600)):
        session_id = "chat-" + letter * (length - 5)
        saved, addressable = store.kind == "sqlite" or length <= 36, length <= 255
        if saved:
            await store.turn(session_id)
        assert {"chat-a", *([session_id] if saved and addressable else [])} == await listed_ids(sidecar)
        read, retired = await sidecar.get(path(session_id, "/turns")), await sidecar.delete(path(session_id))
        if addressable:
            assert (200, 200) == (read.status_code, retired.status_code)
            assert (int(saved), int(saved)) == (len(read.json()["turns"]), retired.json()["turns_deleted"])
        else:
            assert {"session_id_invalid"} == {read.json()["code"], retired.json()["code"]}
        assert {"chat-a"} == await listed_ids(sidecar)


# --- a schema that changes under a running sidecar: C38 -------------------------------------------------------------

MIGRATION = (
    "ALTER TABLE tasks ADD COLUMN owner VARCHAR(255) DEFAULT 'legacy_v03_no_user_info'",
    "ALTER TABLE tasks ADD COLUMN last_updated {timestamp}",
    "CREATE INDEX idx_tasks_owner_last_updated ON tasks (owner, last_updated)",
    "ALTER TABLE tasks ADD COLUMN protocol_version VARCHAR(16)",
    "CREATE TABLE task_versions (task_id VARCHAR(36) PRIMARY KEY, owner VARCHAR(255), version BIGINT NOT NULL)",
    "CREATE TABLE task_events (seq INTEGER PRIMARY KEY, task_id VARCHAR(36), owner VARCHAR(255),"
    " task_version BIGINT NOT NULL, event_data {blob} NOT NULL)",
)
DOWNGRADE = (
    "DROP TABLE task_events",
    "DROP TABLE task_versions",
    "ALTER TABLE tasks DROP COLUMN protocol_version",
    "DROP INDEX idx_tasks_owner_last_updated",
    "ALTER TABLE tasks DROP COLUMN last_updated",
    "ALTER TABLE tasks DROP COLUMN owner",
)


async def test_c38_a_migration_under_polling(sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar) -> None:
    """C38: the SDK's migration and its downgrade run under a polling sidecar: every answer is 200 and the same."""
    store = await sdk_database("0.3.26")
    client = await open_sidecar(store)
    reads = [SESSIONS, f"{SESSIONS}?parked=true", path("chat-a1"), path("chat-a1", "/turns"), path("chat-e5", "/turns")]
    before = {each: (await client.get(each)).content for each in reads}
    migrating, wrong = True, set()

    async def poll() -> None:
        while migrating:
            for each in reads:
                response = await client.get(each)
                if before[each] != response.content:
                    wrong.add((each, response.status_code, response.text))

    pollers = [asyncio.create_task(poll()) for _ in range(2)]
    types = {"timestamp": "TIMESTAMP", "blob": "BYTEA" if store.kind == "postgres" else "BLOB"}
    for statement in [*MIGRATION, *DOWNGRADE]:
        await store.raw(statement.format(**types))
        assert 0 == (await delete(client, "chat-unknown"))["turns_deleted"]
    migrating = False
    await asyncio.gather(*pollers)
    assert set() == wrong


WIDENED = [("context_id", "varchar(255)", "varchar(36)"), ("id", "text", "varchar(36)"), ("status", "jsonb", "json")]


async def retype(store: rig.Store, column: str, kind: str) -> None:
    await store.raw(f"ALTER TABLE tasks ALTER COLUMN {column} TYPE {kind}")


@pytest.mark.parametrize("kind", ["postgres"])
@pytest.mark.parametrize(("column", "new", "old"), WIDENED)
async def test_c38_a_widened_column_under_warm_reads(
    column: str, new: str, old: str, store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """C38: a column whose type changes makes cached plans invalid; every read goes on."""
    task_id = await store.turn("chat-a", "input-required")
    for read in READS:
        before = await sidecar.get(read)
        await retype(store, column, new)
        after = await sidecar.get(read)
        assert (200, before.json().keys()) == (after.status_code, after.json().keys()), read
        await retype(store, column, old)
    assert [task_id] == await turn_ids(sidecar, "chat-a")


@pytest.mark.parametrize("kind", ["postgres"])
@pytest.mark.parametrize(("column", "new", "old"), WIDENED)
async def test_c38_a_widened_column_under_warm_deletions(
    column: str, new: str, old: str, store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """C38: so does every deletion, and it deletes once."""
    for retire in ("true", "false"):
        await sidecar.delete(path("chat-warm"), params={"retire": "false"})
        await retype(store, column, new)
        await store.turn("chat-a")
        assert 1 == (await delete(sidecar, "chat-a", retire="false"))["turns_deleted"], retire
        await retype(store, column, old)
