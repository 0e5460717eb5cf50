"""Pace: how long attempts take, which says how many jobs to have at hand."""

from __future__ import annotations

import statistics
from collections import deque

_SHORT = 0.05
_REMEMBERED = 33


class Pace:
    def __init__(self) -> None:
        self._durations: deque[float] = deque(maxlen=_REMEMBERED)

    def note(self, seconds: float) -> None:
        self._durations.append(seconds)

    @property
    def short(self) -> bool:
        """Whether attempts end so soon that the next ones should be here already."""
        return len(self._durations) == _REMEMBERED and statistics.median(self._durations) < _SHORT
