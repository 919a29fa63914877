"""Raw paths and query strings: what is accepted, and every refusal with the parameter it names."""

from collections.abc import Callable
from urllib.parse import quote

import pytest

from sidecar.errors import ParameterInvalid, SessionIdInvalid
from sidecar.params import (
    IndexQuery,
    RetireRequest,
    TurnsQuery,
    index_query,
    parse_session_id,
    retire_request,
    turns_query,
)

QUERIES: dict[str, Callable[[bytes], object]] = {
    "index": index_query,
    "turns": lambda query: turns_query("chat-1", query),
    "retire": lambda query: retire_request("chat-1", query),
}


@pytest.mark.parametrize(
    "session_id",
    [
        "chat-1",
        "chat-a/b",
        "chat-x/turns",
        "..",
        "chat-%41",
        "chat-a+b c",
        "chat-?limit=1#x",
        "聊天-🙂",
        "chat-\u202eabc",
        "\ufffd",
        "x" * 255,
        "🙂" * 255,
    ],
)
def test_an_id_survives_its_way_through_the_path(session_id: str) -> None:
    """Percent-encoding an id and reading it from the raw path gives the same id."""
    assert session_id == parse_session_id(quote(session_id, safe="").encode())
    assert session_id == parse_session_id("".join(f"%{byte:02x}" for byte in session_id.encode()).encode())


def test_unencoded_utf8_and_plus_are_taken_as_they_are() -> None:
    """A plus sign is no space in a path, and a server may hand on raw UTF-8."""
    assert parse_session_id("chat-é+1".encode()) == "chat-é+1"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"%",
        b"%4",
        b"%zz",
        b"chat-%4g",
        b"chat-%%41",
        b"%ff",
        b"chat-%FF%FE",
        b"%c3",
        b"%c0%80",
        b"%ed%a0%80",
        b"%f4%90%80%80",
        b"\xff",
        b"%00",
        b"chat-%0d%0aX: y",
        b"chat-%1f",
        b"chat-%7f",
        b"chat-%c2%85",
        b"x" * 256,
        "é".encode() * 256,
    ],
)
def test_refused_ids(raw: bytes) -> None:
    """Broken encodings, control characters and wrong lengths never become another session's id."""
    with pytest.raises(SessionIdInvalid):
        parse_session_id(raw)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"", IndexQuery(50, False, None)),
        (b"&&", IndexQuery(50, False, None)),
        (b"limit=1", IndexQuery(1, False, None)),
        (b"limit=200", IndexQuery(200, False, None)),
        (b"limit=201", IndexQuery(200, False, None)),
        (b"limit=9999999999", IndexQuery(200, False, None)),
        (b"%6cimit=%31", IndexQuery(1, False, None)),
        (b"parked=true", IndexQuery(50, True, None)),
        (b"parked=false", IndexQuery(50, False, None)),
        (b"cursor=ab_-%3D&limit=2&parked=true", IndexQuery(2, True, "ab_-=")),
        (b"cursor=a+b", IndexQuery(50, False, "a b")),
        (b"order=created&retire=maybe&x=1&x=2&y", IndexQuery(50, False, None)),
    ],
)
def test_index_queries(query: bytes, expected: IndexQuery) -> None:
    """Defaults, limits lowered to the maximum, and parameters of newer consoles ignored."""
    assert expected == index_query(query)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"", TurnsQuery("chat-1", 50, "activity", None)),
        (b"order=activity", TurnsQuery("chat-1", 50, "activity", None)),
        (b"order=created&limit=3&cursor=x", TurnsQuery("chat-1", 3, "created", "x")),
        (b"parked=nonsense", TurnsQuery("chat-1", 50, "activity", None)),
    ],
)
def test_turns_queries(query: bytes, expected: TurnsQuery) -> None:
    """The order is opt-in; the flags of other routes mean nothing here."""
    assert expected == turns_query("chat-1", query)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"", RetireRequest("chat-1", True, False)),
        (b"retire=true", RetireRequest("chat-1", True, False)),
        (b"retire=false", RetireRequest("chat-1", False, False)),
        (b"retire=false&harvest=false", RetireRequest("chat-1", False, False)),
        (b"if_active=refuse", RetireRequest("chat-1", True, True)),
    ],
)
def test_retire_requests(query: bytes, expected: RetireRequest) -> None:
    """Retiring is the default; clearing and refusing are said explicitly."""
    assert expected == retire_request("chat-1", query)


@pytest.mark.parametrize("route", ["index", "turns"])
@pytest.mark.parametrize(
    "value",
    [
        "",
        "0",
        "00",
        "01",
        "-1",
        "+5",
        "1_0",
        "%2010",
        "1.0",
        "1e2",
        "abc",
        "0x10",
        "٣",
        "10000000000",
        "9" * 5000,
        "1%00",
    ],
)
def test_refused_limits(route: str, value: str) -> None:
    """Only a plain positive integer is a limit: Python's own reading would accept far more."""
    with pytest.raises(ParameterInvalid, match="`limit`"):
        QUERIES[route](f"limit={value}".encode())


@pytest.mark.parametrize(
    ("route", "query", "named"),
    [
        ("index", b"limit=1&limit=1", "`limit`"),
        ("index", b"limit=1&%6cimit=2", "`limit`"),
        ("index", b"parked", "`parked`"),
        ("index", b"parked=", "`parked`"),
        ("index", b"parked=True", "`parked`"),
        ("index", b"parked=1", "`parked`"),
        ("index", b"parked=true&parked=true", "`parked`"),
        ("index", b"cursor=a&cursor=b", "`cursor`"),
        ("index", b"x=%zz", "query"),
        ("index", b"%ff=1", "query"),
        ("turns", b"order=", "`order`"),
        ("turns", b"order=newest", "`order`"),
        ("turns", b"order=created&order=created", "`order`"),
        ("turns", b"limit=%ED%A0%80", "query"),
        ("retire", b"retire=no", "`retire`"),
        ("retire", b"retire=0", "`retire`"),
        ("retire", b"retire", "`retire`"),
        ("retire", b"retire=FALSE", "`retire`"),
        ("retire", b"retire=false+", "`retire`"),
        ("retire", b"retire=false&retire=true", "`retire`"),
        ("retire", b"if_active=allow", "`if_active`"),
        ("retire", b"if_active=", "`if_active`"),
        ("retire", b"harvest=true", "`harvest`"),
        ("retire", b"Retire=false", "`Retire`"),
        ("retire", b"limit=50", "`limit`"),
        ("retire", b"dry_run=true", "`dry_run`"),
        ("retire", b"=", "``"),
    ],
)
def test_refused_queries(route: str, query: bytes, named: str) -> None:
    """Unknown values and repetitions are refused everywhere, unknown parameters on a deletion; each is named."""
    with pytest.raises(ParameterInvalid, match=named):
        QUERIES[route](query)
