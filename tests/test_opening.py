"""The opening message: every rule of seed 003 for the producer's side, hostile input, and the way through the SDK."""

import json
import logging
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.compat.v0_3.conversions import to_compat_message, to_core_message
from a2a.compat.v0_3.types import Message as OldMessage
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import DatabaseTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    SendMessageRequest,
    Task,
    TaskState,
    TaskStatus,
)
from google.protobuf.json_format import (  # type: ignore[import-untyped]  # protobuf ships no types
    MessageToDict,
    ParseDict,
)
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sidecar.opening import MAX_NAME, MAX_PARTS, MAX_TEXT, TRANSCRIPT_METADATA, opening_message

PNG = "data:image/png;base64,iVBORw0KGgo="  # eight bytes


def request(*parts: Part, metadata: dict[str, Any] | None = None, **fields: Any) -> Message:
    """A request message as a console sends it."""
    ids = {"message_id": "m-1", "context_id": "chat-1", "task_id": "t-1"}
    message = Message(**{**ids, "role": "ROLE_USER", **fields}, parts=parts)
    message.metadata.update(metadata or {})
    return message


def blob(value: Any) -> Part:
    """A data part."""
    part = Part()
    ParseDict(value, part.data)
    return part


def stored(message: Any, **ids: str) -> Any:
    """The opening message as the SDK's store writes it, or None."""
    opening = opening_message(message, **ids)
    return None if opening is None else json.loads(json.dumps(MessageToDict(opening), allow_nan=False))


def parts(*sent: Part, **metadata: Any) -> Any:
    """The stored parts of a message with these parts and this metadata."""
    return stored(request(*sent, metadata=metadata)).get("parts")


def test_the_message_carries_ids_role_and_text() -> None:
    """An ordinary send is stored as the operator's message: its ids, ROLE_USER and the text."""
    expected = {
        "messageId": "m-1",
        "contextId": "chat-1",
        "taskId": "t-1",
        "role": "ROLE_USER",
        "parts": [{"text": "hello"}],
    }
    assert expected == stored(request(Part(text="hello")))


def test_the_message_is_of_the_type_given_and_new() -> None:
    """The result can be appended to a `Task` of the same SDK, and the request is not changed by reading it."""
    message = request(Part(text="hello"), Part(raw=b"x"), metadata={"incognito": True})
    before = message.SerializeToString(deterministic=True)
    opening = opening_message(message)
    assert type(message) is type(opening)
    assert message is not opening
    assert before == message.SerializeToString(deterministic=True)


def test_a_message_without_metadata_gains_none() -> None:
    """Looking for flags adds no metadata, neither to the request nor to what is stored."""
    message = request(Part(text="hello"))
    opening = opening_message(message)
    assert opening is not None
    assert not message.HasField("metadata")
    assert not opening.HasField("metadata")


def test_given_ids_replace_those_of_the_message() -> None:
    """The ids that the SDK gave to the turn win over what the client wrote."""
    opening = stored(request(context_id="", task_id="theirs"), context_id="chat-9", task_id="t-9")
    assert (opening["contextId"], opening["taskId"]) == ("chat-9", "t-9")


def test_the_role_is_always_the_operators() -> None:
    """A client cannot open a turn in the agent's name."""
    assert stored(request(role="ROLE_AGENT"))["role"] == "ROLE_USER"


def test_only_the_transcripts_metadata_is_kept() -> None:
    """Metadata of the model, of tools or of extensions stays out, and so do extensions and references."""
    kept = {"incognito": True, "hitl_resume": "ask-1", "origin": ""}
    message = request(
        metadata={**kept, "model": "m", "display": "d", "attachments": [{"a": 1}]},
        extensions=["https://example.org/ext"],
        reference_task_ids=["t-0"],
    )
    opening = stored(message)
    assert kept == opening["metadata"]
    assert {"messageId", "contextId", "taskId", "role", "metadata", "parts"} == opening.keys()


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (True, True),
        (False, False),
        ("yes", "yes"),
        ("", ""),
        ("y" * 1000, "y" * MAX_NAME),
        (1, True),
        (0, False),
        (float("nan"), True),
        (float("inf"), True),
        ({"form": {"a": "b"}}, True),
        ({}, True),
        ([], True),
    ],
)
def test_kept_metadata_is_plain(sent: Any, kept: bool | str) -> None:
    """A flag is stored as a boolean or a short string of the same truth, so that no stamp is lost."""
    assert {"incognito": kept} == stored(request(metadata={"incognito": sent}))["metadata"]


