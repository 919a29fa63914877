"""The demo as a newcomer meets it: its output, the requests it prints, and Ctrl-C; the agent is tested apart."""

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import httpx
import pytest

PATIENCE_SECONDS = 30.0


@dataclass
class Demo:
    """A running demo and what it printed."""

    process: "subprocess.Popen[str]"
    output: str
    folder: Path

    @property
    def lines(self) -> dict[str, str]:
        """The printed lines by their first word; of the requests to try the last."""
        return dict(re.findall(r"^(\w+) +(.*)$", self.output, re.M))

    @property
    def requests(self) -> list[str]:
        return re.findall(r"^try +(curl .*)$", self.output, re.M)

    def client(self) -> httpx.Client:
        token = (self.folder / "a2a-demo.token").read_text("utf-8").strip()
        url = self.lines["sidecar"].split()[0]
        return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, verify=False)

    def turns(self, session_id: str) -> list[dict[str, Any]]:
        with self.client() as client:
            turns: list[dict[str, Any]] = client.get(f"/api/chat/sessions/{session_id}/turns").json()["turns"]
            return turns


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def running_demo(folder: Path, port: int, patience: float = PATIENCE_SECONDS) -> Iterator[Demo]:
    """`demo` until its last line; it is killed when it hangs or the test fails."""
    command = [sys.executable, "-m", "sidecar", "demo", "--folder", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watchdog = Timer(patience, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if line.startswith("Ctrl-C"):
                break
        assert "Ctrl-C" in output, output
        yield Demo(process, output, folder)
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One demo for the tests that only read."""
    with running_demo(tmp_path_factory.mktemp("demo folder"), free_port()) as running:
        yield running


def pasted(request: str) -> dict[str, Any]:
    """The answer to a printed line, run in a shell in another folder; without curl, to the request that it makes."""
    if shutil.which("curl"):
        done = subprocess.run(["/bin/sh", "-c", request], cwd="/", capture_output=True, text=True, check=True)
        text = done.stdout
    else:
        found = re.search(r"\$\(cat '?(.*?)'?\)\" '(.*)'$", request)
        assert found is not None
        token = Path(found[1]).read_text("utf-8").strip()
        text = httpx.get(found[2], headers={"Authorization": f"Bearer {token}"}).text
    answer: dict[str, Any] = httpx.Response(200, text=text).json()
    return answer


def test_says_what_stands_where(demo: Demo) -> None:
    """The store with its counts, the agent with its card, the sidecar with its documentation."""
    counts = re.search(
        r"a2a-demo\.db +(\d+) sessions, (\d+) turns, (\d+) parked, (\d+) in flight$", demo.lines["store"]
    )
    assert counts is not None, demo.output
    assert ["12", "82", "2", "1"] == list(counts.groups())
    card = httpx.get(demo.lines["agent"].rpartition(" ")[2]).json()
    assert f"{demo.lines['agent'].split()[0]}/" == card["supportedInterfaces"][0]["url"]
    assert 200 == httpx.get(demo.lines["sidecar"].rpartition(" ")[2]).status_code


def test_the_token_is_private(demo: Demo) -> None:
    """The token stands in a file that only its owner reads, and on the screen in the console's link alone."""
    file = demo.folder / "a2a-demo.token"
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert str(file) in demo.lines["token"]
    token = file.read_text("utf-8").strip()
    assert f"{demo.lines['sidecar'].split()[0]}/#token={token}" == demo.lines["console"]
    assert 1 == demo.output.count(token)


def test_the_printed_requests_work(demo: Demo) -> None:
    """Pasted, the three lines answer the index, the parked sessions and the turns of the trip."""
    index, parked, turns = map(pasted, demo.requests)
    assert 3 == len(index["sessions"])
    assert "chat-migration-watch" == index["sessions"][0]["session_id"]
    waiting = {each["session_id"]: each["last_state"] for each in parked["sessions"]}
    assert {
        "chat-trip-lisbon": "TASK_STATE_INPUT_REQUIRED",
        "chat-billing-export": "TASK_STATE_AUTH_REQUIRED",
    } == waiting
    assert ["TASK_STATE_COMPLETED", "TASK_STATE_INPUT_REQUIRED"] == [each["state"] for each in turns["turns"]]
    assert {"status", "artifacts", "history"} < turns["turns"][0].keys()


def test_the_turn_in_flight_grows(demo: Demo) -> None:
    """One session is still being written while it is read."""
    before = demo.turns("chat-migration-watch")[-1]
    deadline = time.monotonic() + 5
    while (after := demo.turns("chat-migration-watch")[-1])["text"] == before["text"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "TASK_STATE_WORKING" == after["state"]
    assert after["text"].startswith(before["text"])


def test_a_hidden_message_has_no_text(demo: Demo) -> None:
    """What the operator's console sent hidden is stored without its words, and the answer stays."""
    turn = demo.turns("chat-oncall-handover")[-1]
    assert turn["history"][0]["metadata"]["hidden"]
    assert not [part for part in turn["history"][0].get("parts", []) if "text" in part]
    assert "Posted to #on-call." == turn["text"]


def test_a_session_that_is_none_is_not_listed(demo: Demo) -> None:
    """Contexts without the prefix stand in the store and not in the index."""
    with demo.client() as client:
        listed = [each["session_id"] for each in client.get("/api/chat/sessions").json()["sessions"]]
    assert {"activity-nightly", "api-health"}.isdisjoint(listed)
    assert 12 == len(listed)


def test_ctrl_c_ends_both(tmp_path: Path) -> None:
    """A taken port means the next free one; an earlier demo's files make room; Ctrl-C leaves nothing running."""
    for name in ("a2a-demo.db", "a2a-demo.db-wal", "a2a-demo.token", "a2a-tasks.db"):
        (tmp_path / name).write_text("earlier", "utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running_demo(tmp_path, port) as demo:
            url, agent_url = demo.lines["sidecar"].split()[0], demo.lines["agent"].split()[0]
            used = int(url.rpartition(":")[2])
            assert f"port {port} is taken: the sidecar uses {used}\n" in demo.output
            assert port < used < int(agent_url.rpartition(":")[2])
            assert "earlier" == (tmp_path / "a2a-tasks.db").read_text("utf-8")
            assert pasted(demo.requests[0])["sessions"]
            os.kill(demo.process.pid, signal.SIGINT)
            rest, _ = demo.process.communicate(timeout=10)
    assert 0 == demo.process.returncode, rest
    assert "traceback" not in rest.lower()
    for address in (url, agent_url):
        with pytest.raises(httpx.ConnectError):
            httpx.get(address)
