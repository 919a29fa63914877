"""What an agent asks of its history, and what its runtime says of the run: frozen dataclasses, or a 400 that names the
fault; it reads no store (seed 002).

A model chooses the words and the filters. Whose history is searched follows from the token, and which run asks from
the runtime: neither is among the arguments.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from starlette.datastructures import Headers

from sidecar import params
from sidecar.bodies import Given, check_names, stored_id, text, texts, whole
from sidecar.errors import ParameterInvalid, RunRequired
from sidecar.search.queries import MAX_QUERY_BYTES
from sidecar.wire import iso
from tombstones.state import parse_time

Speaker = Literal["anyone", "requester", "you"]
SPEAKERS: tuple[Speaker, ...] = get_args(Speaker)
DEFAULT_HITS = 8
MAX_HITS = 20
MAX_NUMBER = 9_999_999_999
DEFAULT_EVENTS = 50
MAX_EVENTS = 200
MAX_LOADED = 1000
MAX_LOADED_CHARACTERS = 512
ARGUMENTS = ("query", "speaker", "since", "until", "limit", "conversation_public_id")
LOADED = "loaded_message_ids"
RUN_META, TURN_META, LOADED_META = (f"a2a-sidecar/{name}" for name in ("run-id", "current-turn", "loaded-message-ids"))
RUN_HEADER, TURN_HEADER = "X-Run-Id", "X-Current-Turn"

_PERSPECTIVE = "Whose history is searched follows from the token alone."
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """`history_search`; the times are naive UTC, `since` is the first that counts and `until` the first that does not.

    conversation: the only one to search, whatever its prefix.
    """

    query: str
    speaker: Speaker
    since: datetime | None
    until: datetime | None
    limit: int
    conversation: str | None

    def filters(self) -> dict[str, Any]:
        """All but the words, as they are recorded."""
        return {
            "speaker": self.speaker,
            "since": iso(self.since),
            "until": iso(self.until),
            "limit": self.limit,
            "conversation_public_id": self.conversation,
        }


@dataclass(frozen=True, slots=True)
class Run:
    """What the runtime says: which run asks, the turn that it works on, the messages that its model has before it."""

    id: str
    current_turn: str | None
    loaded: frozenset[str]


@dataclass(frozen=True, slots=True)
class EventsQuery:
    """`search_audit`: so many events older than that one."""

    limit: int
    before: int | None


def recall_body(given: Given) -> tuple[RecallQuery, frozenset[str]]:
    """The members of the route's body: the query, and the ids of loaded messages. Raises ParameterInvalid."""
    check_names(given, (*ARGUMENTS, LOADED), _PERSPECTIVE)
    return _recall(given), _loaded(given, LOADED)


def recall_arguments(given: Given) -> RecallQuery:
    """The same for the arguments of the tool. Raises ParameterInvalid."""
    check_names(given, ARGUMENTS, _PERSPECTIVE)
    return _recall(given)


def run_of(headers: Mapping[str, str], meta: Given, loaded: frozenset[str] = frozenset()) -> Run:
    """The run of a request, by the `_meta` of the tool's call, else by the headers, whose names are in lower case.

    Raises RunRequired without a run's id, and ParameterInvalid for what is none.
    """
    name, run_id = _told(headers, meta, RUN_HEADER, RUN_META)
    if run_id is None:
        raise RunRequired(f"Send the id of the run: the header `{RUN_HEADER}`, or `{RUN_META}` in the call's `_meta`.")
    if not isinstance(run_id, str) or not re.fullmatch("[!-~]{1,128}", run_id):
        raise ParameterInvalid(f"`{name}` is no run's id; send 1 to 128 visible ASCII characters.")
    name, turn = _told(headers, meta, TURN_HEADER, TURN_META)
    return Run(run_id, stored_id({name: turn}, name), loaded | _loaded(meta, LOADED_META))


def header_values(headers: Headers) -> dict[str, str]:
    """The values of headers by their names in lower case, read as UTF-8 where they are that, since a turn's id may be;
    those of a repeated one stand side by side (RFC 9110).
    """
    return {name: ", ".join(map(_in_utf8, headers.getlist(name))) for name in headers}


def _in_utf8(value: str) -> str:
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def events_query(query_string: bytes) -> EventsQuery:
    """Raises ParameterInvalid; a parameter that this server does not know is ignored."""
    given = params.known(params.pairs(query_string), ("limit", "before"))
    before = given.get("before")
    if before is not None and not re.fullmatch("[1-9][0-9]{0,17}", before):
        raise ParameterInvalid("`before` is no event's id; send `pagination.next_before` of the answer before.")
    limit = params.limit(given, DEFAULT_EVENTS, MAX_EVENTS)
    return EventsQuery(limit, None if before is None else int(before))


def _recall(given: Given) -> RecallQuery:
    since, until = _time(given, "since"), _time(given, "until")
    if since is not None and until is not None and since >= until:
        raise ParameterInvalid("`since` is not before `until`, so nothing lies between; send an earlier one.")
    return RecallQuery(
        _query(given),
        _speaker(given),
        since,
        until,
        min(whole(given, "limit", 1, MAX_NUMBER, DEFAULT_HITS), MAX_HITS),
        stored_id(given, "conversation_public_id"),
    )


def _query(given: Given) -> str:
    query = text(given, "query", MAX_QUERY_BYTES, required=True) or ""
    if len(query.encode()) > MAX_QUERY_BYTES:
        raise ParameterInvalid(f"`query` has more than {MAX_QUERY_BYTES} bytes in UTF-8; send fewer words.")
    return query


def _speaker(given: Given) -> Speaker:
    speaker = "anyone" if given.get("speaker") is None else given["speaker"]
    for each in SPEAKERS:
        if speaker == each:
            return each
    raise ParameterInvalid(f"`speaker` takes {' or '.join(SPEAKERS)} and nothing else.")


def _time(given: Given, name: str) -> datetime | None:
    value = given.get(name)
    if value is None:
        return None
    time = parse_time(value.upper()) if isinstance(value, str) and _RFC_3339.fullmatch(value) else None
    if time is None:
        raise ParameterInvalid(f"`{name}` is no time of RFC 3339 with a zone; send one like 2026-01-05T09:00:00Z.")
    return time


def _loaded(given: Given, name: str) -> frozenset[str]:
    return frozenset(texts(given, name, MAX_LOADED, MAX_LOADED_CHARACTERS))


def _told(headers: Mapping[str, str], meta: Given, header: str, key: str) -> tuple[str, Any]:
    """What the runtime says in one of the two places, and the place's name."""
    if meta.get(key) is not None:
        return key, meta[key]
    return header, headers.get(header.lower())
