"""Slots: how many attempts of each sort one worker runs at once, and what waits for a slot here.

Every definition belongs to a line. A line that is full takes nothing more, and keeps no other line from taking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from holdfast.settings import Settings
from holdfast.workers.holdings import Holding

JOBS, RUNS, BATCHED, TOOLS = "jobs", "runs", "batched", "tools"


class Line:
    def __init__(self, limit: int, ahead: int) -> None:
        """`ahead`: how many more to have at hand while attempts are short."""
        self.limit = limit
        self.running = 0
        self.ready: deque[Holding] = deque()
        self._ahead = ahead

    def room(self, *, short: bool) -> int:
        return self.limit + (self._ahead if short else 0) - self.running - len(self.ready)

    @property
    def free(self) -> int:
        return self.limit - self.running

    @property
    def is_busy(self) -> bool:
        return len(self.ready) >= self.free

    def next(self) -> Holding | None:
        """The one whose turn it is, counted as running from now on."""
        if not self.ready or self.running >= self.limit:
            return None
        self.running += 1
        return self.ready.popleft()


def lines_of(settings: Settings) -> Mapping[str, Line]:
    slots, prefetch = settings.concurrency, settings.prefetch
    tools = settings.max_concurrent_tools
    return {
        JOBS: Line(slots, slots * prefetch),
        RUNS: Line(settings.max_concurrent_streaming_runs, 0),
        BATCHED: Line(settings.max_concurrent_runs, 0),
        TOOLS: Line(tools, tools * prefetch),
    }
