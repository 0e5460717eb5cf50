"""The leash: a socket between a parent and the worker process that it started, on the child's standard input.

When the parent dies, however that happens, its end closes and the child drains. A child that cannot drain, because
something blocks its event loop, ends itself when its time is over: no process outlives its parent for longer. The child
says its last words on it, if it cannot start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable

_LEASH = 0  # standard input
_LAST_WORDS = 4_000  # bytes
_BEYOND = 4.0  # seconds beyond the time that a drain may take


def hold(loop: asyncio.AbstractEventLoop, stop: Callable[[], None], grace: float) -> None:
    """In the child: call `stop` when the parent is gone, and end this process if it is still there after `grace`."""

    def watch() -> None:
        while True:
            with contextlib.suppress(InterruptedError):
                if not _read():
                    break
        with contextlib.suppress(RuntimeError):  # the loop has closed: it leaves by itself
            loop.call_soon_threadsafe(stop)
        threading.Event().wait(grace + _BEYOND)
        os._exit(1)

    threading.Thread(target=watch, name="holdfast-leash", daemon=True).start()


def say_last_words(words: str) -> None:
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
