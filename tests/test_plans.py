"""How the store is read: by which plan, with which answer where a walk finds little; it measures and asserts no time.

The plans are those of the readers' own statements. The answers are compared with a model in Python that knows the rows
and none of the SQL.
"""

import asyncio
import hashlib
import json
import random
import re
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from sidecar import index, sessions, turns
from sidecar.app import create_app
from sidecar.db import Database
from sidecar.index import Scope
from sidecar.reading import Reading, _compile
from tests import rig
from tombstones.table import Shape

INDEX = "/api/chat/sessions"
START = datetime(2026, 2, 1)
LIMIT = 23
ROWS = 400
# In a small table the walk is short, too: each number of rows is passed by some case.
SHORT_WALKS = (20, 200)
FULL_ROWS = 30_000

PARKED = ("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED", "input-required", "auth-required")
RUNNING = ("TASK_STATE_WORKING", "TASK_STATE_SUBMITTED", "working")
FINISHED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "completed")


@dataclass(frozen=True)
class Row:
    """One stored turn. `timestamp` stands in the status; `created` is kept by a prepared PostgreSQL alone."""

    context_id: str
    last_updated: datetime | None
    state: str = FINISHED[0]
    timestamp: datetime | None = None
    owner: str = ""
    created: datetime | None = None
    task_id: str = ""


@dataclass(frozen=True)
class Case:
    """Rows in the order of their creation, what is retired or cleared of them, and whose rows are asked for."""

    rows: Sequence[Row]
    retired: frozenset[str] = frozenset()
    cleared: frozenset[str] = frozenset()
    owners: frozenset[str] | None = None


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def turn(context_id: str, second: float, state: str = FINISHED[0], owner: str = "") -> Row:
    """A turn that was created and ended at that second."""
    return Row(context_id, at(second), state, at(second), owner, at(second))


def numbered(rows: Sequence[Row], seed: str) -> list[Row]:
    """The rows with ids of no order."""
    dice = random.Random(seed)
    return [replace(row, task_id=f"{dice.getrandbits(96):024x}") for row in rows]


# The worst cases, each of about `size` rows


def ordinary(size: int) -> Case:
    """Sessions of ten turns, twenty at a time; a few wait."""
    dice = random.Random(1)
    states = (*FINISHED * 20, *PARKED, *RUNNING)
    rows = [turn(f"chat-{n // 200 * 20 + n % 20:06}", n, dice.choice(states)) for n in range(size)]
    return Case(numbered(rows, "ordinary"))


def long_session(size: int) -> Case:
    """One session has nearly all turns, and all of the newest."""
    few = [turn(f"chat-{n % 30}", n, PARKED[n % 4] if n % 7 == 0 else FINISHED[0]) for n in range(60)]
    long = [turn("chat-long", 1000 + n, (*RUNNING, *FINISHED, *PARKED)[n % 10]) for n in range(size)]
    return Case(numbered([*few, *long, turn("chat-long", 1000 + size, PARKED[0])], "long"))


def many_sessions(size: int) -> Case:
    """Each turn has a session of its own, but for a few that have two."""
    rows = [turn(f"chat-{n * 7919 % size:06}", n, PARKED[n % 4] if n % 9 == 0 else FINISHED[0]) for n in range(size)]
    return Case(numbered([*rows, *(turn(f"chat-{n:06}", size + n) for n in range(0, size, 50))], "many"))


