"""One session's turns: bytes as stored, the newest window, pages, bounds, on every SDK shape."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests import rig

NAMES = ("0.3.26", "1.3.0", "mixed-0.3.26-to-1.3.0")
CELLS = ("status", "artifacts", "history")
KEYS = ["task_id", "state", "last_updated", "text", *CELLS]


@pytest.fixture(params=["plain", "prepared"])
def open_sidecar(open_sidecar: rig.OpenSidecar, request: pytest.FixtureRequest) -> rig.OpenSidecar:
    """Every behaviour on a store as the SDK leaves it, and on a prepared one, which is read along its indexes."""

    async def start(store: rig.Store, **settings: Any) -> httpx.AsyncClient:
        if request.param == "prepared":
            await rig.prepare(store)
        return await open_sidecar(store, **settings)

    return start


@pytest.fixture
def knows_first_saves(kind: rig.Kind, request: pytest.FixtureRequest) -> bool:
    """Whether the store tells when a row was first saved: a prepared PostgreSQL alone."""
    return kind == "postgres" and "prepared" in request.node.name


def path(session_id: str) -> str:
    return f"/api/chat/sessions/{quote(session_id, safe='')}/turns"


async def turns(client: httpx.AsyncClient, session_id: str, **params: Any) -> list[dict[str, Any]]:
    response = await client.get(path(session_id), params=params)
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()["turns"]
    return rows


def expected_body(turn: dict[str, Any], cells: dict[str, bytes | None]) -> bytes:
    """The wire of one turn, built from the stored text and the decoded conveniences."""
    spliced = {
        name: b"[]" if name != "status" and (text is None or text == b"null") else text for name, text in cells.items()
    }
    pieces = [f"{json.dumps(key)}:{json.dumps(turn[key], ensure_ascii=False)}".encode() for key in KEYS[:4]]
    pieces += [f'"{name}":'.encode() + (spliced[name] or b"") for name in CELLS]
    return b"{" + b",".join(pieces) + b"}"


@pytest.mark.parametrize("name", NAMES)
async def test_every_turn_is_byte_identical(
    name: str, sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar
) -> None:
    """status, artifacts and history of every row of every SDK are the stored bytes; only null becomes `[]`."""
    store = await sdk_database(name)
    client = await open_sidecar(store)
    stored = {cell: await store.column_text(cell) for cell in CELLS}
    seen = 0
    for (context_id,) in await store.raw("SELECT DISTINCT context_id FROM tasks"):
        response = await client.get(path(context_id))
        rows = response.json()["turns"]
        bodies = [expected_body(turn, {cell: stored[cell][turn["task_id"]] for cell in CELLS}) for turn in rows]
        assert response.content == b'{"turns":[' + b",".join(bodies) + b"]}"
        assert all(list(turn) == KEYS for turn in rows)
        seen += len(rows)
    assert seen == len(stored["status"])


ODD_JSON = [
    '[{"metadata": {"a": 1e2, "b": 3.0, "c": -0.0, "d": 1E+400, "e": 12345678901234567890123}}]',
    '[ {"text" : "x",  "text":"y", "z":[ ] } ]',
    '[{"parts": [{"text": "nul \\u0000 lone \\ud83d escaped \\/ \\u00e9"}]}]',
    '{"parts": "not a list"}',
    "[1, null, true, {}]",
    "[" * 500 + "]" * 500,
]


@pytest.mark.parametrize("text", ODD_JSON)
async def test_odd_json_is_spliced_unchanged(text: str, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Number spelling, key order, duplicate keys, escapes, white space and depth survive in every cell."""
    await store.insert_raw(context_id="chat-odd", artifacts=text, history=text)
    response = await sidecar.get(path("chat-odd"))
    assert response.status_code == 200
    assert response.content.endswith(f'"status":{{}},"artifacts":{text},"history":{text}}}]}}'.encode())
    assert b'"omitted"' not in response.content


