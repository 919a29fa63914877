"""Answers many queries side by side and in their order, each for itself; it reads no body and opens no connection."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sidecar.answer.queries import BatchQuery, PassageQuery
from sidecar.errors import InsufficientScope, InvalidSearchScope, SidecarError, WorkspaceNotFound
from sidecar.observe import Failed, emit

Json = dict[str, Any]
Answer = Callable[[PassageQuery], Awaitable[Json]]

# What a client can mend, as seed 004 spells it.
_CODES: dict[type[SidecarError], str] = {
    InsufficientScope: "FORBIDDEN",
    WorkspaceNotFound: "WORKSPACE_NOT_FOUND",
    InvalidSearchScope: "INVALID_SEARCH_SCOPE",
}

_FAILED = "SEARCH_FAILED"


async def run(batch: BatchQuery, answer: Answer, request_id: str, is_gone: Callable[[], bool]) -> Json:
    """`{"results": […]}`, in each place the answer or the error of the query in that place (seed 004).

    Once its client `is_gone` no query begins any more, and those that have begun end.
    """
    aborted = _failed("REQUEST_ABORTED", "The client had gone before this query began.", 499)
    results = [aborted] * len(batch.queries)
    waiting = enumerate(batch.queries)

    async def work() -> None:
        for place, query in waiting:
            if is_gone():
                break
            results[place] = await _outcome(query, answer, request_id)

    await asyncio.gather(*(work() for _ in range(batch.concurrency)))
    return {"results": results}


async def _outcome(query: PassageQuery, answer: Answer, request_id: str) -> Json:
    try:
        return {"ok": True, "data": await answer(query)}
    except SidecarError as error:
        code = _CODES.get(type(error))
        return _failed(code or _FAILED, error.detail, error.status if code else 500)
    except Exception as error:
        emit(Failed(request_id, error))
    return _failed(_FAILED, f"The search failed; try again. The server's log has {request_id}.", 500)


def _failed(code: str, message: str, status: int) -> Json:
    return {"ok": False, "error": {"code": code, "message": message, "status": status}}
