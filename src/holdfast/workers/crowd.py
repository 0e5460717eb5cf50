"""When a worker must look at the store itself, and when another's look will do.

At every moment a worker knows of a look that is not older than its own pause between looks: its own, or another's of
which it has heard. So work that nobody hinted at is found as soon as if it had looked by itself; and a worker that
hears nothing looks by itself, whatever the reason.

Nobody is chosen to look. Each draws when it will, most of them late; the first one tells the others, and they
draw again. Of a crowd of any size, one or two look in each pause, and if they die the next is only a little later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from holdfast.clock import Ports
from holdfast.kernel.crowd import Look
from holdfast.settings import Settings
from holdfast.workers.leaps import tolerance

_EARLIEST = 0.5  # of a pause
# How steeply the chances rise from there to the end of the pause. With this, two thirds draw the last tenth of that
# time; the first of 200 comes about in its middle, and until it has been heard of, hardly another begins.
_STEEP = 10.0


class Crowd:
    def __init__(self, ports: Ports, settings: Settings) -> None:
        self._ports = ports
        self._pause = min(settings.poll_interval, settings.sweep_interval).total_seconds()
        self._pause_leased = min(self._pause, settings.presence_grace.total_seconds() / 2)
        self._tolerance = tolerance(settings)
        self._asked_at = -math.inf  # our own last look, by our clock
        self._answered = 0  # the same, by the store's
        self._youngest = -math.inf  # no look that we know of was made before this moment of our clock
        self._told_at = -math.inf  # the same for looks that were announced, once we have looked ourselves
        self._limit = self._pause
        self._next = -math.inf  # our next look, if we hear of none
        self._asks_by = -math.inf  # the same, if every look we hear of found more than its note names
        self._due = math.inf  # when something is due that we saw
        self._latest = math.inf  # our next look, whatever we hear
        self._alone = True  # nobody looks for us

    def may_speak(self, now: float, *, hinted: bool) -> bool:
        """Whether a look that begins now is worth announcing: no look was announced for a while.

        A hint may make all of them look at once, and then it is a whole pause and more, by chance, so that few tell.
        But where hints never end, somebody does, and does what is done for everybody.
        """
        pause = self._limit * (1 + self._ports.random.random() / 2 if hinted else _EARLIEST)
        return pause <= now - self._told_at < math.inf

    def looked(self, asked_at: float, answered: int, *, telling: bool) -> None:
        """Note a look of our own, by our clock and by the store's."""
        self._asked_at, self._answered = asked_at, answered
        self._youngest = max(self._youngest, asked_at)
        if telling or self._told_at == -math.inf:
            self._told_at = asked_at

    def rest(self, limit: float, *, due: float | None, latest: float, alone: bool) -> None:
        """After a look: the longest pause, in how many seconds something is due, and by when to look in any case."""
        now = self._ports.clock.monotonic()
        self._limit, self._alone = limit, alone
        pause = limit if alone else self._drawn(limit)
        self._next = now + pause
        self._asks_by = now + self._drawn(self._pause)
        self._latest = max(latest, self._next)
        self._due = now + due if due is not None and due < pause else math.inf

    def heard(self, looks: Iterable[Look], *, many: bool) -> bool:
        """Take in that others have looked; False when we should look at once.

        Their looks count from when they were made, not from when we heard of them: by the store's clock, since our own
        last look. A worker that was stopped between its look and its note delays nobody. One that found more than it
        could tell (`many`) has looked after the dead for everybody; but some of what it found may be for us, so that we
        still look within our own pause.
        """
        now = self._ports.clock.monotonic()
        for each in looks:
            since = (each.at - self._answered) / 1e6
            if since > now - self._asked_at + self._tolerance:
                return False  # the store's clock has leapt, which each must judge for itself
            made_at = min(now, self._asked_at + since)
            self._told_at = max(self._told_at, made_at)
            if many:
                self._put_off_watching(each, made_at)
            elif made_at > self._youngest:
                self._youngest = made_at
                if not self._alone:
                    self._put_off(each)
        return True

    def _put_off(self, look: Look) -> None:
        """The younger look has seen everything that was due in ours."""
        self._limit = self._pause_leased if look.leased else self._pause
        self._due = math.inf
        self._next = self._youngest + self._drawn(self._limit)
        self._asks_by = self._youngest + self._drawn(self._pause)

    def _put_off_watching(self, look: Look, made_at: float) -> None:
        if not self._alone and made_at > self._asked_at:
            self._limit = self._pause_leased if look.leased else self._pause
            self._next = max(self._next, min(made_at + self._drawn(self._limit), self._asks_by))

    def _drawn(self, limit: float) -> float:
        late = math.log1p(self._ports.random.random() * math.expm1(_STEEP)) / _STEEP
        return limit * (_EARLIEST + (1 - _EARLIEST) * late)

    @property
    def left(self) -> float:
        """Seconds until our next look, as far as we know now."""
        return min(self._next, self._due, self._latest) - self._ports.clock.monotonic()
