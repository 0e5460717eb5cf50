"""Claim: take jobs from the routes a worker serves, in their order, each under a new token."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from holdfast.kernel.database import Transaction, reading, single
from holdfast.kernel.rows import Lease
from holdfast.kernel.statements import JobsSql


@single
async def claim(tx: Transaction, worker: int, routes: Sequence[int], n: int, ttl_us: int) -> list[Lease]:
    """At most `n` jobs. A short answer does not mean that nothing is left: ask `heads`."""
    if len(routes) == 1:
        leases = await tx.many(JobsSql.claim_one, worker=worker, route=routes[0], n=n, ttl_us=ttl_us)
    else:
        leases = await tx.many(JobsSql.claim, worker=worker, routes=routes, n=n, ttl_us=ttl_us)
    leases.sort(key=attrgetter("place"))
    return leases


@reading
async def heads(tx: Transaction, routes: Sequence[int]) -> list[int]:
    """Those of the routes that have something to claim now, the most urgent and then the oldest head first."""
    return [row.route for row in await tx.many(JobsSql.heads, routes=routes)]
