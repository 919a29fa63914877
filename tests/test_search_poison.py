"""Rows that no SDK would write, through search and history: the poison of `tests/test_poison.py`."""

from typing import Any

import httpx
import pytest

from sidecar.routes import SESSIONS
from sidecar.tools import TOOLS
from tests import rig
from tests.test_poison import NAMES, Poison, poisons, set_literal, strict, watched
from tests.test_search import SEARCH, every_match, found
from tests.test_search_routes import window
from tests.test_tools import call, called
from tests.test_turns import CELLS

HEALTHY = {
    "status": '{"state": "completed", "timestamp": "2026-01-05T09:00:00Z"}',
    "artifacts": '[{"artifactId": "a", "parts": [{"text": "okapi"}]}]',
    "history": '[{"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "zebra"}]}]',
}


async def windows(client: httpx.AsyncClient, conversation: str, **params: Any) -> list[dict[str, Any]]:
    """The turns of all windows, forth from the oldest; two hundred of them mean that it never ends."""
    turns: list[dict[str, Any]] = []
    position: Any = 0
    for _ in range(200):
        response = await client.get(window(conversation), params={**params, "after_position": position})
        answer = strict(response.content)
        turns += answer["turns"]
        if not answer["pagination"]["has_newer"]:
            return turns
        position = answer["pagination"]["after_position"]
    raise AssertionError("the windows never end")


async def poisoned(store: rig.Store, column: str) -> dict[str, Poison]:
    """Rows of one session, each with a poison in the column and with words in the others, by their ids."""
    healthy = {name: text for name, text in HEALTHY.items() if name != column}
    return {await poison.insert(store, column, "chat-x", **healthy): poison for poison in poisons(store.kind, 20_000)}


@pytest.mark.parametrize("column", CELLS)
async def test_poison_in_a_column(column: str, store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """Whatever a cell holds, its row's other cells are found and read, and so is every other turn, until all retire."""
    client = watched(await open_sidecar(store, max_turn_bytes=60_000))
    first = await store.turn("chat-x", prompt="zebra", text="okapi")
    ids = {*await poisoned(store, column)}
    last = await store.turn("chat-x", prompt="zebra", text="okapi")

    for query, place in (("okapi", "artifacts"), ("zebra", "history")):
        matches = await every_match(client, query, limit=50)
        turns = {each["turn_public_id"] for each in matches if each["field"] != "title"}
        assert {first, last} | (ids if column != place else set()) == turns, query
    read = [turn["public_id"] for turn in await windows(client, "chat-x", limit=50)]
    assert sorted({first, last} | ids) == sorted(read)
    for task_id in ids:
        around = {"around_turn_public_id": task_id, "limit": "3", "include_execution": "true"}
        response = await client.get(window("chat-x"), params=around)
        assert (200, 3) == (response.status_code, len(strict(response.content)["turns"]))
    for words in ("x", "text parts artifactId", "\ufffd", "9" * 500, "a\0b"):
        assert 200 == (await client.get(SEARCH, params={"query": words})).status_code
    for name, arguments in (
        ("session_search", {"query": "okapi", "limit": 50}),
        ("session_read", {"session_id": "chat-x", "limit": 50, "include_execution": True}),
    ):
        is_error, text = called(await client.post(TOOLS, json=call(name, **arguments)))
        assert not is_error, text
        strict(text.encode())

    assert 200 == (await client.delete(f"{SESSIONS}/chat-x")).status_code
    assert 404 == (await client.get(window("chat-x"))).status_code
    for name in ("turns", "lexemes", "contexts"):
        assert 0 == (await store.raw(f"SELECT count(*) AS rows FROM tasks_search_{name}"))[0].rows


@pytest.mark.parametrize(("kind", "column", "literals"), NAMES)
async def test_poison_in_a_name_or_time(
    column: str, literals: tuple[str, ...], store: rig.Store, open_sidecar: rig.OpenSidecar
) -> None:
    """An id, owner or time that is no text or no time keeps no other turn from being found and read, on each page."""
    client = watched(await open_sidecar(store, session_prefix=""))
    healthy = set()
    for number, literal in enumerate(literals):
        turns = [await store.turn(f"chat-{number}", prompt=None, text="okapi") for _ in range(3)]
        await set_literal(store, column, literal, turns[1])
        healthy |= {turns[0], turns[2]}
    whole = await found(client, "okapi", limit=50)
    assert healthy <= {turn for turn, _ in whole}
    assert whole == await found(client, "okapi", limit=2)
    for number in range(len(literals)):
        read = await windows(client, f"chat-{number}", limit=1, include_execution="true")
        assert 2 == len(healthy & {turn["public_id"] for turn in read})
        assert read == await windows(client, f"chat-{number}", limit=2, include_execution="true")


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("literal", ["5", "x'80'", "CAST(x'ff' AS TEXT)", "CAST(x'eda080' AS TEXT)", "'a' || char(0)"])
async def test_poison_in_a_kind(literal: str, store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """A kind that is no text is shown as well as it can be."""
    client = watched(await open_sidecar(store))
    task_id = await store.turn("chat-a")
    await set_literal(store, "kind", literal, task_id)
    (turn,) = await windows(client, "chat-a")
    assert isinstance(turn["kind"], str)
