"""The published description against a running server, by Schemathesis: all of its checks, in all of its phases."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import httpx
import pytest
import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.core.failures import Failure
from schemathesis.engine import events, from_schema
from schemathesis.engine.recorder import ScenarioRecorder
from schemathesis.openapi.checks import RejectedPositiveData, UseAfterFree

from sidecar.app import create_app
from sidecar.published import document
from tests import rig
from tests.test_gate import WINGS
from tests.test_paths import serving


@contextmanager
def serving_beside(store: rig.Store) -> Iterator[str]:
    """The sidecar in a thread of its own, since Schemathesis waits for its answers; the address."""
    ports: list[int] = []
    ready, done = Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with serving(create_app(rig.config_for(store, **WINGS))) as peer:
            ports.append(peer.port)
            ready.set()
            await done.wait()

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loops[0].call_soon_threadsafe(done.set)
        thread.join()


UNSAID = re.compile("`since` is not before|`messages` does not end with|is not a whole number|_tokens` has a value")


def is_meant(failure: Failure, case: Case[Any], response: Response) -> bool:
    """What a check takes for a fault and the contract decides otherwise; no check is switched off for it."""
    if isinstance(failure, RejectedPositiveData):
        problem: dict[str, str] = response.json()
        # no schema can say which cursors were given out; nor the one of any deployment, which prefix it has
        cursors = {"cursor", "after", "execution_before"}.intersection(case.query or {})
        is_foreign_cursor = any(problem["detail"].replace("`", "").startswith(f"{name} is not one") for name in cursors)
        # nor, where three parameters exclude each other, that one of them alone is right
        is_anchored_twice = "exclude each other" in problem["detail"]
        # nor that bytes are counted, and blanks are not
        is_bad_query = "query" in (case.query or {}) and problem["detail"].startswith("`query` ")
        # nor which sessions, turns and models there are
        is_told_by_the_store = problem["code"] in ("not_a_session", "invalid_search_scope")
        is_told_by_the_store |= problem["detail"].startswith("`model` is not offered")
        # nor what a body's members say together, nor that 1.0 is no whole number
        is_unsaid = case.method == "POST" and UNSAID.search(problem["detail"]) is not None
        return is_foreign_cursor or is_anchored_twice or is_bad_query or is_told_by_the_store or is_unsaid
    if isinstance(failure, UseAfterFree):
        # a retired session and an unknown one have no turns alike, which tells nobody which of the two it is
        is_empty = response.content == b'{"turns":[]}' or response.status_code == 304
        return case.operation.label == "GET /api/chat/sessions/{session_id}/turns" and is_empty
    return False


@dataclass
class Report:
    """What was found wrong, how often each operation answered with each status, and what was run."""

    findings: list[str] = field(default_factory=list)
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    checks: set[str] = field(default_factory=set)
    phases: set[str] = field(default_factory=set)

    def add(self, event: events.EngineEvent) -> None:
        if isinstance(event, events.NonFatalError):
            self.findings.append(event.info.format())
        elif isinstance(event, events.FatalError):
            self.findings.append(repr(event.exception))
        elif isinstance(event, events.ScenarioFinished):
            self.phases.add(event.phase.value)
            self.add_scenario(event.recorder)

    def add_scenario(self, recorder: ScenarioRecorder) -> None:
        for case_id, interaction in recorder.interactions.items():
            operation = recorder.cases[case_id].value.operation.label
            if interaction.response is None:
                self.findings.append(f"{operation}: no answer to {interaction.request.uri}")
            else:
                self.answers[operation, interaction.response.status_code] += 1
        for case_id, checks in recorder.checks.items():
            self.checks |= {check.name for check in checks}
            curl = recorder.cases[case_id].value.as_curl_command()
            self.findings += [f"{curl}\n{each.failure_info.failure}" for each in checks if each.failure_info]


def report(url: str, full: bool, *more_statuses: str) -> Report:
    """All that Schemathesis has to say of the sidecar at an address; `more_statuses` are no faults of the server."""
    config = {
        "base-url": url,
        "seed": 1,
        "headers": {"Authorization": f"Bearer {rig.TOKEN}"},
        "continue-on-failure": True,  # a finding that is meant must not end an operation's tests
        "request-timeout": 30,
        "cache": {"enabled": False},
        "generation": {"max-examples": 500 if full else 4, "deterministic": not full, "database": "none"},
        "checks": {"not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", *more_statuses]}},
    }
    # not by `from_url`, which leaves out the route that it reads the description from
    published = httpx.get(f"{url}/openapi.json", verify=False).json()
    schema = schemathesis.openapi.from_dict(published, config=schemathesis.Config.from_dict(config))

    @schema.hook
    def filter_failure(context: HookContext, failure: Failure, case: Case[Any], response: Response) -> bool:
        return not is_meant(failure, case, response)

    found = Report()
    for event in from_schema(schema).execute():
        found.add(event)
    return found


OPERATIONS = {f"{method.upper()} {path}" for path, item in document()["paths"].items() for method in item}


# what a message to the tools may hold is free, and Hypothesis warns of writing out what it made of that
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.usefixtures("sqlite_suffices")
async def test_every_answer_is_as_published(full: bool, store: rig.Store) -> None:
    """No request, valid or not, alone or after others, is answered otherwise than the description says."""
    for number in range(3):
        await store.turn("chat-1", "input-required", text="x" * 2000 * number)
        await store.turn("chat-2", "working")
    with serving_beside(store) as url:
        found = await asyncio.to_thread(report, url, full)
    print(f"\n{store.kind}: {found.answers.total()} requests, checks: {sorted(found.checks)}")
    assert [] == found.findings
    assert {"examples", "coverage", "fuzzing", "stateful"} == found.phases
    assert {each for each, status in found.answers if status == 200} == OPERATIONS


@pytest.mark.usefixtures("sqlite_suffices")
async def test_every_answer_without_a_store_is_as_published(full: bool, bare_store: rig.Store) -> None:
    """A store without tables, which an agent has yet to make, is a documented 503 on every route that reads it."""
    if not full:
        pytest.skip("test_degradation asks the routes one by one; --full asks all of each")
    with serving_beside(bare_store) as url:
        found = await asyncio.to_thread(report, url, full, "503")
    assert [] == found.findings
    # a batch is answered, and each of its items tells
    reading = {each for each in OPERATIONS if re.search("/(agent_)?api/|/v1/", each) and not each.endswith("/batch")}
    assert {*reading, "GET /readyz"} == {each for each, status in found.answers if status == 503}
    assert not any(each in reading for each, status in found.answers if status == 200)
