"""The commands that ask a running sidecar: the same answers as from the database, and what may come instead of one."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import Result
from starlette.applications import Starlette
from starlette.routing import Mount

from sidecar.app import create_app
from sidecar.flags import ANSWER_SECONDS
from sidecar.remote import Remote, RemoteError
from tests import rig
from tests.test_cli import cli, on_sqlite, on_terminal, run, some_sessions
from tests.test_paths import serving as serving_app
from tests.test_process import PATIENCE_SECONDS, command, environment, serving

INDEX = b'{"sessions":[]}'
JSON = "application/json"


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    """A file that holds the operator token."""
    return secret(tmp_path / "token", rig.TOKEN)


def secret(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return str(path)


async def asked(url: str, token_file: str, *arguments: str, answer: str = "", **environ: str) -> Result:
    """One command over HTTP, in a thread: it runs an event loop of its own."""
    done = await asyncio.to_thread(run, *arguments, "--url", url, "--token-file", token_file, answer=answer, **environ)
    assert rig.TOKEN not in done.output
    return done


class Foreign(ThreadingHTTPServer):
    """A server that is no sidecar: it answers everything alike, and keeps what it was asked."""

    def __init__(
        self, status: int, kind: str, body: bytes, seconds: float = 0, headers: rig.Json | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.status, self.kind, self.body, self.seconds, self.headers = status, kind, body, seconds, headers or {}
        self.asked: list[tuple[str, str | None]] = []
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that refuses our certificate, or is gone, is what some tests are about."""


class Answering(BaseHTTPRequestHandler):
    server: Foreign

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        time.sleep(self.server.seconds)
        self.send_response(self.server.status)
        headers = {"Content-Type": self.server.kind, "Content-Length": str(len(self.server.body))}
        for name, value in (headers | self.server.headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.body)

    do_DELETE = do_GET  # noqa: N815  # the name that the standard library calls

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


@contextmanager
def answering(server: Foreign) -> Iterator[Foreign]:
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def shown(done: Result) -> tuple[int, str, str]:
    """What a command did, but for how the search looked for changes."""
    return done.exit_code, re.sub(r'"checked":"\w+"', "", done.stdout), done.stderr


# --- both ways


READINGS = (
    ["sessions"],
    ["sessions", "--parked"],
    ["sessions", "--limit", "1"],
    ["turns", "chat-a"],
    ["turns", "chat-研究", "--order", "created"],
    ["turns", "chat-a", "--limit", "1"],
    ["turns", "chat-unknown"],
    ["turns", "chat-\n"],
    ["turns", "chat-" + "x" * 300],
    ["search", "first", "line"],
    ["search", "first", "--limit", "1", "--all"],
    ["search", "the"],
    ["search", "第一"],
    ["search", "first", "--after", "none"],
    ["search", " "],
)


async def test_readings_are_the_same_both_ways(store: rig.Store, token_file: str) -> None:
    """Piped, a reading command prints the same bytes and ends the same, whichever way it takes."""
    await some_sessions(store)
    with serving(store.url) as sidecar:
        for arguments in READINGS:
            stored = shown(await cli(store, *arguments))
            assert stored == shown(await asked(sidecar.url, token_file, *arguments)), arguments


async def test_deletions_are_the_same_both_ways(store: rig.Store, token_file: str) -> None:
    """Of two sessions alike the one deleted over HTTP is answered as the one deleted on the database, refusals too."""
    for name in ("chat-1", "chat-2"):
        await store.turn(name)
        await store.turn(name, state="input-required")
    refusing = ["--if-active", "refuse"]
    with serving(store.url) as sidecar:
        for name, *flags in (["clear", *refusing], ["retire", *refusing], ["clear"], ["retire"], ["retire"], ["clear"]):
            arguments = [name, "--yes", *flags, "other", "chat-\n", "\udcff"]
            stored = shown(await cli(store, *arguments, "chat-1"))
            code, out, err = shown(await asked(sidecar.url, token_file, *arguments, "chat-2"))
            assert stored == (code, out.replace("chat-2", "chat-1"), err.replace("chat-2", "chat-1"))
    audit = await store.raw("SELECT action, token FROM tasks_retirements ORDER BY id")
    by_both = [("clear", "cli"), ("clear", "operator"), ("retire", "cli"), ("retire", "operator")]
    assert by_both == [tuple(row) for row in audit[:4]]


