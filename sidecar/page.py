"""Serves the console page's static files; it touches no database and knows no token."""

from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from sidecar.console import FILES
from sidecar.routes import ApiRoute, Fresh

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Search wants to be told the workspace. The page is public, and its id is no secret: it stands in paths and logs.
_WORKSPACE = '<meta name="workspace" content="{}">'
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def page_routes() -> list[BaseRoute]:
    """A route for each file, as it is now."""
    return [ApiRoute(path, _serving(file), methods=["GET"]) for path, file in FILES.items()]


def _serving(file: Path) -> Callable[[Request], Awaitable[Response]]:
    text = file.read_text("utf-8")

    async def serve(request: Request) -> Response:
        workspace = request.app.state.config.workspace
        body = text.replace(_WORKSPACE.format("default"), _WORKSPACE.format(workspace)).encode()
        headers = {
            "Content-Security-Policy": CSP,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
            "ETag": f'"{sha256(body).hexdigest()[:32]}"',
        }
        fresh = Fresh(request, file.name, None)
        fresh.etag = headers["ETag"]
        if fresh.is_unchanged():
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=_TYPES[file.suffix])

    return serve
