"""The parts of the limit that need no server: one raw fetch of a session's cells, one strict scan of their text."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Any

import asyncpg
import msgspec
from sqlalchemy import make_url

from tests.bench.generate import FAT, FAT_TURNS
from tests.rig import Store

CELLS = ("status", "artifacts", "history")
_scan = msgspec.json.Decoder(msgspec.Raw).decode


async def fetch_seconds(store: Store, seconds: float) -> float:
    """The mean time of the driver's own fetch on an open connection."""
    if store.kind == "sqlite":
        with closing(sqlite3.connect(str(make_url(store.url).database))) as connection:
            return await _mean(lambda: asyncio.sleep(0, _sqlite_rows(connection)), seconds)
    connection = await asyncpg.connect(store.url.replace("+asyncpg", ""))
    try:
        return await _mean(lambda: connection.fetch(_select("{}::text", "$1"), FAT), seconds)
    finally:
        await connection.close()


async def scan_seconds(store: Store, seconds: float) -> float:
    """The mean time of checking the same text to be strict JSON, without building anything of it."""
    with_text = "CAST({} AS TEXT) AS {}"
    columns = ", ".join(with_text.format(name, name) for name in CELLS)
    rows = await store.raw(f"SELECT {columns} FROM tasks WHERE context_id = :session_id", session_id=FAT)
    cells = [cell.encode() for row in rows for cell in row]

    async def scan() -> None:
        for cell in cells:
            _scan(cell)

    return await _mean(scan, seconds)


def _sqlite_rows(connection: sqlite3.Connection) -> Sequence[Any]:
    return connection.execute(_select("CAST({} AS BLOB)", "?"), (FAT,)).fetchall()


def _select(as_text: str, mark: str) -> str:
    columns = ", ".join(as_text.format(name) for name in CELLS)
    return f"SELECT {columns} FROM tasks WHERE context_id = {mark} ORDER BY last_updated DESC LIMIT {FAT_TURNS}"


async def _mean(work: Callable[[], Awaitable[Any]], seconds: float) -> float:
    await work()
    number, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        await work()
        number += 1
    return took / number
