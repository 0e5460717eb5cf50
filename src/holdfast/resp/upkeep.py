"""Upkeep: what any Holdfast process does now and then, done here too, because a gateway may be the only one.

Workers that are silent are given up, leases that ran out end, what is due wakes. Each is bounded and compare-and-set,
so it does not matter who else does it.
"""

from __future__ import annotations

import logging

from holdfast.errors import Unavailable
from holdfast.kernel import leases, waiting, workers
from holdfast.kernel.queries import now
from holdfast.resp import keyspace
from holdfast.resp.gateway import Gateway

log = logging.getLogger("holdfast.resp")

_PAUSE = 1.0
_LIMIT = 500
_PRUNE_EVERY = 60


class Upkeep:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def run(self) -> None:
        turn = 0
        while True:
            await self._gateway.clock.sleep(_PAUSE)
            turn += 1
            try:
                await self.sweep()
                if turn % _PRUNE_EVERY == 0:
                    await self._gateway.transact(keyspace.prune, limit=_LIMIT)
            except Unavailable as problem:
                log.warning("the store is away: %s", problem)

    async def sweep(self) -> None:
        """Give up who is silent, and bring back what nobody holds any more."""
        transact, chance = self._gateway.transact, self._gateway.core.ports.random
        moment = await transact(now)
        await transact(workers.lose_workers, gone=(), reason="no heartbeat in its ttl", until=moment)
        if await transact(leases.lapsed, until=moment):
            await transact(leases.expire, gone=(), limit=_LIMIT, backoff_us=0, chance=chance, until=moment)
        await transact(waiting.wake, limit=_LIMIT)
        self._gateway.pops.hear("")
