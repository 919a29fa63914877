"""The stores of a bench: what the SDK itself saved, and copies of it loaded in bulk; it measures nothing."""

import random
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import asyncpg
from sqlalchemy import make_url

from tests.rig import Json, Store, message

TURNS_A_SESSION = 10
SESSIONS_AT_A_TIME = 20
PARKED_SESSIONS = 20
START = datetime(2026, 2, 1)

FAT, LARGE = "chat-fat", "chat-large"
FAT_TURNS = 50
# what one turn of a session has: bytes of the answer's text, and tool calls in its history
FAT_TURN, LARGE_TURN = (11_500, 9), (58_500, 44)

TOOL_CALL = "https://proto-labs.ai/a2a/ext/tool-call-v1"
# about every tenth word is one that JSON escapes
PROSE = (
    "The index walks the newest rows until enough sessions were found, and counts only what a page shows.\n\n"
    '- An answer is saved chunk by chunk\n- so its row is written many times, and "last_updated" stays as it was. '
    "Parked turns wait for the operator — often over a café lunch — before the agent may go on with its work."
)
WORDS = PROSE.split(" ")

COLUMNS = (
    "id",
    "context_id",
    "kind",
    "owner",
    "last_updated",
    "status",
    "artifacts",
    "history",
    "protocol_version",
    "metadata",
)
# what stands in a template where each copy has its own
TASK_ID, CONTEXT_ID, MOMENT = "00000000-0000-4000-8000-000000000000", "chat-template", "2026-01-01T00:00:00Z"


class Planned(NamedTuple):
    """One turn to be stored in bulk."""

    context_id: str
    moment: datetime
    state: str = "completed"
    owner: str = ""


async def fill(store: Store, rows: int) -> None:
    """Create the SDK's table and store the two fat sessions, the parked ones and `rows` ordinary turns."""
    await store.tasks.initialize()
    dice = random.Random(rows)
    for context_id, (octets, calls) in ((FAT, FAT_TURN), (LARGE, LARGE_TURN)):
        for _ in range(FAT_TURNS):
            await store.turn(context_id, text=chunks(dice, octets), history=tool_calls(dice, calls))
    await load(store, ordinary(rows))
    await load(store, parked(rows))


def chunks(dice: random.Random, octets: int) -> list[str]:
    """An answer as it is streamed: pieces of 150 to 300 bytes."""
    found: list[str] = []
    while octets > 0:
        found.append(prose(dice, dice.randint(150, 300)))
        octets -= len(found[-1])
    return found


def prose(dice: random.Random, octets: int) -> str:
    """Words of about that many bytes."""
    return " ".join(dice.choices(WORDS, k=octets // 3))[:octets]


def tool_calls(dice: random.Random, number: int) -> list[Json]:
    """The two messages of each call: no parts, all in the metadata."""
    phases: list[Json] = []
    for call in range(number):
        about = {"toolCallId": f"call-{call}", "name": "search"}
        phases.append({**about, "phase": "started", "args": {"query": prose(dice, 80), "limit": 20}})
        phases.append({**about, "phase": "completed", "result": prose(dice, 240)})
    return [{**message("ROLE_AGENT", ""), "parts": [], "metadata": {TOOL_CALL: phase}} for phase in phases]


def ordinary(rows: int) -> Iterator[Planned]:
    """A turn a second; twenty sessions are held at a time, and end after ten turns each."""
    for number in range(rows):
        block, place = divmod(number, SESSIONS_AT_A_TIME * TURNS_A_SESSION)
        session = block * SESSIONS_AT_A_TIME + place % SESSIONS_AT_A_TIME
        yield Planned(f"chat-{session:08}", START + timedelta(seconds=number))


def parked(rows: int) -> Iterator[Planned]:
    """The same number of parked sessions in a table of any size, spread over its time."""
    for session in range(PARKED_SESSIONS):
        for turn in range(TURNS_A_SESSION):
            moment = START + timedelta(seconds=rows * session // PARKED_SESSIONS + turn)
            state = "completed" if turn < TURNS_A_SESSION - 1 else "input-required"
            yield Planned(f"chat-parked-{session:02}", moment, state)


async def load(store: Store, planned: Iterable[Planned]) -> None:
    """Store turns of about 1 KB past the SDK, in the shape in which it saves them."""
    templates = {state: await _template(store, state) for state in ("completed", "input-required")}
    rows = _copies(templates, planned)
    if store.kind == "sqlite":
        marks = ", ".join("?" * len(COLUMNS))
        with closing(sqlite3.connect(str(make_url(store.url).database))) as connection, connection:
            connection.executemany(f"INSERT INTO tasks ({', '.join(COLUMNS)}) VALUES ({marks})", rows)
        return
    connection = await asyncpg.connect(store.url.replace("+asyncpg", ""))
    try:
        await connection.copy_records_to_table("tasks", records=rows, columns=COLUMNS)
    finally:
        await connection.close()


async def _template(store: Store, state: str) -> dict[str, Any]:
    """One row as the SDK saves it, its JSON as text; it is deleted again."""
    dice = random.Random(state)
    await store.turn(
        CONTEXT_ID, state, chunks(dice, 380), prose(dice, 90), at=MOMENT, task_id=TASK_ID, status_text=prose(dice, 40)
    )
    json = ("status", "artifacts", "history", "metadata")
    columns = [f"CAST({name} AS TEXT) AS {name}" if name in json else name for name in COLUMNS]
    (row,) = await store.raw(f"SELECT {', '.join(columns)} FROM tasks WHERE id = :id", id=TASK_ID)
    await store.delete(TASK_ID)
    return dict(row._mapping)


def _copies(templates: dict[str, dict[str, Any]], planned: Iterable[Planned]) -> Iterator[Sequence[Any]]:
    for turn in planned:
        task_id = str(uuid.uuid4())
        moment = turn.moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        row = {
            name: text.replace(TASK_ID, task_id).replace(CONTEXT_ID, turn.context_id).replace(MOMENT, moment)
            if isinstance(text, str)
            else text
            for name, text in templates[turn.state].items()
        }
        stamped = isinstance(row["last_updated"], str)  # SQLite keeps times as text
        row["last_updated"] = turn.moment.isoformat(" ", "microseconds") if stamped else turn.moment
        row["owner"] = turn.owner
        yield tuple(row[name] for name in COLUMNS)
