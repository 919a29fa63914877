"""Asks the configured OpenAI-compatible endpoint; it builds no prompt and reads no store.

No variable of the environment has a say: the `openai` client would take headers, an organization and a project from
`OPENAI_…`, and httpx a proxy, which would then read the conversations.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated, Any, TypeVar

import httpx
import msgspec
import openai
from openai.resources.chat import AsyncCompletions

from sidecar.answer.prompt import Message
from sidecar.answer.usage import Usage
from sidecar.config import Config
from sidecar.errors import ModelFailed, ModelTimeout
from sidecar.wire import plain

T = TypeVar("T")
Options = Mapping[str, Any]
Messages = Sequence[Message]

# A whole answer may take this many times the silence that is waited for.
SILENCES = 10
# Chunks are a hundred times longer than the text in them.
MOST_BYTES = 16 * 2**20
_CHARACTERS_A_TOKEN = 4
# A server that asks for no key ignores this one.
_NO_KEY = "none"

# its debug lines, which OPENAI_LOG or a root logger turns on, quote the whole conversation
logging.getLogger("openai._base_client").setLevel(logging.INFO)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended, in the provider's word, and what it cost."""

    finish_reason: str
    usage: Usage


class Model:
    """The endpoint of one configuration. Each question has a connection of its own, which ends with it."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def answer(self, model: str, messages: Messages, options: Options) -> tuple[str, Ending]:
        """The whole answer at once. Raises ModelFailed, ModelTimeout."""
        async with self._asking() as completions:
            async with asyncio.timeout(self._most_seconds):
                given: Any = await completions.create(model=model, messages=_sent(messages), **options)
            completion = _read(given, _Completion)
            if not completion.choices:
                raise _failed("sent no answer")
            choice = completion.choices[0]
            text = plain(choice.message.content or "")
            return text, _ending(model, messages, len(text), choice.finish_reason or "stop", completion.usage)

    async def stream(self, model: str, messages: Messages, options: Options) -> AsyncGenerator[str | Ending, None]:
        """The answer in pieces, at last its ending. Raises ModelFailed, ModelTimeout."""
        deadline = asyncio.get_running_loop().time() + self._most_seconds
        characters, finish_reason, usage = 0, None, None
        async with self._asking() as completions:
            async with asyncio.timeout_at(deadline):
                asked = {"model": model, "messages": _sent(messages), "stream_options": {"include_usage": True}}
                chunks: Any = await completions.create(stream=True, **asked, **options)
            async with chunks:
                while (chunk := await _next(chunks, deadline)) is not None:
                    usage = chunk.usage or usage
                    for choice in (chunk.choices or [])[:1]:
                        finish_reason = choice.finish_reason or finish_reason
                        if choice.delta is not None and choice.delta.content:
                            characters += len(choice.delta.content)
                            yield plain(choice.delta.content)
            yield _ending(model, messages, characters, finish_reason, usage)

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[AsyncCompletions]:
        """The client's own way to ask, whose every fault is one of two of ours, without a word of the provider's.

        Nothing is tried again: whoever asked waits already, and may have to pay for each attempt.
        """
        config = self._config
        timeout = httpx.Timeout(config.model_timeout)
        try:
            bounds = {"response": [_bound]}
            async with httpx.AsyncClient(
                trust_env=False, verify=self._authorities, timeout=timeout, event_hooks=bounds
            ) as http:
                key = config.model_key or _NO_KEY
                client = _Client(
                    base_url=config.model_url, api_key=key, timeout=timeout, max_retries=0, http_client=http
                )
                yield client.chat.completions
        except (TimeoutError, openai.APITimeoutError, httpx.TimeoutException):
            raise ModelTimeout("The model did not answer in time; ask again, or raise SIDECAR_MODEL_TIMEOUT.") from None
        except openai.APIStatusError as error:
            raise _failed(f"refused with status {error.status_code}") from None
        except (openai.OpenAIError, httpx.HTTPError, httpx.StreamError, httpx.InvalidURL):
            raise _failed("could not be reached, or broke off") from None
        except (ValueError, RecursionError):
            raise _failed("sent what is no answer") from None

    @cached_property
    def _authorities(self) -> ssl.SSLContext:
        """Those of the machine: an endpoint of one's own may have a certificate of one's own."""
        return ssl.create_default_context()

    @property
    def _most_seconds(self) -> float:
        return SILENCES * self._config.model_timeout


async def _bound(response: httpx.Response) -> None:
    """Has an answer end with a fault that is compressed, which would hide its size, or longer than any answer is."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx.DecodingError("compressed")
    response.stream = _Bounded(response.stream)


class _Bounded(httpx.AsyncByteStream):
    """Raises ReadError beyond the bytes that an answer may have."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_BYTES
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx.ReadError("too long")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Client(openai.AsyncOpenAI):
    """The client, with headers that the configuration alone decides about."""

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        return {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "a2a-session-sidecar",
        }


class _Tokens(msgspec.Struct):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    completion_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Text(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Text
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None


class _Piece(msgspec.Struct):
    delta: _Text | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Piece] | None = None
    usage: Any = None


async def _next(chunks: Any, deadline: float) -> _Chunk | None:
    """The next piece of an answer, None at its end. Raises TimeoutError at the deadline."""
    async with asyncio.timeout_at(deadline):
        given = await anext(chunks, None)
    return None if given is None else _read(given, _Chunk)


def _read(given: object, kind: type[T]) -> T:
    """What the client made of the provider's JSON, which it does not check. Raises ValueError."""
    return msgspec.convert(given, kind, from_attributes=True)


def _sent(messages: Messages) -> Any:
    return [asdict(message) for message in messages]


def _ending(model: str, messages: Messages, characters: int, finish_reason: str | None, usage: Any) -> Ending:
    """Raises ModelFailed for an answer without text, or one that just stopped."""
    if finish_reason is None or not characters:
        raise _failed("broke off, or sent no text")
    try:
        tokens = _read(usage, _Tokens)
        used = Usage("provider", model, tokens.prompt_tokens, tokens.completion_tokens)
    except ValueError:
        asked = sum(len(message.content) for message in messages)
        used = Usage("estimate", model, -(-asked // _CHARACTERS_A_TOKEN), -(-characters // _CHARACTERS_A_TOKEN))
    return Ending(plain(finish_reason), used)


def _failed(what: str) -> ModelFailed:
    return ModelFailed(
        f"The model {what}. Ask again; whoever runs the sidecar finds the endpoint in SIDECAR_MODEL_URL."
    )
