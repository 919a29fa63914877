"""What is deployed: its settings and versions, the image, and the unit of systemd; each judged by a tool of its own."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from sidecar.config import SETTINGS
from tests import rig
from tests.postgres import free_port

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
IMAGE_USER = 65532
PATIENCE_SECONDS = 30.0


def found(program: str) -> str:
    """Where a program that no Python package brings stands; the test is skipped without it."""
    path: str | None = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if path is None:
        pytest.skip(f"{program} is not installed here")
    return path


def run(*command: str | Path, **options: Any) -> str:
    """The output of a command that succeeds."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **options)
    assert 0 == done.returncode, done.stdout + done.stderr
    output: str = done.stdout
    return output


def eventually(holds: Callable[[], bool]) -> None:
    """Waits until it does. Fails when that takes too long."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.05)


def is_open(port: int) -> bool:
    with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def test_every_setting_that_is_named_exists() -> None:
    """No file below deploy/ sets or explains a variable that the sidecar does not read."""
    known = {name for setting in SETTINGS for name in setting.names}
    texts = {path: path.read_text("utf-8") for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".png"}
    named = {(path.name, name) for path, text in texts.items() for name in re.findall(r"\bSIDECAR_[A-Z_]+\b", text)}
    assert {"compose.yaml", "deployment.yaml", "Dockerfile", "nginx.conf"} <= {file for file, _ in named}
    assert [] == sorted((file, name) for file, name in named if name not in known)


def stages() -> dict[str, list[tuple[str, str]]]:
    """The stages of the Dockerfile by name, each as its instructions with what they say."""
    text = (DEPLOY / "docker/Dockerfile").read_text("utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", "").splitlines()
    read: dict[str, list[tuple[str, str]]] = {}
    for instruction, _, said in (line.partition(" ") for line in lines if line):
        if instruction == "FROM":
            steps = read[said.partition(" AS ")[2]] = []
        elif read:
            steps.append((instruction, said.strip()))
    return read


def test_the_dockerfile_is_clean() -> None:
    """hadolint finds nothing, not even a matter of style."""
    assert "" == run(Path(sys.executable).with_name("hadolint"), "--no-color", DEPLOY / "docker/Dockerfile")


def test_the_image_ends_as_it_should() -> None:
    """The last stage runs the program itself, as no user of the host, and is asked by `health` whether it lives."""
    *_, (name, last) = stages().items()
    said = {instruction: text for instruction, text in last if instruction != "LABEL"}
    assert "sidecar" == name
    assert (f"{IMAGE_USER}:{IMAGE_USER}", "SIGTERM") == (said["USER"], said["STOPSIGNAL"])
    assert ('["a2a-sidecar"]', '["serve"]') == (said["ENTRYPOINT"], said["CMD"])
    assert said["HEALTHCHECK"].endswith('CMD ["a2a-sidecar", "health"]')
    assert "SIDECAR_HOST=0.0.0.0" in said["ENV"].split()


def test_versions_agree() -> None:
    """The image is labelled as the version that the project has, and stands on the Python of its pins."""
    version = project()["version"]
    dockerfile = (DEPLOY / "docker/Dockerfile").read_text("utf-8")
    assert f'image.version="{version}"' in dockerfile
    assert project()["description"] in dockerfile
    pythons = {
        re.findall(r"pip-compile with Python (\S+)", path.read_text("utf-8"))[0]
        for path in (DEPLOY / "requirements.txt", DEPLOY / "docker/build-requirements.txt")
    }
    assert {re.findall(r"^ARG BASE=python:([\d.]+)-slim", dockerfile, re.M)[0]} == pythons


def test_the_build_context_holds_what_is_copied_and_no_secret() -> None:
    """Each COPY finds its source, `.dockerignore` lets it through, and nothing but these."""
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    allowed = {ROOT / line[1:] for line in ignore if line.startswith("!")}
    copies = [text.split() for stage in stages().values() for name, text in stage if name == "COPY"]
    sources = {ROOT / source for first, *others, _ in copies if first[0] != "-" for source in (first, *others)}
    assert ignore.index("*") < ignore.index("!sidecar")
    assert all(source.exists() for source in sources)
    assert all(source in allowed or source.parent in allowed for source in sources)
    assert allowed == {DEPLOY / "docker" if each.parent == DEPLOY / "docker" else each for each in sources}


@pytest.fixture
def installed(tmp_path: Path, full: bool) -> Iterator[Path]:
    """A folder that stands for the image's root, after the steps of its build stage as they are written."""
    if not full:
        pytest.skip("it downloads every pin: --full")
    run(sys.executable, "-m", "venv", tmp_path / "python")
    environment = {**os.environ, "PATH": f"{tmp_path}/python/bin:{os.environ['PATH']}"}
    (tmp_path / "src").mkdir()
    for instruction, text in stages()["build"]:
        if instruction == "COPY":
            *sources, target = text.split()
            run("cp", "-r", *sources, tmp_path / "src" / target, cwd=ROOT)
        if instruction == "RUN":
            command = re.sub(r"(?<=[ =])(?=/opt/sidecar|/wheel)", str(tmp_path), text)
            run("sh", "-euc", command, cwd=tmp_path / "src", env=environment)
    shutil.rmtree(tmp_path / "src")
    run("chmod", "-R", "a-w", tmp_path / "opt")
    yield tmp_path
    run("chmod", "-R", "u+w", tmp_path / "opt")
    shutil.rmtree(tmp_path / "opt")


