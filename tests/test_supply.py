"""What is shipped: pins that install by their hashes and suffice, and a wheel that is built the same twice."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from build import ProjectBuilder
from build.env import DefaultIsolatedEnv
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PINS = ROOT / "deploy/requirements.txt"
SOURCES = ("sidecar", "tombstones", "pyproject.toml", "README.md", "LICENSE")


def pins() -> dict[str, str]:
    """The pinned version of each distribution."""
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+) \\$", PINS.read_text("utf-8"), re.M))


def test_every_pin_has_hashes_and_no_source() -> None:
    """Each requirement is one exact version with SHA-256 hashes; no line says where to get it."""
    requirements = re.split(r"\n(?=[a-z])", re.sub(r"^ *#.*\n", "", PINS.read_text("utf-8"), flags=re.M).strip())
    assert len(pins()) == len(requirements) <= 50
    pinned = re.compile(r"[a-z0-9.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+")
    assert [] == [each for each in requirements if not pinned.fullmatch(each)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel as two people build it: from folders, times and file modes of their own."""
    built = []
    with DefaultIsolatedEnv() as environment:
        environment.install(ProjectBuilder(ROOT).build_system_requires)
        for mode, moment in ((0o644, 2_000_000_000), (0o600, 1_000_000_000)):
            tree = tmp_path_factory.mktemp(f"tree-{moment}", numbered=False)
            for name in SOURCES:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
                copy(ROOT / name, tree / name)
            for path in tree.rglob("*"):
                if path.is_file():
                    path.chmod(mode)
                os.utime(path, (moment, moment))
            built.append(Path(ProjectBuilder.from_isolated_env(environment, tree).build("wheel", tree / "dist")))
    return built


def test_two_wheels_are_equal(wheels: list[Path]) -> None:
    """The same sources give the same wheel, byte for byte."""
    first, second = wheels
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_pins_install_by_their_hashes_and_suffice(wheels: list[Path], tmp_path: Path, full: bool) -> None:
    """A fresh environment takes every pin by its hash, and the wheel runs in it with nothing else installed."""
    if not full:
        pytest.skip("it downloads every pin: --full")
    venv.create(tmp_path, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "bin/python")]
    subprocess.run([*pip, "install", "--quiet", "--require-hashes", "-r", str(PINS)], check=True)
    listed = subprocess.run([*pip, "list", "--format", "json"], check=True, capture_output=True, text=True)
    assert pins() == {canonicalize_name(each["name"]): each["version"] for each in json.loads(listed.stdout)}
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheels[0])], check=True)
    subprocess.run([*pip, "check"], check=True)
    environment = {"SIDECAR_TOKEN": "a-token-of-sixteen-bytes", "SIDECAR_DATABASE_URL": "sqlite:///none.db"}
    create = (
        "import httptools, uvloop; from sidecar.app import create_app; from sidecar.config import load; import os; "
    )
    create += "create_app(load(os.environ))"
    subprocess.run([tmp_path / "bin/python", "-W", "error", "-c", create], check=True, cwd=tmp_path, env=environment)
    subprocess.run([tmp_path / "bin/a2a-sidecar", "openapi"], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)


def test_the_bill_of_materials(full: bool) -> None:
    """`make sbom` lists every pin with its hashes, below build/, which is never committed."""
    if not full:
        pytest.skip("it installs a tool: --full")
    subprocess.run(["make", "sbom"], check=True, cwd=ROOT)
    bill = json.loads((ROOT / "build/sbom.json").read_text("utf-8"))
    assert "CycloneDX" == bill["bomFormat"]
    assert pins() == {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    assert all(each["externalReferences"][0]["hashes"] for each in bill["components"])
    assert 0 == subprocess.run(["git", "check-ignore", "--quiet", "build/sbom.json"], cwd=ROOT).returncode
