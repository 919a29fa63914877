"""Bodies and query strings of chats to frozen dataclasses, or a 400 that names the fault; it reads no store.

Which workspace and which models there are, it does not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar import params
from sidecar.answer.prompt import Message
from sidecar.answer.queries import ENHANCEMENTS, PassageQuery, passage_query
from sidecar.bodies import Given, check_names, text
from sidecar.config import MAX_MODEL_NAME

MAX_ID = 256
PASSAGES = 8
"""How many passages a model is given."""

NAMES = ("q", "workspaceId", "sessionId", "model")


@dataclass(frozen=True, slots=True)
class ChatQuery:
    """A question to a model (seed 004): its passages, the chat that it goes on with, and the model, where one is named.

    `earlier` was said before where no chat remembers it, `wishes` are the application's, `options` the provider's.
    """

    passages: PassageQuery
    session_id: str | None
    model: str | None
    earlier: tuple[Message, ...] = ()
    wishes: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def chat_query(given: Given) -> ChatQuery:
    """The members of a body of `/v1/chat`. Raises ParameterInvalid."""
    check_names(given, (*NAMES, *ENHANCEMENTS))
    asked = {name: value for name, value in given.items() if name not in ("sessionId", "model")}
    return ChatQuery(
        passages=passage_query({**asked, "limit": PASSAGES}),
        session_id=text(given, "sessionId", MAX_ID),
        model=text(given, "model", MAX_MODEL_NAME),
    )


def chat_query_string(query_string: bytes) -> ChatQuery:
    """The same for `/v1/search/chat/stream`; a parameter that is not known here is ignored. Raises ParameterInvalid."""
    given = params.known(params.pairs(query_string), (*NAMES, *ENHANCEMENTS))
    return chat_query({name: value for name, value in given.items() if name in NAMES or value != "false"})
