"""The search's query strings and tool arguments: what is accepted, and every refusal with the parameter it names."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from sidecar.errors import ParameterInvalid
from sidecar.search.queries import (
    HistoryQuery,
    SearchQuery,
    history_arguments,
    history_query,
    search_arguments,
    search_query,
)

LONGEST = "x" * 1024


def history(query_string: bytes) -> HistoryQuery:
    return history_query("chat-1", query_string)


def read(**arguments: Any) -> HistoryQuery:
    return history_arguments({"session_id": "chat-1", **arguments})


@pytest.mark.parametrize(
    ("query_string", "expected"),
    [
        (b"query=x", SearchQuery("x", "exclude", False, 20, None)),
        (b"query=user+id%2B%E4%BA%BA", SearchQuery("user id+人", "exclude", False, 20, None)),
        (b"query=+the+", SearchQuery(" the ", "exclude", False, 20, None)),
        (b"query=" + LONGEST.encode(), SearchQuery(LONGEST, "exclude", False, 20, None)),
        (b"query=x&archived=exclude", SearchQuery("x", "exclude", False, 20, None)),
        (b"query=x&archived=include", SearchQuery("x", "include", False, 20, None)),
        (b"query=x&archived=only", SearchQuery("x", "only", False, 20, None)),
        (b"query=x&include_auxiliary=true", SearchQuery("x", "exclude", True, 20, None)),
        (b"query=x&include_auxiliary=false", SearchQuery("x", "exclude", False, 20, None)),
        (b"query=x&limit=1", SearchQuery("x", "exclude", False, 1, None)),
        (b"query=x&limit=50", SearchQuery("x", "exclude", False, 50, None)),
        (b"query=x&limit=9999999999", SearchQuery("x", "exclude", False, 50, None)),
        (b"query=x&after=abc", SearchQuery("x", "exclude", False, 20, "abc")),
        (b"query=x&later=1&later=2", SearchQuery("x", "exclude", False, 20, None)),
    ],
)
def test_searches(query_string: bytes, expected: SearchQuery) -> None:
    """Defaults, each value, a limit that is lowered, and what a newer client may send beside them."""
    assert expected == search_query(query_string)


@pytest.mark.parametrize(
    ("query_string", "expected"),
    [
        (b"", HistoryQuery("chat-1", 20, None, None, None, False, None, None)),
        (b"limit=51", HistoryQuery("chat-1", 50, None, None, None, False, None, None)),
        (b"around_turn_public_id=t%2F1", HistoryQuery("chat-1", 20, "t/1", None, None, False, None, None)),
        (b"before_position=1", HistoryQuery("chat-1", 20, None, 1, None, False, None, None)),
        (b"after_position=0", HistoryQuery("chat-1", 20, None, None, 0, False, None, None)),
        (b"after_position=9999999999", HistoryQuery("chat-1", 20, None, None, 9999999999, False, None, None)),
        (
            b"include_execution=true&execution_before=c&execution_prefix=b",
            HistoryQuery("chat-1", 20, None, None, None, True, "c", "b"),
        ),
        (b"execution_before=c&execution_prefix=b", HistoryQuery("chat-1", 20, None, None, None, False, None, None)),
        (
            b"include_execution=false&execution_before=c&execution_before=d",
            HistoryQuery("chat-1", 20, None, None, None, False, None, None),
        ),
        (b"around_turn_id=t&session_id=s", HistoryQuery("chat-1", 20, None, None, None, False, None, None)),
    ],
)
def test_windows(query_string: bytes, expected: HistoryQuery) -> None:
    """One anchor at most, and selectors that have no effect on their own, however wrong they are."""
    assert expected == history(query_string)


REFUSED_SEARCHES: list[tuple[Mapping[str, Any] | bytes, str]] = [
    (b"", "query"),
    (b"query=", "query"),
    (b"query=+%09%E3%80%80", "query"),
    (b"query=" + b"x" * 1025, "query"),
    (b"query=" + b"%E4%BA%BA" * 342, "query"),
    (b"query=a&query=a", "query"),
    (b"query=x&archived=", "archived"),
    (b"query=x&archived=Only", "archived"),
    (b"query=x&include_auxiliary=1", "include_auxiliary"),
    (b"query=x&include_auxiliary=", "include_auxiliary"),
    (b"query=x&limit=0", "limit"),
    (b"query=x&limit=-1", "limit"),
    (b"query=x&limit=05", "limit"),
    (b"query=x&limit=2.0", "limit"),
    (b"query=x&limit=10000000000", "limit"),
    (b"query=x&limit=1&limit=1", "limit"),
    (b"query=x&after=a&after=b", "after"),
    (b"query=%FF", "percent-encoded"),
    (b"query=%4", "percent-encoded"),
    ({}, "query"),
    ({"query": None}, "query"),
    ({"query": "\u3000"}, "query"),
    ({"query": "人" * 342}, "query"),
    ({"query": "\ud800"}, "query"),
    ({"query": 7}, "query"),
    ({"query": ["x"]}, "query"),
    ({"query": "x", "archived": "yes"}, "archived"),
    ({"query": "x", "archived": True}, "archived"),
    ({"query": "x", "include_auxiliary": "true"}, "include_auxiliary"),
    ({"query": "x", "include_auxiliary": 1}, "include_auxiliary"),
    ({"query": "x", "limit": "5"}, "limit"),
    ({"query": "x", "limit": True}, "limit"),
    ({"query": "x", "limit": 5.0}, "limit"),
    ({"query": "x", "limit": 0}, "limit"),
    ({"query": "x", "limit": -(10**5000)}, "limit"),
    ({"query": "x", "limit": 10**5000}, "limit"),
    ({"query": "x", "after": 1}, "after"),
    ({"query": "x", "q": "x"}, "q"),
    ({"query": "x", "\ud800" * 100: 1}, "?" * 64),
]
REFUSED_WINDOWS: list[tuple[Mapping[str, Any] | bytes, str]] = [
    (b"limit=x", "limit"),
    (b"around_turn_public_id=a&before_position=1", "around_turn_public_id"),
    (b"around_turn_public_id=a&after_position=1", "after_position"),
    (b"before_position=1&after_position=1", "before_position"),
    (b"around_turn_public_id=", "around_turn_public_id"),
    (b"around_turn_public_id=a%00", "around_turn_public_id"),
    (b"around_turn_public_id=" + b"x" * 256, "around_turn_public_id"),
    (b"around_turn_public_id=a&around_turn_public_id=a", "around_turn_public_id"),
    (b"before_position=0", "before_position"),
    (b"before_position=01", "before_position"),
    (b"before_position=10000000000", "before_position"),
    (b"after_position=-1", "after_position"),
    (b"after_position=", "after_position"),
    ("after_position=²".encode(), "after_position"),
    (b"include_execution=yes", "include_execution"),
    (b"include_execution=true&execution_before=c&execution_before=c", "execution_before"),
    (b"include_execution=true&execution_prefix=c&execution_prefix=c", "execution_prefix"),
    ({"session_id": None}, "session_id"),
    ({"session_id": ""}, "session_id"),
    ({"session_id": "a\n"}, "session_id"),
    ({"session_id": 1}, "session_id"),
    ({"around_turn_public_id": "t"}, "around_turn_public_id"),
    ({"around_turn_id": "t", "before_position": 1}, "around_turn_id"),
    ({"around_turn_id": "\x00"}, "around_turn_id"),
    ({"before_position": 0}, "before_position"),
    ({"before_position": "1"}, "before_position"),
    ({"after_position": -1}, "after_position"),
    ({"after_position": False}, "after_position"),
    ({"include_execution": "true"}, "include_execution"),
    ({"include_execution": True, "execution_before": 1}, "execution_before"),
    ({"include_execution": True, "execution_prefix": "\udfff"}, "execution_prefix"),
]


def refusal(parse: Callable[..., object], given: object) -> str:
    with pytest.raises(ParameterInvalid) as refused:
        parse(given)
    return refused.value.detail


@pytest.mark.parametrize(("given", "named"), REFUSED_SEARCHES)
def test_refused_searches(given: Mapping[str, Any] | bytes, named: str) -> None:
    """Each refusal names the parameter, in a query string as among a tool's arguments."""
    assert named in refusal(search_query if isinstance(given, bytes) else search_arguments, given)


