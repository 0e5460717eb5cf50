"""Brokers in the simulated cluster: processes that are struck like any other, each with a hub and some brokers.

They do errands: jobs of a kind that no worker knows. Errands take longer than leases, and end in every way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass, field

from holdfast.brokers.hub import Hub, KeptLease, Key
from holdfast.brokers.waiters import BrokerScope
from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.errors import LeaseLost, Unavailable
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.ids import new_id
from holdfast.kernel.routes import route_for
from holdfast.kernel.workers import Registration
from holdfast.outcomes import Done, Fail, Snooze, TryAgain
from holdfast.workers.lifeline import TaskLifeline
from holdfast.workers.worker import Worker
from tests.simulation.cluster import Machine, OwnLifeline, Process, WorkerFactory
from tests.simulation.swarm import Options
from tests.simulation.transport import SimDatabase
from tests.simulation.world import World
from tests.support.jobs import plain_job
from tests.support.virtual_time import VirtualLoop

ERRAND = "errand"
MACHINES = 2
BROKERS = 3
GAP_S = 4.0


@dataclass(eq=False)
class SimBroker:
    """A broker as the hub sees it."""

    who: Registration
    renews: bool
    ttl_us: int
    takes: BrokerScope
    seq: int = 0
    draining: bool = False
    idle_from: float | None = None
    holds: dict[Key, KeptLease] = field(default_factory=dict)
    reserved: int = 0
    incarnation: str = ""


class BrokerProcess(Process):
    async def live(self) -> None:
        settings = self._options.settings
        ports = self.ports = Ports(clock=self.node.clock, random=self._chance)
        database = SimDatabase(self._store, self, self.node.clock)
        heart = SimDatabase(self._store, self, self._lifeline.clock)
        lifeline = TaskLifeline(heart, ports, settings.heartbeat.total_seconds())
        own = lifeline if self._lifeline is self.node else OwnLifeline(lifeline, self._lifeline)
        hub = Hub(self._machine.registry, database, settings, ports, lifeline=own)
        try:
            await hub.start()
            await self._serve(hub)
        except Unavailable:
            pass
        except asyncio.CancelledError:
            await hub.close()
        self._exit()

    async def _serve(self, hub: Hub) -> None:
        brokers = [self._broker(number) for number in range(BROKERS)]
        for broker in brokers:
            await hub.join(broker)
        try:
            async with asyncio.TaskGroup() as tasks:
                for broker in brokers:
                    tasks.create_task(self._work(hub, broker))
        finally:
            for kept in [kept for broker in brokers if not broker.renews for kept in list(broker.holds.values())]:
                await self._quietly(hub.release(kept))

    def _broker(self, number: int) -> SimBroker:
        who = Registration("", new_id(self.ports), f"{self.name}.{number}", "", 0, "", (f"job:{ERRAND}",), None, 2)
        ttl_us = microseconds(self._options.settings.lease_ttl)
        return SimBroker(who, number > 0, ttl_us, BrokerScope(None, frozenset(who.capabilities)))

    async def _work(self, hub: Hub, broker: SimBroker) -> None:
        while not broker.draining:
            try:
                for kept in await hub.claim(broker, 1 + self._chance.randrange(2), self._chance.choice((0.0, 5.0))):
                    await self._quietly(self._errand(hub, kept))
            except Unavailable:
                pass
            await self.node.clock.sleep(0.5)

    async def _errand(self, hub: Hub, kept: KeptLease) -> str:
        lasts = kept.owner.ttl_us / 1e6 * self._chance.choice((0.0, 0.1, 0.9, 2.5))
        await self.node.clock.sleep(lasts)
        if self._chance.random() < 0.3:
            with contextlib.suppress(Unavailable):  # it still holds the job, and ends it
                await hub.renew(kept, kept.owner.ttl_us)
            await self.node.clock.sleep(lasts / 2)
        drawn = self._chance.random()
        if drawn < 0.1:
            return await hub.release(kept)
        ends = (TryAgain("0s", "not yet"), Fail("never"), Snooze("3s"), Done(1), Done(1), Done(1), Done(1))
        return await hub.end(kept, ends[int(drawn * len(ends))])

    async def _quietly(self, call: Awaitable[str]) -> None:
        with contextlib.suppress(LeaseLost, Unavailable):
            await call

    def drain(self) -> None:
        if not self.leaving and not self.dead and self.life is not None:
            self.leaving = True
            self.life.cancel()


class BrokerMachine(Machine):
    def start(self) -> None:
        if self.process is None or self.process.dead:
            self._started += 1
            self.process = BrokerProcess(self, self._started)
            self.process.life = self.process.node.spawn(self.process.live)


class BrokerWorld(World):
    def __init__(self, loop: VirtualLoop, options: Options, make_worker: WorkerFactory = Worker) -> None:
        super().__init__(loop, options, make_worker)
        self.machines[1:] = [
            BrokerMachine(self.store, self.workload, self.nodes, number, make_worker)
            for number in range(1, 1 + MACHINES)
        ]

    async def _open(self) -> None:
        await super()._open()
        self.client.node.spawn(self._send_errands)

    async def _send_errands(self) -> None:
        route, ports = route_for("default", ERRAND), self.client.runtime.ports
        while not self.store.healed:
            await asyncio.sleep(ports.random.expovariate(1 / GAP_S))
            job = plain_job(new_id(ports), ERRAND, route, max_attempts=4)
            try:
                await self.client.database.transact(enqueue, [job], [route])
            except Unavailable:
                continue
            if job.id in self.store.audit.seq_of:  # if not, it was lost while its answer was on the way
                self.client.accepted[job.id] = None
