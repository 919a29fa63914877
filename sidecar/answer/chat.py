"""Answers questions by a model that is given passages, and remembers what was said; it knows no HTTP and no SQL.

No connection to the database is held while the model thinks.
"""

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from sidecar import records
from sidecar.answer import memory, prompt, usage
from sidecar.answer.chat_queries import ChatQuery
from sidecar.answer.memory import Exchange, Memory, NotOwnedError, Source
from sidecar.answer.model import Ending, Model
from sidecar.answer.prompt import Markers, Message
from sidecar.answer.retrieval import Retrieval, Retrieved
from sidecar.answer.usage import NOTHING, Usage
from sidecar.auth import Principal
from sidecar.config import Config
from sidecar.db import Database
from sidecar.errors import ModelNotConfigured, NotFound, ParameterInvalid
from sidecar.search.service import Search
from tombstones.table import Shape

Json = dict[str, Any]

_FOUND_NOTHING = Ending("stop", NOTHING)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, by whom and by which route's template, with what its answer may come from: memory and passages."""

    query: ChatQuery
    principal: Principal
    route: str
    request_id: str
    model: str
    memory: Memory
    retrieved: Retrieved

    @property
    def messages(self) -> list[Message]:
        """What the model is told; of an application's own chat, what that says was said before."""
        earlier = self.query.earlier if self.query.session_id is None else self.memory.messages
        return prompt.messages(self.query.passages.q, self.passages(), earlier, self.query.wishes)

    @property
    def sources(self) -> frozenset[Source]:
        """The turns that the model is told of, none where it is not asked, or where nobody knows them.

        What an application says was said before may be our answers about any turn.
        """
        if self.query.session_id is None and self.query.earlier:
            return frozenset()
        told = frozenset(Source(passage.task_id, passage.session_id) for passage in self.retrieved.passages)
        return told | self.memory.sources if told else told

    def passages(self) -> list[Json]:
        """What can be cited, by its number."""
        return [
            {"number": number, "text": each.text, "title": each.title, "time": each.time, **each.citation()}
            for number, each in enumerate(self.retrieved.passages, 1)
        ]


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that is stored: its body (seed 004), and why the model stopped, in the provider's word."""

    body: Json
    finish_reason: str


class Chat:
    """Grounded chat over one sidecar's store."""

    def __init__(self, search: Search, database: Database, config: Config) -> None:
        self._retrieval = Retrieval(search, database, config)
        self._database = database
        self._config = config
        self._model = Model(config)

    async def prepare(self, query: ChatQuery, principal: Principal, route: str, request_id: str) -> Asked:
        """Everything that comes before the model.

        Raises ModelNotConfigured, ParameterInvalid for a model that is not offered, NotFound for a chat that is not
        this token's, WorkspaceNotFound, and a SidecarError for every fault of the database.
        """
        model, chat_id, owners = self._named(query.model), query.session_id, principal.owners
        try:
            await records.read(self._database, memory.verify, chat_id, principal.name)
        except NotOwnedError:
            raise NotFound("No such `sessionId`: it is unknown, or another token's; leave it out to begin.") from None
        retrieved = await self._retrieval.passages(query.passages, owners)
        # only now is it known which turns became incognito
        remembered = await records.read(self._database, memory.recall, chat_id, owners)
        return Asked(query, principal, route, request_id, model, remembered, retrieved)

    def _named(self, model: str | None) -> str:
        offered = self._config.model
        if self._config.model_url is None or not offered:
            raise ModelNotConfigured("Set SIDECAR_MODEL_URL and SIDECAR_MODEL to have questions answered.")
        if model is not None and model not in offered:
            raise ParameterInvalid(f"`model` is not offered here; send one of {', '.join(offered)}, or none.")
        return model or offered[0]

    async def answer(self, asked: Asked) -> Answered:
        """The whole answer. Raises ModelFailed, ModelTimeout, and a SidecarError for every fault of the database."""
        text, ending = prompt.NOTHING_FOUND, _FOUND_NOTHING
        if asked.retrieved.passages:
            text, ending = await self._model.answer(asked.model, asked.messages, asked.query.options)
        markers = Markers(len(asked.retrieved.passages))
        return await self._stored(asked, markers.feed(text) + markers.end(), markers.cited, ending)

    async def stream(self, asked: Asked) -> AsyncGenerator[str | Answered, None]:
        """The answer in pieces, at last the whole of it; whoever closes this before has nothing stored.

        Raises as `answer` does.
        """
        if not asked.retrieved.passages:
            yield prompt.NOTHING_FOUND
            yield await self.answer(asked)
            return
        markers, shown, ending = Markers(len(asked.retrieved.passages)), list[str](), _FOUND_NOTHING
        async with aclosing(self._model.stream(asked.model, asked.messages, asked.query.options)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Ending):
                    ending, text = piece, markers.end()
                else:
                    text = markers.feed(piece)
                if text:
                    shown.append(text)
                    yield text
        yield await self._stored(asked, "".join(shown), markers.cited, ending)

    async def _stored(self, asked: Asked, text: str, cited: Sequence[int], ending: Ending) -> Answered:
        """Stores the exchange with what it used, then it is an answer."""
        query, token = asked.query, asked.principal.name
        chat_id = query.session_id or uuid.uuid4().hex
        exchange = Exchange(chat_id, query.session_id is None, token, query.passages.q, text, asked.sources)
        used = (ending.usage, token, asked.route, asked.request_id)
        await records.write(self._database, _store, exchange, *used)
        usage.log(*used)
        passages = asked.passages()
        body = {
            "answer": text,
            "citations": [passages[number - 1] for number in cited],
            "sessionId": chat_id,
            "model": asked.model,
            "usage": ending.usage.body(),
            "availability": asked.retrieved.availability.body(),
        }
        return Answered(body, ending.finish_reason)


async def _store(
    conn: AsyncConnection, shape: Shape, exchange: Exchange, used: Usage, token: str, route: str, request_id: str
) -> None:
    await memory.keep(conn, shape, exchange)
    await usage.record(conn, shape, used, token, route, request_id)
