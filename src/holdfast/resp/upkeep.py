"""Upkeep: what any Holdfast process does now and then, done here too, because a gateway may be the only one.

A hub without brokers does it, as it does for programs that hold leases: it sweeps, and holds duties. So deadlines,
lanes, families, retention, schedules and tallies need no worker. What is left is the gateway's own: to look for those
who wait for jobs, and to take back what its silent workers hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from holdfast.brokers.hub import Hub
from holdfast.errors import Unavailable
from holdfast.kernel import workers
from holdfast.kernel.broker_rows import NOWHERE
from holdfast.resp import workers as resp_workers
from holdfast.resp.gateway import RespGateway
from holdfast.workers.lifeline import Lifeline

log = logging.getLogger("holdfast.resp")

_PAUSE = 1.0
_LIMIT = 500


class Upkeep:
    def __init__(self, gateway: RespGateway, lifeline: Lifeline | None = None) -> None:
        """`lifeline`: what beats for it, instead of a thread."""
        self._gateway = gateway
        core = gateway.core
        self._hub = Hub(core.registry, gateway.database, core.settings, core.ports, name="resp", lifeline=lifeline)

    async def begin(self) -> None:
        await self._hub.start()

    async def close(self) -> None:
        await self._hub.close()

    async def run(self) -> None:
        wanted = self._gateway.pops.look_wanted
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await wanted.wait()
            wanted.clear()
            try:
                await self.look()
            except Unavailable as problem:
                self._gateway.core.ports.try_again(problem)
            except Exception:  # the edge of a task that everybody needs: it continues
                log.exception("cannot look for those who wait for jobs")

    async def look(self) -> None:
        """Look once for everybody who waits here, and take back what workers hold that were silent for too long."""
        gateway, pops = self._gateway, self._gateway.pops
        sight = await gateway.transact(workers.look, NOWHERE, pops.served())
        if sight.leased and await gateway.transact(resp_workers.is_silent, until=sight.now):
            chance = gateway.core.ports.random
            await gateway.transact(resp_workers.give_up_silent, limit=_LIMIT, chance=chance, until=sight.now)
        await pops.looked(sight)
