"""Demand: how much there is to do, for those who decide how many workers to start.

What nobody may claim now does not count: jobs of a paused queue, jobs that their lanes hold back, jobs that nobody with
the given capabilities could run.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.queues import CAP
from holdfast.kernel.routes import serves
from holdfast.kernel.statements import BrokersSql, WorkersSql


class Demand(NamedTuple):
    """Jobs that could start now, and jobs that run; each count stops at the cap."""

    pending: int
    running: int


class SeenRoutes(NamedTuple):
    """All routes there are, and those that some workers serve."""

    known: frozenset[int]
    served: frozenset[int]


@reading
async def claimable(
    tx: Transaction, queues: Collection[str] | None, *, capabilities: Collection[str] | None = None, cap: int = CAP
) -> Demand:
    """What is to be done in these queues (None: in all) by workers with these capabilities (None: with any)."""
    seen = await routes_served(tx, queues, capabilities)
    return await demand_on(tx, seen.served, cap=cap)


@reading
async def routes_served(
    tx: Transaction, queues: Collection[str] | None, capabilities: Collection[str] | None
) -> SeenRoutes:
    """The routes of these queues (None: of all) that workers with these capabilities (None: with any) serve."""
    known = await tx.many(WorkersSql.list_routes, since=0)
    able = [route for route in known if queues is None or route.queue in queues]
    served = [route.id for route in able if capabilities is None or serves(route, queues, capabilities)]
    return SeenRoutes(frozenset(route.id for route in known), frozenset(served))


@reading
async def demand_on(tx: Transaction, served: Collection[int], *, cap: int = CAP) -> Demand:
    """What is to be done on these routes."""
    routes = sorted(served)
    if not routes:
        return Demand(0, 0)
    rows = await tx.many(BrokersSql.demand, routes=routes, cap=cap)
    lanes = await tx.many(BrokersSql.lane_demand, routes=routes, cap=cap)
    pending = sum(row.pending for row in rows) + sum(min(lane.pending, max(0, lane.room)) for lane in lanes)
    return Demand(min(cap, pending), min(cap, sum(row.running for row in rows)))
