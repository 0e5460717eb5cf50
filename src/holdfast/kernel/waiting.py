"""Waiting without a worker: parking, signals, steps and children.

A parked handler starts again from its beginning when it is woken. Steps make that cheap: what was stored under
a name is returned, not repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.errors import LeaseLost, SignalConflict, UsageError
from holdfast.kernel import leases
from holdfast.kernel.codec import check_text
from holdfast.kernel.database import Transaction, hint, reading, single
from holdfast.kernel.families import lock_jobs, settle, try_lock_jobs
from holdfast.kernel.ids import JobId
from holdfast.kernel.lanes import free_lanes
from holdfast.kernel.rows import ChildRow, LastStep, Lease, MovedJob, Resolution, Step, Suspension, WokenJob
from holdfast.kernel.statements import JobsSql, WaitingSql
from holdfast.kernel.states import State

_OWN = "holdfast:"


def own_channel(name: str) -> str:
    """A channel on which something of Holdfast's own waits; nobody else can signal there."""
    return f"{_OWN}{name}"


def is_own_channel(channel: str) -> bool:
    return channel.startswith(_OWN)


def check_channel(channel: str) -> str:
    """A channel that a program names."""
    check_text(channel, what="a channel")
    if is_own_channel(channel):
        raise UsageError(f"channel {channel!r} is reserved for Holdfast: your program cannot signal or wait there.")
    return channel


async def lock_channel(tx: Transaction, channel: str) -> None:
    """Let nobody else signal on this channel, or begin to wait there, until the commit."""
    await tx.run(WaitingSql.lock_channel, channel=channel)


async def held_channels(tx: Transaction, channels: Iterable[str]) -> list[str]:
    """Those of these channels that somebody else has locked; the others are locked now, if they have a row."""
    names = sorted(set(channels))
    return [row.name for row in await tx.many(WaitingSql.held_channels, names=names)] if names else []


async def list_channels(tx: Transaction, *, after: str, limit: int) -> list[str]:
    """The channels that have a row, in the order of their names."""
    return [row.name for row in await tx.many(WaitingSql.list_channels, after=after, limit=limit)]


async def park(tx: Transaction, lease: Lease, *, channel: str | None, timeout_us: int | None) -> str:
    """Give the lease up and wait; returns the state the job went to. `LeaseLost`: also when cancel was requested.

    With no open child, or with an unread signal on the channel, there is nothing to wait for and the job is
    pending again.
    """
    if channel is not None:
        await lock_channel(tx, channel)
    elif await tx.one(WaitingSql.hold_still, **lease.held._asdict()) is None:
        raise LeaseLost(lease.id, lease.fence)
    parked = await tx.one(WaitingSql.park, **lease.held._asdict(), channel=channel, timeout_us=timeout_us)
    if parked is None:
        raise LeaseLost(lease.id, lease.fence)
    if parked.state == State.PENDING:
        await hint(tx, [parked.route])
    if lease.lane is not None:
        await free_lanes(tx, [lease.lane])
    return parked.state


async def suspend(tx: Transaction, suspensions: Sequence[Suspension]) -> list[int]:
    """Let pending jobs wait for a signal before anybody may claim them; returns the numbers of those that do now."""
    return [row.seq for row in await tx.many(WaitingSql.suspend, suspensions=suspensions)]


async def resolve(
    tx: Transaction, resolutions: Sequence[Resolution], parents: Sequence[int | None] = ()
) -> list[MovedJob]:
    """Settle waiting jobs without a worker; the caller that brings what they wait for does it in the same transaction.

    Those that do not wait on that channel any more are not among the returned. `parents` are locked with them.
    """
    ordered = sorted(resolutions)
    await lock_jobs(tx, [*(each.seq for each in ordered), *(parent for parent in parents if parent)])
    moved = await tx.many(WaitingSql.resolve, resolutions=ordered)
    await settle(tx, moved)
    return moved


async def signal(tx: Transaction, id: str, channel: str, payload: str) -> list[WokenJob]:
    """Leave a signal on a channel, and wake every job that is parked on it. It stays until someone takes it, once.

    Sent again it stays one signal; `SignalConflict` when it says something else now.
    """
    await lock_channel(tx, channel)
    if await tx.one(WaitingSql.send_signal, id=id, channel=channel, payload=payload) is None:
        before = await tx.one(WaitingSql.sent_signal, id=id)
        if before is not None and before.payload != payload:
            raise SignalConflict(channel)
    woken = await tx.many(WaitingSql.signal, channel=channel)
    await hint(tx, [job.route for job in woken])
    return woken


