"""Index and parked at two sizes of the table, and an unchanged session with and without its validator; times only."""

from tests.bench import report, servers
from tests.bench.generate import FAT, PARKED_SESSIONS
from tests.bench.load import Job, request
from tests.bench.report import Findings
from tests.bench.rounds import BEARER, SESSIONS, Bench, Variant, get, turns_path
from tests.rig import Store

PARKED = f"{SESSIONS}?parked=true"


async def in_one_pass(bench: Bench, store: Store) -> float:
    """The time of the index on a store that is not prepared, in seconds."""
    with servers.sidecar(store.url, bench.folder) as sidecar:
        return (await bench.medians({"one pass": asking(bench, sidecar, SESSIONS)}))["one pass"]


async def measure(bench: Bench, small: Store, large: Store, one_pass: float, findings: Findings) -> None:
    """The times on prepared stores."""
    with (
        servers.sidecar(small.url, bench.folder) as at_small,
        servers.sidecar(large.url, bench.folder) as at_large,
    ):
        for server in (at_small, at_large):
            found = len(get(server.port, PARKED).json()["sessions"])
            if found != PARKED_SESSIONS:
                raise RuntimeError(f"{PARKED_SESSIONS} parked sessions were expected, and {found} came")
        etag = get(at_small.port, turns_path(FAT)).headers["ETag"]
        unchanged = Job(at_small.port, (request(at_small.port, turns_path(FAT), {**BEARER, "If-None-Match": etag}),))
        took = await bench.medians(
            {
                "index, small": asking(bench, at_small, SESSIONS),
                "index, large": asking(bench, at_large, SESSIONS),
                "parked, small": asking(bench, at_small, PARKED),
                "parked, large": asking(bench, at_large, PARKED),
                "unchanged session: 200": asking(bench, at_small, turns_path(FAT)),
                "unchanged session: 304": bench.latency(unchanged, 304),
            }
        )
    findings.goals[report.INDEX_FLAT] = took["index, large"] / took["index, small"]
    findings.goals[report.INDEX_PREPARED] = one_pass / took["index, large"]
    findings.goals[report.PARKED_FLAT] = took["parked, large"] / took["parked, small"]
    findings.goals[report.NOT_MODIFIED] = 100 * took["unchanged session: 304"] / took["unchanged session: 200"]
    for name, seconds in {"index in one pass, large": one_pass, **took}.items():
        findings.time(name, seconds)


def asking(bench: Bench, server: servers.Running, path: str) -> Variant:
    """The latency of one path of a sidecar."""
    return bench.latency(Job(server.port, (request(server.port, path, BEARER),)))
