"""Tells whether anybody has committed to a SQLite file since it was last asked; it reads no table.

A digest of the whole answer is the validator; as long as the file's version stands, the digest need not be made again,
nor the answer be read.
"""

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiosqlite

ANSWERS_REMEMBERED = 1024


class Sentinel:
    """A connection that never writes: `PRAGMA data_version` changes on it when any other one commits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: aiosqlite.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._opened = 0
        self._asking = asyncio.Lock()

    async def version(self) -> tuple[Hashable, Hashable] | None:
        """The file, and what stands until the next commit, or None when it cannot be told; ask before you read."""
        try:
            async with self._asking:
                (row,) = await (await self._current()).execute_fetchall("PRAGMA data_version")
        except (OSError, sqlite3.Error, ValueError):
            return None
        # the number means something on this connection only
        return (self._opened, row[0])

    async def _current(self) -> aiosqlite.Connection:
        """The connection to the file that stands at the path now."""
        found = self._path.stat()
        if self._connection is None or self._file != (found.st_dev, found.st_ino):
            await self.close()
            self._file = (found.st_dev, found.st_ino)
            self._opened += 1
            self._connection = await self._open()
        return self._connection

    async def _open(self) -> aiosqlite.Connection:
        address = f"file:{quote(str(self._path))}?mode=ro"
        connecting = aiosqlite.connect(address, uri=True, isolation_level=None, timeout=0)
        # a process that ends must not wait for the thread; before 0.22 the connection was one itself
        thread: Any = getattr(connecting, "_thread", connecting)
        thread.daemon = True
        return await connecting

    async def close(self) -> None:
        """Closes the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class Remembered:
    """The validators of the latest answers, each with the version of the file before it was read."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, tuple[Hashable, str]] = OrderedDict()

    def etag(self, request: Hashable, version: Hashable | None) -> str | None:
        """The validator of an equal request's answer, if nobody has committed since."""
        known = self._answers.get(request)
        return known[1] if known is not None and known[0] == version else None

    def remember(self, request: Hashable, version: Hashable, etag: str) -> None:
        """Keeps a validator, and forgets the oldest one beyond the bound."""
        self._answers[request] = (version, etag)
        self._answers.move_to_end(request)
        if len(self._answers) > ANSWERS_REMEMBERED:
            self._answers.popitem(last=False)
