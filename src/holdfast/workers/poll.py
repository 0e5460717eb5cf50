"""The poll: looks at the store, and what follows from what they show.

A look finds whatever a hint could have said. In a crowd one worker looks for all of them; see `crowd`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from holdfast.clock import Ports
from holdfast.kernel.bounds import urgent
from holdfast.kernel.crowd import Look, LookNote, tell_look
from holdfast.kernel.database import Database
from holdfast.kernel.rows import Sight
from holdfast.kernel.workers import look
from holdfast.settings import Settings
from holdfast.workers.crowd import Crowd
from holdfast.workers.duties import Duties
from holdfast.workers.sweeper import Sweeper


class Serving(Protocol):
    """Who is looked for: the routes it serves."""

    @property
    def served(self) -> list[int]: ...


class Learning(Protocol):
    """How those routes become known."""

    @property
    def due_at(self) -> float: ...

    def forget(self) -> None: ...

    async def after(self, sight: Sight, now: float) -> bool: ...


class Claims(Protocol):
    """What is done when there may be something to claim."""

    @property
    def probed(self) -> bool: ...


class Polling:
    def __init__(  # noqa: PLR0913  the parts of a worker that a look concerns
        self,
        database: Database,
        ports: Ports,
        settings: Settings,
        routing: Serving,
        known_routes: Learning,
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

    async def _act(self, sight: Sight, asked_at: float, *, hinted: bool) -> None:
        crowded = sight.alive > self._database.crowd
        telling = crowded and self._crowd.may_speak(asked_at, hinted=hinted)
        self._crowd.looked(asked_at, sight.now, telling=telling)
        self._duties.heed(sight, crowded=crowded)
        if await self._known_routes.after(sight, asked_at):
            self._work.set()  # this look did not ask for them
        if hinted or telling or asked_at - self._polled_at >= self._poll - self._pause_at_most:
            self._polled_at = asked_at
            if sight.pending or not self._claims.probed:  # the first claim says whether it is empty
                self._work.set()
        watching = self._watches(sight, crowded=crowded, telling=telling)
        due = any(at is not None and at <= sight.now for at in (sight.next_due, sight.next_opening))
        moved = False
        if due or watching or telling or asked_at - self._swept_at >= self._sweep:
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
        if telling:
            await self._database.transact(tell_look, Look(sight.now, bool(sight.leased)))
        self._rest(sight, crowded=crowded, watching=watching)

    def _watches(self, sight: Sight, *, crowded: bool, telling: bool) -> bool:
        """Whether to look after the presence of others: of who runs jobs, and in a crowd of who holds a duty.

        In a crowd, the worker that looks for all of them does, and continues while a worker is missing.
        """
        if not crowded:
            return self._sweeper.misses or self._sweeper.watches(self._worker(), sight)
        elsewhere = sight.leased_elsewhere or sight.duties_held > len(self._duties.held)
        return self._sweeper.misses or (telling and elsewhere)

    def _rest(self, sight: Sight, *, crowded: bool, watching: bool) -> None:
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
