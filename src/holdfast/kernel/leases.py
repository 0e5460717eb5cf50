"""Leases: the right to run a job, for a while.

Every write a worker makes carries its token, and the store refuses a token that is not current. So a worker
that was frozen for a minute cannot overwrite its successor. The row is deleted when the lease ends: a
caller that comes late finds none. Rescue tests the expiry in the statement that takes the row away, never by id.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from holdfast.errors import LeaseLost
from holdfast.kernel.broker_rows import BeatAnswer, OwnerBeat, Renewal
from holdfast.kernel.complete import complete_and_settle, error_json, release
from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.families import settle, try_lock_jobs
from holdfast.kernel.rows import ChildRef, Fence, Lease, LeaseRef, LostJob, RenewedLease
from holdfast.kernel.statements import BrokersSql, JobsSql, LeasesSql, WaitingSql, WorkersSql
from holdfast.kernel.states import ALIVE, WorkerState

DEADLINE_ERROR = error_json("deadline_exceeded", "its deadline passed before it ended")
ORPHAN_ERROR = error_json("instance_disconnected", "its worker died or lost contact, and its queue says on_orphan=fail")
ATTEMPTS_ERROR = error_json("rescue_failed", "lost its lease on its last attempt, and its queue counts that as one")
RESCUE_ERROR = error_json("rescue_failed", "lost its lease more often than max_rescues allows")

ERRORS = {
    "deadline_error": DEADLINE_ERROR,
    "orphan_error": ORPHAN_ERROR,
    "attempts_error": ATTEMPTS_ERROR,
    "rescue_error": RESCUE_ERROR,
}

EXPIRY = "expiry"
FOREVER = 2**62  # every moment of the store's clock is trusted


class Beat(NamedTuple):
    """What a heartbeat learned."""

    registered: bool  # False: this incarnation was given up for lost and must register again
    renewed: list[RenewedLease]
    lost: list[LeaseRef]  # stop these attempts and drop their results
    draining: bool = False  # as the store has it: someone may have asked for it there
    now: int | None = None  # the store's time of this beat; None: it did not say
    oldest_code: int = 0  # the schema version that code must have to use the tables
    incarnation: str | None = None  # whose beat it was
    leases: int = 0  # that the store has under its number
    hosted: tuple[BeatAnswer, ...] = ()  # those in its process whose heartbeats the store took too
    given_up: frozenset[int] = frozenset()  # those of them whom it did not know as alive any more


class OwnRow(NamedTuple):
    """What a worker knows of its own row, for the store to compare."""

    incarnation: str | None = None  # None: any worker with the number
    last_beat: int = 0  # the store's time of the last beat that was answered
    presence: bool | None = None  # whether its sign of life is shown now; None: as it was
    lines: str | None = None  # its slots, as JSON: {group: [slots, taken]}; None: as it was
    idle_us: int | None = None  # for how long it has run nothing; None: it does


_ANYBODY = OwnRow()


async def beat(  # noqa: PLR0913  what a beat says, and two limits
    tx: Transaction,
    worker: int,
    active: int,
    held: Sequence[LeaseRef],
    *,
    ttl_us: int,
    ceiling_us: int,
    me: OwnRow = _ANYBODY,
    leapt: Callable[[int], int] = lambda _now: 0,
    hosted: Sequence[OwnerBeat] = (),
    renewals: Sequence[Renewal] = (),
) -> Beat:
    """Show life and renew the leases this worker knows it holds, and no others.

    `hosted` are brokers that live in its process, `renewals` their leases.

    `leapt` says, given the store's time, by how many microseconds its clock has leapt since these leases were known to
    hold: they have not run out because it leapt forward, and end no later because it went back.
    """
    shown = await show_life(tx, worker, active, me=me)
    leap_us = leapt(shown.now) if shown.now is not None else 0
    renewed, lost = await renew(tx, held, ttl_us=ttl_us, ceiling_us=ceiling_us, leap_us=leap_us)
    beaten, given_up = await beat_living(tx, hosted, host=worker) if shown.registered else ([], set[int]())
    more_renewed, more_lost = await renew_each(tx, renewals, ceiling_us=ceiling_us, leap_us=leap_us)
    renewed, lost = renewed + more_renewed, lost + more_lost
    return shown._replace(renewed=renewed, lost=lost, hosted=tuple(beaten), given_up=frozenset(given_up))


async def hold(tx: Transaction, lease: Lease) -> Fence:
    """Lock the lease until the commit, or raise `LeaseLost`: what this transaction writes is then the holder's.

    The fence says whether a cancel was requested. Lock the anchors of the job's parents first.
    """
    fence = await try_hold(tx, lease)
    if fence is None:
        raise LeaseLost(lease.id, lease.fence)
    return fence


async def try_hold(tx: Transaction, lease: Lease) -> Fence | None:
    """As `hold`; None when the lease is lost, for a caller that may have given it up itself by an earlier call."""
    return await tx.one(WaitingSql.hold, **lease.held._asdict())


@single
async def show_life(tx: Transaction, worker: int, active: int, *, me: OwnRow = _ANYBODY) -> Beat:
    """The beat of a worker that holds nothing."""
    row = await tx.one(
        WorkersSql.heartbeat,
        seq=worker,
        active=active,
        incarnation=me.incarnation,
        last_beat=me.last_beat,
        presence=None if me.presence is None else int(me.presence),
        lines=me.lines,
        idle_us=me.idle_us,
    )
    if row is None:
        return Beat(False, [], [], incarnation=me.incarnation)
    return Beat(True, [], [], row.status == WorkerState.DRAINING, row.now, row.oldest_code, me.incarnation, row.leases)


async def return_unnamed(
    tx: Transaction, worker: int, incarnation: str, held: Sequence[LeaseRef], *, limit: int
) -> int:
    """Hand back, as if it had not been claimed, what a worker has and does not name; returns how many jobs that were.

    That is how the jobs of a claim come back whose answer was lost. Call it while no claim of the worker is under way:
    it cannot name what that one takes. What somebody else holds locked is left to the next call.
    """
    found = await tx.many(
        LeasesSql.find_unnamed, worker=worker, incarnation=incarnation, held=sorted(held), limit=limit
    )
    if not found:
        return 0
    locked = {job.seq for job in await try_lock_jobs(tx, [ChildRef(lease.seq, lease.parent) for lease in found])}
    free = [lease for lease in found if lease.seq in locked]
    parents = sorted({lease.parent for lease in free if lease.parent is not None})
    return len(await complete_and_settle(tx, [release(lease) for lease in free], parents)) if free else 0


async def renew(
    tx: Transaction, held: Sequence[LeaseRef], *, ttl_us: int, ceiling_us: int, leap_us: int = 0
) -> tuple[list[RenewedLease], list[LeaseRef]]:
    """Extend these leases. What was only skipped (someone is ending it right now) is neither renewed nor lost."""
    if not held:
        return [], []
    ordered = sorted(held)
    renewed = await tx.many(LeasesSql.renew, held=ordered, ttl_us=ttl_us, ceiling_us=ceiling_us, leap_us=leap_us)
    return renewed, await _lost(tx, ordered, renewed, leap_us)


async def renew_each(
    tx: Transaction, renewals: Sequence[Renewal], *, ceiling_us: int, leap_us: int = 0
) -> tuple[list[RenewedLease], list[LeaseRef]]:
    """As `renew`, each lease for a time of its own. A caller that knows the token may renew, in any process."""
    if not renewals:
        return [], []
    ordered = sorted(renewals)
    renewed = await tx.many(LeasesSql.renew_each, renewals=ordered, ceiling_us=ceiling_us, leap_us=leap_us)
    return renewed, await _lost(tx, [renewal.held for renewal in ordered], renewed, leap_us)


async def renew_one(tx: Transaction, renewal: Renewal, *, ceiling_us: int) -> RenewedLease | None:
    """Extend one lease now; None when it is lost. If somebody is changing it, this waits for them."""
    await tx.many(JobsSql.lock_leases, seqs=[renewal.seq])
    renewed, _ = await renew_each(tx, [renewal], ceiling_us=ceiling_us)
    return renewed[0] if renewed else None


async def _lost(
    tx: Transaction, held: Sequence[LeaseRef], renewed: Sequence[RenewedLease], leap_us: int
) -> list[LeaseRef]:
    kept = {(row.seq, row.epoch, row.token) for row in renewed}
    missing = [h for h in held if (h.seq, h.epoch, h.token) not in kept]
    if not missing:
        return []
    rows = await tx.many(LeasesSql.held_tokens, seqs=[h.seq for h in missing])
    alive = {LeaseRef(*row[:4]) for row in rows if row.lease_until > row.now - max(leap_us, 0)}
    return [h for h in missing if h not in alive]


async def beat_living(
    tx: Transaction, beats: Sequence[OwnerBeat], *, host: int | None = None
) -> tuple[list[BeatAnswer], set[int]]:
    """As `beat_many`, and who was given up. One whose row somebody else holds is neither: its next heartbeat counts."""
    beaten = await beat_unlocked(tx, beats, host=host)
    left = {each.seq for each in beats} - {row.seq for row in beaten}
    standing = await tx.many(WorkersSql.standing_of, workers=sorted(left)) if left else []
    return beaten, left - {row.seq for row in standing if row.status in ALIVE}


async def beat_unlocked(tx: Transaction, beats: Sequence[OwnerBeat], *, host: int | None = None) -> list[BeatAnswer]:
    """As `beat_many`, without those whose row somebody else holds."""
    if not beats:
        return []
    free = {row.seq for row in await tx.many(BrokersSql.lock_living, workers=[each.seq for each in beats])}
    return await beat_many(tx, [each for each in beats if each.seq in free], host=host)


@single
async def beat_many(tx: Transaction, beats: Sequence[OwnerBeat], *, host: int | None = None) -> list[BeatAnswer]:
    """The heartbeats of many, in one statement. Those who are not among the answers were given up.

    `host`: the worker in whose process they live; None: as it was.
    """
    return await tx.many(BrokersSql.beat_many, beats=sorted(beats), host=host) if beats else []


@reading
async def lapsed(tx: Transaction, *, until: int) -> bool:
    """Whether a lease ran out by `until`. Reads every job that runs: ask when it is this worker's turn."""
    first = await tx.one(LeasesSql.next_expiry)
    return first is not None and first.at is not None and first.at <= until


