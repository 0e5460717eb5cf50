"""Erasure: everything of one tenant is removed, in small transactions; what it cost stays counted, without a name.

It does not store how far it got: after a kill, the next call starts again and finds what is left.
What the tenant sends meanwhile is erased too, a few times over; then the eraser gives up, and says so. Its programs are
to be stopped first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.agents.listings import list_sessions
from holdfast.agents.queries import delete_agent, make_totals_nameless
from holdfast.agents.retention.ages import forget_ages
from holdfast.agents.retention.cleanup import remove_session
from holdfast.agents.retention.records import ErasingSql, ScheduleJob
from holdfast.client.intake import Runtime
from holdfast.durations import show
from holdfast.errors import NotFound, StoreBusy, UsageError
from holdfast.kernel import codec, retention
from holdfast.kernel.cancel import CancelFilter, newest_job
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.lanes import forget_empty
from holdfast.kernel.schedules import delete_schedule
from holdfast.text import plural
from holdfast.workers.layer import Layer

_REASON = "its tenant is erased"
_LOOK = 2_000  # jobs that one transaction looks at
_SESSIONS = 50  # in one page
_KEYS = 1_000
_AGENTS = 100
_PASSES = 5  # over everything: what came or was used meanwhile is left to the next
_PAUSE = 0.25


class Erased(NamedTuple):
    """How many of each are gone so far."""

    cancelled: int = 0
    sessions: int = 0
    jobs: int = 0
    keys: int = 0
    agents: int = 0
    schedules: int = 0
    rows: int = 0  # of what else the layers store: plans, actions and plain data of the gateway


Progress = Callable[[Erased], None]


class Eraser:
    """Erases one tenant."""

    def __init__(
        self, runtime: Runtime, layers: Sequence[Layer], tenant: str, within_us: int, progress: Progress | None
    ) -> None:
        """`within_us`: for how long it waits for workers to end what they run."""
        self._runtime = runtime
        self._layers = layers
        self._database = runtime.database
        self._tenant = tenant
        self._within_us = within_us
        self._progress = progress
        self.erased = Erased()

    async def erase(self) -> Erased:
        await self._runtime.open()
        for _ in range(_PASSES):
            if await self._erase_once():
                break
        else:
            raise StoreBusy(
                f"tenant {self._tenant} continues enqueuing jobs, or sending messages to its sessions. "
                f"Stop its programs, and erase it again."
            )
        while await self._database.transact(make_totals_nameless, self._tenant):
            pass
        await self._database.transact(forget_ages, self._tenant)
        return self.erased

    async def _erase_once(self) -> bool:
        """False when something came meanwhile, which is left to the next pass."""
        newest = await self._database.transact(newest_job)
        await self._erase_schedules()  # or they would enqueue more
        await self._end_jobs()
        if not await self._erase_sessions():
            return False
        still_open = await self._erase_jobs()
        while len(gone := await self._database.transact(delete_keys, self._tenant)) == _KEYS:
            self._count(keys=len(gone))
        self._count(keys=len(gone))
        await self._erase_agents()
        await self._erase_rows()
        return not still_open and not await self._came_after(newest)

    async def _came_after(self, newest: int) -> bool:
        """Whether a session is there again, or a job that is younger than this one."""
        if await self._database.transact(list_sessions, tenant=self._tenant, limit=1):
            return True
        after: int | None = newest
        while after is not None:
            found, after = await self._database.transact(look_at_jobs, self._tenant, after)
            if found:
                return True
        return False

    def _count(self, **more: int) -> None:
        counted = {name: getattr(self.erased, name) + number for name, number in more.items()}
        self.erased = self.erased._replace(**counted)
        if self._progress is not None:
            self._progress(self.erased)

    async def _erase_schedules(self) -> None:
        for name in await self._database.transact(schedules_of, self._tenant):
            await self._database.transact(delete_schedule, name)
            self._count(schedules=1)

    async def _end_jobs(self) -> None:
        """Cancel what is open, and wait for those who run some of it."""
        async for done in self._runtime.cancel_many(CancelFilter(tenant=self._tenant), _REASON):
            self._count(cancelled=done.ended + done.asked)
        left: list[int] = []
        after: int | None = 0
        while after is not None:
            found, after = await self._database.transact(look_at_jobs, self._tenant, after)
            left += [job.seq for job in found if not job.ended]
        clock = self._runtime.ports.clock
        until = clock.monotonic() + self._within_us / 1e6
        while left:
            left = await self._database.transact(still_open, left)
            if left and clock.monotonic() >= until:
                raise StoreBusy(
                    f"{plural(len(left), 'job')} of tenant {self._tenant} did not stop, though asked to, within "
                    f"{show(self._within_us)}. Their workers end them, or are given up when they are silent. "
                    f"Erase it again: it continues with what is left."
                )
            if left:
                await clock.sleep(_PAUSE)

    async def _erase_sessions(self) -> bool:
        """False when one of them was used meanwhile."""
        while True:
            page = [
                row.id for row in await self._database.transact(list_sessions, tenant=self._tenant, limit=_SESSIONS)
            ]
            if not page:
                return True
            gone = 0
            for id in page:
                while (removed := await self._database.transact(remove_if_idle, id)) is None:
                    pass
                gone += removed
                self._count(sessions=int(removed))
            if not gone:
                return False

    async def _erase_jobs(self) -> int:
        """How many were enqueued meanwhile, and have not ended."""
        still_open, after = 0, 0
        while True:
            removed, left, upto = await self._database.transact(remove_jobs, self._tenant, after)
            self._count(jobs=removed)
            still_open += left
            if upto is None:
                return still_open
            after = upto

    async def _erase_agents(self) -> None:
        """One that others call goes after them; one that is used by another tenant stays."""
        while gone := await self._database.transact(remove_agents, self._tenant):
            self._count(agents=gone)

    async def _erase_rows(self) -> None:
        """What layers store beside jobs."""
        for layer in self._layers:
            while rows := await self._database.transact(layer.erase, self._tenant):
                self._count(rows=rows)


@reading
async def look_at_jobs(tx: Transaction, tenant: str, after: int) -> tuple[list[ErasableJob], int | None]:
    """The tenant's among the next jobs, and where the next look begins; None at the end."""
    rows = await tx.many(ErasingSql.jobs_after, tenant=tenant, after=after, limit=_LOOK)
    mine = [ErasableJob(row.seq, bool(row.ended), row.lane) for row in rows if row.mine]
    return mine, rows[-1].seq if len(rows) == _LOOK else None


