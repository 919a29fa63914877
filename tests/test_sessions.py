"""The session index, the parked sessions and the summary, over the real store of every SDK shape."""

from typing import Any

import httpx
import pytest

from tests import rig

INDEX = "/api/chat/sessions"
NAMES = ("0.3.26", "1.3.0", "mixed-0.3.26-to-1.3.0")


@pytest.fixture(params=["plain", "prepared"])
def open_sidecar(open_sidecar: rig.OpenSidecar, request: pytest.FixtureRequest) -> rig.OpenSidecar:
    """Every behaviour on a store as the SDK leaves it, and on a prepared one, which is read along its indexes."""

    async def start(store: rig.Store, **settings: Any) -> httpx.AsyncClient:
        if request.param == "prepared":
            await rig.prepare(store)
        return await open_sidecar(store, **settings)

    return start


async def listed(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    response = await client.get(INDEX, params=params)
    assert response.status_code == 200, response.text
    sessions: list[dict[str, Any]] = response.json()["sessions"]
    return sessions


@pytest.mark.parametrize("name", NAMES)
async def test_index_of_sdk_databases(
    name: str, sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar
) -> None:
    """Every SDK shape gives the same sessions and counts; other contexts are never listed."""
    client = await open_sidecar(await sdk_database(name))
    sessions = await listed(client, limit=200)
    counts = {each["session_id"]: each["turn_count"] for each in sessions}
    expected = {
        "chat-a1": 3,
        "chat-b2": 2,
        "chat-c3-中文-😀": 1,
        "chat-d4": 2,
        "chat-e5": 3,
        "chat-": 1,
        "chat-100%_x\\y": 1,
        "chat-i9": 1,
        "chat-j10": 1,
        "chat-k11": 1,
    }
    if name.startswith("mixed"):
        expected |= {"chat-a1": 4, "chat-new": 2, "chat-old": 1, "chat-compat": 1, "chat-own": 1, "chat-late": 1}
    assert counts == expected
    assert all(list(each) == ["session_id", "last_updated", "turn_count"] for each in sessions)


@pytest.mark.parametrize("name", NAMES)
async def test_index_is_newest_first(
    name: str, sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar
) -> None:
    """Newest activity first, whichever of column and status holds the time; unknown times last."""
    client = await open_sidecar(await sdk_database(name))
    times = [each["last_updated"] for each in await listed(client, limit=200)]
    assert times[-1] is None
    known = times[:-1]
    assert known == sorted(known, reverse=True)
    assert all(time.endswith("Z") for time in known)


async def test_index_reports_exact_times(sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar) -> None:
    """The time of a session is that of its newest turn, to the microsecond, with its zone."""
    for name in ("0.3.26", "1.3.0"):
        client = await open_sidecar(await sdk_database(name))
        times = {each["session_id"]: each["last_updated"] for each in await listed(client)}
        assert times["chat-a1"] == "2026-01-05T09:30:00.000001Z"
        assert times["chat-c3-中文-😀"] is None


@pytest.mark.parametrize("name", NAMES[:2])
async def test_parked_of_sdk_databases(
    name: str, kind: rig.Kind, sdk_database: rig.LoadSdkDatabase, open_sidecar: rig.OpenSidecar
) -> None:
    """Parked is the newest-created turn's state; an unprepared PostgreSQL can only go by last_updated."""
    client = await open_sidecar(await sdk_database(name))
    parked = [(each["session_id"], each["last_state"]) for each in await listed(client, parked="true")]
    spelled = "input-required" if name == "0.3.26" else "TASK_STATE_INPUT_REQUIRED"
    by_time = "auth-required" if name == "0.3.26" else "TASK_STATE_AUTH_REQUIRED"
    expected = [("chat-a1", spelled)] if kind == "sqlite" else [("chat-b2", by_time)]
    assert parked == expected


async def test_parked_survives_an_older_turn_saved_last(
    store: rig.Store, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """After `prepare` the creation order is known on both databases: an older turn that is saved last hides no wait."""
    await prepare(store)
    client = await open_sidecar(store)
    older = await store.turn("chat-a", "working")
    await store.turn("chat-a", "input-required")
    await store.turn("chat-a", "completed", task_id=older)
    answered = await store.turn("chat-b", "auth-required")
    await store.turn("chat-b", "completed")
    await store.turn("chat-b", "auth-required", task_id=answered)
    rows = await listed(client, parked="true")
    assert [(each["session_id"], each["last_state"], each["turn_count"]) for each in rows] == [
        ("chat-a", "TASK_STATE_INPUT_REQUIRED", 2)
    ]
    assert list(rows[0]) == ["session_id", "last_updated", "turn_count", "last_state"]


async def test_parked_false_is_the_whole_index(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """`parked=false` answers the same as no flag at all."""
    await store.turn("chat-a", "input-required")
    await store.turn("chat-b")
    assert await listed(sidecar, parked="false") == await listed(sidecar)


async def test_both_spellings_park(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A 0.x and a 1.x state wait alike, and are answered in their stored spelling."""
    await store.insert_raw(context_id="chat-old", status='{"state": "input-required"}')
    await store.turn("chat-new", "auth-required")
    rows = await listed(sidecar, parked="true")
    assert {each["session_id"]: each["last_state"] for each in rows} == {
        "chat-old": "input-required",
        "chat-new": "TASK_STATE_AUTH_REQUIRED",
    }


async def test_odd_states_do_not_park(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A status that only mentions a parked state, or has none, or one that nobody knows, is not parked."""
    await store.insert_raw(context_id="chat-a", status='{"state": "archived", "note": "input-required"}')
    await store.insert_raw(context_id="chat-b", status='{"note": "INPUT_REQUIRED"}')
    await store.insert_raw(context_id="chat-c", status='{"state": ["input-required"]}')
    await store.insert_raw(context_id="chat-d", status='"input-required"')
    await store.turn("chat-e", "")
    assert await listed(sidecar, parked="true") == []
    assert len(await listed(sidecar)) == 5


async def test_nul_in_a_status_hides_nobody(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A stored \\u0000 makes PostgreSQL refuse to take the JSON apart; the parked index does not ask it to."""
    await store.turn("chat-nul", "input-required", status_text="a\x00b")
    await store.turn("chat-b", "input-required")
    assert {each["session_id"] for each in await listed(sidecar, parked="true")} == {"chat-nul", "chat-b"}


async def test_index_pages_through_everything(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Following `Link` visits each session once, in order, through equal and unknown times."""
    for number in range(7):
        await store.turn(f"chat-same-{number}", at="2026-01-05T09:00:00Z")
    for number in range(4):
        await store.turn(f"chat-unknown-{number}", "submitted", at=None)
    for number in range(5):
        await store.turn(f"chat-{number}")
    whole = await listed(sidecar, limit=200)
    seen, path = [], f"{INDEX}?limit=3"
    while path:
        response = await sidecar.get(path)
        seen += response.json()["sessions"]
        path = response.links.get("next", {}).get("url", "")
    assert seen == whole
    assert len(seen) == 16


async def test_parked_pages_through_everything(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The parked index pages like the other, and its cursor keeps the flag."""
    for number in range(5):
        await store.turn(f"chat-{number}", "input-required")
    first = await sidecar.get(INDEX, params={"parked": "true", "limit": 3})
    second = await sidecar.get(first.links["next"]["url"])
    ids = [each["session_id"] for each in first.json()["sessions"] + second.json()["sessions"]]
    assert ids == [f"chat-{number}" for number in (4, 3, 2, 1, 0)]
    assert "next" not in second.links


async def test_index_reads_no_transcript(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """The statements of the index and the parked index name neither artifacts nor history."""
    from sidecar.app import create_app

    await store.turn("chat-a", "input-required")
    app = create_app(rig.config_for(store))
    statements = rig.spy(app)
    async with rig.client(app) as client:
        await listed(client)
        await listed(client, parked="true")
        await client.get(f"{INDEX}/chat-a")
    reading = [each for each in statements if "context_id" in each and not each.lstrip().startswith("CREATE")]
    assert len(reading) == 3
    assert not any("artifacts" in statement or "history" in statement for statement in reading)


async def test_prefix_is_literal(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """The prefix matches case-sensitively, without wildcards; an empty one lists every context."""
    for context_id in ("a_b-1", "axb-2", "A_B-3"):
        await store.turn(context_id)
    assert [each["session_id"] for each in await listed(await open_sidecar(store, session_prefix="a_b"))] == ["a_b-1"]
    assert len(await listed(await open_sidecar(store, session_prefix=""))) == 3


async def test_ids_that_no_path_can_carry_are_left_out(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Whatever the index lists can be read and retired, so it lists no id with a control character."""
    await store.turn("chat-ok")
    await store.turn("chat-new\nline")
    assert [each["session_id"] for each in await listed(sidecar)] == ["chat-ok"]


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_id_that_is_not_utf8_is_left_out(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """An undecodable id on SQLite fails no other session."""
    await store.turn("chat-ok")
    await store.insert_raw(context_id=b"chat-\xff\xfe")
    assert [each["session_id"] for each in await listed(sidecar)] == ["chat-ok"]


async def test_summary(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """One session with its newest state and the turn to reattach to; unknown sessions are 404."""
    await store.turn("chat-a")
    live = await store.turn("chat-a", "working", at="2026-01-05T09:30:00Z")
    response = await sidecar.get(f"{INDEX}/chat-a")
    assert response.json() == {
        "session_id": "chat-a",
        "last_updated": "2026-01-05T09:30:00Z",
        "turn_count": 2,
        "last_state": "TASK_STATE_WORKING",
        "live_task_id": live,
    }
    missing = await sidecar.get(f"{INDEX}/chat-nobody")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("states", "live"),
    [
        (["completed"], None),
        (["working", "working"], 0),
        (["working", "input-required", "submitted"], 1),
        (["input-required", "auth-required"], 1),
        (["working", "completed"], None),
        (["input-required", "failed", "working"], 2),
        (["working", "", "working"], 0),
    ],
)
async def test_live_task(
    states: list[str],
    live: int | None,
    store: rig.Store,
    open_sidecar: rig.OpenSidecar,
    prepare: rig.Prepare,
) -> None:
    """The newest parked turn that no finished one follows, else the oldest running one, else none."""
    await prepare(store)
    tasks = [await store.turn("chat-a", state) for state in states]
    response = await (await open_sidecar(store)).get(f"{INDEX}/chat-a")
    assert response.json()["live_task_id"] == (None if live is None else tasks[live])


async def test_summary_and_turns_open_any_context(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """The prefix filters lists and guards deletion; reading by id is not bound to it."""
    await store.turn("api-f6")
    assert await listed(sidecar) == []
    assert (await sidecar.get(f"{INDEX}/api-f6")).json()["turn_count"] == 1
    assert len((await sidecar.get(f"{INDEX}/api-f6/turns")).json()["turns"]) == 1
