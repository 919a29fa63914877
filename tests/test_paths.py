"""Session ids in raw paths, sent over a socket to a real server, since every HTTP client rewrites some of them."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import event
from starlette.applications import Starlette
from starlette.routing import Mount

from sidecar.app import create_app
from sidecar.routes import SESSIONS
from sidecar.serve import listen, running
from tests import rig


@dataclass(frozen=True)
class Answer:
    """What came back over the socket; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> tuple[int, str]:
        return self.status, self.json["code"]


@dataclass(frozen=True)
class Peer:
    """A running server; `send` takes a target exactly as it goes onto the wire."""

    port: int

    async def exchange(self, *pieces: bytes, patience: float = 30) -> bytes:
        """What comes back for bytes, each piece a write of its own, until the server closes or `patience` seconds."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        answer = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(patience):
                for piece in pieces:
                    if not writer.is_closing():  # uvloop would raise
                        writer.write(piece)
                    await asyncio.sleep(0)
                while chunk := await reader.read(65536):
                    answer += chunk
        writer.transport.abort()
        return answer

    async def send(self, target: str, method: str = "GET") -> Answer:
        lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {rig.TOKEN}"]
        raw = await self.exchange("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
        head, _, body = raw.partition(b"\r\n\r\n")
        status, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        return Answer(int(status.split()[1]), headers, body)

    async def index(self) -> list[str]:
        answer = await self.send(f"{SESSIONS}?limit=200")
        assert 200 == answer.status, answer.body
        return [each["session_id"] for each in answer.json["sessions"]]


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[Peer]:
    """The app on a free port of the loopback, as `a2a-sidecar serve` runs it."""
    with listen("127.0.0.1", 0) as listener:
        async with running(app, listener):
            yield Peer(listener.getsockname()[1])


Serve = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def serve(store: rig.Store) -> AsyncIterator[Serve]:
    """`await serve(prefix, mounted)`: one more server on `store`, with a session prefix, below a path."""
    async with AsyncExitStack() as opened:

        async def start(prefix: str = "chat-", mounted: str = "") -> Peer:
            app = create_app(rig.config_for(store, session_prefix=prefix))
            if mounted:
                app = Starlette(routes=[Mount(mounted, app)], lifespan=app.router.lifespan_context)
            return await opened.enter_async_context(serving(app))

        yield start


@pytest.fixture
async def peer(serve: Serve) -> Peer:
    return await serve()


def on_sqlite(test: Any) -> Any:
    """Paths are read before any database: one kind of it is enough."""
    return pytest.mark.parametrize("kind", ["sqlite"])(test)


async def read(peer: Peer, encoded: str, root: str = SESSIONS) -> list[str]:
    """The texts of the turns of a session, and that its summary and HEAD agree with them."""
    answer = await peer.send(f"{root}/{encoded}/turns")
    assert 200 == answer.status, (encoded, answer.body)
    texts = [turn["text"] for turn in answer.json["turns"]]
    summary = await peer.send(f"{root}/{encoded}")
    assert (len(texts) if texts else "not_found") == summary.json.get("turn_count", summary.json.get("code"))
    return texts


# --- what belongs to the id and what to the route -------------------------------------------------------------------


@on_sqlite
async def test_an_encoded_turns_belongs_to_the_id(store: rig.Store, peer: Peer) -> None:
    """`%2Fturns` is the end of an id, `/turns` the sub-resource: the two sessions are never confused."""
    await store.turn("chat-x", text="short")
    await store.turn("chat-x/turns", text="long")
    await store.turn("chat-x/turns/turns", text="longer")
    assert ["short"] == await read(peer, "chat-x")
    assert ["long"] == await read(peer, "chat-x%2Fturns") == await read(peer, "chat-x%2fturns")
    assert ["longer"] == await read(peer, "chat-x%2Fturns%2Fturns")
    assert "chat-x/turns" == (await peer.send(f"{SESSIONS}/chat-x%2Fturns")).json["session_id"]
    assert 200 == (await peer.send(f"{SESSIONS}/chat-x%2Fturns", "DELETE")).status
    assert {"chat-x", "chat-x/turns/turns"} == set(await peer.index())


HINTED = [
    "chat-a/b", "chat-a/b/turns", "chat-x/turns/turns", "chat-x/turns/", "chat-x/", "chat-x//turns", "chat-x/TURNS",
    "chat-x/%74urns", "chat-x/turns%2F", "/chat-x", "chat-x/./turns", "chat-x/../turns",
]  # fmt: skip


@on_sqlite
@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_an_unencoded_slash_is_no_part_of_an_id(method: str, store: rig.Store, peer: Peer) -> None:
    """Any other path below the sessions is 404 with the hint to write %2F, whatever the method, and deletes nothing."""
    for session_id in ("chat-a", "chat-a/b", "chat-x", "chat-x/", "chat-x/turns", "/chat-x"):
        await store.turn(session_id)
    before = await store.column_text("status")
    for tail in HINTED:
        answer = await peer.send(f"{SESSIONS}/{tail}", method)
        assert (404, "not_found") == answer.problem, tail
        assert "%2F" in answer.json["detail"], tail
    assert before == await store.column_text("status")


@on_sqlite
async def test_a_slash_works_percent_encoded(store: rig.Store, peer: Peer) -> None:
    """Slashes inside an id, first, last and doubled, are read and retired as %2F."""
    ids = ["chat-a/b", "chat-a//b", "chat-a/", "chat-/a", "chat-a/./b", "chat-a/../b", "chat-/turns"]
    for session_id in ids:
        await store.turn(session_id, text=session_id)
    for session_id in ids:
        assert [session_id] == await read(peer, quote(session_id, safe=""))
        assert 1 == (await peer.send(f"{SESSIONS}/{quote(session_id, safe='')}", "DELETE")).json["turns_deleted"]
    assert [] == await peer.index()


@on_sqlite
async def test_405_tells_the_methods(store: rig.Store, peer: Peer) -> None:
    """DELETE on the turns is 405, also of the session `turns`, and nothing is deleted; `Allow` lists what goes."""
    await store.turn("chat-x")
    for target, method, allow in (
        (f"{SESSIONS}/chat-x/turns", "DELETE", "GET, HEAD"),
        (f"{SESSIONS}/turns/turns", "DELETE", "GET, HEAD"),
        (f"{SESSIONS}//turns", "DELETE", "GET, HEAD"),
        (f"{SESSIONS}/chat-x/turns", "POST", "GET, HEAD"),
        (f"{SESSIONS}/chat-x", "POST", "DELETE, GET, HEAD"),
        (f"{SESSIONS}/chat-x", "OPTIONS", "DELETE, GET, HEAD"),
        (SESSIONS, "DELETE", "GET, HEAD"),
    ):
        answer = await peer.send(target, method)
        assert (405, "method_not_allowed") == answer.problem, (target, method)
        assert allow == ", ".join(sorted(answer.headers["allow"].split(", ")))
    assert ["chat-x"] == await peer.index()


# --- what is refused ------------------------------------------------------------------------------------------------

REFUSED = [
    "", "%", "%4", "%zz", "%0", "chat-%", "chat-%zz", "chat-%2", "chat-%2x", "chat-%%41", "chat-%u0041",
    "%00", "chat-a%00b", "chat-%0A", "chat-%0d%0a", "chat-%09", "chat-%1F", "chat-%7F", "chat-%C2%80", "chat-%c2%9f",
    "%FF", "chat-%FF", "chat-%ED%A0%80", "chat-%ed%b0%80", "chat-%ED%A0%BD%ED%B8%80", "chat-%C0%AF", "chat-%E4%B8",
    "chat-%F4%90%80%80", "chat-%F0%9F%98", "chat-%80", "chat-" + "x" * 251, "chat-" + "%F0%9F%98%80" * 251,
]  # fmt: skip


@on_sqlite
async def test_an_id_that_cannot_be_is_refused_before_the_database(store: rig.Store) -> None:
    """No UTF-8, controls, surrogates, overlong forms, bare percent signs, 0 or 256 characters: 400, and no query."""
    app = create_app(rig.config_for(store))
    engine = app.state.database._engine.sync_engine
    opened: list[Any] = []
    event.listen(engine, "connect", lambda *connection: opened.append(connection))
    async with serving(app) as peer:
        for encoded in REFUSED:
            for tail, method in (("", "GET"), ("/turns", "GET"), ("", "DELETE")):
                answer = await peer.send(f"{SESSIONS}/{encoded}{tail}", method)
                assert (400, "session_id_invalid") == answer.problem, (encoded, tail, method)
    assert [] == opened


@on_sqlite
async def test_255_characters_are_an_id(store: rig.Store, peer: Peer) -> None:
    """The bound counts characters, not bytes and not UTF-16 units."""
    for character, (length, status) in itertools.product("xé中😀", ((254, 200), (255, 200), (256, 400))):
        session_id = "chat-" + character * (length - 5)
        await store.turn(session_id)
        assert (session_id in await peer.index()) == (status == 200)
        encoded = quote(session_id, safe="")
        assert status == (await peer.send(f"{SESSIONS}/{encoded}/turns")).status
        assert status == (await peer.send(f"{SESSIONS}/{encoded}", "DELETE")).status


@on_sqlite
async def test_targets_that_clients_tidy_up_are_taken_as_sent(store: rig.Store, serve: Serve) -> None:
    """Nothing is resolved, collapsed or redirected: dots are ids, and a path with an empty piece is another path."""
    peer = await serve("")
    for session_id in (".", "..", "turns", "%2e", "%"):
        await store.turn(session_id, text=session_id)
    for encoded, session_id in (
        (".", "."), ("%2e", "."), ("%2E", "."), ("..", ".."), ("%2e%2e", ".."), (".%2e", ".."),
        ("turns", "turns"), ("%74urns", "turns"), ("%252e", "%2e"), ("%25", "%"),
    ):  # fmt: skip
        assert [session_id] == await read(peer, encoded)
    for target in (
        f"/{SESSIONS}", f"/{SESSIONS}/turns", f"/.{SESSIONS}", f"/x/..{SESSIONS}", f"{SESSIONS}%2Fturns",
        "/api/chat%2Fsessions/turns", "//", "/..",
    ):  # fmt: skip
        answer = await peer.send(target)
        assert (404, "not_found") == answer.problem, target
        assert "location" not in answer.headers
    for session_id in (".", "..", "turns"):
        assert 1 == (await peer.send(f"{SESSIONS}/{session_id}", "DELETE")).json["turns_deleted"]
    assert {"%2e", "%"} == set(await peer.index())


@on_sqlite
async def test_a_reserved_character_needs_no_encoding_where_none_is_meant(store: rig.Store, peer: Peer) -> None:
    """A plus is a plus; `?` ends the path; RFC 3986's other characters stand for themselves, encoded or not."""
    plain = "chat-a+b;c=d,e!$&'()*@:~._-"
    await store.turn(plain, text="plain")
    await store.turn("chat-a b", text="space")
    await store.turn("chat-q", text="query")
    await store.turn("chat-q?limit=1", text="question")
    assert ["plain"] == await read(peer, plain) == await read(peer, quote(plain, safe=""))
    assert ["space"] == await read(peer, "chat-a%20b")
    assert "query" == (await peer.send(f"{SESSIONS}/chat-q/turns?limit=1")).json["turns"][0]["text"]
    assert "chat-q" == (await peer.send(f"{SESSIONS}/chat-q?limit=1")).json["session_id"]
    assert ["question"] == await read(peer, "chat-q%3Flimit=1") == await read(peer, "chat-q%3flimit%3d1")


