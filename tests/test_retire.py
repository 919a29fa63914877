"""Retirement over HTTP: a deleted session stays deleted, a cleared one goes on, whatever producers save."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

from sidecar import sweeper
from sidecar.db import LOOKS, Database
from sidecar.errors import Busy
from sidecar.sweeper import RECENT, sweep_all
from tests import rig
from tombstones import retire as retirement

INDEX = "/api/chat/sessions"


async def delete(client: httpx.AsyncClient, session_id: str, **params: Any) -> dict[str, Any]:
    response = await client.delete(f"{INDEX}/{session_id}", params=params)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def problem(client: httpx.AsyncClient, session_id: str, **params: Any) -> tuple[int, str]:
    response = await client.delete(f"{INDEX}/{session_id}", params=params)
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()["code"]


async def shown(client: httpx.AsyncClient, session_id: str) -> list[str]:
    """The task ids that turns, index and summary agree on."""
    turns = (await client.get(f"{INDEX}/{session_id}/turns")).json()["turns"]
    index = (await client.get(INDEX, params={"limit": 200})).json()["sessions"]
    summary = await client.get(f"{INDEX}/{session_id}")
    listed = {each["session_id"]: each["turn_count"] for each in index}
    assert listed.get(session_id, 0) == len(turns)
    assert summary.status_code == (200 if turns else 404)
    return [turn["task_id"] for turn in turns]


async def test_retire_answers_what_it_deleted(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The seed's keys with counts: turns deleted, and how many of them waited or ran."""
    for state in ("completed", "working", "input-required", ""):
        await store.turn("chat-a", state)
    await store.turn("chat-b")
    assert await delete(sidecar, "chat-a") == {
        "deleted": True,
        "session_id": "chat-a",
        "retired": True,
        "turns_deleted": 4,
        "active_turns": 2,
    }
    assert await shown(sidecar, "chat-a") == []
    assert len(await shown(sidecar, "chat-b")) == 1
    assert [row.context_id for row in await store.raw("SELECT context_id FROM tasks")] == ["chat-b"]