def test_null_metadata_is_absent() -> None:
    """A flag sent as null, or as a value that was never set, is not a flag."""
    message = request(metadata={"hidden": None, "origin": None})
    message.metadata.fields["incognito"].SetInParent()
    assert "metadata" not in stored(message)


@pytest.mark.parametrize("origin", ["scheduler", "background-resume", True, 1, {}, {"by": "watch"}, float("nan")])
def test_a_server_fired_turn_stores_no_message(origin: Any) -> None:
    """The prompt of a scheduler, a watch or a resume was never a bubble."""
    assert stored(request(Part(text="machine text"), metadata={"origin": origin})) is None


@pytest.mark.parametrize("origin", ["", False, 0, None])
def test_a_false_origin_is_an_operators_turn(origin: Any) -> None:
    """A client that always sends the key does not lose its prompts."""
    assert parts(Part(text="hi"), origin=origin) == [{"text": "hi"}]


def test_a_hidden_send_keeps_its_stamps_and_nothing_to_draw() -> None:
    """Not even an attachment is left, for an older console would draw a bubble around it; `incognito` survives."""
    message = request(
        Part(text="[approved]"),
        Part(raw=b"x", filename="a.bin"),
        metadata={"hidden": True, "incognito": True, "hitl_resume": True, "display": "Approved"},
    )
    expected = {
        "messageId": "m-1",
        "contextId": "chat-1",
        "taskId": "t-1",
        "role": "ROLE_USER",
        "metadata": {"hidden": True, "incognito": True, "hitl_resume": True},
    }
    assert expected == stored(message)


def test_a_form_answer_is_visible() -> None:
    """`hitl_resume` alone hides nothing."""
    assert parts(Part(text="Option B"), hitl_resume=True) == [{"text": "Option B"}]


def test_display_replaces_the_models_text() -> None:
    """The bubble's text is stored instead of the document dump, once, before the attachments."""
    dump = [Part(text="<document>…</document>"), Part(raw=b"%PDF", filename="a.pdf"), Part(text="Summarise")]
    shell = {"url": "", "filename": "a.pdf", "metadata": {"omittedBytes": 4.0}}
    assert [{"text": "Summarise"}, shell] == parts(*dump, display="Summarise")


def test_an_empty_display_is_an_empty_bubble() -> None:
    """A send of attachments alone stores no text rather than the dump made for the model."""
    assert parts(Part(text="<document>…</document>"), display="") is None


def test_a_display_that_is_no_text_is_ignored() -> None:
    """Only text can stand in for text."""
    assert parts(Part(text="hi"), display={"text": "other"}) == [{"text": "hi"}]


def test_display_is_capped() -> None:
    """The bubble's text has the same limit as any other."""
    assert parts(Part(text="x"), display="d" * (MAX_TEXT + 1)) == [{"text": "d" * MAX_TEXT}]


def test_text_is_capped_over_the_whole_message() -> None:
    """Parts share 16,000 characters, counted as characters and not as bytes; what is beyond goes, empty parts too."""
    sent = [Part(text="é" * 15_000), Part(text=""), Part(text="😀" * 2_000), Part(text="gone")]
    assert parts(*sent) == [{"text": "é" * 15_000}, {"text": "😀" * 1_000}]


