"""Duties: maintenance done by one holder at a time.

Holding a duty only saves work. Each of its writes names the term and is refused when a newer one exists, so a
holder that was frozen past its term can do no harm.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from holdfast.errors import StoreRefused
from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.flow_rows import HeldDuty
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import prune_lanes
from holdfast.kernel.rows import Term
from holdfast.kernel.statements import CrowdSql, LanesSql, RetentionSql, WaitingSql, WorkersSql
from holdfast.kernel.workers import prune_routes

CLEANUP = "cleanup"
SCHEDULES = "schedules"
DUTIES = (CLEANUP, SCHEDULES)
ROUTE_AGE_US = 86_400_000_000
LOOK = 1_000  # rows of each kind that one clean-up looks at


class DutyLost(StoreRefused):
    """Another worker holds this duty now; stop doing it."""


@reading
async def held(tx: Transaction) -> list[HeldDuty]:
    """The duties whose time has not run out, and whether their holders live."""
    return await tx.many(CrowdSql.duties_held)


@single
async def acquire(tx: Transaction, name: str, worker: int, *, ttl_us: int, gone: Collection[int]) -> Term | None:
    """Take a duty that is free, has run out, or whose holder was given up or is among `gone`; None when it is held."""
    return await tx.one(WorkersSql.acquire_duty, name=name, worker=worker, ttl_us=ttl_us, gone=sorted(gone))


@single
async def renew(tx: Transaction, term: Term, worker: int, *, ttl_us: int) -> bool:
    return await tx.one(WorkersSql.renew_duty, **term._asdict(), worker=worker, ttl_us=ttl_us) is not None


@single
async def release(tx: Transaction, term: Term, worker: int) -> None:
    await tx.run(WorkersSql.release_duty, **term._asdict(), worker=worker)


async def hold(tx: Transaction, term: Term, worker: int) -> None:
    """The first call of every maintenance transaction: raises `DutyLost` when the term is over."""
    if await tx.one(WorkersSql.hold_duty, **term._asdict(), worker=worker) is None:
        raise DutyLost(f"term {term.term} of duty {term.name!r} is over.")


class KeyMark(NamedTuple):
    """How far a clean-up has come through old keys: many may have been made at the same moment."""

    at: int = 0
    job: JobId = JobId("00000000-0000-0000-0000-000000000000")


class CleanupMarks(NamedTuple):
    """How far a clean-up has come through what is old; None: to the end."""

    worker: int | None = 0
    key: KeyMark | None = KeyMark()
    channel: str | None = ""
    stranded: bool = False  # the next call opens stranded lanes, and does nothing else

    def again(self) -> CleanupMarks:
        """The next clean-up: it opens stranded lanes first, and walks that reached their end start again."""
        return CleanupMarks(self.worker or 0, self.key or KeyMark(), self.channel or "", stranded=True)


class CleanupStep(NamedTuple):
    marks: CleanupMarks
    more: bool  # there may be more to remove


async def clean_up(  # noqa: PLR0913  how old each thing may become
    tx: Transaction,
    term: Term,
    worker: int,
    *,
    key_age_us: int,
    worker_age_us: int,
    signal_age_us: int | None = None,
    marks: CleanupMarks | None = None,
    look: int = LOOK,
) -> CleanupStep:
    """Remove what nobody needs any more: old workers, spent keys, untaken signals, unused routes, channels and lanes.

    It looks at no more than `look` of each; `marks` says how far the last call got. Stranded lanes are opened once in
    a clean-up, by a call of its own: to find them takes a walk through all blocked ones, and nobody's lane is to be
    locked meanwhile.
    """
    await hold(tx, term, worker)
    marks = marks or CleanupMarks()
    if marks.stranded:
        await tx.run(LanesSql.open_stranded, limit=look)
        return CleanupStep(marks._replace(stranded=False), more=True)
    return await remove_old(
        tx,
        marks,
        key_age_us=key_age_us,
        worker_age_us=worker_age_us,
        signal_age_us=signal_age_us,
        look=look,
    )


async def remove_old(
    tx: Transaction, marks: CleanupMarks, *, key_age_us: int, worker_age_us: int, signal_age_us: int | None, look: int
) -> CleanupStep:
    more = False
    if marks.worker is not None:
        marks = marks._replace(worker=await _remove_workers(tx, worker_age_us, marks.worker, look))
    if marks.key is not None:
        marks = marks._replace(key=await _remove_keys(tx, key_age_us, marks.key, look))
    freed = [key.job for key in await tx.many(RetentionSql.freed_keys, age_us=key_age_us, limit=look)]
    if freed:
        await tx.run(RetentionSql.prune_keys, jobs=freed)
        more = len(freed) == look
    if signal_age_us is not None:
        signals = [row.seq for row in await tx.many(WaitingSql.untaken_signals, age_us=signal_age_us, limit=look)]
        if signals:
            await tx.run(WaitingSql.prune_signals, seqs=signals)
            more = more or len(signals) == look
    await prune_routes(tx, age_us=ROUTE_AGE_US, limit=look)
    if marks.channel is not None:
        marks = marks._replace(channel=await _remove_channels(tx, marks.channel, look))
    await prune_lanes(tx, age_us=ROUTE_AGE_US, limit=look)
    return CleanupStep(marks, more or marks != CleanupMarks(None, None, None))


async def _remove_workers(tx: Transaction, age_us: int, after: int, look: int) -> int | None:
    rows = await tx.many(WorkersSql.old_workers, age_us=age_us, after=after, limit=look)
    if gone := [row.seq for row in rows if row.gone]:
        await tx.run(WorkersSql.prune_workers, seqs=gone)
    return rows[-1].seq if len(rows) == look else None


async def _remove_keys(tx: Transaction, age_us: int, after: KeyMark, look: int) -> KeyMark | None:
    rows = await tx.many(RetentionSql.old_keys, age_us=age_us, after=after.at, after_job=after.job, limit=look)
    if spent := [row.job for row in rows if row.spent]:
        await tx.run(RetentionSql.prune_keys, jobs=spent)
    return KeyMark(rows[-1].at, rows[-1].job) if len(rows) == look else None


async def _remove_channels(tx: Transaction, after: str, look: int) -> str | None:
    names = [row.name for row in await tx.many(WaitingSql.list_channels, after=after, limit=look)]
    if names:
        await tx.run(WaitingSql.prune_channels, names=names)
    return names[-1] if len(names) == look else None
