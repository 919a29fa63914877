"""Database URLs as people and managed databases write them."""

import ssl
from pathlib import Path

import pytest

from sidecar.dsn import parse


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
def test_postgres_schemes(scheme: str) -> None:
    """Every spelling of PostgreSQL opens through asyncpg."""
    assert str(parse(f"{scheme}://u@h:5/d").url) == "postgresql+asyncpg://u@h:5/d"


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
def test_sqlite_is_opened_without_creating_it(scheme: str, tmp_path: Path) -> None:
    """A mistyped path must not become an empty database; odd characters in it are quoted."""
    path = tmp_path / "a b#%.db"
    dsn = parse(f"{scheme}:///{path}")
    assert dsn.path == path
    assert dsn.url.query == {"mode": "rw", "uri": "true"}
    assert (dsn.url.database or "").endswith("a%20b%23%25.db")


def test_libpq_options_are_translated() -> None:
    """What a managed database puts into its URL reaches asyncpg as it takes it."""
    dsn = parse(
        "postgres://u:p@h/d?sslmode=require&application_name=mine&connect_timeout=3&options=-c%20geqo%3Doff"
        "&target_session_attrs=primary"
    )
    assert dsn.url.query == {}
    assert dsn.arguments == {
        "timeout": 3.0,
        "ssl": "require",
        "target_session_attrs": "primary",
        "server_settings": {"application_name": "mine", "options": "-c geqo=off"},
    }


def test_root_certificate_is_used() -> None:
    """`sslmode=verify-full` with `sslrootcert` checks the chain and the name."""
    context = parse("postgres://u@h/d?sslmode=verify-full&sslrootcert=system").arguments["ssl"]
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname


@pytest.mark.parametrize("option", ["channel_binding=require", "connect_timeout=soon", "sslmode=x", "nothing=1"])
def test_option_that_cannot_be_passed(option: str) -> None:
    """An option that asyncpg lacks is named, instead of becoming a TypeError at the first request."""
    with pytest.raises(ValueError, match=option.partition("=")[0]):
        parse(f"postgres://u@h/d?{option}")


def test_password_stays_out_of_repr() -> None:
    """Neither the arguments nor the URL show it."""
    assert "geheim" not in repr(parse("postgres://u:geheim@h/d"))
