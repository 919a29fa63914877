"""Keeps the search index up with the task table, within a bounded time a request; it answers no search.

Cells are read in batches without a lock, analyzed in a worker thread, and stored in short transactions, each small
enough that no producer waits for SQLite's one write lock longer than for a save.
"""

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sidecar.config import Config
from sidecar.db import Database, UnforeseenFaultError
from sidecar.errors import Busy, ReadOnly, SearchUnavailable, TombstonesUnavailable
from sidecar.search import index, survey, words
from sidecar.search.entries import FIELDS, read_texts
from sidecar.search.index import Indexed
from sidecar.search.survey import Horizon, Survey
from sidecar.sweeper import PAUSE_SECONDS
from sidecar.wire import plain
from tombstones.state import FINISHED, read_status
from tombstones.table import create_search_tables

WORK_SECONDS = 2.0
"""How long a search works on the index before it answers with what is indexed."""
LOOK_EVERY_SECONDS = 60.0
SWEEP_SECONDS = 0.1
_ROWS_A_READ = 64
_BYTES_A_READ = 2**22
# Storing so much holds SQLite's write lock for 5 to 20 ms.
_LEXEMES_A_WRITE = 20_000
_TURNS_A_WRITE = 250


@dataclass(frozen=True, slots=True)
class Availability:
    """How many turns can be found, and how many are still to be read.

    `checked` is "changed" where finished turns were taken for unchanged since their time had not moved: on SQLite,
    between two looks at everything. Else it is "all".
    """

    indexed: int
    pending: int
    checked: str

    def body(self) -> dict[str, Any]:
        """As the answers carry it; complete: every turn that was committed before the request can be found."""
        return {
            "indexed": self.indexed,
            "pending": self.pending,
            "complete": self.pending == 0,
            "checked": self.checked,
        }


@dataclass(slots=True)
class _Work:
    """One refresh: until when it may go on, what there is to do, and what is done."""

    deadline: float
    say: Callable[[int, int], None]
    turns: int = 0
    todo: int = 0
    done: int = 0
    is_clean: bool = True
    """Nothing was stored, and nothing failed: the index is as it was, and right."""
    skipped: int = 0
    """Turns that the database took too long to store."""
    was_overtaken: bool = False
    """A turn was registered by another meanwhile, who may not have read it yet, or stored, from what may have been an
    older row.
    """

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline

    @property
    def pending(self) -> int:
        return max(self.todo - self.done, 0) + self.skipped

    def begin_again(self, todo: int) -> None:
        """So much is to be done still: on SQLite turns that had been done may be among it."""
        self.todo, self.done, self.was_overtaken = todo, 0, False

    def advance(self, turns: int) -> None:
        """So many more turns are done."""
        self.done += turns
        self.say(min(self.done, self.todo), self.todo)


