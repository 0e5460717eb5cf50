"""Gateways of the simulated cluster, and who reaches them over wires: workers, a producer and a liar.

The gateways are the real ones, down to their connections. Programs with a Redis client note in a journal what they did.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from holdfast import Holdfast
from holdfast.agw.link import GatewayRefusal, Link
from holdfast.app import core_of
from holdfast.client.intake import Runtime
from holdfast.clock import Ports
from holdfast.errors import Unavailable
from holdfast.resp.client import from_table
from holdfast.resp.options import RespOptions
from holdfast.resp.plans import kernel_id, public_id
from holdfast.resp.server import RespServer, Upkeep
from holdfast.workers.lifeline import TaskLifeline
from holdfast.workers.worker import Worker
from tests.simulation.cluster import Machine, Process
from tests.simulation.resp_journal import Did, Journal
from tests.simulation.transport import SimDatabase
from tests.simulation.wire import Wire
from tests.simulation.world import World

ERRAND = "errand"
QUEUE = "errands"
GAP_S = 4.0
WORKERS = ("w0", "w1", "w2")
KEYS: Final = {name: f"{number:02x}" * 32 for number, name in enumerate((*WORKERS, "producer", "liar"), 1)}


@dataclass
class Network:
    """Who can be reached, and how well."""

    dead_after: timedelta
    cuts: float  # the chance of each message that its connection is cut
    journal: Journal
    accepted: dict[str, None]
    gateways: list[RespMachine] = field(default_factory=list)


class Listening(asyncio.Server):
    """The simulated network knows where a gateway listens."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, [], None, None, 1, None)  # type: ignore[arg-type]  # no sockets


class SimServer(RespServer):
    def _make_upkeep(self) -> Upkeep:
        core = self.gateway.core
        return Upkeep(
            self.gateway, TaskLifeline(self.gateway.database, core.ports, core.settings.heartbeat.total_seconds())
        )

    async def _listen(self) -> list[asyncio.Server]:
        return [Listening(asyncio.get_running_loop())]


class Struck(Process):
    """A process that notes what is done to it, and takes its connections along."""

    def __init__(self, machine: RespMachine, number: int) -> None:
        super().__init__(machine, number)
        self.network = machine.network
        self.wires: list[Wire] = []

    def crash(self) -> None:
        if not self.dead:
            self.note(0.0)
            super().crash()
            for wire in self.wires:
                wire.break_off("died")

    def freeze(self, seconds: float) -> None:
        self.note(seconds)
        super().freeze(seconds)

    def block(self, seconds: float) -> None:
        self.note(seconds)
        super().block(seconds)

    def skew(self, rate: float) -> None:
        super().skew(rate)
        self.note(60.0)

    def note(self, seconds: float) -> None:
        self.network.journal.note(self.name, self._store.seconds, seconds)

    def drain(self) -> None:
        if not self.leaving and not self.dead and self.life is not None:
            self.note(0.0)
            self.leaving = True
            self.life.cancel()


class GatewayProcess(Struck):
    server: RespServer | None = None
    context: Context

    async def live(self) -> None:
        settings, loop = self._options.settings, self._store.loop
        ports = self.ports = Ports(clock=self.node.clock, random=self._chance)
        app = Holdfast("sqlite:///simulated", settings=settings, embedded=False, ports=ports)
        database = SimDatabase(self._store, self, self.node.clock)
        core_of(app).binding.of(loop).runtime = Runtime(database, settings, ports, {})
        options = RespOptions(principals=from_table(KEYS), dead_after=self.network.dead_after)
        try:
            async with SimServer(core_of(app), options) as server:
                self.context, self.server = copy_context(), server
                await loop.create_future()
        except (Unavailable, asyncio.CancelledError):
            pass
        self.server = None
        self._exit()


class RespProcess(Struck):
    """Somebody with a Redis client. `link` is its connection; a call that takes too long gives it up."""

    link: Link | None = None

    async def live(self) -> None:
        try:
            while True:
                try:
                    await self.act()
                except (OSError, TimeoutError, GatewayRefusal):
                    await self._hang_up()
                await self.node.clock.sleep(self._chance.choice((0.2, 1.0, 3.0)))
        except asyncio.CancelledError:
            await self._leave()
        self._exit()

    async def act(self) -> None: ...

    async def _leave(self) -> None: ...

    async def call(self, *arguments: str, within: float = 20.0) -> Any:
        if self.link is None:
            self.link = await self.dial()
            await self.begin()
        async with asyncio.timeout(within):
            return await self.link.call(*arguments)

    async def begin(self) -> None:
        """What it says first on a new connection."""

    async def dial(self) -> Link:
        """A connection to one of the gateways that has shown this program's key."""
        here = [m.process for m in self.network.gateways if isinstance(m.process, GatewayProcess) and m.process.server]
        if not here:
            raise ConnectionRefusedError("no gateway listens")
        gateway = self._chance.choice(here)
        wire = Wire(self._store, self._chance, self.network.cuts, lambda _: self.note(60.0))
        for process in (self, gateway):
            process.wires = [each for each in process.wires if not each.cut] + [wire]
        assert gateway.server is not None
        link = wire.begin(gateway.server._accept, gateway.context, self.name)
        async with asyncio.timeout(20):
            await link.call("AUTH", KEYS[self._machine.name])
        return link

    async def _hang_up(self) -> None:
        if self.link is not None:
            await self.link.close()
            self.link = None


