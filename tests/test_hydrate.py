"""hydrate.js as a console runs it: in a browser, through the page's client, on rows that the SDK's own store wrote."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route

from sidecar.app import create_app
from sidecar.demo.steps import HITL, TOOL_CALL
from tests import rig
from tests.browser import chromium, profile, served
from tests.test_entries import ITEM, REASONING, agent, marker, old, user
from tests.test_poison import ATOMS, SHAPES

Json = dict[str, Any]

pytestmark = pytest.mark.asyncio(loop_scope="module")

RULES = Path(__file__).parent / "hydrate"
# as JSON text: what is nested deeply is too much for the protocol of the browser
CALL = "async ([name, given]) => JSON.stringify((await (await import('/rules/rules.js'))[name](given)) ?? null)"
ID = "chat-1"
TASK = "11111111-1111-4111-8111-111111111111"
SPELLINGS = ["1.x", "0.3"]


@dataclass(frozen=True)
class Console:
    """A page of the sidecar's own origin, with an empty profile, and the store behind it."""

    page: Page
    store: rig.Store

    async def run(self, rule: str, **given: Any) -> Any:
        """The outcome of a function of rules.js."""
        return json.loads(await self.page.evaluate(CALL, [rule, {"token": rig.TOKEN, **given}]))

    async def transcript(self, session_id: str = ID) -> Json:
        """What `rebuild` makes of all turns of a session."""
        rebuilt: Json = await self.run("transcript", id=session_id)
        return rebuilt

    async def save(
        self,
        spelling: str,
        *history: Json,
        state: str = "completed",
        message: Json | None = None,
        artifacts: tuple[Json, ...] = (),
        task_id: str = TASK,
    ) -> None:
        """Save a turn through the SDK's own store, or as 0.3 wrote it."""
        task = stored_task(history, state, message, artifacts, task_id)
        if spelling == "1.x":
            await self.store.save(task)
            return
        status = {"state": state, "message": message and old(message), "timestamp": None}
        parts = [{"artifactId": "a", "parts": old(user(None) | {"parts": list(artifacts)})["parts"]}]
        cells = {"status": status, "history": list(map(old, history)), "artifacts": parts if artifacts else None}
        texts = {name: json.dumps(cell) for name, cell in cells.items()}
        await self.store.insert_raw(id=task_id, context_id=ID, **texts)


