"""The sweep: what any worker does at its poll, so that nothing depends on a leader.

Each look costs one statement. What it shows is then done in bounded, compare-and-set transactions: wake what is
due, fail what is overdue, rescue what was lost, go on with families being cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.kernel import workers
from holdfast.kernel.cancel import cancel_family
from holdfast.kernel.database import Database
from holdfast.kernel.lanes import open_lanes
from holdfast.kernel.leases import expire
from holdfast.kernel.records import Moved, Sight
from holdfast.kernel.states import State
from holdfast.kernel.waiting import overdue, wake
from holdfast.settings import Settings

log = logging.getLogger("holdfast.sweep")

LIMIT = 200
WATCHERS = 5
_WATCH_US = 4_000_000


class Missed(NamedTuple):
    """A worker whose presence was not there."""

    since: float  # this process's clock
    last_beat: int  # when it had shown life last, by the store's clock


class Sweeper:
    def __init__(self, database: Database, ports: Ports, settings: Settings) -> None:
        self._database = database
        self._ports = ports
        self._settings = settings
        self._missed: dict[int, Missed] = {}
        self._again: set[int] = set()  # given up at the last sweep: what was locked then is taken back at the next

    def watches(self, worker: int, sight: Sight) -> bool:
        """Whether this worker looks after the presence of others now.

        In a large fleet a few do, others every few seconds: all of them would cost the server more than the jobs, and
        always the same might die together.
        """
        if not sight.leased_elsewhere or sight.alive <= WATCHERS:
            return sight.leased_elsewhere
        turn = sight.now // _WATCH_US
        return (worker * 2_654_435_761 + turn * 2_246_822_519) % 4_294_967_291 % sight.alive < WATCHERS

    async def sweep(self, sight: Sight, *, watching: bool = True) -> bool:
        """Do what a look showed to be due; True when that may have left something to claim."""
        moved = False
        gone = await self.gone() if watching else set()
        if gone:
            beats = [self._missed[worker].last_beat for worker in gone]
            if await self._database.transact(
                workers.lose_workers, gone=gone, reason="its presence is gone", last_beats=beats
            ):
                log.warning("workers %s are gone; their leases end now", sorted(gone))
        if sight.silent:
            await self._database.transact(workers.lose_workers, gone=(), reason="silent beyond its ttl")
        if sight.lapsed or gone or self._again:
            moved = await self.expire(gone | self._again)
            self._again = gone
        if _passed(sight.next_due, sight):
            moved = await self._drain(wake) or moved
        if _passed(sight.next_opening, sight):
            moved = await self._drain(open_lanes) or moved
        if _passed(sight.next_deadline, sight):
            moved = await self._drain(overdue) or moved
        if sight.cancellations:
            while await self._database.transact(cancel_family, limit=LIMIT):
                moved = True
        return moved

    async def _drain(self, operation: Callable[..., Awaitable[int | Sequence[Moved]]]) -> bool:
        """Repeat a bounded operation while there is more for it to do; True when there was anything."""
        moved = False
        while True:
            answer = await self._database.transact(operation, limit=LIMIT)
            count = answer if isinstance(answer, int) else len(answer)
            moved = moved or count > 0
            if count < LIMIT:
                return moved

    async def gone(self) -> set[int]:
        """Workers whose presence was missing at two looks, at least the grace apart, and who did not beat meanwhile."""
        beats = dict(await self._database.transact(workers.present_workers))
        absent = await self._database.presence.absent(beats)
        now = self._ports.clock.monotonic()
        self._missed = {worker: self._miss(worker, now, beats[worker]) for worker in absent}
        grace = self._settings.presence_grace.total_seconds()
        return {worker for worker, missed in self._missed.items() if now - missed.since >= grace}

    def _miss(self, worker: int, now: float, last_beat: int) -> Missed:
        """Whoever has beaten since it was missed is alive: it is missed anew."""
        before = self._missed.get(worker)
        return before if before is not None and before.last_beat == last_beat else Missed(now, last_beat)

    @property
    def suspects(self) -> bool:
        return bool(self._missed)

    async def expire(self, gone: set[int]) -> bool:
        """Take back what lapsed, and whatever these workers still hold; True when there was something."""
        backoff = microseconds(self._settings.rescue_backoff)
        total = 0
        while True:
            moved = await self._database.transact(
                expire, gone=gone, limit=LIMIT, backoff_us=backoff, chance=self._ports.random
            )
            if moved:
                log.warning("rescued %d jobs whose lease was lost", len(moved))
                self._tell(moved)
            total += len(moved)
            if len(moved) < LIMIT:
                return total > 0

    def _tell(self, moved: Sequence[Moved]) -> None:
        failed = sum(job.state == State.FAILED for job in moved)
        self._ports.tell("job.rescued", {"jobs": len(moved), "failed": failed}, ids=tuple(job.id for job in moved))


def _passed(moment: int | None, sight: Sight) -> bool:
    return moment is not None and moment <= sight.now
