"""What a retrieval or a chat used: told in the answer, kept as a row without any text, and logged; it bills nobody."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from sidecar.observe import Used, emit
from tombstones.table import Shape

Source = Literal["none", "provider", "estimate"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a model, and who counted them: the provider, or an estimate of ours; `none` where no model is asked."""

    source: Source
    model: str | None
    input_tokens: int
    output_tokens: int

    def body(self) -> dict[str, Any]:
        """As the answers carry it (seed 004)."""
        return {
            "source": self.source,
            "model": self.model,
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "totalTokens": self.input_tokens + self.output_tokens,
        }


NOTHING = Usage("none", None, 0, 0)
"""What a retrieval uses: terms are matched, and no model is asked."""


async def record(conn: AsyncConnection, shape: Shape, usage: Usage, token: str, route: str, request_id: str) -> None:
    """Adds one row, in the caller's transaction; `token` is the token's name and `route` the route's template."""
    row = {
        "at": datetime.now(UTC),
        "token": token,
        "route": route,
        "source": usage.source,
        "model": usage.model,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "request_id": request_id,
    }
    await conn.execute(insert(shape.records.usage).values(row))


def log(usage: Usage, token: str, route: str, request_id: str) -> None:
    """Tells the log and the metrics of what was recorded; to be called once that is durable."""
    emit(Used(token, route, usage.source, usage.model, usage.input_tokens, usage.output_tokens, request_id))
