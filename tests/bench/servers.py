"""The server processes of a bench: started, awaited, weighed and ended; it sends no request."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bench.worker import ROOT
from tests.postgres import free_port
from tests.rig import TOKEN

START_SECONDS = 20.0


@dataclass(frozen=True)
class Running:
    """A server that accepts connections on a port of 127.0.0.1."""

    process_id: int
    port: int

    def resident_mb(self, peak: bool = False) -> float:
        """Resident memory in MB (10⁶ bytes): now, or at its peak since `forget_peak`."""
        status = Path(f"/proc/{self.process_id}/status").read_text("utf-8")
        found = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024 / 1e6

    def forget_peak(self) -> None:
        """Let the peak begin anew."""
        Path(f"/proc/{self.process_id}/clear_refs").write_text("5")


@contextmanager
def sidecar(url: str, folder: Path, **settings: str) -> Iterator[Running]:
    """`a2a-sidecar serve` with the operator token and otherwise its defaults."""
    port = free_port()
    command = [sys.executable, "-m", "sidecar", "serve", "--port", str(port)]
    with _running(command, port, folder, environment(url, **settings)) as running:
        yield running


@contextmanager
def peer(name: str, url: str, folder: Path) -> Iterator[Running]:
    """One of `tests.bench.peers`."""
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.peers", name, str(port), url]
    with _running(command, port, folder, environment(url)) as running:
        yield running


def prepare(url: str) -> None:
    """`a2a-sidecar prepare`. Raises RuntimeError with what it said when it fails."""
    command = [sys.executable, "-m", "sidecar", "prepare"]
    done = subprocess.run(command, cwd=ROOT, env=environment(url), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def environment(url: str, **settings: str) -> dict[str, str]:
    """This process's own, with these settings of the sidecar and no others; an empty one is left out."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("SIDECAR_")}
    given = {"SIDECAR_DATABASE_URL": url, "SIDECAR_TOKEN": TOKEN, **settings}
    return {**others, **{name: value for name, value in given.items() if value}}


@contextmanager
def _running(command: list[str], port: int, folder: Path, environ: Mapping[str, str]) -> Iterator[Running]:
    log = folder / f"{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=output, stderr=output)
    try:
        _await_port(process, port, log)
        yield Running(process.pid, port)
    finally:
        process.kill()
        process.wait()


def _await_port(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} did not start:\n{log.read_text('utf-8')[-4000:]}")
