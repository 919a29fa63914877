"""Writes the sample sessions by sending each message to the agent's own handler; it never touches the table."""

import asyncio
from contextlib import aclosing
from uuid import uuid4

from a2a.helpers import new_text_part
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import RequestHandler
from a2a.types import CancelTaskRequest, Message, Role, SendMessageRequest, TaskArtifactUpdateEvent

from sidecar.demo.script import SESSIONS, Turn


async def write_samples(handler: RequestHandler) -> None:
    """Send every sample message in turn, and return while the last session is still in flight.

    The task in flight lives in the running event loop, until it is cancelled or the handler is closed.
    """
    writing = asyncio.current_task()
    assert writing is not None
    for context_id, turns in SESSIONS.items():
        for turn in turns:
            await _send(handler, context_id, turn)
            # the SDK's handler may keep a cancellation to itself, and answer
            if writing.cancelling():
                raise asyncio.CancelledError


async def _send(handler: RequestHandler, context_id: str, turn: Turn) -> None:
    request = SendMessageRequest(message=_message(context_id, turn))
    if turn.left == "ended":
        await handler.on_message_send(request, ServerCallContext())
        return
    task_id = await _first_chunk(handler, request)
    if turn.left == "cancelled":
        await handler.on_cancel_task(CancelTaskRequest(id=task_id), ServerCallContext())


async def _first_chunk(handler: RequestHandler, request: SendMessageRequest) -> str:
    """Follow the stream until the answer begins, and leave the task running."""
    async with aclosing(handler.on_message_send_stream(request, ServerCallContext())) as events:
        async for event in events:
            if isinstance(event, TaskArtifactUpdateEvent):
                return event.task_id
    raise RuntimeError("the agent ended the task before its first chunk")


def _message(context_id: str, turn: Turn) -> Message:
    return Message(
        role=Role.ROLE_USER,
        message_id=str(uuid4()),
        context_id=context_id,
        parts=[new_text_part(turn.prompt), *turn.attachments],
        metadata=turn.metadata,
    )
