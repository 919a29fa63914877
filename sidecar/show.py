"""How the command line shows what it found: tables on a terminal, JSON everywhere else; it decides nothing."""

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence

import click

Rows = Sequence[Sequence[object]]


def wants_json(flag: bool) -> bool:
    """JSON was asked for, or nobody is looking."""
    return flag or not sys.stdout.isatty()


def document(content: object) -> None:
    """One JSON document on one line."""
    # an id of the command line may hold half a character, whose escape is JSON's own
    click.echo(json.dumps(content, ensure_ascii=False).encode(errors="backslashreplace"))


def fault(text: str) -> None:
    """What went wrong, as one line on stderr."""
    note(f"error: {text}")


def note(text: str) -> None:
    """One line on stderr."""
    click.echo(_cell(text), err=True)


def time(moment: str | None) -> str:
    """A time as the wire spells it, to the second: narrow enough for a column."""
    return "" if moment is None else f"{moment[:19]}Z"


def table(columns: Sequence[str], rows: Rows, styles: Mapping[str, str] | None = None) -> None:
    """A table for a person; `styles` gives a cell's text its colour, where the extra `rich` is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        click.echo(plain(columns, rows))
        return
    drawn = Table(box=None, pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")  # an id that is cut off cannot be copied
    for row in rows:
        drawn.add_row(*(Text(cell, (styles or {}).get(cell, "")) for cell in map(_cell, row)))
    Console().print(drawn)


def plain(columns: Sequence[str], rows: Rows) -> str:
    """The same table as aligned text."""
    lines = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    """Text that cannot redraw the terminal it is shown on."""
    text = "" if value is None else str(value)
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def _width(text: str) -> int:
    """Columns on a terminal, where Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
