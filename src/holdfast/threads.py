"""An event loop for callers that have none."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.errors import UsageError

R = TypeVar("R")


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
                "this code already runs on the app's event loop: await the async call, run() in place of run_sync()."
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
