"""What a demo turn can do, one A2A event after the other; which turn does what is not decided here."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from uuid import uuid4

from a2a.helpers import new_data_part, new_text_part
from a2a.server.tasks import TaskUpdater
from a2a.types import Part

Step = Callable[[TaskUpdater], Awaitable[None]]

TOOL_CALL = "https://proto-labs.ai/a2a/ext/tool-call-v1"
STEER_CONSUMED = "application/vnd.protolabs.steer-consumed-v1+json"
REASONING = "application/vnd.protolabs.reasoning-v1+json"
HITL = "application/vnd.protolabs.hitl-v1+json"

CHUNKS = 3600
SECONDS_A_CHUNK = 1.0


def answer(*chunks: str) -> Step:
    """Stream the answer as one artifact, a part a chunk, and complete the task."""

    async def play(task: TaskUpdater) -> None:
        artifact_id = str(uuid4())
        for number, chunk in enumerate(chunks, start=1):
            await task.add_artifact(
                [new_text_part(chunk)],
                artifact_id=artifact_id,
                name="answer",
                append=number > 1,
                last_chunk=number == len(chunks),
            )
        await task.complete()

    return play


def think(text: str) -> Step:
    """Show reasoning, which is never part of the answer."""

    async def play(task: TaskUpdater) -> None:
        await task.start_work(task.new_agent_message([_data(REASONING, {"text": text})]))

    return play


def call(name: str, args: str, result: str) -> Step:
    """Call a tool: one message as it starts, one as it completes, paired by the call's id."""

    async def play(task: TaskUpdater) -> None:
        tool = {"toolCallId": str(uuid4()), "name": name}
        for phase in ({"phase": "started", "args": args}, {"phase": "completed", "result": result}):
            await task.start_work(task.new_agent_message([], {TOOL_CALL: tool | phase}))

    return play


def steer(text: str) -> Step:
    """Mark where the agent read what the operator typed while it worked."""

    async def play(task: TaskUpdater) -> None:
        marker = _data(STEER_CONSUMED, {"items": [{"id": str(uuid4()), "text": text}]})
        await task.start_work(task.new_agent_message([marker]))

    return play


def ask(question: str, **choices: list[str]) -> Step:
    """Park the task on the operator: a plain question, or a form with one choice a field."""
    fields = {name: {"type": "string", "enum": options} for name, options in choices.items()}
    form = {"kind": "form", "title": question, "steps": [{"schema": {"type": "object", "properties": fields}}]}

    async def play(task: TaskUpdater) -> None:
        pause = _data(HITL, form if choices else {"question": question})
        await task.requires_input(task.new_agent_message([new_text_part(question), pause]))

    return play


def sign_in(request: str) -> Step:
    """Park the task until the operator has signed in elsewhere."""

    async def play(task: TaskUpdater) -> None:
        await task.requires_auth(task.new_agent_message([new_text_part(request)]))

    return play


def fail(reason: str) -> Step:
    """End the task as failed."""

    async def play(task: TaskUpdater) -> None:
        await task.failed(task.new_agent_message([new_text_part(reason)]))

    return play


def watch(line: str) -> Step:
    """Append a chunk every second for an hour, `{n}` being its number: the turn in flight, unless cancelled."""

    async def play(task: TaskUpdater) -> None:
        artifact_id = str(uuid4())
        for n in range(1, CHUNKS + 1):
            chunk = new_text_part(line.format(n=n))
            await task.add_artifact([chunk], artifact_id=artifact_id, name="progress", append=n > 1)
            await asyncio.sleep(SECONDS_A_CHUNK)
        await task.complete()

    return play


def _data(mime_type: str, payload: Mapping[str, object]) -> Part:
    part = new_data_part(payload, "application/json")
    part.metadata.update({"mimeType": mime_type})
    return part
