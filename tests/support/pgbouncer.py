"""A throw-away pgbouncer in front of a test server.

It pools by transaction, so two transactions of one client may meet two server sessions: whatever relies on
session state fails behind it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg

from tests.support.postgres import Server
from tests.support.processes import Workspace, end, free_port

CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={server_port} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
pidfile = {folder}/pgbouncer.pid
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 1000
server_reset_query =
ignore_startup_parameters = extra_float_digits,search_path
"""


class PgBouncer:
    """A pooler for the databases of `server`, between `start` and `close`."""

    def __init__(self, server: Server, *, pool_size: int = 20) -> None:
        self._program = find_pgbouncer()
        self._workspace = Workspace("pgbouncer", pidfile="pgbouncer.pid")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self._configuration = self._workspace.path / "pgbouncer.ini"
        self._configuration.write_text(
            CONFIGURATION.format(
                server_port=server.port, port=self.port, folder=self._workspace.path, pool_size=pool_size
            )
        )
        # The account of the pooler is not the one that wrote this.
        self._configuration.chmod(0o644)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def start(self) -> None:
        """Return when the pooler accepts connections, or raise `RuntimeError` with the end of its log."""
        self._process = self._workspace.spawn(self._program, self._configuration)
        self._wait_until_ready(self._process, within=30)

    def stop(self) -> None:
        """Stop at once, cutting every client."""
        if self._process is not None:
            end(self._process, signal.SIGQUIT)
            self._process = None

    def close(self) -> None:
        """Stop and remove everything; the object is of no use afterwards."""
        self.stop()
        self._workspace.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_until_ready(self, process: subprocess.Popen[bytes], *, within: float) -> None:
        deadline = time.monotonic() + within
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(psycopg.OperationalError):
                # The pooler's own console: it answers whether or not the server does.
                psycopg.connect(self.url("pgbouncer"), autocommit=True).close()
                return
            time.sleep(0.02)
        raise RuntimeError(f"pgbouncer did not start. The end of its log:\n{self._workspace.log_tail()}")


def find_pgbouncer() -> Path:
    """The program, also where it is not on an ordinary user's PATH."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"])
    if found := shutil.which("pgbouncer", path=places):
        return Path(found)
    raise RuntimeError("Found no pgbouncer. Install the system's package of that name.")
