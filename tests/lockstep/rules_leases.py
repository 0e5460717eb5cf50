"""Leases over time: the clock moves, workers renew, sweeps read what has lapsed and act on it, at once or later."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from hypothesis import strategies as st

from holdfast.kernel import waiting
from holdfast.kernel.database import Transaction
from holdfast.kernel.leases import FOREVER, Beat, beat, expire, renew
from holdfast.kernel.rows import ChildRef, Lease, LeaseRef, LostJob, MovedJob
from holdfast.kernel.statements import LeasesSql, WaitingSql
from holdfast.kernel.states import State
from tests.lockstep.actions import OFTEN, SELDOM, action, drawn, some_drawn
from tests.lockstep.machine import BACKOFF_US, CEILING_US, SECOND, Finding, Machine, gone_workers, known_workers, limits
from tests.lockstep.model import Job
from tests.lockstep.recalling import Recalling
from tests.support.stores import TTL_US

ALL = 1_000


async def find_lapsed(tx: Transaction, gone: Collection[int], limit: int) -> list[ChildRef]:
    return await tx.many(LeasesSql.find_lapsed, gone=sorted(gone), until=FOREVER, limit=limit)


async def find_overdue(tx: Transaction) -> list[ChildRef]:
    return await tx.many(WaitingSql.find_overdue, limit=ALL)


async def expire_seeded(tx: Transaction, gone: Collection[int], limit: int, seed: int) -> list[LostJob]:
    """The jitter's chance must be the same on all sides."""
    return await expire(tx, gone=gone, limit=limit, backoff_us=BACKOFF_US, chance=random.Random(seed))


async def expire_found(tx: Transaction, found: Finding, seed: int) -> list[LostJob]:
    recalling = Recalling(tx, LeasesSql.find_lapsed, found.rows)
    return await expire_seeded(recalling, found.gone, ALL, seed)


async def overdue_found(tx: Transaction, found: Finding) -> Sequence[MovedJob]:
    return await waiting.overdue(Recalling(tx, WaitingSql.find_overdue, found.rows), limit=ALL)


