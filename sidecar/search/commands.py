"""The commands of the search wing, each one call of its service; they hold no SQL and no rule of their own.

What takes time to import, or an extra, is imported by the command that needs it.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from sidecar import show
from sidecar.config import Config
from sidecar.flags import Flags, chosen, configured, data_settings, fail, json_flag, on_database, session_settings
from sidecar.search.extras import lacking

if TYPE_CHECKING:
    from sidecar.search.queries import SearchQuery

LINE = 200


@click.command()
@click.argument("words", nargs=-1, required=True)
@data_settings("session_prefix", "workspace")
@click.option("--limit", type=click.IntRange(1, 50), default=20, show_default=True, help="Most matches.")
@click.option("--all", "include_auxiliary", is_flag=True, help="Also search contexts without the session prefix.")
@click.option("--after", metavar="CURSOR", help="Go on after an earlier answer.")
@json_flag
def search(
    flags: Flags,
    url: str | None,
    words: Sequence[str],
    limit: int,
    include_auxiliary: bool,
    after: str | None,
    as_json: bool,
) -> None:
    """Find the turns and titles that hold all the words, newest first."""
    config, remote = chosen(flags, url)
    if not remote:
        _check_extra()
    from sidecar.search.queries import search_arguments

    given = {"query": " ".join(words), "limit": limit, "include_auxiliary": include_auxiliary, "after": after}
    query = search_arguments(given)
    body = remote.search(config.workspace, query) if remote else _stored_matches(config, query)
    if show.wants_json(as_json):
        click.echo(body)
        return
    found = json.loads(body)
    rows = [
        (each["conversation_public_id"], each["position"], each["field"], _one_line(each["excerpt"]))
        for each in found["matches"]
    ]
    show.table(("session", "position", "field", "excerpt"), rows)
    _tell_of_the_rest(found)


def _stored_matches(config: Config, query: "SearchQuery") -> bytes:
    import msgspec

    from sidecar.search.service import Search

    return msgspec.json.encode(on_database(config, lambda database: Search(database, config).search(query, None)))


def _one_line(excerpt: str) -> str:
    return " ".join(excerpt.split())[:LINE]


def _tell_of_the_rest(found: dict[str, Any]) -> None:
    if found["ignored_terms"]:
        show.note(f"ignored: {' '.join(found['ignored_terms'])}")
    if not found["availability"]["complete"]:
        show.note(f"not indexed yet: {found['availability']['pending']} turns; see `a2a-sidecar reindex`")
    if (cursor := found["pagination"]["next_after"]) is not None:
        show.note(f"There are older ones: --after {cursor}")


@click.command()
@session_settings
@json_flag
def reindex(flags: Flags, as_json: bool) -> None:
    """Bring the search index up to date with the task store."""
    _check_extra()
    from sidecar.search.service import Search

    config = configured(flags)
    with _progress() as say:
        counts = on_database(config, lambda database: Search(database, config).reindex(say))
    if show.wants_json(as_json):
        show.document(counts)
    else:
        click.echo(", ".join(f"{name}: {number}" for name, number in counts.items()))


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Tells how many of how many are done, to whoever looks."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with click.progressbar(length=0, file=sys.stderr) as bar:

        def say(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield say


def _check_extra() -> None:
    if hint := lacking("search"):
        fail(hint)
