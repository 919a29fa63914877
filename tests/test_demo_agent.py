"""The demo agent and its sample sessions, read back from the task table that the SDK wrote."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from sidecar.demo.agent import create_agent
from sidecar.demo.samples import write_samples
from sidecar.demo.steps import HITL, REASONING, STEER_CONSUMED, TOOL_CALL

URL = "http://127.0.0.1:9000/"
Row = dict[str, Any]


@asynccontextmanager
async def running_agent(database: Path) -> AsyncIterator[Starlette]:
    """An agent over a SQLite file, closed as a server's shutdown closes it."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{database}")
    app = create_agent(engine, URL)
    async with app.router.lifespan_context(app):
        yield app
    await engine.dispose()


def rows(database: Path, context_id: str) -> list[Row]:
    """The context's tasks in creation order, their JSON columns decoded."""
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        found = connection.execute("SELECT * FROM tasks WHERE context_id = ? ORDER BY rowid", (context_id,))
        return [
            {**row, **{name: json.loads(row[name]) for name in ("status", "artifacts", "history")}}
            for row in map(dict, found)
        ]


def text(row: Row) -> str:
    """The answer of a task: the text of all its artifacts."""
    return "".join(part["text"] for artifact in row["artifacts"] for part in artifact["parts"])


def states(found: list[Row]) -> list[str]:
    return [row["status"]["state"].removeprefix("TASK_STATE_") for row in found]