@on_sqlite
async def test_head_is_get_without_a_body(store: rig.Store, peer: Peer) -> None:
    """HEAD answers every readable path with GET's status and headers, and refuses what GET refuses."""
    for _ in range(2):
        await store.turn("chat-a/b", text="x" * 2000)
    own = ("date", "x-request-id")
    for target in (
        SESSIONS, f"{SESSIONS}?parked=true", f"{SESSIONS}/chat-a%2Fb", f"{SESSIONS}/chat-a%2Fb/turns?limit=1",
        f"{SESSIONS}/chat-none", f"{SESSIONS}/chat-none/turns", f"{SESSIONS}/chat-a/b", f"{SESSIONS}/%00", "/livez",
        "/readyz", "/metrics", "/nowhere",
    ):  # fmt: skip
        get, head = await peer.send(target), await peer.send(target, "HEAD")
        assert b"" == head.body
        kept = [{name: value for name, value in each.headers.items() if name not in own} for each in (get, head)]
        if target == "/metrics":  # counts its own requests
            kept = [{**each, "content-length": ""} for each in kept]
        assert (get.status, kept[0]) == (head.status, kept[1]), target


# --- the invariant --------------------------------------------------------------------------------------------------

PIECES = [
    "/", "//", ".", "..", "/../", "/./", " ", "  ", "%", "%2F", "%25", "%00", "%zz", "?", "#", "+", ";", "=", "&", "'",
    '"', "`", "\\", "<", ">", "{", "}", "|", "^", "[", "]", "@", ":", ",", "$", "!", "*", "(", ")", "~", "_", "turns",
    "/turns", "turns/", "TURNS", "sessions", "é", "e\u0301", "ß", "İ", "中文", "日本", "한", "עב", "😀", "👩\u200d💻",
    "\u202e", "\ufeff", "\u2028", "\u00a0", "\ufffd", "\U0010ffff", "\ue000", "null", "0", "-1", "a", "Z",
]  # fmt: skip


