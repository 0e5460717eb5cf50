"""Leases of jobs that this server has sent over connections that still live.

Their worker may send its heartbeats to another server, which does not know what this one has sent. So each server
renews what it has sent, while the worker lives, wherever it is heard.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from holdfast.errors import Unavailable
from holdfast.kernel.broker_rows import Renewal
from holdfast.kernel.brokers import leases_of
from holdfast.kernel.database import Transaction
from holdfast.kernel.leases import renew_each
from holdfast.kernel.rows import Held
from holdfast.resp.gateway import RespGateway
from holdfast.resp.rows import Epoch
from holdfast.resp.statements import HoldersSql
from holdfast.resp.workers import MOST, NEVER_US

log = logging.getLogger("holdfast.resp")


class LeaseRenewal:
    def __init__(self, gateway: RespGateway) -> None:
        self._gateway = gateway

    async def run(self) -> None:
        every = self._gateway.options.heartbeat.total_seconds()
        while True:
            await self._gateway.clock.sleep(every)
            try:
                await self.keep()
            except Unavailable as problem:
                self._gateway.core.ports.try_again(problem)
            except Exception:  # the edge of a task that all workers need: it continues
                log.exception("cannot keep the leases of jobs that were sent")

    async def keep(self) -> None:
        """Renew what was sent over connections of this server, and forget what has ended since."""
        delivered = self._gateway.pops.delivered
        for epoch, mine in delivered.by_epoch().items():
            still = await self._gateway.transact(keep, epoch, mine, ttl_us=self._gateway.dead_after_us)
            delivered.forget_others(mine, still)


async def keep(tx: Transaction, epoch: Epoch, delivered: Collection[Held], *, ttl_us: int) -> set[Held]:
    """Renew what a live worker was sent, but not beyond its own time. Which of them it holds still."""
    alive = await tx.many(HoldersSql.live_holders, workers=[epoch.worker], told=[])
    if [row.epoch for row in alive] != [epoch]:
        return set()
    now, left_us = alive[0].now, alive[0].left_us
    leases = [each for each in await leases_of(tx, epoch.worker, limit=MOST) if each.lease.held in delivered]
    soon = [each.lease.held for each in leases if each.lease_until - now < ttl_us * 2 // 3]
    await renew_each(tx, [Renewal(*held, min(ttl_us, left_us)) for held in soon], ceiling_us=NEVER_US)
    return {each.lease.held for each in leases}
