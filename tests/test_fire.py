"""Deletions under fire, against a real process: producers, readers, retires and clears at once, by their answers."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

import httpx
import pytest
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm.exc import StaleDataError

from tests import rig
from tests.test_outgoing import until
from tests.test_process import serving
from tests.test_retire import INDEX, shown

TURNS = 3
LOOKS_AFTER = 4
# retire=true and retire=false, all at once
WITH_RETIRES, CLEARS = ("true", "false", "true", "false"), ("false", "false")


class Look(NamedTuple):
    """How many turns a reader saw, and when it had asked."""

    began: float
    turns: int


async def turns(client: httpx.AsyncClient, session_id: str) -> int:
    return len((await client.get(f"{INDEX}/{session_id}/turns")).json()["turns"])


async def listed(client: httpx.AsyncClient, session_id: str) -> int:
    sessions = (await client.get(INDEX, params={"limit": 200})).json()["sessions"]
    return sum(each["turn_count"] for each in sessions if each["session_id"] == session_id)


async def summary(client: httpx.AsyncClient, session_id: str) -> int:
    response = await client.get(f"{INDEX}/{session_id}")
    assert response.status_code in (200, 404), response.text
    return int(response.json().get("turn_count", 0))


async def watch(client: httpx.AsyncClient, session_id: str, looks: list[Look], over: asyncio.Event) -> None:
    """A reader of one route after the other."""
    for count in cycle((turns, listed, summary)):
        if over.is_set():
            break
        began = time.monotonic()
        looks.append(Look(began, await count(client, session_id)))


async def produce(store: rig.Store, session_id: str, task_id: str, over: asyncio.Event) -> None:
    """An agent in mid-turn: it saves its task until it is told to stop, and survives what the SDK raises then."""
    while not over.is_set():
        with contextlib.suppress(StaleDataError, SQLAlchemyError):
            await store.turn(session_id, "working", task_id=task_id, at="2026-01-05T09:00:00Z")
        await asyncio.sleep(0.002)


async def delete(client: httpx.AsyncClient, session_id: str, retire: str) -> tuple[int, float]:
    """The status, and when it was there."""
    response = await client.delete(f"{INDEX}/{session_id}", params={"retire": retire})
    return response.status_code, time.monotonic()


async def under_fire(store: rig.Store, client: httpx.AsyncClient, session_id: str, flags: Sequence[str]) -> list[Look]:
    """Deletes a session that is saved and read all the while; the looks that readers had at it before and after."""
    tasks = [await store.turn(session_id, "working") for _ in range(TURNS)]
    looks: list[Look] = []
    watched, over = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as fire:
        for task_id in tasks[1:]:
            fire.create_task(produce(store, session_id, task_id, over))
        watching = [fire.create_task(watch(client, session_id, looks, watched)) for _ in range(2)]
        await asyncio.sleep(0.01)
        answers = await asyncio.gather(*(delete(client, session_id, flag) for flag in flags))
        first = min(ended for status, ended in answers if status == 200)
        await until(lambda: sum(look.began > first for look in looks) >= LOOKS_AFTER, seconds=15)
        watched.set()
        await asyncio.wait(watching)
        new = await store.turn(session_id)
        assert await shown(client, session_id) == ([] if "true" in flags else [new])
        over.set()
    for task_id in tasks:
        await store.turn(session_id, task_id=task_id)
    assert await shown(client, session_id) == ([] if "true" in flags else [new])
    refused = {flag for (status, _), flag in zip(answers, flags, strict=True) if status == 409}
    assert {status for status, _ in answers} <= {200, 409}
    assert refused <= ({"false"} if "true" in flags else set())
    assert {0} == {look.turns for look in looks if look.began > first}
    return looks


@pytest.mark.parametrize("flags", [WITH_RETIRES, CLEARS], ids=["retires and clears", "clears"])
async def test_deletions_under_fire(flags: Sequence[str], store: rig.Store, full: bool) -> None:
    """Every read shows all of a session or none, none of it after the first 200, and a new turn after clears alone.

    All deletions succeed, but for clears that come after a retirement.
    """
    looks: list[Look] = []
    with serving(store.url) as sidecar:
        async with sidecar.client() as client:
            for number in range(100 if full else 10):
                looks += await under_fire(store, client, f"chat-{number}", flags)
    assert {0, TURNS} == {look.turns for look in looks}
