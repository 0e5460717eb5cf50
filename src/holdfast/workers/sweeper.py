"""The sweep: what any worker does at its poll, so that nothing depends on a leader.

Each look costs one statement. What it shows is then done in bounded, compare-and-set transactions: wake what is
due, fail what is overdue, rescue what was lost, continue with families being cancelled.

Nobody is given up by a clock that leapt. After a leap forward, leases and heartbeats only seem to have run out, so for
one TTL of this process's own clock nothing ends by time; live workers renew in that time. Jobs of a worker whose
presence is gone are still rescued. After a leap back, the times that lie in the future are brought back.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.kernel import codec, workers
from holdfast.kernel.cancel import cancel_free_family
from holdfast.kernel.database import Database
from holdfast.kernel.lanes import open_lanes
from holdfast.kernel.leases import expire, lapsed, take_expiry_turn
from holdfast.kernel.rows import LostJob, MovedJob, Observation
from holdfast.kernel.states import State
from holdfast.kernel.waiting import overdue, wake
from holdfast.kernel.watch import ahead_of_clock, bring_back
from holdfast.settings import Settings
from holdfast.text import shown
from holdfast.workers.leaps import StoreClock, tolerance
from holdfast.workers.telemetry import attempts_log as attempts

log = logging.getLogger("holdfast.sweep")

LIMIT = 200
_NAMED = 20  # rescued jobs of one transaction that the log names
_DUE_LOOK = 0.005
WATCHERS = 5
_WATCH_US = 4_000_000


class MissedPresence(NamedTuple):
    """A worker whose presence was not there."""

    since: float  # this process's clock
    last_beat: int  # when it had shown life last, by the store's clock


class Sweeper:
    def __init__(self, database: Database, ports: Ports, settings: Settings) -> None:
        self._database = database
        self._ports = ports
        self._settings = settings
        self._missed: dict[int, MissedPresence] = {}
        self.gave_up = False  # somebody, at the last sweep
        self._again: set[int] = set()  # given up at the last sweep: what was locked then is taken back at the next
        self._store_clock = StoreClock(ports.clock, tolerance(settings))
        self._ttl = max(settings.lease_ttl, settings.worker_ttl).total_seconds()
        self._asked_at = float("-inf")  # for leases that ran out
        self._held_until = float("-inf")  # nothing ends by time before this moment of our own clock
        self._ask_back_at = float("-inf")  # once in any case: a worker that has just come did not see the clock go back
        self._ask_back_until = float("-inf")

    async def judge_clock(self, sight: Observation, asked_at: float) -> bool:
        """Note the store's time; True when its clock went back and what was written before has been brought back."""
        now = self._ports.clock.monotonic()
        if self._store_clock.is_new and sight.silent and await self._seems_to_have_leapt(sight):
            self._held_until = now + self._ttl
            log.warning(
                "workers show their presence and have not beaten for long, as after a leap of the store's clock; "
                "no lease ends by time for %.0f s.",
                self._ttl,
            )
        leap = self._store_clock.note(sight.now, asked_at)
        if leap > 0:
            self._held_until = now + self._ttl
            log.warning(
                "the store's clock leapt forward by %.1f s; no lease ends by time for %.0f s. Check its NTP.",
                leap,
                self._ttl,
            )
        elif leap < 0:
            log.warning(
                "the store's clock went back by %.1f s; times in the future are corrected. Check its NTP.", -leap
            )
            self._ask_back_at, self._ask_back_until = now, now + self._ttl
        if now < self._ask_back_at:
            return False
        back = leap < 0 or await self._went_back()
        if back:
            await self._bring_back()
        # Now and then for one TTL: somebody may have been writing meanwhile, by the time of before.
        pause = self._settings.sweep_interval.total_seconds()
        self._ask_back_at = now + pause if now < self._ask_back_until else float("inf")
        return back

    async def _seems_to_have_leapt(self, sight: Observation) -> bool:
        """For a worker that has just come and did not see it: are there others that live and look dead?"""
        since = sight.now - microseconds(self._settings.worker_ttl)
        beats = await self._database.transact(workers.present_workers)
        silent = {worker for worker, last_beat in beats if last_beat <= since}
        return bool(silent - await self._database.presence.absent(silent))

    async def _went_back(self) -> bool:
        """Whether what is stored shows that the clock went back."""
        ttl_us = microseconds(self._settings.lease_ttl)
        return any(await self._database.transact(ahead_of_clock, lease_ttl_us=ttl_us))

    async def _bring_back(self) -> None:
        settings = self._settings
        ttls = {"lease_ttl_us": microseconds(settings.lease_ttl), "duty_ttl_us": microseconds(settings.duty_ttl)}
        while await self._database.transact(bring_back, **ttls, limit=LIMIT):
            pass

    def watches(self, worker: int, sight: Observation) -> bool:
        """Whether this worker looks after the presence of others now, where looks are not announced.

        In a large fleet a few do, others every few seconds: all of them would cost the server more than the jobs, and
        always the same might die together.
        """
        if not sight.leased_elsewhere or sight.alive <= WATCHERS:
            return sight.leased_elsewhere
        turn = sight.now // _WATCH_US
        return (worker * 2_654_435_761 + turn * 2_246_822_519) % 4_294_967_291 % sight.alive < WATCHERS

    async def sweep(self, sight: Observation, *, watching: bool = True) -> bool:
        """Do what a look showed to be due; True when that may have left something to claim."""
        moved = self.gave_up = False
        trusted = self._ports.clock.monotonic() >= self._held_until
        until = sight.now if trusted else 0
        gone = await self._lose_gone(until) if watching else set()
        if sight.silent and trusted:
            await self._database.transact(workers.lose_workers, gone=(), reason="no heartbeat in its ttl", until=until)
        if gone or self._again or (trusted and await self._finds_lapsed(sight)):
            moved = await self.expire(gone | self._again, until)
            self._again = gone
        if _passed(sight.next_due, sight):
            moved = await self._drain(wake) or moved
        if _passed(sight.next_opening, sight):
            moved = await self._drain(open_lanes) or moved
        if _passed(sight.next_deadline, sight):
            moved = await self._drain(overdue) or moved
        if sight.cancellations:
            while await self._database.transact(cancel_free_family, limit=LIMIT):
                moved = True
        return moved

    async def _lose_gone(self, until: int) -> set[int]:
        gone = await self.gone()
        if gone:
            beats = [self._missed[worker].last_beat for worker in gone]
            if await self._database.transact(
                workers.lose_workers, gone=gone, reason="its presence is gone", last_beats=beats, until=until
            ):
                self.gave_up = True
                log.warning("workers %s are gone; their leases end now", sorted(gone))
        return gone

    async def give_up_gone(self) -> bool:
        """Look for workers whose presence is gone, whether they hold anything or not; True when one was given up."""
        self.gave_up = False
        gone = await self._lose_gone(0)
        if gone:
            await self.expire(gone)
        return self.gave_up

    async def _finds_lapsed(self, sight: Observation) -> bool:
        """Whether a lease ran out. That is asked of all that runs, so in a large fleet one asks for all of them.

        They take turns in the store: the first that looks after the pause asks. So it does not matter who believes to
        watch, nor how many of those that count as alive are so.
        """
        pause, now = self._settings.sweep_interval.total_seconds() / 2, self._ports.clock.monotonic()
        if not sight.leased or now - self._asked_at < pause:
            return False
        self._asked_at = now
        if sight.alive > WATCHERS:
            pause_us = round(pause * 1e6)
            waits = sight.next_turn is not None and sight.now < sight.next_turn <= sight.now + pause_us
            if waits or not await self._database.transact(take_expiry_turn, pause_us=pause_us):
                return False
        return await self._database.transact(lapsed, until=sight.now)

    async def _drain(self, operation: Callable[..., Awaitable[int | Sequence[MovedJob]]]) -> bool:
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

    def _miss(self, worker: int, now: float, last_beat: int) -> MissedPresence:
        """A worker that has beaten since it was missed is alive: the wait for it starts again."""
        before = self._missed.get(worker)
        return before if before is not None and before.last_beat == last_beat else MissedPresence(now, last_beat)

    @property
    def misses(self) -> bool:
        """Whether somebody's presence was not there, and the verdict is still to come."""
        return bool(self._missed)

    def pause(self, *, watching: bool) -> float:
        """The longest until the next look: a poll or a sweep, or less while somebody may be dead."""
        pause = min(self._settings.poll_interval, self._settings.sweep_interval).total_seconds()
        if self._missed or watching:
            pause = min(pause, self._settings.presence_grace.total_seconds() / 2)
        return pause

    def due(self, sight: Observation, *, next_tick: int | None) -> float | None:
        """In how many seconds something is due. If it is due now, there may be another right behind it."""
        moments = [at for at in (sight.next_due, sight.next_opening, next_tick) if at is not None]
        return max(_DUE_LOOK, (min(moments) - sight.now) / 1e6) if moments else None

    async def expire(self, gone: set[int], until: int = 0) -> bool:
        """Take back what lapsed by then, and whatever these workers still hold; True when there was something."""
        backoff = microseconds(self._settings.rescue_backoff)
        total = 0
        while True:
            moved = await self._database.transact(
                expire, gone=gone, limit=LIMIT, backoff_us=backoff, chance=self._ports.random, until=until
            )
            if moved:
                self._tell(moved)
            total += len(moved)
            if len(moved) < LIMIT:
                return total > 0

    def _tell(self, moved: Sequence[LostJob]) -> None:
        failed = [job for job in moved if job.state == State.FAILED]
        back = [job for job in moved if job.state != State.FAILED]
        for job in back[:_NAMED]:
            extra = {"job": job.id, "kind": job.kind}
            log.warning("job %s (%s) lost its lease and is %s again", job.id, shown(job.kind), job.state, extra=extra)
        if len(back) > _NAMED:
            log.warning("%d more jobs lost their leases", len(back) - _NAMED)
        for job in failed:
            why = (codec.decode(job.error) or {}).get("message", "its lease was lost")
            extra = {"job": job.id, "kind": job.kind}
            attempts.error("job %s (%s) failed: %s", job.id, shown(job.kind), shown(why), extra=extra)
        self._ports.events.counted["job.rescued"] += len(moved)
        self._ports.tell("job.rescued", {"jobs": len(moved), "failed": len(failed)}, ids=tuple(job.id for job in moved))


def _passed(moment: int | None, sight: Observation) -> bool:
    return moment is not None and moment <= sight.now
