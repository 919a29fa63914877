"""The settings: one table, read once into a frozen `Config`; it opens no database and no connection."""

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")

PREFIX = "SIDECAR_"
CREDENTIALS = "CREDENTIALS_DIRECTORY"
MIB = 1024 * 1024
MIN_TOKEN_BYTES = 16
MAX_MODEL_NAME = 256
_NO_FLAGS: Mapping[str, str | None] = MappingProxyType({})


class ConfigError(Exception):
    """A configuration that cannot be used. `faults` holds one sentence each: the setting, what is wrong, the fix."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `parse` turns its text into its value or raises ValueError with the fault and the fix."""

    name: str
    default: object
    help: str
    parse: Callable[[str], object]
    secret: bool
    has_file: bool

    @property
    def env(self) -> str:
        """Its environment variable; with `has_file` the same name plus `_FILE` names a file that holds the text."""
        return PREFIX + self.name.upper()

    @property
    def names(self) -> tuple[str, ...]:
        """Every environment variable that gives this setting."""
        return (self.env, f"{self.env}_FILE") if self.has_file else (self.env,)


def read_secret(path: Path) -> str:
    """The text of a file without the white space around it. Raises ValueError when it cannot be read."""
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); correct the path or its permissions") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None


def operator_token(text: str) -> str:
    """A token that a client can send: the alphabet of RFC 6750 §2.1, at least 16 bytes. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", text):
        raise ValueError("may hold only A-Z a-z 0-9 - . _ ~ + / and trailing =; make one with `openssl rand -hex 32`")
    if len(text) < MIN_TOKEN_BYTES:
        raise ValueError(f"is shorter than {MIN_TOKEN_BYTES} bytes; make one with `openssl rand -hex 32`")
    return text


def is_loopback(host: str) -> bool:
    """Whether a host name or address (IPv6 without brackets) reaches this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def masked(secret: str) -> str:
    """A secret as it may be shown: a URL without its passwords, three stars for anything else."""
    if "://" not in secret:
        return "***"
    # up to the last @: a password with an unescaped @ or / must not show its tail
    without_userinfo = re.sub(r"(://[^:/?@]*:).*@", r"\1***@", secret)
    return re.sub(r"((?:^|[?&])[^=&]*password=)[^&]*", r"\1***", without_userinfo, flags=re.IGNORECASE)


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; give a value or remove it")
    return text.strip()


def _database_url(text: str) -> str:
    # here alone, since only a command that has a configuration needs SQLAlchemy
    from sidecar import dsn

    dsn.parse(_filled(text))
    return text.strip()


def _path(text: str) -> Path:
    return Path(_filled(text))


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text.strip()) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return parse


def _size(text: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,11}) ?(|KiB|MiB)", text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size; write bytes, or for example 512 KiB or 8 MiB")
    return int(match[1]) * {"": 1, "KiB": 1024, "MiB": MIB}[match[2]]


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?s?", text.strip())
    if not match or float(match[1]) == 0:
        raise ValueError(f"{text!r} is not a duration; write seconds, for example 5 or 2.5s")
    return float(match[1])


