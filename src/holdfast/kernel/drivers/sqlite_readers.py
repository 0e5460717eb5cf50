"""Reads within bounds on SQLite: a few connections and threads of their own, which change nothing.

A slow read holds up neither the writer nor the other reads, and is interrupted when its time is over. A store in memory
has one connection alone, so there the writer's thread reads, under the same limits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from holdfast.clock import Clock
from holdfast.kernel.drivers.sqlite_file import SqliteFile

_MOST = 4


class SqliteReaders:
    def __init__(self, make: Callable[[], SqliteFile], clock: Clock, seconds: float) -> None:
        """`make` opens one more connection; `seconds` is how long one operation may take."""
        self._make = make
        self._clock = clock
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(_MOST, "holdfast-sqlite-reads")
        self._resting: list[SqliteFile] = []

    def submit(self, operation: Callable[..., Any], args: Any, kwargs: Any) -> Future[Any]:
        return self._threads.submit(self._read, operation, args, kwargs)

    def _read(self, operation: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            file = self._resting.pop()
        except IndexError:
            file = self._make()
        try:
            return read(file, operation, args, kwargs, self._clock, self._seconds)
        finally:
            self._resting.append(file)

    def stop(self) -> Future[None]:
        """Finish what was asked, then close; the answer comes when that is done."""
        ended: Future[None] = Future()
        threading.Thread(target=self._close, args=[ended], name="holdfast-sqlite-reads", daemon=True).start()
        return ended

    def _close(self, ended: Future[None]) -> None:
        self._threads.shutdown()
        for file in self._resting:
            file.close()
        ended.set_result(None)


def read(  # noqa: PLR0917  an operation, and what limits it
    file: SqliteFile, operation: Callable[..., Any], args: Any, kwargs: Any, clock: Clock, seconds: float
) -> Any:
    """Run an operation that may change nothing, on this thread, for so long at most."""
    until = clock.monotonic() + seconds
    return file.read(lambda: operation(file, *args, **kwargs), lambda: clock.monotonic() >= until)
