"""Excerpts: where they stand, that they are pieces of the original, and what hostile text costs."""

import json
import re
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.search import words
from sidecar.search.excerpt import MAX_CHARACTERS, excerpt, span
from tests.test_budget import CHARACTERS, SINGLE, WHOLE, cuts

FILLER = "lorem ipsum dolor sit amet, " * 100


def lexemes(query: str) -> frozenset[str]:
    return words.query_lexemes(query)[0]


# Query, and the word of the text that is in the middle; everything else is filler.
PLACES: list[tuple[str, str]] = [
    ("university", "University"),
    ("universities", "UNIVERSITY"),
    ("added", "additions"),
    ("history", "history"),
    ("cities", "City"),
    ("the deployment of it", "deployed"),
    ("人工智能", "人工智能"),
    ("智能", "人工智能"),
    ("研究", "本次研究的"),
    ("ПРИВЕТ", "привет"),
    ("ΟΔΟΣ", "οδοσ"),
    ("café", "Café"),
    ("café", unicodedata.normalize("NFD", "Café")),
    ("한국어", unicodedata.normalize("NFD", "한국어")),
    ("https", "https://example.com/x"),
    ("user@example.com", "User@Example.com"),
    ("/usr/local/bin", "/usr/local/bin"),
    ("-07", "2026-07-23"),
    ("user", "my_user_id"),
    ("v2", "人v2"),
    ("state-of-the-art", "State-of-the-art"),
    ("x" * 600, "x" * 600),
]


@pytest.mark.parametrize(("query", "word"), PLACES, ids=lambda text: ascii(text[:20]))
def test_excerpt_shows_the_word(query: str, word: str) -> None:
    """The excerpt of a long text is cut around what the query finds in it."""
    text = f"{FILLER}{word} {FILLER}"
    found, truncated = excerpt(text, lexemes(query))
    begin = text.index(found)
    assert (MAX_CHARACTERS, True) == (len(found), truncated)
    assert word[:200] in found
    assert abs(len(FILLER) - begin - MAX_CHARACTERS / 2) <= 20


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("university", "diversity"),
        ("versity", "university"),
        ("went", "go"),
        ("cafe", "café"),
        ("the", "other"),
        ("🚀", "🚀"),
        ("", "word"),
        ("智能", "智 能"),
    ],
)
def test_excerpt_without_a_place_is_the_beginning(query: str, word: str) -> None:
    """Nothing inside a word is a place, nor is what the analyzer takes apart."""
    text = f"{FILLER}{word} {FILLER}"
    assert (text[:MAX_CHARACTERS], True) == excerpt(text, lexemes(query))


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        (f"short {FILLER}", 0),
        (f"{FILLER}short {FILLER}deployment {FILLER}", len(FILLER) * 2 + 6 + 3 - 250),
        (f"{FILLER}deployment", len(FILLER) + 10 - 500),
        (f"{'short ' * 900}deployment {FILLER}", 900 * 6 + 3 - 250),
        (f"{'short ' * 1100}deployment {FILLER}", 0),
        (f"deployments {FILLER}deployment {FILLER}", 0),
    ],
    ids=["the other one", "longest first", "at the end", "after many", "after too many", "first of its places"],
)
def test_longest_lexeme_wins(text: str, begin: int) -> None:
    """Of several lexemes the longest one's first place is shown, unless others are seen a thousand times before it."""
    assert (text[begin : begin + 500], True) == excerpt(text, frozenset({"short", "deploy"}))


@pytest.mark.parametrize("text", ["", "short", "x" * 500, "人" * 500, "\n \t" * 100])
def test_short_text_is_whole(text: str) -> None:
    """What fits is given as it is, white space included."""
    assert (text, False) == excerpt(text, frozenset({"short"}))


