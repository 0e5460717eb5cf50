"""The store's clock after it went back: times that were written before lie in the future and are brought back.

Every step is bounded and does nothing the second time, so any worker that notices does it. What a person gave as a
time, and what was due after a pause, stays: nobody can tell the two apart.
"""

from __future__ import annotations

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.rows import AheadOfClock
from holdfast.kernel.statements import LanesSql, LeasesSql, WorkersSql

GRACE_US = 5_000_000  # clocks are set by as much without further ado


@reading
async def ahead_of_clock(tx: Transaction, *, lease_ttl_us: int) -> AheadOfClock:
    """What bears a time that the clock has yet to reach, because it has gone back since."""
    found = await tx.one(WorkersSql.ahead_of_clock, ttl_us=lease_ttl_us, grace_us=GRACE_US)
    assert found is not None
    return found


async def bring_back(tx: Transaction, *, lease_ttl_us: int, duty_ttl_us: int, limit: int) -> bool:
    """Bring lanes, leases, workers, duties and routes back to now; True when there may be more to do.

    A lane is as far ahead of the clock as it was when it was charged. A lease ends, a worker is silent, and a
    process is late, no later than if it had been renewed or started now.
    """
    leases = await tx.many(LeasesSql.shorten_leases, ttl_us=lease_ttl_us, limit=limit)
    lanes = await tx.many(LanesSql.mend_lanes, limit=limit)
    await tx.run(WorkersSql.bring_back_workers)
    await tx.run(WorkersSql.bring_back_duties, ttl_us=duty_ttl_us)
    await tx.run(WorkersSql.bring_back_routes)
    return len(leases) == limit or len(lanes) == limit