async def wake_some(tx: Transaction, channel: str, *, limit: int) -> int:
    """Wake some of those who are parked on a channel, without a signal; returns how many. Its row is locked then."""
    await lock_channel(tx, channel)
    woken = await tx.many(WaitingSql.wake_some, channel=channel, limit=limit)
    await hint(tx, [job.route for job in woken])
    return len(woken)


class TakenSignal(NamedTuple):
    payload: str | None  # None: nothing has arrived yet
    now: int


async def take_signal(tx: Transaction, lease: Lease, channel: str, step: str) -> TakenSignal:
    """Take the oldest signal of a channel and store it as a step of this job, both or neither."""
    await lock_channel(tx, channel)
    fence = await leases.hold(tx, lease)
    if stored := await tx.one(WaitingSql.find_step, seq=lease.seq, name=step):
        return TakenSignal(stored.result, fence.now)
    taken = await tx.one(WaitingSql.take_signal, channel=channel)
    if taken is None:
        return TakenSignal(None, fence.now)
    await tx.one(WaitingSql.store_step, **lease.held._asdict(), name=step, result=taken.payload, signal=taken.id)
    return TakenSignal(taken.payload, fence.now)


@reading
async def list_steps(tx: Transaction, seq: int) -> list[Step]:
    return await tx.many(WaitingSql.list_steps, seq=seq)


@reading
async def last_step(tx: Transaction, seq: int, prefix: str) -> LastStep | None:
    """The newest step whose name begins so."""
    return await tx.one(WaitingSql.last_step, seq=seq, prefix=prefix)


@single
async def store_step(tx: Transaction, lease: Lease, name: str, result: str) -> str:
    """Store a step's result once; returns what is stored under that name now.

    One statement stores it under the lease. If it stores nothing, the lease is lost or the step is there already, and
    stays there: no transaction has to hold the answers to these two questions together.
    """
    stored = await tx.one(WaitingSql.store_step, **lease.held._asdict(), name=name, result=result, signal=None)
    if stored is None:
        await leases.hold(tx, lease)
        stored = await tx.one(WaitingSql.find_step, seq=lease.seq, name=name)
    return stored.result if stored else result


async def raise_count(tx: Transaction, id: JobId, name: str, by: int) -> int | None:
    """Raise a number that is kept with a job, without its lease; returns what it is now. None: the job is gone."""
    row = await tx.one(WaitingSql.raise_count, id=id, name=name, result=str(by))
    return None if row is None else int(row.result)


async def begin_step(tx: Transaction, seq: int, name: str) -> str | None:
    """What is stored under this name of a step; None when nothing is, and the caller does it in this transaction.

    On SQLite it takes the write lock first: a transaction that has only read cannot write any more once another one has
    committed, and would find that out after the effect.
    """
    await tx.run(WaitingSql.take_write_lock)
    stored = await tx.one(WaitingSql.find_step, seq=seq, name=name)
    return None if stored is None else stored.result


@single
async def report_progress(tx: Transaction, lease: Lease, progress: str) -> None:
    if await tx.one(JobsSql.report_progress, **lease.held._asdict(), progress=progress) is None:
        raise LeaseLost(lease.id, lease.fence)


async def add_children(tx: Transaction, seq: int, added: int) -> None:
    """Let a job wait for so many more children. Its lease is held, and so is its anchor."""
    await tx.run(WaitingSql.add_children, seq=seq, added=added)


@reading
async def list_children(tx: Transaction, seq: int) -> list[ChildRow]:
    return await tx.many(WaitingSql.list_children, seq=seq)


async def wake(tx: Transaction, *, limit: int) -> int:
    """Make pending what is due: scheduled jobs and waits that timed out. Returns how many."""
    woken = await tx.many(WaitingSql.wake, limit=limit)
    await hint(tx, [job.route for job in woken])
    return len(woken)


async def overdue(tx: Transaction, *, limit: int) -> Sequence[MovedJob]:
    """Fail jobs whose deadline passed while nobody ran them."""
    found = await tx.many(WaitingSql.find_overdue, limit=limit)
    if not found:
        return []
    locked = await try_lock_jobs(tx, found)
    moved = (
        await tx.many(WaitingSql.overdue, seqs=[job.seq for job in locked], error=leases.DEADLINE_ERROR)
        if locked
        else []
    )
    await settle(tx, moved)
    return moved
