"""Events as log lines and metrics: one readable line or JSON object each, nothing forged, nothing leaked."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar import observe
from sidecar.observe import (
    Answered,
    Event,
    Failed,
    LateRowsSwept,
    Note,
    Retired,
    SessionIdsSkipped,
    TokensKept,
    TokensLoaded,
    Used,
    emit,
)

TURNS = "/api/chat/sessions/{session_id}/turns"
HOSTILE = 'chat-1\n2026 error forged=\u202eyes\x1b[31m\x85\u2028 "quoted" \ud800'


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Gives the test process its own logging back, and lets each test sweep for the first time."""
    handlers, level = logging.root.handlers[:], logging.getLogger("sidecar").level
    logging.root.handlers.clear()
    observe._swept_sessions.clear()
    yield
    logging.root.handlers[:] = handlers
    logging.getLogger("sidecar").setLevel(level)


def lines(log_format: str, *events: Event) -> list[str]:
    """What a log of this format says of the events."""
    stream = io.StringIO()
    observe.configure(log_format, stream)
    for event in events:
        emit(event)
    return stream.getvalue().splitlines()


def answered(**changes: Any) -> Answered:
    """One answered request, changed at will."""
    values: dict[str, Any] = {
        "method": "GET",
        "route": TURNS,
        "status": 200,
        "seconds": 0.00123456789,
        "size": 4711,
        "request_id": "abc",
        "token": "console",
    }
    return Answered(**values | changes)


def failure(message: str = "boom") -> Failed:
    """A fault with a traceback."""
    try:
        raise ValueError(message)
    except ValueError as error:
        return Failed("abc", error)


def sample(name: str) -> float:
    """The value of one metric line."""
    text = (observe.metrics_text() or b"").decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def test_json_lines() -> None:
    """Each event is one JSON object with time, level, name and its own fields."""
    (line,) = lines("json", answered())
    row = json.loads(line)
    moment = row.pop("ts")
    assert (moment[10], moment[-1], len(moment)) == ("T", "Z", 24)
    assert row == {
        "level": "info",
        "event": "answered",
        "method": "GET",
        "route": TURNS,
        "status": 200,
        "seconds": 0.001235,
        "size": 4711,
        "request_id": "abc",
        "token": "console",
    }


def test_text_lines() -> None:
    """Each event is one readable line; what is absent is left out."""
    (line,) = lines("text", answered(token=None))
    expected = f"info answered method=GET route={TURNS} status=200 seconds=0.001235 size=4711 request_id=abc"
    assert expected == line.split(" ", 1)[1]


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (
            Retired("retired", "chat-1", 3, 1, "operator", "abc"),
            "info",
            "retired action=retired session_id=chat-1 rows=3 active=1 token=operator request_id=abc",
        ),
        (
            Used("operator", "/v1/chat", "provider", "small-1", 200, 30, "abc"),
            "info",
            "used token=operator route=/v1/chat source=provider model=small-1 input_tokens=200 output_tokens=30 "
            "request_id=abc",
        ),
        (LateRowsSwept("chat-late", 2), "warning", "late_rows_swept session_id=chat-late rows=2"),
        (TokensLoaded(Path("/run/tokens"), 2), "info", "tokens_loaded path=/run/tokens count=2"),
        (
            TokensKept(Path("/run/tokens"), "it is empty"),
            "warning",
            'tokens_kept path=/run/tokens reason="it is empty"',
        ),
        (Note(logging.INFO, "listening on http://127.0.0.1:8765"), "info", "listening on http://127.0.0.1:8765"),
        (Note(logging.WARNING, "100 %s"), "warning", "100 %s"),
    ],
)
def test_every_event_in_text(event: Event, level: str, text: str) -> None:
    """Level and wording of each event."""
    (line,) = lines("text", event)
    assert f"{level} {text}" == line.split(" ", 1)[1]


def test_a_note_in_json() -> None:
    """A note carries its text and its own level."""
    row = json.loads(lines("json", Note(logging.WARNING, "careful"))[0])
    assert (row["level"], row["event"], row["text"]) == ("warning", "note", "careful")


def test_auto_is_text_on_a_terminal_and_json_elsewhere() -> None:
    """People read text, collectors read JSON."""
    terminal = Terminal()
    observe.configure("auto", terminal)
    emit(Note(logging.INFO, "hello"))
    assert terminal.getvalue().endswith("info hello\n")
    assert json.loads(lines("auto", Note(logging.INFO, "hello"))[0])["text"] == "hello"


