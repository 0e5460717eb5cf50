"""File locks beside a SQLite database: turns among writing processes, and signs of life.

Both live in the folder `<database>-locks`, on the same local file system, so that containers sharing the file
share the locks too. The kernel frees a lock when its process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from holdfast.errors import StoreUnavailable
from holdfast.kernel.database import ignore_change, merged

log = logging.getLogger("holdfast.presence")

_STEP = 0.0005
_RETAKE = 0.1
_LEAST_PATIENCE = 0.1


class WriterQueue:
    """Lets processes write one after the other, in turn, where SQLite's own wait would starve some.

    Only a courtesy: a process that is stopped in its turn, or as the next in line, must not stop the others, so after
    `patience` they continue without, and SQLite's own lock decides. A process that has once waited for nothing only
    tries, each time, until it was next and had its turn again: the stopped one may stay so for long.
    """

    def __init__(self, folder: Path, patience: float) -> None:
        self._patience = patience
        self._in_vain = False
        self._next = _open(folder / "next")
        self._write = _open(folder / "write")

    @contextlib.contextmanager
    def turn(self) -> Iterator[float]:
        """Wait for our turn, then have it; gives how much of the patience is left."""
        now = time.monotonic()
        until = now + self._patience
        waits_until = now if self._in_vain else until
        is_next = _acquire(self._next, waits_until)
        has_turn = _acquire(self._write, waits_until)
        self._in_vain = not (is_next and has_turn)
        fcntl.flock(self._next, fcntl.LOCK_UN)
        try:
            yield max(_LEAST_PATIENCE, until - time.monotonic())
        finally:
            fcntl.flock(self._write, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def turn_at_once(self) -> Iterator[bool]:
        """Have our turn if nobody else has it or waits for it; False: somebody does."""
        is_next = _acquire(self._next, 0)
        is_ours = is_next and _acquire(self._write, 0)
        if is_next:
            fcntl.flock(self._next, fcntl.LOCK_UN)
        try:
            yield is_ours
        finally:
            if is_ours:
                fcntl.flock(self._write, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._next)
        os.close(self._write)


class FilePresence:
    """A worker's sign of life: a lock on a file named by its number.

    A number is given out twice only when an older state of the database was restored under a worker that continues. The
    newcomer then waits for that worker to register again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[int, int] = {}
        self._keepers: dict[int, asyncio.Task[None]] = {}

    async def hold(self, worker: int, changed: Callable[[], None] = ignore_change) -> bool:
        await self.withdraw(worker)  # of a registration whose answer was lost
        if self._take(worker):
            return True
        log.warning(
            "worker number %s belongs to another live worker: an older state of the database was restored under it. "
            "The new worker starts without presence, and takes it when the other registers again.",
            worker,
        )
        self._keepers[worker] = asyncio.create_task(self._wait(worker, changed), name=f"presence of {worker}")
        return False

    def shows(self, worker: int) -> bool:
        return worker in self._held

    def disputed(self, worker: int) -> bool:
        return worker in self._keepers

    async def withdraw(self, worker: int) -> None:
        keeper = self._keepers.pop(worker, None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        handle = self._held.pop(worker, None)
        if handle is not None:
            (self._folder / f"worker-{worker}").unlink(missing_ok=True)
            os.close(handle)

    async def close(self) -> None:
        for keeper in self._keepers.values():
            keeper.cancel()
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)
        self._keepers.clear()
        for handle in self._held.values():
            os.close(handle)
        self._held.clear()

    async def _wait(self, worker: int, changed: Callable[[], None]) -> None:
        while not self._take(worker):  # noqa: ASYNC110  a lock on a file sets no event
            await asyncio.sleep(_RETAKE)
        changed()

    def _take(self, worker: int) -> bool:
        path = self._folder / f"worker-{worker}"
        handle = _open(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:  # else its holder removed it meanwhile, and nobody would see our lock
                self._held[worker] = handle
                return True
        except BlockingIOError:
            pass
        os.close(handle)
        return False

    async def absent(self, workers: Iterable[int]) -> set[int]:
        return {worker for worker in workers if worker not in self._held and self._is_free(worker)}

    def _is_free(self, worker: int) -> bool:
        path = self._folder / f"worker-{worker}"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(handle)
        path.unlink(missing_ok=True)
        return True


def lock_folder(file: Path) -> Path:
    """The folder of a database's locks, made if it is not there."""
    folder = file.with_name(f"{file.name}-locks")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as problem:
        raise StoreUnavailable(
            f"the locks beside {file} cannot be created: {problem}. Make its folder writable."
        ) from problem
    return folder


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _acquire(handle: int, until: float) -> bool:
    """False when the lock could not be had until then."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_STEP)
        else:
            return True


# Hints between processes that share a SQLite file: small datagrams, sent after a commit, allowed to get lost.
#
# Each listening process binds a socket in a private folder named by the file; a sender writes to all of them and
# never waits. Where the sockets cannot be had, polling alone finds the work, later.


LARGEST = 4096
hints_log = logging.getLogger("holdfast.hints")


def runtime_folder(database: Path) -> Path:
    """A private folder for this database's sockets; short, because socket addresses are."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    root = Path(base) if base and Path(base).is_dir() else Path(tempfile.gettempdir())
    name = hashlib.sha256(str(database).encode()).hexdigest()[:16]
    return root / f"holdfast-{os.getuid()}-{name}"


class SqliteHints:
    """One process's ear and mouth."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mouth = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._mouth.setblocking(False)
        self._ear: socket.socket | None = None
        self._address: Path | None = None

    def listen(self, loop: asyncio.AbstractEventLoop, heard: Callable[[str], None]) -> None:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if self._folder.stat().st_uid != os.getuid() or self._folder.stat().st_mode & 0o077:
                raise PermissionError(f"{self._folder} is not private")
            self._address = self._folder / f"{os.getpid()}-{id(self):x}"
            self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._ear.setblocking(False)
            self._ear.bind(str(self._address))
        except OSError as problem:
            hints_log.warning("no wake-ups between processes (%s); work is found by polling", problem)
            self._ear = None
            return
        loop.add_reader(self._ear, self._receive, heard)

    def send(self, note: str) -> None:
        """Tell every other process; called on any thread."""
        try:
            addresses = list(self._folder.iterdir())
        except OSError:
            return
        data = note.encode() if len(note) <= LARGEST else b"look"
        for address in addresses:
            if address == self._address:
                continue
            try:
                self._mouth.sendto(data, str(address))
            except (ConnectionRefusedError, FileNotFoundError):
                address.unlink(missing_ok=True)
            except OSError:
                continue  # its buffer is full, so it has hints enough to wake up

    def close(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        if self._ear is not None and loop is not None:
            loop.remove_reader(self._ear)
            self._ear.close()
        if self._address is not None:
            self._address.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._folder.rmdir()
        self._mouth.close()

    def _receive(self, heard: Callable[[str], None]) -> None:
        assert self._ear is not None
        with contextlib.suppress(BlockingIOError):
            while data := self._ear.recv(LARGEST):
                heard(data.decode(errors="replace"))


def tell(folder: Path, notes: Iterable[str]) -> None:
    """Send hints without listening for any: every process hears them, this one too. Nothing is raised."""
    with contextlib.suppress(OSError):  # no socket to be had; polling finds the work
        mouth = SqliteHints(folder)
        try:
            for note in merged(notes, LARGEST):
                mouth.send(note)
        finally:
            mouth.close()
