"""The database URL as people write it, turned into what the async drivers take; it opens no connection.

Managed databases hand out libpq URLs whose options asyncpg does not know: passed through they are a TypeError.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}
_CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Dsn:
    """An async SQLAlchemy URL with the driver's arguments; `path` is the SQLite file."""

    url: URL
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)
    path: Path | None = None


def parse(text: str) -> Dsn:
    """Raises ValueError with the fix when the URL, its driver or one of its options is not acceptable."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError("write it as sqlite:///path or postgresql://user@host:port/database") from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise ValueError(f"{url.drivername!r} is not supported; use sqlite:// or postgresql://")
    return _sqlite(url, driver) if driver.startswith("sqlite") else _postgres(url, driver)


def _sqlite(url: URL, driver: str) -> Dsn:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise ValueError("name the agent's file: sqlite:///relative/path or sqlite:////absolute/path")
    if url.query:
        raise ValueError(f"a SQLite URL takes no options, found {', '.join(sorted(url.query))}")
    path = Path(url.database).absolute()
    # mode=rw: a mistyped path must not create an empty database
    opened = URL.create(driver, database=f"file:{quote(str(path))}", query={"mode": "rw", "uri": "true"})
    return Dsn(opened, {}, path)


def _postgres(url: URL, driver: str) -> Dsn:
    settings: dict[str, str] = {"application_name": "a2a-sidecar"}
    arguments: dict[str, Any] = {"timeout": _CONNECT_SECONDS, "server_settings": settings}
    kept: dict[str, Any] = {}
    options = {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
    root = options.pop("sslrootcert", None)
    for name, value in options.items():
        if name in ("application_name", "options"):
            settings[name] = value
        elif name in ("host", "port", "prepared_statement_cache_size"):
            kept[name] = url.query[name]
        elif name in ("sslmode", "ssl"):
            arguments["ssl"] = _checked(name, value, lambda mode: _ssl(mode, root))
        elif name == "connect_timeout":
            arguments["timeout"] = _checked(name, value, float)
        elif name == "target_session_attrs":
            arguments[name] = _checked(name, value, _session_attribute)
        else:
            raise ValueError(f"the option {name!r} cannot be passed to PostgreSQL; take it out of the URL")
    return Dsn(url.set(drivername=driver, query=kept), arguments)


def _checked(name: str, value: str, parse_value: Callable[[str], Any]) -> Any:
    try:
        return parse_value(value)
    except (ValueError, OSError):
        raise ValueError(f"the option {name} has no usable value {value!r}") from None


def _ssl(mode: str, root: str | None) -> ssl.SSLContext | str:
    if mode not in ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"):
        raise ValueError
    if root is None or not mode.startswith("verify"):
        return mode
    context = ssl.create_default_context(cafile=None if root == "system" else root)
    context.check_hostname = mode == "verify-full"
    return context


def _session_attribute(value: str) -> str:
    if value not in ("any", "primary", "standby", "read-write", "read-only", "prefer-standby"):
        raise ValueError
    return value