def test_configuring_again_replaces_the_stream() -> None:
    """No line is written twice, however often an application is made."""
    first = io.StringIO()
    observe.configure("text", first)
    assert len(lines("text", Note(logging.INFO, "once"))) == 1
    assert first.getvalue() == ""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_ids_cannot_forge_a_line(log_format: str) -> None:
    """Line breaks, terminal codes and direction marks of a client's id arrive escaped, in one line."""
    (line,) = lines(log_format, Retired("retired", HOSTILE, 0, 0, "operator", "abc"))
    assert line.isprintable()
    if log_format == "json":
        assert json.loads(line)["session_id"] == HOSTILE


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_only_a_failure_logs_a_traceback_and_once(log_format: str) -> None:
    """The traceback is whole, and its text cannot pass for a line of ours."""
    written = lines(log_format, failure("boom\n2026 info forged"), answered(status=500))
    traces = [line for line in written if "Traceback (most recent call last)" in line]
    assert len(traces) == 1
    if log_format == "json":
        failed, done = map(json.loads, written)
        assert (failed["level"], failed["event"], failed["error"]) == ("error", "failed", "ValueError")
        assert failed["traceback"].endswith("ValueError: boom\n2026 info forged")
        assert "traceback" not in done
    else:
        assert written[0].endswith("error failed request_id=abc error=ValueError")
        assert all(line.startswith("  | ") for line in written[1:-1])


def test_other_loggers_use_the_same_lines() -> None:
    """What libraries say is one object a line as well, with its logger's name."""
    stream = io.StringIO()
    observe.configure("json", stream)
    logging.getLogger("uvicorn.error").warning("odd\n%s", "request", extra={"event": "theirs"})
    row = json.loads(stream.getvalue())
    assert (row["event"], row["logger"], row["text"]) == ("log", "uvicorn.error", "odd\nrequest")


def test_late_rows_are_logged_once_a_session() -> None:
    """An agent that goes on in a retired session is told of once and counted always."""
    before = sample("sidecar_late_rows_swept_total")
    written = lines("text", LateRowsSwept("chat-a", 2), LateRowsSwept("chat-a", 3), LateRowsSwept("chat-b", 1))
    assert ["chat-a", "chat-b"] == [line.split("session_id=")[1].split(" ")[0] for line in written]
    assert sample("sidecar_late_rows_swept_total") - before == 6


def test_sessions_logged_once_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of logged sessions does not grow with their number."""
    monkeypatch.setattr(observe, "_SESSIONS_REMEMBERED", 2)
    monkeypatch.setattr(observe, "_swept_sessions", {})
    written = lines("text", *(LateRowsSwept(f"chat-{number % 3}", 1) for number in range(4)))
    assert len(written) == 4


def test_request_metrics_have_templates_as_labels() -> None:
    """Requests are counted by route, method and status, and timed by route."""
    counter = f'sidecar_requests_total{{method="GET",route="{TURNS}",status="200"}}'
    timed = f'sidecar_request_seconds_count{{route="{TURNS}"}}'
    before = sample(counter), sample(timed)
    emit(answered())
    assert (before[0] + 1, before[1] + 1) == (sample(counter), sample(timed))


def test_invented_methods_share_one_label() -> None:
    """A client cannot make the metrics grow by making up methods."""
    other = f'sidecar_requests_total{{method="OTHER",route="{TURNS}",status="405"}}'
    before = sample(other)
    emit(answered(method="BREW", status=405))
    emit(answered(method="BREW2", status=405))
    assert sample(other) - before == 2
    assert b"BREW" not in (observe.metrics_text() or b"")


@pytest.mark.parametrize(
    ("event", "metric", "amount"),
    [
        (Retired("cleared", "chat-1", 3, 1, "operator", "abc"), 'sidecar_retired_total{action="cleared"}', 1),
        (
            Used("operator", "/v1/search", "none", None, 0, 0, "abc"),
            'sidecar_uses_total{route="/v1/search",source="none"}',
            1,
        ),
        (SessionIdsSkipped(4), "sidecar_session_ids_skipped_total", 4),
        (failure(), "sidecar_failures_total", 1),
    ],
)
def test_other_metrics(event: Event, metric: str, amount: int) -> None:
    """Each counted event has its metric, free of ids."""
    before = sample(metric)
    emit(event)
    assert sample(metric) - before == amount
    assert b"chat-1" not in (observe.metrics_text() or b"")


def test_without_the_metrics_extra_events_are_still_logged() -> None:
    """The Prometheus client is optional: without it there is no text to serve, and nothing fails."""
    script = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from sidecar import observe\n"
        "observe.configure('json')\n"
        "observe.emit(observe.SessionIdsSkipped(1)); observe.emit(observe.Note(20, 'alive'))\n"
        "print(observe.metrics_text())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, json.loads(done.stderr)["text"]) == ("None\n", "alive")


def test_an_application_that_mounts_us_reads_plain_messages(caplog: pytest.LogCaptureFixture) -> None:
    """Unconfigured, an event is an ordinary record of the logger `sidecar` with a readable message."""
    logging.root.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "sidecar"):
        emit(TokensLoaded(Path("/run/token"), 1))
    assert ["tokens_loaded path=/run/token count=1"] == caplog.messages
