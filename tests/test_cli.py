"""The command line on both databases: what it prints, what it changes, how it fails; the processes are tested apart."""

import asyncio
import importlib.metadata
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from packaging.requirements import Requirement

from sidecar import published, show
from sidecar.cli import main
from sidecar.config import SETTINGS
from tests import rig
from tests.postgres import Server
from tests.test_grants import address, new_role

INDEX = "/api/chat/sessions"
SEARCH = "/agent_api/v1/workspaces/default/conversation_search"
DISTRIBUTION = "a2a-session-sidecar"
PREPARE = "a2a-sidecar prepare"
on_postgres = pytest.mark.parametrize("kind", ["postgres"])
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])


def run(*arguments: str, answer: str = "", **environ: str) -> Result:
    """One command whose output is piped; a fault that nobody foresaw is raised."""
    done = CliRunner(env=environ).invoke(main, arguments, input=answer)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


async def cli(store: rig.Store, *arguments: str, answer: str = "", **environ: str) -> Result:
    """One command on the store, in a thread: it runs an event loop of its own."""
    return await asyncio.to_thread(run, *arguments, answer=answer, SIDECAR_DATABASE_URL=store.url, **environ)


def on_terminal(*arguments: str, **environ: str) -> str:
    """What a real process of the command shows on a terminal of 200 columns, without its colours."""
    terminal, piped = pty.openpty()
    command = [sys.executable, "-m", "sidecar", *arguments]
    variables = {**os.environ, "COLUMNS": "200", "TERM": "xterm", **environ}
    process = subprocess.Popen(command, stdout=piped, stderr=piped, stdin=subprocess.DEVNULL, env=variables)
    os.close(piped)
    shown = b"".join(iter(lambda: _read(terminal), b""))
    os.close(terminal)
    assert process.wait() == 0, shown
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    return re.sub(r" *\r?\n", "\n", plain)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that nobody holds the other end any more
        return b""


async def some_sessions(store: rig.Store) -> None:
    """Three sessions, one of them parked, and a context that is none."""
    await store.turn("chat-a", text="First line.\nSecond line.")
    await store.turn("chat-a", state="input-required", text=None)
    await store.turn("chat-研究", text="第一行")
    await store.turn("chat-c")
    await store.turn("other")


# --- reading


