"""What the commands share: flags made of the settings, the way to the database, the way to fail; it shows no result."""

import functools
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from sidecar import show
from sidecar.config import SETTINGS, Config, Setting, load

if TYPE_CHECKING:  # SQLAlchemy takes longer to import than most commands to run
    from sidecar.db import Database

T = TypeVar("T")
Command = Callable[..., None]
Flags = dict[str, str | None]

THREAD_SECONDS = 1.0


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


def configured(flags: Flags) -> Config:
    """The settings of the flags and the environment; warnings go to stderr. Raises ConfigError."""
    config = load(os.environ, flags)
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)
    return config


def on_database(config: Config, work: Callable[["Database"], Awaitable[T]]) -> T:
    """Runs one piece of work on the task database. Raises a SidecarError, or ConfigError for an unusable address."""
    import asyncio
    import threading

    from sidecar.db import Database

    async def run() -> T:
        threads = set(threading.enumerate())
        database = Database(config)
        try:
            return await work(database)
        finally:
            await database.close()
            # a SQLite connection that could not be opened still ends its thread by a call to this loop
            for thread in set(threading.enumerate()) - threads:
                if thread.daemon:
                    thread.join(THREAD_SECONDS)

    return asyncio.run(run())


def fail(text: str) -> NoReturn:
    """Ends the command with the exit code 1, after one line on stderr."""
    show.fault(text)
    raise click.exceptions.Exit(1)
