"""Passages over HTTP and as tools on both databases (seed 004): what is found, cited, left out, refused, recorded."""

import asyncio
import json
import logging
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy.exc import OperationalError, ProgrammingError

from sidecar.answer.retrieval import PASSAGE_CHARACTERS
from sidecar.openapi import ref
from sidecar.search import ranked
from tests import rig
from tests.test_degradation import begun
from tests.test_openapi import conforms
from tests.test_process import HEADERS
from tests.test_protocol import serving_with, with_and_without_fast
from tests.test_search import narrowed, operator, retired

SEARCH = "/v1/search"
MCP = "/mcp"
OTHER_TOKEN = "other-token-0123456789"
NO_USAGE = {"source": "none", "model": None, "inputTokens": 0, "outputTokens": 0, "totalTokens": 0}


async def search(client: httpx.AsyncClient, q: str, **given: Any) -> dict[str, Any]:
    """The answer to a question in a body."""
    response = await client.post(SEARCH, json={"q": q, "workspaceId": "default", **given})
    assert 200 == response.status_code, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def found(client: httpx.AsyncClient, q: str, **given: Any) -> list[tuple[str, str]]:
    """Turn and field of every passage, best first."""
    results = (await search(client, q, **given))["results"]
    return [(each["citation"]["task_id"], each["citation"]["field"]) for each in results]


async def refused(client: httpx.AsyncClient, **given: Any) -> tuple[int, str]:
    response = await client.post(SEARCH, json={"q": "okapi", "workspaceId": "default", **given})
    assert "application/problem+json" == response.headers["content-type"]
    return response.status_code, response.json()["code"]


async def usage_rows(store: rig.Store) -> list[tuple[str, ...]]:
    """Token, route and source of what is recorded; none before the first record."""
    try:
        return [tuple(row) for row in await store.raw("SELECT token, route, source FROM tasks_usage ORDER BY id")]
    except (OperationalError, ProgrammingError):  # no such table
        return []


async def with_parts(store: rig.Store, *parts: rig.Json, context_id: str = "chat-a") -> str:
    """A finished turn whose artifact has a text part that says okapi, and these."""
    return await store.save(
        {
            "id": f"task-{store.turns_written}-{len(parts)}-{hash(json.dumps(parts)) % 10**6}",
            "contextId": context_id,
            "status": {"state": "TASK_STATE_COMPLETED", "timestamp": "2026-01-05T09:00:00Z"},
            "artifacts": [{"artifactId": "a", "parts": [{"text": "An okapi. "}, *parts]}],
        }
    )


# --- answers