def _switch(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.strip().lower() == "true"


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip() not in choices:
            raise ValueError(f"{text!r} is not one of {', '.join(choices)}")
        return text.strip()

    return parse


def _table(text: str) -> str:
    schema, dot, table = text.strip().rpartition(".")
    identifier = r"[A-Za-z_][A-Za-z0-9_]*"
    if not re.fullmatch(identifier, table) or (dot and not re.fullmatch(identifier, schema)):
        raise ValueError(f"{text!r} is not a table name; use letters, digits and _, optionally schema.table")
    if len(table) > 36 or len(schema) > 63:
        raise ValueError(f"{text!r} is too long: at most 36 characters for the table, 63 for its schema")
    return text.strip()


def _listed(text: str) -> Iterator[str]:
    return (item.strip().lower() for item in text.split(",") if item.strip())


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(item.strip("[]") for item in _listed(text))
    for host in hosts:
        if host != "*" and not re.fullmatch(r"[a-z0-9._-]+|[0-9a-f:.]*:[0-9a-f:.]*:[0-9a-f:.]*", host):
            raise ValueError(f"{host!r} is not a host name; write it alone, without scheme, port or path")
    return hosts


def _origins(text: str) -> tuple[str, ...]:
    origins = tuple(_listed(text))
    for origin in origins:
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", origin):
            raise ValueError(f"{origin!r} is not an origin; write scheme://host[:port], without * or a path")
        if re.search(r"^http:.*:80$|^https:.*:443$", origin):
            raise ValueError(f"{origin!r} names its scheme's own port, which browsers leave out; remove it")
    return origins


def _workspace(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text.strip()):
        raise ValueError(f"{text!r} is not a workspace id; use 1 to 64 of A-Z a-z 0-9 . _ -")
    return text.strip()


def _http_url(text: str) -> str:
    url = text.strip().rstrip("/")
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", url, re.IGNORECASE):
        raise ValueError("is not a base URL; write https://host/v1, without credentials, query or fragment")
    return url


def _key(text: str) -> str:
    if not re.fullmatch(r"[!-~]+", text.strip()):
        raise ValueError("is no key that a header can carry; it has visible ASCII characters only")
    return text.strip()


def _models(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not all(len(name) <= MAX_MODEL_NAME and name.isprintable() for name in names):
        raise ValueError(f"holds a name that is longer than {MAX_MODEL_NAME} characters, or not printable")
    return names


def _setting(default: T, help: str, parse: Callable[[str], T], *, secret: bool = False, has_file: bool = False) -> T:
    metadata = {"help": help, "parse": parse, "secret": secret, "has_file": has_file}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Config:
    """The effective settings. Sizes are bytes, times are seconds; secrets are left out of `repr`.

    An operator token read from a file is not kept here: `token_file` names the file, for it may be rotated.
    """

    database_url: str = _setting(
        "sqlite+aiosqlite:///a2a-tasks.db",
        "The agent's task database, for SQLite or PostgreSQL.",
        _database_url,
        secret=True,
        has_file=True,
    )
    tasks_table: str = _setting("tasks", "Name of the SDK's table, optionally schema.table on PostgreSQL.", _table)
    session_prefix: str = _setting("chat-", "Contexts whose id starts with this are sessions; empty means all.", str)
    token: str | None = _setting(
        None, "One operator token with all scopes.", operator_token, secret=True, has_file=True
    )
    token_file: Path | None = None
    tokens_file: Path | None = _setting(None, "TOML file of named tokens with scopes and owners.", _path)  # noqa: RUF009  # a row, evaluated once
    host: str = _setting("127.0.0.1", "Address to listen on.", _filled)
    port: int = _setting(8765, "Port to listen on; 0 takes a free one.", _whole(0, 65535))
    allowed_hosts: tuple[str, ...] = _setting(
        (), "Host names accepted beside the loopback ones, comma separated; * accepts any.", _hosts
    )
    cors_origins: tuple[str, ...] = _setting(
        (), "Exact origins of consoles served elsewhere, comma separated.", _origins
    )
    max_turn_bytes: int = _setting(8 * MIB, "Largest stored JSON cell that a turn carries.", _size)
    max_response_bytes: int = _setting(32 * MIB, "Largest answer of the turns route.", _size)
    statement_timeout: float = _setting(5.0, "Seconds that one database statement may take.", _seconds)
    pool_size: int = _setting(5, "Most database connections held at once.", _whole(1, 100))
    prepare: bool = _setting(False, "Create indexes and side tables at start.", _switch)
    workers: int = _setting(1, "Worker processes, each with a pool of database connections of its own.", _whole(1, 64))
    workspace: str = _setting("default", "The one workspace id in the paths of the search routes.", _workspace)
    audit_key: str | None = _setting(
        None, "Key of the digests in the audit of agent searches.", operator_token, secret=True, has_file=True
    )
    model_url: str | None = _setting(None, "Base URL of an OpenAI-compatible endpoint for grounded chat.", _http_url)
    model_key: str | None = _setting(None, "Key that the endpoint asks for.", _key, secret=True, has_file=True)
    model: tuple[str, ...] = _setting((), "Names of the models that may be asked, the default one first.", _models)
    model_timeout: float = _setting(60.0, "Seconds of the model's silence after which it is given up.", _seconds)
    log_format: str = _setting(
        "auto",
        "Log lines as text or json; auto is text on a terminal.",
        _one_of("auto", "text", "json"),
    )
    insecure_no_auth: bool = _setting(False, "Serve without a token; on a loopback address only.", _switch)
    warnings: tuple[str, ...] = field(default=(), compare=False)


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(row.name, row.default, **row.metadata) for row in fields(Config) if row.metadata
)


def load(environ: Mapping[str, str], flags: Mapping[str, str | None] = _NO_FLAGS) -> Config:
    """The configuration of flags, environment, `$CREDENTIALS_DIRECTORY` and defaults, the earlier the stronger.

    `flags` maps a setting's name, or its name plus `_file`, to the text given, None where none was.
    Raises ConfigError with every fault at once.
    """
    given_flags = {PREFIX + name.upper(): text for name, text in flags.items() if text is not None}
    credentials = _credentials(environ)
    values: dict[str, Any] = {}
    faults: list[str] = []
    warnings = _unknown(environ)
    for setting in SETTINGS:
        given = _strongest(setting, (given_flags, environ, credentials))
        try:
            values |= _fields(setting, given)
        except ValueError as fault:
            faults.append(f"{' and '.join(given)}: {fault}.")
            continue
        # systemd keeps its credentials private by their directory, whatever mode the files show
        if not given.items() <= credentials.items():
            warnings += _exposed(setting, given)
    if faults:
        raise ConfigError(faults)
    return Config(**values, warnings=tuple(warnings))


def check_serve(config: Config) -> None:
    """Refuses to serve without a token, but on loopback and when told so. Raises ConfigError."""
    has_token = bool(config.token or config.token_file or config.tokens_file)
    faults: list[str] = []
    if not has_token and not config.insecure_no_auth:
        faults.append(
            "SIDECAR_TOKEN_FILE: no token is configured; name a file that holds one, or a SIDECAR_TOKENS_FILE."
        )
    if has_token and config.insecure_no_auth:
        faults.append("SIDECAR_INSECURE_NO_AUTH: a token is configured as well; remove one of the two.")
    if bool(config.model_url) != bool(config.model):
        faults.append("SIDECAR_MODEL_URL and SIDECAR_MODEL: one needs the other; set both or none.")
    if config.insecure_no_auth and not is_loopback(config.host):
        faults.append(
            f"SIDECAR_INSECURE_NO_AUTH: refused on {config.host}; listen on a loopback address or configure a token."
        )
    if faults:
        raise ConfigError(faults)


def shown(config: Config) -> list[tuple[str, str]]:
    """The effective settings by their environment names, as text; secrets are masked, "" stands for unset."""
    secrets = {setting.name for setting in SETTINGS if setting.secret}
    rows = [(row.name, getattr(config, row.name)) for row in fields(config) if row.name != "warnings"]
    return [
        (PREFIX + name.upper(), masked(value) if name in secrets and value else _text(value)) for name, value in rows
    ]


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """What systemd's `LoadCredential=` provides, as if each file had been named by its `_FILE` variable."""
    directory = environ.get(CREDENTIALS)
    if not directory:
        return {}
    files = {f"{setting.env}_FILE": Path(directory, setting.name) for setting in SETTINGS if setting.has_file}
    return {name: str(path) for name, path in files.items() if path.is_file()}


def _strongest(setting: Setting, sources: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """What the first source that gives the setting says: its text, its file, by mistake both; nothing without one."""
    for source in sources:
        given = {name: source[name] for name in setting.names if name in source}
        if given:
            return given
    return {}


def _fields(setting: Setting, given: Mapping[str, str]) -> dict[str, object]:
    """The fields of Config that one setting fills. Raises ValueError with its fault."""
    if len(given) > 1:
        raise ValueError("both are set; keep one of them")
    for name, text in given.items():
        if name == setting.env:
            return {setting.name: setting.parse(text)}
        path = _path(text)
        value = setting.parse(read_secret(path))
        return {"token_file": path} if setting.name == "token" else {setting.name: value}
    return {}


def _exposed(setting: Setting, given: Mapping[str, str]) -> list[str]:
    """A warning for a secret's file that other users can read or write."""
    return [
        f"{name}: other users can read or write {text}; run `chmod 600` on it."
        for name, text in given.items()
        if name != setting.env and _is_exposed(_path(text))
    ]


def _is_exposed(path: Path) -> bool:
    """Root may let a group read its file: so Kubernetes hands secrets to one that runs as another user."""
    found = path.stat()
    return bool(found.st_mode & (0o037 if found.st_uid == 0 else 0o077))


def _unknown(environ: Mapping[str, str]) -> list[str]:
    """A warning for each SIDECAR_* variable that no setting has, with the nearest name."""
    known = [name for setting in SETTINGS for name in setting.names]
    unknown = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in known]
    return [
        f"{name}: no such setting; did you mean {difflib.get_close_matches(name, known, 1, cutoff=0)[0]}?"
        for name in unknown
    ]
