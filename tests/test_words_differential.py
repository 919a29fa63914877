"""The analyzer against a live PostgreSQL: parser, dictionaries, stemmer and character classes."""

import random
import re
import unicodedata
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest
import rjieba

from sidecar.search import characters, words
from sidecar.search.markup import pieces
from sidecar.search.scanner import Token, tokens
from tests.characters import ALL, classes, kind
from tests.postgres import Server
from tests.test_words import HAN

# Something of all that the parser has a rule for.
FRAGMENTS = r"""
a b E x1 com 1 22 e5 amp A Z é ß я İ Σ ΟΔΟΣ 文 人工智能 한 カ 🚀 ٣ Ⅷ ⓐ running universities the of 1a İstanbul
. . . .. - - -- _ @ @ : / / // ~ + & # ; < < > = ? % ' " \ ! ( ) , * | { } [ ] ^ ` $ ²
&amp; &#12; &#x1f; <a> </a> <br/> <!-- --> <!D <?x <script <script> </script> </script <style </style b=' b="
http:// www. a.com b.org x@y.zz :80 foo-bar 1.5 -3 1e5 /usr /. ./ ../ ~/ file.txt C:\ List<String>
"""
SEPARATORS = [" ", " ", "\n", "\t", "\x01", "\x7f", "\x85", "\u00a0", "\u2003", "\u0301", "\u094d", "\u200d", "e\u0301"]
STARTS = "un re gener commun arsen in out ear her can news sky dy ly id sing"
MIDDLES = "organiz universi evalu ing add geolog past hop hopp fly y quick ye bla roll oil eed at bl iz x sky"
ENDS = "s es ies ed edly ing ingly er est ly li fulness ousli ation ization ational ogi able ement ion ic ative y e"
CLASSES = {name: re.compile(f"[{getattr(characters, name)}]") for name in ("LETTERS", "MARKS", "SPACES")}
LOWER = str.maketrans(characters.UPPER, characters.LOWER)


@pytest.fixture
async def parser(cluster: Server) -> AsyncIterator[asyncpg.Connection]:
    """A connection to a database of C.UTF-8, on which the classes of characters depend."""
    await cluster.execute(f"CREATE DATABASE parser {cluster.new_database} LC_COLLATE 'C.UTF-8' LC_CTYPE 'C.UTF-8'")
    connection = await asyncpg.connect(cluster.url("parser").replace("+asyncpg", ""))
    try:
        yield connection
    finally:
        await connection.close()
        await cluster.drop_database("parser")


async def test_random_texts(parser: asyncpg.Connection, full: bool) -> None:
    """The tokens of random text are those of `ts_parse`, in their order, and its lexemes those of `to_tsvector`."""
    fragments = await agreed_fragments(parser)
    texts = random_texts(random.Random(5), fragments, 120_000 if full else 12_000)
    for start in range(0, len(texts), 2_000):
        batch = texts[start : start + 2_000]
        others = [HAN.sub(" ", unicodedata.normalize("NFC", text)) for text in batch]
        assert dict(zip(others, await parsed(parser, others), strict=True)) == {
            text: our_tokens(text) for text in others
        }
        expected = zip(batch, await vectors(parser, others), strict=True)
        assert {text: found | segmented(text) for text, found in expected} == {t: words.lexemes(t) for t in batch}
    print(f"{len(texts)} random texts of {len(fragments)} fragments, 0 differences")


async def test_long_words(parser: asyncpg.Connection) -> None:
    """Above 1,000 bytes words aren't stemmed, and from 2,047 on they are dropped, whatever their characters."""
    sizes = [*range(330, 340), *range(495, 505), *range(990, 1005), *range(1018, 1028), *range(2040, 2050)]
    ends = ["ing", "s", "", "é", "-ing", ".com", "1"]
    texts = [letter * size + end for letter in "aÉ1" for size in sizes for end in ends]
    assert dict(zip(texts, await vectors(parser, texts), strict=True)) == {text: words.lexemes(text) for text in texts}


async def test_stems(parser: asyncpg.Connection, full: bool) -> None:
    """Words with the endings that the stemmer knows, and all stop words, become what `english_stem` makes of them."""
    made = english_words(random.Random(7), 100_000 if full else 3_000) + words._STOP_LIST.split()
    stems = await parser.fetch("SELECT (ts_lexize('english_stem', word))[1] FROM unnest($1::text[]) AS word", made)
    expected = {word: row[0] for word, row in zip(made, stems, strict=True)}
    assert expected == {word: next(iter(words.lexemes(word)), None) for word in made}
    print(f"{len(expected)} words, 0 differences")


