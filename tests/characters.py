"""Generate sidecar/search/characters.py: `python -m tests.characters URL > FILE`; it may not judge or write files.

The server must be PostgreSQL 15 on glibc and its database C.UTF-8: other versions class some characters otherwise.
"""

import asyncio
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import asyncpg

# How the default parser splits text around a character tells its class; type 12 is "blank", 13 "tag".
PROBE = """
SELECT c, 12 <> ALL (SELECT tokid FROM ts_parse('default', chr(c))) AS letter,
       1 = (SELECT count(*) FROM ts_parse('default', 'a' || chr(c) || 'b')) AS joins,
       1 = (SELECT count(*) FROM ts_parse('default', '<a' || chr(c) || 'b>')) AS in_tag,
       ascii(lower(chr(c))) AS lower
FROM unnest($1::int[]) WITH ORDINALITY AS given (c, n) ORDER BY n
"""
ALL = [*range(1, 0xD800), *range(0xE000, 0x110000)]
STEP = 0x4000


async def classes(connection: asyncpg.Connection, code_points: Sequence[int] = ALL) -> list[asyncpg.Record]:
    """Rows (c, letter, joins, in_tag, lower) of the code points, as the connection's database sees them."""
    starts = range(0, len(code_points), STEP)
    return [row for start in starts for row in await connection.fetch(PROBE, code_points[start : start + STEP])]


def kind(row: asyncpg.Record) -> str:
    """The name of the row's table in the generated module; "" for ASCII and a character that only separates."""
    if row["c"] < 0x80:
        return ""
    if row["letter"]:
        return "LETTERS"
    if row["joins"]:
        return "MARKS"
    return "SPACES" if row["in_tag"] else ""


def intervals(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and last number of each unbroken sequence."""
    for _, group in groupby(enumerate(numbers), key=lambda item: item[1] - item[0]):
        members = [number for _, number in group]
        yield members[0], members[-1]


def escaped(code_point: int) -> str:
    return f"\\u{code_point:04x}" if code_point <= 0xFFFF else f"\\U{code_point:08x}"


def literal(name: str, pieces: Iterable[str]) -> str:
    """A string constant wrapped at 120 columns, no piece broken."""
    lines = textwrap.wrap(" ".join(pieces), 110, break_long_words=False, break_on_hyphens=False)
    if len(lines) == 1:
        return f'{name} = "{lines[0].replace(" ", "")}"\n'
    body = "\n".join(f'    "{line.replace(" ", "")}"' for line in lines)
    return f"{name} = (\n{body}\n)\n"


def module(rows: list[asyncpg.Record], version: str) -> str:
    parts = [
        '"""Character classes and lower case as PostgreSQL\'s default parser sees them; generated, never edited.\n\n'
        f"`python -m tests.characters URL` on PostgreSQL {version}, C.UTF-8. LETTERS, MARKS and SPACES go between the\n"
        'brackets of a regular expression and leave out ASCII; UPPER[n] becomes LOWER[n].\n"""\n'
    ]
    for name in ("LETTERS", "MARKS", "SPACES"):
        found = intervals(row["c"] for row in rows if kind(row) == name)
        parts.append(literal(name, (f"{escaped(a)}-{escaped(b)}" if a < b else escaped(a) for a, b in found)))
    cased = [row for row in rows if row["lower"] != row["c"]]
    parts.append(literal("UPPER", (escaped(row["c"]) for row in cased)))
    parts.append(literal("LOWER", (escaped(row["lower"]) for row in cased)))
    return "\n".join(parts)


async def main(address: str) -> None:
    connection = await asyncpg.connect(address)
    try:
        sys.stdout.write(module(await classes(connection), connection.get_settings().server_version.split()[0]))
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
