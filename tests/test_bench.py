"""The bench works: a quick run over tiny stores measures everything; its figures are not judged here."""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import report
from tests.bench.worker import ROOT


def test_a_quick_run(tmp_path: Path, full: bool) -> None:
    """It keeps a page on which each goal has a finite value."""
    if not full:
        pytest.skip("it starts every peer: --full")
    output = tmp_path / "results.md"
    options = ["--quick", "--rows", "200", "400", "--database", "sqlite", "--output", str(output)]
    done = subprocess.run([sys.executable, "-m", "tests.bench", *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = output.read_text("utf-8").partition("## Measured")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    expected = [
        goal.what.format(small=200, large=400)
        for goal in report.GOALS
        if goal is not report.TURNS_DATASETTE or importlib.util.find_spec("datasette")
    ]
    assert expected == [what for what, _, _ in rows]
    values = [float(value.strip("* ×%MB").replace(",", "")) for _, _, value in rows]
    assert all(map(math.isfinite, values)), rows
