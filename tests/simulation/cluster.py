"""Machines, the worker processes on them, and what can happen to a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from random import Random

from holdfast.clock import Ports
from holdfast.errors import DuplicateWorker, PlaceLost, Unavailable
from holdfast.kernel.leases import Beat
from holdfast.workers.lifeline import Pulse, TaskLifeline
from holdfast.workers.role import Role
from holdfast.workers.worker import Worker
from tests.simulation.store import Store
from tests.simulation.transport import SimDatabase
from tests.simulation.workload import SPECIAL, Workload
from tests.support.virtual_time import Node

WorkerFactory = Callable[..., Worker]


class Process:
    """One worker process, from its start to its death."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.name = f"{machine.name}.{number}"
        self.dead = False
        self.leaving = False
        self.slow_clock = False  # so slow that it cannot fence itself in time
        self.worker: Worker | None = None
        self.ports = Ports()
        self.life: asyncio.Task[None] | None = None
        self._machine = machine
        self._store = machine.store
        self._options = machine.store.options
        loop = machine.store.loop
        self.node = loop.create_node(self.name)
        self._lifeline = loop.create_node(f"{self.name} lifeline") if self._options.own_lifeline else self.node
        self._nodes = [self.node] if self._lifeline is self.node else [self.node, self._lifeline]
        machine.processes[self.name] = self
        self._frozen_until: dict[str, float] = {}
        self._chance = Random(f"process {self.name} of {self._options.seed}")
        for node in self._nodes:
            node.set_skew(machine.ahead_s)

    async def live(self) -> None:
        settings = self._options.settings
        ports = self.ports = Ports(clock=self.node.clock, random=self._chance)
        database = SimDatabase(self._store, self, self.node.clock)
        heart = SimDatabase(self._store, self, self._lifeline.clock)
        lifeline = TaskLifeline(heart, ports, settings.heartbeat.total_seconds())
        worker = self._machine.make_worker(
            self._machine.registry,
            database,
            settings,
            ports,
            role=self._machine.role,
            lifeline=lifeline if self._lifeline is self.node else OwnLifeline(lifeline, self._lifeline),
        )
        try:
            self.worker = worker
            await worker.run()
        except (Unavailable, DuplicateWorker, PlaceLost, asyncio.CancelledError):
            pass
        self._exit()

    def crash(self) -> None:
        """kill -9. The system takes the sign of life away a moment later."""
        if self.dead:
            return
        self.dead = True
        for node in self._nodes:
            node.crash()
        buried = self._chance.choice((0.005, 0.005, 3.0))
        self._store.loop.call_later(buried, self._store.signs.drop, self, context=self._store.context)
        self._machine.died()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        self._stop(self._nodes, seconds)

    def block(self, seconds: float) -> None:
        """Something keeps the event loop busy; a lifeline on its own thread goes on."""
        self._stop([self.node], seconds)

    def drain(self) -> None:
        """SIGTERM."""
        if self.worker is None or self.leaving or self.dead:
            return
        self.leaving = True
        if self.life is not None:
            self.life.cancel()

    def skew(self, rate: float) -> None:
        settings = self._options.settings
        spare = settings.fence_margin / settings.lease_ttl
        self.slow_clock = self.slow_clock or rate < 1 - spare
        for node in self._nodes:
            node.set_skew(rate=rate)

    def heal(self) -> None:
        self._frozen_until.clear()
        for node in self._nodes:
            node.resume()
            node.set_skew(rate=1.0)

    def _exit(self) -> None:
        """The program ends; whatever it left undone is never done."""
        self._store.loop.call_soon(self.crash, context=self._store.context)

    def _stop(self, nodes: list[Node], seconds: float) -> None:
        until = self._store.seconds + seconds
        for node in nodes:
            self._frozen_until[node.name] = max(until, self._frozen_until.get(node.name, 0.0))
            node.pause()
        self._store.loop.call_later(seconds, self._go_on, nodes, context=self._store.context)

    def _go_on(self, nodes: list[Node]) -> None:
        for node in nodes:
            if self._store.seconds >= self._frozen_until.get(node.name, 0.0):
                node.resume()


class Machine:
    """Where worker processes run, one after the other."""

    def __init__(
        self,
        store: Store,
        workload: Workload,
        processes: dict[str, Process],
        number: int,
        make_worker: WorkerFactory,
    ) -> None:
        self.name = f"m{number}"
        self.store = store
        self.registry = workload.registry
        self.processes = processes
        self.make_worker = make_worker
        self.process: Process | None = None
        self.keep_up = True
        self._started = 0
        self._chance = Random(f"machine {number} of {store.options.seed}")
        self.ahead_s = self._chance.choice((0.0, self._chance.uniform(0, 7200)))
        # The first machine can do everything, so that there is always one who can.
        everything = number == 0 or self._chance.random() < 0.5
        self.role = Role(
            name=self.name,
            id=f"{self.name}-id" if store.options.fixed_ids else "",
            queues=None if everything else ("default",),
            capabilities=(SPECIAL,) if everything else (),
            until=self._chance.choice(("stopped", "empty", "one")) if number and store.options.ephemeral else "stopped",
        )

    def start(self) -> None:
        if self.process is None or self.process.dead:
            self._started += 1
            self.process = Process(self, self._started)
            self.process.life = self.process.node.spawn(self.process.live)

    def died(self) -> None:
        if self.keep_up:
            pause = self._chance.choice((0.5, 5.0, 60.0)) * self._chance.random()
            if self.store.healed:
                pause = 1.0 if self.role.until == "stopped" else 20.0
            self.store.loop.call_later(pause, self._restart, context=self.store.context)

    def _restart(self) -> None:
        if self.keep_up:
            self.start()


class OwnLifeline:
    """A lifeline on a node of its own: a thread, which an event loop that stands still does not stop."""

    def __init__(self, inner: TaskLifeline, node: Node) -> None:
        self._inner = inner
        self._node = node

    async def open(self) -> None:
        await self._inner.open()

    def start(self, compose: Callable[[], Pulse | None], heard: Callable[[float, Beat], None]) -> None:
        loop, home = asyncio.get_running_loop(), copy_context()

        def tell(sent_at: float, beat: Beat) -> None:
            loop.call_soon(heard, sent_at, beat, context=home)

        async def begin() -> None:
            self._inner.start(compose, tell)

        self._node.spawn(begin)

    def poke(self) -> None:
        self._inner.poke()

    async def stop(self) -> None:
        await self._inner.stop()