async def test_character_tables(parser: asyncpg.Connection, full: bool) -> None:
    """Characters have the class and lower case that the server gives them.

    Only format characters and marks may differ: PostgreSQL 16 lets more of them go on with a word than 15 did.
    """
    rows = await classes(parser, ALL if full else [*range(1, 0x600), *random.Random(3).sample(ALL, 2_000)])
    other = [row["c"] for row in rows if not agrees(row)]
    print(
        f"{len(rows)} characters, {len(other)} differ on PostgreSQL {parser.get_server_version().major}: {other[:20]}"
    )
    assert {unicodedata.category(chr(c)) for c in other} <= {"Cf", "Mn", "Mc", "Me", "Cn"}


def random_texts(rnd: random.Random, fragments: list[str], count: int) -> list[str]:
    """Texts of 1 to 16 fragments, half of them of few different ones."""
    alphabets = [rnd.sample(fragments, rnd.randint(2, 8)) if rnd.random() < 0.5 else fragments for _ in range(count)]
    return ["".join(rnd.choices(alphabet, k=rnd.randint(1, rnd.choice((4, 8, 16))))) for alphabet in alphabets]


def english_words(rnd: random.Random, count: int) -> list[str]:
    starts, middles, ends = ([*text.split(), ""] for text in (STARTS, MIDDLES, ENDS))
    return ["".join(rnd.choice(part) for part in (starts, middles, ends, ends)) or "early" for _ in range(count)]


async def agreed_fragments(parser: asyncpg.Connection) -> list[str]:
    """The fragments and some characters of each table, without those that the server classes otherwise."""
    rnd = random.Random(11)
    ends = [rnd.choice(getattr(characters, name).replace("-", "")) for name in CLASSES for _ in range(12)]
    fragments = [*FRAGMENTS.split(), *SEPARATORS, *ends]
    rows = await classes(parser, [ord(character) for character in sorted(set("".join(fragments)))])
    other = {chr(row["c"]) for row in rows if not agrees(row)}
    print(f"left out, classed otherwise by the server: {sorted(map(ascii, other))}")
    return [fragment for fragment in fragments if other.isdisjoint(fragment)]


def agrees(row: asyncpg.Record) -> bool:
    """Whether our tables have the class and the lower case that the server gives a character."""
    character = chr(row["c"])
    ours = next((name for name, pattern in CLASSES.items() if pattern.match(character)), "")
    return (kind(row), chr(row["lower"])) == (ours, character.translate(LOWER))


def our_tokens(text: str) -> list[Token]:
    return list(dict.fromkeys(token for piece in pieces(text) for token in tokens(piece)))


async def parsed(parser: asyncpg.Connection, texts: Sequence[str]) -> list[list[Token]]:
    """The distinct tokens of `ts_parse` by first appearance, without blanks, tags, protocols and entities."""
    rows = await parser.fetch(
        """
        SELECT n, alias, token
        FROM unnest($1::text[]) WITH ORDINALITY AS given (text, n),
             ts_parse('default', text) WITH ORDINALITY AS found (tokid, token, place)
             JOIN ts_token_type('default') USING (tokid)
        WHERE alias NOT IN ('blank', 'tag', 'protocol', 'entity') ORDER BY n, place
        """,
        texts,
    )
    found: list[dict[Token, None]] = [{} for _ in texts]
    for row in rows:
        found[row["n"] - 1][row["alias"], row["token"]] = None
    return [list(distinct) for distinct in found]


async def vectors(parser: asyncpg.Connection, texts: Sequence[str]) -> list[set[str]]:
    """The lexemes of `to_tsvector`, for text without Chinese characters."""
    sql = (
        "SELECT tsvector_to_array(to_tsvector('english', text)) FROM unnest($1::text[]) WITH ORDINALITY AS t (text, n)"
    )
    return [set(row[0]) for row in await parser.fetch(f"{sql} ORDER BY n", texts)]


def segmented(text: str) -> set[str]:
    return {part for run in HAN.findall(unicodedata.normalize("NFC", text)) for part in rjieba.cut_for_search(run)}
