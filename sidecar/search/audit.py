"""The record of what agents were shown, and the ceiling that is counted from it (seed 002); it searches nothing.

An event is committed before its search is answered, and no word of the query stands in it.
"""

import hashlib
import hmac
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Integer, Select, Text, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sidecar.reading import STATEMENTS_KEPT, Reading, parameter
from sidecar.search.evidence import Json, Key
from sidecar.search.recall_queries import EventsQuery
from sidecar.turns import moment
from sidecar.wire import iso
from tombstones.state import naive_utc
from tombstones.table import Shape

CEILING = 400
"""How many distinct messages a run is shown (seed 002), hits and neighbours together."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A hit to be shown with its neighbours, and the integers that ranked it."""

    key: Key
    before: tuple[Key, ...]
    after: tuple[Key, ...]
    reasons: dict[str, int]

    def within(self, kept: frozenset[Key]) -> "Selected":
        """The same with those of its neighbours that are kept."""
        before, after = (tuple(key for key in side if key in kept) for side in (self.before, self.after))
        return Selected(self.key, before, after, self.reasons)


@dataclass(frozen=True, slots=True)
class Draft:
    """A search to be recorded: who asked, by what filters, what is to be shown, and how much was left out."""

    token: str
    run_id: str
    digest: str
    filters: Json
    selected: tuple[Selected, ...]
    exclusions: dict[str, int]
    request_id: str


@dataclass(frozen=True, slots=True)
class Shown:
    """The messages that a run was shown by its events up to the `last`."""

    last: int
    keys: frozenset[Key]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of a search: its event, and as much of its selection as the run may still be shown."""

    event_id: int
    at: datetime
    selected: tuple[Selected, ...]
    exclusions: dict[str, int]
    exhausted: bool


def digest(audit_key: str, query: str) -> str:
    """The keyed digest of a query, which case and spacing do not change: hexadecimal HMAC-SHA-256."""
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", query).casefold())
    return hmac.new(audit_key.encode(), " ".join(folded.split()).encode(), hashlib.sha256).hexdigest()


async def earlier(conn: Reading, shape: Shape, draft: Draft) -> Sequence[Any]:
    """The id and the selection of each event that showed the draft's run something new."""
    return await conn.fetch(_earlier(shape), _of_run(draft, after=0))


def shown_by(events: Sequence[Any]) -> Shown:
    """What a run was shown by these events; they may be long: call it in a worker thread."""
    hits = (hit for event in events for hit in _decode_selected(event.selected))
    keys = (key for hit in hits for key in (hit, *hit.before, *hit.after))
    last = max((event.id for event in events), default=0)
    return Shown(last, frozenset((key.turn_public_id, key.message_id) for key in keys))


async def record(conn: AsyncConnection, shape: Shape, draft: Draft, before: Shown) -> Recorded:
    """Counts, trims and inserts while no other search of the run does; its transaction is the caller's.

    Of the events of the run only those after `before` are read, so that SQLite's one write lock is held for no thread.
    """
    if not shape.sqlite:  # SQLite has one writer anyway
        await conn.execute(select(func.pg_advisory_xact_lock(_lock_key(shape, draft))))
    meanwhile = await conn.execute(_earlier(shape), _of_run(draft, after=before.last))
    known = before.keys | shown_by(meanwhile.all()).keys
    selected, fresh, left_out = _trimmed(draft.selected, known)
    exclusions = {**draft.exclusions, "budget": left_out}
    exhausted = left_out > 0 or len(known) + fresh >= CEILING
    at = datetime.now(UTC)
    values = {
        "at": at,
        "token": draft.token,
        "run_id": draft.run_id,
        "digest": draft.digest,
        "filters": _json(draft.filters),
        "selected": _json([_hit(each) for each in selected]),
        "exclusions": _json(exclusions),
        "fresh": fresh,
        "exhausted": exhausted,
        "request_id": draft.request_id,
    }
    inserted = await conn.execute(insert(shape.records.events).values(values).returning(shape.records.events.c.id))
    return Recorded(inserted.scalar_one(), at, selected, exclusions, exhausted)


