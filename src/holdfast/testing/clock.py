"""The lab's clock: time that stands still until a test moves it.

The database's time moves by `advance` alone, so no lease, deadline or schedule runs out behind a test's back. What the
runtime itself sleeps passes on its monotonic clock too: a pause before the next try must end, or nothing could give
up. A breakpoint, or a handler that blocks the loop for an hour, costs it nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from holdfast import durations
from holdfast.clock import SystemClock
from holdfast.durations import Duration
from holdfast.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Follower(Protocol):
    """Someone who must hear of every step of the time."""

    longest_step_us: int | None  # more at once, and it would lose what it holds

    async def follow(self, us: int) -> None:
        """It is `us` now."""


class Sleeper(NamedTuple):
    until: float
    woken: asyncio.Future[None]


class LabClock:
    """The clock of one lab: `await lab.clock.advance("1h")`, `lab.clock.now()`. It is also the app's clock port."""

    def __init__(self, start: datetime | None = None) -> None:
        """It stands at `start`, by default at the moment of its making."""
        if start is not None and start.tzinfo is None:
            raise UsageError(f"{start!r} has no time zone; write datetime(..., tzinfo=UTC).")
        self._us = SystemClock().wall_us() if start is None else (start - _EPOCH) // timedelta(microseconds=1)
        self._seconds = 0.0
        self._sleepers: list[Sleeper] = []
        self._followers: list[Follower] = []

    def now(self) -> datetime:
        """The time, as the database and the workers of this lab see it."""
        return _EPOCH + timedelta(microseconds=self._us)

    async def advance(self, by: Duration) -> None:
        """Let time pass. A job that runs meanwhile keeps its lease: its worker's heart beats as often as it must."""
        end = self._us + durations.microseconds(by)
        while self._us < end:
            limits = [each.longest_step_us for each in self._followers if each.longest_step_us is not None]
            step = min([end - self._us, *limits])
            self._us += step
            self._pass(self._seconds + step / 1e6)
            for follower in list(self._followers):
                await follower.follow(self._us)

    @contextlib.contextmanager
    def followed_by(self, follower: Follower) -> Iterator[None]:
        self._followers.append(follower)
        try:
            yield
        finally:
            self._followers.remove(follower)

    def monotonic(self) -> float:
        return self._seconds

    def wall_us(self) -> int:
        return self._us

    async def sleep(self, seconds: float) -> None:
        """Until this much time has passed: because a test advanced it, or because it really did."""
        sleeper = Sleeper(self._seconds + seconds, asyncio.get_running_loop().create_future())
        self._sleepers.append(sleeper)
        try:
            async with asyncio.timeout(seconds):
                await sleeper.woken
        except TimeoutError:
            self._pass(sleeper.until)
        finally:
            self._sleepers.remove(sleeper)

    def _pass(self, until: float) -> None:
        self._seconds = max(self._seconds, until)
        for sleeper in list(self._sleepers):
            if sleeper.until <= self._seconds:
                with contextlib.suppress(RuntimeError):  # its loop has closed
                    sleeper.woken.get_loop().call_soon_threadsafe(_wake, sleeper.woken)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
