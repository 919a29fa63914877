"""OpenAI's protocol, spoken by the official client over a socket, and by clients that ask for what there is not."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import openai
import pytest

from sidecar.answer.prompt import NOTHING_FOUND
from sidecar.app import create_app
from sidecar.openapi import ref
from tests import rig
from tests.model_server import KEY, ModelServer, breaks_off, refuses, running_model, says
from tests.test_chat import ANSWER, SECRET, ask, counted, problem
from tests.test_openapi import conforms
from tests.test_paths import on_sqlite, serving

COMPLETIONS = "/v1/chat/completions"
ASKING: Any = [{"role": "user", "content": "When is support open?"}]


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with running_model() as server:
        server.will(says(["From nine ", "[1], invented [7]."]))
        yield server


@asynccontextmanager
async def connected(store: rig.Store, model: ModelServer, **settings: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client of a sidecar that is served on a port; the store holds the answer."""
    await store.turn("chat-a", text=ANSWER, prompt=None)
    async with serving(create_app(rig.config_for(store, **model.settings, **settings))) as peer:
        url = f"http://127.0.0.1:{peer.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=rig.TOKEN, max_retries=0) as client:
            yield client


@pytest.fixture
async def client(store: rig.Store, open_sidecar: rig.OpenSidecar, model: ModelServer) -> httpx.AsyncClient:
    """A sidecar that may ask the model, on a store that holds the answer."""
    await store.turn("chat-a", text=ANSWER, prompt=None)
    return await open_sidecar(store, **model.settings)


async def complete(client: httpx.AsyncClient, messages: Any = ASKING, **given: Any) -> rig.Json:
    response = await client.post(COMPLETIONS, json={"messages": messages, **given})
    assert 200 == response.status_code, response.text
    answer: rig.Json = response.json()
    assert conforms(ref("ChatCompletion"), answer), answer
    return answer


def told(model: ModelServer, time: int = -1) -> list[tuple[str, str]]:
    """What the model was told between the instruction and the question."""
    return [(message["role"], message["content"]) for message in model.asked[time].body["messages"][1:-1]]


# --- the official client


async def test_the_official_client(store: rig.Store, model: ModelServer) -> None:
    """It reads a completion as from any provider, and our keys beside it; the chat goes on by its id."""
    async with connected(store, model) as client:
        first = await client.chat.completions.create(model="large", messages=ASKING)
        extra = cast(rig.Json, first.model_extra)
        second = await client.chat.completions.create(
            model="large", messages=ASKING, extra_body={"sessionId": extra["sessionId"], "workspaceId": "default"}
        )
    (choice,) = first.choices
    assert ("From nine [1], invented.", "assistant") == (choice.message.content, choice.message.role)
    assert ("stop", "large", "chat.completion") == (choice.finish_reason, first.model, first.object)
    assert first.usage is not None
    assert (120, 9, 129) == (first.usage.prompt_tokens, first.usage.completion_tokens, first.usage.total_tokens)
    assert {"source": "provider"} == first.usage.model_extra
    assert {"sessionId", "citations", "availability"} == extra.keys()
    assert [(1, ANSWER)] == [(each["number"], each["text"]) for each in extra["citations"]]
    assert extra["sessionId"] == cast(rig.Json, second.model_extra)["sessionId"]
    assert [("user", ASKING[0]["content"]), ("assistant", "From nine, invented.")] == told(model)
    routes = {row[0] for row in await store.raw("SELECT route FROM tasks_usage")}
    assert {COMPLETIONS} == routes


async def test_the_official_client_streams(store: rig.Store, model: ModelServer) -> None:
    """Chunks with the text, at last why it ended with our keys, then the usage that was asked for."""
    async with connected(store, model) as client:
        stream = await client.chat.completions.create(
            model="small", messages=ASKING, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    *pieces, last, usage = chunks
    assert "From nine [1], invented." == "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert ["assistant", None] == [chunk.choices[0].delta.role for chunk in pieces[:2]]
    assert {None} == {chunk.choices[0].finish_reason for chunk in pieces}
    assert "stop" == last.choices[0].finish_reason
    assert [1] == [each["number"] for each in cast(rig.Json, last.model_extra)["citations"]]
    assert ([], 129) == (usage.choices, usage.usage.total_tokens if usage.usage else None)
    assert 1 == len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks})
    assert 1 == (await counted(store))["answer_exchanges"]