class Refresher:
    """The index of one sidecar's store."""

    def __init__(self, database: Database, config: Config) -> None:
        self._database = database
        self._cap = config.max_turn_bytes
        self._alone = asyncio.Lock()
        self._known = Availability(0, 0, "all")
        self._seen: Hashable = None
        self._was_complete = False
        self._is_checked = False
        # what a survey of this file or server may leave out, and when one looks at everything again
        self._instance: Hashable = None
        self._horizon: Horizon | None = None
        self._look_at_all = 0.0
        # the look at every turn of a SQLite file: how far it is, of which version it is, and was the last one
        self._swept_to = survey.AFTER_ALL
        self._sweeping: Hashable = None
        self._swept: Hashable = None
        self._sweep_at = time.monotonic() + LOOK_EVERY_SECONDS

    async def refresh(
        self,
        first: str | None = None,
        seconds: float | None = None,
        say: Callable[[int, int], None] = lambda done, todo: None,
    ) -> Availability:
        """Takes in what has changed, the turns of the context `first` before others, for WORK_SECONDS or as given.

        `say` is told how many turns are done, and of how many. Raises a SidecarError for every fault of the database.
        """
        seconds = WORK_SECONDS if seconds is None else seconds
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else max(seconds, 0.1)):
                await self._alone.acquire()
        except TimeoutError:  # another request is at work on a long backlog
            return replace(self._known, pending=max(1, self._known.pending))
        try:
            return await self._refresh(_Work(time.monotonic() + seconds, say), first)
        finally:
            self._alone.release()

    async def _refresh(self, work: _Work, first: str | None) -> Availability:
        version = await self._version()
        if version is None or version != self._seen:
            await self._begin()
            if version is None or self._instance != version[0]:
                self._instance, self._horizon = version and version[0], None
            self._seen = None
            await self._take_in(work, first)
            if work.is_clean and not work.pending:  # what we store ourselves moves the version, too
                self._seen = version
            self._known = Availability(work.turns - work.pending, work.pending, "all")
            self._was_complete |= not work.pending
        if self._is_digested:
            await self._sweep(version)
            is_swept = version is not None and self._swept == version
            self._known = replace(self._known, checked="all" if is_swept else "changed")
        return self._known

    async def _version(self) -> tuple[Hashable, Hashable] | None:
        """Which file or server it is, and what stands there until anybody commits; None when it cannot be told."""
        return await self._database.version() or await self._database.read(survey.version)

    async def _begin(self) -> None:
        """Creates the index where there is none. Raises SearchUnavailable."""
        if not self._is_checked:
            try:
                await asyncio.to_thread(words.check)
            except words.AnalyzerMismatchError as error:
                raise SearchUnavailable(f"{error}.") from error
            self._is_checked = True
        if await self._database.read(survey.is_begun):
            return
        try:
            await self._database.write(create_search_tables)
        except (ReadOnly, TombstonesUnavailable) as error:
            raise SearchUnavailable(f"The tables of the search index are missing. {error.detail}") from error
        except UnforeseenFaultError as error:
            raise SearchUnavailable("This SQLite was built without FTS5, which the search index needs.") from error
        self._database.forget_shape()

    async def _take_in(self, work: _Work, first: str | None) -> None:
        """Registers what is new, oldest first, and then reads what is outdated, newest first."""
        if time.monotonic() >= self._look_at_all:
            self._horizon = None
        found = first_look = await self._survey(self._horizon)
        work.turns, work.todo = found.registered + found.unregistered, found.unregistered + found.outdated
        try:
            await self._prune(work, found.orphans)
            seqs = await self._register(work, found)
            while found.unregistered > len(found.keys) and not work.is_over:
                found = await self._survey(self._horizon)
                seqs = await self._register(work, found)
            if first is not None and work.todo > _ROWS_A_READ:
                await self._read(work, (await self._survey(None, context_id=first)).seqs)
                work.done = 0  # those are not behind any more
            seqs = sorted(found.seqs + seqs, reverse=True)
            while not work.is_over and not await self._read(work, seqs):
                if found.unregistered + found.outdated <= survey.KEYS_AT_ONCE and not work.was_overtaken:
                    work.done = work.todo
                    if work.skipped:
                        return
                    if self._horizon is None:
                        self._look_at_all = time.monotonic() + LOOK_EVERY_SECONDS
                    self._horizon = first_look.horizon
                    return
                if work.was_overtaken:
                    found = await self._survey(self._horizon)
                    work.begin_again(found.unregistered + found.outdated)
                else:
                    found = await self._survey(self._horizon, min(seqs, default=survey.AFTER_ALL))
                seqs = sorted(found.seqs, reverse=True)
        except Busy:  # what is indexed can be searched all the same
            work.is_clean = False
        except ReadOnly as error:
            raise SearchUnavailable(f"The search index cannot be written. {error.detail}") from error

    async def _survey(
        self, since: Horizon | None, below: int = survey.AFTER_ALL, context_id: str | None = None
    ) -> Survey:
        fingerprint = await asyncio.to_thread(words.fingerprint)
        return await self._database.read(survey.survey, fingerprint, since, below, context_id)

    async def _prune(self, work: _Work, number: int) -> None:
        while number > 0 and not work.is_over and (seqs := await self._database.read(survey.orphans)):
            for some in _slices(seqs, _TURNS_A_WRITE):
                await self._pause(work)
                work.is_clean = False
                await self._database.write(index.prune, some)
            number -= len(seqs)

    async def _register(self, work: _Work, found: Survey) -> list[int]:
        seqs: list[int] = []
        for some in _slices(found.keys, 4 * _TURNS_A_WRITE):
            await self._pause(work)
            work.is_clean = False
            # a turn that comes to a built index, or to a store that was seen empty, is new
            is_new = found.is_built or self._was_complete
            given = await self._database.write(index.register, some, first_seen=is_new)
            work.was_overtaken |= len(given) < len(some)
            seqs += given
        return seqs

    async def _read(self, work: _Work, seqs: list[int]) -> list[int]:
        """Reads turns, and stores what has changed; answers those that there was no time for."""
        while seqs and not work.is_over:
            some, seqs = seqs[:_ROWS_A_READ], seqs[_ROWS_A_READ:]
            rows = await self._database.read(index.read, some, self._cap, _BYTES_A_READ)
            await self._store(work, [row for row in rows if row.fits])
            too_large = [row.seq for row in rows if not row.fits]
            work.advance(len(some) - len(too_large))
            seqs = too_large + seqs
        return seqs

    async def _store(self, work: _Work, rows: Sequence[Any]) -> None:
        sqlite = self._database.is_sqlite
        changed = await asyncio.to_thread(lambda: [each for row in rows if (each := _indexed(row, sqlite=sqlite))])
        for some in _by_weight(changed):
            work.is_clean = False
            try:
                stored = await self._database.write(index.store, words.fingerprint(), some, self._cap)
            except Busy:  # one turn of too many words must not stand before all older ones
                work.skipped += len(some)
                continue
            work.was_overtaken |= stored < len(some)
            work.done -= len(some) - stored

    async def _pause(self, work: _Work) -> None:
        """Leaves SQLite's lock to others between two writes; while text is analyzed it is free anyway."""
        if self._database.is_sqlite and not work.is_clean:
            await asyncio.sleep(PAUSE_SECONDS)

    @property
    def _is_digested(self) -> bool:
        """The store has no versions of rows, so that a finished turn's change shows only when it is read."""
        return self._database.is_sqlite

    async def _sweep(self, version: Hashable) -> None:
        """Goes on with the look at every turn, for a moment, when one is due."""
        if time.monotonic() < self._sweep_at or (version is not None and self._swept == version):
            return
        if self._swept_to == survey.AFTER_ALL:
            self._sweeping = version
        work = _Work(time.monotonic() + SWEEP_SECONDS, lambda done, todo: None)
        try:
            while not work.is_over and (seqs := await self._database.read(survey.registered, self._swept_to)):
                left = await self._read(work, seqs)
                # those left begin with the newest of them
                self._swept_to = left[0] + 1 if left else seqs[-1]
            if not work.is_over:
                self._swept_to, self._swept = survey.AFTER_ALL, self._sweeping
                self._sweep_at = time.monotonic() + LOOK_EVERY_SECONDS
        except (Busy, ReadOnly):  # the next search meets it, too
            return