async def test_retire_is_idempotent(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A second deletion finds nothing and succeeds; the first tombstone keeps its time."""
    await store.turn("chat-a")
    await delete(sidecar, "chat-a")
    (before,) = await store.raw("SELECT * FROM tasks_session_tombstones")
    assert (await delete(sidecar, "chat-a"))["turns_deleted"] == 0
    assert await store.raw("SELECT * FROM tasks_session_tombstones") == [before]


async def test_unknown_session_is_retired_all_the_same(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The first save of a session may be in flight when it is deleted: it stays hidden."""
    assert (await delete(sidecar, "chat-new"))["turns_deleted"] == 0
    await store.turn("chat-new")
    assert await shown(sidecar, "chat-new") == []


async def test_late_save_stays_hidden(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A producer that saves its task again after the retirement succeeds, and nobody sees the row."""
    task = await store.turn("chat-a", "input-required")
    await delete(sidecar, "chat-a")
    await store.turn("chat-a", "input-required", task_id=task)
    assert await shown(sidecar, "chat-a") == []
    assert (await sidecar.get(INDEX, params={"parked": "true"})).json() == {"sessions": []}


async def test_clear_keeps_the_session(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """`retire=false` deletes the turns; a late save of one stays hidden, a new turn of the session appears."""
    old = [await store.turn("chat-a", "working") for _ in range(2)]
    answer = await delete(sidecar, "chat-a", retire="false")
    assert (answer["retired"], answer["turns_deleted"], answer["active_turns"]) == (False, 2, 2)
    assert await shown(sidecar, "chat-a") == []
    await store.turn("chat-a", task_id=old[0])
    new = await store.turn("chat-a")
    assert await shown(sidecar, "chat-a") == [new]
    assert (await delete(sidecar, "chat-a", retire="false"))["turns_deleted"] == 1  # what nobody saw does not count


async def test_clear_of_an_empty_session(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """There is nothing to clear and nothing to remember: the answer says zero."""
    assert (await delete(sidecar, "chat-none", retire="false"))["turns_deleted"] == 0
    await store.turn("chat-none")
    assert len(await shown(sidecar, "chat-none")) == 1


async def test_clear_of_a_retired_session_changes_nothing(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """It never un-retires: 409, no audit row, and the late row stays where it is until the sweep."""
    await store.turn("chat-a")
    await delete(sidecar, "chat-a")
    await store.turn("chat-a")
    assert await problem(sidecar, "chat-a", retire="false") == (409, "already_retired")
    assert len(await store.raw("SELECT id FROM tasks")) == 1
    assert len(await store.raw("SELECT id FROM tasks_retirements")) == 1


@pytest.mark.parametrize("retire", ["true", "false"])
@pytest.mark.parametrize("state", ["working", "submitted", "input-required", "auth-required"])
async def test_refuse_while_active(state: str, retire: str, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """`if_active=refuse` leaves everything as it is while a turn waits or runs, and lets the deletion through after."""
    task = await store.turn("chat-a", state)
    await store.turn("chat-a")
    assert await problem(sidecar, "chat-a", retire=retire, if_active="refuse") == (409, "session_active")
    assert len(await shown(sidecar, "chat-a")) == 2
    assert await store.raw("SELECT id FROM tasks_retirements") == []
    await store.turn("chat-a", task_id=task)
    assert (await delete(sidecar, "chat-a", retire=retire, if_active="refuse"))["active_turns"] == 0


async def test_only_sessions_are_deleted(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The store also holds contexts of other kinds: an id without the prefix is refused and nothing is written."""
    await store.turn("api-f6")
    assert await problem(sidecar, "api-f6") == (400, "not_a_session")
    assert await problem(sidecar, "CHAT-g7", retire="false") == (400, "not_a_session")
    assert len(await store.raw("SELECT id FROM tasks")) == 1


async def test_audit_row(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Each deletion leaves one row: who, what, which session, how many turns, which request."""
    await store.turn("chat-a")
    await delete(sidecar, "chat-a", retire="false")
    response = await sidecar.delete(f"{INDEX}/chat-a", headers={"X-Request-Id": "req-7"})
    assert response.headers["x-request-id"] == "req-7"
    rows = await store.raw(
        "SELECT token, action, session_id, turns_deleted, request_id FROM tasks_retirements ORDER BY id"
    )
    assert [tuple(row)[:4] for row in rows] == [("operator", "clear", "chat-a", 1), ("operator", "retire", "chat-a", 0)]
    assert rows[1].request_id == "req-7"


async def test_failed_audit_fails_the_retirement(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The audit row is part of the transaction: without it nothing is deleted and nothing is retired."""
    await store.turn("chat-a")
    await sidecar.get(INDEX)
    await store.raw("ALTER TABLE tasks_retirements ADD COLUMN reason TEXT NOT NULL DEFAULT 'x' CHECK (reason <> 'x')")
    response = await sidecar.delete(f"{INDEX}/chat-a")
    assert response.status_code == 500
    assert "reason" not in response.text
    assert len(await shown(sidecar, "chat-a")) == 1
    assert await store.raw("SELECT * FROM tasks_session_tombstones") == []


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    """Tokens of alice and bob, each narrowed to one owner."""
    rows = [
        f'[[token]]\nname = "{name}"\nsha256 = "{hashlib.sha256(secret(name).encode()).hexdigest()}"\n'
        f'scopes = ["read", "retire"]\nowners = ["{name}"]\n'
        for name in ("alice", "bob")
    ]
    path = tmp_path / "tokens.toml"
    path.write_text("\n".join(rows), "utf-8")
    path.chmod(0o600)
    return path


def secret(name: str) -> str:
    return f"{name}-token-0123456789"


async def test_narrowed_token_sees_and_deletes_its_own(
    store: rig.Store, open_sidecar: rig.OpenSidecar, tokens_file: Path
) -> None:
    """A narrowed token reads rows of its owners alone, and deletes only sessions that hold no other."""
    alice = await open_sidecar(store, token=secret("alice"), tokens_file=tokens_file)
    await store.turn("chat-a", owner="alice")
    await store.turn("chat-b", owner="bob")
    mine = await store.turn("chat-mixed", owner="alice")
    await store.turn("chat-mixed", owner="bob")
    await store.turn("chat-nobody", owner="")
    index = (await alice.get(INDEX)).json()["sessions"]
    assert {each["session_id"]: each["turn_count"] for each in index} == {"chat-mixed": 1, "chat-a": 1}
    assert await shown(alice, "chat-mixed") == [mine]
    for session_id in ("chat-b", "chat-mixed", "chat-nobody", "chat-not-yet"):
        for retire in ("true", "false"):
            assert await problem(alice, session_id, retire=retire) == (403, "owner_not_allowed")
    assert len(await store.raw("SELECT id FROM tasks")) == 5
    assert await store.raw("SELECT * FROM tasks_session_tombstones") == []
    assert (await delete(alice, "chat-a", retire="false"))["turns_deleted"] == 1
    await store.turn("chat-a", owner="alice")
    assert (await delete(alice, "chat-a"))["turns_deleted"] == 1


async def test_narrowed_token_may_repeat_its_retirement(
    store: rig.Store, open_sidecar: rig.OpenSidecar, tokens_file: Path
) -> None:
    """Repeating is safe for whoever retired the session; it tells nobody else whether the session was there."""
    alice = await open_sidecar(store, token=secret("alice"), tokens_file=tokens_file)
    bob = await open_sidecar(store, token=secret("bob"), tokens_file=tokens_file)
    await store.turn("chat-a", owner="alice")
    await delete(alice, "chat-a")
    assert (await delete(alice, "chat-a"))["turns_deleted"] == 0
    assert await problem(bob, "chat-a") == (403, "owner_not_allowed")


async def test_sweep_takes_late_rows_only(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The sweep deletes rows behind a session's or a task's tombstone, and nothing else."""
    cleared = await store.turn("chat-cleared")
    await delete(sidecar, "chat-cleared", retire="false")
    await delete(sidecar, "chat-gone")
    await store.turn("chat-cleared", task_id=cleared)
    kept = await store.turn("chat-cleared")
    for _ in range(3):
        await store.turn("chat-gone")
    database = Database(rig.config_for(store))
    try:
        assert await sweep_all(database, timedelta(seconds=-60)) == 0
        assert await sweep_all(database, RECENT) == 4
        assert await sweep_all(database) == 0
    finally:
        await database.close()
    assert [row.id for row in await store.raw("SELECT id FROM tasks")] == [kept]


async def test_sweep_of_a_store_without_tombstones(store: rig.Store) -> None:
    """Where nothing was ever retired there is nothing to sweep."""
    await store.turn("chat-a")
    database = Database(rig.config_for(store))
    try:
        assert await sweep_all(database) == 0
    finally:
        await database.close()


async def test_concurrent_deletions_all_succeed(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Retires and clears of one session at once end in 200, or in 409 for a clear that came second."""
    for number in range(10):
        session_id = f"chat-{number}"
        for _ in range(3):
            await store.turn(session_id)
        flags = ["true", "false"] * 3
        requests = [sidecar.delete(f"{INDEX}/{session_id}", params={"retire": flag}) for flag in flags]
        answers = await asyncio.gather(*requests)
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) <= {200, 409}
        assert all(status == 200 for status, flag in zip(statuses, flags, strict=True) if flag == "true")
        deleted = sum(answer.json()["turns_deleted"] for answer in answers if answer.status_code == 200)
        assert deleted == 3
        assert await shown(sidecar, session_id) == []


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is long from four turns on."""
    for module in (retirement, sweeper):
        monkeypatch.setattr(module, "BATCH", 3)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("retire", ["true", "false"])
async def test_long_session(retire: str, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """It is counted and deleted whole, with one audit row, though not in one transaction on SQLite."""
    for state in ["completed"] * 7 + ["working"]:
        await store.turn("chat-long", state)
    await store.turn("chat-other")
    answer = await delete(sidecar, "chat-long", retire=retire)
    assert (8, 1) == (answer["turns_deleted"], answer["active_turns"])
    assert await shown(sidecar, "chat-long") == []
    assert [row.context_id for row in await store.raw("SELECT context_id FROM tasks")] == ["chat-other"]
    assert [8] == [row.turns_deleted for row in await store.raw("SELECT turns_deleted FROM tasks_retirements")]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("retire", ["true", "false"])
async def test_concurrent_deletions_of_a_long_session(
    retire: str, store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """Each turn is counted once, in the answers and in the audit, though it is deleted a moment later."""
    for number in range(10):
        for _ in range(8):
            await store.turn(f"chat-{number}")
        answers = await asyncio.gather(*(delete(sidecar, f"chat-{number}", retire=retire) for _ in range(4)))
        assert 8 == sum(answer["turns_deleted"] for answer in answers)
    assert 80 == (await store.raw("SELECT sum(turns_deleted) FROM tasks_retirements"))[0][0]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("work", [retirement.retire, retirement.clear])
async def test_crash_amid_a_long_session(
    work: Callable[..., Any], store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """After the first transaction no reader sees a turn, and whatever comes later takes the rows away."""
    for _ in range(8):
        await store.turn("chat-long")
    database = Database(rig.config_for(store))
    try:
        deletion = partial(work, session_id="chat-long", actor=retirement.Actor("operator", None, "request"))
        outcome = await database.write_after(partial(retirement.look, session_id="chat-long"), deletion)
        assert 8 == outcome.turns_deleted == len(outcome.left)
        assert await shown(sidecar, "chat-long") == []
        assert 8 == len(await store.raw("SELECT id FROM tasks"))
        assert 8 == await sweep_all(database)
    finally:
        await database.close()
    assert [] == await store.raw("SELECT id FROM tasks")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["sqlite"])
async def test_long_session_that_a_writer_holds_up(
    store: rig.Store, sidecar: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that stands is answered with 200, though its rows are still to be taken away."""
    for _ in range(8):
        await store.turn("chat-long")

    async def busy(*arguments: object) -> None:
        raise Busy("The database file is locked by a writer.")

    monkeypatch.setattr(sweeper, "_sweep_alone", busy)
    assert 8 == (await delete(sidecar, "chat-long"))["turns_deleted"]
    assert await shown(sidecar, "chat-long") == []


Saving = Callable[[], Awaitable[object]]


@pytest.fixture
def saving_after_each_look(monkeypatch: pytest.MonkeyPatch) -> Callable[[Saving], None]:
    """A producer that saves between a deletion's look at a long session and its transaction, every time."""

    def start(save: Saving) -> None:
        look = retirement.look

        async def look_and_save(*arguments: Any, **named: Any) -> retirement.Turns | None:
            found = await look(*arguments, **named)
            await save()
            return found

        monkeypatch.setattr(retirement, "look", look_and_save)

    return start


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("retire", ["true", "false"])
async def test_long_session_saved_after_each_look(
    retire: str, store: rig.Store, sidecar: httpx.AsyncClient, saving_after_each_look: Callable[[Saving], None]
) -> None:
    """Turns that came after the last look are counted, hidden and audited as well, though they wait for the sweep."""
    for state in ["completed"] * 7 + ["working"]:
        await store.turn("chat-long", state)
    saving_after_each_look(lambda: store.turn("chat-long"))
    answer = await delete(sidecar, "chat-long", retire=retire)
    assert (8 + LOOKS, 1) == (answer["turns_deleted"], answer["active_turns"])
    assert [8 + LOOKS] == [row.turns_deleted for row in await store.raw("SELECT turns_deleted FROM tasks_retirements")]
    assert [] == await shown(sidecar, "chat-long")
    (late,) = await store.raw("SELECT id FROM tasks")
    await store.turn("chat-long", task_id=late.id)
    assert [] == await shown(sidecar, "chat-long")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("retire", ["true", "false"])
async def test_long_session_that_becomes_active_after_each_look(
    retire: str, store: rig.Store, sidecar: httpx.AsyncClient, saving_after_each_look: Callable[[Saving], None]
) -> None:
    """`if_active=refuse` goes by what stands in the transaction: nothing is changed."""
    tasks = [await store.turn("chat-long") for _ in range(8)]
    states = cycle(["completed"] * (LOOKS - 1) + ["working"])
    saving_after_each_look(lambda: store.turn("chat-long", next(states), task_id=tasks[0]))
    assert (409, "session_active") == await problem(sidecar, "chat-long", retire=retire, if_active="refuse")
    assert 8 == len(await shown(sidecar, "chat-long"))
    for name in ("retirements", "session_tombstones", "task_tombstones"):
        assert [] == await store.raw(f"SELECT * FROM tasks_{name}")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("retire", ["true", "false"])
async def test_long_session_with_a_foreign_turn_after_each_look(
    retire: str,
    store: rig.Store,
    open_sidecar: rig.OpenSidecar,
    tokens_file: Path,
    saving_after_each_look: Callable[[Saving], None],
) -> None:
    """A narrowed token is refused for a turn of another owner that came after the last look; alone it may delete."""
    alice = await open_sidecar(store, token=secret("alice"), tokens_file=tokens_file)
    for session_id in ("chat-long", "chat-mine"):
        for _ in range(8):
            await store.turn(session_id, owner="alice")
    saving_after_each_look(lambda: store.turn("chat-long", owner="bob"))
    assert (403, "owner_not_allowed") == await problem(alice, "chat-long", retire=retire)
    assert 8 == len(await shown(alice, "chat-long"))
    assert 8 == (await delete(alice, "chat-mine", retire=retire))["turns_deleted"]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["sqlite"])
async def test_a_look_that_does_not_stand_is_repeated(
    store: rig.Store, sidecar: httpx.AsyncClient, saving_after_each_look: Callable[[Saving], None]
) -> None:
    """A turn that became active after the first look alone is counted as such."""
    tasks = [await store.turn("chat-long") for _ in range(8)]
    states = iter(["working"])

    async def save() -> None:
        for state in states:
            await store.turn("chat-long", state, task_id=tasks[0])

    saving_after_each_look(save)
    answer = await delete(sidecar, "chat-long")
    assert (8, 1) == (answer["turns_deleted"], answer["active_turns"])
