"""`python -m tests.bench`: fills the stores, measures, prints the page and keeps it; it decides no goal."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import click
from sqlalchemy import make_url

from tests.bench import generate, harm, index, servers, turns, worst
from tests.bench.load import Load
from tests.bench.report import Findings, page
from tests.bench.rounds import Bench
from tests.bench.worker import ROOT
from tests.postgres import Server, memory, running_cluster
from tests.rig import Kind, Store, postgres_store, sqlite_store

TITLES: dict[Kind, str] = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


@click.command(context_settings={"show_default": True})
@click.option("--rows", nargs=2, type=click.IntRange(100), default=(10_000, 100_000), help="A small and a large table.")
@click.option("--database", "kinds", multiple=True, type=click.Choice(list(TITLES)), default=list(TITLES))
@click.option("--seconds", type=float, default=1.0, help="Length of a round.")
@click.option("--rounds", type=int, default=4, help="How often each variant has its turn.")
@click.option("--every", type=float, default=1.0, help="Seconds from one poll of a client to its next.")
@click.option("--worst", "with_worst", is_flag=True, help="Also the worst cases of the index.")
@click.option("--quick", is_flag=True, help="One round of 0.1 seconds: whether it works, not how fast.")
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "deploy/bench/results.md")
def main(
    rows: tuple[int, int],
    kinds: tuple[Kind, ...],
    seconds: float,
    rounds: int,
    every: float,
    with_worst: bool,
    quick: bool,
    output: Path,
) -> None:
    """Measure the sidecar beside its peers and its limit."""
    command, busy = " ".join(["python -m tests.bench", *sys.argv[1:]]), os.getloadavg()[0]
    if quick:
        seconds, rounds = 0.1, 1
    with tempfile.TemporaryDirectory(prefix="sidecar-bench-", dir=memory()) as folder, Load() as load:
        bench = Bench(load, Path(folder), seconds, rounds, every)
        found = {TITLES[kind]: asyncio.run(_measured(bench, kind, rows, with_worst)) for kind in kinds}
        text = page(found, rows, command, busy, load.highest_core)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, "utf-8")
    click.echo(text)


async def _measured(bench: Bench, kind: Kind, rows: tuple[int, int], with_worst: bool) -> Findings:
    findings = Findings()
    with _server(kind) as server:
        async with _stores(bench, server, rows) as (small, large):
            _say(kind, "index in one pass")
            one_pass = await index.in_one_pass(bench, large)
            _say(kind, "prepare")
            for store in (small, large):
                servers.prepare(store.url)
                await _analyze(store, server)
            _say(kind, "turns")
            await turns.measure(bench, small, findings)
            _say(kind, "index")
            await index.measure(bench, small, large, one_pass, findings)
            _say(kind, "producer")
            await harm.producer(bench, large, findings)
            _say(kind, "memory")
            await harm.memory(bench, large, findings)
            if with_worst:
                _say(kind, "worst cases")
                await worst.measure(bench, large, rows[1], findings)
    return findings


@contextmanager
def _server(kind: Kind) -> Iterator[Server | None]:
    if kind == "sqlite":
        yield None
    else:
        with running_cluster() as cluster:
            yield cluster


@asynccontextmanager
async def _stores(bench: Bench, server: Server | None, rows: tuple[int, int]) -> AsyncIterator[tuple[Store, Store]]:
    """A small and a large store, filled, not prepared."""
    async with AsyncExitStack() as opened:
        stores = []
        for name, number in zip(("small", "large"), rows, strict=True):
            opening = postgres_store(server) if server else sqlite_store(bench.folder / f"{name}.db")
            store = await opened.enter_async_context(opening)
            _say(store.kind, f"{number:,} rows")
            await generate.fill(store, number)
            await _analyze(store, server)
            stores.append(store)
        yield stores[0], stores[1]


async def _analyze(store: Store, server: Server | None) -> None:
    """What autovacuum would have done in a while."""
    if server is not None:
        await server.execute("VACUUM ANALYZE tasks", str(make_url(store.url).database))


_STARTED = time.monotonic()


def _say(kind: Kind, step: str) -> None:
    click.echo(f"{time.monotonic() - _STARTED:5.0f} s  {TITLES[kind]}: {step}", err=True)


if __name__ == "__main__":
    main(prog_name="python -m tests.bench")
