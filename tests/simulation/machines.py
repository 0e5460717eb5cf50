"""Machines in a simulated world: whatever dies, each comes to its end, and nothing that was stored is done again."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from random import Random
from typing import Any, Final

from holdfast import Holdfast
from holdfast.app import core_of, machines_of
from holdfast.clock import Ports
from holdfast.kernel import codec
from holdfast.kernel.states import State
from holdfast.machines import family
from holdfast.machines.family import checkpoint_name
from holdfast.workers.context import JobContext
from tests.simulation.audit import UNKNOWN, Audit, Violation
from tests.simulation.client import Client
from tests.simulation.cluster import Process
from tests.simulation.store import Store
from tests.simulation.swarm import Options
from tests.simulation.world import World
from tests.support.snapshots import Row
from tests.support.virtual_time import VirtualLoop

HEAD: Final = 'spec: flatmachine\nspec_version: "0.8.3"\ndata:\n  name: {}\n  states:\n'
FILES: Final = {
    "m": """\
    start: {action: first, transitions: [{to: each}]}
    each: {foreach: "{{ range(2) }}", machine: child, transitions: [{to: acts}]}
    acts: {foreach: "{{ range(2) }}", action: item, transitions: [{to: spawn}]}
    spawn: {foreach: "{{ range(2) }}", launch: leaf, transitions: [{to: breaks}]}
    breaks: {action: breaks, on_error: {ValueError: wait}, transitions: [{to: done}]}
    wait: {wait_for: "channel {{ input.channel }}", transitions: [{to: done}]}
    done: {type: final, output: {error: context.error}}
