"""The source itself: linted, typed, layered, and no read of the task table without the tombstone clause."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("sidecar", "tombstones")

# Lower never imports higher; modules of one level may, as long as there is no cycle (mypy and Python would not mind).
LEVELS = {
    0: (
        "tombstones.ddl",
        "tombstones.record_tables",
        "tombstones.search_tables",
        "tombstones.state",
        "sidecar.errors",
        "sidecar.dsn",
        "sidecar.config",
        "sidecar.console",
        "sidecar.observe",
        "sidecar.opening",
        "sidecar.sentinel",
        "sidecar.search",
        "sidecar.search.characters",
        "sidecar.search.cuts",
        "sidecar.search.extras",
        "sidecar.answer",
        "sidecar.answer.passage",
    ),
    1: (
        "tombstones.table",
        "sidecar.bodies",
        "sidecar.wire",
        "sidecar.openapi",
        "sidecar.search.budget",
        "sidecar.search.hosts",
        "sidecar.search.markup",
        "sidecar.answer.prompt",
    ),
    2: (
        "tombstones.retire",
        "tombstones.prepare",
        "tombstones.forget",
        "sidecar.docs",
        "sidecar.reading",
        "sidecar.outgoing",
        "sidecar.search.entries",
        "sidecar.search.scanner",
        "sidecar.answer.parts",
        "sidecar.answer.usage",
    ),
    3: (
        "sidecar.db",
        "sidecar.params",
        "sidecar.auth",
        "sidecar.search.execution",
        "sidecar.search.words",
        "sidecar.answer.memory",
        "sidecar.answer.model",
        "sidecar.answer.queries",
        "sidecar.answer.sse",
    ),
    4: (
        "sidecar.edge",
        "sidecar.offered",
        "sidecar.records",
        "sidecar.turns",
        "sidecar.sweeper",
        "sidecar.search.excerpt",
        "sidecar.search.queries",
        "sidecar.search.recall_queries",
        "sidecar.answer.batch",
        "sidecar.answer.chat_queries",
        "sidecar.answer.completions",
    ),
    5: (
        "sidecar.exchange",
        "sidecar.index",
        "sidecar.sessions",
        "sidecar.doctor",
        "sidecar.published",
        "sidecar.search.description",
        "sidecar.search.index",
        "sidecar.search.recall_description",
        "sidecar.search.survey",
        "sidecar.answer.chat_description",
        "sidecar.answer.description",
    ),
    6: (
        "sidecar.routes",
        "sidecar.search.audit",
        "sidecar.search.envelopes",
        "sidecar.search.evidence",
        "sidecar.search.history",
        "sidecar.search.hits",
        "sidecar.search.keyword",
        "sidecar.search.matching",
        "sidecar.search.neighbours",
        "sidecar.search.places",
        "sidecar.search.ranked",
        "sidecar.search.recall",
        "sidecar.search.refresh",
        "sidecar.search.service",
    ),
    7: (
        "sidecar.operations",
        "sidecar.page",
        "sidecar.search.routes",
        "sidecar.search.tools",
        "sidecar.answer.chat",
        "sidecar.answer.chat_routes",
        "sidecar.answer.retrieval",
    ),
    8: ("sidecar.tools", "sidecar.app", "sidecar.answer.routes", "sidecar.answer.tools"),
}
TOP = 9  # the command line and the demo
LEVEL = {module: level for level, modules in LEVELS.items() for module in modules}


def modules() -> dict[str, Path]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(path: Path) -> set[str]:
    """Our own modules that a file imports when it is imported."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & set(modules()) - set(PACKAGES)


@pytest.mark.parametrize(
    "command", [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]], ids=" ".join
)
def test_linters(command: list[str]) -> None:
    """The tree is clean for ruff and for mypy's strict mode."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_go_one_way() -> None:
    """A module imports only what stands below it, or beside it."""
    wrong = [
        f"{name} imports {other}"
        for name, path in modules().items()
        for other in imports(path)
        if LEVEL.get(other, TOP) > LEVEL.get(name, TOP)
    ]
    assert wrong == []


def test_imports_have_no_cycle() -> None:
    """No module reaches itself through what it imports."""
    graph = {name: imports(path) - {name} for name, path in modules().items()}
    reached = {name: set(direct) for name, direct in graph.items()}
    for _ in graph:
        reached = {name: direct.union(*(reached[other] for other in direct)) for name, direct in graph.items()}
    assert [name for name in graph if name in reached[name]] == []


def test_tombstones_know_no_http() -> None:
    """`tombstones` may be used by a producer: it imports nothing of the sidecar, and no web framework."""
    for name, path in modules().items():
        if name.startswith("tombstones"):
            assert not re.search(r"^\s*(from|import) (sidecar|starlette|uvicorn)", path.read_text("utf-8"), re.M), name


def test_modules_open_with_their_job() -> None:
    """Each module's docstring says in its first sentence what it is for."""
    silent = [name for name, path in modules().items() if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert silent == []


def test_every_read_leaves_out_what_is_retired() -> None:
    """A function that selects from the task table carries the tombstone clause, itself or through `visible`.

    Those that look at tombstoned or physical rows on purpose are named here.
    """
    on_purpose = {
        "alive",
        "late_rows",
        "look",
        "_take",
        "_known",
        "_was_seen",
        "_hide",
        "_delete_turns",
        "physical_rows",
        "register",
        "_horizon",
        "_may_have_changed",
    }
    bare = []
    for name, path in modules().items():
        source = path.read_text("utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in on_purpose:
                text = ast.get_source_segment(source, node) or ""
                reads = re.search(r"select\(", text) and re.search(r"tasks\.c\.|key_columns\(", text)
                if reads and not re.search(r"alive\(|visible\(|page\.c\.", text):
                    bare.append(f"{name}.{node.name}")
    assert bare == []


def test_no_foreign_address_stands_in_the_tree() -> None:
    """Neither a package registry nor a folder of the machine it was written on."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
    names = "|".join(("py" + "pi.org", "python" + "hosted", "registry.np" + "mjs", "deb.deb" + "ian"))
    folders = "|".join(("wo" + "rk", "ro" + "ot"))
    found = [
        name
        for name in listed
        if name and (ROOT / name).suffix in {".py", ".md", ".txt", ".toml", ".sql", ".env", ""}
        if re.search(rf"{names}|(?<![\w./-])/({folders})/", (ROOT / name).read_text("utf-8", "replace"))
    ]
    assert found == []
