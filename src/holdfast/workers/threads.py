"""Threads for calls that are not async and may be given up: a bounded number of them, one for each call.

A thread cannot be stopped. A caller that gives a call up continues without it, but its thread stays until the call
returns, if it ever does. So it keeps its place among the threads: a call that hangs every time uses up its own share of
them, and is then refused, rather than all the memory of the process.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.text import plural

R = TypeVar("R")

log = logging.getLogger("holdfast.worker")

NO_THREAD = "no_thread"
_LAST_WORDS = 1.0  # seconds for a call to return once it was given up, before that is logged


class NoThread(Exception):
    """A call was not started: too many threads are taken by calls that were given up and have not returned."""


class _Call:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.future: Future[tuple[Any, BaseException | None]] = Future()  # some problems a future cannot carry
        self.hangs = False


class Threads:
    """At most `limit` threads at once. A kind of which `each` calls were given up and hang is not called again."""

    def __init__(self, limit: int, each: int) -> None:
        self._limit = limit
        self._each = each
        self._calls: set[_Call] = set()
        self._changing = threading.Lock()

    async def run(self, kind: str, function: Callable[[], R]) -> R:
        """What a function returns, called on a thread of its own; `NoThread` when there is none for this kind.

        A caller that is cancelled while it runs gives it up: what it returns then is worth nothing.
        """
        call = self._begin(kind, function)
        result: R
        try:
            result, problem = await asyncio.shield(asyncio.wrap_future(call.future))
        except asyncio.CancelledError:
            if self._give_up(call):
                asyncio.get_running_loop().call_later(_LAST_WORDS, self._tell, call)
            raise
        if problem is not None:
            raise problem
        return result

    @property
    def hanging(self) -> tuple[int, int]:
        """How many threads there may be, and how many are in calls that were given up. Safe on any thread."""
        return self._limit, sum(self._hanging().values())

    def _hanging(self) -> Counter[str]:
        with self._changing:
            return Counter(call.kind for call in self._calls if call.hangs)

    def _begin(self, kind: str, function: Callable[[], Any]) -> _Call:
        hanging = self._hanging()
        if hanging[kind] >= self._each or len(self._calls) >= self._limit:
            raise NoThread(
                f"{kind} was not started: {_shown(hanging)} of this worker's {plural(self._limit, 'thread')} hang in "
                f'calls that timed out or were cancelled. Declare what may hang with isolate="process", which a '
                f"timeout really ends, and start the worker again."
            )
        call = _Call(kind)
        with self._changing:
            self._calls.add(call)
        threading.Thread(target=self._run, args=(call, function), name="holdfast-call", daemon=True).start()
        return call

    def _run(self, call: _Call, function: Callable[[], Any]) -> None:
        result, problem = None, None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001  it belongs to the waiting caller
            problem = raised
        with self._changing:
            self._calls.discard(call)
        call.future.set_result((result, problem))

    def _give_up(self, call: _Call) -> bool:
        """Whether it still runs."""
        with self._changing:
            call.hangs = call in self._calls
        return call.hangs

    def _tell(self, call: _Call) -> None:
        if call in self._calls:
            said = (
                "a call of %s was abandoned and has not returned: %s of %d threads hang. "
                'A timeout can end calls with isolate="process".'
            )
            log.warning(said, call.kind, _shown(self._hanging()), self._limit, extra={"kind": call.kind})


def _shown(hanging: Counter[str]) -> str:
    kinds = ", ".join(f"{count} in {kind}" for kind, count in hanging.most_common(3))
    return f"{sum(hanging.values())} ({kinds})"
