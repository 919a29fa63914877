"""The text budgets of a history page, and where a text may be cut."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.search.budget import Budget, order
from sidecar.search.cuts import beginning, first_cut, last_cut

# Visible characters of several code points each.
WHOLE = [
    "e\u0301", "a\u0308\u0323", "👩‍👩‍👧‍👦", "👍🏽", "1️⃣", "❤️", "🇩🇪",
    "🏴\U000e0067\U000e0062\U000e007f", "\u1112\u1161\u11ab", "葛\U000e0100", "\ud83d\ude00", "ｶﾞ", "नि",
]  # fmt: skip
SINGLE = ["a", " ", "\n", "中", "é", "😀", "\u05d0", "\ud83d"]
CHARACTERS = st.lists(st.sampled_from([*WHOLE, *SINGLE]))


def cuts(characters: list[str]) -> set[int]:
    """Where a text of these visible characters may be cut."""
    return {len("".join(characters[:number])) for number in range(len(characters) + 1)}


@pytest.mark.parametrize("whole", WHOLE, ids=ascii)
def test_no_visible_character_is_cut(whole: str) -> None:
    """Between its code points there is no cut, and beside it there is."""
    text, inside = f"x{whole}y", range(2, len(whole) + 1)
    assert ["x" for _ in inside] == [beginning(text, at) for at in inside]
    assert "x" + whole == beginning(text, len(whole) + 1)
    assert [len(whole) + 1 for _ in inside] == [first_cut(text, at, len(text)) for at in inside]


@given(CHARACTERS, st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_cuts_are_those_between_visible_characters(characters: list[str], one: int, other: int) -> None:
    """The nearest cut on either side is found, and no search leaves its bounds."""
    text, allowed = "".join(characters), cuts(characters)
    start, end = sorted((min(one, len(text)), min(other, len(text))))
    assert max({start} | {at for at in allowed if start <= at <= end}) == last_cut(text, start, end)
    assert min({end} | {at for at in allowed if start <= at <= end}) == first_cut(text, start, end)


def test_flags_are_cut_in_pairs() -> None:
    """A row of flags is cut between two of them, however long it is."""
    flags = "🇩🇪🇫🇷" * 1000
    assert ["🇩🇪", "🇩🇪", "🇩🇪🇫🇷"] == [beginning(flags, 2), beginning(flags, 3), beginning(flags, 4)]


@pytest.mark.parametrize(
    ("text", "at_most", "left", "taken", "truncated"),
    [
        ("", 2000, 0, "", False),
        ("abc", 2000, 0, "", True),
        ("abc", 2, 9, "ab", True),
        ("abc", 3, 9, "abc", False),
        ("abc", 9, 2, "ab", True),
        ("人工智能", 3, 9, "人工智", True),
        ("😀😀😀", 9, 2, "😀😀", True),
        ("ae\u0301", 9, 2, "a", True),
        ("👩‍👩‍👧", 9, 4, "", True),
    ],
)
def test_take(text: str, at_most: int, left: int, taken: str, truncated: bool) -> None:
    """A text is cut to the field's room and the page's, in code points; only what is given is paid for."""
    budget = Budget(left)
    assert (taken, truncated) == budget.take(text, at_most)
    assert (left - len(taken), truncated) == (budget.left, budget.truncated)


def test_page_of_long_fields() -> None:
    """Six fields of 2,000 characters fill a page; the seventh is empty, and the page is truncated."""
    budget = Budget()
    assert [(2000, False)] * 6 == [(len(text), cut) for text, cut in (budget.take("字" * 2000) for _ in range(6))]
    assert not budget.truncated
    assert ("", True) == budget.take("x")
    assert budget.truncated


@given(st.lists(st.tuples(CHARACTERS, st.integers(0, 30))), st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_budget_is_kept(takes: list[tuple[list[str], int]], left: int) -> None:
    """Together the texts never pass the budget, and each is the beginning of its own, cut where it may be."""
    budget = Budget(left)
    total = 0
    for characters, at_most in takes:
        text = "".join(characters)
        taken, truncated = budget.take(text, at_most)
        total += len(taken)
        assert text.startswith(taken)
        assert len(taken) in cuts(characters)
        assert (taken != text) == truncated
    assert total + budget.left == left


@pytest.mark.parametrize(
    ("count", "target", "newest_first", "selected", "expected"),
    [
        (0, None, True, None, []),
        (1, 0, True, None, [0]),
        (5, None, True, None, [4, 3, 2, 1, 0]),
        (5, None, False, None, [0, 1, 2, 3, 4]),
        (5, 2, True, None, [2, 3, 1, 4, 0]),
        (5, 2, False, None, [2, 3, 1, 4, 0]),
        (5, 0, True, None, [0, 1, 2, 3, 4]),
        (5, 3, True, None, [3, 4, 2, 1, 0]),
        (5, None, True, 4, [4, 3, 2, 1, 0]),
        (5, None, False, 4, [4, 0, 1, 2, 3]),
        (5, 2, False, 2, [2, 3, 1, 4, 0]),
    ],
)
def test_order(count: int, target: int | None, newest_first: bool, selected: int | None, expected: list[int]) -> None:
    """A target comes first, then its neighbours, the newer of two; else the near edge does; the selected leads."""
    assert expected == order(count, target, newest_first, selected)


def test_order_is_a_permutation() -> None:
    """Every turn gets its text once, whatever is asked."""
    rnd = random.Random(5)
    for count in range(1, 51):
        target, selected = rnd.choice([None, rnd.randrange(count)]), rnd.choice([None, rnd.randrange(count)])
        assert list(range(count)) == sorted(order(count, target, rnd.random() < 0.5, selected))
