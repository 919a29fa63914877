"""The command line; each command makes its flags into settings and calls what the routes call, too.

Exit codes: 0 done, 1 failed, 2 usage or configuration. What takes time to import is imported by the command that
needs it.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from sidecar import commands, completion, deletions, show
from sidecar.config import ConfigError, load, shown
from sidecar.flags import ALL, Flags, configured, fail, json_flag, with_settings
from sidecar.search import commands as search_commands

HEALTH_SECONDS = 2.0


class _Commands(click.Group):
    """Ends a command with a known fault by a line on stderr and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            for fault in error.faults:
                show.fault(fault)
            ctx.exit(2)
        except Exception as error:
            from sidecar.errors import SidecarError
            from sidecar.remote import RemoteError

            if not isinstance(error, SidecarError | RemoteError):
                raise
            fail(f"{error.detail} ({error.code})")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="a2a-session-sidecar")
def main() -> None:
    """The missing reader of an A2A task store: sessions, parked turns, turn wire, durable retirement.

    Flags that name a setting can also be given by the environment: --tasks-table by SIDECAR_TASKS_TABLE.

    Sessions, turns, retire, clear and search work on the database, or with --url and --token-file ask a running
    sidecar over HTTP, past any proxy of the environment.
    """


@main.command()
@with_settings(*ALL)
def serve(flags: Flags) -> None:
    """Serve the sessions over HTTP."""
    from sidecar.serve import ListenError, serve

    try:
        serve(load(os.environ, flags))
    except ListenError as error:
        fail(str(error))


@main.command()
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default=".",
    show_default=True,
    help="Where its database and token are written, over those of an earlier demo.",
)
@click.option("--port", type=click.IntRange(1, 65000), default=8765, show_default=True, help="The sidecar's port.")
def demo(folder: Path, port: int) -> None:
    """Start a real agent with sample sessions, and the sidecar beside it."""
    if find_spec("a2a") is None:
        fail("the demo needs the A2A SDK: pip install 'a2a-session-sidecar[demo]'")
    from sidecar.demo.run import run
    from sidecar.serve import ListenError

    try:
        run(folder, port)
    except ListenError as error:
        fail(str(error))


for command in (
    commands.check,
    commands.prepare,
    commands.sessions,
    commands.turns,
    deletions.retire,
    deletions.clear,
    commands.tombstones,
    commands.sweep,
    search_commands.search,
    search_commands.reindex,
):
    main.add_command(command)


@main.command()
@with_settings(*ALL)
@json_flag
def config(flags: Flags, as_json: bool) -> None:
    """Print the effective settings, secrets masked."""
    settings = shown(configured(flags))
    if show.wants_json(as_json):
        show.document(dict(settings))
    else:
        click.echo("\n".join(f"{name}={value}" for name, value in settings))


@main.command()
def openapi() -> None:
    """Print the OpenAPI 3.1 description of the routes."""
    from sidecar.published import document

    show.document(document())


@main.command()
@with_settings("host", "port")
def health(flags: Flags) -> None:
    """Ask a running sidecar whether it lives, as a container's health check does."""
    from http.client import HTTPConnection, HTTPException

    settings = configured(flags)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104  # compared, not bound
    connection = HTTPConnection(host, settings.port, timeout=HEALTH_SECONDS)
    try:
        connection.request("GET", "/livez")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        fail(f"{host}, port {settings.port} does not answer: {reason}; start it, or correct --host and --port")
    finally:
        connection.close()
    if status != 200:
        fail(f"{host}, port {settings.port} answers {status}")
    click.echo("ok")


@main.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def print_completion(shell: str) -> None:
    """Print the script that completes commands, flags and session ids.

    In ~/.bashrc or ~/.zshrc: eval "$(a2a-sidecar completion bash)"; fish: a2a-sidecar completion fish | source
    """
    click.echo(completion.script(shell, main))
