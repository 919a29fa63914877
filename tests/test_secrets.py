"""No secret and no text of a conversation leaves a real process by a side door, and tokens rotate under load."""

import asyncio
import base64
import hashlib
import re
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests import rig
from tests.postgres import Cluster, Server, children
from tests.test_auth import row
from tests.test_cli import run
from tests.test_degradation import file_of
from tests.test_grants import PASSWORD, address, new_role
from tests.test_process import INDEX, PATIENCE_SECONDS, Sidecar, ended, environment
from tests.test_workers import working

TOKEN = "quartz-lynx-0123456789-ember"
NAMED = "topaz-heron-0123456789-cedar"
WRONG = "umber-badger-0123456789-slate"
TEXT = "saffron-otter"
QUERY = "cobalt-marten"
CLIENTS = 32
SESSION = f"{INDEX}/chat-a"


def told(*texts: str) -> list[str]:
    """Where these texts hold a canary: a token, also in part or as digest, the password, a transcript, a query."""
    tokens = (TOKEN, NAMED, WRONG)
    digests = [hashlib.sha256(token.encode()).hexdigest() for token in tokens]
    encoded = [base64.b64encode(f"operator:{token}".encode()).decode() for token in tokens]
    canaries = "|".join([*(token[: len(token) // 2] for token in tokens), *digests, *encoded, PASSWORD, TEXT, QUERY])
    return [found[0] for text in texts for found in re.finditer(f".{{,60}}(?:{canaries}).{{,60}}", text)]


class Side:
    """Requests to one process, and everything it showed that is no transcript for a reader who may have it."""

    def __init__(self, sidecar: Sidecar, client: httpx.AsyncClient) -> None:
        self.sidecar = sidecar
        self.client = client
        self.shown: list[str] = []
        self.statuses: Counter[int] = Counter()

    async def ask(self, method: str, path: str, token: str = TOKEN, **headers: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}", **headers}
        response = await self.client.request(method, path, headers=headers)
        self.statuses[response.status_code] += 1
        self.shown.append(str(response.headers))
        if response.status_code >= 400:
            self.shown.append(response.text)
        return response

    def send(self, request: bytes) -> None:
        """Bytes that no client library would send; what comes back is shown, but for a good answer's body."""
        host, _, port = self.sidecar.url.removeprefix("http://").rpartition(":")
        answer = b""
        connection = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
        with connection, suppress(OSError):  # it may hang up on us
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while received := connection.recv(65536):
                answer += received
        head, _, body = answer.decode("latin-1").partition("\r\n\r\n")
        status = int(head.split()[1]) if head else 0
        self.statuses[status] += 1
        self.shown += [head] if status == 200 else [head, body]

    def titles(self) -> list[str]:
        """What `ps` shows of the process and its workers."""
        pids = [self.sidecar.process.pid, *children(self.sidecar.process.pid)]
        return [Path(f"/proc/{pid}/{name}").read_text("latin-1") for pid in pids for name in ("cmdline", "comm")]


@asynccontextmanager
async def side_of(url: str, log_format: str, tokens_file: Path, workers: int = 2) -> AsyncIterator[Side]:
    """A process on a store; once it has ended, its log is shown too."""
    settings = {"SIDECAR_TOKEN": TOKEN, "SIDECAR_TOKENS_FILE": str(tokens_file), "SIDECAR_LOG_FORMAT": log_format}
    with working(url, workers, **settings) as sidecar:
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=sidecar.url, timeout=PATIENCE_SECONDS, limits=limits, verify=False
        ) as client:
            side = Side(sidecar, client)
            yield side
        sidecar.process.send_signal(signal.SIGTERM)
        assert 0 == await asyncio.to_thread(sidecar.process.wait, PATIENCE_SECONDS)
    side.shown += sidecar.log


async def fill(store: rig.Store) -> None:
    """Sessions full of canaries, healthy and poisoned."""
    for session_id in ("chat-a", "chat-500", "chat-late"):
        await store.turn(session_id, "working", text=TEXT, prompt=TEXT, metadata={"secret": TEXT}, status_text=TEXT)
    poison = [f'{{"state": "{TEXT}", "x": "\\u0000{TEXT}"}}', f'["{TEXT}"]', f'"{TEXT} \\ud800"']
    if store.kind == "sqlite":
        poison += [f'{{"state": {TEXT}', f'{{"x": NaN, "{TEXT}": 1}}', TEXT]
        await store.insert_raw(status=TEXT.encode() + b"\xff", artifacts=b"\xff" + TEXT.encode(), history=b"\xff")
    for cell in poison:
        await store.insert_raw(status=cell, artifacts=cell, history=cell)


async def refuse_deletion(store: rig.Store, session_id: str, quoted: str = "id") -> None:
    """Somebody else's trigger lets no turn of this session go; PostgreSQL's words quote a column of it."""
    if store.kind == "sqlite":
        when, does = f"WHEN OLD.context_id = '{session_id}'", "BEGIN SELECT RAISE(ABORT, 'it may not go'); END"
    else:
        body = f"BEGIN RAISE EXCEPTION 'the turn % may not go', OLD.{quoted}; END"
        await store.raw(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
        when, does = f"FOR EACH ROW WHEN (OLD.context_id = '{session_id}')", "EXECUTE FUNCTION refuse()"
    await store.raw(f"CREATE TRIGGER refuse BEFORE DELETE ON tasks {when} {does}")


async def reads_and_refusals(side: Side) -> None:
    """Good reads, and a refusal of every kind with canaries wherever a client may put them."""
    for path in (INDEX, f"{INDEX}?parked=true", SESSION, f"{SESSION}/turns", f"{INDEX}/chat-raw/turns"):
        assert 200 == (await side.ask("GET", f"{path}{'&' if '?' in path else '?'}q={QUERY}")).status_code
    assert TEXT in (await side.client.get(f"{SESSION}/turns", headers={"Authorization": f"Bearer {NAMED}"})).text
    for query in ("limit", "parked", "order", "cursor", "token", "access_token", "retire", "if_active"):
        await side.ask("GET", f"{SESSION}/turns?{query}={QUERY}")
        await side.ask("DELETE", f"{SESSION}?{query}={QUERY}")
    await side.ask("GET", f"/{QUERY}?q={QUERY}")
    for method in ("PUT", "BREW"):
        await side.ask(method, f"{INDEX}?q={QUERY}")
    await side.ask("GET", f"{INDEX}?q={QUERY * 1000}")
    await side.ask("GET", f"{INDEX}/%ff{QUERY}")
    await side.ask("DELETE", SESSION, token=NAMED)
    for name in ("Cookie", "Referer", "User-Agent", "X-Forwarded-For", "Proxy-Authorization", "X-Request-Id"):
        await side.ask("GET", INDEX, **{name: f"{TOKEN} {QUERY}"})
    for value in (
        f"Bearer {WRONG}",
        f"Bearer {TOKEN} {QUERY}",
        f"Token {TOKEN}",
        TOKEN,
        "Bearer",
    ):
        await side.ask("GET", f"{INDEX}?q={QUERY}", Authorization=value)
    basic = base64.b64encode(f"operator:{TOKEN}".encode()).decode()
    await side.ask("GET", INDEX, Authorization=f"Basic {basic}")


def hostile(side: Side) -> None:
    """What is no HTTP, or hardly; each with canaries."""
    bearer = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
    for request in (
        f"GET {INDEX}?q={QUERY} HTTP/9.9\r\n".encode() + bearer,
        f"{QUERY}\r\n".encode() + bearer,
        f"GET {INDEX} HTTP/1.1\r\nAuthorization {TOKEN}\r\n".encode() + bearer,
        f"GET {INDEX} HTTP/1.1\r\nX-\x00: {TOKEN}\r\n".encode() + bearer,
        f"GET {INDEX} HTTP/1.1\r\nX-Big: {QUERY * 10_000}\r\n".encode() + bearer,
        f"GET http://operator:{TOKEN}@localhost{INDEX} HTTP/1.1\r\n".encode() + bearer,
        f"GET {INDEX} HTTP/1.1\r\nAuthorization: Bearer {NAMED}\r\n".encode() + bearer,
        f"DELETE {SESSION} HTTP/1.1\r\nContent-Length: 99999999\r\n".encode() + bearer,
        f"GET {INDEX} HTTP/1.1\r\nContent-Length: {QUERY}\r\n".encode() + bearer,
        f"GET {INDEX} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n".encode() + bearer + f"\r\n{QUERY}".encode(),
        f"OPTIONS {INDEX} HTTP/1.1\r\nOrigin: https://{QUERY}\r\n".encode() + bearer,
    ):
        side.send(request + b"Connection: close\r\n\r\n")


async def deletions(side: Side, store: rig.Store) -> None:
    """A retirement, a clear, a deletion that fails, and a late row."""
    assert 200 == (await side.ask("DELETE", f"{INDEX}/chat-late")).status_code
    await store.turn("chat-late", text=TEXT)
    assert 200 == (await side.ask("DELETE", f"{SESSION}?retire=false")).status_code
    assert 500 == (await side.ask("DELETE", f"{INDEX}/chat-500")).status_code


async def operations(side: Side) -> None:
    """What a monitor asks."""
    for path in ("/metrics", "/healthz", "/livez", "/readyz", "/openapi.json", "/docs"):
        side.shown.append((await side.ask("GET", path)).text)


def printed(url: str, *commands: str) -> list[str]:
    """What these commands print, out and err."""
    done = [ended(*command.split(), **environment(url, SIDECAR_TOKEN=TOKEN)) for command in commands]
    return [each.stdout + each.stderr for each in done]


@pytest.fixture
async def url(store: rig.Store, server: Server | None) -> AsyncIterator[str]:
    """The address of the store; on PostgreSQL that of a role with a password."""
    if server is None:
        yield store.url
        return
    async with new_role(store, server) as role:
        await store.raw(f"GRANT USAGE, CREATE ON SCHEMA public TO {role}")
        await store.raw(f"GRANT SELECT, DELETE ON tasks TO {role}")
        yield address(store, server, role)


@contextmanager
def gone(store: rig.Store, request: pytest.FixtureRequest) -> Iterator[None]:
    """The server is killed, or the file is another one, of canaries; the server is back afterwards."""
    if store.kind == "sqlite":
        other = file_of(store).with_suffix(".other")
        other.write_text(TEXT * 1000)
        other.replace(file_of(store))
        yield
        return
    cluster = request.getfixturevalue("own_cluster")
    cluster.kill()
    yield
    cluster.start()


@pytest.mark.parametrize(("kind", "log_format"), [("sqlite", "text"), ("postgres", "json")])
async def test_nothing_is_told(
    log_format: str, store: rig.Store, url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Logs, errors, headers, metrics, titles and commands hold no canary, through refusals, faults and a lost store."""
    await fill(store)
    await refuse_deletion(store, "chat-500")
    tokens_file = tmp_path / "tokens.toml"
    tokens_file.write_text(row("named", NAMED))
    async with side_of(url, log_format, tokens_file) as side:
        await reads_and_refusals(side)
        hostile(side)
        await deletions(side, store)
        side.shown += await asyncio.to_thread(printed, url, "config", "check", "retire chat-500 --yes")
        tokens_file.write_text(f'[[token]]\nname = "{WRONG}"\nsha256 = {TOKEN}')
        await operations(side)
        with gone(store, request):
            assert 503 == (await side.ask("GET", f"{SESSION}/turns?q={QUERY}")).status_code
            assert 503 == (await side.ask("DELETE", SESSION)).status_code
            await operations(side)
            side.shown += await asyncio.to_thread(printed, url, "check")
        side.shown += side.titles()
    print(f"\n{store.kind}: {sum(map(len, side.shown)):,} characters looked at, statuses {dict(side.statuses)}")
    assert {200, 400, 401, 403, 404, 405, 413, 414, 500, 503} <= set(side.statuses)
    assert any("traceback" in line.lower() for line in side.sidecar.log)
    assert any("tokens_kept" in line for line in side.sidecar.log)
    assert [] == told(*side.shown)


@pytest.mark.parametrize("kind", ["postgres"])
async def test_a_database_that_quotes_a_row(
    store: rig.Store, sidecar: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault that nobody foresaw is logged by its code and its place: the database's words may quote a turn."""
    await store.turn("chat-a", text=TEXT)
    await refuse_deletion(store, "chat-a", quoted="artifacts")
    assert 500 == (await sidecar.delete(SESSION)).status_code
    assert "P0001" in caplog.text
    assert "_delete_turns" in caplog.text
    assert [] == told(caplog.text)


@pytest.mark.parametrize("kind", ["postgres"])
async def test_a_wrong_password_is_not_told(
    store: rig.Store, cluster: Server, own_cluster: Cluster, tmp_path: Path
) -> None:
    """A server that refuses our password is told of by its SQLSTATE alone."""
    access = own_cluster.data / "pg_hba.conf"
    before = access.read_text("utf-8")
    async with new_role(store, cluster) as role:
        access.write_text(f"host all {role} 127.0.0.1/32 scram-sha-256\n{before}", "utf-8")
        await cluster.execute("SELECT pg_reload_conf()")
        wrong = address(store, cluster, role).replace(PASSWORD, f"{PASSWORD}-of-old")
        tokens_file = tmp_path / "tokens.toml"
        tokens_file.write_text(row("named", NAMED))
        async with side_of(wrong, "text", tokens_file, workers=1) as side:
            assert "28P01" in (await side.ask("GET", INDEX)).json()["detail"]
            await operations(side)
            side.shown += side.titles() + await asyncio.to_thread(printed, wrong, "config", "check")
        access.write_text(before, "utf-8")
        await cluster.execute("SELECT pg_reload_conf()")
    assert [] == told(*side.shown)


@pytest.mark.parametrize(
    "address",
    [
        f"mysql://agent:{PASSWORD}@db/agent",
        f"postgresql://agent:{PASSWORD}@db:port/agent",
        f"postgresql://agent:{PASSWORD}@db/agent?sslmode=none",
        f"postgresql://agent@db/agent?password={PASSWORD}",
        f"postgresql://agent:{PASSWORD}/x@y@db/agent?channel_binding=require",
        f"postgresql:/agent:{PASSWORD}@db",
        PASSWORD,
    ],
)
def test_a_faulty_configuration_is_not_told(address: str, tmp_path: Path) -> None:
    """A fault of a secret setting names the setting and the fix, never the value."""
    tokens_file = tmp_path / "tokens.toml"
    tokens_file.write_text(f"{TOKEN} = ")
    faulty = {"SIDECAR_TOKEN": f"{TOKEN} {WRONG}", "SIDECAR_TOKENS_FILE": str(tokens_file), "SIDECAR_TOKN": NAMED}
    for command in ("config", "serve", "check"):
        done = run(command, SIDECAR_DATABASE_URL=address, **faulty)
        assert 2 == done.exit_code
        assert "SIDECAR_DATABASE_URL" in done.output
        assert [] == told(done.output)


class Clients:
    """Clients that read all the time with the token of the moment, and what they were answered."""

    def __init__(self, url: str, token: str) -> None:
        self.token = token
        self.answers: Counter[int] = Counter()
        self._http = httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, verify=False)
        self._tasks: list[asyncio.Task[None]] = []

    async def status(self, token: str) -> int:
        return (await self._http.get(INDEX, headers={"Authorization": f"Bearer {token}"})).status_code

    async def _read(self) -> None:
        while True:
            self.answers[await self.status(self.token)] += 1

    async def until(self, token: str, status: int) -> float:
        """How many seconds pass until this token is answered so."""
        began = time.monotonic()
        while await self.status(token) != status:
            assert time.monotonic() - began < PATIENCE_SECONDS
        return time.monotonic() - began

    async def __aenter__(self) -> "Clients":
        self._tasks = [asyncio.create_task(self._read()) for _ in range(CLIENTS)]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()


def by_symlink(data: Path, text: str) -> None:
    """A new version as Kubernetes mounts it: a folder of its own, and one link swapped."""
    version = Path(tempfile.mkdtemp(dir=data.parent))
    (version / "tokens").write_text(text)
    link = data.with_suffix(".new")
    link.symlink_to(version.name)
    link.replace(data)


def by_rename(data: Path, text: str) -> None:
    """A new version as an editor or a careful script writes it."""
    new = data / "new"
    new.write_text(text)
    new.replace(data / "tokens")


@pytest.mark.usefixtures("sqlite_suffices")
async def test_rotation_under_load(store: rig.Store, tmp_path: Path, full: bool) -> None:
    """32 clients change from token to token and meet no 401; a dropped token is refused within five seconds."""
    await store.turn("chat-a")
    tokens = [f"{NAMED}-{number}" for number in range(9 if full else 2)]
    data = tmp_path / "data"
    by_symlink(data, row("old", tokens[0]))
    accepted, refused = [], []
    with working(store.url, 1, SIDECAR_TOKEN="", SIDECAR_TOKENS_FILE=str(data / "tokens")) as sidecar:
        async with Clients(sidecar.url, tokens[0]) as clients:
            for number, (old, new) in enumerate(pairwise(tokens)):
                swaps = (by_symlink, by_rename) if number % 2 else (by_rename, by_symlink)
                swaps[0](data, row("old", old) + row("new", new))
                accepted.append(await clients.until(new, 200))
                clients.token = new
                await asyncio.sleep(0.5)
                swaps[1](data, row("new", new))
                refused.append(await clients.until(old, 401))
    print(
        f"\n{store.kind}: {clients.answers.total()} answers to {CLIENTS} clients over {len(accepted)} rotations, "
        f"accepted after {max(accepted):.1f} s, refused after {max(refused):.1f} s at most"
    )
    assert {200} == set(clients.answers)
    assert max(*accepted, *refused) < 5
