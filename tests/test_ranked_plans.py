"""By which plans a ranking reads the store: each statement of a real one is explained as it runs, and none is timed."""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from sidecar.db import Database
from sidecar.index import Scope
from sidecar.reading import Reading
from sidecar.search import ranked, words
from sidecar.search.ranked import Question
from sidecar.search.service import Search
from tests import rig
from tests.bench import search as bench
from tombstones.table import Shape

TURNS = 3000


class Plan(NamedTuple):
    """A statement, and each step that reads a table: as SQLite spells it, as node and relation on PostgreSQL."""

    sql: str
    steps: Sequence[str]


class Explaining(Reading):
    """A connection that explains each statement before it runs it."""

    plans: list[Plan]

    async def _fetch(self, sql: str, arguments: Sequence[Any]) -> Any:
        if self._dialect.name == "sqlite":
            rows: Any = await super()._fetch(f"EXPLAIN QUERY PLAN {sql}", arguments)
            steps = [row[3] for row in rows]
        else:
            ((found,),) = await super()._fetch(f"EXPLAIN (FORMAT JSON) {sql}", arguments)
            steps = list(_steps(found[0]["Plan"]))
        self.plans.append(Plan(sql, steps))
        return await super()._fetch(sql, arguments)


def _steps(node: dict[str, Any]) -> Iterator[str]:
    yield f"{node['Node Type']} {node.get('Relation Name', '')} {node.get('Index Name', '')}"
    for child in node.get("Plans", []):
        yield from _steps(child)


@pytest.fixture
async def database(store: rig.Store) -> AsyncIterator[Database]:
    """A prepared and indexed store of some thousand fields, of which the planner has statistics."""
    await bench.fill(store, bench.Corpus(), TURNS)
    database = Database(rig.config_for(store))
    await Search(database, rig.config_for(store)).reindex(lambda done, todo: None)
    if store.kind == "postgres":
        async with bench.connected(store) as connection:
            await connection.execute("ANALYZE")
    yield database
    await database.close()


async def explained(database: Database, question: Question) -> list[Plan]:
    """The plans of all statements of a ranking that finds something."""

    async def work(conn: Reading, shape: Shape) -> list[Plan]:
        explaining = Explaining(conn._driver, conn._dialect)
        explaining.plans = []
        assert await ranked.rank(explaining, shape, question)
        return explaining.plans

    return await database.read(work)


async def test_no_statement_reads_a_whole_table(kind: rig.Kind, database: Database) -> None:
    """Rare and common terms, owners, times and conversations: tasks and lexemes are found by an index alone."""
    made = bench.Corpus().words
    terms = words.terms(f"{made[0]} {made[40]} {made[2000]}")
    asked = Question(terms, Scope("chat-", None), frozenset({"prompt", "steers", "content"}))
    some, day = Scope("", frozenset({"", "other"})), datetime(2026, 1, 1, 8)
    for question in (
        asked,
        replace(asked, terms=terms[:1]),
        replace(asked, scope=some),
        replace(asked, since=day),
        replace(asked, until=day, scope=some),
        replace(asked, conversation="chat-7"),
    ):
        plans = await explained(database, question)
        for plan in plans:
            steps = [step for step in plan.steps if is_whole(step, kind)]
            assert [] == steps, (question, plan)
        places = [plan for plan in plans if re.search(r"ORDER BY \S+place DESC|ORDER BY \S+rowid DESC", plan.sql)]
        assert bool(places) == (question.conversation is None)
        if kind == "sqlite":  # a term's fields are walked from the newest, and left where enough are found
            assert all("TEMP B-TREE" not in step for plan in places for step in plan.steps)


def is_whole(step: str, kind: rig.Kind) -> bool:
    """The step reads every row of the task table or every lexeme."""
    if kind == "postgres":
        return bool(re.match(r"Seq Scan (tasks|tasks_search_lexemes) ", step))
    if step.startswith("SCAN tasks_search_lexemes"):
        return not re.search(r"VIRTUAL TABLE INDEX \d+:.*M", step)
    return bool(re.match(r"SCAN (tasks|row)\b", step))
