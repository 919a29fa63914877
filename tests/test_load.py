"""Load: many clients read a filled store while its agent saves, and neither meets an error; how fast is the bench's."""

from collections.abc import Iterator
from datetime import timedelta
from random import Random
from typing import NamedTuple

import pytest

from tests import rig
from tests.bench.generate import START, Planned, load
from tests.bench.load import Job, Load, request
from tests.bench.producer import SAVES_A_SECOND, producing
from tests.test_process import HEADERS, INDEX, serving

CLIENTS = 32


class Size(NamedTuple):
    """How much is stored, and for how long it is read."""

    sessions: int
    turns: int
    seconds: float


CI, FULL = Size(50, 20, 2), Size(500, 20, 60)


def planned(size: Size) -> Iterator[Planned]:
    """A turn a second, of each session in its turn."""
    for number in range(size.sessions * size.turns):
        yield Planned(f"chat-{number % size.sessions}", START + timedelta(seconds=number))


def requests(size: Size, port: int) -> tuple[str, ...]:
    """Nine of ten ask for the turns of a session, the others for one of the other routes, in a mixed order."""
    dice = Random(size.sessions)
    others = (INDEX, f"{INDEX}?parked=true", f"{INDEX}/chat-0")
    paths = [f"{INDEX}/chat-{number}/turns" for number in range(size.sessions)]
    paths += [others[number % len(others)] for number in range(size.sessions // 9)]
    dice.shuffle(paths)
    return tuple(request(port, path, HEADERS) for path in paths)


@pytest.mark.usefixtures("sqlite_suffices")
async def test_load_is_held(store: rig.Store, full: bool) -> None:
    """32 clients get nothing but 200, and no save of the agent fails."""
    size = FULL if full else CI
    await load(store, planned(size))
    with serving(store.url, "--prepare") as sidecar, Load() as clients, producing(store.url) as agent:
        port = int(sidecar.url.rpartition(":")[2])
        clients.begin(Job(port, requests(size, port), CLIENTS, size.seconds))
        saves = agent.saves(size.seconds)
        outcome = clients.outcome()
    slowest = sorted(outcome.times)[len(outcome.times) * 99 // 100]
    print(
        f"\n{store.kind}: {outcome.statuses} in {size.seconds} s, p99 {slowest * 1000:.0f} ms;"
        f" {len(saves.times)} saves, the slowest {max(saves.times) * 1000:.0f} ms"
    )
    assert {"200"} == set(outcome.statuses)
    assert ([], int(size.seconds * SAVES_A_SECOND)) == (saves.faults, len(saves.times))
