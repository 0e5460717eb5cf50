"""Upkeep: what any Holdfast process does now and then, done here too, because a gateway may be the only one.

Workers that are silent are given up, leases that ran out end, what is due wakes. Each is bounded and compare-and-set,
so it does not matter who else does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from holdfast.errors import Unavailable
from holdfast.kernel import leases, waiting, workers
from holdfast.kernel.broker_rows import NOWHERE
from holdfast.resp import keyspace
from holdfast.resp import workers as resp_workers
from holdfast.resp.gateway import RespGateway

log = logging.getLogger("holdfast.resp")

_PAUSE = 1.0
_LIMIT = 500
_PRUNE_EVERY = 60


class Upkeep:
    def __init__(self, gateway: RespGateway) -> None:
        self._gateway = gateway

    async def run(self) -> None:
        turn, wanted = 0, self._gateway.pops.look_wanted
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await wanted.wait()
            wanted.clear()
            turn += 1
            try:
                await self.sweep()
                if turn % _PRUNE_EVERY == 0:
                    await self._gateway.transact(keyspace.prune, limit=_LIMIT)
            except Unavailable as problem:
                self._gateway.core.ports.try_again(problem)
            except Exception:  # the edge of a task that everybody needs: it continues
                log.exception("upkeep failed")

    async def sweep(self) -> None:
        """Look once for everybody, give up who is silent, and bring back what nobody holds any more."""
        transact, chance, pops = self._gateway.transact, self._gateway.core.ports.random, self._gateway.pops
        sight = await transact(workers.look, NOWHERE, pops.served())
        if sight.silent:
            await transact(workers.lose_workers, gone=(), reason=resp_workers.SILENT, until=sight.now)
        if sight.leased:
            await transact(resp_workers.give_up_silent, limit=_LIMIT, chance=chance, until=sight.now)
        if sight.leased and await transact(leases.lapsed, until=sight.now):
            await transact(leases.expire, gone=(), limit=_LIMIT, backoff_us=0, chance=chance, until=sight.now)
        if sight.next_due is not None and sight.next_due <= sight.now:
            await transact(waiting.wake, limit=_LIMIT)
        await pops.looked(sight)
