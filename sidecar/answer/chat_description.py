"""What grounded chat publishes of itself, for the OpenAPI document; it may not import the routes it describes."""

from sidecar import errors
from sidecar.answer.chat_queries import MAX_ID, PASSAGES
from sidecar.answer.queries import ENHANCEMENTS, MAX_QUESTION, MAX_WORKSPACE
from sidecar.config import MAX_MODEL_NAME
from sidecar.openapi import STORE, Json, exact, operation, parameter, ref, response

_TEXT: Json = {"type": "string"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_COUNT: Json = {"type": "integer", "minimum": 0}
_FLAG: Json = {"type": "boolean"}


def _words(most: int) -> Json:
    return {"type": "string", "minLength": 1, "maxLength": most, "pattern": r"\S"}


_INPUT: dict[str, tuple[str, Json]] = {
    "q": ("The question.", _words(MAX_QUESTION)),
    "workspaceId": ("The id in `SIDECAR_WORKSPACE`; any other is not found.", _words(MAX_WORKSPACE)),
    "sessionId": ("A chat of this token's, as an answer before named it; without one a chat begins.", _words(MAX_ID)),
    "model": ("One of `SIDECAR_MODEL`, whose first is the default.", _words(MAX_MODEL_NAME)),
}
_REQUIRED = ("q", "workspaceId")
_EXAMPLE = {"q": "When is support available?", "workspaceId": "default"}
_REFUSALS = (
    errors.ParameterInvalid,
    errors.NotFound,
    errors.WorkspaceNotFound,
    errors.SearchUnavailable,
    errors.ModelNotConfigured,
    *STORE,
)
_DESCRIPTION = (
    f"A model answers from at most {PASSAGES} passages, which it cites as `[n]`; a number of no passage is dropped. "
    "Where nothing is found no model is asked, and the answer says so. The chat remembers its last exchanges, until a "
    "session that one of them came from is retired or cleared. Await an answer before the chat's next question. "
    "404 without the extra `answer`."
)


def _paths() -> Json:
    return {
        "/v1/chat": {"post": _chat("chat", "Ask a question")},
        "/v1/search/chat": {"post": _chat("chatAlias", "Ask a question, by another name")},
        "/v1/search/chat/stream": {"get": _stream()},
        "/v1/chat/completions": {"post": _completions()},
    }


def _chat(name: str, summary: str) -> Json:
    shown = '`{"answer", "citations": [{"number", "text", "session_id", "task_id"}], "sessionId", "usage"}` and more.'
    return operation(
        name,
        summary,
        _DESCRIPTION,
        {"200": response(shown, ref("ChatAnswer"), "Cache-Control", "Vary")},
        scope="chat",
        body={"schema": ref("ChatQuery"), "example": _EXAMPLE},
        refusals=(*_REFUSALS, errors.ModelFailed, errors.ModelTimeout),
    )


def _stream() -> Json:
    return operation(
        "streamChat",
        "Ask a question, and read the answer as it comes",
        "Server-sent events: `passages`, all that may be cited; `delta`, a piece of text; at last `done`, the answer "
        f"of `/v1/chat`, or `error` with `code`, `message` and `status`. {_DESCRIPTION}",
        {"200": response("The events.", {"type": "object"}, "Cache-Control", media_type="text/event-stream")},
        scope="chat",
        parameters=[
            parameter(name, description, schema, required=name in _REQUIRED, example=_EXAMPLE.get(name))
            for name, (description, schema) in _INPUT.items()
        ],
        refusals=_REFUSALS,
    )


def _completions() -> Json:
    whole = response("The completion, or its chunks as events.", ref("ChatCompletion"), "Cache-Control")
    whole["content"]["text/event-stream"] = {"schema": _TEXT}
    return operation(
        "completeChat",
        "Ask a question in OpenAI's protocol",
        "The question is the last message, by the user; without `sessionId` what was said before comes from the other "
        "messages, and an answer that it went into is not remembered. What would need more than text about passages, "
        f"such as `tools`, is refused. {_DESCRIPTION}",
        {"200": whole},
        scope="chat",
        body={
            "schema": ref("ChatCompletionQuery"),
            "example": {"messages": [{"role": "user", "content": _EXAMPLE["q"]}]},
        },
        refusals=(*_REFUSALS, errors.ModelFailed, errors.ModelTimeout),
    )


def _schemas() -> Json:
    return {
        "ChatQuery": _query(),
        "ChatAnswer": exact(
            {
                "answer": {**_TEXT, "description": "Plain text, never to be taken for HTML."},
                **_beside(),
                "model": _TEXT,
                "usage": ref("Usage"),
            }
        ),
        "ChatCitation": exact(
            {
                "number": {"type": "integer", "minimum": 1, "description": "As in the answer's `[n]`."},
                "text": _TEXT,
                "title": _TEXT_OR_NULL,
                "time": _TEXT_OR_NULL,
                "session_id": _TEXT,
                "task_id": _TEXT,
                "field": {"enum": ["prompt", "steers", "content"]},
                "position": {"type": "integer", "minimum": 1},
                "start": _COUNT,
                "end": _COUNT,
            }
        ),
        "ChatCompletionQuery": _completion_query(),
        "ChatMessage": _message(),
        "ChatCompletion": _completion(),
    }


def _beside() -> Json:
    return {
        "citations": {"type": "array", "maxItems": PASSAGES, "items": ref("ChatCitation")},
        "sessionId": {**_TEXT, "description": "The chat, for its next question."},
        "availability": ref("Availability"),
    }


def _query() -> Json:
    properties = {name: {**schema, "description": description} for name, (description, schema) in _INPUT.items()}
    refused = {name: {"const": False, "description": "Not built."} for name in ENHANCEMENTS}
    return exact({**properties, **refused}, optional=["sessionId", "model", *ENHANCEMENTS])


def _completion_query() -> Json:
    ours = {name: {**schema, "description": text} for name, (text, schema) in _INPUT.items() if name != "q"}
    penalty: Json = {"type": "number", "minimum": -2, "maximum": 2}
    stop: Json = {"type": "string", "minLength": 1}
    tokens: Json = {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}
    properties: Json = {
        "messages": {"type": "array", "minItems": 1, "items": ref("ChatMessage")},
        **ours,
        "stream": _FLAG,
        "stream_options": exact({"include_usage": _FLAG}, optional=["include_usage"]),
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "max_tokens": tokens,
        "max_completion_tokens": tokens,
        "seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "stop": {"oneOf": [stop, {"type": "array", "minItems": 1, "maxItems": 4, "items": stop}]},
        "presence_penalty": penalty,
        "frequency_penalty": penalty,
        "n": {"const": 1},
        "user": _TEXT,
        "store": {"const": False},
        "metadata": {"type": "object"},
    }
    return exact(properties, optional=[name for name in properties if name != "messages"])


def _message() -> Json:
    part = {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": _TEXT},
        "required": ["type", "text"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": {"oneOf": [_TEXT, {"type": "array", "items": part}]},
            "name": _TEXT,
        },
        "required": ["role", "content"],
        "additionalProperties": False,
    }


def _completion() -> Json:
    message = exact({"role": {"const": "assistant"}, "content": _TEXT, "refusal": {"type": "null"}})
    choice = {"index": {"const": 0}, "message": message, "logprobs": {"type": "null"}, "finish_reason": _TEXT}
    usage = {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT}
    return exact(
        {
            "id": _TEXT,
            "object": {"const": "chat.completion"},
            "created": _COUNT,
            "model": _TEXT,
            "choices": {"type": "array", "minItems": 1, "maxItems": 1, "items": exact(choice)},
            "usage": exact({**usage, "source": {"enum": ["none", "provider", "estimate"]}}),
            **_beside(),
        }
    )


PATHS, SCHEMAS = _paths(), _schemas()
