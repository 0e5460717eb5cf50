"""Slots: how many attempts of each sort one worker runs at once, and what waits for a slot here.

Every definition belongs to a line. A line that is full takes nothing more, and keeps no other line from taking.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping

from holdfast.settings import Settings
from holdfast.workers.definitions import Registry
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

    def put(self, holding: Holding) -> None:
        """Let it wait for a slot. What was lost before goes first: it was in the store before the others."""
        if holding.lease.rescues:
            self.ready.insert(sum(other.lease.rescues > 0 for other in self.ready), holding)
        else:
            self.ready.append(holding)

    def take_out(self, holding: Holding) -> bool:
        """It does not wait here any more; False when it did not."""
        if holding not in self.ready:
            return False
        self.ready.remove(holding)
        return True

    def overstaying(self, since: float) -> list[Holding]:
        """Take out those that were lost more than once and have waited here since then. Who dies beside them would cost
        them one more rescue before they have run, so they go back to the store, where a free worker finds them."""
        found = [holding for holding in self.ready if holding.lease.rescues > 1 and holding.claimed_at <= since]
        for holding in found:
            self.ready.remove(holding)
        return found

    @property
    def free(self) -> int:
        return self.limit - self.running

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


def taken(lines: Mapping[str, Line], registry: Registry) -> str:
    """As JSON, for each line that is served: how many slots it has, and how many of them are taken."""
    served = {definition.line for definition in list(registry.definitions.values())} or {JOBS}
    return json.dumps({name: [line.limit, line.running] for name, line in lines.items() if name in served})
