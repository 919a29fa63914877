"""The serving process: its socket, its signals, the start and the stop; it answers no request itself."""

import asyncio
import logging
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.applications import Starlette

from sidecar import observe
from sidecar.app import create_app
from sidecar.config import Config, ConfigError, check_serve
from sidecar.db import Database, WrongTableError
from sidecar.errors import SidecarError
from sidecar.protocol import HEAD_BYTES, http_protocol
from sidecar.workers import has_parent, keep_working, stop_with_parent
from tombstones.prepare import prepare
from tombstones.table import Shape

# uvicorn's own steps around it take less than two seconds more: ten in all
GRACE_SECONDS = 8
# How long the start waits for the database; whatever it could not learn is each request's matter.
LOOK_SECONDS = 1.0


class ListenError(Exception):
    """The address is taken, unknown or not allowed; the text says which, and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on the first address of the host; port 0 takes a free one. Raises ListenError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family, backlog=2048)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # the address follows in brackets
        raise ListenError(
            f"cannot listen on {host}, port {port}: {reason}. Choose another with --host or --port."
        ) from error
    # its connections inherit it; asyncio itself sets it on none of them, and the end of an answer waited for 40 ms
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """The address of a listening socket, for people and clients on this machine."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(config: Config) -> None:
    """Serves until SIGTERM or SIGINT, answers what is in flight and returns. Raises ConfigError and ListenError."""
    check_serve(config)
    observe.configure(config.log_format)
    app = create_app(config)
    for warning in config.warnings:
        observe.emit(observe.Note(logging.WARNING, warning))
    with listen(config.host, config.port) as listener:
        _run(_serve(app, listener, config))


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Runs it until it ends or is cancelled, on uvloop's event loop where that is installed."""
    with asyncio.Runner(loop_factory=_uvloop()) as runner, suppress(asyncio.CancelledError):
        runner.run(main)


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(app: Starlette, listener: socket.socket, config: Config) -> None:
    stop_on_signals()
    await _look(app.state.database)
    if config.prepare:
        await _prepare(app.state.database)
    if config.workers > 1:
        await app.state.database.close()
        await _serve_by_workers(listener, config)
        return
    async with running(app, listener) as server:
        _tell(listener)
        await asyncio.wait([server])


async def _serve_by_workers(listener: socket.socket, config: Config) -> None:
    with TemporaryDirectory(prefix="a2a-sidecar-metrics-") as metrics:
        _tell(listener)  # from now on a request waits for the first worker
        await keep_working(config.workers, _work, listener, config, Path(metrics))


def _work(number: int, listener: socket.socket, config: Config, metrics: Path) -> None:
    """What a worker process does, from its start to its end."""
    observe.share_metrics(metrics, number)
    observe.configure(config.log_format)
    _run(_serve_with_parent(create_app(config), listener))
    if not has_parent():
        shutil.rmtree(metrics, ignore_errors=True)


async def _serve_with_parent(app: Starlette, listener: socket.socket) -> None:
    stop_with_parent()
    async with running(app, listener) as server:
        await asyncio.wait([server])


def _tell(listener: socket.socket) -> None:
    observe.emit(observe.Note(logging.INFO, f"listening on {url_of(listener)}"))


def stop_on_signals() -> None:
    """From now on SIGINT and SIGTERM cancel the running task, whose clean-up is the stop; a second one hurries it."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def _look(database: Database) -> None:
    """Tells of a store that cannot be read yet. Raises ConfigError for a table that can never be read."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await database.maintain(_nothing)
    except TimeoutError:
        _warn("The database has not answered yet.")
    except WrongTableError as error:
        raise ConfigError([f"SIDECAR_TASKS_TABLE: {error.detail}"]) from None
    except SidecarError as error:
        _warn(error.detail)


async def _nothing(conn: AsyncConnection, shape: Shape) -> None:
    """That the shape could be read is the answer."""


async def _prepare(database: Database) -> None:
    """What `a2a-sidecar prepare` does; without it the store is slower and not wrong, so a failure ends nothing."""
    try:
        number = await database.alter(prepare, lambda statement: None)
        observe.emit(observe.Note(logging.INFO, f"prepared the store: {number} statements"))
    except SidecarError as error:
        _warn(f"The store was not prepared: {error.detail}")
    except SQLAlchemyError as error:
        observe.emit(observe.Failed("prepare", error))
        _warn("The store was not prepared.")


def _warn(text: str) -> None:
    observe.emit(observe.Note(logging.WARNING, f"{text} Serving all the same."))


class _Server(uvicorn.Server):
    """Uvicorn's, which says when it is ready, and leaves the signals to the process: two servers may share one."""

    def __init__(self, app: Starlette) -> None:
        settings = uvicorn.Config(
            app,
            http=http_protocol(),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            ws="none",
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        super().__init__(settings)
        self.ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def running(app: Starlette, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """The application served on the socket, from its startup to its graceful stop."""
    server = _Server(app)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        await server.ready.wait()
        yield serving
    finally:
        server.should_exit = True
        await serving