async def call(app: Starlette, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """One JSON-RPC request over HTTP; its result."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=URL) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await client.post("/", json=body, headers={"A2A-Version": "1.0"})).json()
    assert "error" not in answer
    result: dict[str, Any] = answer["result"]
    return result


async def send(app: Starlette, prompt: str, **message: object) -> dict[str, Any]:
    """One operator message over HTTP; the task as the agent's answer left it, or as it began when it watches."""
    params = {
        "message": {"messageId": prompt, "role": "ROLE_USER", "parts": [{"text": prompt}], **message},
        "configuration": {"returnImmediately": "watch" in prompt},
    }
    result: dict[str, Any] = (await call(app, "SendMessage", params))["task"]
    return result


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database holding the sample sessions; the agent that wrote them is gone."""
    database = tmp_path_factory.mktemp("demo") / "tasks.db"

    async def write() -> None:
        async with running_agent(database) as app:
            await write_samples(app.state.handler)

    asyncio.run(write())
    return database


def test_a_dozen_sessions_and_two_contexts_that_are_none(samples: Path) -> None:
    """Twelve console chats are written beside two contexts without the prefix; every id fits the SDK's column."""
    with closing(sqlite3.connect(samples)) as connection:
        ids = [row[0] for row in connection.execute("SELECT DISTINCT context_id FROM tasks ORDER BY rowid")]
    assert len([context_id for context_id in ids if context_id.startswith("chat-")]) == 12
    assert [id_ for id_ in ids if not id_.startswith("chat-")] == ["activity-nightly", "api-health"]
    assert max(map(len, ids)) <= 36


def test_one_session_has_sixty_turns(samples: Path) -> None:
    """The stand-up session has sixty completed turns, each with its own prompt."""
    found = rows(samples, "chat-daily-standup")
    assert states(found) == ["COMPLETED"] * 60
    assert len({row["history"][0]["parts"][0]["text"] for row in found}) == 60


def test_an_answer_is_streamed_in_chunks(samples: Path) -> None:
    """One artifact grows by a part a chunk; reasoning stays in the history, apart from the answer."""
    first = rows(samples, "chat-trip-lisbon")[0]
    assert [len(artifact["parts"]) for artifact in first["artifacts"]] == [4]
    assert [message["role"] for message in first["history"]] == ["ROLE_USER", "ROLE_AGENT"]
    assert first["history"][1]["parts"][0]["metadata"] == {"mimeType": REASONING}
    assert text(first).startswith("Thursday: Alfama on foot and the tram 28. Friday:")


def test_the_newest_turn_is_parked_with_its_question_and_form(samples: Path) -> None:
    """The Lisbon session waits for a choice: the question as text, the form as a data part."""
    found = rows(samples, "chat-trip-lisbon")
    assert states(found) == ["COMPLETED", "COMPLETED", "INPUT_REQUIRED"]
    question, pause = found[-1]["status"]["message"]["parts"]
    assert question["text"] == "Which hotel shall I book?"
    assert pause["metadata"] == {"mimeType": HITL}
    fields = pause["data"]["steps"][0]["schema"]["properties"]
    assert fields["hotel"]["enum"] == ["Casa do Rio", "Hotel da Baixa"]


def test_a_session_waits_for_a_sign_in(samples: Path) -> None:
    """The newest turn of the billing session is parked on the operator's authorization."""
    assert states(rows(samples, "chat-billing-export")) == ["COMPLETED", "AUTH_REQUIRED"]


def test_an_answer_comes_as_a_fresh_task(samples: Path) -> None:
    """The question's row stays parked while its answer is another task of the same context, stamped as such."""
    asked, answered = rows(samples, "chat-staging-region")
    assert states([asked, answered]) == ["INPUT_REQUIRED", "COMPLETED"]
    assert answered["history"][0]["metadata"] == {"hitl_resume": True}
    assert answered["history"][0]["parts"] == [{"text": "To eu-central, tonight at 22:00."}]


def test_chinese_text(samples: Path) -> None:
    """The Chinese session keeps its id, prompt and answer."""
    found = rows(samples, "chat-研究")
    assert found[0]["history"][0]["parts"][0]["text"] == "请总结今年人工智能研究的主要进展。"
    assert text(found[0]).startswith("今年人工智能研究有三个重点：")


def test_attachments_are_stored_as_shells(samples: Path) -> None:
    """A link is kept; bytes, a data: URL and a data blob leave their name, type and size."""
    prompt, *shells = rows(samples, "chat-invoice-review")[0]["history"][0]["parts"]
    assert prompt == {"text": "Compare these three invoices with the contract."}
    assert [
        (shell.get("filename", ""), shell["url"], shell.get("metadata", {}).get("omittedBytes", 0) > 0)
        for shell in shells
    ] == [
        ("contract.pdf", "https://files.example.com/contract.pdf", False),
        ("march.csv", "", True),
        ("april.csv", "", True),
        ("", "", True),
    ]


def test_the_bubble_replaces_what_the_model_was_sent(samples: Path) -> None:
    """A message with `display` is stored as the operator saw it."""
    second = rows(samples, "chat-invoice-review")[1]
    assert second["history"][0]["parts"] == [{"text": "Write to the vendor about May."}]
    assert text(second).startswith("Dear vendor")


def test_tool_calls_and_the_steer_marker(samples: Path) -> None:
    """Each call is started and completed under one id; the marker stands between the calls that it separated."""
    (row,) = rows(samples, "chat-deploy-canary")
    calls = [message["metadata"][TOOL_CALL] for message in row["history"] if "metadata" in message]
    assert [c["name"] for c in calls] == ["deploy", "deploy", "read_metrics", "read_metrics", "deploy", "deploy"]
    assert [c["phase"] for c in calls] == ["started", "completed"] * 3
    assert [c["toolCallId"] for c in calls[::2]] == [c["toolCallId"] for c in calls[1::2]]
    marker = row["history"][6]["parts"][0]
    assert marker["metadata"] == {"mimeType": STEER_CONSUMED}
    assert [item["text"] for item in marker["data"]["items"]] == [
        "Keep it at 25 percent until the Berlin team is awake."
    ]


def test_a_failed_turn_and_its_retry(samples: Path) -> None:
    """The same prompt fails once, says why in its status, and succeeds as the next task."""
    found = rows(samples, "chat-backup-restore")
    assert states(found) == ["FAILED", "COMPLETED"]
    assert "try again" in found[0]["status"]["message"]["parts"][0]["text"]


def test_a_cancelled_turn_keeps_its_partial_answer(samples: Path) -> None:
    """The load test was cancelled through the SDK after its first chunk."""
    found = rows(samples, "chat-load-test")
    assert states(found) == ["CANCELED"]
    assert text(found[0]).startswith("Second 1:")


def test_a_hidden_turn_has_no_text(samples: Path) -> None:
    """A hidden message is stored without parts, its answer as usual."""
    hidden = rows(samples, "chat-oncall-handover")[1]
    assert hidden["history"][0]["metadata"] == {"hidden": True}
    assert "parts" not in hidden["history"][0]
    assert text(hidden) == "Posted to #on-call."


def test_an_incognito_turn_keeps_its_stamp(samples: Path) -> None:
    """The incognito stamp is on the stored message of that turn only."""
    plain, incognito = rows(samples, "chat-review-talk")
    assert "metadata" not in plain["history"][0]
    assert incognito["history"][0]["metadata"] == {"incognito": True}


def test_a_server_fired_turn_stores_no_prompt(samples: Path) -> None:
    """A scheduled turn has an answer and no message of an operator."""
    (row,) = rows(samples, "activity-nightly")
    assert row["history"] == []
    assert text(row) == "Pruned 41 images."


def test_the_session_in_flight_is_left_running(samples: Path) -> None:
    """Closing the agent leaves the row in flight as a killed process does: working, with what it had."""
    found = rows(samples, "chat-migration-watch")
    assert states(found) == ["COMPLETED", "WORKING"]
    assert text(found[1]).startswith("Batch 1 of 3,600:")


async def test_a_cancelled_writer_ends(tmp_path: Path) -> None:
    """Whenever it is cancelled the writer of the samples ends and begins no other one, whatever the SDK answers."""
    for number in range(5):
        async with running_agent(database := tmp_path / f"{number}.db") as app:
            writing = asyncio.create_task(write_samples(app.state.handler))
            await asyncio.sleep(0.1 + number / 50)
            writing.cancel()
            done, _ = await asyncio.wait([writing], timeout=10)
            assert done
            assert writing.cancelled()
            assert [] == rows(database, "chat-migration-watch")


async def test_a_turn_in_flight_grows_until_cancelled(tmp_path: Path) -> None:
    """Two reads of the table differ while the agent works; cancelling it ends the task."""
    database = tmp_path / "tasks.db"
    async with running_agent(database) as app:
        task = await send(app, "watch the queue", contextId="chat-a")
        first = text(rows(database, "chat-a")[0])
        await asyncio.sleep(2)
        second = text(rows(database, "chat-a")[0])
        await call(app, "CancelTask", {"id": task["id"]})
        assert states(rows(database, "chat-a")) == ["CANCELED"]
    assert second.startswith(first)
    assert len(second) > len(first)


async def test_a_message_over_http(tmp_path: Path) -> None:
    """The agent's card names its address, and a message posted there is answered and stored in its context."""
    database = tmp_path / "tasks.db"
    async with running_agent(database) as app:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=URL) as client:
            card = (await client.get(AGENT_CARD_WELL_KNOWN_PATH)).json()
        task = await send(app, "Hello, agent", contextId="chat-a")
    assert [interface["url"] for interface in card["supportedInterfaces"]] == [URL]
    assert task["contextId"] == "chat-a"
    assert text(rows(database, "chat-a")[0]) == "You said: Hello, agent"


