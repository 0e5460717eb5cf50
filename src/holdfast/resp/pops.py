"""Pops: claims under a lease, for all connections of this server together.

Clients that wait for jobs wait here. One task claims for all of them, when a hint says that there may be work and once
a second anyway: a thousand connections that wait cost as many statements as one. A job that was claimed for somebody
who left meanwhile goes back at once; what cannot be given back comes back when its lease ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.errors import Unavailable
from holdfast.kernel.brokers import Claimer, claim_for
from holdfast.kernel.complete import complete_and_settle, release
from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.rows import Held, Lease, Route
from holdfast.kernel.workers import list_routes
from holdfast.resp import workers
from holdfast.resp.options import RespOptions
from holdfast.resp.statements import HoldersSql

log = logging.getLogger("holdfast.resp")

_POLL = 1.0
_US = 1_000_000


@dataclass(eq=False, slots=True)
class Waiter:
    """Somebody who waits for jobs of these queues, the first first."""

    worker: int
    id: str
    capabilities: frozenset[str]
    queues: tuple[str, ...]
    count: int
    leases: asyncio.Future[list[Lease]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Ask(NamedTuple):
    """How many jobs a worker asks for, and the routes of each of its queues."""

    worker: int
    jobs: int
    rounds: tuple[frozenset[int], ...]


class Pops:
    def __init__(self, database: Database, options: RespOptions) -> None:
        self._database = database
        self._beat_every = options.heartbeat.total_seconds()
        self._ttl_us = int(options.dead_after.total_seconds() * _US)
        self._waiting: list[Waiter] = []
        self._woken = asyncio.Event()
        self._returning: set[asyncio.Task[None]] = set()
        self.delivered: dict[Held, int] = {}  # by the connection that its reply went out over

    def hear(self, note: str) -> None:
        """A hint: something may be claimable."""
        self._woken.set()

    async def take(self, waiter: Waiter, seconds: float | None) -> list[Lease]:
        """Jobs for somebody within this time: None waits for ever, 0 does not wait. Empty: there were none."""
        try:
            if seconds == 0:
                await self._claim(await self._routes(), [waiter])
                return waiter.leases.result() if waiter.leases.done() else []
            self._waiting.append(waiter)
            self._woken.set()
            async with asyncio.timeout(seconds):
                return await asyncio.shield(waiter.leases)
        except TimeoutError:
            return waiter.leases.result() if waiter.leases.done() else []
        except asyncio.CancelledError:
            if waiter.leases.done():
                self.give_back(waiter.leases.result())
            raise
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiter)
            if not waiter.leases.done():
                waiter.leases.cancel()

    def deliver(self, leases: Sequence[Lease], client: int) -> None:
        """Their replies are going out over this connection."""
        self.delivered |= dict.fromkeys((lease.held for lease in leases), client)

    def lose_client(self, client: int) -> None:
        """A connection has ended: whether its last replies arrived is not known any more."""
        self.delivered = {held: by for held, by in self.delivered.items() if by != client}

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Release what reached nobody."""
        task = asyncio.get_running_loop().create_task(self._give_back(list(leases)))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _give_back(self, leases: Sequence[Lease]) -> None:
        parents = sorted({lease.parent for lease in leases if lease.parent is not None})
        try:
            await self._database.transact(complete_and_settle, [release(lease) for lease in leases], parents)
        except Unavailable as problem:
            log.warning("%d jobs come back when their leases end: %s", len(leases), problem)

    async def run(self) -> None:
        """Claim for those who wait, until cancelled."""
        loop = asyncio.get_running_loop()
        beaten = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_POLL, self._beat_every / 2) if self._waiting else None):
                    await self._woken.wait()
            self._woken.clear()
            try:
                if self._waiting:
                    await self._claim(await self._routes(), [*self._waiting])
                if loop.time() - beaten > self._beat_every / 2:
                    beaten = loop.time()
                    await self._beat()
            except Unavailable as problem:
                log.warning("cannot look for jobs: %s", problem)
                await asyncio.sleep(_POLL)

    async def close(self) -> None:
        if self._returning:
            await asyncio.wait(self._returning)

    async def _routes(self) -> list[Route]:
        return await self._database.transact(list_routes, since=0)

    async def _claim(self, routes: Sequence[Route], waiters: Sequence[Waiter]) -> None:
        asks = [
            Ask(each.worker, each.count, tuple(_served(routes, queue, each.capabilities) for queue in each.queues))
            for each in waiters
        ]
        leases = await self._database.transact(claim_asked, asks, ttl_us=self._ttl_us)
        for waiter in waiters:
            mine = [lease for lease in leases if lease.worker == waiter.worker][: waiter.count]
            if not mine:
                continue
            leases = [lease for lease in leases if lease not in mine]
            if waiter.leases.done():  # it has left
                self.give_back(mine)
            else:
                waiter.leases.set_result(mine)
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
        if leases:
            self.give_back(leases)

    async def _beat(self) -> None:
        """A worker that waits here is alive: its connection is."""
        for id in {waiter.id for waiter in self._waiting}:
            with contextlib.suppress(workers.NotRegistered):
                held = frozenset(self.delivered)
                await self._database.transact(workers.heartbeat, id, None, ttl_us=self._ttl_us, delivered=held)


def _served(routes: Sequence[Route], queue: str, capabilities: frozenset[str]) -> frozenset[int]:
    return frozenset(route.id for route in routes if workers.serves(route, queue, capabilities))


async def claim_asked(tx: Transaction, asks: Sequence[Ask], *, ttl_us: int) -> list[Lease]:
    """Claim for each as many as it asks for and has places for, from its first queue, then from its second …"""
    holders = await tx.many(HoldersSql.lock_holders, workers=sorted({worker for worker, _, _ in asks}))
    free = {holder.seq: holder.slots - holder.held for holder in holders}
    wanted = [count for _, count, _ in asks]
    claimed: list[Lease] = []
    for turn in range(max((len(rounds) for _, _, rounds in asks), default=0)):
        claimers: list[Claimer] = []
        promised = dict(free)
        for number, (worker, _, rounds) in enumerate(asks):
            n = min(wanted[number], promised.get(worker, 0))
            if n > 0 and turn < len(rounds) and rounds[turn]:
                claimers.append(Claimer(worker, rounds[turn], n, ttl_us))
                promised[worker] -= n
        for lease in await claim_for(tx, claimers) if claimers else []:
            claimed.append(lease)
            free[lease.worker] -= 1
            first = next(
                number for number, (worker, _, _) in enumerate(asks) if worker == lease.worker and wanted[number]
            )
            wanted[first] -= 1
    return claimed
