"""How a window's 12,000 characters are shared out, over HTTP: by tables, on texts of many code points a character."""

from typing import NamedTuple

import httpx
import pytest

from tests import rig
from tests.test_history import read
from tests.test_search import operator

TEXTS = ("prompt", "steers", "content")
FAMILY = "👩\u200d👩\u200d👧\u200d👦"
FULL, NONE = (2000, 2000, 2000), (0, 0, 0)

Sizes = tuple[int | None, int | None, int | None]


class Page(NamedTuple):
    """A conversation, what is asked of it, and how many code points of each text are shown.

    stored: per turn how often its prompt, steers and content repeat the character, after `start`; None is no such text.
    params: `around` is a position.
    """

    stored: list[Sizes]
    params: rig.Json
    shown: list[Sizes]
    character: str = "字"
    start: str = ""


LONG: Sizes = (2500, 2500, 2500)
PART: Sizes = (1500, None, 1200)
WHOLE: Sizes = (1500, None, 1200)
REST: Sizes = (1200, None, 0)
GRAPHEMES: Sizes = (1001, 1001, 1001)

PAGES: dict[str, Page] = {
    "all fit": Page([PART] * 4, {}, [WHOLE] * 4),
    "six fields fill it": Page([FULL] * 2, {}, [FULL] * 2),
    "a field is cut, the page is not full": Page(
        [(2001, None, 1), (1, None, 2001)], {}, [(2000, None, 1), (1, None, 2000)]
    ),
    "one character too many": Page([(1, None, None), FULL, FULL], {}, [(0, None, None), FULL, FULL]),
    "prompt before steers before content": Page(
        [LONG, *[(2500, None, 2500)] * 2], {}, [(2000, 2000, 0), *[(2000, None, 2000)] * 2]
    ),
    "newest first": Page([LONG] * 3, {}, [NONE, FULL, FULL]),
    "before: newest first": Page([LONG] * 4, {"before_position": 4}, [NONE, FULL, FULL]),
    "after: oldest first": Page([LONG] * 4, {"after_position": 1}, [FULL, FULL, NONE]),
    "after 0: oldest first": Page([LONG] * 3, {"after_position": 0}, [FULL, FULL, NONE]),
    "around the oldest": Page([LONG] * 3, {"around": 1}, [FULL, FULL, NONE]),
    "around the middle: the newer neighbour": Page([LONG] * 3, {"around": 2}, [NONE, FULL, FULL]),
    "around the newest": Page([LONG] * 3, {"around": 3}, [NONE, FULL, FULL]),
    "newest first, a rest": Page([PART] * 6, {}, [(0, None, 0), REST, *[WHOLE] * 4]),
    "after, a rest": Page([PART] * 6, {"after_position": 0}, [*[WHOLE] * 4, REST, (0, None, 0)]),
    "around 1, a rest": Page([PART] * 6, {"around": 1}, [*[WHOLE] * 4, REST, (0, None, 0)]),
    "around 2, a rest": Page([PART] * 5, {"around": 2}, [*[WHOLE] * 4, REST]),
    "around 3, a rest": Page([PART] * 5, {"around": 3}, [REST, *[WHOLE] * 4]),
    "around 3 of 6, a rest": Page([PART] * 6, {"around": 3}, [REST, *[WHOLE] * 4, (0, None, 0)]),
    "around 4, a rest": Page([PART] * 6, {"around": 4}, [(0, None, 0), REST, *[WHOLE] * 4]),
    "turns without text cost nothing": Page(
        [(None, None, None), LONG, (None, None, None), LONG, (1, None, None)],
        {"around": 3},
        [(None, None, None), FULL, (None, None, None), FULL, (0, None, None)],
    ),
    "limit before budget": Page([LONG] * 5, {"limit": 2}, [FULL, FULL]),
    "combining marks": Page([GRAPHEMES] * 3, {}, [NONE, FULL, FULL], "e\u0301"),
    "combining marks at an odd place": Page(
        [GRAPHEMES] * 3, {}, [(5, 1, 0), *[(1999, 1999, 1999)] * 2], "e\u0301", "x"
    ),
    "families": Page([(300, 300, 300)] * 3, {}, [(28, 0, 0), *[(1995, 1995, 1995)] * 2], FAMILY),
    "flags": Page([GRAPHEMES] * 3, {"after_position": 0}, [*[(1999, 1999, 1999)] * 2, (5, 1, 0)], "🇩🇪", "x"),
}  # fmt: skip


def texts(page: Page, sizes: Sizes) -> list[str | None]:
    """The texts of a turn as they are stored, in the order of TEXTS."""
    return [None if size is None else page.start + page.character * size for size in sizes]


def at_turn(params: rig.Json, turns: list[str]) -> rig.Json:
    """The parameters of a request, in which `around` is a turn."""
    anchor = {"around_turn_public_id": turns[params["around"] - 1]} if "around" in params else {}
    return {**anchor, **{name: value for name, value in params.items() if name != "around"}}


