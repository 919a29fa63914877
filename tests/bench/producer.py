"""An agent that saves a growing answer at a steady rate, in a process of its own; it tells how long each save took."""

import asyncio
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.tasks import DatabaseTaskStore
from a2a.types import Artifact, Part, Task, TaskState, TaskStatus
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from tests.bench.generate import prose
from tests.bench.worker import Worker, work

LIVE = "chat-live"
SAVES_A_SECOND = 20.0
CHUNKS_A_TURN = 25


@dataclass
class Saves:
    """The seconds of each save, and the faults of those that failed."""

    times: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Producer:
    """The agent's process."""

    def __init__(self, worker: Worker, url: str) -> None:
        self._worker = worker
        self._url = url

    def saves(self, seconds: float) -> Saves:
        """Save for some seconds and wait for the end."""
        self._worker.begin({"url": self._url, "seconds": seconds})
        return Saves(**self._worker.result())


@contextmanager
def producing(url: str) -> Iterator[Producer]:
    """An agent on a store whose table exists."""
    with Worker("tests.bench.producer") as worker:
        yield Producer(worker, url)


async def _save(job: dict[str, Any]) -> dict[str, Any]:
    engine = create_async_engine(job["url"])
    tasks, saves, dice = DatabaseTaskStore(engine), Saves(), random.Random(0)
    task = _new_task()
    await tasks.save(task, ServerCallContext())  # opens the connection
    began = time.perf_counter()
    for number in range(int(job["seconds"] * SAVES_A_SECOND)):
        await asyncio.sleep(began + number / SAVES_A_SECOND - time.perf_counter())
        if len(task.artifacts[0].parts) >= CHUNKS_A_TURN:
            task = _new_task()
        task.artifacts[0].parts.append(Part(text=prose(dice, 200)))
        started = time.perf_counter()
        try:
            await tasks.save(task, ServerCallContext())
        except DBAPIError as error:
            saves.faults.append(str(error.orig))
        saves.times.append(time.perf_counter() - started)
    await engine.dispose()
    return asdict(saves)


def _new_task() -> Task:
    status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
    status.timestamp.GetCurrentTime()
    answer = Artifact(artifact_id="answer", parts=[Part(text="The answer: ")])
    return Task(id=str(uuid.uuid4()), context_id=LIVE, status=status, artifacts=[answer])


if __name__ == "__main__":
    work(_save)
