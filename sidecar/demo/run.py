"""The demo in one process: the agent, its sample sessions and the sidecar beside it, until Ctrl-C ends both."""

import asyncio
import logging
import os
import secrets
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from socket import socket

import click
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from sqlalchemy.ext.asyncio import create_async_engine

from sidecar import observe, sessions
from sidecar.app import create_app
from sidecar.config import Config, load, read_secret
from sidecar.db import Database
from sidecar.demo.agent import create_agent
from sidecar.demo.samples import write_samples
from sidecar.routes import SESSIONS
from sidecar.serve import ListenError, listen, running, stop_on_signals, url_of
from tombstones.prepare import prepare
from tombstones.state import RUNNING

HOST = "127.0.0.1"
DATABASE = "a2a-demo.db"
TOKEN = "a2a-demo.token"  # noqa: S105  # a file's name
PORTS_TRIED = 100


def run(folder: Path, port: int) -> None:
    """Runs the demo until SIGINT or SIGTERM, over an earlier demo's files in the folder.

    Raises ListenError when neither `port` nor one of the next is free.
    """
    observe.configure("auto")
    # it warns of every turn that is still in flight at the end
    logging.getLogger("a2a.server.events.event_queue_v2").setLevel(logging.ERROR)
    with (
        _listen("sidecar", port) as listener,
        _listen("agent", listener.getsockname()[1] + 1) as agent_listener,
        suppress(asyncio.CancelledError),
    ):
        asyncio.run(_run(_fresh(folder), listener, agent_listener))


def _listen(what: str, port: int) -> socket:
    """A socket on the port or, said aloud, on the next free one."""
    for candidate in range(port, port + PORTS_TRIED):
        with suppress(ListenError):
            listener = listen(HOST, candidate)
            if candidate != port:
                click.echo(f"port {port} is taken: the {what} uses {candidate}")
            return listener
    raise ListenError(f"no port from {port} to {port + PORTS_TRIED - 1} is free. Choose another with --port.")


def _fresh(folder: Path) -> Config:
    """A new token and the name of a new database, in the place of an earlier demo's."""
    database, token = folder.resolve() / DATABASE, folder.resolve() / TOKEN
    for suffix in ("", "-journal", "-wal", "-shm"):
        database.with_name(DATABASE + suffix).unlink(missing_ok=True)
    token.unlink(missing_ok=True)
    token.touch(mode=0o600, exist_ok=False)
    token.write_text(f"demo-{secrets.token_hex(16)}\n", "utf-8")
    # a model, if any, is whichever the environment names
    of_model = load({name: text for name, text in os.environ.items() if name.startswith("SIDECAR_MODEL")})
    url = f"sqlite+aiosqlite:///{database}"
    return replace(of_model, database_url=url, token_file=token, audit_key=secrets.token_hex(16))


async def _run(config: Config, listener: socket, agent_listener: socket) -> None:
    stop_on_signals()
    app = create_app(config)
    engine = create_async_engine(config.database_url)
    agent = create_agent(engine, f"{url_of(agent_listener)}/")
    try:
        async with running(agent, agent_listener) as agent_server:
            click.echo("writing the sample sessions ...")
            await write_samples(agent.state.handler)
            await app.state.database.alter(prepare, lambda statement: None)
            async with running(app, listener) as server:
                click.echo(await _welcome(config, app.state.database, url_of(listener), url_of(agent_listener)))
                await asyncio.wait([server, agent_server], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await engine.dispose()


async def _welcome(config: Config, database: Database, url: str, agent_url: str) -> str:
    """What stands where, the page with its token, and three requests to try."""
    token = config.token_file
    assert token is not None  # _fresh wrote it
    bearer = f'curl -s -H "Authorization: Bearer $(cat {shlex.quote(str(token))})"'
    queries = ("?limit=3", "?parked=true", "/chat-trip-lisbon/turns?limit=2")
    return "\n".join(
        (
            f"store    {config.database_url.partition(':///')[2]}   {await _counts(database, config.session_prefix)}",
            f"agent    {agent_url}   card {agent_url}{AGENT_CARD_WELL_KNOWN_PATH}",
            f"sidecar  {url}   {url}/docs",
            f"token    in {token} (mode 600)",
            f"console  {url}/#token={read_secret(token)}",
            *(f"try      {bearer} '{url}{SESSIONS}{query}'" for query in queries),
            "Ctrl-C ends both.",
        )
    )


async def _counts(database: Database, prefix: str) -> str:
    every, only_parked = (sessions.Window(200, parked, None, prefix, None) for parked in (False, True))
    found = (await database.read(sessions.read, every)).sessions
    parked = (await database.read(sessions.read, only_parked)).sessions
    summaries = [await database.read(sessions.summary, each.session_id, None) for each in found]
    in_flight = sum(each is not None and each.session.last_state in RUNNING for each in summaries)
    turns = sum(each.turn_count for each in found)
    return f"{len(found)} sessions, {turns} turns, {len(parked)} parked, {in_flight} in flight"
