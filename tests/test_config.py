"""The settings: sources and their order, every parser, faults all at once, what is shown and what is hidden."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.config import SETTINGS, Config, ConfigError, check_serve, is_loopback, load, masked, shown

TOKEN = "0123456789abcdef"
MIB = 1024 * 1024


def faults_of(action: Callable[[], object]) -> list[str]:
    """What a refused configuration is refused for."""
    with pytest.raises(ConfigError) as caught:
        action()
    return caught.value.faults


def secret_file(path: Path, text: str, mode: int = 0o600) -> Path:
    """A file as an operator would keep a secret."""
    path.write_text(text)
    path.chmod(mode)
    return path


def test_defaults_without_any_setting() -> None:
    """An empty environment gives the documented defaults, and they are those of a bare Config."""
    assert Config() == load({})
    assert load({}).database_url == "sqlite+aiosqlite:///a2a-tasks.db"
    assert (
        load({}).host,
        load({}).port,
        load({}).session_prefix,
        load({}).max_turn_bytes,
        load({}).max_response_bytes,
        load({}).statement_timeout,
        load({}).pool_size,
    ) == ("127.0.0.1", 8765, "chat-", 8 * MIB, 32 * MIB, 5.0, 5)


def test_table_and_config_have_the_same_names_and_defaults() -> None:
    """Each row of the table is a field of Config, documented by a sentence."""
    config = Config()
    fields = {field.name for field in dataclasses.fields(Config)} - {"token_file", "warnings"}
    assert fields == {setting.name for setting in SETTINGS}
    assert all(getattr(config, setting.name) == setting.default for setting in SETTINGS)
    assert all(setting.help.endswith(".") for setting in SETTINGS)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("database_url", "postgres://u:p@db/agent", "postgres://u:p@db/agent"),
        ("tasks_table", "agent.tasks_2", "agent.tasks_2"),
        ("tasks_table", "t" * 36, "t" * 36),
        ("session_prefix", "", ""),
        ("session_prefix", " chat_%", " chat_%"),
        ("token", TOKEN, TOKEN),
        ("tokens_file", "/run/tokens.toml", Path("/run/tokens.toml")),
        ("host", "::1", "::1"),
        ("port", "0", 0),
        ("port", "65535", 65535),
        ("allowed_hosts", "Console.Example, [fd00::1],", ("console.example", "fd00::1")),
        ("allowed_hosts", "*", ("*",)),
        ("allowed_hosts", "", ()),
        (
            "cors_origins",
            "https://console.example,http://[::1]:5173, tauri://localhost",
            ("https://console.example", "http://[::1]:5173", "tauri://localhost"),
        ),
        ("max_turn_bytes", "1000", 1000),
        ("max_turn_bytes", "512KiB", 512 * 1024),
        ("max_response_bytes", "64 MiB", 64 * MIB),
        ("statement_timeout", "5", 5.0),
        ("statement_timeout", "0.5s", 0.5),
        ("pool_size", "10", 10),
        ("prepare", "true", True),
        ("workers", "64", 64),
        ("workspace", "team-1.x", "team-1.x"),
        ("workspace", "w" * 64, "w" * 64),
        ("insecure_no_auth", "False", False),
        ("log_format", "json", "json"),
    ],
)
def test_accepted_text(name: str, text: str, value: object) -> None:
    """A setting's text becomes its value, from the environment and from a flag alike."""
    assert value == getattr(load({f"SIDECAR_{name.upper()}": text}), name)
    assert value == getattr(load({}, {name: text}), name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("database_url", " "),
        ("tasks_table", "tasks; drop"),
        ("tasks_table", "täsks"),
        ("tasks_table", "1tasks"),
        ("tasks_table", "a.b.c"),
        ("tasks_table", ".tasks"),
        ("tasks_table", "tasks."),
        ("tasks_table", "t" * 37),
        ("tasks_table", "s" * 64 + ".tasks"),
        ("token", ""),
        ("token", "0123456789abcde"),
        ("token", "0123456789abcdef é"),
        ("tokens_file", ""),
        ("host", ""),
        ("port", "65536"),
        ("port", "-1"),
        ("port", "٣"),
        ("port", "9" * 5000),
        ("port", "tcp://10.0.0.1:80"),
        ("allowed_hosts", "https://console.example"),
        ("allowed_hosts", "console.example:8443"),
        ("cors_origins", "*"),
        ("cors_origins", "null"),
        ("cors_origins", "console.example"),
        ("cors_origins", "https://console.example/"),
        ("cors_origins", "https://*.example"),
        ("cors_origins", "https://console.example:443"),
        ("max_turn_bytes", "0"),
        ("max_turn_bytes", "8MB"),
        ("max_response_bytes", "-1"),
        ("statement_timeout", "0"),
        ("statement_timeout", "5m"),
        ("statement_timeout", "nan"),
        ("pool_size", "0"),
        ("prepare", "yes"),
        ("workers", "0"),
        ("workers", "65"),
        ("workspace", ""),
        ("workspace", "a/b"),
        ("workspace", "ü"),
        ("workspace", "w" * 65),
        ("insecure_no_auth", ""),
        ("log_format", "xml"),
    ],
)
def test_refused_text(name: str, text: str) -> None:
    """A text that a setting does not take is one fault that begins with its name."""
    (fault,) = faults_of(lambda: load({f"SIDECAR_{name.upper()}": text}))
    assert fault.startswith(f"SIDECAR_{name.upper()}: ")


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    """One start tells everything that has to be corrected, each fault with its fix."""
    environ = {
        "SIDECAR_PORT": "high",
        "SIDECAR_PREPARE": "maybe",
        "SIDECAR_TOKEN": TOKEN,
        "SIDECAR_TOKEN_FILE": "/run/token",
        "SIDECAR_DATABASE_URL_FILE": str(tmp_path / "nowhere"),
    }
    assert [
        f"SIDECAR_DATABASE_URL_FILE: {tmp_path}/nowhere cannot be read (No such file or directory); "
        "correct the path or its permissions.",
        "SIDECAR_TOKEN and SIDECAR_TOKEN_FILE: both are set; keep one of them.",
        "SIDECAR_PORT: 'high' is not a whole number from 0 to 65535.",
        "SIDECAR_PREPARE: 'maybe' is neither true nor false.",
    ] == faults_of(lambda: load(environ))