async def test_sessions_is_the_index(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Piped, `sessions` prints the body of the index route, for each of its flags."""
    await some_sessions(store)
    for flags, query in (([], ""), (["--parked"], "?parked=true"), (["--limit", "1"], "?limit=1")):
        done = await cli(store, "sessions", *flags)
        assert (0, "") == (done.exit_code, done.stderr)
        assert (await sidecar.get(INDEX + query)).text + "\n" == done.stdout


async def test_turns_is_the_turns_route(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Piped, `turns` prints the stored JSON exactly as the route answers it."""
    await some_sessions(store)
    for flags, query in (([], ""), (["--limit", "1"], "?limit=1"), (["--order", "created"], "?order=created")):
        done = await cli(store, "turns", "chat-a", *flags)
        assert (await sidecar.get(f"{INDEX}/chat-a/turns{query}")).text + "\n" == done.stdout
    assert (await cli(store, "turns", "chat-unknown")).stdout == '{"turns":[]}\n'


@on_sqlite
async def test_tables_on_a_terminal(store: rig.Store) -> None:
    """On a terminal there are tables: ids whole, times to the second, one line of each text."""
    await some_sessions(store)
    settings = {"SIDECAR_DATABASE_URL": store.url}
    index = on_terminal("sessions", **settings)
    assert re.search(r"^session +last updated +turns", index)
    assert re.search(r"^chat-a +2026-01-05T09:01:00Z +2$", index, re.M), index
    assert re.search(r"^chat-研究 +2026-01-05T09:02:00Z +1$", index, re.M), index
    assert re.search(r"^chat-a .* TASK_STATE_INPUT_REQUIRED$", on_terminal("sessions", "--parked", **settings), re.M)
    shown = on_terminal("turns", "chat-a", "--limit", "1", **settings)
    assert "There are older ones; see --limit." in shown
    shown = on_terminal("turns", "chat-a", **settings)
    assert re.search(r"^2026-01-05T09:00:00Z +TASK_STATE_COMPLETED +First line.$", shown, re.M), shown
    assert "Second" not in shown


def test_plain_tables() -> None:
    """Without `rich` columns stand below each other too, Chinese characters count two, and nothing wipes a screen."""
    rows = [("chat-研究", 3), ("chat-a", None), ("\x1b[2J", 1)]
    expected = ["session    turns", "chat-研究  3", "chat-a", "\ufffd[2J       1"]
    assert expected == show.plain(("session", "turns"), rows).splitlines()


# --- searching


async def test_search_is_the_search_route(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Piped, `search` prints what the route finds, for each of its flags."""
    await some_sessions(store)
    for flags, query in (([], ""), (["--limit", "1"], "&limit=1"), (["--all"], "&include_auxiliary=true")):
        done = await cli(store, "search", "first", "line", *flags)
        assert (0, "") == (done.exit_code, done.stderr)
        found = (await sidecar.get(f"{SEARCH}?query=first+line{query}")).json()
        assert found["matches"] == json.loads(done.stdout)["matches"]
    assert (await cli(store, "search", " ")).stderr.startswith("error: `query` is missing or blank")


async def test_reindex_counts(store: rig.Store) -> None:
    """Piped, `reindex` prints how much of the store can be searched."""
    await some_sessions(store)
    done = await cli(store, "reindex")
    assert (0, "") == (done.exit_code, done.stderr)
    assert {"indexed", "pending"} <= json.loads(done.stdout).keys()


@on_sqlite
async def test_searching_on_a_terminal(store: rig.Store) -> None:
    """On a terminal there is a bar while the index is made, and a table of what was found."""
    await some_sessions(store)
    settings = {"SIDECAR_DATABASE_URL": store.url}
    assert re.search(r"100%.*^indexed: ", on_terminal("reindex", **settings), re.M | re.S)
    assert re.search(r"^session +position +field +excerpt", on_terminal("search", "first", **settings))


@pytest.mark.parametrize("command", ["search x", "reindex"])
def test_search_without_its_extra(command: str) -> None:
    """Without the packages of the search its commands say what to install."""
    code = f"import sys; sys.modules['rjieba'] = None; from sidecar.cli import main; main({command.split()})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 1 == done.returncode
    assert "error: This needs the extra: pip install 'a2a-session-sidecar[search]'.\n" == done.stderr


# --- retiring


async def test_retire_goes_on_after_a_failure(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Each id is answered on a line of its own, as by the route; one that fails is named and makes the exit code 1."""
    await some_sessions(store)
    done = await cli(store, "retire", "--yes", "chat-a", "other", "chat-\n", "chat-c")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert {
        "deleted": True,
        "session_id": "chat-a",
        "retired": True,
        "turns_deleted": 2,
        "active_turns": 1,
    } == answers[0]
    assert ["not_a_session", "session_id_invalid"] == [each["code"] for each in answers[1:3]]
    assert 1 == done.exit_code
    assert "error: other: Only ids that start with 'chat-' can be retired or cleared. (not_a_session)" in done.stderr
    assert "retired: 2, failed: 2, turns deleted: 3, active among them: 1" == done.stderr.splitlines()[-1]
    assert ["chat-研究"] == [each["session_id"] for each in (await sidecar.get(INDEX)).json()["sessions"]]
    audit = await store.raw("SELECT token, action, session_id, request_id FROM tasks_retirements ORDER BY id")
    assert [("cli", "retire", "chat-a"), ("cli", "retire", "chat-c")] == [tuple(row)[:3] for row in audit]
    assert all(row.request_id.startswith("cli-") for row in audit)


async def test_clear_asks_first(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Without a yes nothing is changed; afterwards the id is usable again."""
    await some_sessions(store)
    refused = await cli(store, "clear", "chat-a", answer="n\n")
    assert (1, "") == (refused.exit_code, refused.stdout)
    assert "Clear chat-a?" in refused.stderr
    assert 2 == len((await sidecar.get(f"{INDEX}/chat-a/turns")).json()["turns"])
    done = await cli(store, "clear", "chat-a", answer="y\n")
    assert (0, 2) == (done.exit_code, json.loads(done.stdout)["turns_deleted"])
    await store.turn("chat-a")
    assert 1 == len((await sidecar.get(f"{INDEX}/chat-a/turns")).json()["turns"])


@on_sqlite
async def test_ids_from_stdin(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """Ids are read from stdin, one a line, where `-` stands among the ids; without any nothing is done."""
    await some_sessions(store)
    done = await cli(store, "retire", "--yes", "chat-c", "-", "chat-c", answer="chat-a\r\n\nchat-研究")
    answered = [json.loads(line)["session_id"] for line in done.stdout.splitlines()]
    assert (0, ["chat-c", "chat-a", "chat-研究", "chat-c"]) == (done.exit_code, answered)
    assert [] == (await sidecar.get(INDEX)).json()["sessions"]
    nothing = await cli(store, "retire", "--yes", "-")
    assert (0, "", "retired: 0") == (nothing.exit_code, nothing.stdout, nothing.stderr.partition(",")[0])


async def test_refusals_of_a_deletion(store: rig.Store) -> None:
    """An active turn may be a reason to refuse, and a retired session has no history to clear."""
    await some_sessions(store)
    active = await cli(store, "retire", "--yes", "--if-active", "refuse", "chat-a")
    assert (1, "session_active") == (active.exit_code, json.loads(active.stdout)["code"])
    await cli(store, "retire", "--yes", "chat-a")
    retired = await cli(store, "clear", "--yes", "chat-a")
    assert (1, "already_retired") == (retired.exit_code, json.loads(retired.stdout)["code"])


@on_sqlite
async def test_progress_over_many(store: rig.Store) -> None:
    """On a terminal many ids advance a bar, and the sum of them stands below it."""
    shown = on_terminal("retire", "--yes", *(f"chat-{n}" for n in range(20)), SIDECAR_DATABASE_URL=store.url)
    assert "100%" in shown
    assert "retired: 20, failed: 0, turns deleted: 0" in shown


async def test_tombstones_newest_first(store: rig.Store) -> None:
    """The retired ids with their times, at most `--limit`, and how much was retired and cleared in all."""
    empty = await cli(store, "tombstones")
    assert {"retired_sessions": 0, "cleared_tasks": 0, "tombstones": []} == json.loads(empty.stdout)
    await some_sessions(store)
    await cli(store, "clear", "--yes", "chat-a")
    for session_id in ("chat-1", "chat-2", "chat-3"):
        await cli(store, "retire", "--yes", session_id)
    found = json.loads((await cli(store, "tombstones", "--limit", "2")).stdout)
    assert (3, 2) == (found["retired_sessions"], found["cleared_tasks"])
    assert ["chat-3", "chat-2"] == [each["session_id"] for each in found["tombstones"]]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]+Z", each["retired_at"]) for each in found["tombstones"])


async def test_sweep_deletes_late_rows(store: rig.Store) -> None:
    """What a producer saved after the retirement is counted, deleted and told of."""
    await cli(store, "retire", "--yes", "chat-a")
    await store.turn("chat-a")
    assert '{"turns_swept": 1}\n' == (await cli(store, "sweep")).stdout
    assert 0 == (await store.raw("SELECT count(*) FROM tasks"))[0][0]


# --- check and prepare


async def checked(store: rig.Store, *arguments: str, **environ: str) -> dict[str, dict[str, str]]:
    """The findings of `check` by name; its exit code tells whether one of them is a failure."""
    done = await cli(store, "check", *arguments, **environ)
    checks = json.loads(done.stdout)["checks"]
    assert any(each["result"] == "fail" for each in checks) == bool(done.exit_code), done.output
    return {each.pop("name"): each for each in checks}


async def test_check_before_and_after_prepare(store: rig.Store) -> None:
    """An unprepared store gets warnings that name the one command; after it nothing is left to do."""
    await some_sessions(store)
    before = await checked(store)
    warned = {"side tables", "indexes"} | ({"creation order"} if store.kind == "postgres" else set())
    assert warned == {name for name, each in before.items() if each["result"] == "warn"}
    assert {PREPARE} == {before[name]["fix"] for name in warned}
    assert "3, turns: 4, turns in other contexts: 1" == before["sessions"]["detail"]
    assert "2026-01-05T09:00:00Z" == before["oldest turn"]["detail"]
    assert before == await checked(store), "it created something"
    assert 0 == (await cli(store, "prepare")).exit_code
    after = await checked(store)
    assert {"ok"} == {each["result"] for each in after.values()}
    assert {""} == {each["fix"] for each in after.values()}
    assert ("3 present", "possible") == (after["indexes"]["detail"], after["retirement"]["detail"])


async def test_check_counts_tombstones_and_late_rows(store: rig.Store) -> None:
    """Retired and cleared turns are counted apart, and rows saved too late want a sweep."""
    await some_sessions(store)
    await cli(store, "retire", "--yes", "chat-a")
    await cli(store, "clear", "--yes", "chat-c")
    await store.turn("chat-a")
    found = await checked(store)
    assert "sessions retired: 1, tasks cleared: 1" == found["tombstones"]["detail"]
    assert "1, turns: 1, turns in other contexts: 1" == found["sessions"]["detail"]
    assert ("warn", "a2a-sidecar sweep") == (found["late rows"]["result"], found["late rows"]["fix"])
    await cli(store, "sweep")
    assert "ok" == (await checked(store))["late rows"]["result"]


@pytest.mark.parametrize("name", ["0.3.26", "1.3.0"])
async def test_check_of_sdk_databases(name: str, sdk_database: rig.LoadSdkDatabase) -> None:
    """It tells the shapes of the table apart, and finds the oldest turn in either."""
    found = await checked(await sdk_database(name))
    assert f"tasks, as a2a-sdk {name[0]}.x makes it" == found["task table"]["detail"].partition(":")[0]
    assert re.fullmatch(r"2026-01-0.T.*Z", found["oldest turn"]["detail"])


async def test_check_of_a_prefix_that_fits_nothing(store: rig.Store) -> None:
    """Turns that are all in other contexts are a sign of a wrong prefix."""
    await some_sessions(store)
    found = (await checked(store, "--session-prefix", "Chat-"))["sessions"]
    assert "of 5 turns none is in a context that starts with 'Chat-'" == found["detail"]
    assert "warn" == found["result"]


async def test_check_of_a_missing_table(bare_store: rig.Store) -> None:
    """A store that the agent has not created is a failure, and says so in one line."""
    found = await checked(bare_store)
    assert ["task table"] == list(found)
    assert "Start the agent" in found["task table"]["detail"]


async def test_check_of_a_foreign_table(bare_store: rig.Store) -> None:
    """A table of that name with other columns is a failure that names the first thing missing."""
    await bare_store.raw("CREATE TABLE tasks (id TEXT, status TEXT)")
    assert "has no column context_id" in (await checked(bare_store))["task table"]["detail"]


@on_postgres
async def test_check_of_an_invalid_index(store: rig.Store, prepare: rig.Prepare) -> None:
    """An index that a failed build left behind is reported, and `prepare` builds it again."""
    await prepare(store)
    invalid = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'tasks_sidecar_parked'::regclass"
    await store.raw(invalid)
    found = (await checked(store))["indexes"]
    assert ("warn", "invalid: tasks_sidecar_parked", PREPARE) == (found["result"], found["detail"], found["fix"])
    await cli(store, "prepare")
    assert "ok" == (await checked(store))["indexes"]["result"]


@on_postgres
async def test_check_of_a_role_that_only_reads(store: rig.Store, cluster: Server, prepare: rig.Prepare) -> None:
    """What the role lacks is named: for a retirement as a warning, for reading as a failure."""
    await prepare(store)
    async with new_role(store, cluster) as role:
        reader = {"SIDECAR_DATABASE_URL": address(store, cluster, role)}
        await store.raw(f"GRANT USAGE ON SCHEMA public TO {role}")
        unread = json.loads((await asyncio.to_thread(run, "check", **reader)).stdout)["checks"]
        assert [("privileges", "fail")] == [(each["name"], each["result"]) for each in unread]
        for table in ("tasks", "tasks_session_tombstones", "tasks_task_tombstones"):
            await store.raw(f"GRANT SELECT ON {table} TO {role}")
        done = await asyncio.to_thread(run, "check", **reader)
        (found,) = (each for each in json.loads(done.stdout)["checks"] if each["name"] == "retirement")
        assert (0, "warn", "psql -f deploy/sql/grants.sql") == (done.exit_code, found["result"], found["fix"])
        assert "DELETE" in found["detail"]


async def test_an_address_that_postgres_refuses(cluster: Server) -> None:
    """A database that is not there is no passing trouble: the address is to be corrected."""
    done = await asyncio.to_thread(run, "sessions", SIDECAR_DATABASE_URL=cluster.url("nowhere"))
    told = "The database refuses connections (SQLSTATE 3D000). Correct SIDECAR_DATABASE_URL."
    assert (1, f"error: {told} (database_unavailable)\n") == (done.exit_code, done.stderr)


@on_sqlite
async def test_check_on_a_terminal(store: rig.Store) -> None:
    """A person sees a table of findings."""
    shown = on_terminal("check", SIDECAR_DATABASE_URL=store.url)
    assert re.search(r"^check +result +detail +fix", shown)
    assert re.search(r"^indexes +warn +missing: .*  a2a-sidecar prepare$", shown, re.M), shown


async def test_prepare_prints_sql(store: rig.Store) -> None:
    """`--dry-run` prints the statements that a run runs, `--undo` takes them back; a second run has nothing to do."""
    dry = await cli(store, "prepare", "--dry-run")
    assert re.match(r"CREATE TABLE IF NOT EXISTS [\w.]*tasks_session_tombstones .*;\n", dry.stdout), dry.stdout
    assert "warn" == (await checked(store))["indexes"]["result"]
    real = await cli(store, "prepare")
    assert (0, dry.stdout) == (real.exit_code, real.stdout)
    assert ("", "statements run: 0\n") == ((again := await cli(store, "prepare")).stdout, again.stderr)
    undone = await cli(store, "prepare", "--undo")
    assert "DROP INDEX" in undone.stdout
    assert "warn" == (await checked(store))["indexes"]["result"]


# --- settings and faults


def test_config_shows_what_is_effective() -> None:
    """Flags are stronger than the environment; secrets are masked."""
    url = "postgresql://reader:geheim@db/agent"
    done = run("config", "--port", "9000", SIDECAR_PORT="9001", SIDECAR_DATABASE_URL=url, SIDECAR_TOKEN=rig.TOKEN)
    found = json.loads(done.stdout)
    assert ("9000", "***") == (found["SIDECAR_PORT"], found["SIDECAR_TOKEN"])
    assert "postgresql://reader:***@db/agent" == found["SIDECAR_DATABASE_URL"]
    assert not re.search(f"geheim|{rig.TOKEN}", done.output)
    assert "SIDECAR_PORT=9000\n" in on_terminal("config", "--port", "9000")
    assert "9000" == json.loads(on_terminal("config", "--port", "9000", "--json"))["SIDECAR_PORT"]


def test_every_setting_is_a_flag_of_serve() -> None:
    """Flags carry the settings' names; a secret has none but the one that names a file."""
    flags = {flag for option in main.commands["serve"].params for flag in option.opts}
    expected = {f"--{each.name.replace('_', '-')}" + ("-file" if each.secret else "") for each in SETTINGS}
    assert expected == flags


@on_sqlite
async def test_database_url_from_a_file(store: rig.Store, tmp_path: Path) -> None:
    """The database's address may stand in a file, and nowhere on the command line."""
    file = tmp_path / "url"
    file.write_text(store.url, "utf-8")
    file.chmod(0o600)
    assert 0 == run("config", "--database-url-file", str(file)).exit_code
    assert 0 == (await asyncio.to_thread(run, "sessions", "--database-url-file", str(file))).exit_code
    assert 2 == run("sessions", "--database-url", store.url).exit_code


def test_all_faults_of_the_settings_at_once() -> None:
    """A configuration that cannot be used ends every command with 2 and one line a fault."""
    faulty = {"SIDECAR_PORT": "x", "SIDECAR_POOL_SIZE": "0", "SIDECAR_DATABASE_URL": "mysql://db/agent"}
    for command in (["serve"], ["sessions"], ["check"], ["config"], ["health"], ["retire", "--yes", "chat-a"]):
        done = run(*command, **faulty)
        assert (2, "") == (done.exit_code, done.stdout)
        lines = done.stderr.splitlines()
        named = [line.split(":")[1].strip() for line in lines if line.startswith("error: ")]
        assert sorted(faulty) == sorted(named), done.stderr


def test_an_unknown_setting_is_a_warning() -> None:
    """A variable that no setting has is named on stderr, with the nearest name, and hinders nothing."""
    done = run("config", SIDECAR_PROT="1")
    assert 0 == done.exit_code
    assert "warning: SIDECAR_PROT: no such setting; did you mean SIDECAR_PORT?\n" == done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "sessions --limit 0",
        "sessions --limit 201",
        "completion tcsh",
        "turns",
        "retire",
        "turns chat-a --order x",
        "demo --folder none",
        "search",
        "vacuum",
        "--x",
    ],
)
def test_usage(arguments: str) -> None:
    """A command line that makes no sense ends with 2."""
    assert 2 == run(*arguments.split()).exit_code


@pytest.mark.parametrize(
    "command", ["sessions", "turns chat-a", "tombstones", "sweep", "prepare", "search x", "reindex"]
)
def test_a_fault_is_one_line(command: str, tmp_path: Path) -> None:
    """A fault with a known answer is one line with its code, exit code 1, and no traceback."""
    done = run(*command.split(), SIDECAR_DATABASE_URL=f"sqlite:///{tmp_path}/none.db")
    assert (1, "") == (done.exit_code, done.stdout)
    detail = f"There is no database file {tmp_path}/none.db. Start the agent, or correct SIDECAR_DATABASE_URL."
    assert f"error: {detail} (task_store_missing)\n" == done.stderr


def test_openapi_is_the_published_document() -> None:
    """`openapi` prints the description that the route serves."""
    assert published.document() == json.loads(run("openapi").stdout)


# --- the package


def test_help_is_quick() -> None:
    """Neither the help nor a refused command line waits for the imports of other commands."""
    slow = {"sqlalchemy", "starlette", "uvicorn", "rich", "asyncio", "msgspec", "http.client", "ssl"}
    code = f"import sys, sidecar.cli; print({slow} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "set()\n" == done.stdout, done.stderr


def test_demo_without_its_extra() -> None:
    """Without the A2A SDK the demo says what to install."""
    code = "import sys; sys.modules['a2a'] = None; from sidecar.cli import main; main(['demo'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 1 == done.returncode
    assert "error: the demo needs the A2A SDK: pip install 'a2a-session-sidecar[demo]'\n" == done.stderr


def test_version_and_module_entry() -> None:
    """`python -m sidecar` is the same command, and tells its version."""
    done = subprocess.run([sys.executable, "-m", "sidecar", "--version"], capture_output=True, text=True)
    assert f"a2a-sidecar, version {importlib.metadata.version(DISTRIBUTION)}\n" == done.stdout


def test_base_install_is_small() -> None:
    """The base install brings at most 25 packages, itself included."""
    needed: set[str] = set()
    waiting: list[tuple[str, frozenset[str]]] = [(DISTRIBUTION, frozenset())]
    while waiting:
        name, extras = waiting.pop()
        needed.add(name)
        waiting += [each for each in _requirements(name, extras) if each[0] not in needed]
    assert len(needed) <= 25, sorted(needed)


def _requirements(name: str, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """What an installed distribution needs here, with the extras that it asks for."""
    listed = map(Requirement, importlib.metadata.requires(name) or [])
    environments: list[dict[str, Any]] = [{"extra": extra} for extra in ("", *extras)]
    return [
        (re.sub(r"[-_.]+", "-", each.name).lower(), frozenset(each.extras))
        for each in listed
        if each.marker is None or any(each.marker.evaluate(environment) for environment in environments)
    ]