def test_text_parts_stay_apart_and_in_order() -> None:
    """The stored message has the parts of the sent one."""
    shell = {"url": "https://x.example/a", "mediaType": "image/png"}
    sent = [Part(text="a"), Part(url=shell["url"], media_type=shell["mediaType"]), Part(text="b")]
    assert [{"text": "a"}, shell, {"text": "b"}] == parts(*sent)


@pytest.mark.parametrize(
    ("sent", "shell"),
    [
        (
            Part(url="https://x.example/文件.pdf?sig=1", filename="文件.pdf", media_type="application/pdf"),
            {"url": "https://x.example/文件.pdf?sig=1", "filename": "文件.pdf", "mediaType": "application/pdf"},
        ),
        (Part(url="HTTP://x.example/"), {"url": "HTTP://x.example/"}),
        (
            Part(raw=b"12345", filename="a.bin", media_type="application/octet-stream"),
            {
                "url": "",
                "filename": "a.bin",
                "mediaType": "application/octet-stream",
                "metadata": {"omittedBytes": 5.0},
            },
        ),
        (Part(raw=b"", filename="empty"), {"url": "", "filename": "empty", "metadata": {"omittedBytes": 0.0}}),
        (
            Part(url=PNG, filename="a.png"),
            {"url": "", "filename": "a.png", "mediaType": "image/png", "metadata": {"omittedBytes": 8.0}},
        ),
        (
            Part(url=PNG, media_type="image/x-own"),
            {"url": "", "mediaType": "image/x-own", "metadata": {"omittedBytes": 8.0}},
        ),
        (
            Part(url=" \n\x00DATA:text/plain;charset=utf-8,hello"),
            {"url": "", "mediaType": "text/plain", "metadata": {"omittedBytes": 5.0}},
        ),
        (Part(url="data:"), {"url": "", "metadata": {"omittedBytes": 0.0}}),
        (blob({"a": "b"}), {"url": "", "metadata": {"omittedBytes": 12.0}}),
        (blob(float("nan")), {"url": "", "metadata": {"omittedBytes": 9.0}}),
        (Part(filename="only-a-name"), {"url": "", "filename": "only-a-name"}),
        (Part(url="javascript:alert(1)", filename="a"), {"url": "", "filename": "a"}),
        (Part(url="java\nscript:alert(1)"), {"url": ""}),
        (Part(url="https://x.example/ https://y.example/"), {"url": ""}),
        (Part(url="file:///etc/passwd"), {"url": ""}),
        (Part(url="https://x.example/" + "a" * 3_000), {"url": ""}),
    ],
)
def test_an_attachment_is_a_shell(sent: Part, shell: dict[str, Any]) -> None:
    """Name, type and a plain http(s) link stay; an inline payload is left as its size."""
    sent.metadata.update({"thumbnail": "data:image/png;base64,AAAA"})
    assert [shell] == parts(sent)


def test_no_payload_leaks() -> None:
    """Nothing of an inline payload, as bytes or in base64, is in what is stored."""
    secret = "c2VjcmV0c2VjcmV0"
    sent = [Part(raw=b"secretsecret"), Part(url=f"data:x/y;base64,{secret}"), blob({"k": "secretsecret"})]
    dumped = json.dumps(parts(*sent))
    assert "secretsecret" not in dumped
    assert secret not in dumped


def test_names_types_and_ids_are_bounded() -> None:
    """No field of the client's grows the row beyond its limit."""
    long = "n" * 5_000
    message = request(Part(raw=b"x", filename=long, media_type=long), message_id=long, context_id=long, task_id=long)
    opening = stored(message)
    assert {MAX_NAME} == {len(opening[key]) for key in ("messageId", "contextId", "taskId")}
    assert {MAX_NAME} == {len(opening["parts"][0][key]) for key in ("filename", "mediaType")}
    assert {MAX_NAME} == {len(stored(request(), context_id=long, task_id=long)[key]) for key in ("contextId", "taskId")}


def test_the_number_of_parts_is_bounded() -> None:
    """A message of very many parts keeps the first ones."""
    assert len(parts(*[Part(raw=b"x")] * (MAX_PARTS * 5))) == MAX_PARTS


