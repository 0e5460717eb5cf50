"""An event loop for callers that have none, and the refusal of callers that have one."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import UsageError
from holdfast.text import named, plural

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


_running: set[LoopThread] = set()
_REGISTER = "_register_atexit"  # private in `threading`; concurrent.futures uses it for its own threads


@cache
def _drain_before_threads() -> None:
    """When the program ends, let workers drain before Python waits for all threads and refuses to start more.

    A worker that drains still needs them for its handlers. `atexit` comes only after that.
    """
    getattr(threading, _REGISTER, atexit.register)(_drain_all)


def _drain_all() -> None:
    for thread in list(_running):
        thread.drain()


class LoopThread:
    """An event loop on a background thread, for callers that have none."""

    def __init__(
        self,
        closing: Callable[[], Coroutine[Any, Any, None]],
        *,
        draining: Callable[[], Coroutine[Any, Any, None]] | None = None,
        hurry: Callable[[], None] | None = None,
    ) -> None:
        """`closing` ends what runs on the loop, `draining` only what needs threads of its own, such as a worker.

        `hurry` is called on the loop if Ctrl-C is pressed while one of them is awaited.
        """
        self._closing = closing
        self._draining = draining
        self._hurry = hurry
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-sync", daemon=True)
        self._thread.start()
        self._process = os.getpid()
        _running.add(self)
        with contextlib.suppress(RuntimeError):  # the program has ended already
            _drain_before_threads()
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

    def drain(self) -> None:
        if self._draining is not None and os.getpid() == self._process:
            self._finish(self._draining())

    def stop(self) -> None:
        _running.discard(self)
        atexit.unregister(self.stop)
        if os.getpid() != self._process:
            return  # a fork has the object, but not its thread
        self._finish(self._closing())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _finish(self, ending: Coroutine[Any, Any, None]) -> None:
        waited = asyncio.run_coroutine_threadsafe(ending, self._loop)
        try:
            waited.result()
        except KeyboardInterrupt:
            if self._hurry is None:
                raise
            self._loop.call_soon_threadsafe(self._hurry)
            waited.result()


# What a process says while it stops: what it waits for, how long at most, and what hurries it.
#
# Nothing here stops anything, and a process that waits for nothing says nothing.


_JOBS = 3  # jobs that a process names when it stops
_REPEAT = 5.0  # seconds after which a process that stops says again what it waits for


class StopWait(NamedTuple):
    """What a process waits for when it stops; nothing if `number` is 0."""

    number: int
    words: str  # "2 jobs (mail.send 018f…, mail.send 0190…)"
    second: str  # what a second signal is for: "stop at once and hand them back"
    given_up: str  # what happens without more waiting: "2 jobs (…) are handed back"


def jobs_awaited(names: Sequence[str]) -> StopWait:
    """Jobs that a worker runs, each named by its kind and its id."""
    words = f"{plural(len(names), 'job')} ({named(names, _JOBS)})"
    them, are = ("it", "is") if len(names) == 1 else ("them", "are")
    return StopWait(len(names), words, f"stop at once and hand {them} back", f"{words} {are} handed back")


def workers_awaited(count: int) -> StopWait:
    """Worker processes, which say themselves what they run."""
    words = plural(count, "worker")
    hands = "hands back what it runs" if count == 1 else "hand back what they run"
    return StopWait(count, words, "stop at once and hand back what runs", f"{words} {hands}")


class StopNotice:
    """What a process says while it stops: what it waits for, how long at most, and what a second signal does.

    `awaited` is asked each time. With `repeats` it says every few seconds what it still waits for.
    """

    def __init__(
        self,
        awaited: Callable[[], StopWait],
        *,
        which: str = "",
        repeats: bool = True,
        say: Callable[[str], object],
    ) -> None:
        self._awaited = awaited
        self._which = which
        self._repeats = repeats
        self._say = say
        self._waiting: asyncio.Task[None] | None = None

    def begin(self, how: str | None, within: float) -> None:
        """At the first signal. `how` is what a person does who is in a hurry; None where nobody here hears of that."""
        awaited = self._awaited()
        if not awaited.number:
            return
        again = "" if how is None else f"; {how} to {awaited.second}"
        self._say(f"stopping{self._which}: waiting up to {within:g} s for {awaited.words}{again}")
        if self._repeats:
            self._waiting = asyncio.create_task(self._wait(within), name="what this process waits for")

    def hurry(self) -> None:
        """At the second signal."""
        self.end()
        if (awaited := self._awaited()).number:
            self._say(f"stopping{self._which} at once: {awaited.given_up}")

    def end(self) -> None:
        """Nothing is waited for any longer."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self, left: float) -> None:
        while left > 0:
            await asyncio.sleep(min(left, _REPEAT))
            left -= _REPEAT
            awaited = self._awaited()
            if not awaited.number:
                return
            if left > 0:
                self._say(f"stopping{self._which}: still waiting for {awaited.words}, up to {left:g} s more")
            else:
                self._say(f"stopping{self._which}: the time is over; {awaited.given_up}")


def again(number: int) -> str:
    """How a second signal is sent."""
    return "press Ctrl-C again" if number == signal.SIGINT else f"send {signal.Signals(number).name} again"
