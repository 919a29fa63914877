"""Retrieves the passages that a question's words stand in, best first, and records that; it asks no model.

Text is cut in worker threads, and no connection is held meanwhile.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, String, exists, literal, select

from sidecar import records
from sidecar.answer import parts
from sidecar.answer.passage import Passage
from sidecar.answer.queries import PassageQuery
from sidecar.answer.usage import NOTHING, log, record
from sidecar.auth import Principal
from sidecar.config import Config
from sidecar.db import Database
from sidecar.errors import InvalidSearchScope, WorkspaceNotFound
from sidecar.index import Scope
from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.search import words
from sidecar.search.envelopes import TEXT_FIELDS
from sidecar.search.excerpt import span
from sidecar.search.index import is_row
from sidecar.search.keyword import title_of
from sidecar.search.ranked import Question
from sidecar.search.refresh import Availability
from sidecar.search.service import Found, Owners, Search
from sidecar.turns import key_of
from sidecar.wire import iso, plain
from tombstones.state import read_status
from tombstones.table import Shape

Json = dict[str, Any]

PASSAGE_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The passages, best first, and of how much they are the best."""

    passages: tuple[Passage, ...]
    availability: Availability


class Retrieval:
    """Retrieval over one sidecar's store."""

    def __init__(self, search: Search, database: Database, config: Config) -> None:
        self._search = search
        self._database = database
        self._config = config

    async def answer(self, query: PassageQuery, principal: Principal, route: str, request_id: str) -> Json:
        """The envelope of `/v1/search` (seed 004), whose use is recorded under the route's template before.

        Raises WorkspaceNotFound, InvalidSearchScope, and a SidecarError for every fault of the database.
        """
        retrieved = await self.passages(query, principal.owners)
        asked = (NOTHING, principal.name, route, request_id)
        await records.write(self._database, record, *asked)
        log(*asked)
        return {
            "results": [passage.body() for passage in retrieved.passages],
            "sessionId": None,
            "availability": retrieved.availability.body(),
            "usage": NOTHING.body(),
        }

    async def passages(self, query: PassageQuery, owners: Owners) -> Retrieved:
        """At most one passage of each field of a turn, of sessions alone: nothing else can be retired.

        Raises WorkspaceNotFound, InvalidSearchScope, and a SidecarError for every fault of the database.
        """
        if query.workspace != self._config.workspace:
            raise WorkspaceNotFound("No such workspace; SIDECAR_WORKSPACE names the one that is here.")
        scope = Scope(self._config.session_prefix, owners)
        terms = await asyncio.to_thread(words.terms, query.q)
        availability = await self._search.availability(first=query.session_id)
        await self._check(query, scope)
        question = Question(
            terms,
            scope,
            frozenset(TEXT_FIELDS),
            conversation=query.session_id,
            task_id=query.task_id,
            states=query.states,
        )
        passages = await self._best(question, query)
        if not availability.pending:  # a title comes from the index alone, and its turn may be incognito by now
            passages = await self._titled(passages, scope)
        return Retrieved(tuple(passages), availability)

    async def _check(self, query: PassageQuery, scope: Scope) -> None:
        """Raises InvalidSearchScope where the named conversation or turn is not there to be searched."""
        if query.session_id is None and query.task_id is None:
            return
        if not await self._database.read(_stands, query, scope):
            raise InvalidSearchScope(
                "`documentId` or `runId` is unknown, retired or not visible to this token, or the run is of another "
                "conversation; take both from one citation."
            )

    async def _best(self, question: Question, query: PassageQuery) -> list[Passage]:
        best: list[Passage] = []
        async for found in self._search.ranked(question):
            passage = await asyncio.to_thread(_passage, found, query)
            if passage is not None:
                best.append(passage)
            if len(best) == query.limit:
                break
        return best

    async def _titled(self, passages: Sequence[Passage], scope: Scope) -> list[Passage]:
        contexts = {passage.session_id for passage in passages}
        titles = await self._database.read(_titles, scope, contexts) if contexts else {}
        return [replace(passage, title=titles[passage.session_id]) for passage in passages]


def _passage(found: Found, query: PassageQuery) -> Passage | None:
    """The best piece of what was found, unless its turn has no such file."""
    candidate, row = found.candidate, found.row
    wants_file = query.filename_contains is not None or query.mime_types
    if wants_file and not parts.holds(row.artifacts_text, query.filename_contains, query.mime_types):
        return None
    text = found.texts.field(candidate.field)
    start, end = span(text, found.terms, PASSAGE_CHARACTERS)
    return Passage(
        text=plain(text[start:end]),
        truncated=end - start < len(text),
        title=None,
        state=read_status(row.status_text).state,
        time=iso(key_of(row).activity),
        score=candidate.reasons.score,
        session_id=plain(candidate.context_id),
        task_id=plain(candidate.task_id),
        field=candidate.field,
        position=candidate.position,
        start=start,
        end=end,
    )


async def _stands(conn: Reading, shape: Shape, query: PassageQuery, scope: Scope) -> bool:
    """Whether there is a visible turn, not known to be incognito, of the conversation and with the id that are named.

    The row itself is asked for: a turn that is not indexed yet is there all the same.
    """
    statement = _named(shape, scope, query.session_id is not None, query.task_id is not None)
    return bool(await conn.fetch(statement, {"context_id": query.session_id, "task_id": query.task_id}))


@lru_cache(STATEMENTS_KEPT)
def _named(shape: Shape, scope: Scope, by_context: bool, by_id: bool) -> Select[Any]:
    tasks, turns = shape.tasks, shape.search.turns
    is_incognito = exists(select(literal(1)).select_from(turns).where(is_row(shape), turns.c.incognito))
    found = select(literal(1).label("one")).select_from(tasks).where(scope.visible(shape), ~is_incognito)
    if by_context:
        found = found.where(tasks.c.context_id == parameter("context_id", String()))
    if by_id:
        found = found.where(tasks.c.id == parameter("task_id", String()))
    return found.limit(1)


async def _titles(conn: Reading, shape: Shape, scope: Scope, contexts: Iterable[str]) -> dict[str, str | None]:
    titles = {}
    for context in contexts:
        (row,) = await conn.fetch(_title(shape, scope), {"context_id": context})
        titles[context] = row.title
    return titles


@lru_cache(STATEMENTS_KEPT)
def _title(shape: Shape, scope: Scope) -> Select[Any]:
    return select(title_of(shape, scope, parameter("context_id", String())).label("title"))
