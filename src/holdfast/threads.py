"""An event loop for callers that have none, and the refusal of callers that have one."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from holdfast.errors import UsageError

R = TypeVar("R")


def refuse_on_a_loop(name: str, instead: str | None = None) -> None:
    """Raise `UsageError` if this thread runs an event loop, which the call `name` would hold: a web server, perhaps.

    `instead` is what such code writes: without it, the call without `_sync`. A module that is imported while a loop
    runs, as uvicorn imports one, cannot await anything: its calls pass.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if not _importing():
        instead = instead or f"await {name.removesuffix('_sync')}(...)"
        raise UsageError(
            f"{name}() was called on a thread with a running event loop and would block it. Write `{instead}` here, as "
            f"also in a notebook, or call {name}() from a plain `def`: FastAPI runs those on a thread."
        )


def _importing() -> bool:
    """Whether a module is being imported here, and not by code that itself began a coroutine since."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_flags & inspect.CO_COROUTINE:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


class LoopThread:
    """An event loop on a background thread, for callers that have none."""

    def __init__(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._closing = closing
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-sync", daemon=True)
        self._thread.start()
        self._process = os.getpid()
        atexit.register(self.stop)  # a script that ends leaves no worker behind that others must find dead

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError(
                "this code runs on the app's own event loop, which cannot wait for itself: await the call."
            )
        if os.getpid() != self._process:
            coroutine.close()
            raise UsageError("this process was forked from one that had used the app: create the app after the fork.")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stop(self) -> None:
        atexit.unregister(self.stop)
        if os.getpid() != self._process:
            return  # a fork has the object, but not its thread
        self.run(self._closing())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
