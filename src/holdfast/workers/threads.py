"""A thread for each call of a handler that is not async and may be given up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ThreadEach(Executor):
    """A thread for each call. How many there are at once is the caller's business; one that hangs is left behind."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as problem:  # noqa: BLE001  it belongs to whoever waits
                future.set_exception(problem)

        threading.Thread(target=run, name="holdfast-call", daemon=True).start()
        return future