def _indexed(row: Any, *, sqlite: bool) -> Indexed | None:
    """What is stored of a turn, or None when that has not changed."""
    cells = index.cells_of(row)
    marker = index.marker_of(row)
    finished = read_status(cells.status).state in FINISHED
    settled = (row.last_updated or "") if finished and row.version is None else None
    if (row.marker, row.fingerprint, row.settled) == (marker, words.fingerprint(), settled):
        return None
    texts = read_texts(cells)
    fields = {} if texts.incognito else {name: words.lexemes(texts.field(name)) for name in FIELDS}
    title = None if texts.incognito or texts.title is None else plain(texts.title).replace("\0", " ")
    owner = set() if row.owner is None else {index.lexeme_of(row.owner)}
    weight = sum(map(len, fields.values()))
    stored = {name: index.written(found | owner, sqlite=sqlite) for name, found in fields.items() if found}
    return Indexed(row.seq, row.id, marker, row.marker, settled, texts.incognito, title, stored, weight)


def _slices(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _by_weight(turns: Iterable[Indexed]) -> Iterator[list[Indexed]]:
    """As many turns together as one short transaction stores."""
    some: list[Indexed] = []
    weight = 0
    for turn in turns:
        if some and (weight + turn.weight > _LEXEMES_A_WRITE or len(some) == _TURNS_A_WRITE):
            yield some
            some, weight = [], 0
        some.append(turn)
        weight += turn.weight
    if some:
        yield some
