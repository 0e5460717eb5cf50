"""Waiting without a worker: parking, signals, steps and children.

A parked handler starts again from its beginning when it is woken. Steps make that cheap: what was stored under
a name is returned, not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import LeaseLost, UsageError
from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.encoding import check_text
from holdfast.kernel.families import hint, lock_order, settle
from holdfast.kernel.lanes import free_lanes
from holdfast.kernel.leases import DEADLINE_ERROR
from holdfast.kernel.records import Child, Lease, Moved, Resolution, Step, Suspension, Woken
from holdfast.kernel.statements import Jobs, Leases, Waiting
from holdfast.kernel.states import State

_OWN = "holdfast:"


def own_channel(name: str) -> str:
    """A channel on which something of Holdfast's own waits; nobody else can signal there."""
    return f"{_OWN}{name}"


def check_channel(channel: str) -> str:
    """A channel that a program names."""
    check_text(channel, what="a channel")
    if channel.startswith(_OWN):
        raise UsageError(f"channel {channel!r} is Holdfast's own: no program signals or waits there.")
    return channel


async def park(tx: Transaction, lease: Lease, *, channel: str | None, timeout_us: int | None) -> str:
    """Give the lease up and wait; returns the state the job went to. `LeaseLost`: also when cancel was requested.

    With no open child, or with an unread signal on the channel, there is nothing to wait for and the job is
    pending again.
    """
    if channel is not None:
        await tx.run(Waiting.lock_channel, channel=channel)
    parked = await tx.one(Waiting.park, **lease.held._asdict(), channel=channel, timeout_us=timeout_us)
    if parked is None:
        raise LeaseLost(lease.id, lease.fence)
    await tx.run(Waiting.record_parked, **lease.held._asdict(), started_at=lease.claimed_at)
    if parked.state == State.PENDING:
        await hint(tx, [parked.route])
    if lease.lane is not None:
        await free_lanes(tx, [lease.lane])
    return parked.state


async def suspend(tx: Transaction, suspensions: Sequence[Suspension]) -> list[int]:
    """Let pending jobs wait for a signal before anybody may claim them; returns the numbers of those that do now."""
    return [row.seq for row in await tx.many(Waiting.suspend, suspensions=suspensions)]


async def resolve(
    tx: Transaction, resolutions: Sequence[Resolution], parents: Sequence[int | None] = ()
) -> list[Moved]:
    """Settle jobs that wait, without a worker; whoever brings what they wait for does it in the same transaction.

    Those that do not wait on that channel any more are not among the returned. `parents` are locked with them.
    """
    ordered = sorted(resolutions)
    seqs = [each.seq for each in ordered]
    await tx.many(Jobs.lock_jobs, seqs=lock_order([*((seq, None) for seq in seqs), *((p, None) for p in parents if p)]))
    moved = await tx.many(Waiting.resolve, resolutions=ordered, seqs=seqs)
    await settle(tx, moved)
    return moved


async def signal(tx: Transaction, id: str, channel: str, payload: str) -> list[Woken]:
    """Leave a signal on a channel, and wake whoever is parked on it. It stays until someone takes it, once."""
    await tx.run(Waiting.lock_channel, channel=channel)
    await tx.run(Waiting.send_signal, id=id, channel=channel, payload=payload)
    woken = await tx.many(Waiting.signal, channel=channel)
    await hint(tx, [job.route for job in woken])
    return woken


class Taken(NamedTuple):
    payload: str | None  # None: nothing has arrived yet
    now: int


async def take_signal(tx: Transaction, lease: Lease, channel: str, step: str) -> Taken:
    """Take the oldest signal of a channel and store it as a step of this job, both or neither."""
    await tx.run(Waiting.lock_channel, channel=channel)
    fence = await tx.one(Waiting.hold, **lease.held._asdict())
    if fence is None:
        raise LeaseLost(lease.id, lease.fence)
    if stored := await tx.one(Waiting.find_step, seq=lease.seq, name=step):
        return Taken(stored.result, fence.now)
    taken = await tx.one(Waiting.take_signal, channel=channel)
    if taken is None:
        return Taken(None, fence.now)
    await tx.one(Waiting.store_step, **lease.held._asdict(), name=step, result=taken.payload, signal=taken.id)
    return Taken(taken.payload, fence.now)


@reading
async def list_steps(tx: Transaction, seq: int) -> list[Step]:
    return await tx.many(Waiting.list_steps, seq=seq)


async def store_step(tx: Transaction, lease: Lease, name: str, result: str) -> str:
    """Store a step's result once; returns what is stored under that name now."""
    stored = await tx.one(Waiting.store_step, **lease.held._asdict(), name=name, result=result, signal=None)
    if stored is None:
        if await tx.one(Waiting.hold, **lease.held._asdict()) is None:
            raise LeaseLost(lease.id, lease.fence)
        stored = await tx.one(Waiting.find_step, seq=lease.seq, name=name)
    return stored.result if stored else result


@single
async def report_progress(tx: Transaction, lease: Lease, progress: str) -> None:
    if await tx.one(Jobs.report_progress, **lease.held._asdict(), progress=progress) is None:
        raise LeaseLost(lease.id, lease.fence)


@reading
async def list_children(tx: Transaction, seq: int) -> list[Child]:
    return await tx.many(Waiting.list_children, seq=seq)


async def wake(tx: Transaction, *, limit: int) -> int:
    """Make pending what is due: scheduled jobs and waits that timed out. Returns how many."""
    woken = await tx.many(Waiting.wake, limit=limit)
    await hint(tx, [job.route for job in woken])
    return len(woken)


async def overdue(tx: Transaction, *, limit: int) -> Sequence[Moved]:
    """Fail jobs whose deadline passed while nobody ran them."""
    found = await tx.many(Waiting.find_overdue, limit=limit)
    if not found:
        return []
    locked = {row.seq for row in await tx.many(Leases.try_lock_jobs, seqs=lock_order(found))}
    seqs = [job.seq for job in found if job.seq in locked and (job.parent is None or job.parent in locked)]
    moved = await tx.many(Waiting.overdue, seqs=seqs, error=DEADLINE_ERROR) if seqs else []
    await settle(tx, moved)
    return moved