def stored_task(
    history: tuple[Json, ...], state: str, message: Json | None, artifacts: tuple[Json, ...], task_id: str
) -> Json:
    """The protobuf JSON of a task."""
    status: Json = {"state": f"TASK_STATE_{state.upper().replace('-', '_')}"}
    return {
        "id": task_id,
        "contextId": ID,
        "status": status | ({"message": message} if message else {}),
        "history": list(history),
        "artifacts": [{"artifactId": "a", "parts": list(artifacts)}] if artifacts else [],
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@asynccontextmanager
async def opened(browser: Browser, store: rig.Store) -> AsyncIterator[Console]:
    """A sidecar on the store, and a page of a new profile that may import its modules and rules.js."""
    async with served(create_app(rig.config_for(store))) as url, profile(browser) as context:
        await context.route(f"{url}/rules/*", from_disk)
        page = await context.new_page()
        await page.goto(f"{url}/livez")
        yield Console(page, store)


async def from_disk(route: Route) -> None:
    await route.fulfill(path=RULES / route.request.url.rpartition("/")[2], content_type="text/javascript")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    """One page for all: to start a page takes longer than what a test does with it."""
    async with rig.sqlite_store(tmp_path_factory.mktemp("hydrate") / "tasks.db") as store:
        await store.tasks.initialize()
        async with opened(browser, store) as console:
            yield console


@pytest_asyncio.fixture(loop_scope="module")
async def console(shared: Console) -> Console:
    """The page, with nothing in the store and nothing in the browser's; sessions that were retired stay so."""
    await shared.store.raw("DELETE FROM tasks")
    await shared.page.evaluate("localStorage.clear()")
    return shared


def seen(rebuilt: Json) -> list[str]:
    """Each bubble in a line: who, and what there is to read."""
    return [line(message) for message in rebuilt["messages"]]


def line(message: Json) -> str:
    shown = [message["text"], *map(named, message["parts"])]
    if message["role"] == "user":
        return " ".join(["steer:" if message["steer"] else "user:", *filter(None, shown)])
    steps = [f"[{step['type']} {named(step)}]" for step in message["steps"]]
    question = message["question"] and f"? {message['question']['text']}"
    reason = message["reason"] and f"! {message['reason']}"
    return " ".join(filter(None, ["agent:", *steps, *shown, question, reason]))


def named(step: Json) -> str:
    return str(step.get("text") or step.get("name") or step.get("mediaType"))


async def turns(store: rig.Store, *session_ids: str, state: str = "completed") -> None:
    """One turn in each session, a minute after the one before."""
    for session_id in session_ids:
        await store.turn(session_id, state)


async def test_parked_sessions_are_pinned(console: Console) -> None:
    """Up to 20 sessions that wait have places among the 50, instead of the oldest that do not; newest first."""
    waiting, recent = [f"chat-w{n:02}" for n in range(25)], [f"chat-r{n:02}" for n in range(60)]
    await turns(console.store, *waiting, state="input-required")
    await turns(console.store, *recent)
    told = await console.run("boot")
    assert [*recent[:-31:-1], *waiting[:-21:-1]] == told["index"]
    assert (told["index"], []) == (told["restored"], told["failed"])


async def test_a_recent_parked_session_takes_no_second_place(console: Console) -> None:
    """A session that waits and is among the newest anyhow stays where it is, and displaces nobody."""
    await turns(console.store, "chat-old", "chat-a")
    await turns(console.store, "chat-waits", state="auth-required")
    await turns(console.store, "chat-b")
    told = await console.run("boot", options={"limit": 3, "pinned": 2})
    assert ["chat-b", "chat-waits", "chat-a"] == told["index"]


async def test_an_older_server_pins_nothing(console: Console) -> None:
    """Rows without `last_state` come from a server that ignores `parked`: none is pinned in a newer one's place."""
    await turns(console.store, "chat-old", "chat-a")
    await console.run("begin", options={"limit": 2, "pinned": 2})
    await turns(console.store, "chat-b")
    assert ["chat-b", "chat-a"] == (await console.run("finish"))["index"]


async def test_local_sessions_win(console: Console) -> None:
    """A local session with messages is neither read nor changed; a missing and an empty one are rebuilt."""
    await turns(console.store, "chat-mine", "chat-empty", "chat-missing")
    mine = {"id": "chat-mine", "messages": [{"id": "m", "role": "user", "text": "Mine"}]}
    empty = {"id": "chat-empty", "messages": [], "title": "Renamed"}
    told = await console.run("boot", sessions=[mine, empty])
    assert ["chat-missing", "chat-empty"] == told["restored"]
    assert not [request for request in told["requests"] if "chat-mine" in request]
    sessions = {session["id"]: session for session in told["all"]}
    assert mine == sessions["chat-mine"]
    assert ("Renamed", ["user: The question?", "agent: The answer."]) == (
        sessions["chat-empty"]["title"],
        seen(sessions["chat-empty"]),
    )


async def test_bounded_concurrency(console: Console) -> None:
    """As many transcripts are read at a time as allowed, and not one more."""
    await turns(console.store, *(f"chat-{n}" for n in range(12)))
    told = await console.run("boot", options={"concurrency": 3})
    assert (12, 3) == (len(told["restored"]), told["most"])


async def test_a_failed_member(console: Console) -> None:
    """A transcript that cannot be read is reported, and the others are there."""
    await turns(console.store, "chat-a", "chat-b", "chat-c")
    told = await console.run("boot", network={"failing": ["/chat-b/turns?limit=50&order=created"]})
    assert [["chat-b", "unreachable"]] == told["failed"]
    assert ["chat-c", "chat-a"] == told["restored"]
    assert ["chat-c", "chat-b", "chat-a"] == told["index"]


INDEX = "/api/chat/sessions?limit=50"
PARKED = "/api/chat/sessions?parked=true&limit=50"


@pytest.mark.parametrize(
    ("failing", "index"),
    [([INDEX], ["chat-waits"]), ([PARKED], ["chat-a", "chat-waits"]), ([INDEX, PARKED], [])],
    ids=["newest", "parked", "both"],
)
async def test_a_failed_index(console: Console, failing: list[str], index: list[str]) -> None:
    """An index that cannot be read is reported; what is local stays usable, and the other index is used."""
    await turns(console.store, "chat-waits", state="input-required")
    await turns(console.store, "chat-a")
    mine = {"id": "chat-mine", "messages": [{"id": "m"}]}
    told = await console.run("boot", sessions=[mine], network={"failing": failing})
    assert ([[None, "unreachable"]] * len(failing), index) == (told["failed"], told["index"])
    assert mine in told["all"]


EMPTY = [{"id": ID, "messages": []}]


@pytest.mark.parametrize(
    ("edit", "sessions"),
    [
        ("delete", EMPTY),
        ("clear", EMPTY),
        ("rename", EMPTY),
        ("send", EMPTY),
        ("dismiss", EMPTY),
        ("send and delete", EMPTY),
        ("delete", []),
        ("send", []),
        ("dismiss", []),
        ("send and delete", []),
    ],
    ids=lambda given: given if isinstance(given, str) else "empty" if given else "missing",
)
async def test_an_edit_vetoes_a_stale_result(console: Console, edit: str, sessions: list[Json]) -> None:
    """What was read before a local edit and arrives after it is dropped, whether or not the session was here."""
    await turns(console.store, ID)
    told = await console.run("editWhileRead", id=ID, edit=edit, sessions=sessions)
    assert {"restored": 0, "failed": 0, "kept": True, "here": edit in ("clear", "rename", "send")} == told


@pytest.mark.parametrize("edit", ["delete", "dismiss", "send"])
async def test_an_edit_before_the_read_begins(console: Console, edit: str) -> None:
    """An edit vetoes the result of a read that still waits for its place in the queue, too."""
    await turns(console.store, ID, "chat-first")
    told = await console.run("editWhileRead", id=ID, edit=edit, sessions=[], options={"concurrency": 1})
    assert {"restored": 1, "failed": 0, "kept": True, "here": edit == "send"} == told


async def test_no_edit_vetoes_nothing(console: Console) -> None:
    """The same read is taken when nothing was edited since it began, though the session was deleted here before."""
    await turns(console.store, ID)
    told = await console.run("editWhileRead", id=ID, edit="nothing", before="send and delete", sessions=[])
    assert (1, False) == (told["restored"], told["kept"])


async def test_a_retired_session_is_gone(console: Console) -> None:
    """A session that is retired between the index and its turns is no error and no session."""
    await turns(console.store, "chat-a", "chat-retired")
    told = await console.run("retireWhileRead", id="chat-retired")
    assert (["chat-a"], [], ["chat-a"]) == (told["restored"], told["failed"], told["index"])
    assert ["chat-a"] == [session["id"] for session in told["all"]]


async def test_an_aborted_hydration(console: Console) -> None:
    """After an abort nothing more is read or stored, and the caller learns of it."""
    await turns(console.store, ID, "chat-a", "chat-b", "chat-c", "chat-d", "chat-e")
    assert ["AbortError", []] == await console.run("abortWhileRead")


async def test_a_dismissed_session(console: Console) -> None:
    """A dismissed session is not hydrated, after a reload neither, and takes no place; opening it ends that."""
    await turns(console.store, ID, "chat-a")
    assert ["chat-a"] == (await console.run("dismissAndBoot", id=ID))["index"]
    await console.page.reload()
    assert [["chat-a"], []] == [(await console.run("boot"))[name] for name in ("index", "restored")]
    told = await console.run("restoreDismissed", id=ID)
    assert (["user: The question?", "agent: The answer."], False) == (seen(told["session"]), told["isDismissed"])
    assert ["chat-a", ID] == (await console.run("boot"))["index"]


async def test_dismissals_in_two_tabs(console: Console) -> None:
    """What one tab dismisses stays dismissed when another, which was opened before, dismisses something else."""
    assert [True, True] == await console.run("dismissInTabs", ids=[ID, "chat-a"])


async def test_a_dismissal_ends_before_the_read(console: Console) -> None:
    """A session whose opening fails is no longer dismissed: the next boot hydrates it."""
    await turns(console.store, ID)
    await console.run("dismissAndBoot", id=ID)
    told = await console.run("restoreDismissed", id=ID, failing=["/turns?limit=50&order=created"])
    assert {"session": "unreachable", "isDismissed": False} == told
    assert [ID] == (await console.run("boot"))["restored"]


async def test_sessions_survive_a_reload(console: Console) -> None:
    """What was hydrated is there after a reload without a further read."""
    await turns(console.store, ID)
    first = await console.run("boot")
    await console.page.reload()
    second = await console.run("boot")
    assert (first["all"], []) == (second["all"], second["restored"])
    assert 2 == len(second["requests"])


async def test_a_full_storage(console: Console) -> None:
    """A session too large for the storage stays usable, and no older state of it comes back with a reload."""
    big, reloaded, smaller = await console.run("outgrow", id=ID)
    assert ([], None, []) == (big["messages"], reloaded, smaller["messages"])


async def test_no_storage(console: Console) -> None:
    """Without a storage, or with one that refuses everything, sessions and dismissals live in memory."""
    assert [["Mine", True], ["Mine", True]] == await console.run("refused", id=ID)


async def test_a_foreign_storage(console: Console) -> None:
    """What another version or program has stored is neither read nor removed."""
    key = f"a2a-sidecar/session/{ID}"
    for text in ("{", "null", "5", '{"version":1,"value":5}', f'{{"version":2,"value":{{"id":"{ID}"}}}}'):
        told = await console.run("stored", items={key: text, "other": "5"})
        assert {"here": [], "keys": [key, "other"]} == told
    for text in ("5", '{"version":1,"value":5}'):
        items = {f"a2a-sidecar/dismissed/{ID}": text}
        told = await console.run("stored", items=items, sessions=[{"id": ID, "messages": []}])
        assert [ID] == told["here"]


async def test_sessions_are_replaced(console: Console) -> None:
    """A session cannot be edited in place, so its identity tells of every edit."""
    assert ["TypeError", False] == await console.run("editInPlace", id=ID)


async def test_when_history_may_be_cleared(console: Console) -> None:
    """Clearing is offered unless a turn is known to wait or run: here, in the transcript, or by the index."""
    states = ["completed", "failed", "canceled", "rejected", "unknown", "", "submitted", "working"]
    states += ["input-required", "auth-required"]
    sessions: list[Any] = [[{"turns": [{"state": state}, {"state": "completed"}]}, None] for state in states]
    others: list[Any] = [
        [None, None],
        [{"messages": []}, None],
        [{"sending": True}, None],
        [None, {"last_state": "TASK_STATE_AUTH_REQUIRED"}],
        [None, {"last_state": "TASK_STATE_COMPLETED", "live_task_id": None}],
        [None, {"live_task_id": TASK}],
    ]
    expected = [True] * 6 + [False] * 4 + [True, True, False, False, True, False]
    assert expected == await console.run("mayClear", cases=sessions + others)


async def test_clearing_refuses_active_turns(console: Console) -> None:
    """Clearing asks the server to refuse when a turn is active that this browser does not know of."""
    task_id = await console.store.turn(ID, "working")
    session = {"id": ID, "messages": [{"id": "m"}], "turns": [], "live": None, "parked": None}
    told = await console.run("clear", id=ID, session=session)
    assert ("session_active", session) == (told["outcome"], told["session"])
    assert [f"DELETE /api/chat/sessions/{ID}?retire=false&if_active=refuse"] == told["requests"]
    await console.store.turn(ID, task_id=task_id)
    told = await console.run("clear", id=ID, session=session)
    assert (False, 1) == (told["outcome"]["retired"], told["outcome"]["turns_deleted"])
    assert {**session, "messages": []} == told["session"]


async def test_clearing_is_not_sent_while_a_turn_is_known(console: Console) -> None:
    """A known active turn keeps the request from being sent at all."""
    session = {"id": ID, "messages": [{"id": "m"}], "turns": [{"id": TASK, "state": "working"}]}
    told = await console.run("clear", id=ID, session=session)
    assert {"outcome": "Error", "requests": [], "session": session} == told


async def test_clearing_vetoes_a_read(console: Console) -> None:
    """A transcript that was read before a clear does not come back after it, though the session was not here."""
    await turns(console.store, ID)
    assert [] == await console.run("clearWhileRead", id=ID)


PROMPT = user("Deploy it.", "p")
WORK = [agent(REASONING), agent(metadata={TOOL_CALL: {"toolCallId": "c", "name": "deploy", "phase": "started"}})]
PARTIAL = ({"text": "Half"}, {"data": {"rows": 3}, "mediaType": "application/json"})
LIVE = stored_task((PROMPT, *WORK), "working", None, PARTIAL, TASK)


async def test_a_failed_reattach_keeps_the_partial(console: Console) -> None:
    """A subscription that breaks before its first Task frame leaves the durable partial as it was."""
    await console.store.save(LIVE)
    told = await console.run("follow", id=ID, subscriptions=[[], []])
    assert ["user: Deploy it.", "agent: [reasoning secret thought] [tool deploy] Half application/json"] == seen(
        told["session"]
    )
    assert told["hydrated"] == told["session"]
    assert TASK == told["session"]["live"]


async def test_no_blank_bubble(console: Console) -> None:
    """A running turn that has said nothing yet has no bubble, after a reattach that broke neither."""
    await console.store.save(stored_task((PROMPT,), "working", None, (), TASK))
    told = await console.run("follow", id=ID, subscriptions=[[], []])
    assert ["user: Deploy it."] == seen(told["session"])


async def test_a_snapshot_twice_counts_once(console: Console) -> None:
    """A snapshot whose subscription breaks, and the same one from the retry, apply text, steps and parts once."""
    await console.store.save(LIVE)
    more = {**LIVE, "artifacts": [{"artifactId": "a", "parts": [*PARTIAL, {"text": " done."}]}]}
    told = await console.run("follow", id=ID, subscriptions=[[LIVE, more], [more]])
    answer = "agent: [reasoning secret thought] [tool deploy] Half done. application/json"
    assert ["user: Deploy it.", answer] == seen(told["session"])
    final = stored_task((PROMPT, *WORK), "completed", None, ({"text": "Done."},), TASK)
    told = await console.run("follow", id=ID, subscriptions=[[more], [final], [final]])
    assert ["user: Deploy it.", "agent: [reasoning secret thought] [tool deploy] Done."] == seen(told["session"])
    assert None is told["session"]["live"]


async def test_a_snapshot_resets_what_deltas_added(console: Console) -> None:
    """Text and steps that a stream has added to a bubble are replaced by the snapshot, other members of it stay."""
    fresh = await console.run("snapshots", session={"id": ID}, tasks=[LIVE])
    prompt, answer = fresh["messages"]
    grown = {**answer, "text": "Half done twice", "steps": answer["steps"] * 2, "reason": "x", "usage": {"tokens": 3}}
    own = {"id": "typed", "turn": TASK, "role": "user", "text": "And then?"}
    session = {**fresh, "title": "Mine", "messages": [{"id": "before"}, prompt, grown, own, {"id": "after"}]}
    told = await console.run("snapshots", session=session, tasks=[LIVE, LIVE])
    expected = [{"id": "before"}, prompt, {**answer, "usage": {"tokens": 3}}, own, {"id": "after"}]
    assert (expected, "Mine") == (told["messages"], told["title"])


async def test_a_snapshot_takes_what_it_no_longer_has(console: Console) -> None:
    """A derived bubble without a counterpart in the snapshot goes: reasoning alone is no answer twice."""
    told = await console.run("snapshots", session={"id": ID}, tasks=[LIVE, {**LIVE, "history": [], "artifacts": []}])
    assert [] == told["messages"]


async def test_a_snapshot_and_a_prompt_of_this_browser(console: Console) -> None:
    """The bubble that this browser made for its own prompt stays, and is not shown a second time."""
    mine = {"id": "p", "turn": TASK, "role": "user", "text": "Deploy it, please.", "draft": True}
    told = await console.run("snapshots", session={"id": ID, "messages": [mine]}, tasks=[LIVE, LIVE])
    assert [mine, f"{TASK}/answer"] == [told["messages"][0], told["messages"][1]["id"]]
    unnamed = {**mine, "id": "x"}
    told = await console.run("snapshots", session={"id": ID, "messages": [unnamed]}, tasks=[LIVE])
    assert ["x", "p", f"{TASK}/answer"] == [message["id"] for message in told["messages"]]


async def test_a_snapshot_leaves_incognito(console: Console) -> None:
    """A snapshot does not undo what the console knows of incognito, and tells a session that does not know."""
    stamped = {**LIVE, "history": [user("Deploy it.", "p", incognito=True)]}
    for session, task, expected in (({"incognito": True}, LIVE, True), ({}, LIVE, False), ({}, stamped, True)):
        told = await console.run("snapshots", session={"id": ID, **session}, tasks=[task])
        assert expected == told["incognito"]


async def test_a_snapshot_after_a_steer(console: Console) -> None:
    """When the operator's interjection is read, the partial moves from the bubble above it to the one below."""
    steered = {**LIVE, "history": [PROMPT, *WORK, agent(marker(ITEM))]}
    told = await console.run("snapshots", session={"id": ID}, tasks=[LIVE, steered, steered])
    assert [
        "user: Deploy it.",
        "agent: [reasoning secret thought] [tool deploy]",
        "steer: Stop at 25.",
        "agent: Half application/json",
    ] == seen(told)


async def test_a_deleted_session_stays_deleted(console: Console) -> None:
    """A snapshot that comes after the session was deleted here does not bring it back."""
    await console.store.save(LIVE)
    told = await console.run("follow", id=ID, subscriptions=[[LIVE]], remove=True)
    assert (None, 0) == (told["session"], told["rejected"])


ANSWER = ({"text": "Half "}, {"text": "done."})


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_prompt_and_answer(console: Console, spelling: str) -> None:
    """A turn is the operator's message and the joined text of its artifacts, each once."""
    await console.save(spelling, PROMPT, PROMPT, agent({"text": "Looking."}), artifacts=ANSWER)
    rebuilt = await console.transcript()
    assert ["user: Deploy it.", "agent: [status Looking.] Half done."] == seen(rebuilt)
    assert ["p", f"{TASK}/answer"] == [message["id"] for message in rebuilt["messages"]]
    assert {(TASK, True)} == {(message["turn"], message["derived"]) for message in rebuilt["messages"]}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("prompt", [None, {"hidden": True}, {"origin": "scheduler"}], ids=["none", "hidden", "origin"])
async def test_answers_only(console: Console, spelling: str, prompt: Json | None) -> None:
    """A turn without a prompt, or with one that was never a bubble, rebuilds as its answer."""
    await console.save(spelling, *([] if prompt is None else [user("machine text", "p", **prompt)]), artifacts=ANSWER)
    assert ["agent: Half done."] == seen(await console.transcript())


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_display_is_preferred(console: Console, spelling: str) -> None:
    """The operator reads what they saw, and not the document that was sent with it; a form answer is visible."""
    await console.save(spelling, user("a dump", "p", display="Deploy it."), user("yes", "f", hitl_resume=True))
    assert ["user: Deploy it.", "steer: yes"] == seen(await console.transcript())


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_steer_markers(console: Console, spelling: str) -> None:
    """An interjection stands where it was read, work above and work below, and the whole answer on the last bubble."""
    above, below = agent({"text": "Half way."}), agent({"text": "Stopping."})
    later = {"id": "s2", "text": "Thanks."}
    await console.save(spelling, PROMPT, above, agent(marker(ITEM, later)), below, artifacts=ANSWER)
    rebuilt = await console.transcript()
    assert [
        "user: Deploy it.",
        "agent: [status Half way.]",
        "steer: Stop at 25.",
        "steer: Thanks.",
        "agent: [status Stopping.] Half done.",
    ] == seen(rebuilt)
    assert ["s1", "s2"] == [message["id"] for message in rebuilt["messages"] if message.get("steer")]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_the_answer_follows_a_steer(console: Console, spelling: str) -> None:
    """An interjection at the very end, in the current status, still has the answer below it and no bubble above."""
    await console.save(spelling, PROMPT, state="working", message=agent(marker(ITEM)), artifacts=ANSWER)
    assert ["user: Deploy it.", "steer: Stop at 25.", "agent: Half done."] == seen(await console.transcript())


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_several_operator_messages(console: Console, spelling: str) -> None:
    """The first message of a row is the prompt, later ones are interjections; a marker repeats none of them."""
    asked = agent({"text": "For how many?"})
    await console.save(spelling, PROMPT, asked, user("Four.", "s1"), agent(marker(ITEM)), artifacts=ANSWER)
    assert ["user: Deploy it.", "agent: [status For how many?]", "steer: Four.", "agent: Half done."] == seen(
        await console.transcript()
    )


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_hidden_prompt_is_the_prompt(console: Console, spelling: str) -> None:
    """After a prompt that was no bubble a further message is an interjection."""
    await console.save(spelling, user("machine text", "p", hidden=True), user("And?", "q"))
    assert ["steer: And?"] == seen(await console.transcript())


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_work_is_no_text(console: Console, spelling: str) -> None:
    """Reasoning and tool calls are steps and never text; a call is one step, which a late start does not reopen."""
    call = {"toolCallId": "c", "name": "deploy", "phase": "started", "args": "5 percent"}
    done = {"toolCallId": "c", "name": "deploy", "phase": "completed", "result": "ok"}
    data = {"data": {**done, "toolCallId": "d", "name": "check"}, "metadata": {"mimeType": "application/json"}}
    history = (PROMPT, agent(REASONING), agent(metadata={TOOL_CALL: call}), agent(marker(ITEM)))
    calls = [agent(metadata={TOOL_CALL: each}) for each in (done, call)]
    await console.save(spelling, *history, *calls, artifacts=(*ANSWER, REASONING, data))
    rebuilt = await console.transcript()
    assert [
        "user: Deploy it.",
        "agent: [reasoning secret thought] [tool deploy]",
        "steer: Stop at 25.",
        "agent: [reasoning secret thought] [tool check] Half done.",
    ] == seen(rebuilt)
    tool = rebuilt["messages"][1]["steps"][1]
    assert ("completed", "5 percent", "ok") == (tool["phase"], tool["args"], tool["result"])


FORM = {"data": {"kind": "form", "title": "Which region?"}, "metadata": {"mimeType": HITL}}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("state", ["input-required", "auth-required"])
async def test_the_parked_question(console: Console, spelling: str, state: str) -> None:
    """What a parked session waits for is its status message: its words, and the form beside or instead of them."""
    await console.save(spelling, PROMPT, state=state, message=agent({"text": "Which one?"}, FORM), artifacts=ANSWER)
    rebuilt = await console.transcript()
    assert {"task": TASK, "state": state, "question": "Which one?", "form": FORM["data"]} == rebuilt["parked"]
    assert ["user: Deploy it.", "agent: Half done. ? Which one?"] == seen(rebuilt)


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_question_without_words(console: Console, spelling: str) -> None:
    """A form that comes without text asks with its own title; one that was answered stays among the steps."""
    await console.save(spelling, PROMPT, agent(FORM), user("eu", "f"), state="input-required", message=agent(FORM))
    rebuilt = await console.transcript()
    assert "Which region?" == rebuilt["parked"]["question"]
    assert ["user: Deploy it.", "agent: [question Which region?]", "steer: eu", "agent: ? Which region?"] == seen(
        rebuilt
    )


async def test_a_question_that_was_left(console: Console) -> None:
    """A parked turn that another turn follows is no longer what the session waits for, and its question is kept."""
    await console.store.turn(ID, "input-required", text=None, prompt="Book it.", status_text="For how many?")
    await console.store.turn(ID, prompt="Four.", text="Booked.")
    rebuilt = await console.transcript()
    assert (None, None) == (rebuilt["parked"], rebuilt["live"])
    assert ["user: Book it.", "agent: ? For how many?", "user: Four.", "agent: Booked."] == seen(rebuilt)


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_failed_turn_says_why(console: Console, spelling: str) -> None:
    """The last words of a turn that did not succeed are its reason."""
    await console.save(spelling, PROMPT, state="failed", message=agent({"text": "Exit status 1."}))
    rebuilt = await console.transcript()
    assert ["user: Deploy it.", "agent: ! Exit status 1."] == seen(rebuilt)
    assert "failed" == rebuilt["messages"][1]["state"]


@pytest.mark.parametrize(
    ("turns_", "incognito"),
    [
        ([[user("a", incognito=True)], [user("b")]], False),
        ([[user("a")], [user("b", incognito=True)]], True),
        ([[user("a"), user("b", "2", hidden=True, incognito=True)]], True),
        ([[user("a", incognito=True)], [agent({"text": "b"})]], True),
        ([[user("a", incognito=True)], [user("b", origin="scheduler")]], True),
        ([], False),
    ],
    ids=["left", "entered", "hidden", "answer only", "fired by the server", "no turns"],
)
async def test_incognito(console: Console, turns_: list[list[Json]], incognito: bool) -> None:
    """A session is incognito as its newest operator message says, hidden or not; a machine's message says nothing."""
    for number, history in enumerate(turns_):
        await console.save("1.x", *history, task_id=f"{number}{TASK[1:]}")
    assert incognito == (await console.transcript())["incognito"]


@pytest.mark.parametrize(
    "states",
    [
        ["completed"],
        ["working", "working"],
        ["input-required", "working"],
        ["working", "input-required"],
        ["input-required", "completed"],
        ["input-required", "auth-required"],
        ["input-required", "failed", "working", "submitted"],
        ["working", "unspecified"],
    ],
    ids=",".join,
)
async def test_the_live_task(console: Console, states: list[str]) -> None:
    """The task to reattach to is the one that the sidecar's summary names."""
    for state in states:
        await console.store.turn(ID, state)
    expected = (await console.run("summary", id=ID))["live_task_id"]
    assert expected == (await console.transcript())["live"]


async def test_attachments_have_no_payload(console: Console) -> None:
    """Files are a name, a type, a size and a link that is safe to follow; their bytes are not kept."""
    parts = [
        {"url": "https://files.example.com/a.pdf", "filename": "a.pdf", "mediaType": "application/pdf"},
        {"raw": "YSxiCg==", "filename": "b.csv"},
        {"url": "javascript:alert(1)", "filename": "c"},
        {"url": "", "filename": "d.bin", "metadata": {"omittedBytes": 5}},
    ]
    await console.save("1.x", user("Read these.", "p") | {"parts": [{"text": "Read these."}, *parts]})
    [message] = (await console.transcript())["messages"]
    assert [
        ("a.pdf", "application/pdf", "https://files.example.com/a.pdf", None),
        ("b.csv", "", "", 4),
        ("c", "", "", None),
        ("d.bin", "", "", 5),
    ] == [(part["name"], part["mediaType"], part["url"], part["size"]) for part in message["parts"]]


async def test_rows_of_real_sdks(browser: Browser, tmp_path: Path) -> None:
    """What the stores of 0.3.26 and 1.3.0 wrote of the same chats rebuilds as the same transcripts."""
    found = {}
    for name in ("0.3.26", "1.3.0", "mixed-0.3.26-to-1.3.0"):
        async with rig.load_sdk_database(name, "sqlite", tmp_path, None) as store, opened(browser, store) as console:
            told = await console.run("boot")
            assert [] == told["failed"]
            found[name] = {session["id"]: session for session in told["all"]}
    assert {id: seen(each) for id, each in found["1.3.0"].items()} == {
        id: seen(each) for id, each in found["0.3.26"].items()
    }
    files = ["out.png", "x.bin"]
    for sessions in (found["1.3.0"], found["0.3.26"]):
        assert [
            "user: Book a table",
            "agent: [status For how many?]",
            "steer: four, 四位",
            "agent: Booked for 4.",
        ] == seen(sessions["chat-j10"])
        assert "agent: ? Sign in to continue" in seen(sessions["chat-b2"])
        assert files == [part["name"] for part in sessions["chat-d4"]["messages"][1]["parts"] if part["type"] == "file"]
    assert ["user: hi", "agent: 回答 n1", "user: hi", "agent: 回答 o2"] == seen(
        found["mixed-0.3.26-to-1.3.0"]["chat-new"]
    )


async def test_cells_that_were_left_out(console: Console) -> None:
    """A turn with an unreadable cell says so in a bubble of its own, and the session's other turns are there."""
    await turns(console.store, ID)
    await console.store.insert_raw(context_id=ID, artifacts="[NaN]", history="[")
    told = await console.run("boot")
    assert ["user: The question?", "agent: The answer.", "agent:"] == seen(told["all"][0])
    assert ["artifacts", "history"] == told["all"][0]["messages"][2]["omitted"]


async def test_odd_rows_break_nothing(console: Console) -> None:
    """Whatever JSON the cells of a row hold, the session is rebuilt, with its other turns."""
    await turns(console.store, ID)
    for text in (shape.replace("@", atom) for shape in SHAPES.values() for atom in ATOMS.values()):
        await console.store.insert_raw(context_id=ID, status=text, artifacts=text, history=text)
    told = await console.run("boot")
    assert ([ID], []) == (told["restored"], told["failed"])
    rebuilt = await console.transcript()
    assert ["user: The question?", "agent: The answer."] == seen(rebuilt)[:2]
    odd: list[Any] = [None, 5, [], {"task_id": 5, "status": None, "artifacts": 5, "history": {"a": 1}, "omitted": 5}]
    assert [] == (await console.run("rebuilt", turns=odd))["messages"]
