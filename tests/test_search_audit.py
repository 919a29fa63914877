"""The audit of agents' searches: what is recorded, what cannot be recorded is not shown, and the ceiling of a run."""

import asyncio
import hmac
import json
import logging
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from sidecar import records
from sidecar.app import create_app
from sidecar.db import Database
from sidecar.openapi import ref
from sidecar.search.audit import CEILING, Draft, Selected, Shown, digest, record
from tests import rig
from tests.test_history_search import KEY, RECALL, RUN, recall, texts, token_of, tokens_file
from tests.test_openapi import conforms
from tests.test_paths import on_sqlite

AUDIT = "/agent_api/v1/workspaces/default/search_audit"
EVENTS = "tasks_conversation_search_events"


@pytest.fixture
async def agent(store: rig.Store, open_sidecar: rig.OpenSidecar) -> httpx.AsyncClient:
    """The client of a sidecar that may record searches."""
    return await open_sidecar(store, audit_key=KEY)


async def audited(client: httpx.AsyncClient, **params: Any) -> rig.Json:
    response = await client.get(AUDIT, params=params)
    assert 200 == response.status_code, response.text
    answer: rig.Json = response.json()
    return answer


def keys(answer: rig.Json) -> list[tuple[str, str]]:
    """Turn and message of everything that an answer shows, or an event has selected."""
    hits = answer["hits"] if "hits" in answer else answer["selected"]
    shown = [each for hit in hits for each in (hit, *hit["before"], *hit["after"])]
    return [(each["turn_public_id"], each["message_id"]) for each in shown]


async def everything_stored(store: rig.Store) -> str:
    """Every row of every table of the database, as text."""
    catalog = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if store.kind == "postgres":
        catalog = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
    tables = [name for (name,) in await store.raw(catalog)]
    assert EVENTS in tables
    return "\n".join([repr(row) for name in tables for row in await store.raw(f'SELECT * FROM "{name}"')])


# --- what is recorded


