"""Throttling: wrong keys by address, and calls by principal. One client cannot use up what others may do."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import AbstractAsyncContextManager, nullcontext

from holdfast.clock import Clock

FAILURES = 5  # wrong keys that one address may show in a minute before their answers are delayed
DELAY = 1.0  # seconds
_MINUTE = 60.0
_ADDRESSES = 10_000  # that are remembered, the latest ones
_AT_ONCE = 4  # keys of barred addresses that are judged at the same time


class FailedKeys:
    """Who has shown wrong keys in the last minute. Their keys are judged too, but only a few at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._judging = asyncio.Semaphore(_AT_ONCE)
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def turn(self, address: str) -> AbstractAsyncContextManager[None]:
        """Around the judgement of a key: those who guess do not keep the store from everybody else."""
        return self._judging if self.is_barred(address) else nullcontext()

    def is_barred(self, address: str) -> bool:
        times = self._failures.get(address)
        if times is None:
            return False
        while times and times[0] <= self._clock.monotonic() - _MINUTE:
            times.popleft()
        if not times:
            del self._failures[address]
        return len(times) >= FAILURES

    def note(self, address: str) -> None:
        times = self._failures.setdefault(address, deque(maxlen=FAILURES))
        times.append(self._clock.monotonic())
        self._failures.move_to_end(address)
        if len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)


class Rates:
    """How often each principal called what is limited, in the minute under way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._minute = 0
        self._calls: dict[tuple[str, str], int] = {}

    def allows(self, principal: str, command: str, most: int) -> bool:
        """Count a call; is it within the limit?"""
        minute = int(self._clock.monotonic() // _MINUTE)
        if minute != self._minute:
            self._minute = minute
            self._calls.clear()
        calls = self._calls[principal, command] = self._calls.get((principal, command), 0) + 1
        return calls <= most
