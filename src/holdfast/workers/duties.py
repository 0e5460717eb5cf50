"""The duties a worker holds: taken when free, renewed at half their time, given back on a clean stop.

Whether one is free is shown by every look; only then are they asked for. Whether a holder is dead is asked of its
presence: by each worker now and then where they are few, by the one that looks for all of them in a crowd.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from holdfast.clock import Ports
from holdfast.durations import microseconds, next_tick
from holdfast.errors import Unavailable
from holdfast.kernel import duties, schedules
from holdfast.kernel.database import Database
from holdfast.kernel.duties import DutyLost
from holdfast.kernel.flow_rows import HeldDuty, ScheduleRow
from holdfast.kernel.retention import KeepRule, Pruner
from holdfast.kernel.rows import Observation, Term
from holdfast.kernel.workers import list_duties
from holdfast.settings import Settings
from holdfast.text import shown
from holdfast.workers.layer import Chore

log = logging.getLogger("holdfast.duties")

_LIMIT = 500
_BREATH = 0.01
_ROUNDS = 100  # clean-ups that follow each other while there is more to remove
_TIDY = 1.0


class Duties:
    def __init__(self, database: Database, ports: Ports, settings: Settings, chores: Sequence[Chore] = ()) -> None:
        self._database = database
        self._ports = ports
        self._settings = settings
        self._chores = {chore: float("-inf") for chore in chores}
        self._ttl_us = microseconds(settings.duty_ttl)
        self._worker = 0  # the number they are held under; a worker that registers again gets another
        self._held: dict[str, Term] = {}
        self._cleaned_at: float | None = None
        self._marks = duties.CleanupMarks()
        self._pruner = Pruner(database, KeepRule(microseconds(settings.retention), settings.retention_jobs))
        self.stirred = True  # jobs were enqueued or claimed recently
        self._wanted = asyncio.Event()  # there may be one to take
        self._wanted.set()
        self._crowded = False
        self.taken = False  # one more, in the last round

    @property
    def held(self) -> list[Term]:
        return list(self._held.values())

    @property
    def schedules(self) -> bool:
        """Whether this worker fires the schedules."""
        return duties.SCHEDULES in self._held

    def update(self, sight: Observation, *, crowded: bool) -> None:
        """Take in what a look showed. `crowded`: the presence of holders is somebody else's business."""
        self._crowded = crowded
        if sight.duties_held < len(duties.DUTIES) and len(self._held) < len(duties.DUTIES):
            self._wanted.set()

    async def tend(self, worker: int) -> None:
        """Renew what is held, take what is free, and do what is due."""
        self.taken = False
        if worker != self._worker:
            await self.release()
            self._worker = worker
        for term in self.held:
            if not await self._database.transact(duties.renew, term, worker, ttl_us=self._ttl_us):
                del self._held[term.name]
        if (self._wanted.is_set() or not self._crowded) and len(self._held) < len(duties.DUTIES):
            await self._take()
        self._wanted.clear()  # whatever a look showed before now
        if duties.CLEANUP in self._held:
            await self._clean_up(self._held[duties.CLEANUP])
            await self._do_chores()

    async def _do_chores(self) -> None:
        now = self._ports.clock.monotonic()
        for chore, done_at in list(self._chores.items()):
            if now - done_at >= chore.every(self._settings).total_seconds():
                self._chores[chore] = now
                if chore.is_due is not None and not await self._database.transact(chore.is_due, self._settings):
                    continue
                for _ in range(_ROUNDS):
                    if await self._database.transact(chore.operation, self._settings) is not True:
                        break
                    await self._ports.clock.sleep(_BREATH)

    async def pause(self) -> None:
        """Until it is time to renew, or one may be free.

        Meanwhile dead rows are cleared away; where nothing happens, few die.
        """
        left = self._settings.duty_ttl.total_seconds() / 2 * (0.9 + 0.2 * self._ports.random.random())
        while left > 0 and not self._wanted.is_set():
            await sleep_unless(self._wanted, self._ports, min(left, _TIDY))
            left -= _TIDY
            if self.stirred or left <= 0:
                self.stirred = False
                await self._tidy()

    async def _tidy(self) -> None:
        """If that is this worker's business."""
        if duties.CLEANUP in self._held:
            await self._database.tidy(self._settings.vacuum_after)

    def tick(self, sight: Observation) -> int | None:
        """When the next schedule is due, if that is this worker's business."""
        return sight.next_tick if duties.SCHEDULES in self._held else None

    async def fire_schedules(self) -> None:
        """Enqueue what schedules ask for."""
        under = (self._held[duties.SCHEDULES], self._worker)
        for row in await self._database.transact(schedules.due_schedules, limit=_LIMIT):
            try:
                fired = await self._database.transact(schedules.fire, row, next_tick, under=under)
            except DutyLost:
                self._held.pop(duties.SCHEDULES, None)
                return
            except Unavailable:
                raise
            except Exception as problem:  # noqa: BLE001  whatever is wrong with one, the others continue
                await self._postpone(row, problem, under)
                continue
            log.info("schedule %s enqueued %d", row.name, len(fired), extra={"schedule": row.name, "kind": row.kind})
            if fired:
                about = {"schedule": row.name, "kind": row.kind, "queue": row.queue, "ids": tuple(fired)}
                self._ports.tell("schedule.fired", {"jobs": len(fired)}, **about)

    async def _postpone(self, row: ScheduleRow, problem: Exception, under: tuple[Term, int]) -> None:
        try:
            noted = await self._database.transact(schedules.postpone, row, problem, under=under)
        except DutyLost:
            self._held.pop(duties.SCHEDULES, None)
            return
        if noted and not (row.error and str(problem).startswith(row.error.removesuffix("…"))):  # logged when it changes
            about = {"schedule": row.name, "kind": row.kind}
            log.warning(
                "schedule %s cannot be fired; Holdfast tries it again later: %s",
                *map(shown, (row.name, problem)),
                extra=about,
            )

    async def release(self) -> None:
        """Give back whatever this worker holds, also what it took in a call whose answer never came."""
        if self._worker:
            for row in await self._database.transact(list_duties):
                if row.holder == self._worker:
                    await self._database.transact(duties.release, Term(row.name, row.term), self._worker)
        self._held.clear()

    async def _take(self) -> None:
        held = {row.name: row for row in await self._database.transact(duties.held)}
        gone = await self._absent(held.values())
        for name in duties.DUTIES:
            row = held.get(name)
            if name in self._held or (row is not None and row.alive and row.holder not in {*gone, self._worker}):
                continue
            taken = await self._database.transact(duties.acquire, name, self._worker, ttl_us=self._ttl_us, gone=gone)
            if taken is not None:
                self._held[name] = taken
                self.taken = True
                log.info("holds duty %s, term %d", name, taken.term)

    async def _absent(self, held: Collection[HeldDuty]) -> Collection[int]:
        """Holders whose presence is gone: their duties are free at once."""
        present = {row.holder for row in held if row.present} - {self._worker}
        return await self._database.presence.absent(present) if present and not self._crowded else ()

    async def _clean_up(self, term: Term) -> None:
        now = self._ports.clock.monotonic()
        interval = self._settings.cleanup_interval.total_seconds()
        if self._cleaned_at is not None and now - self._cleaned_at < interval:
            return
        self._cleaned_at = now
        try:
            await self._remove_old(term)
            await self._prune(term)
        except DutyLost:
            self._held.pop(term.name, None)

    async def _remove_old(self, term: Term) -> None:
        """As much as a round may take, some at a time; the next continues there."""
        marks = self._marks.again()
        for _ in range(_ROUNDS):
            marks, more = await self._database.transact(
                duties.clean_up,
                term,
                self._worker,
                key_age_us=microseconds(self._settings.key_retention),
                worker_age_us=microseconds(self._settings.worker_retention),
                signal_age_us=microseconds(self._settings.signal_retention),
                marks=marks,
            )
            self._marks = marks
            if not more:
                return
            await self._ports.clock.sleep(_BREATH)

    async def _prune(self, term: Term) -> None:
        """As much as there is, some at a time, so that nobody waits for it."""
        async for removed in self._pruner.round(under=(term, self._worker)):
            if removed:
                await self._ports.clock.sleep(_BREATH)


async def sleep_unless(event: asyncio.Event, ports: Ports, seconds: float) -> None:
    """Until this event is set, or so many seconds of our own clock are over."""
    waits = [asyncio.create_task(event.wait()), asyncio.ensure_future(ports.clock.sleep(seconds))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
