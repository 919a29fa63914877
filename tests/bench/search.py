"""`python -m tests.bench.search`: keyword search beside LIKE and PostgreSQL's own index, on the same text."""

import asyncio
import json
import random
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import asyncpg
import click
from sqlalchemy import make_url

from sidecar.db import Database
from sidecar.index import Scope
from sidecar.search import keyword, words
from sidecar.search.queries import SearchQuery
from sidecar.search.service import Search
from tests.bench.generate import COLUMNS
from tests.bench.report import Goal, table_of
from tests.bench.worker import ROOT
from tests.postgres import memory, running_cluster
from tests.rig import Kind, Store, config_for, postgres_store, prepare, sqlite_store

TURNS_A_SESSION = 10
PROMPT_WORDS, ANSWER_WORDS = 12, 90
SYLLABLES = ["ka", "lo", "mi", "ter", "an", "du", "ve", "ri", "sol", "ne", "pra", "to", "shi", "gen", "ful", "mo", "ba"]
QUERIES = 15
PAGE = 20

LIKE = Goal("two rare words, LIKE over the JSON to search", at_least=100)
LIKE_FILLED = Goal("two ordinary words, which fill a page before LIKE has read all, LIKE to search")
TSVECTOR = Goal("two ordinary words, search to tsvector + GIN with the same joins", at_most=1.5)
BARE = Goal("two ordinary words, search to bare tsvector + GIN, nothing joined")
GOALS = (LIKE, LIKE_FILLED, TSVECTOR, BARE)


class Corpus:
    """Words by Zipf's law, the same for both databases; the commonest come first."""

    def __init__(self) -> None:
        self._dice = random.Random(5)
        made = ("".join(self._dice.choices(SYLLABLES, k=self._dice.randint(2, 4))) for _ in range(20_000))
        self.words = list(dict.fromkeys(made))
        self._weights = list(accumulate(1 / (rank + 10) for rank in range(len(self.words))))

    def text(self, number: int) -> str:
        """So many words."""
        return " ".join(self._dice.choices(self.words, cum_weights=self._weights, k=number))

    def queries(self) -> dict[str, list[str]]:
        """Pairs of words by how common they are."""
        ranks = {"common": (0, 20), "ordinary": (100, 1_000), "rare": (3_000, 8_000)}
        return {
            name: [" ".join(self._dice.sample(self.words[first:last], 2)) for _ in range(QUERIES)]
            for name, (first, last) in ranks.items()
        }

    def rows(self, turns: int) -> Iterator[tuple[Any, ...]]:
        """Rows as the SDK stores them, in the order of COLUMNS."""
        for number in range(turns):
            at = datetime(2026, 1, 1) + timedelta(seconds=30 * number)
            task_id = str(uuid.UUID(int=self._dice.getrandbits(128)))
            status = {"state": "TASK_STATE_COMPLETED", "timestamp": f"{at.isoformat()}Z"}
            artifacts = [{"artifactId": "a", "parts": [{"text": self.text(ANSWER_WORDS)}]}]
            prompt = {"messageId": str(number), "role": "ROLE_USER", "parts": [{"text": self.text(PROMPT_WORDS)}]}
            cells = map(json.dumps, (status, artifacts, [prompt]))
            yield (task_id, f"chat-{number // TURNS_A_SESSION}", "task", "", at, *cells, "1.0", "null")


async def fill(store: Store, corpus: Corpus, turns: int) -> None:
    """The SDK's table with that many turns, prepared."""
    await store.tasks.initialize()
    names, rows = ", ".join(COLUMNS), corpus.rows(turns)
    if store.kind == "sqlite":
        with closing(sqlite3.connect(str(make_url(store.url).database))) as connection, connection:
            marks = ", ".join("?" * len(COLUMNS))
            timed = ((*row[:4], row[4].isoformat(" ", "microseconds"), *row[5:]) for row in rows)
            connection.executemany(f"INSERT INTO tasks ({names}) VALUES ({marks})", timed)
    else:
        async with connected(store) as connection:
            await connection.copy_records_to_table("tasks", records=list(rows), columns=COLUMNS)
    await prepare(store)


@asynccontextmanager
async def connected(store: Store) -> AsyncIterator[Any]:
    """The driver's own connection to a PostgreSQL store."""
    connection = await asyncpg.connect(make_url(store.url).set(drivername="postgresql").render_as_string(False))
    try:
        yield connection
    finally:
        await connection.close()


