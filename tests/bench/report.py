"""The figures of a run as the table of goals and the page that keeps it; it measures nothing."""

import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "a2a-session-sidecar",
    "a2a-sdk",
    "datasette",
    "starlette",
    "uvicorn",
    "uvloop",
    "httptools",
    "SQLAlchemy",
    "aiosqlite",
    "asyncpg",
    "msgspec",
)


@dataclass(frozen=True)
class Goal:
    """One row of the table: a quantity, its unit, and between which bounds it should lie."""

    what: str
    unit: str = " ×"
    at_least: float = -math.inf
    at_most: float = math.inf

    @property
    def bound(self) -> str:
        """The bound as text; a row without one is shown for comparison."""
        if math.isfinite(self.at_least):
            return f"≥ {self.at_least:g}{self.unit}"
        return f"≤ {self.at_most:g}{self.unit}" if math.isfinite(self.at_most) else "–"

    def shown(self, value: float | None) -> str:
        """A value with its unit; one that misses its bound in bold."""
        if value is None:
            return "–"
        text = f"{_digits(value)}{self.unit}"
        return text if self.at_least <= value <= self.at_most else f"**{text}**"


TURNS_SDK = Goal("turns against SDK ListTasks", at_least=40)
TURNS_DECODING = Goal("turns against decode-and-re-encode", at_least=8)
TURNS_DATASETTE = Goal("turns against Datasette")
TURNS_LIMIT = Goal("turns against the limit", "", at_least=0.6)
INDEX_FLAT = Goal("index, time at {large} rows to {small} rows", at_most=2)
INDEX_PREPARED = Goal("index at {large} rows, prepared against one pass", at_least=50)
PARKED_FLAT = Goal("parked, time at {large} rows to {small} rows", at_most=2)
NOT_MODIFIED = Goal("unchanged session, time of 304 to 200", " %", at_most=10)
PRODUCER = Goal("producer's p99 save time, polled sidecar to polled static body", at_most=1.2)
FAULTS = Goal("saves that failed while the sidecar was polled", "", at_most=0)
MEMORY = Goal("peak memory over idle, 16 concurrent answers of 8 MB", " MB", at_most=256)
GOALS = (
    TURNS_SDK,
    TURNS_DECODING,
    TURNS_DATASETTE,
    TURNS_LIMIT,
    INDEX_FLAT,
    INDEX_PREPARED,
    PARKED_FLAT,
    NOT_MODIFIED,
    PRODUCER,
    FAULTS,
    MEMORY,
)


@dataclass
class Findings:
    """What was found on one database: the value of each goal, and the measurements behind them with their units."""

    goals: dict[Goal, float] = field(default_factory=dict)
    measured: dict[str, str] = field(default_factory=dict)

    def rate(self, name: str, seconds: float) -> None:
        """Note a time a request as requests a second."""
        self.measured[name] = f"{_digits(1 / seconds)} /s"

    def time(self, name: str, seconds: float) -> None:
        """Note a time in milliseconds."""
        self.measured[name] = f"{_digits(seconds * 1000)} ms"


def page(found: Mapping[str, Findings], rows: tuple[int, int], command: str, busy: float, core: float) -> str:
    """The page of a run, its ratios first, in Markdown.

    busy: the load average when it began. core: the highest share of a core that the load took.
    """
    sizes = {"small": f"{rows[0]:,}", "large": f"{rows[1]:,}"}
    goals = [
        [goal.what.format(**sizes), goal.bound, *(goal.shown(each.goals.get(goal)) for each in found.values())]
        for goal in GOALS
        if any(goal in each.goals for each in found.values())
    ]
    names = dict.fromkeys(name for each in found.values() for name in each.measured)
    measured = [[name, *(each.measured.get(name, "–") for each in found.values())] for name in names]
    lines = [
        "# The last bench",
        "",
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. A goal that was missed is bold.",
        "",
        *table_of(["what", "goal", *found], goals),
        "",
        "## Measured",
        "",
        *table_of(["what", *found], measured),
        "",
        "## How",
        "",
        HOW.strip().format(**sizes, core=f"{core:.0%}"),
        "",
        "## Where",
        "",
        f"- {os.cpu_count()} cores, {_processor()}; {platform.system()} {platform.machine()}; "
        f"Python {platform.python_version()}; load average at the start {busy:.1f}",
        f"- {', '.join(_versions(PACKAGES))}",
    ]
    return "\n".join(lines) + "\n"


HOW = """
- Each server is a process of its own; all have the same uvicorn settings and work on the same rows. The load is one
  more process; it took {core} of a core at most. Variants take turns in short rounds; a figure is the median of its
  rounds.
- The ordinary rows have about 1 KB and ten turns a session; they are copies of what the SDK saved. Both databases lie
  in memory where the machine allows it, so that no disk is measured. SQLite has the SDK's journal mode (`delete`);
  PostgreSQL is analyzed after the load and after `prepare`.
- Turns: 50 turns, 4 connections, in the store of {small} rows; requests a second. The peers use the index that
  `prepare` made. The limit is 1 / (fetch + scan + send): the driver's own fetch of the three cells on an open
  connection, msgspec's scan of the same text, a static body of the answer's size over HTTP with 4 connections.
- Index, parked, 304: one connection; a figure is the median time of a request. One pass is what is read before
  `prepare`, on the same rows.
- Producer: the SDK's `DatabaseTaskStore` saves a growing answer 20 times a second while 32 clients ask for the index
  and for that answer's session in turn; then they ask for static bodies of the same sizes, as often.
- Memory: a fresh process that has answered once is idle; its peak under 16 connections is taken from the kernel.
"""


def _digits(value: float) -> str:
    """Three significant digits, and never fewer than the integer has."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == 0 else f"{value:.3g}"


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown, line by line."""
    marks = ["---", *("---:" for _ in head[1:])]
    return ["| " + " | ".join(each) + " |" for each in (head, marks, *rows)]


def _processor() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text("utf-8"))
    return found[1] if found else platform.processor()


def _versions(packages: Iterable[str]) -> Iterable[str]:
    for name in packages:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} not installed"
