"""Bytes that no client of ours sends, over sockets, to a server as `serve` runs it: none fails it or changes a row.

Requests with the right token may do what it allows; they must still be answered without a fault.
"""

import asyncio
import base64
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.app import create_app
from sidecar.routes import SESSIONS
from tests import rig
from tests.test_paths import Peer, serving
from tests.test_store_cases import FORGED, LIMITS, all_text

INDEX = SESSIONS.encode()
VICTIM = INDEX + b"/chat-victim"
BEARER = f"Authorization: Bearer {rig.TOKEN}".encode()
# How long an answer that may never come is waited for.
PATIENCE_SECONDS = 0.3


def sized(full: bool, few: int, many: int, **more: Any) -> settings:
    """How many examples Hypothesis runs: always the same few in the suite, ever new ones at length."""
    return settings(
        max_examples=many if full else few,
        derandomize=not full,
        database=None,
        deadline=None,
        print_blob=True,
        **more,
    )


@dataclass(frozen=True)
class Target:
    """A server, its store, and the event loop of both."""

    runner: asyncio.Runner
    store: rig.Store
    peer: Peer
    log: pytest.LogCaptureFixture

    def attack(self, *exchanges: list[bytes], patience: float = PATIENCE_SECONDS) -> list[int]:
        """The statuses of all answers to all exchanges, each on a connection of its own, several at once."""

        async def attack() -> list[bytes]:
            tasks = (self.peer.exchange(*pieces, patience=patience) for pieces in exchanges)
            return await asyncio.gather(*tasks)

        self.log.clear()
        answers = self.runner.run(attack())
        statuses = []
        for pieces, answer in zip(exchanges, answers, strict=True):
            found = [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]
            assert all(status < 500 for status in found), (pieces, answer)
            statuses += found
        faults = [record for record in self.log.records if record.levelno >= logging.ERROR]
        assert [] == faults, exchanges
        return statuses

    def rows(self) -> str:
        """Everything that any table of the database holds."""
        return self.runner.run(all_text(self.store))

    def kept(self) -> bytes:
        """The turns of the session that nobody may touch."""
        answer = self.runner.run(self.peer.send(f"{SESSIONS}/chat-kept/turns"))
        assert 200 == answer.status
        return answer.body