def odd_ids(dice: random.Random, count: int) -> list[str]:
    """Ids of two pieces, until each piece had its turn, then of several; all fit into the SDK's 36 characters."""
    pieces = dice.sample(PIECES, len(PIECES))
    ids = dict.fromkeys(f"chat-{one}{other}" for one, other in zip(pieces[::2], pieces[1::2], strict=True))
    ids |= dict.fromkeys(f"chat-{piece}" for piece in ("", ".", "..", "/turns", "%2F"))
    while len(ids) < count:
        ids[("chat-" + "".join(dice.choices(PIECES, k=dice.randrange(3, 9))))[:36]] = None
    return list(ids)


def encode(session_id: str, dice: random.Random) -> str:
    """One of the many correct spellings: unreserved bytes plain or encoded, hexadecimal digits of either case."""
    spelled = ""
    for byte in session_id.encode():
        plain = chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "-._~") else ""
        choices = [f"%{byte:02X}", f"%{byte:02x}", *([plain] * 4 if plain else [])]
        spelled += dice.choice(choices)
    return spelled


async def test_whatever_is_listed_can_be_read_and_retired(full: bool, store: rig.Store, peer: Peer) -> None:
    """Every odd id that the SDK really saved is listed, opened by any spelling of it, retired, and gone for good."""
    dice = random.Random(7)
    ids = odd_ids(dice, 1000 if full else 70)
    for session_id in ids:
        await store.turn(session_id, text=f"of {session_id}")
    listed = []
    target = f"{SESSIONS}?limit=200"
    while target:
        page = await peer.send(target)
        listed += [each["session_id"] for each in page.json["sessions"]]
        target = page.headers.get("link", "").partition("<")[2].partition(">")[0]
    assert sorted(ids) == sorted(listed)

    for number, session_id in enumerate(listed):
        spelled = encode(session_id, dice)
        turns = await peer.send(f"{SESSIONS}/{spelled}/turns")
        assert [f"of {session_id}"] == [turn["text"] for turn in turns.json["turns"]], spelled
        summary = await peer.send(f"{SESSIONS}/{encode(session_id, dice)}")
        assert (session_id, 1) == (summary.json["session_id"], summary.json["turn_count"]), spelled
        retires = "" if number % 2 else "?retire=false"
        gone = await peer.send(f"{SESSIONS}/{encode(session_id, dice)}{retires}", "DELETE")
        assert (200, session_id, 1) == (gone.status, gone.json["session_id"], gone.json["turns_deleted"]), spelled
    assert [] == await peer.index()
    assert {} == await store.column_text("status")
    retired = {row.session_id for row in await store.raw("SELECT session_id FROM tasks_session_tombstones")}
    assert set(listed[1::2]) == retired


