"""Takes away the rows that producers saved after their session was retired; it never runs inside a GET.

They are hidden already; the sweep makes deleted mean deleted. Looking for them takes no lock; deleting takes a short
one a batch.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sidecar import observe
from sidecar.db import Database
from sidecar.errors import ReadOnly, SidecarError
from tombstones.forget import compact
from tombstones.retire import BATCH, late_rows, sweep
from tombstones.table import Shape

INTERVAL_SECONDS = 60.0
# Between two batches: whoever waits for SQLite's lock looks for it now and then, and must find it free.
PAUSE_SECONDS = 0.02
# A producer that still saves a day after the retirement is found by `a2a-sidecar sweep`, which looks at all.
RECENT = timedelta(hours=24)


async def sweep_all(database: Database, since: timedelta | None = None) -> int:
    """Deletes the late rows and tells of each session; answers how many went. Raises a SidecarError."""
    task_ids = await database.maintain(_late_rows, since)
    swept = await delete_hidden(database, task_ids)
    for session_id, rows in swept.items():
        observe.emit(observe.LateRowsSwept(session_id, rows))
    return swept.total()


async def delete_hidden(database: Database, task_ids: Sequence[str]) -> Counter[str]:
    """Deletes rows that have a tombstone, a batch a transaction; answers how many of each session went."""
    deleted: Counter[str] = Counter()
    for start in range(0, len(task_ids), BATCH):
        deleted.update(await database.write(_sweep_alone, task_ids[start : start + BATCH]))
        await asyncio.sleep(PAUSE_SECONDS)
    return deleted


async def compact_index(database: Database, done: int | None) -> int | None:
    """Takes the words of deleted turns out of SQLite's search index, in steps, when there was a deletion after `done`.

    Answers the newest deletion that is done. Raises a SidecarError.
    """
    newest = await database.maintain(_newest_deletion) if database.is_sqlite else None
    if newest == done:
        return done
    with suppress(ReadOnly):  # whoever deleted can write, and compacts
        is_over = await database.write(compact, begins=True)
        while not is_over:
            await asyncio.sleep(PAUSE_SECONDS)
            is_over = await database.write(compact, begins=False)
    return newest


async def sweep_forever(database: Database) -> None:
    """Sweeps what is recent, once a minute, not in step with other sidecars; a failed round waits for the next."""
    compacted = None
    while True:
        await asyncio.sleep(INTERVAL_SECONDS * random.uniform(0.75, 1.25))  # noqa: S311  # jitter, no secret
        try:
            await sweep_all(database, RECENT)
            compacted = await compact_index(database, compacted)
        except SidecarError as error:
            observe.emit(observe.Note(logging.WARNING, f"late rows were not swept: {error.code}"))
        except Exception as error:  # nobody foresaw it, but the next round must come
            observe.emit(observe.Failed("sweep", error))


async def _late_rows(conn: AsyncConnection, shape: Shape, since: timedelta | None) -> list[str]:
    return [] if shape.missing_side_tables else await late_rows(conn, shape, since)


async def _newest_deletion(conn: AsyncConnection, shape: Shape) -> int | None:
    if shape.missing_side_tables:
        return None
    newest: int | None = (await conn.execute(select(func.max(shape.side.retirements.c.id)))).scalar_one()
    return newest


async def _sweep_alone(conn: AsyncConnection, shape: Shape, task_ids: Sequence[str]) -> list[str]:
    """One sidecar at a time; a transaction's advisory lock also works behind a transaction pooler."""
    if not shape.sqlite:
        mine = select(func.pg_try_advisory_xact_lock(shape.lock_key + 1))
        if not (await conn.execute(mine)).scalar_one():
            return []
    return await sweep(conn, shape, task_ids)