@on_sqlite
async def test_the_official_client_raises(store: rig.Store, model: ModelServer) -> None:
    """Refusals, a model that fails, and a stream that fails in its midst are its own exceptions."""
    async with connected(store, model) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="`tools`"):
            await create(model="small", messages=ASKING, tools=[])
        with pytest.raises(openai.NotFoundError):
            await create(model="small", messages=ASKING, extra_body={"sessionId": "unknown"})
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong-token-0123456789").chat.completions.create(
                model="small", messages=ASKING
            )
        model.will(refuses(401, f"{SECRET} {KEY}"))
        with pytest.raises(openai.InternalServerError) as failed:
            await create(model="small", messages=ASKING)
        assert 502 == failed.value.status_code
        model.will(breaks_off("From nine"))
        coming = await create(model="small", messages=ASKING, stream=True)
        assert ["", "From nine"] == [(await anext(coming)).choices[0].delta.content for _ in range(2)]
        with pytest.raises(openai.APIError, match="The model") as broken:
            await anext(coming)
    assert "model_failed" == broken.value.code
    assert SECRET not in f"{failed.value.body}{broken.value.body}"
    assert {0} == set((await counted(store)).values())


@on_sqlite
async def test_the_bytes_of_a_stream(client: httpx.AsyncClient) -> None:
    """Each chunk is an event without a name, and `[DONE]` is the last."""
    response = await client.post(COMPLETIONS, json={"messages": ASKING, "stream": True})
    *frames, done, rest = response.text.split("\n\n")
    assert ("data: [DONE]", "") == (done, rest)
    assert {"chat.completion.chunk"} == {json.loads(frame.removeprefix("data: "))["object"] for frame in frames}
    assert "usage" not in response.text


# --- questions


