"""What an operator's tools ask: health, metrics and the published description; it shows no session and no secret."""

import asyncio

import msgspec
from sqlalchemy import literal, select
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from sidecar import docs, observe, published
from sidecar.auth import require
from sidecar.db import Database
from sidecar.errors import NotFound, SidecarError
from sidecar.routes import ApiRoute, Fresh, answer
from tombstones.prepare import retirement_obstacle
from tombstones.table import Shape

READY_SECONDS = 1.0
# What a failing read says of the checks: those that passed, and the one that did not.
_FAILING = {
    "task_store_missing": (("database",), "task_table"),
    "tombstones_unavailable": (("database",), "privileges"),
}


def operations_routes() -> list[BaseRoute]:
    """The routes beside seed 003 that every deployment needs."""
    return [
        ApiRoute("/livez", alive, methods=["GET"]),
        ApiRoute("/healthz", alive, methods=["GET"]),
        ApiRoute("/readyz", ready, methods=["GET"]),
        ApiRoute("/metrics", metrics, methods=["GET"]),
        ApiRoute("/openapi.json", description, methods=["GET"]),
        ApiRoute("/docs", documentation, methods=["GET"]),
    ]


async def alive(request: Request) -> Response:
    """The process answers; the database is `/readyz`'s question, or its outage would restart the sidecar."""
    return _plain({"status": "ok"})


async def ready(request: Request) -> Response:
    """Whether the store can be read, and whether sessions can be retired; names the failing check and no address."""
    database: Database = request.app.state.database
    try:
        async with asyncio.timeout(READY_SECONDS):
            checks = await database.maintain(_checks)
    except TimeoutError:
        return _plain({"status": "failed", "checks": {"database": "no answer within a second"}}, 503)
    except SidecarError as error:
        passed, failing = _FAILING.get(error.code, ((), "database"))
        return _plain({"status": "failed", "checks": {**dict.fromkeys(passed, "ok"), failing: error.detail}}, 503)
    return _plain({"status": "ready", "checks": checks})


async def _checks(conn: AsyncConnection, shape: Shape) -> dict[str, str]:
    # privileges are checked before the first row is looked for
    await conn.execute(select(literal(1)).select_from(shape.tasks).where(shape.alive()).limit(0))
    return {
        "database": "ok",
        "task_table": "ok",
        "retirement": await retirement_obstacle(conn, shape) or "ok",
        "creation_order": "recorded" if shape.has_creation_order else "by last_updated",
    }


async def metrics(request: Request) -> Response:
    """Prometheus's text format."""
    require(request, "read")
    exposition = observe.metrics_text()
    if exposition is None:
        raise NotFound("Metrics need the extra: pip install 'a2a-session-sidecar[metrics]'.")
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(exposition, headers=headers, media_type="text/plain; version=0.0.4; charset=utf-8")


async def description(request: Request) -> Response:
    """The OpenAPI 3.1 description."""
    return await answer(Fresh(request, "openapi", None), msgspec.json.encode(published.document()))


async def documentation(request: Request) -> Response:
    """The offline page, with an anchor for every error code."""
    headers = {
        "Content-Security-Policy": docs.CSP,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return HTMLResponse(published.page(), headers=headers)


def _plain(content: object, status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")