@on_sqlite
async def test_a_terminal_shows_the_same_both_ways(store: rig.Store, token_file: str) -> None:
    """On a terminal the tables and the remarks below them are the same."""
    await some_sessions(store)
    with serving(store.url) as sidecar:
        remote = ["--url", sidecar.url, "--token-file", token_file]
        for arguments in (["sessions", "--limit", "2"], ["turns", "chat-a"], ["search", "first", "the"]):
            stored = await asyncio.to_thread(on_terminal, *arguments, SIDECAR_DATABASE_URL=store.url)
            assert stored == await asyncio.to_thread(on_terminal, *arguments, *remote)


@on_sqlite
async def test_any_id_below_any_path(store: rig.Store, token_file: str) -> None:
    """An id reaches the sidecar as it is, whatever stands in it and wherever the sidecar is mounted."""
    inner = create_app(rig.config_for(store, session_prefix=""))
    app = Starlette(routes=[Mount("/side car", inner)], lifespan=inner.router.lifespan_context)
    async with serving_app(app) as peer:
        url = f"http://localhost:{peer.port}/side%20car/"
        for session_id in (".", "..", "a/b", "%2F", "a?b#c", "研究 ", "+"):
            await store.turn(session_id, text=session_id)
            done = await asked(url, token_file, "turns", session_id)
            assert [session_id] == [each["text"] for each in json.loads(done.stdout)["turns"]]
            done = await asked(url, token_file, "retire", "--yes", session_id)
            assert (session_id, 1) == tuple(json.loads(done.stdout)[key] for key in ("session_id", "turns_deleted"))


# --- many deletions


@on_sqlite
async def test_ids_from_stdin(store: rig.Store, token_file: str) -> None:
    """Ids are read from stdin, one a line; one that fails is told of at the end, and the others are deleted."""
    await some_sessions(store)
    lines = "chat-a\r\n\nother\nchat-\udcff\nchat-c"
    with serving(store.url) as sidecar:
        done = await asyncio.to_thread(
            subprocess.run,
            command("retire", "--yes", "-", "chat-研究", "--url", sidecar.url, "--token-file", token_file),
            input=lines.encode(errors="surrogateescape"),
            capture_output=True,
        )
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert ["chat-a", "other", "chat-\udcff", "chat-c", "chat-研究"] == [each["session_id"] for each in answers]
        assert [True, False, False, True, True] == [each["deleted"] for each in answers]
        errors = done.stderr.decode().splitlines()
        assert ["error: other", "error: chat-\ufffd"] == [
            line.split(": Only")[0].split(": An id")[0] for line in errors[:2]
        ]
        assert (1, "retired: 3, failed: 2, turns deleted: 4, active among them: 1") == (done.returncode, errors[2])
        assert [] == sidecar.get().json()["sessions"]
        nothing = await asked(sidecar.url, token_file, "clear", "--yes", "-")
        assert (0, "", "cleared: 0") == (nothing.exit_code, nothing.stdout, nothing.stderr.partition(",")[0])


@on_sqlite
async def test_progress_over_http(store: rig.Store, token_file: str) -> None:
    """On a terminal many ids advance a bar, unless their answers are printed there."""
    with serving(store.url) as sidecar:
        many = ["retire", "--yes", *(f"chat-{n}" for n in range(20)), "--url", sidecar.url, "--token-file", token_file]
        watched = await asyncio.to_thread(on_terminal, *many)
        assert re.search(r"0%.*50%.*100%\s+retired: 20, failed: 0, turns deleted: 0", watched, re.S), watched
        printed = await asyncio.to_thread(on_terminal, *many, "--json")
        assert ("%" in printed, 20) == (False, printed.count('"deleted": true'))


def test_ctrl_c_ends_many_deletions(token_file: str) -> None:
    """Ctrl-C ends the command: what was not begun is not done, and what was done is told."""
    with answering(Foreign(200, JSON, b'{"deleted":true,"turns_deleted":0,"active_turns":0}', seconds=0.2)) as server:
        ids = [f"chat-{n}" for n in range(100)]
        arguments = command("retire", "--yes", *ids, "--url", server.url, "--token-file", token_file)
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(server.asked) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=PATIENCE_SECONDS)
        assert 1 == process.returncode
        assert re.fullmatch(r"retired: \d+, failed: 0, .*\n\nAborted!\n", told), told
        assert 0 < int(told.split(",")[0].split()[1]) <= len(server.asked) < 50