async def test_every_search_leaves_an_event(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """It says who asked and when, by what filters, what was shown and why; also of a search that found nothing."""
    turn = await store.turn("chat-a", prompt="Which?", text="The okapi.")
    filters = {"speaker": "you", "since": "2026-01-05T10:00:00+01:00", "limit": 99, "conversation_public_id": "chat-a"}
    found = await recall(agent, "okapi the", {"X-Current-Turn": "turn-9"}, **filters, loaded_message_ids=["m"])
    nothing = await recall(agent, "zebra")
    listed = await audited(agent)
    assert conforms(ref("SearchEvents"), listed), listed
    newest, first = listed["events"]
    for answer, recorded in ((found, first), (nothing, newest)):
        told = answer["search_audit"]
        assert told == {name: recorded[name] for name in told}
        assert keys(answer) == keys(recorded)
    assert {
        "speaker": "you",
        "since": "2026-01-05T09:00:00Z",
        "until": None,
        "limit": 20,
        "conversation_public_id": "chat-a",
        "current_turn": "turn-9",
        "loaded_message_ids": 1,
        "query_lexemes": 1,
        "ignored_terms": 1,
    } == first["filters"]
    assert [turn] == [hit["turn_public_id"] for hit in first["selected"]]
    reasons = {**found["hits"][0]["reasons"]}
    assert ["okapi"] == reasons.pop("terms")
    assert [reasons] == [hit["reasons"] for hit in first["selected"]]
    assert ("operator", "run-1", 2, False) == tuple(
        first[name] for name in ("token", "run_id", "new_messages", "search_budget_exhausted")
    )
    assert ([], 0) == (newest["selected"], newest["new_messages"])


async def test_the_request_is_named_as_in_its_answer(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """An event leads to the log lines of its request."""
    response = await agent.post(RECALL, json={"query": "x"}, headers={**RUN, "X-Request-Id": "request-7"})
    assert 200 == response.status_code
    assert ["request-7"] == [each["request_id"] for each in (await audited(agent))["events"]]


async def test_no_word_of_a_query_is_kept(
    store: rig.Store, agent: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in any table, log line or metric, neither as it was sent nor as it was looked for."""
    caplog.set_level(logging.DEBUG, "sidecar")
    await store.turn("chat-a", text="The okapi.")
    await recall(agent, "okapi Xylophonists")
    await agent.post(RECALL, json={"query": "xylophonists", "speaker": "xylophonist"}, headers=RUN)
    metrics = (await agent.get("/metrics")).text
    kept = "\n".join([await everything_stored(store), caplog.text, metrics]).lower()
    assert "okapi" in kept
    assert "history_search" in metrics
    assert "xylophonist" not in kept


def test_a_digest_is_of_the_words_and_the_key() -> None:
    """Case, spacing and the way a letter is composed do not change it; a word and the key do."""
    expected = digest(KEY, "where is the Straße café")
    for same in ("WHERE is\tthe  strasse CAFÉ", "  where is the STRASSE cafe\u0301\n"):
        assert expected == digest(KEY, same)
    for other in (digest(KEY, "where is the strasse cafe"), digest(KEY + "x", "where is the strasse café")):
        assert expected != other
    assert hmac.new(KEY.encode(), "where is the strasse café".encode(), "sha256").hexdigest() == expected


# --- what cannot be recorded is not shown


def refused(response: httpx.Response, *named: str) -> None:
    """The search failed for want of its record, whose fault is named, and shows nothing of what it found."""
    assert (503, "audit_unavailable") == (response.status_code, response.json()["code"]), response.text
    for each in named:
        assert each in response.json()["detail"]
    assert "okapi" not in response.text
    assert "hits" not in response.json()


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_full_disk(store: rig.Store) -> None:
    """SQLite's own fault for a file that cannot grow: no hit, and no event; once there is room, both."""
    for number in range(20):
        await store.turn(f"chat-{number}", prompt=f"Which {number}?", text="An okapi.")
    app = create_app(rig.config_for(store, audit_key=KEY))
    is_full = False

    @event.listens_for(app.state.database._engine.sync_engine, "checkout")
    def _on_checkout(connection: Any, record: Any, proxy: Any) -> None:
        most = 1 if is_full else 2**30  # never less than there are
        connection.run_async(lambda driver: driver.execute_fetchall(f"PRAGMA max_page_count = {most}"))

    async with rig.client(app) as client:
        assert 8 == len((await recall(client, "okapi"))["hits"])
        is_full = True
        for _ in range(2):
            response = await client.post(RECALL, json={"query": "okapi", "limit": 20}, headers=RUN)
            refused(response, "SQLITE_FULL")
        is_full = False
        assert 1 == len((await audited(client))["events"])
        assert 20 == len((await recall(client, "okapi", limit=20))["hits"])


async def test_an_unforeseen_fault(
    store: rig.Store, agent: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the insert fails by, nothing is shown; the log has the fault once, without a word of the query."""
    await store.turn("chat-a", text="The okapi.")
    await recall(agent, "okapi")
    body = "BEGIN SELECT RAISE(FAIL, 'no more okapi'); END"
    if store.kind == "postgres":
        body = "EXECUTE FUNCTION refuse()"
        await store.raw(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'no more okapi'; END $$"
        )
    await store.raw(f"CREATE TRIGGER refusing BEFORE INSERT ON {EVENTS} FOR EACH ROW {body}")
    caplog.clear()
    refused(await agent.post(RECALL, json={"query": "okapi xylophone"}, headers=RUN), "the log tells more")
    assert ["sidecar"] == [record.name for record in caplog.records if record.exc_info]
    assert "xylophone" not in caplog.text
    await store.raw(f"DROP TRIGGER refusing{f' ON {EVENTS}' if store.kind == 'postgres' else ''}")
    assert 1 == len((await recall(agent, "okapi"))["hits"])


@on_sqlite
async def test_a_locked_file(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Somebody's long write is waited for a while; then the client is told when to try again."""
    await store.turn("chat-a", text="The okapi.")
    await recall(agent, "okapi")
    async with store.engine.connect() as other:
        await other.exec_driver_sql("BEGIN IMMEDIATE")
        response = await agent.post(RECALL, json={"query": "okapi"}, headers=RUN)
        await other.exec_driver_sql("ROLLBACK")
    refused(response, "locked")
    assert "2" == response.headers["retry-after"]


# --- the ceiling

BLOCK = 20


async def many(store: rig.Store, blocks: int) -> None:
    """So many times twenty turns of two messages, each in a conversation of its own; a block has its own word."""
    for number in range(blocks * BLOCK):
        await store.turn(f"chat-{number}", prompt=f"What of {number}?", text=f"word{number // BLOCK}")


async def test_the_ceiling_is_exact(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """Eight callers of one run, at two sidecars, are together shown 400 messages, though there are more."""
    blocks = 12
    await many(store, blocks)
    clients = [await open_sidecar(store, audit_key=KEY) for _ in range(2)]
    await recall(clients[0], "word0", {"X-Run-Id": "before"})
    waiting = list(range(blocks))

    async def calling(client: httpx.AsyncClient) -> list[rig.Json]:
        answers = []
        while waiting:
            answers.append(await recall(client, f"word{waiting.pop()}", limit=BLOCK))
        return answers

    answered = await asyncio.gather(*(calling(clients[number % 2]) for number in range(8)))
    answers = [answer for some in answered for answer in some]
    shown = {key for answer in answers for key in keys(answer)}
    assert (blocks, CEILING) == (len(answers), len(shown))
    events = [each for each in (await audited(clients[0]))["events"] if each["run_id"] == "run-1"]
    assert CEILING == sum(each["new_messages"] for each in events)
    assert shown == {key for each in events for key in keys(each)}
    assert blocks * BLOCK * 2 - CEILING == sum(each["exclusions"]["budget"] for each in events)
    exhausted = [answer["search_budget_exhausted"] for answer in answers]
    assert exhausted.count(True) >= 2
    # a sidecar that is started later knows, and another run has all of its own
    later = await open_sidecar(store, audit_key=KEY)
    again = [await recall(later, f"word{block}", limit=BLOCK) for block in range(blocks)]
    assert shown == {key for answer in again for key in keys(answer)}
    assert {True} == {answer["search_budget_exhausted"] for answer in again}
    fresh = await recall(later, "word0", {"X-Run-Id": "run-2"}, limit=BLOCK)
    assert (2 * BLOCK, False) == (len(keys(fresh)), fresh["search_budget_exhausted"])


async def shown_before(store: rig.Store, number: int, run_id: str = "run-1", token: str = "operator") -> None:
    """A run was shown so many messages that are not here any more."""
    hits = [{"turn_public_id": f"t-{n}", "message_id": "m", "before": [], "after": []} for n in range(number)]
    await store.raw(
        f"INSERT INTO {EVENTS} (at, token, run_id, digest, filters, selected, exclusions, fresh, exhausted, request_id)"
        " VALUES (CURRENT_TIMESTAMP, :token, :run_id, '', '{}', :selected, '{}', :fresh, false, '')",
        token=token,
        run_id=run_id,
        selected=json.dumps(hits),
        fresh=number,
    )


@pytest.mark.parametrize(
    ("before", "shown", "left_out", "is_exhausted"),
    [
        (395, ["okapi new", "ask", "mention", "okapi old"], 0, False),
        (396, ["okapi new", "ask", "mention", "okapi old"], 0, True),
        (397, ["okapi new", "ask", "mention"], 1, True),
        (398, ["okapi new", "ask"], 2, True),
        (399, ["okapi new"], 3, True),
        (400, [], 4, True),
    ],
)
@pytest.mark.usefixtures("sqlite_suffices")
async def test_what_does_not_fit_is_left_out(
    before: int, shown: list[str], left_out: int, is_exhausted: bool, store: rig.Store, agent: httpx.AsyncClient
) -> None:
    """In the order of ranks, each hit with its neighbours; the first hit that does not fit ends the list."""
    await store.turn("chat-b", prompt=None, text="okapi old")
    await store.turn("chat-a", prompt="ask", text="okapi new")
    await store.turn("chat-a", prompt=None, text="mention")
    await recall(agent, "unheard-of")
    await shown_before(store, before)
    answer = await recall(agent, "okapi")
    told = [text for hit in answer["hits"] for text in [hit["text"], *texts(hit["before"]), *texts(hit["after"])]]
    assert (shown, is_exhausted) == (told, answer["search_budget_exhausted"])
    assert left_out == answer["search_audit"]["exclusions"]["budget"]
    again = await recall(agent, "okapi")
    assert answer["hits"] == again["hits"]
    events = (await audited(agent))["events"]
    assert [0, len(shown)] == [each["new_messages"] for each in events[:2]]


@on_sqlite
async def test_the_nearest_neighbour_is_kept(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """With room for one message beside the hit it is that just before it."""
    await store.turn("chat-a", prompt="far", text="near")
    await store.turn("chat-a", prompt=None, text="okapi")
    await recall(agent, "unheard-of")
    await shown_before(store, 398)
    (hit,) = (await recall(agent, "okapi"))["hits"]
    assert (["near"], []) == (texts(hit["before"]), texts(hit["after"]))


@on_sqlite
async def test_a_record_waits_for_no_thread(store: rig.Store) -> None:
    """All worker threads may be busy with long texts: SQLite's one write lock is not held until one is free."""
    database = Database(rig.config_for(store))
    draft = Draft("operator", "run-1", "", {}, (Selected(("turn-1", "m"), (), (), {}),), {}, "")
    await records.write(database, record, draft, Shown(0, frozenset()))
    done = threading.Event()
    busy = [asyncio.create_task(asyncio.to_thread(done.wait)) for _ in range(64)]
    try:
        async with asyncio.timeout(10):
            recorded = await records.write(database, record, draft, Shown(0, frozenset()))
    finally:
        done.set()
        await asyncio.gather(*busy)
        await database.close()
    assert (2, draft.selected) == (recorded.event_id, recorded.selected)


async def test_what_was_shown_is_shown_again(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """A run at its ceiling finds the messages that it was shown, and is told that there is nothing new."""
    await store.turn("chat-a", prompt=None, text="okapi")
    await recall(agent, "okapi")
    await shown_before(store, 399)
    answer = await recall(agent, "okapi")
    assert (["okapi"], True) == (texts(answer["hits"]), answer["search_budget_exhausted"])


@on_sqlite
async def test_a_budget_is_of_one_run_of_one_token(
    store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path
) -> None:
    """Neither another run nor another token uses it up."""
    await store.turn("chat-a", prompt=None, text="okapi", owner="alice")
    tokens = tokens_file(tmp_path, alice="alice", home="alice")
    clients = [
        await open_sidecar(store, token_of(name), tokens_file=tokens, audit_key=KEY) for name in ("alice", "home")
    ]
    await recall(clients[0], "unheard-of")
    await shown_before(store, 400, token="alice")
    shown = [
        len((await recall(client, "okapi", {"X-Run-Id": run_id}))["hits"])
        for client in clients
        for run_id in ("run-1", "run-2")
    ]
    assert [0, 1, 1, 1] == shown


# --- the list of events


async def test_events_are_listed_newest_first_in_pages(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Each page goes on before the one above, and the last one says so; ids that were given to none change nothing."""
    for number in range(5):
        await recall(agent, "x", {"X-Run-Id": f"run-{number}"})
    pages = [await audited(agent, limit=2)]
    while (before := pages[-1]["pagination"]["next_before"]) is not None:
        pages.append(await audited(agent, limit=2, before=before))
    runs = [[each["run_id"] for each in page["events"]] for page in pages]
    assert [["run-4", "run-3"], ["run-2", "run-1"], ["run-0"]] == runs
    assert 5 == len((await audited(agent, limit=9_999_999_999, before=10**17))["events"])
    assert [] == (await audited(agent, before=1))["events"]


@on_sqlite
async def test_limits_of_the_list(store: rig.Store, agent: httpx.AsyncClient) -> None:
    """Fifty events unless another number is asked for, and never more than two hundred."""
    await recall(agent, "x")
    names = "at, token, run_id, digest, filters, selected, exclusions, fresh, exhausted, request_id"
    for _ in range(8):  # doubles them
        await store.raw(f"INSERT INTO {EVENTS} ({names}) SELECT {names} FROM {EVENTS}")
    for params, number in ({}, 50), ({"limit": 999}, 200):
        assert number == len((await audited(agent, **params))["events"])
    for name, value in (("limit", "0"), ("limit", "x"), ("before", "0"), ("before", "-1"), ("before", "1" * 19)):
        response = await agent.get(AUDIT, params={name: value})
        assert (400, "parameter_invalid") == (response.status_code, response.json()["code"])
        assert f"`{name}`" in response.json()["detail"]


async def test_who_may_inspect(store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path) -> None:
    """The scope is `audit`, and a token that is narrowed to owners sees its own events alone."""
    tokens = tokens_file(tmp_path, alice="alice", bob="bob", everyone="*")
    clients = {
        name: await open_sidecar(store, token_of(name), tokens_file=tokens, audit_key=KEY)
        for name in ("alice", "bob", "everyone")
    }
    for client in clients.values():
        await recall(client, "x")
    seen = {name: {each["token"] for each in (await audited(client))["events"]} for name, client in clients.items()}
    assert {"alice": {"alice"}, "bob": {"bob"}, "everyone": {"alice", "bob", "everyone"}} == seen


@on_sqlite
async def test_without_the_scope_nothing_is_inspected(
    store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path
) -> None:
    """Who may search may not inspect, and a workspace that is not here has no audit."""
    tokens = tokens_file(tmp_path, '"search"', alice="alice")
    client = await open_sidecar(store, tokens_file=tokens, audit_key=KEY)
    response = await client.get(AUDIT, headers={"Authorization": f"Bearer {token_of('alice')}"})
    assert (403, "insufficient_scope") == (response.status_code, response.json()["code"])
    assert 404 == (await client.get(AUDIT.replace("default", "other"))).status_code
    assert (405, "GET, HEAD") == ((put := await client.put(AUDIT)).status_code, put.headers["allow"])
    assert {"events": [], "pagination": {"next_before": None}} == await audited(client)
