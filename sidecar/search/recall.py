"""An agent's search of its own history (seed 002): ranked messages with what stands beside them, recorded before they
are shown; it holds no SQL and no HTTP.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import datetime, timedelta

from sidecar import records
from sidecar.auth import Principal
from sidecar.config import Config
from sidecar.db import Database, UnforeseenFaultError
from sidecar.errors import AuditUnavailable, SidecarError
from sidecar.index import Scope
from sidecar.observe import Failed, emit
from sidecar.search import audit, neighbours, words
from sidecar.search.audit import Recorded
from sidecar.search.evidence import Json, by_turn, evidence
from sidecar.search.hits import Hit, Unseen
from sidecar.search.ranked import Question
from sidecar.search.recall_queries import EventsQuery, RecallQuery, Run, Speaker
from sidecar.search.service import Owners, Search

TURNS_BESIDE = 4
"""Of so many turns on each side of a hit's own are messages shown."""

_FIELDS: dict[Speaker, frozenset[str]] = {
    "anyone": frozenset({"prompt", "steers", "content"}),
    "requester": frozenset({"prompt", "steers"}),
    "you": frozenset({"content"}),
}
_TICK = timedelta(microseconds=1)


class Recall:
    """Agents' searches over one sidecar's store, and their audit."""

    def __init__(self, search: Search, database: Database, config: Config) -> None:
        self._search = search
        self._database = database
        self._config = config

    async def search(self, query: RecallQuery, run: Run, principal: Principal, request_id: str) -> Json:
        """The envelope of `history_search` (seed 002), whose record is committed already.

        Raises AuditUnavailable without the key of the digest and when the record cannot be stored, and a SidecarError
        for every fault of the database before that.
        """
        if self._config.audit_key is None:
            raise AuditUnavailable("No key for the digests of the audit is configured; set SIDECAR_AUDIT_KEY.")
        terms, ignored = await asyncio.to_thread(_terms, query.query)
        availability = await self._search.availability(first=query.conversation)
        question = await self._question(query, run, terms, principal.owners)
        hits, exclusions = await self._select(question, query.limit, run)
        given = {"current_turn": run.current_turn, "loaded_message_ids": len(run.loaded)}
        counts = {"query_lexemes": len(terms), "ignored_terms": len(ignored)}
        draft = audit.Draft(
            principal.name,
            run.id,
            audit.digest(self._config.audit_key, query.query),
            {**query.filters(), **given, **counts},
            tuple(hit.selected() for hit in hits),
            exclusions,
            request_id,
        )
        with _needed(request_id):
            earlier = await records.read(self._database, audit.earlier, draft)
            shown = await asyncio.to_thread(audit.shown_by, earlier)
            recorded = await records.write(self._database, audit.record, draft, shown)
        return {
            "hits": [hit.body(selected) for hit, selected in zip(hits, recorded.selected, strict=False)],
            "search_audit": _told(recorded, draft),
            "search_budget_exhausted": recorded.exhausted,
            "query_lexemes": sorted(terms),
            "ignored_terms": list(ignored),
            "availability": availability.body(),
        }

    async def events(self, query: EventsQuery, principal: Principal, request_id: str) -> Json:
        """The envelope of `search_audit`; a token that is narrowed to owners sees its own events only.

        Raises AuditUnavailable.
        """
        token = None if principal.owners is None else principal.name
        with _needed(request_id):
            return await records.read(self._database, audit.events, query, token)

    async def _question(self, query: RecallQuery, run: Run, terms: tuple[str, ...], owners: Owners) -> Question:
        near = None if run.current_turn is None else await self._search.standing(run.current_turn, owners)
        prefix = self._config.session_prefix if query.conversation is None else ""
        until = None if query.until is None else max(query.until, datetime.min + _TICK) - _TICK
        fields = _FIELDS[query.speaker]
        return Question(
            terms,
            Scope(prefix, owners),
            fields,
            conversation=query.conversation,
            since=query.since,
            until=until,
            near=near,
            passed_over=len(run.loaded),
        )

    async def _select(self, question: Question, limit: int, run: Run) -> tuple[list[Hit], dict[str, int]]:
        """The best hits that the model has not before it, and how many messages it has."""
        hits: list[Hit] = []
        unseen = Unseen(run)
        async with aclosing(self._search.ranked(question)) as ranked:
            async for found in ranked:
                told = await asyncio.to_thread(evidence, found, unseen.holds)
                if told is not None:
                    hits.append(Hit.of(told, unseen))
                if len(hits) == limit:
                    break
        await self._reach_out(hits, unseen, question.scope.owners)
        return hits, unseen.exclusions()

    async def _reach_out(self, hits: Sequence[Hit], unseen: Unseen, owners: Owners) -> None:
        """Looks at the turns beside the hits' own, one further each time, until there are enough messages."""
        known = {hit.evidence.candidate.seq: hit.evidence.messages for hit in hits}
        reaches = [reach for hit in hits for reach in (hit.before, hit.after)]
        for _ in range(TURNS_BESIDE):
            short = [reach for reach in reaches if reach.is_short]
            if not short:
                break
            beside = await self._database.read(neighbours.beside, {reach.side for reach in short}, owners)
            async for rows in self._search.cells(set(beside.values()) - known.keys(), owners):
                known |= await asyncio.to_thread(by_turn, rows)
            for reach in short:
                reach.go_on(beside.get(reach.side))
                if not reach.has_ended:
                    reach.take(known.get(reach.side.seq, ()), unseen)


def _terms(query: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is searched for, and the query's terms that add nothing to it."""
    return words.terms(query), words.query_lexemes(query)[1]


def _told(recorded: Recorded, draft: audit.Draft) -> Json:
    """The `search_audit` of an answer."""
    return {
        "event_id": recorded.event_id,
        "at": audit.utc(recorded.at),
        "digest": draft.digest,
        "exclusions": recorded.exclusions,
    }


@contextmanager
def _needed(request_id: str) -> Iterator[None]:
    """Without the audit there is no answer. Raises AuditUnavailable for every fault of the database."""
    try:
        yield
    except SidecarError as error:
        raise AuditUnavailable(f"The audit of searches cannot be used. {error.detail}", error.headers) from error
    except UnforeseenFaultError as error:
        emit(Failed(request_id, error))
        raise AuditUnavailable(f"The audit of searches cannot be used: {error}; the log tells more.") from error