def test_a_huge_message_is_small() -> None:
    """Megabytes of text, payload, metadata and parts leave less than 1 MiB, of the widest characters."""
    wide = "😀" * 1_000_000
    link = "https://" + "😀" * 2_040
    attachments = [Part(url=link, filename=wide[:1_000], media_type=wide[:1_000])] * 1_000
    message = request(Part(text=wide), *attachments, metadata={"hitl_resume": wide, "other": wide})
    opening = opening_message(message)
    assert opening is not None
    assert opening.ByteSize() < 1024 * 1024


def test_a_0_3_client_can_read_it() -> None:
    """The SDK's own conversion for 0.3 clients accepts every shell, which it does not for a part without content."""
    sent = [Part(text="hi"), Part(raw=b"x"), Part(url=PNG), blob({"a": 1}), Part(filename="a"), Part()]
    opening = opening_message(request(*sent))
    assert isinstance(opening, Message)
    assert len(to_compat_message(opening).parts) == 6


class Hostile:
    """An object that looks like a message until it is read."""

    DESCRIPTOR = SimpleNamespace(full_name="lf.a2a.v1.Message")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Endless:
    """An object whose every attribute exists."""

    def __getattr__(self, name: str) -> "Endless":
        return self


def old_message() -> OldMessage:
    """A message of a2a-sdk 0.x, a pydantic object."""
    return OldMessage.model_validate(
        {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}], "metadata": {"hidden": True}}
    )


def old_protobuf() -> Any:
    """A message of the 0.3 gRPC interface: protobuf too, with the same ids and metadata, yet no `parts`."""
    message = a2a_v0_3_pb2.Message(message_id="m", role="ROLE_USER")
    message.metadata.update({"hidden": True})
    return message


UNSHAPEABLE: list[Callable[[], Any]] = [
    lambda: None,
    lambda: 0,
    lambda: "text",
    lambda: {"messageId": "m", "parts": []},
    lambda: Message,
    object,
    SimpleNamespace,
    Hostile,
    Endless,
    Task,
    Part,
    old_message,
    old_protobuf,
]


