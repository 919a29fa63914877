"""The commands on the task store, each one call of what the routes call too; they hold no SQL and no rule of their own.

What takes time to import is imported by the command that needs it.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import click

from sidecar import show
from sidecar.config import Config
from sidecar.flags import (
    Command,
    Flags,
    configured,
    json_flag,
    on_database,
    session_settings,
    store_settings,
)

if TYPE_CHECKING:
    from sidecar.db import Database
    from tombstones.retire import Actor

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
@click.option("--undo", is_flag=True, help="Take away what was made; tombstones stay.")
def prepare(flags: Flags, dry_run: bool, undo: bool) -> None:
    """Create indexes, side tables and the creation order; print each statement as SQL."""
    from tombstones import prepare as ddl

    work = ddl.undo if undo else ddl.prepare
    number = on_database(configured(flags), lambda database: database.alter(work, _say, dry_run=dry_run))
    click.echo(f"statements {'to run' if dry_run else 'run'}: {number}", err=True)


def _say(statement: str) -> None:
    click.echo(f"{statement};")


@click.command()
@session_settings
@click.option("--parked", is_flag=True, help="Only those that wait on the operator.")
@limit_option
@json_flag
def sessions(flags: Flags, parked: bool, limit: int, as_json: bool) -> None:
    """List the sessions, newest activity first."""
    from sidecar import wire
    from sidecar.sessions import Window, read

    config = configured(flags)
    window = Window(limit, parked, None, config.session_prefix, None)
    page = on_database(config, lambda database: database.read(read, window))
    if show.wants_json(as_json):
        click.echo(wire.sessions_body(page.sessions, parked=parked))
        return
    rows = [(each.session_id, show.time(each.activity), each.turn_count, each.last_state) for each in page.sessions]
    show.table(("session", "last updated", "turns", "state" if parked else ""), rows)
    _tell_of_older(page.older)


@click.command()
@click.argument("session_id", metavar="ID")
@store_settings
@limit_option
@click.option("--order", type=click.Choice(["activity", "created"]), default="activity", show_default=True)
@json_flag
def turns(flags: Flags, session_id: str, limit: int, order: Literal["activity", "created"], as_json: bool) -> None:
    """Show the newest turns of a session, in ascending order."""
    from sidecar import wire
    from sidecar.turns import Window, read

    _check_id(session_id)
    config = configured(flags)
    window = Window(session_id, limit, order, None, None, config.max_turn_bytes, config.max_response_bytes)
    page = on_database(config, lambda database: database.read(read, window))
    body = wire.turns_body(page.turns)
    if show.wants_json(as_json):
        click.echo(body)
        return
    texts = [each["text"] for each in json.loads(body, parse_int=float)["turns"]]
    rows = [
        (show.time(turn.activity), turn.state, _first_line(text)) for turn, text in zip(page.turns, texts, strict=True)
    ]
    show.table(("last updated", "state", "text"), rows)
    _tell_of_older(page.older)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:LINE]


def _tell_of_older(cursor: str | None) -> None:
    if cursor is not None:
        click.echo("There are older ones; see --limit.", err=True)


def _check_id(session_id: str) -> None:
    from sidecar.errors import SessionIdInvalid
    from sidecar.wire import valid_session_id

    if not valid_session_id(session_id):
        raise SessionIdInvalid("An id has 1 to 255 characters and no control characters.")


def deletion(command: Command) -> click.Command:
    """A command that deletes sessions, with its arguments and flags."""
    for decorate in (
        json_flag,
        click.option("--if-active", type=click.Choice(["refuse"]), help="Delete nothing while a turn is active."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        session_settings,
        click.argument("session_ids", metavar="ID...", nargs=-1, required=True),
    ):
        command = decorate(command)
    return click.command()(command)


@deletion
def retire(**given: Any) -> None:
    """Delete sessions for good; whatever is still saved under their ids stays hidden."""
    _delete(**given, retires=True)


@deletion
def clear(**given: Any) -> None:
    """Delete the turns of sessions; their ids stay usable."""
    _delete(**given, retires=False)


def _delete(
    flags: Flags, session_ids: Sequence[str], yes: bool, if_active: str | None, as_json: bool, *, retires: bool
) -> None:
    config = configured(flags)
    if not yes:
        click.confirm(_question(session_ids, retires), abort=True, err=True)
    in_json = show.wants_json(as_json)

    async def delete_each(database: "Database") -> list[dict[str, Any]]:
        from tombstones.retire import Actor

        actor = Actor("cli", None, f"cli-{uuid4().hex}")
        answers = []
        with _progress(session_ids) as ids:
            for session_id in ids:
                answers.append(await _delete_one(database, config, actor, session_id, retires, if_active == "refuse"))
                if in_json:
                    show.document(answers[-1])
        return answers

    _sum_up(on_database(config, delete_each), retires)


def _question(session_ids: Sequence[str], retires: bool) -> str:
    what = session_ids[0] if len(session_ids) == 1 else f"{len(session_ids)} sessions"
    if retires:
        return f"Retire {what}? The turns are deleted for good, and nothing under that id is shown again."
    return f"Clear {what}? The turns are deleted for good; the id stays usable."


def _progress(session_ids: Sequence[str]) -> AbstractContextManager[Any]:
    if len(session_ids) == 1 or not sys.stderr.isatty():
        return nullcontext(session_ids)
    return click.progressbar(session_ids, file=sys.stderr)


async def _delete_one(
    database: "Database", config: Config, actor: "Actor", session_id: str, retires: bool, refuse_active: bool
) -> dict[str, Any]:
    """What the DELETE route answers, or why nothing was deleted."""
    from sidecar.errors import SidecarError
    from sidecar.routes import delete_session

    try:
        _check_id(session_id)
        outcome = await delete_session(database, config.session_prefix, actor, session_id, retires, refuse_active)
    except SidecarError as error:
        return {"deleted": False, "session_id": session_id, "code": error.code, "detail": error.detail}
    return {
        "deleted": True,
        "session_id": session_id,
        "retired": retires,
        "turns_deleted": outcome.turns_deleted,
        "active_turns": outcome.active_turns,
    }


def _sum_up(answers: Sequence[dict[str, Any]], retires: bool) -> None:
    done = [each for each in answers if each["deleted"]]
    failed = [each for each in answers if not each["deleted"]]
    for each in failed:
        show.fault(f"{each['session_id']}: {each['detail']} ({each['code']})")
    deleted, active = (sum(each[key] for each in done) for key in ("turns_deleted", "active_turns"))
    click.echo(
        f"{'retired' if retires else 'cleared'}: {len(done)}, failed: {len(failed)}, "
        f"turns deleted: {deleted}, active among them: {active}",
        err=True,
    )
    if failed:
        raise click.exceptions.Exit(1)


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
    show.table(("session", "retired at"), [(each, show.time(at)) for each, at in found.newest])
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
