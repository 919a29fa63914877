"""What all measurements share: variants that take turns in rounds, and single requests; it knows no figure."""

import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from tests.bench.load import Job, Load
from tests.rig import TOKEN

SESSIONS = "/api/chat/sessions"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
Variant = Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class Bench:
    """What every measurement uses; `seconds` is the length of a round, `every` the pause of a polling client."""

    load: Load
    folder: Path
    seconds: float
    rounds: int
    every: float

    async def medians(self, variants: Mapping[str, Variant]) -> dict[str, float]:
        """Each variant's median over the rounds, in each of which all have their turn."""
        taken: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(self.rounds):
            for name, measure in variants.items():
                taken[name].append(await measure())
        return {name: statistics.median(each) for name, each in taken.items()}

    def throughput(self, job: Job) -> Variant:
        """Seconds a request: the mean time of a request by the number of clients that wait at once."""

        async def measure() -> float:
            outcome = self.load.run(replace(job, seconds=self.seconds))
            return statistics.fmean(outcome.times) / job.connections

        return measure

    def latency(self, job: Job, status: int = 200) -> Variant:
        """The median time of a request, in seconds."""

        async def measure() -> float:
            return statistics.median(self.load.run(replace(job, seconds=self.seconds), status).times)

        return measure


def turns_path(session_id: str) -> str:
    """The sidecar's path of a session's turns."""
    return f"{SESSIONS}/{session_id}/turns"


def get(port: int, path: str) -> httpx.Response:
    """One answer, not compressed. Raises httpx.HTTPStatusError."""
    headers = {**BEARER, "Accept-Encoding": "identity"}
    return httpx.get(f"http://127.0.0.1:{port}{path}", headers=headers, timeout=60).raise_for_status()
