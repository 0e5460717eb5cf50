"""When a failed job runs again. Pure: an attempt's number in, a delay out."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, Self

from holdfast import durations, validation
from holdfast.durations import Duration
from holdfast.errors import BadSetting

Backoff = Literal["constant", "exponential", "quartic"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how late a failed job is tried again.

    `constant` waits `base` each time; `exponential` doubles it; `quartic` waits attempt^4 times `base`
    (1 s, 16 s, 81 s, …), and never less than `base`. `jitter` spreads the delay by that share to both sides, so
    that jobs which failed together do not come back together. `attempts=None` takes the app's `max_attempts`.
    """

    attempts: int | None = None
    backoff: Backoff = "exponential"
    base: Duration = "1s"
    cap: Duration = "1h"
    jitter: float = 0.1

    def __post_init__(self) -> None:
        durations.microseconds(self.base)
        durations.microseconds(self.cap)
        if self.attempts is not None:
            validation.at_least_one(self.attempts, "attempts")
        if self.backoff not in ("constant", "exponential", "quartic"):
            raise BadSetting(f"backoff must be constant, exponential or quartic; got {self.backoff!r}.")
        if not 0 <= self.jitter <= 1:
            raise BadSetting(f"jitter must be a share between 0 and 1; got {self.jitter}.")

    def delay_us(self, attempt: int, chance: random.Random) -> int:
        """The pause after attempt number `attempt` (the first is 1)."""
        cap = durations.microseconds(self.cap)
        delay = min(cap, durations.microseconds(self.base) * self._growth(attempt))
        spread = 1 + self.jitter * chance.uniform(-1, 1)
        least = min(delay, durations.microseconds(self.base)) if self.backoff == "quartic" else 0
        return min(cap, max(least, round(delay * spread)))

    def _growth(self, attempt: int) -> int:
        match self.backoff:
            case "constant":
                return 1
            case "exponential":
                return 1 << min(attempt - 1, 62)
            case "quartic":
                return int(attempt**4)

    @classmethod
    def none(cls) -> Self:
        return cls(attempts=1)