def test_a_flag_wins_over_the_environment_in_either_spelling(tmp_path: Path) -> None:
    """A flag that names a file replaces the variable that holds the value: no conflict across sources."""
    url_file = secret_file(tmp_path / "url", "sqlite:///flag.db\n")
    environ = {"SIDECAR_PORT": "1", "SIDECAR_DATABASE_URL": "sqlite:///environment.db"}
    config = load(environ, {"port": "2", "database_url_file": str(url_file), "host": None})
    assert (config.port, config.database_url, config.host) == (2, "sqlite:///flag.db", "127.0.0.1")


def test_the_environment_wins_over_systemd_credentials(tmp_path: Path) -> None:
    """`$CREDENTIALS_DIRECTORY` provides the secrets that nothing stronger gives."""
    token_file = secret_file(tmp_path / "token", TOKEN)
    secret_file(tmp_path / "database_url", "sqlite:///credentials.db")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert load(environ).database_url == "sqlite:///credentials.db"
    assert (None, token_file) == (load(environ).token, load(environ).token_file)
    given = load(environ | {"SIDECAR_TOKEN": TOKEN})
    assert (given.token, given.token_file) == (TOKEN, None)


def test_a_token_file_is_checked_but_not_kept(tmp_path: Path) -> None:
    """The file's path stays in Config, its token does not: it may be rotated."""
    path = secret_file(tmp_path / "token", f"{TOKEN}\n")
    config = load({"SIDECAR_TOKEN_FILE": str(path)})
    assert (None, path, ()) == (config.token, config.token_file, config.warnings)
    path.write_text("short")
    assert faults_of(lambda: load({"SIDECAR_TOKEN_FILE": str(path)}))[0].startswith("SIDECAR_TOKEN_FILE: is shorter")


@pytest.mark.parametrize("content", [b"\xff\xfe", b""])
def test_an_unusable_token_file_is_a_fault(tmp_path: Path, content: bytes) -> None:
    """A file without text is named with its variable."""
    path = tmp_path / "token"
    path.write_bytes(content)
    assert faults_of(lambda: load({}, {"token_file": str(path)}))[0].startswith("SIDECAR_TOKEN_FILE: ")


def test_root_may_let_a_group_read(tmp_path: Path) -> None:
    """So Kubernetes hands a secret to a group; any other owner of a file that a group can read is told of it."""
    path = secret_file(tmp_path / "token", TOKEN, 0o440)
    assert (path.stat().st_uid != 0) == bool(load({"SIDECAR_TOKEN_FILE": str(path)}).warnings)


@pytest.mark.parametrize("mode", [0o604, 0o620])
def test_a_secret_that_others_can_read_is_a_warning(tmp_path: Path, mode: int) -> None:
    """A loose mode of a secret's file is said, but systemd's own files are trusted."""
    path = secret_file(tmp_path / "token", TOKEN, mode)
    (warning,) = load({"SIDECAR_TOKEN_FILE": str(path)}).warnings
    assert f"SIDECAR_TOKEN_FILE: other users can read or write {path}; run `chmod 600` on it." == warning
    assert load({"CREDENTIALS_DIRECTORY": str(tmp_path)}).warnings == ()


