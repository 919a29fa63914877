"""What the commands share: flags made of the settings, the way to the database, the way to fail; it shows no result."""

import functools
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from sidecar import show
from sidecar.config import SETTINGS, Config, Setting, load, read_secret

if TYPE_CHECKING:  # SQLAlchemy takes longer to import than most commands to run
    from sidecar.db import Database
    from sidecar.remote import Remote

T = TypeVar("T")
Command = Callable[..., None]
Flags = dict[str, str | None]

THREAD_SECONDS = 1.0
# How long a sidecar may be silent: it gives up on its own database sooner.
ANSWER_SECONDS = 30.0
# Flags that mean something only where a command works on the database, and only where it asks a running sidecar.
OF_DATABASE = ("database_url", "tasks_table", "session_prefix")
OF_REMOTE = ("token", "workspace")


def with_settings(*names: str) -> Callable[[Command], Command]:
    """Gives a command a flag for each of these settings; together they reach its function as `flags`."""
    options = {_flag_name(setting): _option(setting) for setting in SETTINGS if setting.name in names}

    def decorate(command: Command) -> Command:
        def collecting(**given: Any) -> None:
            flags = {name: given.pop(name) for name in options}
            command(flags=flags, **given)

        functools.update_wrapper(collecting, command)
        for option in reversed(options.values()):
            option(collecting)
        return collecting

    return decorate


def _flag_name(setting: Setting) -> str:
    """A secret would stand in the process list: its flag names a file."""
    return f"{setting.name}_file" if setting.secret else setting.name


def _option(setting: Setting) -> Callable[[Command], Command]:
    name = _flag_name(setting)
    flag = "--" + name.replace("_", "-")
    if isinstance(setting.default, bool):
        return click.option(flag, name, flag_value="true", default=None, help=setting.help)
    if setting.secret:
        return click.option(flag, name, metavar="PATH", help=f"File that holds: {setting.help}")
    return click.option(flag, name, metavar="VALUE", help=setting.help)


ALL = tuple(setting.name for setting in SETTINGS)
store_settings = with_settings("database_url", "tasks_table")
session_settings = with_settings("database_url", "tasks_table", "session_prefix")
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON, as whenever the output is piped.")


def data_settings(*names: str) -> Callable[[Command], Command]:
    """Gives a command these flags and those of both ways to the data: its function also gets `url`, for `chosen`."""
    url = click.option("--url", metavar="URL", help="Ask the sidecar that runs there, and not the database.")
    settings = with_settings("database_url", "tasks_table", "token", *names)
    return lambda command: settings(url(command))


def configured(flags: Flags) -> Config:
    """The settings of the flags and the environment; warnings go to stderr. Raises ConfigError."""
    config = load(os.environ, flags)
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)
    return config


def chosen(flags: Flags, url: str | None, seconds: float = ANSWER_SECONDS) -> tuple[Config, "Remote | None"]:
    """The settings, and the sidecar that is to be asked where there is a URL. Raises UsageError and ConfigError."""
    _check_way(flags, url)
    config = configured(flags)
    if url is None:
        return config, None
    from sidecar.remote import Remote

    token = config.token if config.token_file is None else read_secret(config.token_file)
    try:
        remote = Remote(url, token, seconds)
    except ValueError as fault:
        raise click.UsageError(f"--url {fault}.", click.get_current_context()) from None
    if remote.exposes_token:
        show.note(f"warning: {url} is asked without TLS: whoever is between here and there can read the token.")
    return config, remote


def _check_way(flags: Flags, url: str | None) -> None:
    """Refuses flags that the other way takes. Raises UsageError."""
    others, why = (OF_REMOTE, "needs --url") if url is None else (OF_DATABASE, "and --url exclude each other")
    for setting in SETTINGS:
        name = _flag_name(setting)
        if setting.name in others and flags.get(name) is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} {why}.", click.get_current_context())


def check_id(session_id: str) -> None:
    """Raises SessionIdInvalid."""
    from sidecar.params import checked_session_id

    checked_session_id(session_id)


class OpenDatabase:
    """The task database, while a command does one piece of work on it after the other.

    Raises ConfigError for an unusable address.
    """

    def __init__(self, config: Config) -> None:
        import asyncio

        from sidecar.db import Database

        self._threads = set(threading.enumerate())
        self._database = Database(config)
        self._runner = asyncio.Runner()

    def run(self, work: Callable[["Database"], Awaitable[T]]) -> T:
        """What comes of one piece of work. Raises a SidecarError."""

        async def run() -> T:
            return await work(self._database)

        return self._runner.run(run())

    def close(self) -> None:
        """Gives up the connections, and waits for their threads."""
        with self._runner:
            self._runner.run(self._close())

    async def _close(self) -> None:
        await self._database.close()
        # a SQLite connection that could not be opened still ends its thread by a call to this loop
        for thread in set(threading.enumerate()) - self._threads:
            if thread.daemon:
                thread.join(THREAD_SECONDS)


def on_database(config: Config, work: Callable[["Database"], Awaitable[T]]) -> T:
    """Does one piece of work on the task database. Raises a SidecarError, or ConfigError for an unusable address."""
    with closing(OpenDatabase(config)) as database:
        return database.run(work)


def fail(text: str) -> NoReturn:
    """Ends the command with the exit code 1, after one line on stderr."""
    show.fault(text)
    raise click.exceptions.Exit(1)