def test_ctrl_c_waits_for_no_answer(token_file: str) -> None:
    """A sidecar that says nothing holds up nobody who has had enough."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_SECONDS)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        arguments = command("retire", "--yes", "chat-a", "--url", url, "--token-file", token_file)
        with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                assert 1 == process.wait(ANSWER_SECONDS / 3)


# --- what comes instead of an answer


@on_sqlite
async def test_problems_are_told_by_their_detail(bare_store: rig.Store, token_file: str, tmp_path: Path) -> None:
    """A refused token and a store that is missing end the command with 1 and the sidecar's own words."""
    other = secret(tmp_path / "other", "another-token-0123456789")
    with serving(bare_store.url) as sidecar:
        for name in ("sessions", "turns chat-a", "search x"):
            refused = await asked(sidecar.url, other, *name.split())
            assert (1, "") == (refused.exit_code, refused.stdout)
            assert re.fullmatch(r"error: .+ \(unauthorized\)\n", refused.stderr), refused.stderr
            missing = await asked(sidecar.url, token_file, *name.split())
            assert re.fullmatch(r"error: There is no database file .* \(task_store_missing\)\n", missing.stderr)
        deleted = await asked(sidecar.url, other, "retire", "--yes", "chat-a", "chat-b")
        assert (1, 2) == (deleted.exit_code, deleted.stdout.count('"code": "unauthorized"'))
        bare = await asyncio.to_thread(run, "sessions", "--url", sidecar.url)
        told = "error: Send `Authorization: Bearer <token>`. Name a file that holds one: --token-file. (unauthorized)\n"
        assert (1, told) == (bare.exit_code, bare.stderr)


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (200, "text/html", b"<h1>Sign in</h1>"),
        (200, JSON, b"<h1>Sign in</h1>"),
        (200, JSON, b"[1]"),
        (200, JSON, b'{"result":1}'),
        (200, JSON, b'{"sessions":' + b"[" * 100_000),
        (404, JSON, b'{"detail":"Not Found"}'),
        (503, "text/html", b"<h1>Service Unavailable</h1>"),
        (500, "application/problem+json", b"[]"),
    ],
)
async def test_what_no_sidecar_says(status: int, kind: str, body: bytes, token_file: str) -> None:
    """An answer that is none of a sidecar's is one line that says so, and nothing of it is printed."""
    with answering(Foreign(status, kind, body)) as server:
        done = await asked(server.url, token_file, "sessions")
        assert (1, "") == (done.exit_code, done.stdout)
        expected = f"error: {server.url} answers {status} with {kind}, as no sidecar does; "
        assert (expected, 1) == (done.stderr[: len(expected)], done.stderr.count("\n"))


async def test_a_foreign_answer_redraws_no_terminal(token_file: str) -> None:
    """What another server says about itself is shown without its control characters."""
    problem = b'{"code":"busy","detail":"\\u001b[2Jgone"}'
    with answering(Foreign(503, "application/problem+json", problem)) as server:
        assert "error: \ufffd[2Jgone (busy)\n" == (await asked(server.url, token_file, "sessions")).stderr


async def test_the_token_goes_to_the_given_address_alone(token_file: str) -> None:
    """A redirect is not followed, and a proxy of the environment is not used."""
    with answering(Foreign(200, JSON, INDEX)) as other, answering(Foreign(200, JSON, INDEX)) as server:
        proxies = {"http_proxy": other.url, "ALL_PROXY": other.url}
        done = await asked(server.url, token_file, "sessions", **proxies)
        assert (0, '{"sessions":[]}\n') == (done.exit_code, done.stdout)
        assert [("/api/chat/sessions?limit=50", f"Bearer {rig.TOKEN}")] == server.asked
        with answering(Foreign(302, "text/plain", b"", headers={"Location": other.url})) as redirecting:
            done = await asked(redirecting.url, token_file, "sessions")
        assert (1, "answers 302") == (done.exit_code, done.stderr[done.stderr.index("answers") :][:11])
        assert [] == other.asked