class LeaseRules(Machine):
    def move_clock(self, us: int) -> None:
        self.stage.advance(us)
        self.model.now = self.stage.now

    @action(weight=OFTEN, us=st.sampled_from([1, SECOND, 25 * SECOND, 59 * SECOND, TTL_US, 3 * TTL_US]))
    def advance(self, us: int) -> None:
        self.move_clock(us)

    @action(when=lambda self: self.brinks(), us=drawn(lambda machine: machine.brinks()))
    def advance_to_the_brink(self, us: int) -> None:
        """To the very instant at which something ends or is due, or one microsecond to either side."""
        self.move_clock(us)

    def brinks(self) -> list[int]:
        moments = {
            moment + offset - self.stage.now
            for job in self.model.jobs.values()
            for moment in (job.lease_until, job.due_at, None if job.terminal else job.deadline_at)
            if moment is not None
            for offset in (-1, 0, 1)
        }
        return sorted(moment for moment in moments if moment > 0)

    @action(weight=SELDOM, us=st.sampled_from([TTL_US, 2 * TTL_US]), seed=st.integers(0, 3))
    def lose_everything(self, us: int, seed: int) -> None:
        """All leases run out and are rescued."""
        self.move_clock(us)
        self.sweep(seed, frozenset())

    def renew_all(self, leases: Collection[Lease]) -> tuple[dict[int, int], list[LeaseRef]]:
        current = [lease for lease in leases if self.model.holds(lease.held)]
        late = [lease for lease in current if self.model.job(lease.seq) in self.model.lapsed(())]
        self.saw("a lapsed lease was not revived", bool(late))
        renewed, lost = self.model.renew([lease.held for lease in leases], TTL_US, CEILING_US)
        limit = {lease.claimed_at + CEILING_US for lease in current}
        self.saw("a lease reached its ceiling", bool(limit & set(renewed.values())))
        self.saw("a stale renewal was refused", len(current) < len(leases))
        asked = [seq for seq in renewed if self.model.job(seq).cancel_requested_at is not None]
        self.saw("a renewal told of a cancel", bool(asked))
        return renewed, lost

    @action(when=lambda self: self.leases, leases=some_drawn(lambda machine: machine.leases, most=6))
    def renew(self, leases: list[Lease]) -> None:
        expected, lost = self.renew_all(leases)
        renewed, gone = self.ask_in_any_order(
            renew, [lease.held for lease in leases], ttl_us=TTL_US, ceiling_us=CEILING_US
        )
        assert {row.seq: row.lease_until for row in renewed} == expected
        assert sorted(gone) == sorted(lost)
        asked = {row.seq for row in renewed if row.cancel_requested_at is not None}
        assert asked == {seq for seq in expected if self.model.job(seq).cancel_requested_at is not None}

    @action(worker=known_workers, active=st.integers(0, 3))
    def beat(self, worker: int, active: int) -> None:
        """A heartbeat renews what the worker believes it holds, lost or not; a frozen worker beats again."""
        mine = [lease for lease in self.leases if lease.worker == worker]
        expected, lost = self.renew_all(mine) if mine else ({}, [])
        known = self.model.workers.get(worker)
        answer: Beat = self.ask_in_any_order(
            beat, worker, active, [lease.held for lease in mine], ttl_us=TTL_US, ceiling_us=CEILING_US
        )
        registered = known is not None and known.live
        assert answer.registered == registered
        assert {row.seq: row.lease_until for row in answer.renewed} == expected
        assert sorted(answer.lost) == sorted(lost)
        if known is not None and registered:
            known.heartbeat_at = self.stage.now
        self.saw("the heartbeat of a lost worker was refused", not registered)

    # Sweeps: at once, or reading now and acting later

    def judge_expired(self, moved: Sequence[LostJob], jobs: Collection[int], gone: frozenset[int]) -> None:
        self.saw("a worker that seemed gone was alive and kept its leases", self.model.given_up(gone) != gone)
        gone = self.model.given_up(gone)
        lost = [job for job in self.model.lapsed(gone) if job.seq in jobs]
        self.gone = gone
        early = [job for job in lost if job not in self.model.lapsed(())]
        self.saw("a lease of a gone worker was rescued before its time", bool(early))
        self.saw("an orphan failed, as its queue says", any(job.new.queue in self.model.orphans_fail for job in lost))
        asked = [job for job in lost if job.cancel_requested_at is not None]
        self.saw("the sweep ended a cancelled job whose worker died", bool(asked))
        expected = self.model.expire(jobs, gone, BACKOFF_US)
        assert sorted((job.seq, job.state) for job in moved) == sorted(expected)
        counted = [job for job in lost if self.model.counts_loss(job)]
        spent = [job for job in counted if job.attempts >= job.new.max_attempts and job.state == State.FAILED]
        self.saw("a lost lease was counted as an attempt", bool(counted))
        self.saw("a lost lease was the last attempt", bool(spent))
        uncounted = [job for job in lost if job not in counted]
        self.saw("the rescue limit was reached", any(_had_all_rescues(job) for job in uncounted))
        self.saw("a job was rescued a second time", any(job.state == State.SCHEDULED for job in lost))

    @action(
        what=st.sampled_from(["expire", "overdue", "wake"]), gone=gone_workers, limit=limits, seed=st.integers(0, 3)
    )
    def sweep_some(self, what: str, gone: frozenset[int], limit: int, seed: int) -> None:
        match what:
            case "expire":
                self.expire(gone, limit, seed)
            case "overdue":
                self.overdue(limit)
            case "wake":
                self.wake(limit)

    def expire(self, gone: frozenset[int], limit: int, seed: int) -> None:
        found = sorted(job.seq for job in self.model.lapsed(self.model.given_up(gone)))[:limit]
        moved = self.ask_in_any_order(expire_seeded, gone, limit, seed)
        self.judge_expired(moved, found, gone)

    @action(when=lambda self: self.fresh() or self.model.overdue_jobs(), gone=gone_workers, mistaken=st.booleans())
    def find(self, gone: frozenset[int], mistaken: bool) -> None:
        """Read what to rescue and what to fail, and stop there. A presence that is there may seem gone."""
        gone = gone | set(self.alive[:1]) if mistaken else gone
        found = self.ask(find_lapsed, gone, ALL)
        assert [kin.seq for kin in found] == sorted(job.seq for job in self.model.lapsed(gone))
        if found:
            self.lapsed.append(Finding(tuple(found), gone))
        late = self.ask_in_any_order(find_overdue)
        assert {kin.seq for kin in late} == {job.seq for job in self.model.overdue_jobs()}
        if late:
            self.overdue_findings.append(Finding(tuple(late), frozenset()))

    @action(
        weight=OFTEN, when=lambda self: self.lapsed, found=drawn(lambda machine: machine.lapsed), seed=st.integers(0, 3)
    )
    def expire_found(self, found: Finding, seed: int) -> None:
        """What was read long ago is tested again by the statement that changes it."""
        seqs = {kin.seq for kin in found.rows}
        spared = seqs - {job.seq for job in self.model.lapsed(self.model.given_up(found.gone))}
        moved = self.ask_in_any_order(expire_found, found, seed)
        self.judge_expired(moved, seqs, found.gone)
        self.saw("a rescue came too late and left the job alone", bool(spared))
        running = [seq for seq in spared if self.model.job(seq).state == State.RUNNING]
        self.saw("a rescue came too late and spared the next lease", bool(running))

    def wake(self, limit: int) -> None:
        limit = _without_ties(limit, [job.due_at for job in self.model.due()])
        waits = [job for job in self.model.due() if job.state == State.WAITING]
        assert self.ask(waiting.wake, limit=limit) == self.model.wake(limit)
        self.saw("a wait timed out", any(job.state == State.PENDING for job in waits))

    def overdue(self, limit: int) -> None:
        late = self.model.overdue_jobs()
        limit = _without_ties(limit, [job.deadline_at for job in late])
        found = sorted(late, key=lambda job: job.deadline_at or 0)[:limit]
        moved = self.ask_in_any_order(waiting.overdue, limit=limit)
        self.judge_overdue(moved, found)

    def judge_overdue(self, moved: Sequence[MovedJob], found: Collection[Job]) -> None:
        expected = self.model.overdue({job.seq for job in found})
        assert sorted((job.seq, job.state) for job in moved) == sorted(expected)
        self.saw("a job passed its deadline", bool(expected))

    @action(when=lambda self: self.overdue_findings, found=drawn(lambda machine: machine.overdue_findings))
    def overdue_found(self, found: Finding) -> None:
        jobs = [self.model.job(kin.seq) for kin in found.rows]
        spared = [job for job in jobs if job not in self.model.overdue_jobs()]
        moved = self.ask_in_any_order(overdue_found, found)
        self.judge_overdue(moved, jobs)
        self.saw("a deadline found earlier was tested again", bool(spared))

    @action(weight=SELDOM, seed=st.integers(0, 3), gone=gone_workers)
    def sweep(self, seed: int, gone: frozenset[int]) -> None:
        """One whole round, as a worker does at its poll: nothing may be left over."""
        self.expire(gone, ALL, seed)
        self.judge()
        self.overdue(ALL)
        self.judge()
        self.wake(ALL)
        self.judge_swept()


def _had_all_rescues(job: Job) -> bool:
    return job.state == State.FAILED and job.rescues == job.new.max_rescues


def _without_ties(limit: int, moments: Sequence[int | None]) -> int:
    """A limit that does not cut between equal moments, among which the order is anyone's."""
    ordered = sorted(moment or 0 for moment in moments)
    while 0 < limit < len(ordered) and ordered[limit - 1] == ordered[limit]:
        limit += 1
    return limit
