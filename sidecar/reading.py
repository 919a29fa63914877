"""A read connection that hands statements to the driver itself; it decides nothing about what is read.

SQLAlchemy builds a statement once for each shape of the store and each kind of question; from then on a read is one
call of the driver. Its pool is kept, its execution layers are not: they took five times as long as the statement.
"""

from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, Dialect, bindparam
from sqlalchemy.sql.selectable import SelectBase
from sqlalchemy.types import TypeEngine

STATEMENTS_KEPT = 256


@dataclass(frozen=True, slots=True)
class _Compiled:
    """SQL as the driver takes it, the names of its parameters in order, the values that stand in it already."""

    sql: str
    names: tuple[str, ...]
    values: Mapping[str, Any]
    row: Callable[[Iterable[Any]], Any]


class Reading:
    """One connection while a reader has it; in autocommit, as each statement is a read."""

    def __init__(self, driver: Any, dialect: Dialect) -> None:
        self._driver = driver
        self._dialect = dialect

    async def fetch(self, statement: SelectBase, values: Mapping[str, Any] | None = None) -> Sequence[Any]:
        """All rows of a statement, as named tuples; `values` are its parameters.

        The statement must be kept by its builder: it is compiled once and known by its identity.
        """
        compiled = _compile(statement, self._dialect)
        given = compiled.values if values is None else {**compiled.values, **values}
        arguments = [given[name] for name in compiled.names]
        return [compiled.row(row) for row in await self._fetch(compiled.sql, arguments)]

    async def _fetch(self, sql: str, arguments: Sequence[Any]) -> Iterable[Any]:
        if self._dialect.name == "sqlite":
            rows: Iterable[Any] = await self._driver.execute_fetchall(sql, arguments)
        else:
            rows = await self._driver.fetch(sql, *arguments)
        return rows

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """Several statements that see one state; Python's sqlite3 opens no transaction for a SELECT."""
        if self._dialect.name == "sqlite":
            try:  # a caller that is cancelled while it begins must end it, too
                await self._driver.execute("BEGIN")
                yield
            finally:
                await self._driver.rollback()
        else:
            async with self._driver.transaction(isolation="repeatable_read", readonly=True):
                yield

    @asynccontextmanager
    async def planned_anew(self) -> AsyncIterator[None]:
        """Each statement is planned for its values: on PostgreSQL a plan for any value may be far from theirs."""
        if self._dialect.name == "sqlite":
            yield
        else:  # one round trip less than the driver's own transaction
            try:  # a caller that is cancelled while it begins must end it, too
                await self._driver.execute("BEGIN READ ONLY; SET LOCAL plan_cache_mode = force_custom_plan")
                yield
            finally:
                await self._driver.execute("COMMIT")


def parameter(name: str, kind: TypeEngine[Any]) -> BindParameter[Any]:
    """A value that `fetch` is given; SQLAlchemy must not ask for it when it compiles."""
    return bindparam(name, type_=kind, required=False)


@lru_cache(STATEMENTS_KEPT)
def _compile(statement: SelectBase, dialect: Dialect) -> _Compiled:
    compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    names = [column.name for column in statement.selected_columns]
    row = namedtuple("Row", names)  # type: ignore[misc]  # the names are known at run time only
    return _Compiled(str(compiled), tuple(compiled.positiontup or ()), dict(compiled.params), row._make)