async def test_an_answer(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Every key of the seed: text with where it stands, whole of the corpus, and that no model was asked."""
    task_id = await store.turn("chat-a", text="人工智能 research is running.", prompt="Which animal?\nsecond line")
    answer = await search(sidecar, "What about 人工智能?")
    score = answer["results"][0].pop("score")
    assert type(score) is int
    assert {
        "results": [
            {
                "text": "人工智能 research is running.",
                "truncated": False,
                "title": "Which animal?",
                "state": "TASK_STATE_COMPLETED",
                "time": "2026-01-05T09:00:00Z",
                "citation": {
                    "session_id": "chat-a",
                    "task_id": task_id,
                    "field": "content",
                    "position": 1,
                    "start": 0,
                    "end": 25,
                },
            }
        ],
        "sessionId": None,
        "availability": {
            "indexed": 1,
            "pending": 0,
            "complete": True,
            "checked": "all" if store.kind == "postgres" else "changed",
        },
        "usage": NO_USAGE,
    } == answer


@pytest.mark.usefixtures("sqlite_suffices")
async def test_get_and_post_answer_alike(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Both have the published shape, nobody keeps them, and HEAD has no body."""
    await store.turn("chat-a", text="An okapi.")
    given: dict[str, Any] = {"q": "okapi", "workspaceId": "default", "limit": 5, "tags": "completed"}
    posted = await sidecar.post(SEARCH, json=given)
    got = await sidecar.get(SEARCH, params=given)
    assert posted.json() == got.json()
    assert conforms(ref("PassageAnswer"), got.json())
    for response in (posted, got, await sidecar.head(SEARCH, params=given)):
        assert (200, "no-store") == (response.status_code, response.headers["cache-control"])


async def test_words_are_alternatives(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A question rarely has all its words in one field: any of them matches, and more of them match better."""
    one = await store.turn("chat-a", prompt=None, text="An okapi in the zoo.")
    both = await store.turn("chat-a", prompt=None, text="Zebras and an okapi.")
    await store.turn("chat-a", prompt=None, text="A giraffe.")
    assert [(both, "content"), (one, "content")] == await found(sidecar, "are there zebras, or an okapi?")
    assert [] == await found(sidecar, "is it the of?")
    assert [] == await found(sidecar, "🙂")


async def test_one_passage_of_a_field(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Prompt, interjections and answer of one turn are passages of their own, and each is one."""
    task_id = await store.turn("chat-a", prompt="okapi okapi", text="okapi " * 500, history=[operator("An okapi!")])
    expected = {(task_id, "prompt"), (task_id, "steers"), (task_id, "content")}
    results = await found(sidecar, "okapi", limit=100)
    assert (expected, 3) == (set(results), len(results))


@pytest.mark.parametrize("before", ["", "x" * 5000, "字" * 3000 + "🙂" * 3000, "word " * 2000])
async def test_a_citation_names_the_characters(before: str, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Start and end are code points of the field's text, around what matched; at most a thousand of them."""
    text = f"{before} Okapi é\u0301 {'y ' * 3000}"
    await store.turn("chat-a", prompt=None, text=text)
    (result,) = (await search(sidecar, "okapis"))["results"]
    citation = result["citation"]
    assert text[citation["start"] : citation["end"]] == result["text"]
    assert "Okapi" in result["text"]
    assert 0 < len(result["text"]) <= PASSAGE_CHARACTERS
    assert result["truncated"]


async def test_half_of_an_emoji(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A lone surrogate is replaced in the text alone: it counts as the one character that it is."""
    artifacts = '[{"parts":[{"text":"\\ud83d okapi"}]}]'
    await store.insert_raw(context_id="chat-a", status="{}", artifacts=artifacts, history="[]")
    (result,) = (await search(sidecar, "okapi"))["results"]
    assert ("\ufffd okapi", 0, 7) == (result["text"], result["citation"]["start"], result["citation"]["end"])
    assert (None, "") == (result["title"], result["state"])


# --- what is left out


async def test_a_limit(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """So many at most, the best; ten by default, a hundred at most."""
    for _ in range(60):
        await store.turn("chat-a", prompt="An okapi?", text="An okapi.")
    every = await found(sidecar, "okapi", limit=100)
    assert 100 == len(every) == len(set(every))
    assert every[:10] == await found(sidecar, "okapi")
    assert every[:1] == await found(sidecar, "okapi", limit=1)


@pytest.mark.usefixtures("sqlite_suffices")
async def test_sessions_alone(store: rig.Store, sidecar: httpx.AsyncClient, open_sidecar: rig.OpenSidecar) -> None:
    """What is no session cannot be retired, and is no source; the prefix decides."""
    session = await store.turn("chat-a", prompt=None, text="okapi")
    await store.turn("delegation-1", prompt=None, text="okapi")
    assert [(session, "content")] == await found(sidecar, "okapi")
    everything = await open_sidecar(store, session_prefix="")
    assert 2 == len(await found(everything, "okapi"))


async def test_retired_and_incognito_turns(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Neither is a passage again, whatever is saved late."""
    gone = await store.turn("chat-a", prompt=None, text="okapi")
    kept = await store.turn("chat-b", prompt=None, text="okapi")
    await store.turn("chat-b", prompt=None, text="okapi", history=[operator("okapi", incognito=True)])
    assert {(gone, "content"), (kept, "content")} == set(await found(sidecar, "okapi"))
    await retired(sidecar, "chat-a")
    assert [(kept, "content")] == await found(sidecar, "okapi")
    await store.turn("chat-a", task_id=gone, prompt=None, text="okapi again")
    assert [(kept, "content")] == await found(sidecar, "okapi")


async def test_what_a_turn_says_no_more(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A passage is cut from the row as it stands."""
    task_id = await store.turn("chat-a", prompt=None, text="okapi")
    assert 1 == len(await found(sidecar, "okapi"))
    await store.turn("chat-a", task_id=task_id, prompt=None, text="giraffe")
    assert [] == await found(sidecar, "okapi")
    assert [(task_id, "content")] == await found(sidecar, "giraffe")


async def test_owners(store: rig.Store, open_sidecar: rig.OpenSidecar, tmp_path: Path) -> None:
    """A narrowed token finds its owner's turns, and may name no other's session or turn."""
    mine = await store.turn("chat-a", prompt=None, text="okapi", owner="alice")
    other = await store.turn("chat-b", prompt=None, text="okapi", owner="bob")
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(narrowed(OTHER_TOKEN, "alice"))
    tokens.chmod(0o600)
    client = await open_sidecar(store, token=OTHER_TOKEN, tokens_file=tokens)
    assert [(mine, "content")] == await found(client, "okapi")
    for named in ({"documentId": "chat-b"}, {"runId": other}, {"documentId": "chat-a", "runId": other}):
        assert (400, "invalid_search_scope") == await refused(client, **named)
    assert [("alice", SEARCH, "none")] == await usage_rows(store)


# --- filters


async def test_one_session_or_one_turn(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """`documentId` is a session and `runId` a turn of it."""
    first = await store.turn("chat-a", prompt=None, text="okapi")
    second = await store.turn("chat-a", prompt=None, text="okapi")
    await store.turn("chat-b", prompt=None, text="okapi")
    assert {(first, "content"), (second, "content")} == set(await found(sidecar, "okapi", documentId="chat-a"))
    assert [(first, "content")] == await found(sidecar, "okapi", runId=first)
    assert [(first, "content")] == await found(sidecar, "okapi", documentId="chat-a", runId=first)
    assert [] == await found(sidecar, "giraffe", runId=first)


async def test_what_is_not_there_to_be_searched(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """An unknown, retired or foreign session or turn is told alike, and nothing of it is recorded."""
    gone = await store.turn("chat-gone", prompt=None, text="okapi")
    other = await store.turn("chat-b", prompt=None, text="okapi")
    hidden = await store.turn("chat-c", prompt=None, text="okapi", history=[operator("x", incognito=True)])
    side = await store.turn("delegation-1", prompt=None, text="okapi")
    await retired(sidecar, "chat-gone")
    for named in (
        {"documentId": "chat-none"},
        {"documentId": "chat-gone"},
        {"documentId": "delegation-1"},
        {"documentId": "chat-c"},
        {"documentId": "CHAT-B"},
        {"runId": "none"},
        {"runId": gone},
        {"runId": side},
        {"runId": hidden},
        {"documentId": "chat-gone", "runId": other},
    ):
        assert (400, "invalid_search_scope") == await refused(sidecar, **named), named
    assert [] == await usage_rows(store)
    assert (404, "workspace_not_found") == await refused(sidecar, workspaceId="other")
    assert (404, "workspace_not_found") == await refused(sidecar, workspaceId="Default")


async def test_states(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """`tags` are states, in either spelling, whichever is stored."""
    done = await store.turn("chat-a", "completed", prompt=None, text="okapi")
    waiting = await store.turn("chat-a", "input-required", prompt=None, text="okapi")
    artifacts = '[{"parts":[{"kind":"text","text":"okapi"}]}]'
    older = await store.insert_raw(
        context_id="chat-a", status='{"state":"input-required"}', artifacts=artifacts, history="[]"
    )
    for tags, expected in (
        ("completed", {done}),
        ("TASK_STATE_COMPLETED", {done}),
        ("input-required", {waiting, older}),
        ("TASK_STATE_INPUT_REQUIRED", {waiting, older}),
        ("completed, input-required", {done, waiting, older}),
        ("failed, operations", set()),
    ):
        assert expected == {task_id for task_id, _ in await found(sidecar, "okapi", tags=tags)}, tags


async def test_an_old_state_behind_many_new_ones(
    store: rig.Store, sidecar: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state narrows what is ranked, not what is left of it: an older turn is found however many newer there are."""
    monkeypatch.setattr(ranked, "FIELDS_A_TERM", (2, 2))
    failed = await store.turn("chat-a", "failed", prompt=None, text="okapi")
    for _ in range(9):
        await store.turn("chat-a", prompt=None, text="okapi")
    for given in ({}, {"documentId": "chat-a"}, {"runId": failed}):
        assert [(failed, "content")] == await found(sidecar, "okapi", tags="failed", **given)


CSV = {"filename": "Report-2026.CSV", "mediaType": "text/csv", "url": "https://files.example/1"}
PNG = {"filename": "report.png", "mediaType": "image/png", "url": "https://files.example/2"}
OLDER = [
    {"kind": "text", "text": "okapi"},
    {"kind": "file", "file": {"name": "Report.pdf", "mimeType": "application/PDF", "uri": "x"}},
]


FILTERS: list[tuple[rig.Json, set[str]]] = [
    ({"filenameContains": "report"}, {"csv", "png", "older"}),
    ({"filenameContains": "REPORT-2026"}, {"csv"}),
    ({"filenameContains": ".pdf"}, {"older"}),
    ({"filenameContains": "none"}, set()),
    ({"mimeTypes": "text/csv"}, {"csv"}),
    ({"mimeTypes": "Text/CSV,image/png"}, {"csv", "png"}),
    ({"mimeTypes": "application/pdf"}, {"older"}),
    ({"mimeTypes": "text/*"}, set()),
    ({"mimeTypes": "text/csv,image/png", "filenameContains": "png"}, {"png"}),
    ({"mimeTypes": "image/png", "filenameContains": "2026"}, set()),
    ({"mimeTypes": "image/png", "tags": "completed"}, {"png"}),
    ({"mimeTypes": "image/png", "tags": "failed"}, set()),
    ({"mimeTypes": "image/png", "documentId": "chat-b"}, {"png"}),
    ({"mimeTypes": "image/png", "documentId": "chat-a"}, set()),
    ({}, {"csv", "png", "older", "none"}),
]


async def test_files(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Only turns with a part of that name and one of those types, in the spelling of either SDK, whatever the case."""
    names = {
        await with_parts(store, CSV): "csv",
        await with_parts(store, PNG, context_id="chat-b"): "png",
        await with_parts(store, {"text": "report"}): "none",
        await store.insert_raw(
            context_id="chat-a",
            status='{"state":"completed"}',
            artifacts=json.dumps([{"artifactId": "a", "parts": OLDER}]),
            history="[]",
        ): "older",
    }
    for filters, expected in FILTERS:
        assert expected == {names[task_id] for task_id, _ in await found(sidecar, "okapi", **filters)}, filters


# --- refusals


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_bad_requests_reach_no_database(store: rig.Store) -> None:
    """What is wrong is named before any statement runs, in a body and in a query string."""
    from sidecar.app import create_app

    app = create_app(rig.config_for(store))
    statements = rig.spy(app)
    async with rig.client(app) as client:
        for given in ({"q": " "}, {"limit": 0}, {"limit": 101}, {"limit": True}, {"rerank": True}, {"owner": "a"}):
            assert (400, "parameter_invalid") == await refused(client, **given)
        for body in (b"[]", b"{", b'"x"', b""):
            sent = await client.post(SEARCH, content=body, headers={"Content-Type": "application/json"})
            assert (400, "parameter_invalid") == (sent.status_code, sent.json()["code"])
        form = await client.post(SEARCH, data={"q": "okapi", "workspaceId": "default"})
        assert (400, "parameter_invalid") == (form.status_code, form.json()["code"])
        for query in ("q=okapi", "q=okapi&q=okapi&workspaceId=default", "q=okapi&workspaceId=default&limit=1.0"):
            got = await client.get(f"{SEARCH}?{query}")
            assert (400, "parameter_invalid") == (got.status_code, got.json()["code"])
    assert [] == statements


async def test_bad_ids_are_no_fault_of_ours(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Whatever text an id or a filter has, it is refused or finds nothing."""
    await store.turn("chat-a", prompt=None, text="okapi")
    for given in ({"documentId": "chat-\ufffd%_"}, {"runId": "'; --"}, {"documentId": "𝕏" * 255}):
        assert (400, "invalid_search_scope") == await refused(sidecar, **given)
    assert [] == await found(sidecar, "okapi", filenameContains="%_\\")


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("path", [SEARCH, f"{SEARCH}/batch"])
async def test_a_missing_extra_is_named(path: str, sidecar: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may ask is told what to install, and nobody else."""
    monkeypatch.setitem(sys.modules, "rjieba", None)
    response = await sidecar.post(path, json={})
    assert (404, "not_found") == (response.status_code, response.json()["code"])
    assert "a2a-session-sidecar[search]" in response.json()["detail"]
    assert 401 == (await sidecar.post(path, json={}, headers={"Authorization": "Bearer x"})).status_code


# --- usage


async def test_usage_is_recorded(
    store: rig.Store, sidecar: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """One row and one log line for each answer, with who asked and where, and no word of the question."""
    await store.turn("chat-a", prompt=None, text="okapi")
    with caplog.at_level(logging.INFO, "sidecar"):
        await search(sidecar, "okapi secretword")
        await sidecar.get(SEARCH, params={"q": "secretword", "workspaceId": "default"})
        await refused(sidecar, documentId="chat-none")
        await refused(sidecar, q="")
    assert [("operator", SEARCH, "none")] * 2 == await usage_rows(store)
    used = [record.message for record in caplog.records if record.message.startswith("used ")]
    assert 2 == len(used)
    assert "token=operator route=/v1/search source=none input_tokens=0 output_tokens=0 request_id=" in used[0]
    assert not any("secretword" in record.message for record in caplog.records)
    assert "secretword" not in str(await store.raw("SELECT * FROM tasks_usage"))


@pytest.mark.usefixtures("sqlite_suffices")
async def test_use_that_cannot_be_recorded_is_not_answered(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A record that fails fails the request as the database's fault, with no passage in the body."""
    await store.turn("chat-a", prompt=None, text="okapi")
    await search(sidecar, "okapi")
    async with begun(store, "BEGIN IMMEDIATE", "LOCK TABLE tasks_usage IN ACCESS EXCLUSIVE MODE"):
        response = await sidecar.post(SEARCH, json={"q": "okapi", "workspaceId": "default"})
    assert (503, "busy") == (response.status_code, response.json()["code"])
    assert "results" not in response.json()
    assert 1 == len(await usage_rows(store))


async def test_a_store_without_its_index_yet(
    store: rig.Store, open_sidecar: rig.OpenSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that is still to be read is there to be named, and the answer says that it is not whole."""
    task_id = await store.turn("chat-a", text="okapi")
    sidecar = await open_sidecar(store)
    monkeypatch.setattr("sidecar.search.refresh.WORK_SECONDS", 0.0)
    answer = await search(sidecar, "okapi", documentId="chat-a", runId=task_id)
    assert ([], False) == (answer["results"], answer["availability"]["complete"])
    monkeypatch.undo()
    answer = await search(sidecar, "okapi", documentId="chat-a", runId=task_id)
    assert (1, True) == (len(answer["results"]), answer["availability"]["complete"])


# --- long questions


@pytest.mark.parametrize("kind", ["sqlite"])
@with_and_without_fast
async def test_a_question_of_16_000_characters_in_a_target(is_fast: bool, store: rig.Store, tmp_path: Path) -> None:
    """144,000 bytes of a target reach the search through either parser, and one character more is told to be."""
    await store.turn("chat-a", prompt=None, text="人工智能")
    question = ("人工智能" + "寿" * 16_000)[:16_000]
    with serving_with(is_fast, store, tmp_path) as process:
        port = int(process.url.rpartition(":")[2])
        status, answer = await asyncio.to_thread(got, port, question)
        assert (200, 9 * 16_000) == (status, len(quote(question))), answer
        assert 1 == len(answer["results"])
        status, answer = await asyncio.to_thread(got, port, f"{question}字")
        assert (400, "parameter_invalid") == (status, answer["code"])
        status, answer = await asyncio.to_thread(got, port, "x" * 165_000)
        assert (414, "target_too_long") == (status, answer["code"])


def got(port: int, question: str) -> tuple[int, Any]:
    """Status and JSON of a GET whose target httpx would refuse to write."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", f"{SEARCH}?workspaceId=default&q={quote(question)}", headers=HEADERS)
        response = connection.getresponse()
        return response.status, json.load(response)


@pytest.mark.usefixtures("sqlite_suffices")
async def test_many_words_at_once(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A question of the greatest length with thousands of words is answered, by its first words."""
    task_id = await store.turn("chat-a", prompt=None, text="okapi")
    question = "okapi " + " ".join(f"w{number}" for number in range(2_200))
    assert [(task_id, "content")] == await found(sidecar, question[:16_000])


# --- tools


async def call(client: httpx.AsyncClient, name: str, arguments: Any) -> tuple[bool, str]:
    """Whether the tool refused, and the text of its answer."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    response = await client.post(MCP, json=message, headers={"Accept": "application/json, text/event-stream"})
    assert 200 == response.status_code, response.text
    result = response.json()["result"]
    return bool(result.get("isError")), result["content"][0]["text"]


async def test_tools_answer_as_the_routes(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """`workspace.search` and `workspace.search-many` take the same input and give the same answers, as text."""
    await store.turn("chat-a", prompt=None, text="okapi")
    given = {"q": "okapi", "workspaceId": "default", "limit": 3}
    failed, text = await call(sidecar, "workspace.search", given)
    assert (False, await search(sidecar, "okapi", limit=3)) == (failed, json.loads(text))
    batch = {"queries": [given, {**given, "workspaceId": "other"}], "concurrency": 2}
    failed, text = await call(sidecar, "workspace.search-many", batch)
    assert not failed
    assert (await sidecar.post(f"{SEARCH}/batch", json=batch)).json() == json.loads(text)
    assert {("operator", MCP, "none"), ("operator", SEARCH, "none"), ("operator", f"{SEARCH}/batch", "none")} == set(
        await usage_rows(store)
    )
    for name, wrong in (("workspace.search", {"q": "okapi"}), ("workspace.search-many", {"queries": [{}]})):
        failed, text = await call(sidecar, name, wrong)
        assert (True, "parameter_invalid") == (failed, text.split(":")[0])
    failed, text = await call(sidecar, "workspace.search", {**given, "documentId": "chat-none"})
    assert (True, "invalid_search_scope") == (failed, text.split(":")[0])


@pytest.mark.usefixtures("sqlite_suffices")
async def test_many_ask_at_once(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Questions side by side have the same answer, and each is recorded."""
    await store.turn("chat-a", prompt=None, text="okapi")
    first = await found(sidecar, "okapi")
    assert [first] * 12 == await asyncio.gather(*(found(sidecar, "okapi") for _ in range(12)))
    assert 13 == len(await usage_rows(store))
