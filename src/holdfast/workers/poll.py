"""The poll: looks at the store, and what follows from what they show.

A look finds whatever a hint could have said. In a crowd one worker looks for all of them; see `crowd`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.clock import Ports
from holdfast.kernel.claim import LookNote, SharedLook, tell_look
from holdfast.kernel.database import Database, urgent
from holdfast.kernel.rows import Observation
from holdfast.kernel.workers import look
from holdfast.settings import Settings
from holdfast.workers.duties import Duties
from holdfast.workers.leaps import tolerance
from holdfast.workers.sweeper import Sweeper

# When a worker must look at the store itself, and when another's look will do.
#
# At every moment a worker knows of a look that is not older than its own pause between looks: its own, or another's
# of
# which it has heard. So work that nobody hinted at is found as soon as if it had looked by itself; and a worker that
# hears nothing looks by itself, whatever the reason.
#
# Nobody is chosen to look. Each draws when it will, most of them late; the first one tells the others, and they
# draw again. Of a crowd of any size, one or two look in each pause, and if they die the next is only a little later.


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

    def looked(self, asked_at: float, answered: int, *, speaking: bool) -> None:
        """Note a look of our own, by our clock and by the store's."""
        self._asked_at, self._answered = asked_at, answered
        self._youngest = max(self._youngest, asked_at)
        if speaking or self._told_at == -math.inf:
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

    def heard(self, looks: Iterable[SharedLook], *, many: bool) -> bool:
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

    def _put_off(self, look: SharedLook) -> None:
        """The younger look has seen everything that was due in ours."""
        self._limit = self._pause_leased if look.leased else self._pause
        self._due = math.inf
        self._next = self._youngest + self._drawn(self._limit)
        self._asks_by = self._youngest + self._drawn(self._pause)

    def _put_off_watching(self, look: SharedLook, made_at: float) -> None:
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


class ServedRoutes(Protocol):
    """Who is looked for: the routes it serves."""

    @property
    def served(self) -> list[int]: ...


class RouteLearner(Protocol):
    """How those routes become known."""

    @property
    def due_at(self) -> float: ...

    def forget(self) -> None: ...

    async def after(self, sight: Observation, now: float) -> bool: ...


class Claims(Protocol):
    """What is done when there may be something to claim."""

    @property
    def probed(self) -> bool: ...


class Poller:
    def __init__(  # noqa: PLR0913  the parts of a worker that a look concerns
        self,
        database: Database,
        ports: Ports,
        settings: Settings,
        routing: ServedRoutes,
        known_routes: RouteLearner,
        *,
        claims: Claims,
        sweeper: Sweeper,
        duties: Duties,
        work: asyncio.Event,
        worker: Callable[[], int],
    ) -> None:
        """`work` is set when there may be something to claim; `worker` gives the number of this one."""
        self._database = database
        self._ports = ports
        self._routing = routing
        self._known_routes = known_routes
        self._claims = claims
        self._sweeper = sweeper
        self._duties = duties
        self._work = work
        self._worker = worker
        self._crowd = Crowd(ports, settings)
        self._poll = settings.poll_interval.total_seconds()
        self._sweep = settings.sweep_interval.total_seconds()
        self._pause_at_most = min(self._poll, self._sweep)
        self._polled_at = self._swept_at = float("-inf")
        self._timer: asyncio.Timeout | None = None  # of the pause
        self.wanted = asyncio.Event()  # look at the store now
        self.settled = False  # the last look left nothing to do: whatever was due or orphaned is claimable now

    def heard(self, note: LookNote) -> None:
        """Somebody has looked for everybody."""
        if not self._crowd.heard(note.looks, many=note.many):
            self.wanted.set()
        elif self._timer is not None and not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time() + max(0.0, self._crowd.left))

    async def run(self) -> None:
        while True:
            hinted = self.wanted.is_set()
            self.wanted.clear()
            asked_at = self._ports.clock.monotonic()
            with urgent():
                sight = await self._database.transact(look, self._worker(), self._routing.served)
            if await self._sweeper.judge_clock(sight, asked_at):
                self._known_routes.forget()
                self.wanted.set()
                self._work.set()  # lanes may give again
                continue
            await self._act(sight, asked_at, hinted=hinted)
            await self._pause()

    async def _act(self, sight: Observation, asked_at: float, *, hinted: bool) -> None:
        crowded = sight.alive > self._database.crowd
        speaking = crowded and self._crowd.may_speak(asked_at, hinted=hinted)
        self._crowd.looked(asked_at, sight.now, speaking=speaking)
        self._duties.update(sight, crowded=crowded)
        if await self._known_routes.after(sight, asked_at):
            self._work.set()  # this look did not ask for them
        if hinted or speaking or asked_at - self._polled_at >= self._poll - self._pause_at_most:
            self._polled_at = asked_at
            if sight.pending or not self._claims.probed:  # the first claim says whether it is empty
                self._work.set()
        watching = self._watches(sight, crowded=crowded, speaking=speaking)
        due = any(at is not None and at <= sight.now for at in (sight.next_due, sight.next_opening))
        moved = False
        if due or watching or speaking or asked_at - self._swept_at >= self._sweep:
            self._swept_at = asked_at
            if moved := await self._sweeper.sweep(sight, watching=watching):
                self._work.set()  # a hint may never come
            if self._sweeper.gave_up:
                self.wanted.set()  # a duty may be free
        if (tick := self._duties.tick(sight)) is not None and tick <= sight.now:
            await self._duties.fire_schedules()
            self._work.set()
            moved = True
        if not moved and not self._sweeper.misses and not self.settled:
            self.settled = True
            self._work.set()  # only a claim says whether anything is left
        if speaking:
            await self._database.transact(tell_look, SharedLook(sight.now, bool(sight.leased)))
        self._rest(sight, crowded=crowded, watching=watching)

    def _watches(self, sight: Observation, *, crowded: bool, speaking: bool) -> bool:
        """Whether to look after the presence of others: of who runs jobs, and in a crowd of who holds a duty.

        In a crowd, the worker that looks for all of them does, and continues while a worker is missing.
        """
        if not crowded:
            return self._sweeper.misses or self._sweeper.watches(self._worker(), sight)
        elsewhere = sight.leased_elsewhere or sight.duties_held > len(self._duties.held)
        return self._sweeper.misses or (speaking and elsewhere)

    def _rest(self, sight: Observation, *, crowded: bool, watching: bool) -> None:
        limit = self._sweeper.pause(watching=bool(sight.leased) if crowded else watching)
        due = self._sweeper.due(sight, next_tick=self._duties.tick(sight))
        alone = not crowded or self._sweeper.misses or self._duties.schedules
        self._crowd.rest(limit, due=due, latest=self._known_routes.due_at, alone=alone)

    async def _pause(self) -> None:
        """Until the next poll or sweep, a hint, or the moment something is due. What is heard may change that."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._crowd.left) as self._timer:
                    await self.wanted.wait()
        finally:
            self._timer = None
