"""The commands that delete sessions, any number at once, on the database or over HTTP; they hold no rule of their own.

What takes time to import is imported where it is needed.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from sidecar import completion, show
from sidecar.config import Config
from sidecar.flags import Command, Flags, OpenDatabase, check_id, chosen, data_settings, json_flag

if TYPE_CHECKING:
    from sidecar.remote import Remote

Delete = Callable[[str], dict[str, Any]]


def deletion(command: Command) -> click.Command:
    """A command that deletes sessions, with its arguments and flags."""
    for decorate in (
        json_flag,
        click.option("--if-active", type=click.Choice(["refuse"]), help="Delete nothing while a turn is active."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        data_settings("session_prefix"),
        click.argument("session_ids", metavar="ID...", nargs=-1, required=True, shell_complete=completion.session_ids),
    ):
        command = decorate(command)
    return click.command()(command)


@deletion
def retire(**given: Any) -> None:
    """Delete sessions for good; whatever is still saved under their ids stays hidden.

    Of an ID `-` the ids are read from stdin, one a line; that needs --yes.
    """
    _delete(**given, retires=True)


@deletion
def clear(**given: Any) -> None:
    """Delete the turns of sessions; their ids stay usable.

    Of an ID `-` the ids are read from stdin, one a line; that needs --yes.
    """
    _delete(**given, retires=False)


def _delete(
    flags: Flags,
    url: str | None,
    session_ids: Sequence[str],
    yes: bool,
    if_active: str | None,
    as_json: bool,
    *,
    retires: bool,
) -> None:
    config, remote = chosen(flags, url)
    ids = list(_given_ids(session_ids, yes))
    if not yes:
        click.confirm(_question(ids, retires), abort=True, err=True)
    answers: list[dict[str, Any]] = []
    with _way(config, remote, retires, if_active == "refuse") as delete:
        try:
            _delete_each(ids, show.wants_json(as_json), delete, answers)
        finally:  # whoever presses Ctrl-C learns what is gone so far
            _sum_up(answers, retires)
    if not all(each["deleted"] for each in answers):
        raise click.exceptions.Exit(1)


def _given_ids(session_ids: Iterable[str], yes: bool) -> Iterator[str]:
    for each in session_ids:
        if each != "-":
            yield each
        elif not yes:
            raise click.UsageError("`-` needs --yes: who is asked answers on stdin.", click.get_current_context())
        else:
            # a byte that is no UTF-8 makes its id invalid, and no other session's
            lines = (line.rstrip(b"\r\n").decode(errors="surrogateescape") for line in sys.stdin.buffer)
            yield from filter(None, lines)


def _question(session_ids: Sequence[str], retires: bool) -> str:
    what = session_ids[0] if len(session_ids) == 1 else f"{len(session_ids)} sessions"
    if retires:
        return f"Retire {what}? The turns are deleted for good, and nothing under that id is shown again."
    return f"Clear {what}? The turns are deleted for good; the id stays usable."


def _delete_each(session_ids: Sequence[str], in_json: bool, delete: Delete, answers: list[dict[str, Any]]) -> None:
    with _progress(session_ids, in_json) as ids:
        for session_id in ids:
            answers.append(_outcome(delete, session_id))
            if in_json:
                show.document(answers[-1])


def _progress(session_ids: Sequence[str], in_json: bool) -> AbstractContextManager[Any]:
    """A bar for whoever looks, unless the answers go to the same terminal."""
    if len(session_ids) < 2 or not sys.stderr.isatty() or (in_json and sys.stdout.isatty()):
        return nullcontext(session_ids)
    return click.progressbar(session_ids, file=sys.stderr)


def _outcome(delete: Delete, session_id: str) -> dict[str, Any]:
    """What the DELETE route answers, or why nothing was deleted."""
    from sidecar.errors import SidecarError
    from sidecar.remote import RemoteError

    try:
        check_id(session_id)
        return delete(session_id)
    except (SidecarError, RemoteError) as error:
        return {"deleted": False, "session_id": session_id, "code": error.code, "detail": error.detail}


@contextmanager
def _way(config: Config, remote: "Remote | None", retires: bool, refuses_active: bool) -> Iterator[Delete]:
    """How one session is deleted: by the sidecar that is asked, or on the database."""
    if remote:
        yield partial(remote.delete, retires=retires, refuses_active=refuses_active)
        return
    with closing(OpenDatabase(config)) as database:
        yield _stored_deletion(database, config.session_prefix, retires, refuses_active)


def _stored_deletion(database: OpenDatabase, prefix: str, retires: bool, refuses_active: bool) -> Delete:
    from sidecar.routes import delete_session, deletion_body
    from tombstones.retire import Actor

    actor = Actor("cli", None, f"cli-{uuid4().hex}")

    def delete(session_id: str) -> dict[str, Any]:
        outcome = database.run(
            lambda opened: delete_session(opened, prefix, actor, session_id, retires, refuses_active)
        )
        return deletion_body(session_id, retires, outcome)

    return delete


def _sum_up(answers: Sequence[dict[str, Any]], retires: bool) -> None:
    done = [each for each in answers if each["deleted"]]
    failed = [each for each in answers if not each["deleted"]]
    for each in failed:
        show.fault(f"{each['session_id']}: {each['detail']} ({each['code']})")
    deleted, active = (sum(each[key] for each in done) for key in ("turns_deleted", "active_turns"))
    show.note(
        f"{'retired' if retires else 'cleared'}: {len(done)}, failed: {len(failed)}, "
        f"turns deleted: {deleted}, active among them: {active}"
    )
