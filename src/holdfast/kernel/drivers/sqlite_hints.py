"""Hints between processes that share a SQLite file: small datagrams, sent after a commit, allowed to get lost.

Each listening process binds a socket in a private folder named by the file; a sender writes to all of them and
never waits. Where the sockets cannot be had, polling alone finds the work, later.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.kernel.hints import merged

LARGEST = 4096
log = logging.getLogger("holdfast.hints")


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
            log.warning("no wake-ups between processes (%s); work is found by polling", problem)
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
