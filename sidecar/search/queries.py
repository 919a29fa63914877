"""Query strings and a tool's arguments to frozen dataclasses, or a 400 that names the fault; it reads no store.

A parameter that is not known here is ignored in a query string, and refused among a tool's arguments: a model that
made it up is better told so. A tool's null is as good as leaving the argument out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from sidecar import params
from sidecar.bodies import shown, stored_id
from sidecar.errors import ParameterInvalid

Archived = Literal["exclude", "include", "only"]
DEFAULT_LIMIT = 20
MAX_LIMIT = 50
MAX_QUERY_BYTES = 1024

_SEARCH = {"query": str, "archived": str, "include_auxiliary": bool, "limit": int, "after": str}
_WINDOW = {"limit": int, "before_position": int, "after_position": int, "include_execution": bool}
_SELECTORS = {"execution_before": str, "execution_prefix": str}
_AROUND, _TOOL_AROUND = "around_turn_public_id", "around_turn_id"
_KINDS = {str: "text", bool: "true or false", int: "a whole number"}


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """`conversation_search` and `session_search` (seed 000); `after` is opaque."""

    query: str
    archived: Archived
    include_auxiliary: bool
    limit: int
    after: str | None


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """`history` and `session_read` (seed 000); at most one of `around` and the two positions is given.

    Without `include_execution` both selectors are None, whatever was sent; `execution_before` is opaque.
    """

    conversation: str
    limit: int
    around: str | None
    before_position: int | None
    after_position: int | None
    include_execution: bool
    execution_before: str | None
    execution_prefix: str | None


def search_query(query_string: bytes) -> SearchQuery:
    """Raises ParameterInvalid."""
    return _search(params.known(params.pairs(query_string), _SEARCH))


def search_arguments(arguments: Mapping[str, Any]) -> SearchQuery:
    """The same for the arguments of `session_search`. Raises ParameterInvalid."""
    return _search(_texts(arguments, _SEARCH))


def history_query(conversation: str, query_string: bytes) -> HistoryQuery:
    """Raises ParameterInvalid."""
    pairs = params.pairs(query_string)
    given = params.known(pairs, {*_WINDOW, _AROUND})
    if _has_execution(given):
        given |= params.known(pairs, _SELECTORS)
    return _history(conversation, given, _AROUND)


def history_arguments(arguments: Mapping[str, Any]) -> HistoryQuery:
    """The same for the arguments of `session_read`. Raises ParameterInvalid."""
    kinds = {"session_id": str, _TOOL_AROUND: str, **_WINDOW}
    selectors = {name: value for name, value in arguments.items() if name in _SELECTORS}
    given = _texts({name: value for name, value in arguments.items() if name not in _SELECTORS}, kinds)
    if _has_execution(given):
        given |= _texts(selectors, _SELECTORS)
    return _history(stored_id(given, "session_id") or _missing("session_id"), given, _TOOL_AROUND)


def _search(given: Mapping[str, str]) -> SearchQuery:
    return SearchQuery(
        _keywords(given),
        _archived(given),
        params.flag(given, "include_auxiliary", default=False),
        params.limit(given, DEFAULT_LIMIT, MAX_LIMIT),
        given.get("after"),
    )


def _history(conversation: str, given: Mapping[str, str], around: str) -> HistoryQuery:
    anchors = [name for name in (around, "before_position", "after_position") if name in given]
    if len(anchors) > 1:
        raise ParameterInvalid(f"`{anchors[0]}` and `{anchors[1]}` exclude each other; send one of them.")
    return HistoryQuery(
        conversation,
        params.limit(given, DEFAULT_LIMIT, MAX_LIMIT),
        stored_id(given, around),
        _position(given, "before_position", least=1),
        _position(given, "after_position", least=0),
        _has_execution(given),
        given.get("execution_before"),
        given.get("execution_prefix"),
    )


def _keywords(given: Mapping[str, str]) -> str:
    query = given.get("query", "")
    if not query.strip():
        _missing("query")
    if len(query.encode()) > MAX_QUERY_BYTES:
        raise ParameterInvalid(f"`query` has more than {MAX_QUERY_BYTES} bytes in UTF-8; send fewer keywords.")
    return query


def _archived(given: Mapping[str, str]) -> Archived:
    match params.choice(given, "archived", ("exclude", "include", "only")):
        case "include":
            return "include"
        case "only":
            return "only"
        case _:
            return "exclude"


def _has_execution(given: Mapping[str, str]) -> bool:
    return params.flag(given, "include_execution", default=False)


def _position(given: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", text) or int(text) < least:
        raise ParameterInvalid(f"`{name}` is not a position; send a whole number from {least}.")
    return int(text)


def _missing(name: str) -> NoReturn:
    raise ParameterInvalid(f"`{name}` is missing or blank; send it.")


def _texts(arguments: Mapping[str, Any], kinds: Mapping[str, type[Any]]) -> dict[str, str]:
    """A tool's arguments as a query string would spell them. Raises ParameterInvalid for an unknown name and kind."""
    given: dict[str, str] = {}
    for name, value in arguments.items():
        if name not in kinds:
            raise ParameterInvalid(f"`{shown(name)}` is unknown here; the arguments are {', '.join(kinds)}.")
        if value is not None:
            given[name] = _text(name, value, kinds[name])
    return given


def _text(name: str, value: Any, kind: type[Any]) -> str:
    if type(value) is not kind:
        raise ParameterInvalid(f"`{name}` is not {_KINDS[kind]}; send it as JSON's own kind.")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(max(-1, min(value, 10**10)))  # refused alike, and Python will not write thousands of digits
    if re.search("[\ud800-\udfff]", value):
        raise ParameterInvalid(f"`{name}` holds half of a surrogate pair; send whole characters.")
    text: str = value
    return text
