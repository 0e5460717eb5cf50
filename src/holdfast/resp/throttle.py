"""Throttling: wrong keys by address, and calls by principal. One client cannot use up what others may do."""

from __future__ import annotations

from collections import OrderedDict, deque

from holdfast.clock import Clock

FAILURES = 5  # wrong keys that one address may show in a minute
_MINUTE = 60.0
_ADDRESSES = 10_000  # that are remembered, the latest ones


class FailedKeys:
    """Who has shown wrong keys in the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

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
