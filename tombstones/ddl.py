"""The statement that creates a table or an index where there is none, as text; it runs nothing."""

from typing import Any

from sqlalchemy import Index, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable


def create(what: Table | Index, dialect: str) -> str:
    """The statement on one line, in the words of `sqlite` or `postgresql`."""
    speaking: Any = sqlite.dialect() if dialect == "sqlite" else postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's
    creating: Any = CreateTable if isinstance(what, Table) else CreateIndex
    return " ".join(str(creating(what, if_not_exists=True).compile(dialect=speaking)).split())
