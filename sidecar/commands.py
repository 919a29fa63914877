"""The commands on the task store, each one call of what the routes call too; they hold no SQL and no rule of their own.

What a route answers, too, is with `--url` asked of a running sidecar. The others need the database itself: `check` and
`prepare` examine and alter it, `sweep` is what a running sidecar does by itself, and no route lists tombstones.
What takes time to import is imported by the command that needs it.
"""

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Literal

import click

from sidecar import completion, show
from sidecar.config import Config
from sidecar.flags import (
    Flags,
    check_id,
    chosen,
    configured,
    data_settings,
    json_flag,
    on_database,
    session_settings,
    store_settings,
)

if TYPE_CHECKING:
    from sidecar.db import Database

Order = Literal["activity", "created"]

LINE = 200
MARKS = {"ok": "green", "warn": "yellow", "fail": "bold red"}

limit_option = click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="Most rows.")


@click.command()
@session_settings
@json_flag
def check(flags: Flags, as_json: bool) -> None:
    """Examine the task store, and name the command that helps where something is wrong."""
    from sidecar import doctor
    from sidecar.errors import SidecarError

    config = configured(flags)
    try:
        checks = on_database(config, lambda database: database.alter(doctor.examine, config.session_prefix))
    except SidecarError as error:
        checks = [doctor.unreadable(error)]
    if show.wants_json(as_json):
        show.document({"checks": [asdict(each) for each in checks]})
    else:
        rows = [(each.name, each.result, each.detail, each.fix) for each in checks]
        show.table(("check", "result", "detail", "fix"), rows, MARKS)
    if any(each.result == "fail" for each in checks):
        raise click.exceptions.Exit(1)


@click.command()
@store_settings
@click.option("--dry-run", is_flag=True, help="Only print the statements, for the owner of the table to run.")
@click.option("--undo", is_flag=True, help="Take away the indexes and the column; our tables stay.")
def prepare(flags: Flags, dry_run: bool, undo: bool) -> None:
    """Create indexes, side tables and the creation order; print each statement as SQL."""
    from tombstones import prepare as ddl

    work = ddl.undo if undo else ddl.prepare
    number = on_database(configured(flags), lambda database: database.alter(work, _say, dry_run=dry_run))
    click.echo(f"statements {'to run' if dry_run else 'run'}: {number}", err=True)


def _say(statement: str) -> None:
    click.echo(f"{statement};")


@click.command()
@data_settings("session_prefix")
@click.option("--parked", is_flag=True, help="Only those that wait on the operator.")
@limit_option
@json_flag
def sessions(flags: Flags, url: str | None, parked: bool, limit: int, as_json: bool) -> None:
    """List the sessions, newest activity first."""
    config, remote = chosen(flags, url)
    body, has_older = remote.sessions(limit, parked) if remote else _stored_sessions(config, limit, parked)
    if show.wants_json(as_json):
        click.echo(body)
        return
    rows = [
        (each["session_id"], show.time(each["last_updated"]), each["turn_count"], each.get("last_state"))
        for each in json.loads(body)["sessions"]
    ]
    show.table(("session", "last updated", "turns", "state" if parked else ""), rows)
    _tell_of_older(has_older)


def _stored_sessions(config: Config, limit: int, parked: bool) -> tuple[bytes, bool]:
    from sidecar import wire
    from sidecar.sessions import Window, read

    window = Window(limit, parked, None, config.session_prefix, None)
    page = on_database(config, lambda database: database.read(read, window))
    return wire.sessions_body(page.sessions, parked=parked), page.older is not None


@click.command()
@click.argument("session_id", metavar="ID", shell_complete=completion.session_ids)
@data_settings()
@limit_option
@click.option("--order", type=click.Choice(["activity", "created"]), default="activity", show_default=True)
@json_flag
def turns(flags: Flags, url: str | None, session_id: str, limit: int, order: Order, as_json: bool) -> None:
    """Show the newest turns of a session, in ascending order."""
    check_id(session_id)
    config, remote = chosen(flags, url)
    read = remote.turns if remote else partial(_stored_turns, config)
    body, has_older = read(session_id, limit, order)
    if show.wants_json(as_json):
        click.echo(body)
        return
    rows = [
        (show.time(each["last_updated"]), each["state"], _first_line(each["text"]))
        for each in json.loads(body, parse_int=float)["turns"]
    ]
    show.table(("last updated", "state", "text"), rows)
    _tell_of_older(has_older)


def _stored_turns(config: Config, session_id: str, limit: int, order: Order) -> tuple[bytes, bool]:
    from sidecar import wire
    from sidecar.turns import Window, read

    window = Window(session_id, limit, order, None, None, config.max_turn_bytes, config.max_response_bytes)
    page = on_database(config, lambda database: database.read(read, window))
    return wire.turns_body(page.turns), page.older is not None


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:LINE]


def _tell_of_older(has_older: bool) -> None:
    if has_older:
        show.note("There are older ones; see --limit.")


@click.command()
@store_settings
@limit_option
@json_flag
def tombstones(flags: Flags, limit: int, as_json: bool) -> None:
    """List the retired sessions, newest first."""
    from sidecar import doctor
    from sidecar.wire import iso

    found = on_database(configured(flags), lambda database: database.maintain(doctor.tombstones, limit))
    if show.wants_json(as_json):
        listed = [{"session_id": each, "retired_at": iso(at)} for each, at in found.newest]
        show.document({"retired_sessions": found.sessions, "cleared_tasks": found.tasks, "tombstones": listed})
        return
    show.table(("session", "retired at"), [(each, show.time(iso(at))) for each, at in found.newest])
    click.echo(f"sessions retired: {found.sessions}, tasks cleared: {found.tasks}", err=True)


@click.command()
@store_settings
@json_flag
def sweep(flags: Flags, as_json: bool) -> None:
    """Delete the turns that were saved after their session was retired or cleared, and what the index kept of any."""
    from sidecar.sweeper import compact_index, sweep_all

    async def sweep_and_compact(database: "Database") -> int:
        number = await sweep_all(database)
        await compact_index(database, None)
        return number

    number = on_database(configured(flags), sweep_and_compact)
    if show.wants_json(as_json):
        show.document({"turns_swept": number})
    else:
        click.echo(f"turns swept: {number}")
