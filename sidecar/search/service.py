"""Answers searches and history windows for routes, tools and commands alike; it holds no SQL and no HTTP.

Text is analyzed and cut in worker threads, and no connection is held meanwhile.
"""

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidecar.config import Config
from sidecar.db import RETRY_AFTER, Database
from sidecar.errors import NotFound, ParameterInvalid, SearchUnavailable, SidecarError
from sidecar.index import Scope
from sidecar.search import envelopes, history, index, keyword, ranked, words
from sidecar.search.entries import Texts, read_texts
from sidecar.search.envelopes import Told
from sidecar.search.execution import BranchMissingError
from sidecar.search.keyword import Hit
from sidecar.search.queries import HistoryQuery, SearchQuery
from sidecar.search.ranked import Candidate, Question
from sidecar.search.refresh import Availability, Refresher
from sidecar.turns import moment
from sidecar.wire import CursorError, RowNumber, decode_cursor, encode_cursor
from tombstones.state import read_status

Owners = frozenset[str] | None
# A page's cells are read in pieces of this size, each sized before it is fetched.
_BYTES_A_READ = 2**24
# Candidates come in the order of their rank: few are read that nobody may ask for.
_CANDIDATES_A_READ = 16


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate that holds: its row as it is now (see `index.read`), what its turn says, and the terms that the
    field holds. All of its turn stays in memory for as long as it is kept.
    """

    candidate: Candidate
    row: Any
    texts: Texts
    terms: frozenset[str]


class Search:
    """The search wing over one sidecar's store."""

    def __init__(self, database: Database, config: Config) -> None:
        self._database = database
        self._config = config
        self._refresher = Refresher(database, config)

    async def reindex(self, say: Callable[[int, int], None]) -> dict[str, Any]:
        """Brings the index up to date, however long it takes; `say` is told how many turns are done, of how many."""
        return (await self._refresher.refresh(seconds=math.inf, say=say)).body()

    async def search(self, query: SearchQuery, owners: Owners) -> dict[str, Any]:
        """The envelope of `conversation_search` (seed 000), with what was searched for and of how much.

        Raises ParameterInvalid for a cursor that is not of this query, and a SidecarError for every fault of the
        database.
        """
        bound_to = _bound(query)
        after = keyword.BEFORE_ALL if query.after is None else _decoded("after", query.after, bound_to)
        lexemes, ignored = await asyncio.to_thread(words.query_lexemes, query.query)
        availability = await self._refresher.refresh()
        found: list[tuple[Hit, dict[str, Any]]] = []
        if lexemes and query.archived != "only":  # no conversation of this store is archived
            scope = Scope("" if query.include_auxiliary else self._config.session_prefix, owners)
            found = await self._find(lexemes, scope, after, query.limit + 1)
        shown = found[: query.limit]
        more = len(found) > len(shown)
        matches = [match for _, match in shown]
        if availability.pending:  # a title comes from the index alone, and its turn may be incognito by now
            matches = [{**match, "title": None} for match in matches]
        return {
            "matches": matches,
            "pagination": {"next_after": encode_cursor(bound_to, shown[-1][0].at) if more else None},
            "query_lexemes": sorted(lexemes),
            "ignored_terms": list(ignored),
            "availability": availability.body(),
        }

    async def _find(
        self, lexemes: frozenset[str], scope: Scope, after: int, rows: int
    ) -> list[tuple[Hit, dict[str, Any]]]:
        """So many matches after a place, or all there are: a page is not short because some did not hold."""
        found: list[tuple[Hit, dict[str, Any]]] = []
        while (wanted := rows - len(found)) > 0:
            hits = await self._database.read(keyword.find, lexemes, scope, after, wanted)
            matches = await self._matches(hits, lexemes, scope.owners)
            found += [(hit, matches[hit.at]) for hit in hits if hit.at in matches]
            if len(hits) < wanted:
                break
            after = hits[-1].at
        return found

    async def _matches(self, hits: Sequence[Hit], lexemes: frozenset[str], owners: Owners) -> dict[int, dict[str, Any]]:
        """What is shown of those hits that still hold, by their places."""
        by_turn: dict[int, list[Hit]] = {}
        for hit in hits:
            by_turn.setdefault(hit.seq, []).append(hit)
        matches: dict[int, dict[str, Any]] = {}
        async for rows in self.cells(by_turn, owners):
            matches |= await asyncio.to_thread(envelopes.matches, rows, by_turn, lexemes)
        return matches

    async def read(self, query: HistoryQuery, owners: Owners) -> dict[str, Any]:
        """The envelope of `history` (seed 000).

        Raises NotFound for a conversation, target or branch that is not there to be seen, ParameterInvalid for
        `execution_before`, and a SidecarError for every fault of the database.
        """
        availability = await self._refresher.refresh(first=query.conversation)
        try:
            page = await self._page(query, owners)
        except history.TargetMissingError:
            raise _missing("turn", availability) from None
        except BranchMissingError:
            raise NotFound(
                "`execution_prefix` names no branch: the store knows no delegated branches. Omit it."
            ) from None
        except CursorError:
            raise _not_given_out("execution_before") from None
        if page is None:
            raise _missing("conversation", availability)
        if availability.pending:
            page["conversation"]["title"] = None
        return {**page, "availability": availability.body()}

    async def _page(self, query: HistoryQuery, owners: Owners) -> dict[str, Any] | None:
        """The window with what its turns say; None when the conversation has no visible turn."""
        window = await self._database.read(history.window, query, owners)
        if window is None:
            return None
        registered = {row.seq: row for row in window.turns}
        turns: dict[int, Told] = {}
        async for rows in self.cells(registered, owners):
            turns |= await asyncio.to_thread(envelopes.told, rows, registered, with_cells=query.include_execution)
        shown = [turns[seq] for seq in registered if seq in turns]
        return await asyncio.to_thread(envelopes.page, shown, window, query)

    async def availability(self, first: str | None = None) -> Availability:
        """How much can be found, after a refresh that takes the conversation `first` before others."""
        return await self._refresher.refresh(first=first)

    async def ranked(self, question: Question) -> AsyncGenerator[Found, None]:
        """What a question finds and may be seen now, best first; whoever has enough of it stops.

        Raises a SidecarError for every fault of the database.
        """
        waiting = await self._database.read(ranked.rank, question)
        while waiting:
            some, rows = await self._together(waiting[:_CANDIDATES_A_READ], question.scope.owners)
            for found in await asyncio.to_thread(_holding, some, rows, question):
                yield found
            waiting = waiting[len(some) :]

    async def _together(
        self, candidates: Sequence[Candidate], owners: Owners
    ) -> tuple[Sequence[Candidate], dict[int, Any]]:
        """As many of the candidates as fit into memory together, with their rows."""
        while True:
            seqs, cap = list({each.seq for each in candidates}), self._config.max_turn_bytes
            rows = await self._database.read(index.read, seqs, cap, _BYTES_A_READ, owners)
            if len(seqs) == 1 or all(row.fits for row in rows):
                return candidates, {row.seq: row for row in rows}
            candidates = candidates[: len(candidates) // 2]

    async def standing(self, task_id: str, owners: Owners) -> str | None:
        """The conversation of an indexed turn that may be seen."""
        return await self._database.read(ranked.standing, task_id, owners)

    async def cells(self, seqs: Iterable[int], owners: Owners) -> AsyncIterator[list[Any]]:
        """The rows with their cells, in pieces that fit into memory together."""
        waiting, cap = list(seqs), self._config.max_turn_bytes
        while waiting:
            rows = await self._database.read(index.read, waiting, cap, _BYTES_A_READ, owners)
            yield [row for row in rows if row.fits]
            waiting = [row.seq for row in rows if not row.fits]


def _holding(candidates: Sequence[Candidate], rows: Mapping[int, Any], question: Question) -> list[Found]:
    """What still holds of the candidates, by what their rows say now."""
    texts = {seq: read_texts(index.cells_of(row)) for seq, row in rows.items() if _is_wanted(row, question)}
    found = []
    for each in candidates:
        if each.seq in texts and not texts[each.seq].incognito:
            terms = _terms_of(each, rows[each.seq], texts[each.seq], question)
            if terms:
                found.append(Found(each, rows[each.seq], texts[each.seq], terms))
    return found


def _is_wanted(row: Any, question: Question) -> bool:
    return question.covers(moment(row.last_updated)) and question.wants(read_status(row.status_text).state)


def _terms_of(candidate: Candidate, row: Any, texts: Texts, question: Question) -> frozenset[str]:
    """The terms that the field holds; of a row saved since, what it says has to be looked at."""
    if candidate.marker == row.marker == index.marker_of(row):
        return candidate.terms
    return words.lexemes(texts.field(candidate.field)).intersection(question.terms)


def _bound(query: SearchQuery) -> tuple[str, ...]:
    """What a cursor is bound to: the query's words are not readable in it."""
    words_digest = hashlib.blake2b(query.query.encode(), digest_size=16).hexdigest()
    return ("search", words_digest, query.archived, str(query.include_auxiliary))


def _decoded(name: str, cursor: str, bound_to: Sequence[str]) -> int:
    try:
        return decode_cursor(cursor, bound_to, RowNumber)
    except CursorError:
        raise _not_given_out(name) from None


def _not_given_out(name: str) -> ParameterInvalid:
    return ParameterInvalid(f"`{name}` is not one that this request gave out; take it from the page before.")


def _missing(what: str, availability: Availability) -> SidecarError:
    """What is not found may still be on its way into the index."""
    if availability.pending:
        progress = f"{availability.indexed} turns are indexed, {availability.pending} are still to be read"
        return SearchUnavailable(f"The index is being built: {progress}. Try again in a moment.", RETRY_AFTER)
    return NotFound(f"No such {what}: it is unknown, retired, or not visible to this token.")