@on_sqlite
async def test_what_was_said_before(client: httpx.AsyncClient, model: ModelServer) -> None:
    """It comes from the request, or from the chat that it names; the application's wishes join our instruction."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello,"}, {"type": "text", "text": "you."}]},
        {"role": "assistant", "content": "Hi [1].", "refusal": None, "annotations": [], "tool_calls": None},
        {"role": "developer", "content": "Be kind."},
        *ASKING,
    ]
    await complete(client, messages)
    assert [("user", "Hello,\nyou."), ("assistant", "Hi.")] == told(model)
    assert model.asked[0].body["messages"][0]["content"].endswith(":\nBe brief.\n\nBe kind.")
    first = await complete(client)
    await complete(client, messages, sessionId=first["sessionId"])
    assert [("user", ASKING[0]["content"]), ("assistant", "From nine, invented.")] == told(model)


@on_sqlite
async def test_what_came_from_unknown_turns_is_not_remembered(
    store: rig.Store, client: httpx.AsyncClient, model: ModelServer
) -> None:
    """An application sends back our answers about a session, which, once that is retired, nobody could find again."""
    await store.turn("chat-b", text="An okapi is striped.", prompt=None)
    asked = {"role": "user", "content": "What is an okapi?"}
    first = await complete(client)
    said = [*ASKING, first["choices"][0]["message"], asked]
    second = await complete(client, said)
    assert {"answer_sessions": 2, "answer_exchanges": 1, "answer_sources": 1, "usage": 2} == await counted(store)
    await complete(client, [asked], sessionId=second["sessionId"])
    assert [] == told(model)


@on_sqlite
async def test_what_was_said_before_has_a_bound(client: httpx.AsyncClient, model: ModelServer) -> None:
    """The newest of it, as of what a chat remembers."""
    said = [{"role": "user" if number % 2 == 0 else "assistant", "content": str(number)} for number in range(20)]
    await complete(client, [*said, *ASKING])
    assert [str(number) for number in range(8, 20)] == [text for _, text in told(model)]
    said = [{"role": "user", "content": letter * 5_000} for letter in "abc"]
    await complete(client, [*said, *ASKING])
    assert ["b" * 5_000, "c" * 5_000] == [text for _, text in told(model)]


@on_sqlite
async def test_options_go_on_to_the_provider(client: httpx.AsyncClient, model: ModelServer) -> None:
    """Those that shape a text, as they are; what only concerns the application ends here."""
    options = {
        "temperature": 0.5,
        "top_p": 1,
        "max_tokens": 10,
        "max_completion_tokens": 20,
        "seed": -1,
        "stop": ["\n", "END"],
        "presence_penalty": -2,
        "frequency_penalty": 2.0,
    }
    ours = {"n": 1, "user": "u", "store": False, "metadata": {"a": "b"}, "stream_options": {}, "stream": False}
    model.will(says("Nine [1].", finish_reason="length"))
    answer = await complete(client, **options, **ours, tools=None)
    assert {"messages": model.asked[0].body["messages"], "model": "small", **options} == model.asked[0].body
    assert "length" == answer["choices"][0]["finish_reason"]


@on_sqlite
async def test_without_passages_no_model_is_asked(client: httpx.AsyncClient, model: ModelServer) -> None:
    """The completion says so, and cost nothing."""
    answer = await complete(client, [{"role": "user", "content": "quagga"}])
    assert NOTHING_FOUND == answer["choices"][0]["message"]["content"]
    assert ("none", 0) == (answer["usage"]["source"], answer["usage"]["total_tokens"])
    assert [] == model.asked


# --- refusals


def user(content: Any, **more: Any) -> rig.Json:
    return {"messages": [{"role": "user", "content": content, **more}]}


REFUSED: list[tuple[rig.Json, str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "support"}, "messages"),
    ({"messages": ["support"]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}, *ASKING]}, "messages[0].role"),
    ({"messages": [*ASKING, {"role": "assistant", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "system", "content": "x" * 16_001}, *ASKING]}, "messages"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}, *ASKING]}, "messages[0].tool_calls"),
    (user(None), "messages[0].content"),
    (user(7), "messages[0].content"),
    (user([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content"),
    (user([{"type": "text"}]), "messages[0].content"),
    (user(["x"]), "messages[0].content"),
    (user([]), "messages"),
    (user(" "), "messages"),
    (user("x" * 16_001), "messages"),
    (user("x", audio={"id": "a"}), "messages[0].audio"),
    ({"model": "unknown"}, "model"),
    ({"model": "x" * 257}, "model"),
    ({"model": 7}, "model"),
    ({"sessionId": ""}, "sessionId"),
    ({"sessionId": "x" * 257}, "sessionId"),
    ({"workspaceId": ""}, "workspaceId"),
    ({"stream": "true"}, "stream"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
    ({"stream_options": {"include_usage": 1}}, "stream_options"),
    ({"stream_options": True}, "stream_options"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": "1"}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": 2**63}, "max_completion_tokens"),
    ({"seed": "x"}, "seed"),
    ({"stop": []}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"presence_penalty": -3}, "presence_penalty"),
    ({"frequency_penalty": []}, "frequency_penalty"),
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"user": 7}, "user"),
    ({"store": True}, "store"),
    ({"metadata": "x"}, "metadata"),
    *(
        ({name: []}, name)
        for name in (
            "tools", "tool_choice", "functions", "function_call", "response_format", "logprobs", "top_logprobs",
            "logit_bias", "modalities", "audio", "prediction", "reasoning_effort", "web_search_options", "q",
        )
    ),
]  # fmt: skip


@on_sqlite
async def test_what_is_refused(client: httpx.AsyncClient, model: ModelServer) -> None:
    """Each wrong or unknown member is named, before any model is asked, whether or not it is to be streamed."""
    for given, named in REFUSED:
        for stream in ({}, {"stream": True}):
            response = await client.post(COMPLETIONS, json={"messages": ASKING, **stream, **given})
            assert (400, "parameter_invalid") == problem(response), given
            assert f"`{named}`" in response.json()["detail"], given
    for given, expected in (
        ({"workspaceId": "other"}, (404, "workspace_not_found")),
        ({"sessionId": "unknown"}, (404, "not_found")),
    ):
        assert expected == problem(await client.post(COMPLETIONS, json={"messages": ASKING, "stream": True, **given}))
    assert [] == model.asked


@on_sqlite
async def test_chats_are_the_same_by_every_route(client: httpx.AsyncClient) -> None:
    """A chat that began in one protocol goes on in the other."""
    chat_id = (await complete(client))["sessionId"]
    assert chat_id == (await ask(client, sessionId=chat_id))["sessionId"]