class RespWorker(RespProcess):
    """Takes errands by a pop or by JOB.CLAIM, does them, and reports until it hears that its report was taken."""

    known = False  # this process has registered before
    beating: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        assert self.link is not None
        body = {"worker_id": self._machine.name, "hostname": self.name, "agw_version": "1", "capabilities": [ERRAND]}
        asked = [
            "WORKER.REGISTER",
            json.dumps({**body, "max_concurrent_jobs": 2}),
            *([] if self.known else ["RELEASE"]),
        ]
        async with asyncio.timeout(20):
            await self.link.call(*asked)
        self.known = True

    async def act(self) -> None:
        if self.beating is None or self.beating.done():
            self.beating = asyncio.get_running_loop().create_task(self._beat())
        if self._chance.random() < 0.5:
            popped = await self.call("BRPOP", f"queue:{QUEUE}", "5")
            if popped is not None:
                await self._errand(json.loads(popped), tokened=False)
            return
        for payload, _, _ in await self.call("JOB.CLAIM", QUEUE, "COUNT", "2", "BLOCK", "3000"):
            await self._errand(json.loads(payload), tokened=True)

    async def _beat(self) -> None:
        """Over a connection of its own, while errands take long."""
        link: Link | None = None
        while True:
            try:
                link = link or await self.dial()
                async with asyncio.timeout(10):
                    await link.call("WORKER.HEARTBEAT", self._machine.name)
            except (OSError, TimeoutError, GatewayRefusal):
                link = None
            await self.node.clock.sleep(self.network.dead_after.total_seconds() / 4)

    async def _errand(self, job: dict[str, Any], *, tokened: bool) -> None:
        lasts = self.network.dead_after.total_seconds() * self._chance.choice((0.0, 0.1, 0.9, 1.5))
        await self.node.clock.sleep(lasts)
        public, did, journal = job["job_id"], Did(self.name, job["attempt"]), self.network.journal
        id = str(kernel_id(public))
        well = self._chance.random() < 0.9
        (journal.done if well else journal.failed)[id].append(did)
        said = {"by": self.name, "under": job["attempt"]}
        if tokened:
            told = json.dumps(said) if well else "it failed"
            report: tuple[str, ...] = ("JOB.COMPLETE" if well else "JOB.FAIL", public, job["token"], told)
        else:
            status = {"status": "completed"} if well else {"status": "failed", "error": "it failed"}
            report = ("JOB.UPDATE", public, json.dumps({**status, **said, "attempt": job["attempt"]}))
        if await self._report(report) and well:
            journal.acknowledged[id].add(did)

    async def _report(self, report: tuple[str, ...]) -> bool:
        """Whether it was taken. A report whose reply was lost is sent again; a gateway that cannot is asked again."""
        while True:
            try:
                await self.call(*report)
            except GatewayRefusal as refusal:
                if not str(refusal).startswith("TRYAGAIN"):
                    return False
            except (OSError, TimeoutError):
                await self._hang_up()
            else:
                return True
            await self.node.clock.sleep(self._chance.choice((0.2, 1.0, 3.0)))

    async def _leave(self) -> None:
        if self.beating is not None:
            self.beating.cancel()
        try:
            await self.call("WORKER.UNREGISTER", self._machine.name, "FORCE", within=5)
        except (OSError, TimeoutError, GatewayRefusal):
            return


class Producer(RespProcess):
    async def act(self) -> None:
        await self.node.clock.sleep(self._chance.expovariate(1 / GAP_S))
        if not self._store.healed:
            id = (await self.call("JOB.ENQUEUE", QUEUE, ERRAND, "{}")).decode()
            job = kernel_id(id)
            if job in self._store.audit.seq_of:  # if not, it was lost while its answer was on the way
                self.network.accepted[job] = None


class Liar(RespProcess):
    """Has a key of its own, and reports about jobs of others in their names."""

    async def act(self) -> None:
        await self.node.clock.sleep(self._chance.expovariate(1 / GAP_S))
        audit = self._store.audit
        held = [row for row in audit.open.values() if row["kind"] == ERRAND and row["state"] == "running"]
        if not held:
            return
        row = self._chance.choice(held)
        lie = {"worker_id": audit.workers[row["worker"]]["id"], "status": "completed", "by": self.name}
        await self.call("JOB.UPDATE", public_id(row["id"]), json.dumps(lie))

    async def begin(self) -> None:
        assert self.link is not None
        body = {"worker_id": self._machine.name, "hostname": self.name, "agw_version": "1", "capabilities": []}
        await self.link.call("WORKER.REGISTER", json.dumps(body))


class RespMachine(Machine):
    def __init__(self, world: World, network: Network, name: str, number: int, make: Callable[..., Struck]) -> None:
        super().__init__(world.store, world.workload, world.nodes, number, Worker)
        self.name = name
        self.network = network
        self._make = make

    def start(self) -> None:
        if self.process is None or self.process.dead:
            self._started += 1
            self.process = self._make(self, self._started)
            self.process.life = self.process.node.spawn(self.process.live)
