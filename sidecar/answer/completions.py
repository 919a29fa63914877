"""OpenAI's protocol of chat completions, to a question and from its answer; it asks nobody and reads no store.

Of the protocol's parameters those are taken that shape a text about passages; any other is refused by its name.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NoReturn

from sidecar.answer.chat_queries import ChatQuery, chat_query
from sidecar.answer.memory import MOST_CHARACTERS, MOST_EXCHANGES
from sidecar.answer.prompt import Message
from sidecar.answer.queries import MAX_QUESTION
from sidecar.bodies import Given, check_names, shown
from sidecar.errors import ParameterInvalid, SidecarError

Json = dict[str, Any]
Check = Callable[[Any], bool]

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Completion:
    """`POST /v1/chat/completions`: the question, whether its answer comes in pieces, and its usage after them."""

    query: ChatQuery
    streams: bool
    includes_usage: bool


def completion(given: Given, workspace: str) -> Completion:
    """The members of a body, which asks in this workspace unless it names one. Raises ParameterInvalid."""
    given = {name: value for name, value in given.items() if value is not None}
    check_names(given, (*_OURS, *_OPTIONS, *_ENDING_HERE))
    for name, takes in {**_OPTIONS, **_ENDING_HERE}.items():
        if name in given and not takes(given[name]):
            raise ParameterInvalid(f"`{name}` has a value that is not taken here; correct it or leave it out.")
    said = _messages(given.get("messages"))
    question = said.pop()
    if question.role != "user" or not question.content.strip() or len(question.content) > MAX_QUESTION:
        raise ParameterInvalid(f"`messages` does not end with a user's text of at most {MAX_QUESTION} characters.")
    wishes = "\n\n".join(message.content for message in said if message.role == "system")
    if len(wishes) > MAX_QUESTION:
        raise ParameterInvalid(f"`messages` have more than {MAX_QUESTION} characters of the system; send fewer.")
    asked = {"q": question.content, "workspaceId": workspace, **{name: given[name] for name in _ASKED if name in given}}
    query = replace(
        chat_query(asked),
        earlier=_last([message for message in said if message.role != "system"]),
        wishes=wishes,
        options={name: given[name] for name in _OPTIONS if name in given},
    )
    streaming = given.get("stream_options", {})
    return Completion(query, given.get("stream", False), streaming.get("include_usage", False))


def _last(said: list[Message]) -> tuple[Message, ...]:
    """As much of what was said before as a chat would remember."""
    room = MOST_CHARACTERS

    def fits(message: Message) -> bool:
        nonlocal room
        room -= len(message.content)
        return room >= 0

    newest_first = takewhile(fits, reversed(said[-2 * MOST_EXCHANGES :]))
    return tuple(reversed(list(newest_first)))


def _messages(given: Any) -> list[Message]:
    if not isinstance(given, list) or not given:
        raise ParameterInvalid("`messages` is not a list of messages; send one that ends with the question.")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(given)]


def _message(given: Any, name: str) -> Message:
    """A message of text; what else an answer of ours had, clients send along empty. Raises ParameterInvalid."""
    if not isinstance(given, dict):
        _refuse(name, "no object")
    for each, value in given.items():
        if each not in ("role", "content", "name") and value not in (None, []):
            _refuse(f"{name}.{shown(each)}", "unknown here")
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        _refuse(f"{name}.role", f"not one of {', '.join(_ROLES)}")
    return Message(_ROLES[role], _content(given.get("content"), f"{name}.content"))


def _content(given: Any, name: str) -> str:
    """A text, or the texts of its parts, one below the other. Raises ParameterInvalid."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        _refuse(name, "no text and no list of texts")
    parts = [part for part in given if isinstance(part, dict) and part.get("type") == "text"]
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    if len(texts) < len(given):
        _refuse(name, "a list with a part that is no text")
    return "\n".join(texts)


def _refuse(name: str, what: str) -> NoReturn:
    raise ParameterInvalid(f"`{name}` is {what}; send messages with a role and a text.")


def _number(least: float, most: float) -> Check:
    return lambda value: type(value) in (int, float) and least <= value <= most


def _whole(least: int) -> Check:
    return lambda value: type(value) is int and least <= value < 2**63


def _is_stop(value: Any) -> bool:
    stops = value if isinstance(value, list) else [value]
    return 0 < len(stops) <= 4 and all(isinstance(stop, str) and stop for stop in stops)


def _is_streaming(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() <= {"include_usage"} and all(map(_is_flag, value.values()))


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_ROLES: Mapping[str, Any] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_ASKED = ("workspaceId", "sessionId", "model")
_OURS = ("messages", *_ASKED)
# What goes on to the provider as it is, and what does not.
_OPTIONS: Mapping[str, Check] = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "max_tokens": _whole(1),
    "max_completion_tokens": _whole(1),
    "seed": _whole(-(2**63)),
    "stop": _is_stop,
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
}
_ENDING_HERE: Mapping[str, Check] = {
    "stream": _is_flag,
    "stream_options": _is_streaming,
    "n": lambda value: type(value) is int and value == 1,
    "user": lambda value: isinstance(value, str),
    "store": lambda value: value is False,
    "metadata": lambda value: isinstance(value, dict),
}


class Frame:
    """The bodies of one completion: whole, or the chunks that it comes in; ours stand beside the protocol's keys."""

    def __init__(self, model: str) -> None:
        self._about = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, answer: Json, finish_reason: str) -> Json:
        """The completion of an answer of `/v1/chat`."""
        message = {"role": "assistant", "content": answer["answer"], "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return {
            **self._about,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(answer["usage"]),
            **_beside(answer),
        }

    def begin(self) -> Json:
        """The chunk before the first piece."""
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> Json:
        """The chunk of a piece."""
        return self._chunk({"content": text})

    def end(self, answer: Json, finish_reason: str) -> Json:
        """The chunk after the last piece."""
        return {**self._chunk({}, finish_reason), **_beside(answer)}

    def usage(self, answer: Json) -> Json:
        """The chunk that has no choice."""
        return {**self._about, "object": "chat.completion.chunk", "choices": [], "usage": _usage(answer["usage"])}

    def _chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._about, "object": "chat.completion.chunk", "choices": [choice]}


def failure(error: SidecarError) -> Json:
    """What ends a stream, so that a client of the protocol raises."""
    return {"error": {"message": error.detail, "type": error.title, "code": error.code, "param": None}}


def _usage(usage: Json) -> Json:
    return {
        "prompt_tokens": usage["inputTokens"],
        "completion_tokens": usage["outputTokens"],
        "total_tokens": usage["totalTokens"],
        "source": usage["source"],
    }


def _beside(answer: Json) -> Json:
    return {name: answer[name] for name in ("sessionId", "citations", "availability")}
