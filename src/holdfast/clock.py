"""The ports for time, chance and observation. Nothing else in Holdfast reads a clock or rolls a die.

Times that decide anything come from the database; this clock only measures how long this process has held
something, and paces its loops. The simulator puts its own in place of both.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.observe import Bus, Event


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

    def tell(self, name: str, measurements: Mapping[str, float | int], /, **metadata: Any) -> None:
        """Emit an event, if anybody listens. Where every job passes, ask `events.heard` before making its parts."""
        if self.events.heard:
            self.events.emit(Event(name, self.clock.wall_us(), measurements, metadata))
