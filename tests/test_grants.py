"""The grants of deploy/sql/grants.sql, proved with real roles: they suffice, and not one is too many."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests import rig
from tests.postgres import Server

PASSWORD = "the-password-of-the-role"


@asynccontextmanager
async def new_role(store: rig.Store, server: Server) -> AsyncIterator[str]:
    """A login role without a privilege of its own; even those of PUBLIC are taken away."""
    name = f"sidecar_test_{uuid.uuid4().hex}"
    await store.raw(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
    await store.raw("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        yield name
    finally:
        await server.execute(f"DROP OWNED BY {name}", store.engine.url.database)
        await server.execute(f"DROP ROLE {name}")


def address(store: rig.Store, server: Server, role: str) -> str:
    """The store's URL as that role."""
    assert store.engine.url.database is not None
    return server.url(store.engine.url.database, role, PASSWORD)