async def test_nobody_answers(token_file: str) -> None:
    """An unknown host, a closed port and an answer that breaks off are told in one line, and end with 1."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    urls = {f"http://127.0.0.1:{port}": "Connection refused; .+", "http://nobody.invalid": ".+"}
    with answering(Foreign(200, JSON, INDEX, headers={"Content-Length": "1000"})) as server:
        for url, reason in {**urls, server.url: ".*more expected.*", f"http://{'x' * 70}.invalid": ".+"}.items():
            done = await asked(url, token_file, "sessions")
            assert (1, "") == (done.exit_code, done.stdout)
            told = done.stderr.splitlines()[-1]
            assert re.fullmatch(rf"error: {url} does not answer: {reason}\. \(remote_unreachable\)", told), told
        done = await asked(server.url.replace("http:", "https:"), token_file, "sessions")
        assert "does not answer: TLS fails (WRONG_VERSION_NUMBER); a sidecar without a proxy" in done.stderr


def test_a_silent_server_is_given_up() -> None:
    """Who says nothing for as long as is allowed is not waited for any longer; the next request is a new one."""
    with answering(Foreign(200, JSON, INDEX, seconds=0.5)) as server:
        remote = Remote(server.url, None, seconds=0.1)
        with pytest.raises(RemoteError, match=r"does not answer: timed out; "):
            remote.sessions(1, parked=False)
        server.seconds = 0
        assert (INDEX, False) == remote.sessions(1, parked=False)


# --- TLS


def certificate(folder: Path, name: str) -> str:
    """A certificate that nobody vouches for, its key in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which makes the certificate")
    made, key = folder / f"{name}.pem", folder / f"{name}.key"
    options = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name}"
    alternative = ["-addext", f"subjectAltName=IP:{name}"]
    files = ["-keyout", str(key), "-out", str(made)]
    subprocess.run(["openssl", *options.split(), *alternative, *files], check=True, capture_output=True)
    made.write_text(made.read_text() + key.read_text())
    return str(made)


@contextmanager
def answering_by_tls(certificate_file: str) -> Iterator[Foreign]:
    server = Foreign(200, JSON, INDEX)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.scheme = "https"
    with answering(server):
        yield server


async def test_a_certificate_is_verified(tmp_path: Path, token_file: str) -> None:
    """A certificate that nobody vouches for, or of another name, is refused before anything is sent."""
    ours, other = certificate(tmp_path, "127.0.0.1"), certificate(tmp_path, "127.0.0.2")
    with answering_by_tls(ours) as server:
        done = await asked(server.url, token_file, "sessions")
        assert (1, "") == (done.exit_code, done.stdout)
        assert "does not answer: self-signed certificate; SSL_CERT_FILE may name" in done.stderr
        assert [] == server.asked
        trusted = await asked(server.url, token_file, "sessions", SSL_CERT_FILE=ours)
        assert (0, '{"sessions":[]}\n', "") == (trusted.exit_code, trusted.stdout, trusted.stderr)
    with answering_by_tls(other) as server:
        done = await asked(server.url, token_file, "sessions", SSL_CERT_FILE=other)
        assert "certificate is not valid for '127.0.0.1'" in done.stderr
        assert [] == server.asked


async def test_a_token_without_tls_is_warned_of(token_file: str) -> None:
    """A token that leaves this machine unencrypted is a warning; none is sent, none is warned of."""
    url = "http://nobody.invalid"
    assert f"warning: {url} is asked without TLS" in (await asked(url, token_file, "sessions")).stderr
    assert "warning" not in (await asyncio.to_thread(run, "sessions", "--url", url)).stderr


# --- usage


async def test_where_the_token_comes_from(tmp_path: Path, token_file: str) -> None:
    """The file of the flag is stronger than that of the environment; one that cannot be read ends with 2."""
    weaker = secret(tmp_path / "weaker", "another-token-0123456789")
    with answering(Foreign(200, JSON, INDEX)) as server:
        await asked(server.url, token_file, "sessions", SIDECAR_TOKEN_FILE=weaker)
        run("sessions", "--url", server.url, SIDECAR_TOKEN_FILE=weaker)
        run("sessions", "--url", server.url)
        assert [f"Bearer {rig.TOKEN}", "Bearer another-token-0123456789", None] == [token for _, token in server.asked]
        done = run("sessions", "--url", server.url, "--token-file", str(tmp_path / "none"))
        assert (2, True) == (done.exit_code, done.stderr.startswith("error: SIDECAR_TOKEN_FILE: "))


async def test_the_environment_names_a_database_too(tmp_path: Path) -> None:
    """Where the environment names the database, a URL on the command line is stronger."""
    with answering(Foreign(200, JSON, INDEX)) as server:
        done = run("sessions", "--url", server.url, SIDECAR_DATABASE_URL=f"sqlite:///{tmp_path}/none.db")
        assert (0, '{"sessions":[]}\n') == (done.exit_code, done.stdout)


@pytest.mark.parametrize(
    "flags",
    [
        "--url http://127.0.0.1 --database-url-file x",
        "--url http://127.0.0.1 --tasks-table x",
        "--url http://127.0.0.1 --session-prefix x",
        "--token-file x",
        "--workspace x",
        "--url ftp://127.0.0.1",
        "--url 127.0.0.1:8765",
        "--url http://",
        "--url http://127.0.0.1:99999",
        "--url http://[::1",
        "--url http://operator:secret@127.0.0.1",
        "--url http://127.0.0.1/?token=x",
        "--url http://127.0.0.1/#x",
    ],
)
def test_flags_that_do_not_fit(flags: str) -> None:
    """Flags of the other way, and what is no base URL, are wrong usage, and said to be."""
    done = run("search", "x", *flags.split())
    assert (2, "") == (done.exit_code, done.stdout)
    assert re.search(r"^Error: --[\w-]+ .+\.$", done.stderr, re.M), done.stderr


