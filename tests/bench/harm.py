"""What the sidecar costs others: the agent's saves while many clients poll it, and memory; it measures no speed."""

import statistics
from collections.abc import Sequence

from tests.bench import report, servers
from tests.bench.generate import LARGE
from tests.bench.load import Job, request
from tests.bench.producer import LIVE, Saves, producing
from tests.bench.report import Findings
from tests.bench.rounds import BEARER, SESSIONS, Bench, get, turns_path
from tests.rig import Store

POLLING_CLIENTS = 32
SAVING_ROUNDS = 4  # p99 needs many saves, so its rounds are so much longer
LARGE_READERS = 16
POLLED = (SESSIONS, turns_path(LIVE))


async def producer(bench: Bench, store: Store, findings: Findings) -> None:
    """How long saves take while clients poll the sidecar, and while they poll static bodies of the same sizes."""
    saves = {"sidecar": Saves(), "static body": Saves()}
    refused = 0
    with (
        producing(store.url) as agent,
        servers.sidecar(store.url, bench.folder) as sidecar,
        servers.peer("static", store.url, bench.folder) as static,
    ):
        agent.saves(0.2)  # the session that is polled must exist
        sizes = [len(get(sidecar.port, path).content) for path in POLLED]
        jobs = {
            "sidecar": _polling(bench, sidecar.port, POLLED),
            "static body": _polling(bench, static.port, [f"/{size}" for size in sizes]),
        }
        for _ in range(bench.rounds):
            for name, job in jobs.items():
                bench.load.begin(job)
                found = agent.saves(bench.seconds * SAVING_ROUNDS)
                refused += sum(number for status, number in bench.load.outcome().statuses.items() if status != "200")
                saves[name].times += found.times
                saves[name].faults += found.faults
    p99 = {name: _p99(each.times) for name, each in saves.items()}
    findings.goals[report.PRODUCER] = p99["sidecar"] / p99["static body"]
    findings.goals[report.FAULTS] = len(saves["sidecar"].faults)
    for name, each in saves.items():
        findings.time(f"save while the {name} is polled, p99 of {len(each.times)}", p99[name])
        findings.time(f"save while the {name} is polled, median", statistics.median(each.times))
    findings.measured["polls that were refused"] = str(refused)


def _polling(bench: Bench, port: int, paths: Sequence[str]) -> Job:
    requests = tuple(request(port, path, BEARER) for path in paths)
    seconds = bench.seconds * SAVING_ROUNDS + 0.5  # the agent connects first
    return Job(port, requests, POLLING_CLIENTS, seconds, bench.every)


def _p99(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


async def memory(bench: Bench, store: Store, findings: Findings) -> None:
    """The peak of a fresh process while it answers many large requests at once."""
    with servers.sidecar(store.url, bench.folder) as sidecar:
        get(sidecar.port, SESSIONS)
        idle = sidecar.resident_mb()
        sidecar.forget_peak()
        reading = (request(sidecar.port, turns_path(LARGE), BEARER),)
        bench.load.begin(Job(sidecar.port, reading, LARGE_READERS, bench.seconds * 2))
        statuses = bench.load.outcome().statuses
        peak = sidecar.resident_mb(peak=True)
        octets = len(get(sidecar.port, turns_path(LARGE)).content)
    findings.goals[report.MEMORY] = peak - idle
    findings.measured["memory: size of an answer"] = f"{octets / 1e6:.2f} MB"
    findings.measured["memory: answers by status"] = ", ".join(f"{each}: {statuses[each]}" for each in sorted(statuses))
    findings.measured["memory: idle"] = f"{idle:.0f} MB"