def test_the_image_serves_from_a_read_only_install(installed: Path) -> None:
    """Where it may write the store alone it answers `health`, reads, retires, and ends on SIGTERM."""
    # without capabilities, as in a container, not even root writes what is read-only
    confined = [found("setpriv"), "--bounding-set=-all"] if os.geteuid() == 0 else []
    sidecar = [*confined, str(installed / "opt/sidecar/bin/a2a-sidecar")]
    (installed / "data").mkdir()
    asyncio.run(_one_session(installed / "data/a2a-tasks.db"))
    port = free_port()
    environment = {"SIDECAR_HOST": "0.0.0.0", "SIDECAR_PORT": str(port), "SIDECAR_TOKEN": rig.TOKEN}
    options: dict[str, Any] = {"cwd": installed / "data", "env": {**environment, "HOME": "/nonexistent"}}
    files = sorted((installed / "opt").rglob("*"))
    with subprocess.Popen([*sidecar, "serve"], **options) as process:
        try:
            eventually(lambda: 0 == subprocess.run([*sidecar, "health"], **options, capture_output=True).returncode)
            session = f"http://127.0.0.1:{port}/api/chat/sessions/chat-a"
            with httpx.Client(headers={"Authorization": f"Bearer {rig.TOKEN}"}, verify=False) as client:
                assert 1 == len(client.get(f"{session}/turns").json()["turns"])
                assert 1 == client.delete(session).json()["turns_deleted"]
                assert [] == client.get(f"{session}/turns").json()["turns"]
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
    assert files == sorted((installed / "opt").rglob("*"))
    sources = {path for path in files if path.suffix == ".py" and "site-packages" in path.parts}
    compiled = {path.parent.parent / f"{path.name.partition('.')[0]}.py" for path in files if path.suffix == ".pyc"}
    assert set() == sources - compiled


async def _one_session(path: Path) -> None:
    async with rig.sqlite_store(path) as store:
        await store.tasks.initialize()
        await store.turn("chat-a")


@pytest.fixture(params=["postgres", "sqlite"])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit with or without its drop-in for SQLite, and the program where it really is."""
    for path in (DEPLOY / "systemd").rglob("*.*"):
        if path.is_file() and (request.param == "sqlite" or path.suffix == ".service"):
            target = tmp_path / path.relative_to(DEPLOY / "systemd")
            target.parent.mkdir(exist_ok=True)
            text = path.read_text("utf-8")
            target.write_text(text.replace("/opt/a2a-sidecar/bin", str(Path(sys.executable).parent)))
    return tmp_path / "a2a-sidecar.service"


def test_the_unit_is_valid_and_confined(unit: Path) -> None:
    """systemd accepts it without a remark, and rates its exposure below 1.5 of 10."""
    analyze = found("systemd-analyze")
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True)
    assert (0, "") == (done.returncode, done.stderr)
    run(analyze, "security", "--offline=true", "--threshold=15", "--no-pager", unit)


def test_the_units_credentials_are_settings() -> None:
    """Each credential has the name of a setting that may come from a file, as the sidecar looks for it."""
    text = (DEPLOY / "systemd/a2a-sidecar.service").read_text("utf-8")
    credentials = re.findall(r"^#?LoadCredential=(\w+):", text, re.M)
    assert ["token", "database_url"] == re.findall(r"^LoadCredential=(\w+):", text, re.M)
    assert set(credentials) == {setting.name for setting in SETTINGS if setting.has_file}
