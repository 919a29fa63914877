"""One vocabulary of events, and what becomes of them: log lines and metrics; it decides nothing and reads no store.

An event never carries a token, a query string or text of a conversation. Labels of metrics are route templates,
never ids.
"""

import dataclasses
import functools
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import prometheus_client

_logger = logging.getLogger("sidecar")
# prometheus_client's own name for it
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True, slots=True)
class Answered:
    """A request was answered: `seconds` until the last byte, `size` bytes of body, `token` the token's name."""

    method: str
    route: str
    status: int
    seconds: float
    size: int
    request_id: str
    token: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A fault that we did not foresee; the only event that logs a traceback."""

    request_id: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class Retired:
    """A session was `retired`, or its history `cleared`: `rows` removed, of which `active` were not finished."""

    action: str
    session_id: str
    rows: int
    active: int
    token: str
    request_id: str


@dataclass(frozen=True, slots=True)
class LateRowsSwept:
    """Rows that a producer saved after their session was retired or cleared are gone; logged once a session."""

    session_id: str
    rows: int


@dataclass(frozen=True, slots=True)
class Used:
    """A retrieval or a chat was answered and recorded: tokens of a `model`, counted by the `source`."""

    token: str
    route: str
    source: str
    model: str | None
    input_tokens: int
    output_tokens: int
    request_id: str


@dataclass(frozen=True, slots=True)
class SessionIdsSkipped:
    """Ids that no path can carry were left out of an index."""

    count: int


@dataclass(frozen=True, slots=True)
class TokensLoaded:
    """A token file was read."""

    path: Path
    count: int


@dataclass(frozen=True, slots=True)
class TokensKept:
    """A changed token file is unusable: the tokens read before stay valid."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """A line about the process itself, such as its start; `level` is one of the logging module's."""

    level: int
    text: str


Event = Answered | Failed | Retired | LateRowsSwept | Used | SessionIdsSkipped | TokensLoaded | TokensKept | Note

_LEVELS: Mapping[type[Event], int] = {
    Failed: logging.ERROR,
    LateRowsSwept: logging.WARNING,
    SessionIdsSkipped: logging.DEBUG,
    TokensKept: logging.WARNING,
}


def emit(event: Event) -> None:
    """Tells the log and the metrics. Never raises for what an event holds."""
    _log(event)
    metrics = _metrics()
    if metrics is not None:
        metrics.count(event)


def configure(log_format: str, stream: TextIO | None = None) -> None:
    """Sends the log lines of the whole process to a stream, stderr by default.

    `log_format` is `text`, `json` (one object a line), or `auto`: text on a terminal. For the process's owner only:
    an application that mounts the sidecar keeps its own logging.
    """
    stream = stream or sys.stderr
    as_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_TextLines() if as_text else _JsonLines())
    logging.basicConfig(handlers=[handler], force=True)
    _logger.setLevel(logging.INFO)


def share_metrics(folder: Path, worker: int) -> None:
    """Counts in files of the folder, which `metrics_text` sums over all workers; to be called before the first event.

    A worker that takes the number of one that died counts on in its files, so no sum ever falls.
    """
    with suppress(ImportError):
        from prometheus_client import values

        os.environ[_METRICS_FOLDER] = str(folder)
        values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]  # it has no types


def metrics_text() -> bytes | None:
    """The metrics in Prometheus's text format; None without the extra `metrics`."""
    metrics = _metrics()
    return None if metrics is None else metrics.text()


def _log(event: Event) -> None:
    level = event.level if isinstance(event, Note) else _LEVELS.get(type(event), logging.INFO)
    if not _logger.isEnabledFor(level) or (isinstance(event, LateRowsSwept) and not _is_first(event.session_id)):
        return
    error = event.error if isinstance(event, Failed) else None
    _logger.log(level, _sentence(event), extra={"event": event}, exc_info=error)


_SESSIONS_REMEMBERED = 10_000
_swept_sessions: dict[str, None] = {}


def _is_first(session_id: str) -> bool:
    """Whether this session's late rows were not logged yet, as far as a bounded memory tells."""
    if session_id in _swept_sessions:
        return False
    _swept_sessions[session_id] = None
    if len(_swept_sessions) > _SESSIONS_REMEMBERED:
        del _swept_sessions[next(iter(_swept_sessions))]
    return True


def _name(event: Event) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()


def _details(event: Event) -> dict[str, object]:
    """The fields of an event as a log line shows them."""
    details = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    if isinstance(event, Note):
        del details["level"]
    if isinstance(event, Failed):
        details["error"] = type(event.error).__name__
    if isinstance(event, Answered):
        details["seconds"] = round(event.seconds, 6)
    return details


def _sentence(event: Event) -> str:
    """An event as one readable line, for people and for loggers that are not ours."""
    if isinstance(event, Note):
        return event.text
    pairs = (f"{name}={_word(value)}" for name, value in _details(event).items() if value is not None)
    return " ".join((_name(event), *pairs))


def _word(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or re.search(r'[\s"=]', text) else text


def _printable(text: str) -> str:
    """The text with everything escaped that could break a line or redraw a terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextLines(logging.Formatter):
    """One line a record; a traceback follows on marked lines that no text inside it can imitate."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_moment(record)} {record.levelname.lower()} {_printable(record.getMessage())}"
        trace = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join((line, *(f"  | {_printable(each)}" for each in trace)))


class _JsonLines(logging.Formatter):
    """One JSON object a line, in ASCII: `ts`, `level`, `event` and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, object] = {"ts": _moment(record), "level": record.levelname.lower()}
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            row |= {"event": _name(event), **_details(event)}
        else:
            row |= {"event": "log", "logger": record.name, "text": record.getMessage()}
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


class _Metrics:
    """The counters of this process, in a registry of their own."""

    # a client may send any word as its method, and each label value is kept for ever
    METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._registry = CollectorRegistry()

        def counter(name: str, help: str, labels: Iterable[str] = ()) -> "prometheus_client.Counter":
            return Counter(f"sidecar_{name}", help, labels, registry=self._registry)

        self._requests = counter("requests", "Answered requests.", ("route", "method", "status"))
        self._retired = counter("retired", "Sessions retired or cleared.", ("action",))
        self._late_rows = counter("late_rows_swept", "Rows saved after their session was retired or cleared.")
        self._uses = counter("uses", "Answered retrievals and chats.", ("route", "source"))
        self._skipped = counter("session_ids_skipped", "Ids left out of an index because no path can carry them.")
        self._failures = counter("failures", "Faults that were not foreseen.")
        self._seconds = Histogram(
            "sidecar_request_seconds", "Seconds until the last byte.", ("route",), registry=self._registry
        )

    def count(self, event: Event) -> None:
        """Adds one event."""
        match event:
            case Answered():
                method = event.method if event.method in self.METHODS else "OTHER"
                self._requests.labels(event.route, method, str(event.status)).inc()
                self._seconds.labels(event.route).observe(event.seconds)
            case Retired():
                self._retired.labels(event.action).inc()
            case LateRowsSwept():
                self._late_rows.inc(event.rows)
            case Used():
                self._uses.labels(event.route, event.source).inc()
            case SessionIdsSkipped():
                self._skipped.inc(event.count)
            case Failed():
                self._failures.inc()

    def text(self) -> bytes:
        """Everything counted, by all workers where there are several, in Prometheus's text format."""
        from prometheus_client import CollectorRegistry, generate_latest, multiprocess

        if _METRICS_FOLDER not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # it has no types
        return generate_latest(registry)


@functools.cache
def _metrics() -> _Metrics | None:
    try:
        return _Metrics()
    except ImportError:
        return None
