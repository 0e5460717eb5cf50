"""The ports for time, chance and observation. Nothing else in Holdfast reads a clock or rolls a die.

Times that decide anything come from the database; this clock only measures how long this process has held
something, and paces its loops. The simulator puts its own in place of both.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.errors import Unavailable
from holdfast.observe import Bus, Event, Outages


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back and keep counting while the machine sleeps."""

    def wall_us(self) -> int:
        """Microseconds UTC; stamps ids and SQLite rows, decides no lease of another machine."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    # CLOCK_BOOTTIME continues during suspend; a worker that slept through its lease must notice.
    _source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def monotonic(self) -> float:
        return time.clock_gettime(self._source)

    def wall_us(self) -> int:
        return time.time_ns() // 1_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything nondeterministic a worker or client touches, apart from the store; and who listens to them."""

    clock: Clock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=lambda: random.Random(secrets.randbits(64)))
    events: Bus = field(default_factory=Bus)
    outages: Outages = field(default_factory=Outages)

    @contextmanager
    def watching(self, operation: object) -> Iterator[None]:
        """Around an operation of the store, in a driver: whether the store answered is noted."""
        begun = self.clock.monotonic()
        name = getattr(operation, "__qualname__", "")  # all closures of one function are one operation
        try:
            yield
        except Unavailable as problem:
            self.outages.failed(name, problem, begun)
            raise
        if self.outages.open:
            self.outages.succeeded(name, self.clock.monotonic())

    def try_again(self, problem: Unavailable) -> None:
        """A loop met this and tries again: the log says once that the store does not answer, and once that it does."""
        self.outages.tell(problem, self.clock.monotonic())

    def tell(self, name: str, measurements: Mapping[str, float | int], /, **metadata: Any) -> None:
        """Emit an event, if anybody listens. Where every job passes, ask `events.heard` before making its parts."""
        if self.events.heard:
            self.events.emit(Event(name, self.clock.wall_us(), measurements, metadata))
