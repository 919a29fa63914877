"""The analyzer: the search cases, hostile text, and what a query is told; a live PostgreSQL judges it elsewhere."""

import json
import random
import re
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from snowballstemmer.danish_stemmer import DanishStemmer

from sidecar.search import words

CASES = json.loads((Path(__file__).parent / "data/search-cases-dev.json").read_text())
HAN_RANGES = [[chr(int(end, 16)) for end in ends.split("-")] for ends in CASES["han_ranges"]]
HAN = re.compile(f"[{''.join(f'{first}-{last}' for first, last in HAN_RANGES)}]+")
MAILS = f"{'1_' * 12_000}1@{'1_' * 12_000}"
# Each is as dear to PostgreSQL's parser as the square of its repetitions, or was to ours.
HOSTILE = [
    "<!--", "1_", "x1@", "1_1@", "a.bc@", "/.", "/~", "a/./", "<a ", '<a "', "<a \"'", "<a '\\", '<a x="', "<script ",
    "&a", "a-1-", "foo-1a-", "1.1", "é-", "\u0301\u0316", "\u0f73", "人工智能", "㐀", "中a", "<", MAILS,
]  # fmt: skip


@pytest.fixture
def forgetful() -> Iterator[None]:
    """What was analyzed before and during the test is forgotten."""
    words._remembered.cache_clear()
    yield
    words._remembered.cache_clear()


def expand(text: Any) -> str:
    """A `text` of the cases file."""
    if isinstance(text, str):
        return text
    return "".join(item if isinstance(item, str) else repeated(item) for item in text)


def repeated(item: dict[str, Any]) -> str:
    if "repeat" in item:
        return str(item["text"] * item["repeat"])
    return "".join(item["format"] % number for number in range(item["start"], item["start"] + item["count"]))


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: f"{case['id']}-{case['topic']}")
def test_search_case(case: dict[str, Any]) -> None:
    """Query and documents get the lexemes that the case states, and with them its matches."""
    expected = case["expected"]
    query, _ = words.query_lexemes(expand(case["query"]))
    found = {f"{d['turn']}/{d['field']}": words.lexemes(expand(d["text"])) for d in case["documents"]}
    matches = [f"{match['turn']}/{match['field']}" for match in expected["matches"]]
    assert expected["query_lexemes"] == sorted(query)
    assert expected.get("document_lexemes", {}).items() <= {name: sorted(found[name]) for name in found}.items()
    assert sorted(matches) == sorted(name for name in found if query and query <= found[name])


@pytest.fixture(scope="module")
def hostile_length(request: pytest.FixtureRequest) -> int:
    return 1_000_000 if request.config.getoption("--full") else 100_000