def test_stdin_cannot_answer_too() -> None:
    """Ids from stdin need the yes on the command line."""
    done = run("retire", "-", answer="chat-a\n")
    assert (2, "") == (done.exit_code, done.stdout)
    assert "`-` needs --yes" in done.stderr


# --- completion


def completed(*typed: Sequence[str], **environ: str) -> list[list[str]]:
    """What bash, once it has evaluated the script, offers for the last word of each command line."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    lines = ['eval "$(a2a-sidecar completion bash)"']
    for words in typed:
        lines += [
            f"COMP_WORDS=(a2a-sidecar {shlex.join(words)}) COMP_CWORD={len(words)} COMPREPLY=()",
            '_a2a_sidecar_completion a2a-sidecar; echo "${COMPREPLY[*]}"',
        ]
    variables = {**environment("", SIDECAR_TOKEN=""), **environ}
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "--norc", "-c", "\n".join(lines)], env=variables, capture_output=True, text=True)
    assert "" == done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_completion_scripts() -> None:
    """Each shell gets click's script for this command, and no other shell any."""
    for shell, registered in (
        ("bash", "complete -o nosort -F"),
        ("zsh", "#compdef a2a-sidecar"),
        ("fish", "complete "),
    ):
        done = run("completion", shell)
        assert (0, True) == (done.exit_code, registered in done.stdout)
        assert f"_A2A_SIDECAR_COMPLETE={shell}_complete" in done.stdout
    assert 2 == run("completion", "tcsh").exit_code
    assert [["reindex", "retire"], ["created"]] == completed(["re"], ["turns", "--order", "=", "cr"])


def by_bash(url: str) -> list[str]:
    """The address as bash cuts it into words."""
    return re.split("(:)", url)


@on_sqlite
async def test_ids_are_completed_both_ways(store: rig.Store, token_file: str) -> None:
    """The ids that start so are offered, the newest first and at most 50, from the database or the sidecar."""
    for number in range(60):
        await store.turn(f"chat-{number}")
    await store.turn("other")
    newest = [f"chat-{number}" for number in range(59, 9, -1)]
    with serving(store.url) as sidecar:
        ways: tuple[tuple[list[str], dict[str, str]], ...] = (
            ([], {"SIDECAR_DATABASE_URL": store.url}),
            (["--url", *by_bash(sidecar.url), "--token-file", token_file], {}),
        )
        for flags, environ in ways:
            typed = (["turns", *flags, "chat-5"], ["retire", *flags, "chat-1", ""], ["clear", *flags, "oth"])
            offered = await asyncio.to_thread(partial(completed, *typed, **environ))
            assert [[f"chat-{number}" for number in (*range(59, 49, -1), 5)], newest, []] == offered


@on_sqlite
async def test_no_id_is_run_by_the_shell(store: rig.Store) -> None:
    """Any client chooses ids: one that a shell would take apart or run is not offered."""
    for session_id in (
        "chat-研究",
        "chat-$(id)",
        "chat-`id`",
        "chat-a b",
        "chat-;id",
        "chat-*",
        "chat-'",
        "-x",
        "chat-a.b_c",
    ):
        await store.turn(session_id)
    offered = completed(["retire", ""], SIDECAR_DATABASE_URL=store.url, SIDECAR_SESSION_PREFIX="")
    assert [["chat-a.b_c", "chat-研究"]] == offered


def test_a_completion_that_fails_is_silent(tmp_path: Path) -> None:
    """No database, no sidecar, a faulty setting, one that never answers: nothing is offered, nothing said, and soon."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        began = time.monotonic()
        for flags, environ in (
            ("", {"SIDECAR_DATABASE_URL": f"sqlite:///{tmp_path}/none.db"}),
            ("", {"SIDECAR_PORT": "x"}),
            ("", {"SIDECAR_DATABASE_URL": f"postgresql://reader@127.0.0.1:{port}/agent"}),
            (f"--url http://127.0.0.1:{port}", {}),
            ("--url ftp://127.0.0.1", {}),
        ):
            assert [[]] == completed(["turns", *flags.split(), "chat-"], **environ)
        assert time.monotonic() - began < 30