def tombstones(size: int) -> Case:
    """Nearly all newest rows are late ones of retired sessions or cleared tasks."""
    old = [turn(f"chat-{n % 40}", n, PARKED[n % 4] if n % 11 == 0 else FINISHED[0]) for n in range(120)]
    late = [turn(f"chat-retired-{n // 2}", 1000 + n, PARKED[0]) for n in range(size)]
    again = [turn(f"chat-{n % 60}", 2000 + n, PARKED[n % 4]) for n in range(size // 2)]
    rows = numbered([*old, *late, *again], "tombstones")
    retired = {f"chat-retired-{n}" for n in range(size)} | {f"chat-{n}" for n in range(0, 40, 7)}
    cleared = {row.task_id for row in rows[len(old) + len(late) :]} | {f"nothing-{n}" for n in range(size)}
    cleared |= {row.task_id for row in rows[: len(old) : 5]}
    return Case(rows, frozenset(retired), frozenset(cleared))


def newer_outside(size: int) -> Case:
    """All newest rows belong to contexts that are no sessions."""
    few = [turn(f"chat-{n % 50}", n, PARKED[n % 4] if n % 3 == 0 else FINISHED[0]) for n in range(100)]
    outside = [turn(f"{('agent', 'Chat', 'chat')[n % 3]}{n // 10}", 1000 + n, PARKED[0]) for n in range(size)]
    return Case(numbered([*few, *outside], "outside"))


def rare_owner(size: int) -> Case:
    """An owner of few old sessions, some of which others have written to since."""
    mine = [turn(f"chat-{n % 40}", n, PARKED[n % 4] if n % 3 else FINISHED[0], "rare") for n in range(80)]
    theirs = [turn(f"chat-{n % 97}", 1000 + n, PARKED[n % 4], f"owner-{n % 5}") for n in range(size)]
    rows = [*mine, *theirs, turn("chat-3", 9000, PARKED[0], "rare")]
    return Case(numbered(rows, "rare"), owners=frozenset({"rare"}))


def two_owners(size: int) -> Case:
    """The rows of two owners, which no index holds side by side."""
    case = rare_owner(size)
    return replace(case, owners=frozenset({"rare", "owner-3", "nobody"}))


def few_sessions(size: int) -> Case:
    """Fewer sessions than a page has, with all the rows."""
    return Case(numbered([turn(f"chat-{n % 5}", n, (*FINISHED, *PARKED)[n % 7]) for n in range(size)], "few"))


def undated(size: int) -> Case:
    """No row has a last_updated; the time stands in the status, or nowhere."""
    rows = [turn(f"chat-{n % 90}", n * 7919 % 1000, (*FINISHED, *PARKED)[n % 7]) for n in range(size)]
    rows = [replace(row, timestamp=None if n % 13 == 0 else row.last_updated) for n, row in enumerate(rows)]
    rows = [replace(row, last_updated=None, created=at(n) if n % 5 else None) for n, row in enumerate(rows)]
    return Case(numbered([*rows, Row("chat-never", None), Row("chat-parked", None, PARKED[0])], "undated"))


def ties(size: int) -> Case:
    """Whole blocks of rows have the same time, also where a walk and a page end."""
    rows = [turn(f"chat-{n * 7919 % 150:04}", n // 50, (*FINISHED, *PARKED)[n % 7]) for n in range(size)]
    return Case(numbered(rows, "ties"))


def one_time(size: int) -> Case:
    """All rows have the same time."""
    rows = [turn(f"chat-{n * 7919 % 150:04}", 0, (*FINISHED, *PARKED)[n % 7]) for n in range(size)]
    return Case(numbered([replace(row, created=at(n)) for n, row in enumerate(rows)], "one"))


def anything(size: int) -> Case:
    """Everything at once, at random: rows older than `prepare`, unknown times, owners, tombstones, other contexts."""
    dice = random.Random(size)
    rows = []
    for number in range(size):
        time = dice.choice([None, at(dice.randrange(size // 4)), at(number), at(number)])
        rows.append(
            Row(
                context_id=dice.choice(["chat-", "chat-é", "chat-Z", "Chat-", "x-"]) + str(dice.randrange(60)),
                last_updated=time,
                state=dice.choice((*FINISHED, *PARKED, *RUNNING, "", "archived")),
                timestamp=time or dice.choice([None, at(dice.randrange(size))]),
                owner=dice.choice(["", "a", "b"]),
                created=at(number) if number > size // 3 else None,
            )
        )
    found = numbered(rows, "anything")
    retired = {row.context_id for row in dice.sample(found, 8)}
    cleared = {row.task_id for row in dice.sample(found, size // 5)}
    return Case(found, frozenset(retired), frozenset(cleared), frozenset({"a", ""}))


CASES: tuple[Callable[[int], Case], ...] = (
    ordinary,
    long_session,
    many_sessions,
    tombstones,
    newer_outside,
    rare_owner,
    two_owners,
    few_sessions,
    undated,
    ties,
    one_time,
    anything,
)


# The model


class Known(NamedTuple):
    """A visible row as the model sees it: its effective time, and what sorts by creation."""

    row: Row
    time: datetime | None
    place: Any


@dataclass
class Model:
    """What each route has to answer, computed from the rows."""

    case: Case
    kind: rig.Kind
    prepared: bool
    prefix: str = "chat-"
    visible: dict[str, list[Known]] = field(init=False)

    def __post_init__(self) -> None:
        self.visible = {}
        for number, row in enumerate(self.case.rows):
            hidden = row.context_id in self.case.retired or row.task_id in self.case.cleared
            if not hidden and (self.case.owners is None or row.owner in self.case.owners):
                self.visible.setdefault(row.context_id, []).append(self._known(row, number))
        for known in self.visible.values():
            known.sort(key=lambda each: each.place)

    def _known(self, row: Row, number: int) -> Known:
        created = row.created if self.kind == "postgres" and self.prepared else None
        time = row.last_updated or row.timestamp or created
        place = number if self.kind == "sqlite" else (created or datetime.min, time or datetime.max, row.task_id)
        return Known(row, time, place)

    def index(self) -> list[dict[str, Any]]:
        listed = [each for each in self.visible if each.startswith(self.prefix)]
        rows = [self._session(each) for each in listed]
        rows.sort(key=lambda row: row["session_id"])
        rows.sort(key=lambda row: row["last_updated"] or "", reverse=True)
        return rows

    def parked(self) -> list[dict[str, Any]]:
        rows = [{**row, "last_state": self.visible[row["session_id"]][-1].row.state} for row in self.index()]
        return [row for row in rows if row["last_state"] in PARKED]

    def summary(self, session_id: str) -> dict[str, Any]:
        states = [known.row.state for known in self.visible[session_id]]
        return {**self._session(session_id), "last_state": states[-1], "live_task_id": self._live(session_id)}

    def _session(self, session_id: str) -> dict[str, Any]:
        known = self.visible[session_id]
        newest = max((each.time for each in known if each.time), default=None)
        text = newest.isoformat(timespec="seconds") + "Z" if newest else None
        return {"session_id": session_id, "last_updated": text, "turn_count": len(known)}

    def _live(self, session_id: str) -> str | None:
        rows = [each.row for each in self.visible[session_id]]
        ends = [place for place, row in enumerate(rows) if row.state in FINISHED]
        unfinished = rows[ends[-1] + 1 :] if ends else rows
        parked = [row.task_id for row in unfinished if row.state in PARKED]
        running = [row.task_id for row in unfinished if row.state in RUNNING]
        return parked[-1] if parked else running[0] if running else None


# The store


TEMPLATE = "template"
COPIED = "kind, artifacts, history, protocol_version, metadata"
LOAD = {
    "sqlite": f"""
        INSERT INTO tasks (id, context_id, owner, last_updated, status, {COPIED})
        SELECT value ->> 'id', value ->> 'context_id', value ->> 'owner', value ->> 'last_updated', value ->> 'status',
               {COPIED}
        FROM json_each(:rows), (SELECT {COPIED} FROM tasks WHERE id = '{TEMPLATE}') ORDER BY key""",
    "postgres": f"""
        INSERT INTO tasks (id, context_id, owner, last_updated, status, {{created}} {COPIED})
        SELECT r.id, r.context_id, r.owner, r.last_updated, CAST(r.status AS json), {{created_value}} {COPIED}
        FROM json_to_recordset(CAST(:rows AS json)) AS r(
            number int, id text, context_id text, owner text, last_updated timestamp, status text, created timestamptz
        ), (SELECT {COPIED} FROM tasks WHERE id = '{TEMPLATE}') AS t ORDER BY r.number""",
}


async def load(store: rig.Store, rows: Sequence[Row], *, prepared: bool) -> None:
    """Copies of one row that the SDK saved, with these rows' own values."""
    await store.turn("chat-template", task_id=TEMPLATE)
    sql = LOAD[store.kind]
    if store.kind == "postgres":
        names = ("sidecar_created_at,", "r.created,") if prepared else ("", "")
        sql = sql.format(created=names[0], created_value=names[1])
    await store.raw(sql, rows=json.dumps([_values(number, row) for number, row in enumerate(rows)]))
    await store.delete(TEMPLATE)
    if store.kind == "postgres":
        await store.raw("ANALYZE tasks")


def _values(number: int, row: Row) -> dict[str, Any]:
    status = {"state": row.state} if row.state else {}
    if row.timestamp is not None:
        status["timestamp"] = row.timestamp.isoformat() + "Z"
    return {
        "number": number,
        "id": row.task_id,
        "context_id": row.context_id,
        "owner": row.owner,
        "last_updated": row.last_updated and row.last_updated.isoformat(" ", "microseconds"),
        "status": json.dumps(status),
        "created": row.created and row.created.replace(tzinfo=UTC).isoformat(),
    }


async def hide(store: rig.Store, case: Case) -> None:
    """Tombstones, as many retirements and clearings leave them, with the rows that came late."""
    for table, names, ids in (
        ("tasks_session_tombstones", "session_id, retired_at", case.retired),
        ("tasks_task_tombstones", "task_id, cleared_at", case.cleared),
    ):
        each = "json_each(:ids)" if store.kind == "sqlite" else "json_array_elements_text(CAST(:ids AS json))"
        sql = f"INSERT INTO {table} ({names}) SELECT value, '2026-03-01 09:00:00+00' FROM {each}"
        if store.kind == "postgres":
            sql = sql.replace("'2026-03-01 09:00:00+00'", "now()")
        await store.raw(sql, ids=json.dumps(sorted(ids)))


@dataclass
class Loaded:
    """A store that holds a case, a client that sees it as the case's owners, and what it has to see."""

    client: httpx.AsyncClient
    model: Model


OpenCase = Callable[[Case], Any]


@pytest.fixture(params=["plain", "prepared"])
async def open_case(
    store: rig.Store, open_sidecar: rig.OpenSidecar, request: pytest.FixtureRequest, tmp_path: Path
) -> OpenCase:
    """`await open_case(case)`, on a store as the SDK leaves it and on a prepared one."""

    async def start(case: Case) -> Loaded:
        prepared = request.param == "prepared"
        if prepared:
            await rig.prepare(store)
        client = await open_sidecar(store, tokens_file=tokens_file(tmp_path, case.owners))
        await client.get(INDEX)  # creates the tables of the tombstones
        client.headers["Authorization"] = f"Bearer {OWNERS_TOKEN}"
        await load(store, case.rows, prepared=prepared)
        await hide(store, case)
        return Loaded(client, Model(case, store.kind, prepared))

    return start


OWNERS_TOKEN = "token-of-some-owners-0123456789"


def tokens_file(folder: Path, owners: frozenset[str] | None) -> Path:
    """A tokens file whose one token sees the rows of these owners."""
    digest = hashlib.sha256(OWNERS_TOKEN.encode()).hexdigest()
    names = json.dumps(sorted(owners) if owners is not None else ["*"])
    path = folder / "tokens.toml"
    path.write_text(f'[[token]]\nname = "some"\nsha256 = "{digest}"\nscopes = ["read"]\nowners = {names}\n')
    path.chmod(0o600)
    return path


async def pages(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    """The sessions of all pages."""
    found: list[dict[str, Any]] = []
    response = await client.get(INDEX, params=params)
    while True:
        assert response.status_code == 200, response.text
        assert len(response.json()["sessions"]) <= params["limit"]
        found += response.json()["sessions"]
        if "next" not in response.links:
            return found
        assert response.json()["sessions"], "a page that leads on is never empty"
        response = await client.get(response.links["next"]["url"])


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
async def test_worst_cases(
    make: Callable[[int], Case], full: bool, open_case: OpenCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands in the table, all pages of both indexes, and the summaries, are what its rows say."""
    if not full:
        monkeypatch.setattr(index, "WALKS", SHORT_WALKS)
        monkeypatch.setattr(sessions, "SUMMARY_TURNS", 3)
    loaded = await open_case(make(FULL_ROWS if full else ROWS))
    client, model, limit = loaded.client, loaded.model, 200 if full else LIMIT
    assert model.index() == await pages(client, limit=limit)
    assert model.parked() == await pages(client, limit=limit, parked="true")
    for session_id in random.Random(1).sample(sorted(model.visible), min(15, len(model.visible))):
        response = await client.get(f"{INDEX}/{session_id}")
        assert model.summary(session_id) == response.json()


async def test_page_sizes_around_a_walk(open_case: OpenCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages as large as a walk, or one more or less, still follow each other without a gap."""
    monkeypatch.setattr(index, "WALKS", (20, 21))
    loaded = await open_case(many_sessions(60))
    for limit in (1, 2, 19, 20, 21, 200):
        assert loaded.model.index() == await pages(loaded.client, limit=limit)


async def test_unprepared_store_is_read_in_one_pass(store: rig.Store) -> None:
    """Without its indexes nothing is walked; as soon as they stand, a page takes no pass over the table."""
    await load(store, ordinary(ROWS).rows, prepared=False)
    app = create_app(rig.config_for(store))
    statements = rig.spy(app)
    async with rig.client(app) as client:
        for walked in (False, True):
            await client.get(INDEX)
            await asyncio.sleep(0)  # asyncpg tells of a query a moment later
            reads = [each for each in statements if "context_id" in each and "GROUP BY" in each]
            assert [walked] == ["walked" in each for each in reads]
            statements.clear()
            await rig.prepare(store)
            app.state.database._shape = None  # a shape is believed for a second


async def test_parked_with_many_abandoned_turns(
    store: rig.Store, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare
) -> None:
    """A session whose every turn was left waiting does not take the parked sessions away from everybody."""
    await prepare(store)
    rows = [turn("chat-long", n, PARKED[0]) for n in range(6000)]
    await load(store, numbered([*rows, turn("chat-other", 1, PARKED[0])], "abandoned"), prepared=True)
    client = await open_sidecar(store, statement_timeout=0.5)
    response = await client.get(INDEX, params={"parked": "true"})
    assert 200 == response.status_code, response.text
    counts = {each["session_id"]: each["turn_count"] for each in response.json()["sessions"]}
    assert {"chat-long": 6000, "chat-other": 1} == counts


async def test_parked_in_one_pass(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """Without `prepare` many parked sessions are found in one pass, too."""
    rows = [turn(f"chat-{n:05}", n, PARKED[0]) for n in range(10_000)]
    await load(store, numbered(rows, "parked"), prepared=False)
    client = await open_sidecar(store, statement_timeout=0.5)
    response = await client.get(INDEX, params={"parked": "true"})
    assert 200 == response.status_code, response.text
    assert [f"chat-{n:05}" for n in range(9999, 9949, -1)] == [s["session_id"] for s in response.json()["sessions"]]


# The plans


class Plan(NamedTuple):
    """How a statement reads the task table, how the rows of the walk are found, what is sought in indexes; its SQL."""

    accesses: frozenset[str]
    walk: tuple[str, ...]
    sought: tuple[str, ...]
    sql: str


WHOLE = "whole table"
ACTIVITY, SESSION, PARKED_INDEX = (f"tasks_sidecar_{name}" for name in ("activity", "session", "parked"))
BY_OWNER = "idx_tasks_owner_last_updated"
# a row that is known already
BY_KEY = {"rowid", "ix_tasks_id", "tasks_pkey"}


async def plan(conn: Reading, shape: Shape, statement: Any, values: dict[str, Any]) -> Plan:
    """The plan of a reader's statement for these values."""
    compiled = _compile(statement, conn._dialect)
    given = {**compiled.values, **values}
    arguments = [given[name] for name in compiled.names]
    if shape.sqlite:
        return _sqlite_plan(compiled.sql, await conn._fetch(f"EXPLAIN QUERY PLAN {compiled.sql}", arguments))
    ((found,),) = await conn._fetch(f"EXPLAIN (FORMAT JSON) {compiled.sql}", arguments)
    nodes = list(_nodes(found[0]["Plan"]))
    accesses = {
        each.get("Index Name", WHOLE)
        for each in nodes
        if each.get("Relation Name") == "tasks" and "Bitmap" not in each["Node Type"]
    }
    accesses |= {each["Index Name"] for each in nodes if each["Node Type"] == "Bitmap Index Scan"}
    walked = [each for each in nodes if each.get("Subplan Name") == "CTE walked"]
    steps = tuple(step["Node Type"] for each in walked for step in _nodes(each))
    # PostgreSQL calls a table tasks_1 where it stands in a statement again
    named = [each for each in nodes if re.fullmatch(r"tasks(_\d+)?", each.get("Alias", ""))]
    sought = tuple(each["Index Cond"] for each in named if "Index Cond" in each)
    return Plan(frozenset(accesses), steps, sought, compiled.sql)


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _sqlite_plan(sql: str, rows: Any) -> Plan:
    accesses: set[str] = set()
    for _, _, _, detail in rows:
        if found := re.match(r"(?:SCAN|SEARCH) (?:tasks|turn|next_turn)\b(?: USING (?:COVERING )?(.*))?", detail):
            used = re.match(r"INDEX (\w+)|INTEGER PRIMARY KEY", found[1] or "")
            accesses.add(WHOLE if used is None else used[1] or "rowid")
    (walk,) = [row[0] for row in rows if row[3] == "MATERIALIZE walked"] or [None]
    steps = tuple(row[3] for row in rows if walk is not None and row[1] == walk)
    sought = tuple(row[3] for row in rows if re.match(r"(?:SCAN|SEARCH) tasks\b", row[3]))
    return Plan(frozenset(accesses), steps, sought, sql)


def is_walk(found: Plan, kind: rig.Kind) -> bool:
    """The newest rows are read along an index and left where enough are found: nothing is sorted."""
    if kind == "sqlite":
        (step,) = found.walk
        return step.startswith(f"SEARCH tasks USING INDEX {ACTIVITY} ")
    return found.walk == ("Limit", "Index Scan")


@pytest.fixture
async def large_store(store: rig.Store, prepare: rig.Prepare) -> rig.Store:
    """A prepared store of some thousand rows, of which the planner has statistics."""
    await prepare(store)
    rows = [replace(row, owner=f"owner-{n % 40}") for n, row in enumerate(ordinary(4000).rows)]
    await load(store, rows, prepared=True)
    return store


Explain = Callable[..., Any]


@pytest.fixture
async def explain(large_store: rig.Store) -> AsyncIterator[Explain]:
    """`await explain(build)`: the plan of what `build(shape)` makes, on the large store."""
    text = large_store.kind == "sqlite"
    values = {
        "rows": 51,
        "steps": 100,  # as small beside this table as a walk is beside a large one
        "session_id": "chat-000010",
        "activity": at(1200).isoformat(" ", "microseconds") if text else at(1200),
        "created": at(1200).replace(tzinfo=UTC),
        "sequence": 1200,
        "task_id": "0",
        "cap": 2**23,
        "room": 2**25,
    }
    database = Database(rig.config_for(large_store))
    yield lambda build: database.read(lambda conn, shape: plan(conn, shape, build(shape), values))
    await database.close()


async def test_plan_of_the_index(kind: rig.Kind, explain: Explain) -> None:
    """The newest rows come along the activity index, nothing is sorted before them; counts from the session index.

    One owner's newest rows come from the SDK's own index, so that the rows of the others are not looked at. Undated
    rows, too, are sought by their last_updated, and not among all.
    """
    everybody, one = Scope("chat-", None), Scope("chat-", frozenset({"owner-1"}))
    two = Scope("chat-", frozenset({"owner-1", "owner-2"}))
    for continues in (False, True):
        for scope in (everybody, two):
            found = await explain(lambda shape, asked=(scope, continues): index._walk(shape, *asked))
            assert is_walk(found, kind), found
            assert {ACTIVITY, SESSION} <= found.accesses <= {ACTIVITY, SESSION, BY_OWNER}
            assert_seeks_times(found)
            assert_reads_no_transcript(found)
        found = await explain(lambda shape, asked=(one, continues): index._walk(shape, *asked))
        assert {BY_OWNER, SESSION} == found.accesses - {ACTIVITY}
        assert_seeks_times(found)
        assert_reads_no_transcript(found)


async def test_plan_of_one_pass_of_parked_sessions_and_of_a_summary(explain: Explain) -> None:
    """One pass; candidates from the partial index, their sessions' turns from the session index; that index alone."""
    found = await explain(lambda shape: index._one_pass(shape, Scope("chat-", None), False))
    assert 1 == len(re.findall(r"FROM (?:public\.)?tasks\b", found.sql))
    assert_reads_no_transcript(found)
    found = await explain(lambda shape: sessions._parked_statement(shape, Scope("chat-", None)))
    assert {PARKED_INDEX, SESSION} == found.accesses
    assert_reads_no_transcript(found)
    found = await explain(lambda shape: sessions._newest_turns(shape, Scope("", None)))
    assert {SESSION} == found.accesses
    assert_reads_no_transcript(found)


async def test_plan_of_turns(explain: Explain) -> None:
    """A session's keys come from the session index; its cells are fetched by key, and not at all for a validator."""
    orders: tuple[turns.Order, ...] = ("activity", "created")
    for asked in ((order, None, continues) for order in orders for continues in (False, True)):
        keys = await explain(lambda shape, asked=asked: turns._newest_keys(shape, *asked))
        # whether a row of the session lacks its time, either index tells
        assert {SESSION} <= keys.accesses <= {SESSION, ACTIVITY}
        assert_reads_no_transcript(keys)
        page = await explain(lambda shape, asked=asked: turns._newest(shape, *asked))
        assert {SESSION} <= page.accesses <= {SESSION, ACTIVITY} | BY_KEY
        assert "artifacts" in page.sql


def assert_seeks_times(found: Plan) -> None:
    """The walk, and each of the three ranges of undated rows: no index is read without a bound on the time."""
    assert found.sought
    assert all("last_updated" in each.partition("(")[2] for each in found.sought), found.sought


def assert_reads_no_transcript(found: Plan) -> None:
    """The statement names neither artifacts nor history."""
    assert "artifacts" not in found.sql
    assert "history" not in found.sql


async def test_growth(store: rig.Store, open_sidecar: rig.OpenSidecar, prepare: rig.Prepare, full: bool) -> None:
    """Prints how long each route takes at 2,000 and at 40,000 rows; the answers have the same size."""
    await prepare(store)
    client = await open_sidecar(store)
    rows = ordinary(400_000 if full else 40_000).rows
    for part in (rows[:2000], rows[2000:]):
        quiet = [
            replace(row, state=FINISHED[0]) if row.state in PARKED and part is not rows[:2000] else row for row in part
        ]
        await load(store, quiet, prepared=True)
        newest = (await client.get(INDEX)).json()["sessions"][0]["session_id"]
        paths = (INDEX, f"{INDEX}?parked=true", f"{INDEX}/{newest}", f"{INDEX}/{newest}/turns")
        times = {path: await median(client, path) for path in paths}
        shown = "  ".join(f"{path.removeprefix(INDEX) or '/'} {1000 * each:.1f} ms" for path, each in times.items())
        print(f"\n{store.kind} {part[-1].last_updated}: {shown}")


async def median(client: httpx.AsyncClient, path: str) -> float:
    """Seconds that a plain request takes."""
    took = []
    for _ in range(5):
        started = time.perf_counter()
        assert 200 == (await client.get(path)).status_code
        took.append(time.perf_counter() - started)
    return statistics.median(took)