@pytest.fixture(params=["fast", "plain"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Runner]:
    """An event loop, and a parser of HTTP, with the extra `fast` and without."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if request.param == "fast":
        pytest.importorskip("httptools")
        factory = pytest.importorskip("uvloop").new_event_loop
    else:
        monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
    with asyncio.Runner(loop_factory=factory) as own:
        yield own


@pytest.fixture
def target(runner: asyncio.Runner, store: rig.Store, caplog: pytest.LogCaptureFixture) -> Iterator[Target]:
    """A server on a store of two sessions; our own tables are there already."""
    for session_id in ("chat-victim", "chat-kept"):
        runner.run(store.turn(session_id, "input-required"))
    opened = AsyncExitStack()
    peer = runner.run(opened.enter_async_context(serving(create_app(rig.config_for(store)))))
    attacked = Target(runner, store, peer, caplog)
    attacked.kept()
    yield attacked
    runner.run(opened.aclose())


# --- a fixed corpus -------------------------------------------------------------------------------------------------

IDS = [
    b"%00", b"chat-a%00b", b"chat-victim%00", b"%2F", b"chat-victim%2F", b"%2F..%2F", b"%FF", b"chat-%FF", b"..", b".",
    b"%2e%2e", b"..%2f..%2fetc%2fpasswd", b"%ED%A0%80", b"chat-%C0%AF", b"%", b"%%", b"%zz", b"%u0041",
    b"chat-%E2%80%AE", b"chat-%0d%0aX-Injected:%201", b"chat-%0d%0a%0d%0aHTTP/1.1%20500", b"chat-%7F", b"chat-%C2%85",
    b"chat-\xff", b"chat-\xed\xa0\x80", b"chat-\x00", b"chat-\x7f", b"chat-'%20OR%20'1'='1", b"chat-%25", b"chat-_",
    b"chat-*", b"null", b"{session_id}", b"CHAT-VICTIM", b"chat-victim%20", b"chat-victim;a=b", b"chat-" + b"x" * 251,
    b"chat-" + b"x" * 8_192, b"chat-" + b"x" * 70_000, b"chat-" + b"%00" * 3_000, b"/" * 70, b"chat-a b", b"chat-a\tb",
]  # fmt: skip
TARGETS = [
    b"", b"*", b"/", b"//", b"/..", b"?", b"#", b"\\", b"livez", b"/livez%00", b"/livez/..;" + INDEX,
    b"/livez/../" + INDEX, b"/livez%2f.." + INDEX, b"/docs?" + INDEX, b"/%61pi/chat/sessions",
    b"/api%2Fchat%2Fsessions", b"/API/CHAT/SESSIONS", INDEX + b"/", b"/" + INDEX, b"http://127.0.0.1" + INDEX,
    b"http://evil.example" + INDEX, b"https://[::1", b"evil:443", b"file:///etc/passwd", b"javascript:alert(1)",
    b"/%" * 2_000, b"/" + b"x" * 70_000, b"\xff\xfe\xfd", b"/\x00",
]  # fmt: skip
QUERIES = [
    *(f"limit={value}".encode("utf-8", "surrogatepass") for value in LIMITS),
    *(b"cursor=" + base64.urlsafe_b64encode(json.dumps([1, [], each]).encode()) for each in FORGED), b"limit=%FF",
    b"limit=%00", b"limit=1&limit=2", b"limit", b"=", b"&&==&=&", b"%00=1", b"%FF", b"\xff=\xff", b"limit=%",
    b"parked=TRUE", b"parked=1", b"parked=", b"parked=true&parked=true", b"order=desc", b"order=created%00", b"cursor=",
    b"cursor=%00", b"cursor=" + b"A" * 7_000, b"cursor=" + b"A" * 9_000, b"retire=maybe", b"retire=FALSE", b"retire=",
    b"retire=false&retire=true", b"retire=false%00", b"if_active=", b"if_active=force", b"harvest=true", b"force=1",
    b"session_id=chat-victim", b"token=" + rig.TOKEN.encode(), b"access_token=x", b"%74oken=x", b"x=" + b"y" * 70_000,
]  # fmt: skip
METHODS = [
    b"PUT", b"POST", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT", b"PROPFIND", b"M-SEARCH", b"PRI", b"SOURCE", b"get",
    b"GETT", b"DELETE\x00", b"DEL ETE", b"", b"\xc3\x89", b"X" * 100, b"X" * 70_000,
]  # fmt: skip
HEADERS = [
    # who asks; the right token stands where none belongs
    b"Authorization:", b"Authorization: Bearer", b"Authorization: Bearer \xff",
    b"Authorization: Bearer " + b"x" * 15_000, b"Authorization: Bearer wrong-token-0123456789",
    b"Authorization: Basic " + base64.b64encode(rig.TOKEN.encode()), b"Authorization: " + rig.TOKEN.encode(),
    b"Authorization: Bearer\xa0" + rig.TOKEN.encode(), BEARER + b"x", BEARER[:-1], BEARER + b", Bearer x",
    BEARER + b" x", BEARER + b"\x00", BEARER + b"\r\n" + BEARER, b"Proxy-" + BEARER, b"X-" + BEARER,
    BEARER.replace(b"Authorization", b"Authorization "), BEARER.replace(b"Authorization", b"Authorizat\xc4\xb1on"),
    b"Authorization: Bearer x\r\n" + BEARER, b"Cookie: token=" + rig.TOKEN.encode(), b"X-Original-URL: " + VICTIM,
    b"X-HTTP-Method-Override: DELETE", b"X-Forwarded-For: 127.0.0.1", b"Forwarded: for=127.0.0.1;host=evil",
    # where it is asked
    b"Host: evil.example", b"Host:", b"Host: 127.0.0.1, 127.0.0.1", b"Host: 127.0.0.1@evil", b"Host: \xff",
    b"Host: [::1", b"Host: 127.0.0.1:99999999", b"Origin: null", b"Origin: http://evil.example", b"Origin: \xff",
    b"Referer: \x00",
    # what is wanted
    b"If-None-Match: *", b"If-None-Match: " + b'W/"a",' * 2_000, b"If-None-Match: \xff", b'If-None-Match: "',
    b"Range: bytes=-1", b"Accept-Encoding: gzip;q=x", b"Accept-Encoding: \xff,,;;", b"Accept: \x01",
    b"X-Request-Id: a\r\nX-Request-Id: b", b"X-Request-Id: " + b"a" * 65, b"X-Request-Id: \xff",
    b"Expect: 100-continue", b"Expect: 200-ok", b"Upgrade: websocket",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__", b"Connection: \xff",
    # no header at all
    b":", b": x", b"x", b"\xff: \xff", b"a\x00b: c", b"a: b\x00c", b"a : b", b" a: b", b"a:\r\n b", b"a: b\nc: d",
    b"a: b\rc: d", b"X: x\r\n" * 300 + b"X: x", b"X" * 17_000 + b": x", b"X: " + b"x" * 17_000, b"X: " + b"x" * 70_000,
]  # fmt: skip
BODIES = [
    (b"Content-Length: 70000", b"x" * 70_000), (b"Content-Length: 65536", b"x" * 65_536), (b"Content-Length: 5", b"x"),
    (b"Content-Length: 0", b"x" * 5), (b"Content-Length: -1", b""), (b"Content-Length: +5", b"xxxxx"),
    (b"Content-Length: 0x5", b""), (b"Content-Length: 5, 5", b"xxxxx"),
    (b"Content-Length: 5\r\nContent-Length: 6", b"xxxxxx"), (b"Content-Length:", b""),
    (b"Content-Length: " + b"9" * 30, b""), (b"Content-Length: " + b"9" * 5_000, b""),
    (b"Content-Length: \xd9\xa3", b"xxx"), (b"Transfer-Encoding: chunked", b"5\r\nxxxxx\r\n0\r\n\r\n"),
    (b"Transfer-Encoding: chunked", b"0\r\nX: x\r\n\r\n"),
    (b"Transfer-Encoding: chunked", b"FFFF\r\n" + b"x" * 0xFFFF + b"\r\nFFFF\r\n" + b"x" * 0xFFFF),
    (b"Transfer-Encoding: gzip, chunked", b""), (b"Transfer-Encoding: xchunked", b""), (b"Transfer-Encoding:", b""),
    (b"Content-Length: 4\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"), (b"Content-Type: application/json", b"{"),
]  # fmt: skip
CHUNKS = [b"zz\r\n", b"-1\r\n", b"F" * 17 + b"\r\n", b"5;" + b"x" * 70_000, b"5\r\nxxxxxx\r\n", b"\r\n", b"\xff\r\n"]
NO_REQUESTS = [
    b"", b"\x00" * 1_000, b"\xff" * 1_000, b"\r\n" * 1_000, b"\n", b"GET", b"GET\r\n\r\n", b"GET /\r\n\r\n",
    b" GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/0.9\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTPS/1.1\r\n\r\n", b"GET /livez HTTP/1.1\nHost: localhost\n\n",
    b"GET\t/livez\tHTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 70_000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", b"SSH-2.0-x\r\n", b"\x05\x01\x00",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32), b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50,
]  # fmt: skip


def request(method: bytes, target: bytes, *lines: bytes, body: bytes = b"") -> list[bytes]:
    """One request in one write, from whose end on the server has to close."""
    host = () if any(line.startswith(b"Host:") for line in lines) else (b"Host: 127.0.0.1",)
    head = (method + b" " + target + b" HTTP/1.1", *host, *lines, b"Connection: close", b"", b"")
    return [b"\r\n".join(head) + body]


def corpus(*auth: bytes) -> Iterator[list[bytes]]:
    """All that is fixed, each with these header lines; nothing in it is a plain request for the victim's deletion."""
    for method in (b"GET", b"HEAD", b"DELETE", b"PUT"):
        for each in IDS:
            yield request(method, INDEX + b"/" + each, *auth)
            yield request(method, INDEX + b"/" + each + b"/turns", *auth)
        yield from (request(method, each, *auth) for each in TARGETS)
    for each in QUERIES:
        yield request(b"GET", INDEX + b"?" + each, *auth)
        yield request(b"GET", VICTIM + b"/turns?" + each, *auth)
        yield request(b"DELETE", INDEX + b"/chat-none?" + each, *auth)
    for method in METHODS:
        yield from (request(method, each, *auth) for each in (INDEX, VICTIM, VICTIM + b"/turns", b"/livez", b"*"))
    for each in HEADERS:
        yield request(b"GET", INDEX, *auth, each)
        yield request(b"DELETE", INDEX + b"/chat-none", *auth, each)
    for line, body in BODIES:
        for method in (b"GET", b"DELETE", b"POST"):
            yield request(method, INDEX + b"/chat-none", *auth, line, body=body)
    yield from ([each] for each in NO_REQUESTS)


def batches(exchanges: list[list[bytes]]) -> Iterator[list[list[bytes]]]:
    """Few enough at once for the server's backlog and for one to be found."""
    for start in range(0, len(exchanges), 50):
        yield exchanges[start : start + 50]


def test_hostile_requests_change_nothing(target: Target) -> None:
    """Without a valid token no request is a fault, and no row of any table changes."""
    before, kept = target.rows(), target.kept()
    deletions = [request(b"DELETE", VICTIM, each) for each in [b"X: x", *HEADERS]]
    statuses = set[int]()
    for batch in batches([*corpus(), *deletions]):
        statuses.update(target.attack(*batch))
    assert {400, 401} <= statuses
    assert (before, kept) == (target.rows(), target.kept())


def test_hostile_requests_with_the_token(target: Target) -> None:
    """With the token nothing is a fault either, and only what was named is deleted."""
    kept = target.kept()
    for batch in batches([*corpus(BEARER)]):
        target.attack(*batch)
    assert kept == target.kept()
    answer = target.runner.run(target.peer.send(f"{SESSIONS}/chat-victim/turns"))
    assert (200, 1) == (answer.status, len(answer.json["turns"]))


def test_a_body_is_never_the_next_request(target: Target) -> None:
    """What is announced as a body is thrown away, even when the request was refused before it was read."""
    smuggled = request(b"DELETE", VICTIM, BEARER)[0]
    length = b"Content-Length: %d" % len(smuggled)
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(smuggled), smuggled)
    before = target.rows()
    sent = []
    for method, path in ((b"PUT", b"/livez"), (b"GET", INDEX), (b"POST", b"/nowhere"), (b"DELETE", VICTIM)):
        for line, body in ((length, smuggled), (b"Transfer-Encoding: chunked", chunk)):
            head = b"\r\n".join((method + b" " + path + b" HTTP/1.1", b"Host: 127.0.0.1", line, b"", b""))
            sent += [[head + body], [head, body], [head, body[:50], body[50:]]]
    assert len(sent) == len(target.attack(*sent, patience=5 * PATIENCE_SECONDS))
    assert before == target.rows()