@pytest.mark.parametrize("most", [1, 20, 500, 2000, len(FILLER) * 2 + 3, 10**6])
def test_a_span_of_any_length(most: int) -> None:
    """A span is cut around the word as an excerpt is, however long it may be."""
    text = f"{FILLER}zebra{FILLER}"[: len(FILLER) * 2 + 3]
    start, end = span(text, lexemes("zebras"), most)
    assert min(most, len(text)) == end - start
    assert start <= len(FILLER) < end
    assert excerpt(text, lexemes("zebras")) == (text[slice(*span(text, lexemes("zebras"), 500))], True)


def test_a_span_breaks_no_character() -> None:
    """It ends before a character that has no place in it whole."""
    assert (0, 4) == span("abcde\u0301", lexemes("abc"), 5)
    assert (0, 6) == span("abcde\u0301", lexemes("abc"), 6)


def test_one_character_of_many_code_points() -> None:
    """What cannot be cut is left out rather than broken."""
    assert ("", True) == excerpt("a" + "\u0301" * 300_000, frozenset({"zzz"}))


@given(CHARACTERS, st.lists(st.sampled_from([*WHOLE, *SINGLE, "word", "人工智能"]), max_size=3), st.integers(0, 700))
@settings(max_examples=150, deadline=None)
def test_excerpt_is_a_piece(characters: list[str], wanted: list[str], repeats: int) -> None:
    """An excerpt is a piece of the text, of 500 characters at most, and no visible character is cut."""
    characters = [*characters, "word"] * (repeats // (len(characters) + 1) + 1)
    text = "".join(characters)
    found, truncated = excerpt(text, frozenset(wanted))
    allowed = cuts(characters)
    assert len(found) <= MAX_CHARACTERS
    assert (found != text) == truncated
    assert any(
        place.start() in allowed and place.start() + len(found) in allowed
        for place in re.finditer(f"(?={re.escape(found)})", text)
    )


def test_search_cases() -> None:
    """For every case of the file each match's excerpt is a piece of its text, whatever the query."""
    cases = json.loads((Path(__file__).parent / "data/search-cases-dev.json").read_text())["cases"]
    for case in cases:
        for document in case["documents"]:
            if isinstance(document["text"], str):
                found, truncated = excerpt(document["text"], lexemes(str(case["query"])))
                assert found in document["text"]
                assert truncated == (len(document["text"]) > 500)


HOSTILE = {
    "words": ("lorem ipsum ", ["zzz", "lo"]),
    "first characters": ("u ", ["univers"]),
    "almost": ("universi ", ["universum", "universal", "university's"]),
    "Cyrillic": ("привет мир ", ["zzz", "мирный"]),
    "Chinese": ("人工费", ["人工智能", "工智"]),
    "any character": ("一二三四五六七八九十", [f"{chr(0x4E00 + n)}龘" for n in range(150)]),
    "paths": ("/a", ["/a" * n + "b" for n in range(1, 20)]),
    "many places": ("a ", ["a", "zzz"]),
    "flags": ("🇩🇪", ["x"]),
    "half flags": ("🇩", ["x"]),
    "joiners": ("👩\u200d", ["x"]),
    "marks": ("\u0301\u0316", ["x"]),
    "surrogates": ("\ud83d\ude00", ["x"]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time(name: str) -> None:
    """Eight times the text takes about eight times as long, and a megabyte takes seconds at most."""
    fragment, wanted = HOSTILE[name]

    def seconds(characters: int) -> float:
        text = fragment * (characters // len(fragment))
        start = time.thread_time()
        excerpt(text, frozenset(wanted))
        return time.thread_time() - start

    seconds(1000)
    short, long = min(seconds(25_000) for _ in range(3)), seconds(200_000)
    print(f"{name}: {long:.4f} s for 200,000 characters")
    assert long < 0.01 + 32 * short
    assert long < 1


def test_the_last_word_of_3_mb() -> None:
    """A word at the end of a long answer is found and shown."""
    found, truncated = excerpt(f"{'lorem ipsum ' * 250_000} zebra", frozenset({"zebra"}))
    assert found.endswith(" zebra")
    assert truncated
