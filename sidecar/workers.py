"""Worker processes on one listening socket: started, replaced, stopped together; it does not know what they answer."""

import asyncio
import logging
import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import SpawnProcess
from socket import socket

from sidecar import observe

# Forked processes would share locks and threads of ours in whatever state they are.
_SPAWN = multiprocessing.get_context("spawn")
# A worker that dies at once must not keep the machine busy with starting it.
RESTART_SECONDS = 1.0
# More than a worker's own graceful stop takes: beyond it the worker hangs.
STOP_SECONDS = 9.5


async def keep_working(count: int, work: Callable[..., None], listener: socket, *arguments: object) -> None:
    """Keeps so many processes at `work(number, listener, *arguments)`, until it is cancelled and they have ended.

    `work` is a function of a module, and the arguments can be pickled. A process that ends is replaced by one with its
    number.
    """
    async with asyncio.TaskGroup() as workers:
        for number in range(count):
            workers.create_task(_keep(work, number, listener, *arguments))
        with listener:  # which closes before the workers stop: nobody is to connect to a socket that none accepts from
            await asyncio.Event().wait()


async def _keep(work: Callable[..., None], *arguments: object) -> None:
    while True:
        worker = _SPAWN.Process(target=work, args=arguments, daemon=True)
        worker.start()
        try:
            await _end(worker)
        except asyncio.CancelledError:
            await _stop(worker)
            raise
        text = f"worker process {worker.pid} ended with exit code {worker.exitcode}; another one takes its place"
        observe.emit(observe.Note(logging.WARNING, text))
        await asyncio.sleep(RESTART_SECONDS)


async def _stop(worker: SpawnProcess) -> None:
    worker.terminate()
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            await _end(worker)
    worker.kill()  # which does nothing to one that has ended


async def _end(worker: SpawnProcess) -> None:
    """Waits for the end of a process."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(worker.sentinel, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(worker.sentinel)
    worker.join()


def stop_with_parent() -> None:
    """From now on SIGINT, SIGTERM and the parent's end cancel the running task of this worker, whatever comes first.

    The others are ignored: a whole process group may get a signal that the parent passes on as well.
    """
    task, parent, loop = asyncio.current_task(), multiprocessing.parent_process(), asyncio.get_running_loop()
    assert task is not None
    assert parent is not None

    def stop() -> None:
        loop.remove_reader(parent.sentinel)
        if not task.cancelling():
            task.cancel()

    loop.add_reader(parent.sentinel, stop)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def has_parent() -> bool:
    """Whether the process that started this worker is still there, and cleans up after it."""
    parent = multiprocessing.parent_process()
    return parent is not None and parent.is_alive()
