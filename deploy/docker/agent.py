"""The demo agent in a container of its own: it stores the sample sessions and takes messages; it serves no sidecar.

Its argument is its port. It reads its database's address as the sidecar does, from SIDECAR_DATABASE_URL or
SIDECAR_DATABASE_URL_FILE.
"""

import asyncio
import logging
import os
import sys
from contextlib import suppress

from a2a.server.tasks import DatabaseTaskStore
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sidecar import observe
from sidecar.config import load
from sidecar.demo.agent import create_agent
from sidecar.demo.samples import write_samples
from sidecar.serve import listen, running, stop_on_signals


async def main(port: int) -> None:
    """Serve until SIGTERM; whoever finds the port open finds the task table too."""
    observe.configure("auto")
    stop_on_signals()
    engine = create_async_engine(load(os.environ).database_url)
    try:
        is_new = await _is_new(engine)
        agent = create_agent(engine, f"http://127.0.0.1:{port}/")
        # a container is reached from outside only
        async with running(agent, listen("0.0.0.0", port)) as serving:  # noqa: S104
            if is_new:
                await write_samples(agent.state.handler)
            observe.emit(observe.Note(logging.INFO, f"the samples are stored, and messages taken on port {port}"))
            await asyncio.wait([serving])
    finally:
        await engine.dispose()


async def _is_new(engine: AsyncEngine) -> bool:
    """Make the task table, on SQLite in WAL mode, so that nobody waits for a reader; tell whether it is empty."""
    await DatabaseTaskStore(engine).initialize()
    async with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            await connection.execute(text("PRAGMA journal_mode=WAL"))
        return not await connection.scalar(text("SELECT count(*) FROM tasks"))


with suppress(asyncio.CancelledError):
    asyncio.run(main(int(sys.argv[1])))
