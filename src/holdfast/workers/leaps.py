"""Leaps of the store's clock, seen by each process that compares it with its own monotonic clock.

An answer of the store was made between the moment the question was sent and the moment the answer came, so the two
clocks are apart by something between two bounds. When the bounds of two answers do not meet, one of the clocks has
leapt; a slow answer only makes its bounds wider. Clocks that merely drift apart do not matter: only an answer and the
one before it are compared.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.settings import Settings

_TOLERANCE = 5.0


def tolerance(settings: Settings) -> float:
    """Seconds that clocks may be set by without further ado: far less than a lease has left when it is renewed."""
    return min(_TOLERANCE, settings.lease_ttl.total_seconds() / 4)


class _ClockOffset(NamedTuple):
    """By how many seconds the store's clock is ahead of ours: at least, at most. `asked_at` is ours."""

    least: float
    most: float
    asked_at: float


class StoreClock:
    def __init__(self, clock: Clock, tolerance: float) -> None:
        self._clock = clock
        self._tolerance = tolerance
        self._last: _ClockOffset | None = None

    @property
    def is_new(self) -> bool:
        """There is nothing yet to compare an answer with."""
        return self._last is None

    def leap(self, now_us: int, asked_at: float) -> float:
        """Seconds by which the store's clock has leapt since the last answer that was noted, at the least.

        Negative: it went back. Zero: it did not leap by more than the tolerance, as far as anyone can tell, or there is
        nothing to compare it with.
        """
        last, apart = self._last, self._apart(now_us, asked_at)
        if last is None:
            return 0.0
        ahead, back = apart.least - last.most, last.least - apart.most
        return ahead if ahead > self._tolerance else -back if back > self._tolerance else 0.0

    def note(self, now_us: int, asked_at: float) -> float:
        """The same, and this answer is the one that the next is compared with."""
        leap = self.leap(now_us, asked_at)
        self._last = self._apart(now_us, asked_at)
        return leap

    def leap_us(self, now_us: int, asked_at: float, ttl_us: int) -> int:
        """The same in microseconds, for leases that were renewed when the last answer was noted.

        No leap forward, when that is a whole lease ago: then they may have ended in truth.
        """
        leap = round(self.leap(now_us, asked_at) * 1e6)
        if self._last is None or (self._clock.monotonic() - self._last.asked_at) * 1e6 >= ttl_us:
            return min(0, leap)
        return leap

    def _apart(self, now_us: int, asked_at: float) -> _ClockOffset:
        now = now_us / 1e6
        return _ClockOffset(now - self._clock.monotonic(), now - asked_at, asked_at)
