"""What the sidecar is measured against, each in a process of its own; it may not read as the sidecar does.

python -m tests.bench.peers NAME PORT DATABASE_URL
"""

import importlib
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import uvicorn
from sqlalchemy import JSON, Column, DateTime, MetaData, String, Table, make_url, select
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sidecar.demo.agent import create_agent

TASKS = Table(
    "tasks",
    MetaData(),
    Column("id", String),
    Column("context_id", String),
    Column("last_updated", DateTime),
    *(Column(name, JSON) for name in ("status", "artifacts", "history")),
)


def sdk(url: str) -> ASGIApp:
    """An agent of a2a-sdk as its users build it: DefaultRequestHandler, DatabaseTaskStore, the JSON-RPC routes."""
    return create_agent(create_async_engine(url), "http://127.0.0.1/")


def decoding(url: str) -> ASGIApp:
    """The handler that one would write first: SQLAlchemy decodes the JSON columns, JSONResponse encodes them again."""
    engine = create_async_engine(url)

    async def turns(request: Request) -> JSONResponse:
        mine = select(TASKS).where(TASKS.c.context_id == request.path_params["session_id"])
        async with engine.connect() as connection:
            rows = (await connection.execute(mine.order_by(TASKS.c.last_updated.desc()).limit(50))).all()
        return JSONResponse({"turns": [_turn(row) for row in reversed(rows)]})

    return Starlette(routes=[Route("/turns/{session_id}", turns)])


def _turn(row: Any) -> dict[str, Any]:
    return {
        "task_id": row.id,
        "state": row.status["state"],
        "last_updated": row.last_updated.isoformat() + "Z",
        "text": "".join(part.get("text", "") for artifact in row.artifacts for part in artifact["parts"]),
        "status": row.status,
        "artifacts": row.artifacts,
        "history": row.history,
    }


def static(_url: str) -> ASGIApp:
    """`/N` is N bytes that exist already: the least that an ASGI server can do."""

    @lru_cache
    def body(path: str) -> bytes:
        return b"x" * int(path.removeprefix("/"))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        content = body(scope["path"])
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return app


def datasette(url: str) -> ASGIApp:
    """Datasette on a SQLite file."""
    app: ASGIApp = importlib.import_module("datasette.app").Datasette([make_url(url).database]).app()
    return app


PEERS: dict[str, Callable[[str], ASGIApp]] = {
    "sdk": sdk,
    "decoding": decoding,
    "static": static,
    "datasette": datasette,
}


def main(name: str, port: str, url: str) -> None:
    """Serve one of them with the settings that the sidecar gives uvicorn."""
    lifespan: Any = "off" if name == "static" else "on"
    uvicorn.run(
        PEERS[name](url),
        port=int(port),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan=lifespan,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
