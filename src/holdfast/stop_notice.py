"""What a process says while it stops: what it waits for, how long at most, and what hurries it.

Nothing here stops anything, and a process that waits for nothing says nothing.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.shown_text import named, plural

_JOBS = 3  # jobs that a process names when it stops
_REPEAT = 5.0  # seconds after which a process that stops says again what it waits for


class Awaited(NamedTuple):
    """What a process waits for when it stops; nothing if `number` is 0."""

    number: int
    words: str  # "2 jobs (mail.send 018f…, mail.send 0190…)"
    second: str  # what a second signal is for: "stop at once and hand them back"
    given_up: str  # what happens without more waiting: "2 jobs (…) are handed back"


def jobs_awaited(names: Sequence[str]) -> Awaited:
    """Jobs that a worker runs, each named by its kind and its id."""
    words = f"{plural(len(names), 'job')} ({named(names, _JOBS)})"
    them, are = ("it", "is") if len(names) == 1 else ("them", "are")
    return Awaited(len(names), words, f"stop at once and hand {them} back", f"{words} {are} handed back")


def workers_awaited(count: int) -> Awaited:
    """Worker processes, which say themselves what they run."""
    words = plural(count, "worker")
    hands = "hands back what it runs" if count == 1 else "hand back what they run"
    return Awaited(count, words, "stop at once and hand back what runs", f"{words} {hands}")


class StopNotice:
    """What a process says while it stops: what it waits for, how long at most, and what a second signal does.

    `awaited` is asked each time. With `repeats` it says every few seconds what it still waits for.
    """

    def __init__(
        self,
        awaited: Callable[[], Awaited],
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
