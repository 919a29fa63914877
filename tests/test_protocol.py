"""How HTTP is read and written, with and without the extra `fast`: real processes, real sockets."""

import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sidecar.serve import listen
from tests import rig
from tests.test_process import HEADERS, INDEX, PATIENCE_SECONDS, Sidecar, on_sqlite, serving

FAST = ("uvloop", "httptools")
with_and_without_fast = pytest.mark.parametrize("is_fast", [True, False])


@contextmanager
def serving_with(is_fast: bool, store: rig.Store, folder: Path) -> Iterator[Sidecar]:
    """`serve` where the modules of the extra can be imported, or cannot."""
    for name in FAST:
        if is_fast:
            pytest.importorskip(name)
        else:
            (folder / f"{name}.py").write_text("raise ImportError\n")
    with serving(store.url, PYTHONPATH=str(folder)) as sidecar:
        yield sidecar


def sent(sidecar: Sidecar, *pieces: bytes) -> tuple[int, bytes]:
    """How many of the pieces could be sent before the connection was closed, and what came back."""
    host, _, port = sidecar.url.removeprefix("http://").rpartition(":")
    with closing(socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)) as connection:
        for number, piece in enumerate(pieces):
            try:
                connection.sendall(piece)
            except ConnectionError:
                return number, b""
        return len(pieces), connection.recv(1000)


@on_sqlite
@with_and_without_fast
async def test_the_extra_is_used_and_not_missed(is_fast: bool, store: rig.Store, tmp_path: Path) -> None:
    """uvloop and httptools are used where they are installed; a signal ends the process either way."""
    with serving_with(is_fast, store, tmp_path) as sidecar:
        assert 200 == sidecar.get().status_code
        loaded = Path(f"/proc/{sidecar.process.pid}/maps")
        if loaded.exists():  # Linux
            assert [is_fast] * 2 == [bool(re.search(rf"/{name}/.*\.so", loaded.read_text("utf-8"))) for name in FAST]
        assert 0 == sidecar.stop()


@on_sqlite
@with_and_without_fast
async def test_a_head_without_end(is_fast: bool, store: rig.Store, tmp_path: Path) -> None:
    """A request's head that never ends is refused, wherever in it the bytes are; a long body after a head is not."""
    piece = b"x" * 500_000
    with serving_with(is_fast, store, tmp_path) as sidecar:
        for start, each in (
            (b"GET /", piece),
            (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ", piece),
            (b"GET /livez HTTP/1.1\r\nHost: localhost\r\n", b"X: x\r\n" * 80_000),
        ):
            number, _ = sent(sidecar, start, *[each] * 40)
            assert number < 30
        answered, answer = sent(sidecar, b"GET /" + b"x" * 200_000)
        assert (1, b"HTTP/1.1 400 ") == (answered, answer[:13])
        body = b"PUT /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000
        assert b"HTTP/1.1 413 " == sent(sidecar, body)[1][:13]
        assert 200 == sidecar.get().status_code


@on_sqlite
@with_and_without_fast
async def test_a_fragment_is_no_part_of_a_target(is_fast: bool, store: rig.Store, tmp_path: Path) -> None:
    """A bare `#` is refused, and is neither the end of an id nor a part of it; the id itself spells it %23."""
    with serving_with(is_fast, store, tmp_path) as sidecar:
        for session_id in ("chat-a", "chat-a#x"):
            await store.turn(session_id)
        head = (
            b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: " + HEADERS["Authorization"].encode()
        )
        for target in (b"chat-a#x", b"chat-a#", b"chat-a#x/turns", b"chat-a?retire=false#x"):
            _, answer = sent(sidecar, b"DELETE /api/chat/sessions/" + target + head + b"\r\n\r\n")
            assert b"HTTP/1.1 400 " == answer[:13]
            assert is_fast or b"application/problem+json" in answer
        assert {1} == {len(sidecar.get(f"{INDEX}/{each}/turns").json()["turns"]) for each in ("chat-a", "chat-a%23x")}


def test_answers_leave_at_once() -> None:
    """Connections of our listening socket do not wait for the client's acknowledgement before they send the rest."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