async def test_any_prompt_is_answered_by_its_keyword(tmp_path: Path) -> None:
    """Unscripted prompts choose a behaviour by a word; an answer to a question needs no script either."""
    database = tmp_path / "tasks.db"
    async with running_agent(database) as app:
        prompts = ["Fail, please", "Fail, please", "Use a tool", "Sign in first", "Ask me something"]
        for prompt in prompts:
            await send(app, prompt, contextId="chat-a")
        await send(app, "us-east", contextId="chat-a", metadata={"hitl_resume": True})
    found = rows(database, "chat-a")
    assert states(found) == ["FAILED", "COMPLETED", "COMPLETED", "AUTH_REQUIRED", "INPUT_REQUIRED", "COMPLETED"]
    assert text(found[-1]) == "Thank you. Carrying on with: us-east"


async def test_a_parked_task_resumed_on_its_id(tmp_path: Path) -> None:
    """A client that answers on the task's own id gets the answer there, and the SDK appends its message."""
    database = tmp_path / "tasks.db"
    async with running_agent(database) as app:
        parked = await send(app, "Ask me something", contextId="chat-a")
        await send(app, "us-east", contextId="chat-a", taskId=parked["id"])
    (row,) = rows(database, "chat-a")
    assert states([row]) == ["COMPLETED"]
    assert [message["role"] for message in row["history"]] == ["ROLE_USER", "ROLE_AGENT", "ROLE_USER"]
    assert text(row) == "You said: us-east"