@pytest.fixture(scope="module")
def plain_seconds(hostile_length: int) -> float:
    """The processor time that distinct plain words take, without anything remembered."""
    words._remembered.cache_clear()
    return seconds(" ".join(f"w{number}ing" for number in range(hostile_length // 9)))


@pytest.mark.parametrize("fragment", HOSTILE, ids=lambda fragment: ascii(fragment[:9]))
@pytest.mark.usefixtures("forgetful")
def test_hostile_text_costs_what_plain_text_costs(fragment: str, hostile_length: int, plain_seconds: float) -> None:
    """Repeated up to a length, no fragment takes 16 times as long as distinct plain words of that length."""
    measured = seconds(fragment * (hostile_length // len(fragment)))
    print(f"{fragment[:9]!r} {measured:.3f} s, plain words {plain_seconds:.3f} s")
    assert measured < 16 * plain_seconds


def test_normalization() -> None:
    """NUL separates, a lone surrogate is U+FFFD, composed and decomposed text are the same."""
    assert {"left", "right"} == words.lexemes("left\0right")
    assert {"left", "right"} == words.lexemes("left\ud800right")
    assert words.lexemes("cafe\u0301 \u8c48") == words.lexemes("caf\u00e9 \uf900")


def test_many_marks_are_normalized_as_few_are() -> None:
    """Marks of which there are too many for `unicodedata` to sort get the order that it gives them."""
    marks = random.Random(1).choices("\u0301\u0316\u0327\u0344\u0f71\u0f73\u0f81\u05b0\u0323", k=200)
    text = f"vie{''.join(marks)}w \u00e9{''.join(marks)}"
    assert words.lexemes(unicodedata.normalize("NFC", text)) == words.lexemes(text)
    assert words.lexemes(unicodedata.normalize("NFD", text)) == words.lexemes(text)


def test_ignored_terms() -> None:
    """A query names the terms that add no lexeme: stop words, emoji, tags; not a compound with a stop word inside."""
    found, ignored = words.query_lexemes("the State-of-the-art 🚀 of 人工 the <b x> 。")
    assert {"state-of-the-art", "state", "art", "人工"} == found
    assert ("the", "🚀", "of", "<b", "x>", "。") == ignored


TERMS: list[tuple[str, tuple[str, ...]]] = [
    ("", ()),
    ("the of …", ()),
    ("rollback the deployment, deploy it", ("rollback", "deploy")),
    ("what does 人工智能 do about React?", ("人工", "智能", "人工智能", "react")),
    ("state-of-the-art", ("state-of-the-art", "state", "art")),
    ("用React做rollback", ("用", "做", "react", "rollback")),
    ('see <a title="two words">zebra</a> okapi', ("see", "zebra", "okapi")),
    ('<!doc"\\z foo', ("foo", "doc", "z")),
]


@pytest.mark.parametrize(("text", "expected"), TERMS, ids=lambda value: ascii(value)[:20])
def test_terms(text: str, expected: tuple[str, ...]) -> None:
    """A question's terms are its lexemes, as its words come; what stands inside of a tag is none."""
    assert expected == words.terms(text)
    assert words.lexemes(text) == set(expected)


def test_so_many_terms_count() -> None:
    """The first terms of a long question count, whichever hashes they have."""
    text = "Summarize: " + " ".join(f"word{number}" for number in range(1000))
    expected = ("summar", *(f"word{number}" for number in range(255)))
    assert expected == words.terms(text)
    assert 256 == words.MOST_TERMS == len(words.terms("".join(chr(0x4E00 + number) for number in range(6000))))
    program = "import sys; from sidecar.search import words; print(words.terms(sys.stdin.read()))"
    text = "人工智能検索 deploy-the-rollback http://a.example/b?c user@host.example 研究"
    told = {
        subprocess.run([sys.executable, "-c", program], input=text, env={"PYTHONHASHSEED": seed}, **SPOKEN).stdout
        for seed in ("1", "2", "3")
    }
    assert 1 == len(told)


SPOKEN: dict[str, Any] = {"capture_output": True, "check": True, "encoding": "utf-8", "cwd": Path(__file__).parents[1]}


def test_long_chinese_lexeme_is_dropped() -> None:
    """What the segmenter leaves in one piece has the same limit as a word."""
    assert {"tail"} == words.lexemes("㐀" * 700 + " tail")
    assert {"㐀" * 682, "tail"} == words.lexemes("㐀" * 682 + " tail")


@pytest.mark.usefixtures("forgetful")
def test_threads_do_not_disturb_each_other() -> None:
    """Many texts at once get the lexemes that each gets alone."""
    rnd = random.Random(2)
    texts = [" ".join("".join(rnd.choices("aegioln", k=6)) + "ingly" for _ in range(300)) for _ in range(16)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(words.lexemes, texts))
    words._remembered.cache_clear()
    assert [words.lexemes(text) for text in texts] == together


def test_canaries_pass() -> None:
    """With the pinned packages the check is silent, and the fingerprint is short and steady."""
    words.check()
    assert re.fullmatch("[0-9a-f]{16}", words.fingerprint())
    assert words.fingerprint() == words.fingerprint.__wrapped__()


@pytest.mark.usefixtures("forgetful")
def test_another_stemmer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stemmer with other stems is refused with the versions to install, and has another fingerprint."""
    before = words.fingerprint()
    monkeypatch.setattr(words, "EnglishStemmer", DanishStemmer)
    with pytest.raises(words.AnalyzerMismatchError, match=r"'university' becomes .* snowballstemmer .*\[search\]"):
        words.check()
    assert before != words.fingerprint.__wrapped__()


def seconds(text: str) -> float:
    """The processor time that the lexemes of a text take."""
    start = time.thread_time()
    words.lexemes(text)
    return time.thread_time() - start