""",
    "child": "    start: {action: child, transitions: [{to: done}]}\n    done: {type: final}\n",
    "leaf": "    start: {action: leaf, transitions: [{to: done}]}\n    done: {type: final}\n",
}
# The step that stores what an action did.
STORED: Final = {"first": 1, "child": 1, "leaf": 1, "breaks": 5}
ITEMS: Final = 3
_ATTEMPT: ContextVar[JobContext] = ContextVar("attempt")


def written() -> Path:
    """The folder of the machines. Its name is stored with each execution, so it is the same in every world."""
    folder = Path(tempfile.gettempdir()) / "holdfast-simulated-machines"
    folder.mkdir(exist_ok=True)
    for name, states in FILES.items():
        part = folder / f"{name}.{os.getpid()}"
        part.write_text(HEAD.format(name) + states)
        part.rename(folder / f"{name}.yml")
    return folder


class MachineAudit(Audit):
    """What machines write carries no stamp; but children are started by the worker that holds their parent."""

    def _written_under_its_token(self, old: Row | None, new: Row) -> None:
        if old is None and new["parent"] is not None:
            parent = self.jobs[new["parent"]]
            if parent["state"] != State.RUNNING:
                raise Violation("fenced writes", f"{dict(new)} of {dict(parent)}")


class MachineTroupe:
    """The app of one world: its machines, and the witness of what their states did."""

    def __init__(self, app: Holdfast, store: Store, here: Callable[[], Process]) -> None:
        self.registry = core_of(app).registry
        self.effects = 0
        self._store = store
        self._here = here
        self._chance = Random(f"states of {store.options.seed}")
        engine = machines_of(app).engine

        async def play(ctx: JobContext, order: dict[str, Any]) -> Any:
            _ATTEMPT.set(ctx)
            return await engine._play(ctx, order)

        engine.play = play  # type: ignore[method-assign, assignment, unused-ignore]
        self.machine = app.machine(written() / "m.yml", hooks=self._act)

    async def _act(self, action: str, context: dict[str, Any]) -> Any:
        ctx, self.effects = _ATTEMPT.get(), self.effects + 1
        at = checkpoint_name(STORED.get(action, ITEMS), f"item {context['index']}" if action == "item" else "")
        self._witness(ctx, at)
        await asyncio.sleep(self._chance.choice((0.0, 0.1, 5.0)) * self._chance.random())
        if action == "breaks":
            raise ValueError("as it should")
        return {}

    def _witness(self, ctx: JobContext, at: str) -> None:
        audit = self._store.audit
        seq = audit.seq_of.get(ctx.id)
        if seq is None:
            return  # the job itself was lost
        stored = audit.steps.get((seq, at))
        if stored == UNKNOWN:  # since a failover; an attempt of before it may still run, and does not know of the step
            job = audit.jobs[seq]
            stored = f"{job['epoch']}.{job['token']}"
        if stored is not None and _pair(ctx.token) >= _pair(stored):
            what = f"{at} of job {seq}, stored under {stored}, was done again under {ctx.token}"
            self._store.fail(Violation("a stored event is not repeated", what))


class MachineClient(Client):
    """Starts executions, some under a name, signals and cancels."""

    troupe: MachineTroupe
    kill: Callable[[int], None]  # the process of the worker with this number

    def __init__(self, loop: VirtualLoop, store: Store, options: Options) -> None:
        super().__init__(loop, store, options, None)  # type: ignore[arg-type]  # it enqueues no jobs

    def overhear(self, operation: Callable[..., Any], args: Any, answer: Any) -> None:
        """Now and then a worker dies just when it has launched machines, before it has noted that it has."""
        super().overhear(operation, args, answer)
        if operation is family._launch and not self._store.healed and self._chance.random() < 0.05:
            self.node.spawn(self._kill(args[0].worker))

    async def _kill(self, worker: int) -> None:
        self.kill(worker)

    async def _enqueue(self) -> None:
        handle = await self.troupe.machine.enqueue({"channel": self._chance.randrange(12)})
        self._keep(handle)
        if self._chance.random() < self._options.load.cancel:
            await asyncio.sleep(10 * self._chance.random())
            await handle.cancel()

    async def _enqueue_many(self) -> None:
        for _ in range(self._chance.randint(2, 4)):
            await self._enqueue()

    async def _enqueue_keyed(self, key: str) -> None:
        self._keep(await self.troupe.machine.enqueue({"channel": 1}, execution_id=key))


class MachineWorld(World):
    """A world whose work is machines."""

    client: MachineClient

    def _players(self) -> tuple[Any, Client]:
        options, store = self.options, self.store
        store.make_audit = MachineAudit
        client = MachineClient(self.loop, store, options)
        ports = Ports(clock=client.node.clock, random=Random(f"execution ids of {options.seed}"))
        app = Holdfast("sqlite:///simulated", settings=options.settings, embedded=False, ports=ports)
        core_of(app).binding.of(self.loop).runtime = client.runtime
        store.file.layers = core_of(app).registry.layers
        client.troupe = MachineTroupe(app, store, self._here)
        client.kill = self._kill
        return client.troupe, client

    def _kill(self, worker: int) -> None:
        for process in list(self.nodes.values()):
            if process.worker is not None and process.worker.seq == worker and not process.dead:
                process.crash()

    def _judge(self) -> None:
        super()._judge()
        jobs = self.store.audit.jobs
        launched = Counter(
            order["parent"]
            for job in jobs.values()
            if job["kind"] == "machine:leaf" and (order := codec.decode(job["payload"])["order"])
        )
        for job in jobs.values():
            if job["kind"] != "machine:m":
                continue
            succeeded = job["state"] == State.SUCCEEDED
            if launched[job["id"]] not in ((2,) if succeeded else (0, 2)):
                raise Violation("launching twice is one launch", f"{launched[job['id']]} of {dict(job)}")
            if succeeded and codec.decode(job["result"]) != {"error": "as it should"}:
                raise Violation("a machine has one output", f"{dict(job)}")


def _pair(token: str) -> tuple[int, int]:
    epoch, _, counter = token.partition(".")
    return int(epoch), int(counter)
