"""Caps: how much one principal, one address and one process may ask for at once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.clock import Clock
from holdfast.http.security.denials import too_many
from holdfast.shown_text import plural

BODY = 8 * 1024 * 1024
HEADERS = 64 * 1024
HEADER_SECONDS = 10.0  # within which headers must be here, with `holdfast serve`
BODY_SECONDS = 30.0  # within which a body must be here: who drips it holds a connection for no longer
TAKE_SECONDS = 10.0  # within which a client must take the next `TAKE_BYTES` that wait for it, with `holdfast serve`
TAKE_BYTES = 10_000
STREAMS_EACH, STREAMS_ALL = 20, 2_000
_REMEMBERED = 10_000  # principals or addresses


class RateCap:
    """So many at once, and so many a second from then on, for each name."""

    def __init__(self, clock: Clock, *, burst: float, a_second: float, what: str) -> None:
        self._clock = clock
        self._burst, self._pace, self._what = burst, a_second, what
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> None:
        """`Denied` when this name has had its share."""
        now = self._clock.monotonic()
        left, at = self._left.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._pace)
        self._left[name] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > _REMEMBERED:
            self._left.popitem(last=False)
        if left < 1:
            raise too_many(f"too many {self._what} from {name}.", max(1, round((1 - left) / self._pace)))


class StreamCounts:
    """The streams that are open in this process."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return self._open.total()

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Around a stream; `Denied` when this principal, or the process, has too many."""
        if self._open[name] >= STREAMS_EACH or self.open >= STREAMS_ALL:
            raise too_many(f"{name} has {plural(self._open[name], 'stream')} open, and the process {self.open}.", 5)
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]