def test_a_body_that_is_none(target: Target) -> None:
    """A body whose chunks make no sense is refused once, and is no fault of the server, before and after the gate."""
    before = target.rows()
    chunked = b"Transfer-Encoding: chunked"
    for auth in ((), (BEARER,)):
        sent = [
            request(method, INDEX + b"/chat-none", *auth, chunked, body=body)
            for method in (b"GET", b"POST")
            for body in CHUNKS
        ]
        assert {400, 401, 404, 405} >= set(target.attack(*sent))
    assert before == target.rows()


def test_a_fragment_names_no_session(target: Target) -> None:
    """A target has no fragment: what follows a `#` is not left out, or `a#b` would delete `a`."""
    fragments = [VICTIM + b"#x", VICTIM + b"#x/turns", VICTIM + b"#", VICTIM + b"?retire=false#x"]
    assert {400} == set(target.attack(*(request(b"DELETE", each, BEARER) for each in fragments)))
    assert 1 == len(target.runner.run(target.peer.send(f"{SESSIONS}/chat-victim/turns")).json["turns"])


# --- a property over bytes ------------------------------------------------------------------------------------------

noise = st.binary(max_size=6)
methods = st.sampled_from([b"GET", b"HEAD", b"DELETE", *METHODS[:-1]]) | noise
pieces = st.sampled_from([
    b"/", b"//", INDEX, VICTIM, b"/chat-a", b"/turns", b"/livez", b"/metrics", b"/openapi.json", b"/docs", b"..",
    b"%2F", b"%00", b"%FF", b"%", b"?", b"&", b"=", b"limit", b"cursor", b"retire", b"false", b"true", b"1", b"#", b"*",
    b"http://127.0.0.1",
])  # fmt: skip
targets = st.lists(pieces | noise, max_size=6).map(b"".join)
versions = st.sampled_from([b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b""])
names = st.sampled_from([
    b"Authorization", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Expect", b"Upgrade", b"Origin", b"Host",
    b"Range", b"If-None-Match", b"Accept-Encoding", b"X-Request-Id", b"Access-Control-Request-Method",
    b"Sec-WebSocket-Key", b"Trailer", b"TE",
])  # fmt: skip
values = st.sampled_from([
    b"", b"0", b"1", b"5", b"-1", b"99999", b"chunked", b"gzip", b"close", b"keep-alive", b"upgrade", b"100-continue",
    b"websocket", b"null", b"*", b'W/"a"', b"Bearer ", b"Bearer x", b"Basic eDp5", b"127.0.0.1", b"x" * 300, b"a,b",
    b"\t", b"\xff",
])  # fmt: skip
lines = st.builds(lambda name, value: name + b": " + value, names | noise, values | noise)
bodies = st.sampled_from([b"", b"{}", b"5\r\nxxxxx\r\n0\r\n\r\n", b"x" * 3_000, b"GET /livez HTTP/1.1\r\n\r\n"]) | noise