async def test_what_no_path_can_carry_is_not_listed(store: rig.Store, serve: Serve) -> None:
    """Ids with controls, which the SDK saves, are left out of the index, parked or not, and of every page."""
    hidden = ["chat-\n", "chat-\x7f", "chat-\x85", "chat-\t", "chat-\x1b[0m", ""]
    if store.kind == "sqlite":
        hidden += ["chat-\x00", "chat-" + "x" * 251]
    for session_id in [*hidden, "chat-ok", *hidden]:
        await store.turn(session_id, "input-required")
    peer = await serve("")
    assert ["chat-ok"] == await peer.index()
    for flag in ("false", "true"):
        seen, target = [], f"{SESSIONS}?limit=1&parked={flag}"
        while target:
            page = await peer.send(target)
            assert 200 == page.status
            seen += [each["session_id"] for each in page.json["sessions"]]
            target = page.headers.get("link", "").partition("<")[2].partition(">")[0]
        assert ["chat-ok"] == seen


@on_sqlite
async def test_an_undecodable_id_breaks_no_page(store: rig.Store, peer: Peer) -> None:
    """An id on SQLite that is no UTF-8 is left out, also when a page of the index ends at it."""
    await store.turn("chat-old")
    await store.insert_raw(
        context_id=b"chat-\xff", status='{"state": "input-required"}', last_updated="2026-01-06 09:00:00.000000"
    )
    await store.turn("chat-new", at="2026-01-07T09:00:00Z")
    seen, target = [], f"{SESSIONS}?limit=1"
    while target:
        page = await peer.send(target)
        assert 200 == page.status, page.body
        seen += [each["session_id"] for each in page.json["sessions"]]
        target = page.headers.get("link", "").partition("<")[2].partition(">")[0]
    assert ["chat-new", "chat-old"] == seen