def _lock_key(shape: Shape, draft: Draft) -> int:
    """A key of the advisory lock of one run."""
    named = "\0".join((shape.schema or "", shape.name, draft.token, draft.run_id))
    return int.from_bytes(hashlib.blake2b(named.encode(), digest_size=8).digest(), signed=True)


def _trimmed(selected: Sequence[Selected], known: frozenset[Key]) -> tuple[tuple[Selected, ...], int, int]:
    """As much as the run may still be shown, how many messages of it are new, and how many are left out.

    The first hit that does not fit ends the list; of another's neighbours those before it come first, the nearest of
    them before the other.
    """
    kept: set[Key] = set(known)
    fitting: list[Selected] = []
    for each in selected:
        for key in _keys(each):
            if len(kept) < CEILING:
                kept.add(key)
        if each.key not in kept:
            break
        fitting.append(each.within(frozenset(kept)))
    wanted = {key for each in selected for key in _keys(each)}
    given = {key for each in fitting for key in _keys(each)}
    return tuple(fitting), len(given - known), len(wanted - given)


def _keys(selected: Selected) -> Iterator[Key]:
    yield selected.key
    yield from reversed(selected.before)
    yield from selected.after


class _StoredKey(msgspec.Struct):
    turn_public_id: str
    message_id: str


class _StoredHit(_StoredKey):
    before: list[_StoredKey]
    after: list[_StoredKey]


_decode_selected = msgspec.json.Decoder(list[_StoredHit]).decode


def _hit(selected: Selected) -> Json:
    before, after = ([_named(key) for key in side] for side in (selected.before, selected.after))
    return {**_named(selected.key), "reasons": selected.reasons, "before": before, "after": after}


def _named(key: Key) -> Json:
    turn, message = key
    return {"turn_public_id": turn, "message_id": message}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def events(conn: Reading, shape: Shape, query: EventsQuery, token: str | None) -> Json:
    """The envelope of `search_audit`: the newest events, or those before one; of one token, or of all."""
    before = 2**62 if query.before is None else query.before
    values = {"token": token, "before": before, "rows": query.limit + 1}
    rows = await conn.fetch(_events(shape, token is not None), values)
    shown = rows[: query.limit]
    next_before = shown[-1].id if len(rows) > len(shown) else None
    return {"events": [_event(row) for row in shown], "pagination": {"next_before": next_before}}


def _event(row: Any) -> Json:
    return {
        "event_id": row.id,
        "at": utc(moment(row.at)),
        "token": row.token,
        "run_id": row.run_id,
        "digest": row.digest,
        **{name: msgspec.Raw(getattr(row, name).encode()) for name in ("filters", "selected", "exclusions")},
        "new_messages": row.fresh,
        "search_budget_exhausted": bool(row.exhausted),
        "request_id": row.request_id,
    }


def utc(time: datetime | None) -> str | None:
    """A time as the answers carry it; one without a zone is UTC already."""
    return None if time is None else iso(naive_utc(time))


def _of_run(draft: Draft, after: int) -> Json:
    return {"token": draft.token, "run_id": draft.run_id, "after": after}


@lru_cache(STATEMENTS_KEPT)
def _earlier(shape: Shape) -> Select[Any]:
    events = shape.records.events.c
    of_run = (events.token == parameter("token", Text()), events.run_id == parameter("run_id", Text()))
    return select(events.id, events.selected).where(
        *of_run, events.fresh > 0, events.id > parameter("after", BigInteger())
    )


@lru_cache(STATEMENTS_KEPT)
def _events(shape: Shape, of_token: bool) -> Select[Any]:
    table = shape.records.events
    found = select(table).where(table.c.id < parameter("before", BigInteger()))
    if of_token:
        found = found.where(table.c.token == parameter("token", Text()))
    return found.order_by(table.c.id.desc()).limit(parameter("rows", Integer()))