async def test_null_becomes_an_empty_list(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """JSON null and SQL NULL of artifacts and history are `[]`; a null status stays as stored."""
    await store.insert_raw(context_id="chat-null", artifacts="null", history=None, status="null")
    (turn,) = await turns(sidecar, "chat-null")
    assert [turn[cell] for cell in CELLS] == [None, [], []]


async def test_text_joins_text_parts_only(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Chunks are joined with nothing, over all artifacts, in both part spellings; other parts and types add nothing."""
    artifacts = [
        {"parts": [{"text": "Rotate "}, {"kind": "text", "text": "the "}, {"data": {"text": "no"}}]},
        {"parts": [{"kind": "data", "data": {"text": "no"}}, {"text": 5}, "no", {"text": "keys \ud83d."}]},
        {"parts": "no"},
        "no",
    ]
    await store.insert_raw(context_id="chat-t", artifacts=json.dumps(artifacts))
    (turn,) = await turns(sidecar, "chat-t")
    assert turn["text"] == "Rotate the keys \ufffd."


async def test_completed_without_an_answer(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A completed turn may have no artifact at all: its text is empty, which is no error."""
    await store.turn("chat-a", text=None)
    assert [turn["text"] for turn in await turns(sidecar, "chat-a")] == [""]


async def test_newest_fifty_of_sixty_ascending(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The window is the newest turns, shown oldest first; the older ten follow through `Link`."""
    ids = [await store.turn("chat-long") for _ in range(60)]
    response = await sidecar.get(path("chat-long"))
    assert [turn["task_id"] for turn in response.json()["turns"]] == ids[10:]
    older = await sidecar.get(response.links["next"]["url"])
    assert [turn["task_id"] for turn in older.json()["turns"]] == ids[:10]
    assert "next" not in older.links


@pytest.mark.parametrize("order", ["activity", "created"])
async def test_pages_visit_each_turn_once(
    order: str, store: rig.Store, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """Pages of either order visit every turn once, through equal, missing and status-only times."""
    await prepare(store)
    client = await open_sidecar(store)
    ids = [await store.turn("chat-p", at=at) for at in ["2026-01-05T09:00:00Z"] * 4 + ["next"] * 4]
    ids += [await store.turn("chat-p", "submitted", at=None) for _ in range(3)]
    ids.append(await store.insert_raw(context_id="chat-p", status='{"timestamp": "2026-01-05T09:00:30+00:00"}'))
    await store.turn("chat-p", task_id=ids[0], at="2026-02-01T00:00:00Z")
    whole = [turn["task_id"] for turn in await turns(client, "chat-p", order=order, limit=200)]
    seen: list[str] = []
    next_page = f"{path('chat-p')}?limit=3&order={order}"
    while next_page:
        response = await client.get(next_page)
        seen = [turn["task_id"] for turn in response.json()["turns"]] + seen
        next_page = response.links.get("next", {}).get("url", "")
    assert seen == whole
    assert sorted(seen) == sorted(ids)
    if order == "created":
        assert seen == ids


async def test_activity_order_puts_unknown_times_last(
    store: rig.Store, sidecar: httpx.AsyncClient, knows_first_saves: bool
) -> None:
    """By activity, a time inside the status counts like the column's, and a turn without any comes last."""
    unknown = await store.turn("chat-a", "submitted", at=None)
    late = await store.insert_raw(context_id="chat-a", status='{"timestamp": "2026-03-01T10:00:00+02:00"}')
    early = await store.turn("chat-a", at="2026-03-01T07:59:00Z")
    rows = [(turn["task_id"], turn["last_updated"]) for turn in await turns(sidecar, "chat-a")]
    assert rows[:2] == [(early, "2026-03-01T07:59:00Z"), (late, "2026-03-01T08:00:00Z")]
    assert rows[2][0] == unknown
    assert (rows[2][1] is not None) == knows_first_saves


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        ("2026-01-05T09:00:00.123456789Z", "2026-01-05T09:00:00.123456Z"),
        ("2026-01-05T09:00:00+02:00", "2026-01-05T07:00:00Z"),
        ("2026-01-05T09:00:00", "2026-01-05T09:00:00Z"),
        ("0001-01-01T00:00:00+14:00", None),
        ("yesterday", None),
        (5, None),
    ],
)
async def test_time_inside_a_status(
    timestamp: object, expected: str | None, store: rig.Store, sidecar: httpx.AsyncClient, knows_first_saves: bool
) -> None:
    """0.x stores any string as a time: what is one is answered in UTC; else the first save's time, where known."""
    await store.insert_raw(context_id="chat-a", status=json.dumps({"timestamp": timestamp}))
    (turn,) = await turns(sidecar, "chat-a")
    if expected or not knows_first_saves:
        assert turn["last_updated"] == expected
    else:
        created = datetime.fromisoformat(turn["last_updated"])
        assert abs(datetime.now(UTC) - created) < timedelta(minutes=1)


async def test_large_cell_is_omitted(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """A cell above SIDECAR_MAX_TURN_BYTES is not fetched: the turn says so and keeps its other cells."""
    client = await open_sidecar(store, max_turn_bytes=2000)
    await store.turn("chat-big", text="x" * 3000)
    await store.turn("chat-big", text="small")
    big, small = await turns(client, "chat-big")
    assert (big["omitted"], big["artifacts"], big["text"], len(big["history"])) == (["artifacts"], [], "", 1)
    assert list(small) == KEYS


async def test_full_answer_continues_through_link(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """Above SIDECAR_MAX_RESPONSE_BYTES the oldest turns are left out, and reached through `Link`; one always fits."""
    client = await open_sidecar(store, max_response_bytes=8000)
    ids = [await store.turn("chat-big", text="x" * 1500) for _ in range(5)]
    ids.append(await store.turn("chat-big", text="y" * 9000))
    seen: list[str] = []
    sizes: list[int] = []
    next_page = path("chat-big")
    while next_page:
        response = await client.get(next_page)
        page = [turn["task_id"] for turn in response.json()["turns"]]
        seen, sizes = page + seen, [*sizes, len(page)]
        next_page = response.links.get("next", {}).get("url", "")
    assert seen == ids
    assert sizes == [1, 2, 2, 1]


async def test_unknown_and_retired_sessions_look_alike(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Neither has turns, and nothing tells them apart."""
    await store.turn("chat-gone")
    await sidecar.delete("/api/chat/sessions/chat-gone")
    gone, unknown = await sidecar.get(path("chat-gone")), await sidecar.get(path("chat-nobody"))
    assert gone.content == unknown.content == b'{"turns":[]}'
    skipped = ("x-request-id",)
    kept = [[(k, v) for k, v in response.headers.items() if k not in skipped] for response in (gone, unknown)]
    assert kept[0] == kept[1]


async def test_in_flight_turn_shows_its_partial_answer(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A running turn appears with what was saved so far, and its validator changes with every chunk."""
    at = "2026-01-05T09:00:00Z"
    task = await store.turn("chat-live", "working", ["Rotating "], at=at)
    first = await sidecar.get(path("chat-live"))
    await store.turn("chat-live", "working", ["Rotating ", "the keys"], at=at, task_id=task)
    second = await sidecar.get(path("chat-live"), headers={"If-None-Match": first.headers["etag"]})
    assert second.status_code == 200
    assert second.json()["turns"][0]["text"] == "Rotating the keys"
    third = await sidecar.get(path("chat-live"), headers={"If-None-Match": second.headers["etag"]})
    assert (third.status_code, third.content) == (304, b"")


@pytest.mark.parametrize("cursor", ["", "%%%", "x", "WzEsW10sW11d", "e30"])
async def test_foreign_cursor_is_refused(cursor: str, store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A cursor that this request did not give out is a 400 that names the parameter."""
    for route in (path("chat-a"), "/api/chat/sessions"):
        response = await sidecar.get(route, params={"cursor": cursor})
        assert (response.status_code, response.json()["code"]) == (400, "parameter_invalid")
        assert "cursor" in response.json()["detail"]


async def test_cursor_is_bound_to_its_request(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A cursor of one session, order or route is refused by another."""
    for _ in range(3):
        await store.turn("chat-a")
        await store.turn("chat-b")
    given = (await sidecar.get(path("chat-a"), params={"limit": 1})).links["next"]["url"]
    cursor = httpx.URL(given).params["cursor"]
    for route, params in (
        (path("chat-b"), {}),
        (path("chat-a"), {"order": "created"}),
        ("/api/chat/sessions", {}),
    ):
        response = await sidecar.get(route, params={**params, "cursor": cursor})
        assert (response.status_code, response.json()["code"]) == (400, "parameter_invalid")
