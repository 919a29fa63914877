"""The composition root: settings to an application; everything else gets what it needs as an argument."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette

from sidecar import edge
from sidecar.answer.routes import answer_routes
from sidecar.auth import Keyring
from sidecar.config import Config
from sidecar.db import Database
from sidecar.operations import operations_routes
from sidecar.outgoing import Outgoing
from sidecar.page import page_routes
from sidecar.routes import core_routes
from sidecar.search.routes import search_routes
from sidecar.sentinel import Remembered
from sidecar.sweeper import sweep_forever
from sidecar.tools import tool_routes


def create_app(config: Config, engine: AsyncEngine | None = None) -> Starlette:
    """The sidecar as an ASGI application, to be served or mounted. Raises ConfigError.

    An agent that owns the task engine passes it: it is used as it is set up, and never disposed. Under a Mount,
    which runs no lifespan, late rows are swept by `a2a-sidecar sweep` alone.
    """
    keyring = Keyring(config)
    database = Database(config, engine)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(sweep_forever(database))
        yield
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        await database.close()

    wings = [*search_routes(), *answer_routes(), *tool_routes()]
    app = Starlette(
        routes=[*core_routes(), *wings, *operations_routes(), *page_routes()],
        middleware=edge.middleware(config, keyring),
        exception_handlers=edge.exception_handlers,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect would reflect the path, and no route of ours needs one
    app.state.config = config
    app.state.database = database
    app.state.outgoing = Outgoing(config.pool_size, 2 * config.max_response_bytes)
    app.state.remembered = Remembered()
    return app
