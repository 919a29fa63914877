"""Exchanges of the Model Context Protocol over whatever tools the wings offer; it knows no tool and no database.

Each request is an exchange of its own: no session and no stream outlives it, so nothing needs the application's
lifespan and a client that goes away leaves nothing behind. Host, Origin and bearer are the gate's matter, not the
package's.
"""

from collections.abc import Mapping, Sequence
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
)
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sidecar.auth import Principal
from sidecar.errors import SidecarError
from sidecar.observe import Failed, emit
from sidecar.offered import Offered, Runtime

Context = ServerRequestContext[Any, Any]


class Exchange:
    """The tools of one application, in the order in which they are listed, and what a model is told of them all."""

    def __init__(self, offered: Sequence[Offered], instructions: str) -> None:
        self._offered = {each.tool.name: each for each in offered}
        self._instructions = instructions

    def answer(self, principal: Principal, request_id: str, headers: Mapping[str, str], body: bytes) -> ASGIApp:
        """Answers one JSON-RPC message of this principal; its HTTP request was let in, and its body was read."""
        server = Server(
            "a2a-session-sidecar",
            version=version("a2a-session-sidecar"),
            instructions=self._instructions,
            on_list_tools=self._list,
            on_call_tool=partial(self._call, principal, request_id, headers),
        )
        manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async with manager.run():
                await manager.handle_request(scope, _again(body, receive), _unstored(send))

        return answer

    async def _list(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[each.tool for each in self._offered.values()])

    async def _call(
        self,
        principal: Principal,
        request_id: str,
        headers: Mapping[str, str],
        context: Context,
        params: CallToolRequestParams,
    ) -> CallToolResult:
        """The envelope, or what is wrong and what to do next: a model reads both."""
        offered = self._offered.get(params.name)
        if offered is None:
            raise MCPError(INVALID_PARAMS, f"No such tool; there are {', '.join(self._offered)}.")
        runtime = Runtime(principal, request_id, headers, context.meta or {})
        try:
            envelope = await offered.call(params.arguments or {}, runtime)
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