@single
async def take_expiry_turn(tx: Transaction, *, pause_us: int) -> bool:
    """Whether the caller is the one to ask for leases that ran out; nobody else is within the pause."""
    return await tx.one(WorkersSql.take_turn, name=EXPIRY, pause_us=pause_us) is not None


async def expire(
    tx: Transaction, *, gone: Collection[int], limit: int, backoff_us: int, chance: random.Random, until: int = FOREVER
) -> list[LostJob]:
    """Rescue jobs whose lease ran out by `until`, or whose worker is among `gone`; at most `limit` of them.

    A worker is gone once its row says so (`lose_workers`, `unregister`), which is final: it cannot beat any more. What
    a worker holds that the store has not given up is left to it, even if it is in `gone`.
    """
    listed = sorted(gone)
    if listed:
        listed = await _given_up(tx, listed)
    found = await tx.many(LeasesSql.find_lapsed, gone=listed, until=until, limit=limit)
    if not found:
        return []
    locked = await try_lock_jobs(tx, found)
    if not locked:
        return []
    lost = await tx.many(
        LeasesSql.expire,
        seqs=[job.seq for job in locked],
        gone=listed,
        backoff_us=backoff_us,
        jitter=chance.randrange(500),
        at_once=0,
        charge=0,
        **ERRORS,
    )
    await settle(tx, [job.moved for job in lost])
    return lost


async def _given_up(tx: Transaction, gone: Sequence[int]) -> list[int]:
    """Without those whom the store counts as alive, and with those who lived in the processes of the others."""
    rows = await tx.many(WorkersSql.standing_of, workers=gone)
    living = {row.seq for row in rows if row.status in ALIVE}
    return sorted({*gone, *(row.seq for row in rows)} - living)
