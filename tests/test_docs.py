"""The README is true: its commands print what it shows, and it names every route, setting, code and command."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sidecar import errors, published
from sidecar.cli import main
from sidecar.config import SETTINGS
from tests.model_server import running_model, says

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def test_every_name_is_in_the_readme() -> None:
    """Routes, settings, error codes and commands: what exists is written down."""
    names = list(published.document()["paths"])
    names += [setting.env for setting in SETTINGS]
    names += [error.code for error in errors.codes()]
    names += [f"`{command}`" for command in main.commands]
    assert [name for name in names if name not in README] == []


def test_code_map_matches_the_tree() -> None:
    """Every module stands in the code map, and the map names nothing that is not there."""
    listed = set(re.findall(r"`((?:sidecar|tombstones)/[\w/]*(?:\.py)?)`", README.partition("## Code map")[2]))
    listed -= {"sidecar/", "tombstones/"}
    present = {
        f"{path.parent.name}/{path.name}"
        for package in ("sidecar", "tombstones")
        for path in (ROOT / package).glob("*.py")
        if path.name != "__init__.py"
    } | {f"sidecar/{path.parent.name}/" for path in (ROOT / "sidecar").glob("*/__init__.py")}
    assert listed == present


def test_settings_file_lists_every_setting() -> None:
    """deploy/sidecar.env holds each setting, commented out, with its default."""
    lines = (ROOT / "deploy/sidecar.env").read_text("utf-8").splitlines()
    given = dict(line.removeprefix("#").split("=", 1) for line in lines if line.startswith("#SIDECAR_"))
    assert set(given) == {name for setting in SETTINGS for name in setting.names}
    for setting in SETTINGS:
        if given[setting.env]:
            assert setting.parse(given[setting.env]) == setting.default


def test_make_targets_exist() -> None:
    """The commands of the first block are targets of the Makefile."""
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("make ")]
    assert commands == ["make demo", "make test"]
    assert all(command.removeprefix("make ") in targets for command in commands)


def test_commands_of_the_second_block_exist() -> None:
    """The commands to run beside an agent are commands, and their flags are flags."""
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("a2a-sidecar ")]
    for line in lines:
        name, *flags = line.split()[1:]
        known = {option for parameter in main.commands[name].params for option in parameter.opts}
        assert {flag for flag in flags if flag.startswith("--")} <= known


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.split()[3])
def test_python_blocks_run(block: str, tmp_path: Path) -> None:
    """The Python of the README is valid as it stands."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    """Relative links of the documents name files of the tree."""
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README + CONTRIBUTING)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.fixture
async def model() -> AsyncIterator[dict[str, str]]:
    """A model that cites the first passage, as the environment names it."""
    async with running_model() as server:
        server.will(says("You asked to have the hotel booked [1]."))
        yield {"SIDECAR_MODEL_URL": server.url, "SIDECAR_MODEL": "small"}


class Demo(NamedTuple):
    """A running demo: its folder, the sidecar's address, and where its commands are."""

    folder: Path
    address: str
    commands: Path


@pytest.fixture(params=["here", "in a fresh clone"])
def demo(request: pytest.FixtureRequest, full: bool, tmp_path: Path, model: dict[str, str]) -> Iterator[Demo]:
    """The demo as `make demo` starts it, on a free port; with --full `make demo` itself, as on a new machine."""
    if request.param == "here":
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "sidecar", "demo", "--folder", str(tmp_path), "--port", str(port)]
        commands, folder = Path(sys.executable).parent, ROOT
    elif not full:
        pytest.skip("it installs everything: --full")
    else:
        subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path], check=True)
        command, commands, folder = ["make", "demo"], tmp_path / ".venv/bin", tmp_path
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **model},
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            address = ""
            for line in process.stdout:
                if line.startswith("sidecar"):
                    address = line.split()[1]
                if line.startswith("Ctrl-C"):
                    break
            yield Demo(tmp_path, address, commands)
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(15)


async def test_console_blocks_show_what_happens(demo: Demo) -> None:
    """Each command, run in order against the demo, prints what the README shows; `…` stands for any text."""
    script, expected = ["set -e"], []
    for block in blocks("console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                script += [line.removeprefix("$ ").replace("http://127.0.0.1:8765", demo.address), "echo; echo ----"]
                expected.append("")
            else:
                expected[-1] += line + "\n"
    environment = {**os.environ, "PATH": f"{demo.commands}:{os.environ['PATH']}"}
    started = time.monotonic()
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", "\n".join(script)],
        cwd=demo.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("----\n")[:-1]
    assert len(printed) == len(expected)
    for output, shown in zip(printed, expected, strict=True):
        pattern = ".*".join(re.escape(piece) for piece in shown.strip().split("…"))
        assert re.fullmatch(pattern, output.strip(), re.S), f"{output}\nis not\n{shown}"
    print(f"README commands: {time.monotonic() - started:.1f} s")
