"""Who holds the event loop: each callback that costs its thread too much CPU time, with what it was doing.

CPU time, because a busy machine changes it little, and of one thread, because others may work as long as they like.
What a test itself does on its loop does not count: somebody of `holdfast` is among the frames that were seen.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import holdfast

PATIENCE = 0.05  # seconds of CPU
_LOOK = 0.005
_OURS = str(Path(holdfast.__file__).parent)


class HeldLoop:
    """What held the loop of this thread, in words."""

    def __init__(self, patience: float) -> None:
        self.found: list[str] = []
        self.unseen: list[float] = []  # seconds of what was too quick to look at, or one call of C
        self._patience = patience
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._begun: float | None = None  # CPU time at the beginning of the callback that runs
        self._stack: list[str] = []
        self._over = threading.Event()

    def run(self, handle: asyncio.Handle, genuine: Callable[[asyncio.Handle], None]) -> None:
        if threading.get_ident() != self._thread or self._begun is not None:
            genuine(handle)
            return
        self._begun, self._stack = time.thread_time(), []
        try:
            genuine(handle)
        finally:
            took, self._begun = time.thread_time() - self._begun, None
            if took > self._patience and self._stack:
                self.found.append(f"{took * 1_000:.0f} ms of CPU: {' < '.join(self._stack)}")
            elif took > self._patience:
                self.unseen.append(took)

    def watch(self) -> None:
        """In a thread of its own: look at what runs once it has had half of its time."""
        while not self._over.wait(_LOOK):
            begun = self._begun
            if begun is None or self._stack or time.clock_gettime(self._clock) - begun < self._patience / 2:
                continue
            frame = sys._current_frames().get(self._thread)
            if self._begun == begun:
                self._stack = _named(frame)

    def end(self) -> None:
        self._over.set()


def _named(frame: FrameType | None) -> list[str]:
    """The innermost frames, if one of ours is among all of them."""
    frames = traceback.extract_stack(frame)[::-1]
    if not any(each.filename.startswith(_OURS) for each in frames):
        return []
    return [f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in frames[:8]]


@contextmanager
def loop_watched(patience: float = PATIENCE) -> Iterator[HeldLoop]:
    """Watch the loops that this thread runs."""
    watch, genuine = HeldLoop(patience), asyncio.Handle._run

    def run(handle: asyncio.Handle) -> None:
        watch.run(handle, genuine)

    setattr(asyncio.Handle, "_run", run)  # noqa: B010  a method of asyncio's
    looking = threading.Thread(target=watch.watch, name="held loop", daemon=True)
    looking.start()
    try:
        yield watch
    finally:
        setattr(asyncio.Handle, "_run", genuine)  # noqa: B010
        watch.end()
        looking.join()