class ErasableJob(NamedTuple):
    seq: int
    ended: bool
    lane: str | None


async def remove_jobs(tx: Transaction, tenant: str, after: int) -> tuple[int, int, int | None]:
    """How many of the next jobs went, how many are open, and where the next look begins."""
    mine, upto = await look_at_jobs(tx, tenant, after)
    seqs = [job.seq for job in mine if job.ended]
    removed = await retention.remove(tx, seqs) if seqs else 0
    await forget_empty(tx, {job.lane for job in mine if job.ended and job.lane is not None})
    return removed, len(mine) - len(seqs), upto


@reading
async def still_open(tx: Transaction, seqs: Sequence[int]) -> list[int]:
    return [row.seq for row in await tx.many(ErasingSql.still_open, seqs=seqs)]


async def remove_if_idle(tx: Transaction, session: str) -> bool | None:
    """None: it takes another transaction."""
    try:
        return True if await remove_session(tx, session) else None
    except (NotFound, UsageError):
        return False


async def delete_keys(tx: Transaction, tenant: str) -> list[str]:
    return [row.key for row in await tx.many(ErasingSql.delete_keys, tenant=tenant, limit=_KEYS)]


@reading
async def schedules_of(tx: Transaction, tenant: str) -> list[str]:
    """Schedules whose jobs would be the tenant's."""
    found = await tx.many(ErasingSql.stored_schedules)
    return [row.name for row in found if _tenant_of(row) == tenant]


def _tenant_of(row: ScheduleJob) -> str | None:
    """Whose jobs a schedule enqueues; nobody's, where a newer release wrote something else."""
    plan = codec.decode(row.job)
    job = plan.get("job") if isinstance(plan, dict) else None
    return job.get("tenant") if isinstance(job, dict) else None


async def remove_agents(tx: Transaction, tenant: str) -> int:
    gone = 0
    for row in await tx.many(ErasingSql.agents_of, tenant=tenant, limit=_AGENTS):
        try:
            await delete_agent(tx, row.id)
        except UsageError:
            continue
        gone += 1
    return gone
