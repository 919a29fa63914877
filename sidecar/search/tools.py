"""The search as tools of the Model Context Protocol (seed 000): the routes' own service and envelopes, as text.

Each request is an exchange of its own: no session and no stream outlives it, so nothing needs the application's
lifespan and a client that goes away leaves nothing behind. Host, Origin and bearer are the gate's matter, not the
package's.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec
from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidecar.errors import SidecarError
from sidecar.observe import Failed, emit
from sidecar.search.queries import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    MAX_QUERY_BYTES,
    history_arguments,
    search_arguments,
)
from sidecar.search.service import Search

Json = dict[str, Any]
Context = ServerRequestContext[Any, Any]

_INSTRUCTIONS = (
    "Conversations of the past. Find turns by keywords with session_search, then read around a hit with session_read."
)
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}


def _tool(name: str, title: str, description: str, required: str, properties: Json) -> Tool:
    schema = {"type": "object", "properties": properties, "required": [required], "additionalProperties": False}
    hints = ToolAnnotations(
        title=title, read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    return Tool(name=name, title=title, description=description, input_schema=schema, annotations=hints)


def _text(description: str, **more: Any) -> Json:
    return {"type": "string", "description": description, **more}


_TOOLS = [
    _tool(
        "session_search",
        "Search conversations",
        "Find turns of past conversations whose prompt, answer, interjections or title hold all keywords, newest "
        "first. English words match by their stem, Chinese by its words; no phrases, no parts of words. Each match "
        "names a conversation and a turn for session_read.",
        "query",
        {
            "query": _text(f"Keywords, at most {MAX_QUERY_BYTES} bytes in UTF-8; one field must hold them all."),
            "archived": {"type": "string", "enum": ["exclude", "include", "only"], "default": "exclude"},
            "include_auxiliary": {
                "type": "boolean",
                "default": False,
                "description": "Also search side and subagent conversations.",
            },
            "limit": _LIMIT,
            "after": _text("pagination.next_after of the answer before, with the same other arguments."),
        },
    ),
    _tool(
        "session_read",
        "Read a conversation",
        "Read a window of one conversation, in ascending order: its newest turns, those around a turn, or those "
        "before or after a position. Send at most one of around_turn_id, before_position and after_position.",
        "session_id",
        {
            "session_id": _text("conversation_public_id of a match."),
            "around_turn_id": _text("turn_public_id of a match, to read what stands around it."),
            "limit": _LIMIT,
            "before_position": {"type": "integer", "minimum": 1, "description": "Only turns before this one."},
            "after_position": {"type": "integer", "minimum": 0, "description": "Only turns after this one."},
            "include_execution": {
                "type": "boolean",
                "default": False,
                "description": "Add how the selected turn was or is being worked on: its rounds and tool calls.",
            },
            "execution_before": _text("execution.pagination.next_before of the answer before, for older rounds."),
            "execution_prefix": _text("A key of execution.branches; leave it out for the main thread."),
        },
    ),
]


def exchange(service: Search, owners: frozenset[str] | None, request_id: str, body: bytes) -> ASGIApp:
    """Answers one JSON-RPC message for these owners; its HTTP request was let in, and its body was read."""
    calls: dict[str, Callable[[Json], Awaitable[Json]]] = {
        "session_search": lambda given: service.search(search_arguments(given), owners),
        "session_read": lambda given: service.read(history_arguments(given), owners),
    }
    server = Server(
        "a2a-session-sidecar",
        version=version("a2a-session-sidecar"),
        instructions=_INSTRUCTIONS,
        on_list_tools=_list_tools,
        on_call_tool=partial(_call_tool, calls, request_id),
    )
    manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async with manager.run():
            await manager.handle_request(scope, _again(body, receive), _unstored(send))

    return answer


async def _list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(tools=_TOOLS)


async def _call_tool(
    calls: dict[str, Callable[[Json], Awaitable[Json]]],
    request_id: str,
    context: Context,
    params: CallToolRequestParams,
) -> CallToolResult:
    """The envelope, or what is wrong and what to do next: a model reads both."""
    if params.name not in calls:
        raise MCPError(INVALID_PARAMS, f"No such tool; there are {' and '.join(calls)}.")
    try:
        envelope = await calls[params.name](params.arguments or {})
    except SidecarError as error:
        return _result(f"{error.code}: {error.detail}", is_error=True)
    except Exception as error:
        emit(Failed(request_id, error))
        return _result(f"internal_error: The sidecar failed; its log has {request_id}.", is_error=True)
    return _result(msgspec.json.encode(envelope).decode(), is_error=False)


def _result(text: str, *, is_error: bool) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, to be read once more; after it whatever the client does."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _unstored(send: Send) -> Send:
    """Marks the package's answer with the headers of ours."""

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Cache-Control"] = "no-store"
            headers["X-Content-Type-Options"] = "nosniff"
        await send(message)

    return marked