@pytest.mark.parametrize("make", UNSHAPEABLE)
def test_what_cannot_be_shaped_is_not_stored(make: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    """Another type gives None and one log line, and raises nothing into the agent's turn."""
    assert opening_message(make()) is None
    assert len(caplog.records) == 1


def test_ids_that_are_no_text_are_not_stored() -> None:
    """A lone surrogate, which no protobuf field can hold, or an id of another type costs the record, not the turn."""
    not_text: Any = 7
    assert opening_message(request(), context_id="chat-\ud800") is None
    assert opening_message(request(), task_id=not_text) is None


def test_the_log_line_carries_nothing_of_the_message(caplog: pytest.LogCaptureFixture) -> None:
    """The reason is named by its kind, for the rest may quote the conversation."""
    caplog.set_level(logging.DEBUG)
    opening_message(request(Part(text="private")), context_id="private-\ud800")
    assert [record.message for record in caplog.records] == ["opening message not recorded: UnicodeEncodeError"]


def test_a_0_x_message_converted_by_the_sdk_is_shaped() -> None:
    """A 0.3 client of a 1.x server is recorded like any other, for the SDK converts its message first."""
    opening = stored(to_core_message(old_message()))
    assert opening == {"messageId": "m", "role": "ROLE_USER", "metadata": {"hidden": True}}


def test_the_module_needs_no_sdk() -> None:
    """Importing the module loads neither a2a nor protobuf."""
    code = "import sys, sidecar.opening; print({m.partition('.')[0] for m in sys.modules} & {'a2a', 'google'})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def noise(chance: random.Random) -> str:
    """Text that is short or long, plain or odd."""
    alphabet = 'a \x00\n"<>\\,;:/é文😀\u202e\ufeff\uffff' + "data:https://;base64,="
    return "".join(chance.choices(alphabet, k=chance.choice([0, 1, 5, 30, 300])))


def json_value(chance: random.Random, depth: int = 0) -> Any:
    """Any value that a Struct can hold, the ones that JSON cannot included."""
    leaves = [None, True, False, 0, -1e308, float("nan"), float("-inf"), noise(chance)]
    if depth == 3 or chance.random() < 0.7:
        return chance.choice(leaves)
    inner = [json_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return inner if chance.random() < 0.5 else {noise(chance)[:9]: value for value in inner}


def odd_part(chance: random.Random) -> Part:
    """Any part that the wire can carry."""
    part = Part(filename=noise(chance), media_type=noise(chance))
    part.metadata.update({"omittedBytes": json_value(chance), noise(chance)[:9]: json_value(chance)})
    match chance.randrange(6):
        case 0:
            part.text = noise(chance) * chance.choice([1, 90])
        case 1:
            part.raw = chance.randbytes(chance.choice([0, 10, 10_000]))
        case 2:
            part.url = chance.choice(["", "data:", "https://", "DATA:;base64,", "javascript:"]) + noise(chance)
        case 3:
            part.data.struct_value.update({"v": json_value(chance)})
        case 4:
            part.data.SetInParent()
    return part


def odd_messages() -> Iterator[Message]:
    """Messages from a fixed seed: the same ones at every run."""
    chance = random.Random(3)
    for _ in range(300):
        keys = [*TRANSCRIPT_METADATA, "display", noise(chance)[:9]]
        message = request(
            *(odd_part(chance) for _ in range(chance.choice([0, 1, 5, MAX_PARTS + 20]))),
            metadata={key: json_value(chance) for key in keys if chance.random() < 0.3},
            message_id=noise(chance),
            context_id=noise(chance),
            task_id=noise(chance),
            role=chance.choice(["ROLE_UNSPECIFIED", "ROLE_USER", "ROLE_AGENT"]),
        )
        if chance.random() < 0.2:
            message.metadata.fields[chance.choice(keys)].SetInParent()
        yield message


def test_odd_messages_are_stored_bounded_and_serializable(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the client sent, the record is strict JSON, reads back equal, keeps the limits and touches nothing."""
    recorded = 0
    for message in odd_messages():
        before = message.SerializeToString(deterministic=True)
        opening = opening_message(message)
        assert before == message.SerializeToString(deterministic=True)
        if opening is None:
            continue
        recorded += 1
        assert opening == ParseDict(json.loads(json.dumps(MessageToDict(opening), allow_nan=False)), Message())
        assert to_compat_message(opening).message_id == opening.message_id
        assert sum(len(part.text) for part in opening.parts) <= MAX_TEXT
        assert len(opening.parts) <= MAX_PARTS + 1
        assert opening.metadata.fields.keys() <= set(TRANSCRIPT_METADATA)
        assert all(part.metadata.fields.keys() <= {"omittedBytes"} for part in opening.parts)
        assert not any(part.WhichOneof("content") in {"raw", "data", None} for part in opening.parts)
    assert recorded > 100
    assert caplog.records == []


def test_odd_objects_never_raise() -> None:
    """Objects put together at random, with attributes of wrong types or that raise, give None."""
    chance = random.Random(5)

    def explode(_: object) -> None:
        raise chance.choice([RuntimeError, KeyError, RecursionError, StopIteration, OSError])("boom")

    values: list[Any] = [None, 1, "x", [], {}, object(), property(explode), explode, request(), Message.DESCRIPTOR]
    names = ["DESCRIPTOR", "message_id", "context_id", "task_id", "role", "parts", "metadata", "__init__", "__bool__"]
    for _ in range(500):
        kind = type("Odd", (), {name: chance.choice(values) for name in names if chance.random() < 0.6})
        assert opening_message(object.__new__(kind)) is None


CARD = AgentCard(
    name="agent",
    description="answers",
    version="1",
    supported_interfaces=[
        AgentInterface(url="http://agent.example/", protocol_binding="JSONRPC", protocol_version="1.0")
    ],
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="s", name="s", description="s", tags=["s"])],
)


class Producer(AgentExecutor):
    """The agent of the docstring: it opens the task with the operator's message, asks once, then answers."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """One turn."""
        assert context.task_id
        assert context.context_id
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            task = Task(
                id=context.task_id,
                context_id=context.context_id,
                status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
            )
            if opening := opening_message(context.message):
                task.history.append(opening)
            await event_queue.enqueue_event(task)
            await updater.start_work(updater.new_agent_message([Part(text="thinking")]))
            await updater.requires_input(updater.new_agent_message([Part(text="which one?")]))
        else:
            await updater.complete(updater.new_agent_message([Part(text="done")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Nothing here is cancelled."""


async def histories(engine: AsyncEngine) -> list[list[dict[str, Any]]]:
    """The history column of every task, as stored."""
    async with engine.connect() as connection:
        return [json.loads(cell) for cell in await connection.scalars(text("SELECT history FROM tasks"))]


async def send(tmp_path: Path, *messages: Callable[[Task | None], Message]) -> list[list[dict[str, Any]]]:
    """Sends the messages one after the other to a real agent on a real store; gives what the store then holds."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'tasks.db'}")
    handler = DefaultRequestHandler(Producer(), DatabaseTaskStore(engine), CARD)
    task: Task | None = None
    try:
        for make in messages:
            answer = await handler.on_message_send(SendMessageRequest(message=make(task)), ServerCallContext())
            assert isinstance(answer, Task)
            task = answer
        return await histories(engine)
    finally:
        await handler.aclose()
        await engine.dispose()


async def test_the_stored_history_opens_with_the_shaped_message(tmp_path: Path) -> None:
    """Through the SDK's handler and store the history has the operator's message first, once, shaped, with the ids."""
    sent = request(
        Part(text="<document>…</document>"),
        Part(raw=b"x" * 1_000_000, filename="a.bin"),
        blob(float("nan")),
        metadata={"display": "Read this", "incognito": True, "weight": float("nan")},
        task_id="",
    )
    [history] = await send(tmp_path, lambda _: sent)
    first, *rest = history
    assert first.pop("taskId") == rest[0]["taskId"]
    expected = {
        "messageId": "m-1",
        "contextId": "chat-1",
        "role": "ROLE_USER",
        "metadata": {"incognito": True},
        "parts": [
            {"text": "Read this"},
            {"url": "", "filename": "a.bin", "metadata": {"omittedBytes": 1e6}},
            {"url": "", "metadata": {"omittedBytes": 9.0}},
        ],
    }
    assert expected == first
    assert {"ROLE_AGENT"} == {message["role"] for message in rest}


async def test_a_server_fired_turn_runs_without_a_prompt(tmp_path: Path) -> None:
    """The turn is stored, and nothing in its history is the operator's."""
    fired = request(Part(text="machine text"), metadata={"origin": "scheduler"}, task_id="")
    [history] = await send(tmp_path, lambda _: fired)
    assert {"ROLE_AGENT"} == {message["role"] for message in history}


async def test_a_resumed_task_keeps_its_opening_and_the_sdks_own_record(tmp_path: Path) -> None:
    """A client that answers on the parked task's id: the opening stays first, the SDK appends the answer as sent."""

    def answer(task: Task | None) -> Message:
        assert task
        return request(Part(text="that one"), metadata={"other": "kept"}, message_id="m-2", task_id=task.id)

    [history] = await send(tmp_path, lambda _: request(Part(text="do it"), task_id=""), answer)
    operators = [message for message in history if message["role"] == "ROLE_USER"]
    assert [message["parts"] for message in operators] == [[{"text": "do it"}], [{"text": "that one"}]]
    assert history[0] is operators[0]
    assert operators[1]["metadata"] == {"other": "kept"}
