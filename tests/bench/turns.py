"""One session of 50 turns read from the sidecar, its peers and the limit, all of which bring the same turns."""

import importlib.util
import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.bench import limit, report, servers
from tests.bench.generate import FAT, FAT_TURNS
from tests.bench.load import Job, request
from tests.bench.report import Findings
from tests.bench.rounds import BEARER, Bench, get, turns_path
from tests.rig import Store

CONNECTIONS = 4
DATASETTE_QUERY = (
    f"context_id={FAT}&_sort_desc=last_updated&_size={FAT_TURNS}&_shape=array"
    "&_json=status&_json=artifacts&_json=history&_nocount=1&_nofacet=1&_nosuggest=1"
)
LABELS = {
    "sidecar": "sidecar",
    "sdk": "SDK ListTasks",
    "decoding": "decode and re-encode",
    "datasette": "Datasette",
    "static": "static body",
    "limit": "limit",
}
GOALS = {
    "sdk": report.TURNS_SDK,
    "decoding": report.TURNS_DECODING,
    "datasette": report.TURNS_DATASETTE,
    "limit": report.TURNS_LIMIT,
}


async def measure(bench: Bench, store: Store, findings: Findings) -> None:
    """Requests a second of each, on a prepared store."""
    with ExitStack() as opened:
        sidecar = opened.enter_context(servers.sidecar(store.url, bench.folder)).port
        octets = _octets(sidecar, turns_path(FAT), "turns")

        def peer(name: str) -> int:
            return opened.enter_context(servers.peer(name, store.url, bench.folder)).port

        jobs = {
            "sidecar": _job(sidecar, turns_path(FAT)),
            "sdk": _sdk_job(peer("sdk")),
            "decoding": _job(decoding := peer("decoding"), f"/turns/{FAT}"),
            "static": _job(peer("static"), f"/{octets}"),
        }
        _octets(decoding, f"/turns/{FAT}", "turns")
        if store.kind == "sqlite" and importlib.util.find_spec("datasette"):
            path = f"/{Path(str(store.engine.url.database)).stem}/tasks.json?{DATASETTE_QUERY}"
            jobs["datasette"] = _job(datasette := peer("datasette"), path)
            _octets(datasette, path)
        took = await bench.medians(
            {
                **{name: bench.throughput(job) for name, job in jobs.items()},
                "fetch": partial(limit.fetch_seconds, store, bench.seconds / 2),
                "scan": partial(limit.scan_seconds, store, bench.seconds / 2),
            }
        )
    took["limit"] = took["fetch"] + took["scan"] + took["static"]
    findings.goals.update({goal: took[name] / took["sidecar"] for name, goal in GOALS.items() if name in took})
    findings.measured["turns: size of the answer"] = f"{octets / 1e6:.2f} MB"
    for name, label in LABELS.items():
        if name in took:
            findings.rate(f"turns: {label}", took[name])
    for name in ("fetch", "scan"):
        findings.time(f"turns: {name} of the limit", took[name])


def _job(port: int, path: str) -> Job:
    return Job(port, (request(port, path, BEARER),), CONNECTIONS)


def _sdk_job(port: int) -> Job:
    params = {"contextId": FAT, "pageSize": FAT_TURNS, "includeArtifacts": True}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": params})
    headers = {"A2A-Version": "1.0"}
    answer = httpx.post(f"http://127.0.0.1:{port}/", content=body, headers=headers, timeout=60).json()
    _check(answer["result"]["tasks"])
    return Job(port, (request(port, "/", headers, body),), CONNECTIONS)


def _octets(port: int, path: str, key: str | None = None) -> int:
    """The size of an answer that brings the turns, under the key or bare."""
    content = get(port, path).content
    answer = json.loads(content)
    _check(answer if key is None else answer[key])
    return len(content)


def _check(found: list[dict[str, Any]]) -> None:
    if len(found) != FAT_TURNS or not all(turn["artifacts"] and turn["history"] for turn in found):
        raise RuntimeError(f"{FAT_TURNS} whole turns were expected, and {len(found)} came")
