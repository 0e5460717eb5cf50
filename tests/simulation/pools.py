"""Pools in the simulated cluster: two keepers, which are struck like any other process, and the workers they start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from holdfast.clock import Ports
from holdfast.errors import Unavailable
from holdfast.kernel import pools
from holdfast.kernel.pools import PoolScope
from holdfast.pools.keeper import Keeper, KeptPool
from holdfast.pools.launchers import Exit, Place, StartedWorker
from holdfast.pools.size import WorkerPool
from holdfast.workers.claims import Claimed
from holdfast.workers.worker import Worker
from tests.simulation.audit import Violation
from tests.simulation.cluster import Machine, Process, WorkerFactory
from tests.simulation.swarm import Options
from tests.simulation.transport import SimDatabase
from tests.simulation.world import World
from tests.support.virtual_time import VirtualLoop

MILL = "mill"
KEEPERS = 2
LEASH_S = 4.0
POLICY = WorkerPool(min=1, max=3, slots=2, scale_up_threshold=2, scale_down_idle="20s", boot="30s")


class PoolWorker(Worker):
    """Notices when it claims though it drains."""

    fail: Callable[[BaseException], None]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.drained = False
        take = self._claims.take

        async def claim(worker: int, room: Callable[[str], int], hold: Callable[[Claimed], None]) -> None:
            if self.drained:
                self.fail(Violation("a worker that drains claims nothing", f"{self.id} claims again"))
            await take(worker, room, hold)

        self._claims.take = claim  # type: ignore[method-assign]

    async def _stop(self, grace: float | None) -> None:
        self.drained = True
        await super()._stop(grace)


class Berth(Machine):
    """The machine of one worker of the pool: it runs one process, and no other after it."""

    def __init__(self, keeper: KeeperMachine, place: Place, number: int) -> None:
        super().__init__(keeper.store, keeper.workload, keeper.processes, number, keeper.make_worker)
        self.name = f"{keeper.name}.w{number}"
        self.role = place.role
        self.keep_up = False
        self.gone = asyncio.Event()
        self._home = copy_context()

    def died(self) -> None:
        self.store.loop.call_soon(self.gone.set, context=self._home)

    def lose_keeper(self) -> None:
        """The leash is cut: the process drains, or is ended when its time is over."""
        grace = self.store.options.settings.drain_grace.total_seconds() + LEASH_S
        if self.process is not None and not self.process.dead:
            self.process.drain()
            self.store.loop.call_later(grace, self.process.crash, context=self.store.context)


class Started:
    def __init__(self, berth: Berth) -> None:
        self._berth = berth

    def stop(self) -> None:
        if self._berth.process is not None:
            self._berth.process.drain()

    def kill(self) -> None:
        if self._berth.process is not None:
            self._berth.process.crash()

    async def ended(self) -> Exit:
        await self._berth.gone.wait()
        return Exit("killed")


class KeeperProcess(Process):
    """A process that keeps the pool, and starts workers on berths of its machine."""

    def __init__(self, machine: KeeperMachine, number: int) -> None:
        super().__init__(machine, number)
        self._keepers = machine
        self._berths: list[Berth] = []
        self._lives = False

    async def live(self) -> None:
        self._lives = True
        settings = self._options.settings
        ports = self.ports = Ports(clock=self.node.clock, random=self._chance)
        database = SimDatabase(self._store, self, self.node.clock)
        offers = self._keepers.registry.capabilities()
        keeper = Keeper(KeptPool(MILL, POLICY, lambda _: PoolScope(None, offers)), database, settings, ports, self)
        try:
            await database.transact(pools.put_pool, MILL, POLICY.as_json())
            await keeper.run()
        except Unavailable:
            pass
        except asyncio.CancelledError:
            await keeper.stop()
        self._exit()

    async def launch(self, place: Place) -> StartedWorker:
        berth = self._keepers.berth(place)
        self._berths.append(berth)
        self._store.loop.call_soon(berth.start, context=self._store.context)
        return Started(berth)

    def drain(self) -> None:
        if not self.leaving and not self.dead and self.life is not None:
            self.leaving = True
            self.life.cancel()
            if not self._lives:  # a task that is cancelled before it begins runs nothing, and so would never exit
                self._exit()

    def crash(self) -> None:
        if not self.dead:
            super().crash()
            for berth in self._berths:
                self._store.loop.call_later(0.1, berth.lose_keeper, context=self._store.context)


class KeeperMachine(Machine):
    """Where a keeper runs, and the workers that it starts. The nemesis strikes both."""

    def __init__(self, world: World, number: int, make_worker: WorkerFactory) -> None:
        super().__init__(world.store, world.workload, world.nodes, number, make_worker)
        self.name = f"k{number}"
        self.workload = world.workload
        self._number = number
        self._begun = 0
        self._kept: Process | None = None
        self.berths: list[Berth] = []

    @property
    def process(self) -> Process | None:
        """One that may be struck: the keeper, or one of its workers."""
        workers = [berth.process for berth in self.berths if berth.process is not None and not berth.process.dead]
        struck = self._chance.random() < 0.7 and bool(workers) and not self.store.healed
        return self._chance.choice(workers) if struck else self._kept

    @process.setter
    def process(self, process: Process | None) -> None:
        self._kept = process

    def start(self) -> None:
        if self._kept is None or self._kept.dead:
            self._begun += 1
            self._kept = KeeperProcess(self, self._begun)
            self._kept.life = self._kept.node.spawn(self._kept.live)

    def berth(self, place: Place) -> Berth:
        self.berths.append(Berth(self, place, 100 * (self._number + 1) + len(self.berths)))
        return self.berths[-1]

    def heal(self) -> None:
        for berth in self.berths:
            if berth.process is not None:
                berth.process.heal()


class PoolWorld(World):
    def __init__(self, loop: VirtualLoop, options: Options, make_worker: WorkerFactory = PoolWorker) -> None:
        super().__init__(loop, options)
        PoolWorker.fail = self.fail
        self.keepers = [KeeperMachine(self, number, make_worker) for number in range(KEEPERS)]
        self.machines[1:] = self.keepers  # one plain worker beside them
        self.store.overheard = self._overhear

    def _overhear(self, operation: Callable[..., Any], arguments: Any, answer: Any) -> None:
        self.client.overhear(operation, arguments, answer)
        if operation is pools.give_place_up and answer is not None:
            self._is_dead(arguments[1])
            self.store.signs.gone.add(answer)
        if operation is not pools.resize:
            return
        rows = self.store.file.connection.execute(
            "select id, status from worker where pool = ? and status in ('starting', 'active', 'draining')", (MILL,)
        ).fetchall()
        if len(rows) > POLICY.max:
            self.fail(Violation("a pool is never larger than it may be", f"{len(rows)} of {POLICY.max}: {rows}"))

    def _is_dead(self, id: str) -> None:
        """A keeper gives up what it saw end, and nothing else."""
        berths = [berth for keeper in self.keepers for berth in keeper.berths if berth.role.id == id]
        if any(berth.process is not None and not berth.process.dead for berth in berths):
            self.fail(Violation("only the dead are given up by their keeper", id))

    def _heal(self) -> None:
        for keeper in self.keepers:
            keeper.heal()
        super()._heal()