# --- below a mount --------------------------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(
    ("mounted", "sent"),
    [
        ("/agent", "/agent"),
        ("/a/b", "/a/b"),
        ("/api/chat/sessions", "/api/chat/sessions"),
        ("/my agent", "/my%20agent"),
        ("/é", "/%C3%A9"),
        pytest.param("/é", "/%c3%a9"),
        pytest.param("/agent", "/%61gent"),
        pytest.param("/~me", "/%7Eme"),
    ],
)
async def test_below_a_mount(mounted: str, sent: str, store: rig.Store, serve: Serve) -> None:
    """Mounted below any path, spelled in any correct way, ids keep their slashes and `Link` stays below the mount."""
    peer = await serve(mounted=mounted)
    for number in range(2):
        await store.turn("chat-a/turns", text=str(number))
    root = f"{sent}{SESSIONS}"
    assert ["chat-a/turns"] == [each["session_id"] for each in (await peer.send(root)).json["sessions"]]
    assert ["0", "1"] == await read(peer, "chat-a%2Fturns", root)
    page = await peer.send(f"{root}/chat-a%2Fturns/turns?limit=1")
    link = page.headers["link"].partition("<")[2].partition(">")[0]
    assert ["0"] == [turn["text"] for turn in (await peer.send(link)).json["turns"]]
    assert (404, "not_found") == (await peer.send(f"{root}/chat-a/b")).problem
    assert (400, "session_id_invalid") == (await peer.send(f"{root}/%00/turns")).problem
    assert 405 == (await peer.send(f"{root}/chat-a%2Fturns/turns", "DELETE")).status
    assert 200 == (await peer.send(f"{root}/chat-a%2Fturns", "DELETE")).status
    assert [] == (await peer.send(root)).json["sessions"]


@on_sqlite
async def test_a_link_leads_back_to_an_id_of_dots(store: rig.Store, open_sidecar: rig.OpenSidecar) -> None:
    """A client that resolves dot segments, as all of them do, still follows the `Link` of the session `..`."""
    client = await open_sidecar(store, session_prefix="")
    for session_id in (".", ".."):
        for number in range(2):
            await store.turn(session_id, text=str(number))
        encoded = session_id.replace(".", "%2E")
        page = await client.get(f"{SESSIONS}/{encoded}/turns?limit=1")
        assert ["1"] == [turn["text"] for turn in page.json()["turns"]]
        older = await client.get(page.links["next"]["url"])
        assert ["0"] == [turn["text"] for turn in older.json()["turns"]]