Timed = Callable[[str], Awaitable[Any]]


async def medians(queries: Sequence[str], variants: dict[str, Timed]) -> dict[str, float]:
    """Each variant's median over the queries, which they take in turn; the first round warms."""
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for number, query in enumerate([queries[0], *queries]):
        for name, run in variants.items():
            began = time.perf_counter()
            await run(query)
            if number:
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in taken.items()}


async def measured(store: Store, corpus: Corpus, turns: int) -> tuple[dict[Goal, float], dict[str, str]]:
    """The ratios, and what was measured with its unit."""
    await fill(store, corpus, turns)
    database = Database(config_for(store))
    service, found, shown = Search(database, config_for(store)), {}, {}
    try:
        began = time.perf_counter()
        await service.reindex(lambda done, todo: None)
        took = time.perf_counter() - began
        size = (
            (PROMPT_WORDS + ANSWER_WORDS)
            * turns
            * statistics.fmean(len(word) + 1 for word in corpus.text(1_000).split())
        )
        shown["indexing, of text"] = f"{size / took / 1e6:.2f} MB/s"
        async with AsyncExitStack() as opened:
            peers = await opened.enter_async_context(PEERS[store.kind](store))
            for name, queries in corpus.queries().items():

                async def keys(query: str) -> None:
                    await database.read(
                        keyword.find, words.lexemes(query), Scope("chat-", None), keyword.BEFORE_ALL, PAGE + 1
                    )

                async def whole(query: str) -> None:
                    await service.search(SearchQuery(query, "exclude", False, PAGE, None), None)

                # PostgreSQL joins every match of two common words before it orders them: half a minute a query
                asked = {what: run for what, run in peers.items() if name != "common" or what != "tsvector, joined"}
                times = await medians(queries, {"search": keys, "search and excerpts": whole, **asked})
                shown |= {f"two {name} words: {what}": f"{each * 1000:.3g} ms" for what, each in times.items()}
                if name == "rare":
                    found[LIKE] = times["LIKE"] / times["search"]
                if name == "ordinary":
                    found[LIKE_FILLED] = times["LIKE"] / times["search"]
                    if store.kind == "postgres":
                        found[TSVECTOR] = times["search"] / times["tsvector, joined"]
                        found[BARE] = times["search"] / times["tsvector"]
        await service.search(SearchQuery("any", "exclude", False, PAGE, None), None)
        for what, changes in {"nothing": 0, "one turn": 1}.items():
            taken = []
            for _ in range(5):
                for _ in range(changes):
                    await store.turn("chat-1", text=corpus.text(ANSWER_WORDS), at="2026-06-01T00:00:00Z")
                began = time.perf_counter()
                await service._refresher.refresh()
                taken.append(time.perf_counter() - began)
                await service._refresher.refresh()
            shown[f"refresh, {what} changed"] = f"{statistics.median(taken) * 1000:.3g} ms"
    finally:
        await database.close()
    return found, shown


@asynccontextmanager
async def on_sqlite(store: Store) -> AsyncIterator[dict[str, Timed]]:
    """LIKE over the cells."""
    with closing(sqlite3.connect(str(make_url(store.url).database))) as connection:

        async def like(query: str) -> None:
            one, other = (f"%{word}%" for word in query.split())
            sql = (
                "SELECT id FROM tasks WHERE artifacts LIKE ? AND artifacts LIKE ? OR history LIKE ? AND history LIKE ? "
                f"ORDER BY rowid DESC LIMIT {PAGE + 1}"
            )
            connection.execute(sql, (one, other, one, other)).fetchall()

        yield {"LIKE": like}


@asynccontextmanager
async def on_postgres(store: Store) -> AsyncIterator[dict[str, Timed]]:
    """ILIKE over the cells, and a tsvector of each field under a GIN index of its own."""
    async with connected(store) as connection:
        for sql in TSVECTORS:
            await connection.execute(sql, timeout=600)

        async def like(query: str) -> None:
            one, other = (f"%{word}%" for word in query.split())
            sql = (
                "SELECT id FROM tasks WHERE artifacts::text ILIKE $1 AND artifacts::text ILIKE $2 "
                "OR history::text ILIKE $1 AND history::text ILIKE $2 "
                f"ORDER BY sidecar_created_at DESC, last_updated DESC LIMIT {PAGE + 1}"
            )
            await connection.fetch(sql, one, other, timeout=600)

        async def bare(query: str) -> None:
            await connection.fetch(BARE_SQL.format(_literal(query)))

        async def joined(query: str) -> None:
            await connection.fetch(JOINED_SQL.format(_literal(query)))

        yield {"LIKE": like, "tsvector": bare, "tsvector, joined": joined}


