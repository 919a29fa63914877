"""What a wing offers as a tool of the Model Context Protocol: a description and a call; it serves nothing."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_types import Tool, ToolAnnotations

from sidecar.auth import Principal

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a call knows besides its arguments, none of which a model chooses: who asks, the names of the HTTP headers
    in lower case, and the call's `_meta`.
    """

    principal: Principal
    request_id: str
    headers: Mapping[str, str]
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool and its call, which takes the arguments as they came and gives the envelope, or raises a SidecarError."""

    tool: Tool
    call: Callable[[Json, Runtime], Awaitable[Json]]


def tool(
    name: str,
    title: str,
    description: str,
    required: Sequence[str],
    properties: Json,
    *,
    read_only: bool = True,
    idempotent: bool = True,
) -> Tool:
    """A tool's description; it takes no argument beside these, and reaches nothing beyond this store."""
    schema = {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
    hints = ToolAnnotations(
        title=title,
        read_only_hint=read_only,
        destructive_hint=False,
        idempotent_hint=idempotent,
        open_world_hint=False,
    )
    return Tool(name=name, title=title, description=description, input_schema=schema, annotations=hints)


def text_schema(description: str, **more: Any) -> Json:
    """The schema of an argument that is text."""
    return {"type": "string", "description": description, **more}