async def test_text_is_shared_out_in_the_order_of_the_seed(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """2,000 code points a field, 12,000 a page; rows stay when none is left, and the flags are true."""
    saved: dict[str, dict[str, list[str | None]]] = {}
    for number, (name, page) in enumerate(PAGES.items()):
        saved[name] = {}
        for sizes in page.stored:
            prompt, steers, content = stored = texts(page, sizes)
            history = [] if steers is None else [operator(steers)]
            saved[name][await store.turn(f"chat-{number}", text=content, prompt=prompt, history=history)] = stored
    for number, (name, page) in enumerate(PAGES.items()):
        answer = await read(sidecar, f"chat-{number}", **at_turn(page.params, list(saved[name])))
        shown = [[turn.get(text) for text in TEXTS] for turn in answer["turns"]]
        assert page.shown == [tuple(None if text is None else len(text) for text in turn) for turn in shown], name
        whole = [saved[name][turn["public_id"]] for turn in answer["turns"]]
        pairs = [pair for turns in zip(whole, shown, strict=True) for pair in zip(*turns, strict=True)]
        assert all((full or "").startswith(text or "") for full, text in pairs), name
        is_cut = [full != text for full, text in zip(whole, shown, strict=True)]
        assert (is_cut, any(is_cut)) == ([turn["truncated"] for turn in answer["turns"]], answer["truncated"]), name


class Worked(NamedTuple):
    """Turns of prompt and content; how many of which rounds one of them has; what is shown of all.

    rounds: the sizes of the previews, oldest first. params: `around` is a place among the turns.
    """

    sizes: tuple[int, int]
    rounds: list[int]
    params: rig.Json
    shown: list[tuple[int, int]]
    previews: list[int]
    selected: int


# Three turns, of which the selected one has rounds.
WORKED: dict[str, Worked] = {
    "all fits": Worked((1000, 1000), [1500] * 4, {}, [(1000, 1000)] * 3, [1500] * 4, 3),
    "newest: its text, its rounds, then newest first": Worked(
        (2500, 2500), [1500] * 3, {}, [(0, 0), (2000, 1500), (2000, 2000)], [1500] * 3, 3
    ),
    "before: the same": Worked(
        (2500, 2500), [1500] * 3, {"before_position": 99}, [(0, 0), (2000, 1500), (2000, 2000)], [1500] * 3, 3
    ),
    "after: the newest, its rounds, then oldest first": Worked(
        (2500, 2500), [1500] * 3, {"after_position": 0}, [(2000, 1500), (0, 0), (2000, 2000)], [1500] * 3, 3
    ),
    "around the middle: the newer neighbour is next": Worked(
        (2500, 2500), [1500] * 2, {"around": 2}, [(1000, 0), (2000, 2000), (2000, 2000)], [1500] * 2, 2
    ),
    "around the oldest": Worked(
        (2500, 2500), [1500] * 3, {"around": 1}, [(2000, 2000), (2000, 1500), (0, 0)], [1500] * 3, 1
    ),
    "rounds take it newest first": Worked(
        (2500, 2500), [2500] * 6, {"around": 2}, [(0, 0), (2000, 2000), (0, 0)], [0, 0, *[2000] * 4], 2
    ),
    "a rest for an older round": Worked(
        (500, 500), [1500, 1500, *[1900] * 5], {}, [(0, 0), (0, 0), (500, 500)], [0, 1500, *[1900] * 5], 3
    ),
}


@pytest.mark.parametrize("character", ["字", "😀"])
async def test_previews_come_after_the_selected_turn(
    character: str, store: rig.Store, sidecar: httpx.AsyncClient
) -> None:
    """The selected turn's text, its previews from newest to oldest, the neighbours; keys and states remain."""
    saved: dict[str, list[str]] = {}
    for number, (name, case) in enumerate(WORKED.items()):
        prompt, content = (character * size for size in case.sizes)
        rounds = [rig.message("ROLE_AGENT", character * size, messageId=f"m{n}") for n, size in enumerate(case.rounds)]
        histories = [rounds if position == case.selected else [] for position in (1, 2, 3)]
        saved[name] = [
            await store.turn(f"chat-{number}", text=content, prompt=prompt, history=each) for each in histories
        ]
    for number, (name, case) in enumerate(WORKED.items()):
        answer = await read(sidecar, f"chat-{number}", include_execution="true", **at_turn(case.params, saved[name]))
        execution = answer["execution"]
        assert saved[name][case.selected - 1] == execution["turn_public_id"], name
        assert case.shown == [(len(turn["prompt"]), len(turn["content"])) for turn in answer["turns"]], name
        assert case.previews == [len(each["preview"]) for each in execution["rounds"]], name
        known = [(f"m{n}", "completed", 0) for n in range(len(case.rounds))]
        assert known == [(each["key"], each["status"], each["call_count"]) for each in execution["rounds"]], name
        is_cut = [shown < size for shown, size in zip(case.previews, case.rounds, strict=True)]
        assert is_cut == [each["truncated"] for each in execution["rounds"]], name
        assert any(is_cut) == execution["truncated"], name
        is_cut += [shown != case.sizes for shown in case.shown]
        assert is_cut[-3:] == [turn["truncated"] for turn in answer["turns"]], name
        assert any(is_cut) == answer["truncated"], name


async def test_execution_alone_can_be_truncated(store: rig.Store, sidecar: httpx.AsyncClient) -> None:
    """A result that is cut raises the flags of its round, the execution and the page, and of no turn."""
    data = {"toolCallId": "c1", "name": "look", "phase": "completed", "result": FAMILY * 100}
    history = [{"messageId": "m", "role": "ROLE_AGENT", "parts": [{"data": data}]}]
    await store.turn("chat-a", history=history)
    answer = await read(sidecar, include_execution="true")
    (only,) = answer["execution"]["rounds"]
    assert FAMILY * 71 == only["calls"][0]["preview"]  # 497 code points
    flags = (only["truncated"], answer["execution"]["truncated"], answer["truncated"])
    assert ((True, True, True), [False]) == (flags, [turn["truncated"] for turn in answer["turns"]])
    assert not (await read(sidecar))["truncated"]
