"""What every server that a test starts needs: an account, a port, and a folder that goes when the test goes.

Only a process started here is ever stopped, and it is stopped even when the test process is killed with -9.
"""

import atexit
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TypedDict

# Below the range that systems give to clients: a client that retries while its server restarts could
# otherwise be given the server's port as its own, and connect to itself.
PORTS = range(20_000, 30_000)

MEMORY = Path("/dev/shm")
ROOM = 4 << 30

# Waits until the test process closes the pipe or dies. A pid file can be stale, so the process it names is
# stopped only if it has our folder on its command line.
GUARD = r"""
folder=$1 pidfile=$2
read -r _
pid=$(head -n 1 "$pidfile" 2>/dev/null)
ours() { { tr '\0' ' ' <"/proc/$pid/cmdline" || ps -o args= -p "$pid"; } 2>/dev/null | grep -qF "$folder"; }
if [ -n "$pid" ] && ours; then
    kill -QUIT "$pid"
    tries=0
    while ours && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
fi
cd / && rm -rf "$folder"
"""


class Account(TypedDict, total=False):
    """The arguments of `subprocess.Popen` that give up root; empty for an ordinary user."""

    user: int
    group: int
    extra_groups: list[int]


def unprivileged_account() -> Account:
    """The account for servers that refuse to run as root."""
    if os.geteuid() != 0:
        return Account()
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])
    raise RuntimeError("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody` to run it.")


def folder_in_memory() -> Path | None:
    """Where files need no disk, if there is room for those of a run."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    found = os.statvfs(MEMORY)
    return MEMORY if found.f_bavail * found.f_frsize > ROOM and not found.f_flag & os.ST_NOEXEC else None


def free_port() -> int:
    """A loopback port on which nobody listens now; use it soon."""
    for port in random.SystemRandom().sample(PORTS, k=100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"Tried 100 loopback ports between {PORTS.start} and {PORTS.stop}: none is free.")


class Workspace:
    """The temporary folder of one server, and the account that owns it.

    The server names the folder on its command line and writes its pid to `pidfile`. When this process closes
    the workspace or dies, a guard process stops the server if it still runs, and removes the folder.
    """

    def __init__(self, name: str, *, pidfile: str, in_memory: bool = False) -> None:
        """`in_memory`: if there is room, so that the server waits for no disk, whatever its settings."""
        self.account = unprivileged_account()
        self.path = Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-", dir=self._parent(in_memory)))
        if self.account:
            os.chown(self.path, self.account["user"], self.account["group"])
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", self.path, self.path / pidfile],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self.account,
        )
        atexit.register(self.close)

    def run(self, *command: str | Path) -> None:
        """Run a command to its end; raise `RuntimeError` with its output when it fails."""
        done = subprocess.run(
            command,
            cwd=self.path,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **self.account,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    def spawn(self, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start the server, out of reach of the terminal's Ctrl-C, its output appended to the log."""
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.path,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.account,
            )

    def log_tail(self, lines: int = 20) -> str:
        """The last lines that the server wrote."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def may_run(self, program: Path) -> bool:
        """Whether the account can reach and run `program`."""
        try:
            self.run(program, "--version")
        except PermissionError:
            return False
        return True

    def copy(self, tree: Path, to: Path) -> None:
        """Copy a folder to `to` in this one, for the account to read and run."""
        copy = self.path / to
        shutil.copytree(tree, copy, symlinks=True)
        for path in (copy, *copy.parents, *copy.rglob("*")):
            if path.is_relative_to(self.path):
                os.chown(path, self.account["user"], self.account["group"], follow_symlinks=False)

    def close(self) -> None:
        """Remove the folder, and stop at once a server that still runs in it."""
        atexit.unregister(self.close)
        self._guard.communicate()

    def _parent(self, in_memory: bool) -> Path | None:
        if in_memory and (memory := folder_in_memory()):
            return memory
        # Root's own TMPDIR may be closed to other accounts.
        return Path("/tmp") if self.account else None

    @property
    def _log(self) -> Path:
        return self.path / "server.log"


def end(process: subprocess.Popen[bytes], how: signal.Signals, *, within: float = 60) -> None:
    """Signal a process that `Workspace.spawn` started, and wait until it has gone."""
    process.send_signal(how)
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [line.split() for line in listed.splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]


def _environment() -> dict[str, str]:
    """Ours, without the PG* variables that would point a server or its tools at another cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}
