"""What a shell is offered while a command is typed: session ids, a few and soon; it never fails and says nothing."""

import io
import re
from collections.abc import Iterable
from contextlib import redirect_stderr, suppress
from dataclasses import replace
from typing import Any

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete, add_completion_class

from sidecar.config import Config
from sidecar.flags import chosen, on_database

PROGRAM = "a2a-sidecar"
MOST = 50
SECONDS = 1.0
# The sidecar takes no prefix: among this many of its newest sessions the fitting ones are looked for.
ASKED = 200
# Any client of the agent chooses ids, and a shell inserts one as it is: `$(...)` would be run with the command.
HARMLESS = re.compile(r"\w[\w.-]*")


def session_ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The newest sessions whose ids start so, from where the flags before them say."""
    with suppress(Exception), redirect_stderr(io.StringIO()):
        fitting = (each for each in _newest(context.params, incomplete) if each.startswith(incomplete))
        return [each for each in fitting if HARMLESS.fullmatch(each)][:MOST]
    return []


def _newest(given: dict[str, Any], incomplete: str) -> Iterable[str]:
    import json

    config, remote = chosen(given, given["url"], seconds=SECONDS)
    if remote is None:
        return _stored(config, incomplete)
    body, _ = remote.sessions(ASKED, parked=False)
    return [each["session_id"] for each in json.loads(body)["sessions"]]


def _stored(config: Config, incomplete: str) -> Iterable[str]:
    import asyncio

    from sidecar.sessions import Window, read

    prefix = incomplete if incomplete.startswith(config.session_prefix) else config.session_prefix
    window = Window(MOST, False, None, prefix, None)
    hasty = replace(config, statement_timeout=SECONDS)
    page = on_database(hasty, lambda database: asyncio.wait_for(database.read(read, window), SECONDS))
    return [each.session_id for each in page.sessions]


@add_completion_class
class WholeWords(BashComplete):
    """Bash cuts words at `:` and `=`, and so every address; here they are whole again."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        whole: list[str] = []
        for before, word in zip(["", *args], [*args, incomplete], strict=True):
            if whole and (_is_cut(before) or _is_cut(word)):
                whole[-1] += word
            else:
                whole.append(word)
        return whole[:-1], whole[-1]


def _is_cut(word: str) -> bool:
    return word != "" and set(word) <= set(":=")


def script(shell: str, command: click.Command) -> str:
    """What the shell has to evaluate, as click has it."""
    kinds: dict[str, type[ShellComplete]] = {"bash": WholeWords, "zsh": ZshComplete, "fish": FishComplete}
    variable = f"_{PROGRAM}_complete".replace("-", "_").upper()
    return kinds[shell](command, {}, PROGRAM, variable).source()