def _literal(query: str) -> str:
    """Our own words, in quotes: the peer's planner shall know them, as ours does."""
    return f"'{query}'"


PEERS = {"sqlite": on_sqlite, "postgres": on_postgres}
TSVECTORS = (
    """CREATE TABLE peer AS
       SELECT s.seq * 4 + f.n AS place, to_tsvector('english', f.words) AS words FROM tasks t
       JOIN tasks_search_turns s ON s.task_id = t.id
       CROSS JOIN LATERAL (VALUES (3, t.artifacts->0->'parts'->0->>'text'), (2, t.history->0->'parts'->0->>'text'),
                                  (0, left(t.history->0->'parts'->0->>'text', 80))) AS f (n, words)""",
    "ALTER TABLE peer ADD PRIMARY KEY (place)",
    "CREATE INDEX ON peer USING gin (words)",
    "VACUUM ANALYZE peer",
    "VACUUM ANALYZE tasks",
    "VACUUM ANALYZE tasks_search_turns",
    "VACUUM ANALYZE tasks_search_lexemes",
)
BARE_SQL = (
    f"SELECT place FROM peer WHERE words @@ plainto_tsquery('english', {{}}) ORDER BY place DESC LIMIT {PAGE + 1}"
)
JOINED_SQL = f"""
    SELECT p.place, s.task_id, s.context_id, s.position, s.marker FROM peer p
    JOIN tasks_search_turns s ON s.seq = p.place / 4 JOIN tasks t ON t.id = s.task_id AND t.context_id = s.context_id
    WHERE p.words @@ plainto_tsquery('english', {{}}) AND NOT s.incognito AND starts_with(t.context_id, 'chat-')
    AND NOT EXISTS (SELECT 1 FROM tasks_session_tombstones d WHERE d.session_id = t.context_id)
    AND NOT EXISTS (SELECT 1 FROM tasks_task_tombstones d WHERE d.task_id = t.id)
    ORDER BY p.place DESC LIMIT {PAGE + 1}
"""


@click.command(context_settings={"show_default": True})
@click.option("--turns", type=click.IntRange(1_000), default=100_000)
@click.option("--database", "kinds", multiple=True, type=click.Choice(list(PEERS)), default=list(PEERS))
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "deploy/bench/search.md")
def main(turns: int, kinds: tuple[Kind, ...], output: Path) -> None:
    """Measure the keyword search beside its peers."""
    found = {kind: asyncio.run(_on(kind, turns)) for kind in kinds}
    goals = [[goal.what, goal.bound, *(goal.shown(ratios.get(goal)) for ratios, _ in found.values())] for goal in GOALS]
    names = dict.fromkeys(name for _, shown in found.values() for name in shown)
    measured = [[name, *(shown.get(name, "–") for _, shown in found.values())] for name in names]
    titles = [{"sqlite": "SQLite", "postgres": "PostgreSQL"}[kind] for kind in kinds]
    text = "\n".join(
        (
            "# The last bench of the search",
            "",
            f"`python -m tests.bench.search --turns {turns}`: {turns:,} turns of {ANSWER_WORDS} words and prompts of "
            f"{PROMPT_WORDS}, words by Zipf's law; pages of {PAGE}. Medians of {QUERIES} queries, which the variants "
            "take in turn. A goal that was missed is bold.",
            "",
            *table_of(["what", "goal", *titles], goals),
            "",
            *table_of(["measured", *titles], measured),
            "",
        )
    )
    output.write_text(text, "utf-8")
    click.echo(text)


async def _on(kind: Kind, turns: int) -> tuple[dict[Goal, float], dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="sidecar-bench-", dir=memory()) as folder:
        if kind == "sqlite":
            async with sqlite_store(Path(folder) / "tasks.db") as store:
                return await measured(store, Corpus(), turns)
        with running_cluster() as cluster:
            async with postgres_store(cluster) as store:
                return await measured(store, Corpus(), turns)


if __name__ == "__main__":
    main(prog_name="python -m tests.bench.search")