def test_an_unknown_name_is_a_warning_with_the_nearest_one() -> None:
    """A typing error in a variable's name is not silently ignored, and stops nothing."""
    config = load({"SIDECAR_SESION_PREFIX": "x", "SIDECAR_TOKENFILE": "/x", "OTHER": "y"})
    assert config.warnings == (
        "SIDECAR_SESION_PREFIX: no such setting; did you mean SIDECAR_SESSION_PREFIX?",
        "SIDECAR_TOKENFILE: no such setting; did you mean SIDECAR_TOKEN_FILE?",
    )


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (Config(token=TOKEN), []),
        (Config(token=TOKEN, host="0.0.0.0"), []),
        (Config(token_file=Path("/run/token")), []),
        (Config(tokens_file=Path("/run/tokens.toml")), []),
        (Config(), ["SIDECAR_TOKEN_FILE"]),
        (Config(host="localhost"), ["SIDECAR_TOKEN_FILE"]),
        (Config(insecure_no_auth=True), []),
        (Config(insecure_no_auth=True, host="localhost"), []),
        (Config(insecure_no_auth=True, host="::1"), []),
        (Config(insecure_no_auth=True, host="0.0.0.0"), ["SIDECAR_INSECURE_NO_AUTH"]),
        (Config(insecure_no_auth=True, host="::"), ["SIDECAR_INSECURE_NO_AUTH"]),
        (Config(insecure_no_auth=True, host="sidecar.example"), ["SIDECAR_INSECURE_NO_AUTH"]),
        (Config(insecure_no_auth=True, token=TOKEN), ["SIDECAR_INSECURE_NO_AUTH"]),
        (
            Config(insecure_no_auth=True, token=TOKEN, host="10.0.0.1"),
            ["SIDECAR_INSECURE_NO_AUTH", "SIDECAR_INSECURE_NO_AUTH"],
        ),
    ],
)
def test_who_may_serve(config: Config, named: list[str]) -> None:
    """Without a token nothing is served, but on a loopback address and on demand."""
    faults = faults_of(lambda: check_serve(config)) if named else []
    assert named == [fault.split(":")[0] for fault in faults]
    if not named:
        check_serve(config)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("127.0.0.1.example", False),
        ("localhost.example", False),
        ("2130706433", False),
        ("", False),
    ],
)
def test_loopback_names(host: str, expected: bool) -> None:
    """Only what surely stays on this machine is loopback."""
    assert expected == is_loopback(host)


@pytest.mark.parametrize(
    ("secret", "expected"),
    [
        (TOKEN, "***"),
        ("sqlite+aiosqlite:///a2a-tasks.db", "sqlite+aiosqlite:///a2a-tasks.db"),
        ("postgresql://db:5432/agent", "postgresql://db:5432/agent"),
        ("postgresql://user@db/agent", "postgresql://user@db/agent"),
        ("postgresql://user:pass@db/agent", "postgresql://user:***@db/agent"),
        ("postgresql://user:p@ss/w@rd@db/agent", "postgresql://user:***@db/agent"),
        ("postgresql://:pass@db/agent", "postgresql://:***@db/agent"),
        ("postgresql://db/agent?user=u&Password=pass&x=1", "postgresql://db/agent?user=u&Password=***&x=1"),
        ("postgresql://db/agent?sslpassword=pass", "postgresql://db/agent?sslpassword=***"),
    ],
)
def test_masking(secret: str, expected: str) -> None:
    """A URL stays readable without its passwords; any other secret is not shown at all."""
    assert expected == masked(secret)


def test_secrets_are_in_no_representation() -> None:
    """Neither `repr` nor the `config` command shows a token or a password."""
    config = Config(token=TOKEN, database_url="postgresql://user:hush@db/agent")
    rows = dict(shown(config))
    assert (rows["SIDECAR_TOKEN"], rows["SIDECAR_DATABASE_URL"]) == ("***", "postgresql://user:***@db/agent")
    assert not any(secret in f"{config!r}{rows}" for secret in (TOKEN, "hush"))
    assert not any(TOKEN[:15] in fault for fault in faults_of(lambda: load({"SIDECAR_TOKEN": TOKEN[:15]})))


def test_shown_settings_are_loaded_back() -> None:
    """What the `config` command prints is what an environment file may say."""
    config = Config(
        host="::1",
        port=9000,
        allowed_hosts=("a.example", "fd00::1"),
        cors_origins=("https://a.example",),
        statement_timeout=2.5,
        tokens_file=Path("/run/tokens.toml"),
        prepare=True,
    )
    assert config == load({name: text for name, text in shown(config) if text})


@pytest.mark.parametrize(
    "url",
    [
        "mysql://x/y",
        "nonsense",
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql://h/d?sslmode=maybe",
        "postgresql://h/d?x=1",
    ],
)
def test_unusable_database_url_is_a_fault(url: str) -> None:
    """A URL that no driver of ours can open is reported with the other faults, naming its setting."""
    with pytest.raises(ConfigError) as caught:
        load({"SIDECAR_DATABASE_URL": url, "SIDECAR_PORT": "x"})
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["SIDECAR_DATABASE_URL", "SIDECAR_PORT"]