@st.composite
def exchanges(draw: st.DrawFn, auth: tuple[bytes, ...]) -> list[bytes]:
    """A request, or nearly one, in the writes that it is sent by."""
    head = [b" ".join(draw(st.tuples(methods, targets, versions))), b"Host: 127.0.0.1", *auth]
    raw = b"\r\n".join([*head, *draw(st.lists(lines, max_size=5)), b"", draw(bodies)])
    for at in draw(st.lists(st.integers(0, len(raw)), max_size=3)):
        raw = raw[:at] + draw(noise) + raw[at + draw(st.integers(0, 4)) :]
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    return [raw[start:end] for start, end in pairwise([0, *cuts, len(raw)])]


@pytest.mark.parametrize("auth", [(), (BEARER,)], ids=["nobody", "operator"])
def test_any_bytes(auth: tuple[bytes, ...], full: bool, target: Target) -> None:
    """Whatever is sent, however it is cut: no fault, the next request is answered, and a stranger changes nothing."""
    before, kept = target.rows(), target.kept()

    @sized(full, 10, 1_000)
    @given(st.lists(exchanges(auth), min_size=1, max_size=20))
    def attack(sent: list[list[bytes]]) -> None:
        target.attack(*sent)
        assert kept == target.kept()

    attack()
    if not auth:
        assert before == target.rows()
