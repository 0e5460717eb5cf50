"""The leash: a socket between a parent and the worker process that it started, on the child's standard input.

When the parent dies, however that happens, its end closes and the child drains. A child that does not work yet ends at
once. One that cannot drain, because something blocks its event loop, ends itself when its time is over: no process
outlives its parent for longer. The child says its last words on it, if it cannot start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

_LEASH = 0  # standard input
_LAST_WORDS = 4_000  # bytes
_BEYOND = 4.0  # seconds beyond the time that a drain may take


class Drain(NamedTuple):
    """How a child that works stops: `stop` is called on its loop, and `grace` seconds are left to it."""

    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None]
    grace: float


class ChildEnd:
    """The child's end, watched as soon as it is made: the program's import, too, may take for ever."""

    def __init__(self) -> None:
        self._drain: Drain | None = None
        self._deciding = threading.Lock()
        threading.Thread(target=self._watch, name="holdfast-leash", daemon=True).start()

    def works(self, drain: Drain) -> None:
        """From now on the child drains when its parent is gone."""
        with self._deciding:
            self._drain = drain

    def _watch(self) -> None:
        while True:
            with contextlib.suppress(InterruptedError):
                if not _read():
                    break
        with self._deciding:
            if self._drain is None:
                os._exit(1)
        drain = self._drain
        with contextlib.suppress(RuntimeError):  # the loop has closed: it leaves by itself
            drain.loop.call_soon_threadsafe(drain.stop)
        threading.Event().wait(drain.grace + _BEYOND)
        os._exit(1)


def send_last_words(words: str) -> None:
    """In the child: tell the parent why it cannot work. A parent that does not listen is not told."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(_LEASH)) as leash:
        leash.send(words.encode(errors="replace")[:_LAST_WORDS], socket.MSG_DONTWAIT)


def _read() -> bytes:
    try:
        return os.read(_LEASH, 1024)
    except ConnectionResetError:
        return b""


class Leash:
    """The parent's end."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.end = self._theirs.fileno()  # the child's standard input

    def given(self) -> None:
        """The child has its end: ours must be the only one that keeps it from draining."""
        self._theirs.close()

    def last_words(self) -> str:
        """What the child said before it ended; the leash is closed then."""
        self.given()
        try:
            words = self._ours.recv(_LAST_WORDS)
        except OSError:
            words = b""
        self._ours.close()
        return words.decode(errors="replace").strip()
