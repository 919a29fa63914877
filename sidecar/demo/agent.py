"""The demo agent: an executor that plays scripted turns, served over A2A by the SDK's own handler and routes."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from a2a.helpers import get_message_text
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.constants import DEFAULT_RPC_URL, PROTOCOL_VERSION_1_0, TransportProtocol
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette

from sidecar.demo import steps
from sidecar.demo.script import SCRIPT
from sidecar.demo.steps import Step
from sidecar.opening import opening_message

KEYWORDS: dict[str, Sequence[Step]] = {
    "ask": [steps.ask("Which region?", region=["eu-central", "us-east"])],
    "sign in": [steps.sign_in("Sign in to the demo vault to go on.")],
    "tool": [steps.call("search", "demo", "3 hits"), steps.answer("The tool found 3 hits.")],
    "watch": [steps.watch("Look {n}: still well.\n")],
}


class DemoExecutor(AgentExecutor):
    """Plays the scripted steps of a known prompt; any other prompt is answered by its first keyword."""

    def __init__(self) -> None:
        self._failed_contexts: set[str] = set()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Open the task with the operator's message as they saw it, then play the steps of its prompt."""
        message, task = _message(context), _updater(context, event_queue)
        if context.current_task is None:
            await event_queue.enqueue_event(_first_task(message, task))
        else:
            await task.start_work()
        for step in self._steps(message):
            await step(task)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Record the cancellation; the SDK stops `execute` itself."""
        await _updater(context, event_queue).cancel()

    def _steps(self, message: Message) -> Sequence[Step]:
        prompt = get_message_text(message)
        if _has_word("fail", prompt) and message.context_id not in self._failed_contexts:
            self._failed_contexts.add(message.context_id)
            return [steps.fail("The tool exited with status 1. Nothing was changed: try again.")]
        if prompt in SCRIPT:
            return SCRIPT[prompt]
        if "hitl_resume" in message.metadata:
            return [steps.answer("Thank you. ", f"Carrying on with: {prompt}")]
        named = (reply for word, reply in KEYWORDS.items() if _has_word(word, prompt))
        return next(named, [steps.answer("You said: ", prompt)])


def create_agent(engine: AsyncEngine, url: str) -> Starlette:
    """Build the agent's ASGI application over the task table of `engine`, which stays the caller's to dispose.

    `app.state.handler` is its request handler; the lifespan closes it, which stops every task in flight.

    Args:
        engine: where `DatabaseTaskStore` keeps the tasks; it creates the table.
        url: the address that the agent card announces, where this application's root is reached.
    """
    card = _card(url)
    handler = DefaultRequestHandler(DemoExecutor(), DatabaseTaskStore(engine), card)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await handler.aclose()

    routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, DEFAULT_RPC_URL)]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.handler = handler
    return app


def _message(context: RequestContext) -> Message:
    if context.message is None:
        raise ValueError("the demo agent runs on messages only")
    return context.message


def _updater(context: RequestContext, event_queue: EventQueue) -> TaskUpdater:
    return TaskUpdater(event_queue, context.task_id or "", context.context_id or "")


def _first_task(message: Message, task: TaskUpdater) -> Task:
    opening = opening_message(message, context_id=task.context_id, task_id=task.task_id)
    status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
    status.timestamp.GetCurrentTime()
    history = [opening] if opening else []
    return Task(id=task.task_id, context_id=task.context_id, status=status, history=history)


def _has_word(stem: str, prompt: str) -> bool:
    return re.search(rf"\b{stem}", prompt, re.IGNORECASE) is not None


def _card(url: str) -> AgentCard:
    skill = AgentSkill(
        id="operate",
        name="Operate",
        description="Answers, asks back, calls a tool, fails once or runs for long, by the words of the prompt.",
        tags=["demo"],
        examples=["Ask me something", "Use a tool", "Fail, please", "Watch the migration"],
    )
    return AgentCard(
        name="Demo operator's assistant",
        description="A scripted agent that fills a task store with plausible sessions.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(
                url=url,
                protocol_binding=TransportProtocol.JSONRPC,
                protocol_version=PROTOCOL_VERSION_1_0,
            )
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[skill],
    )