@pytest.mark.parametrize(("given", "named"), REFUSED_WINDOWS)
def test_refused_windows(given: Mapping[str, Any] | bytes, named: str) -> None:
    """The same for windows; what is refused is named as its sender calls it."""
    parse = history if isinstance(given, bytes) else lambda arguments: read(**arguments)
    assert f"`{named}`" in refusal(parse, given)


def test_a_window_needs_its_session() -> None:
    """The tool has no path: without a session there is nothing to read."""
    assert "`session_id`" in refusal(history_arguments, {})


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "a+b 人", "archived": "include", "include_auxiliary": True, "limit": 7, "after": "abc"},
        {"query": "x", "include_auxiliary": False, "limit": 500},
    ],
)
def test_tools_and_query_strings_agree_on_searches(arguments: dict[str, Any]) -> None:
    """JSON's own kinds and their spelling in a query string are the same search; null is no argument at all."""
    expected = search_query(urlencode(spelled(arguments)).encode())
    assert expected == search_arguments(arguments)
    assert expected == search_arguments({"archived": None, "after": None, **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"around_turn_id": "t-1", "limit": 3},
        {"before_position": 7, "include_execution": True, "execution_before": "c", "execution_prefix": "b"},
        {"after_position": 0, "include_execution": False, "execution_before": 7, "execution_prefix": []},
    ],
)
def test_tools_and_query_strings_agree_on_windows(arguments: dict[str, Any]) -> None:
    """The same for windows, where one name differs; selectors without their flag are not even looked at."""
    given = {"around_turn_public_id" if name == "around_turn_id" else name: arguments[name] for name in arguments}
    assert history(urlencode(spelled(given)).encode()) == read(**arguments)


def spelled(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in arguments.items()}
