"""The door to the record tables: it makes them where they are missing, then reads or writes; it judges no record."""

from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from sidecar.db import Database
from sidecar.reading import Reading
from tombstones.table import Shape, create_record_tables

P = ParamSpec("P")
T = TypeVar("T")


async def write(
    database: Database,
    work: Callable[Concatenate[AsyncConnection, Shape, P], Awaitable[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Runs a writer in one durable transaction, with the tables there. Raises a SidecarError, as `Database.write`."""
    await _begin(database)
    return await database.write(work, *args, **kwargs)


async def read(
    database: Database,
    work: Callable[Concatenate[Reading, Shape, P], Awaitable[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Runs a reader of the tables. Raises a SidecarError, as `Database.read`."""
    await _begin(database)
    return await database.read(work, *args, **kwargs)


async def _begin(database: Database) -> None:
    if not await database.read(_stand):
        await database.write(create_record_tables)
        database.forget_shape()


async def _stand(conn: Reading, shape: Shape) -> bool:
    return shape.has_records
