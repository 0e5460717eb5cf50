"""The client: enqueues, cancels, signals, repeats itself, and remembers what was promised to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

from holdfast import durations
from holdfast.client.intake import Runtime
from holdfast.client.jobs import Job
from holdfast.clock import Ports
from holdfast.errors import HoldfastError, IdempotencyConflict, NotFound, Unavailable
from holdfast.kernel.waiting import TakenSignal, take_signal
from tests.simulation.audit import Violation
from tests.simulation.store import Store
from tests.simulation.swarm import Options
from tests.simulation.transport import SimDatabase
from tests.simulation.workload import NEVER, QUEUES, Workload, arguments
from tests.support.virtual_time import VirtualLoop


class Client:
    """A process that never dies, beside a store that often does."""

    name = "client"
    dead = False

    def __init__(self, loop: VirtualLoop, store: Store, options: Options, workload: Workload) -> None:
        self.node = loop.create_node(self.name)
        self.accepted: dict[str, None] = {}
        self._store = store
        self._options = options
        self._workload = workload
        self._chance = Random(f"client of {options.seed}")
        self._jobs: list[Job[Any]] = []
        self._owners: dict[str, str] = {}
        self._sent = 0
        self._tasks: list[asyncio.Task[None]] = []
        ports = Ports(clock=self.node.clock, random=Random(f"ids of {options.seed}"))
        self.database = SimDatabase(store, self, self.node.clock)
        store.overheard = self.overhear
        store.forgetful.append(self._lose)
        self.runtime = Runtime(self.database, options.settings, ports, QUEUES)

    def crash(self) -> None:
        """Clients crash too, but what that shows is shown by workers."""

    def freeze(self, seconds: float) -> None: ...

    async def run(self) -> None:
        """Act at random until the world is healed."""
        load, chance = self._options.load, self._chance
        while not self._store.healed:
            await asyncio.sleep(chance.expovariate(1 / load.gap_s))
            drawn = chance.random()
            if drawn < load.cancel:
                self._do(self._cancel())
            elif drawn < load.cancel + load.signal:
                self._do(self._signal(f"channel {chance.randrange(12)}"))
            elif len(self._store.audit.open) >= load.most_open:
                continue
            elif drawn < load.cancel + load.signal + load.keyed:
                self._do(self._enqueue_keyed(f"key {chance.randrange(15)}"))
            elif drawn > 1 - load.burst:
                self._do(self._enqueue_many())
            else:
                self._do(self._enqueue())

    def overhear(self, operation: Callable[..., Any], args: Any, answer: Any) -> None:
        """Now and then send a signal, or cancel, just when someone found no signal and is about to wait for it."""
        if (
            operation is take_signal
            and isinstance(answer, TakenSignal)
            and answer.payload is None
            and not self._store.healed
        ):
            lease, channel, load = args[0], args[1], self._options.load
            if channel != NEVER and self._chance.random() < load.signal:
                self.node.spawn(self._quietly(self._signal(channel)))
            elif self._chance.random() < 4 * load.cancel:
                self.node.spawn(self._quietly(self._cancel_if_mine(lease.id)))

    async def signal_all(self) -> None:
        """Send everyone who waits what it waits for, unless it never comes."""
        for row in list(self._store.audit.open.values()):
            if row["state"] == "waiting" and row["channel"] not in (None, NEVER):
                await self._signal(row["channel"])

    def _do(self, action: Any) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.create_task(self._quietly(action)))

    async def _quietly(self, action: Any) -> None:
        try:
            await action
        except (Unavailable, IdempotencyConflict, NotFound):
            pass  # its fate is unknown, or it was refused: either is an answer
        except HoldfastError as problem:
            self._store.fail(Violation("no unknown error", f"the client was told {problem!r}"))

    async def _enqueue(self) -> None:
        chance, ttl = self._chance, self._options.settings.lease_ttl.total_seconds()
        kind = chance.choice(self._options.load.kinds)
        options: dict[str, Any] = {}
        if chance.random() < 0.2:
            options["delay"] = _time(chance.uniform(0.1, 60))
        if chance.random() < 0.15:
            options["deadline"] = _time(chance.uniform(0.1, 120))
        if chance.random() < 0.15:
            options["timeout"] = _time(chance.uniform(0.1, ttl))
        if chance.random() < 0.1:
            options["priority"] = chance.choice((1, 500))
        job = self._workload.jobs[kind].options(**options)
        handle = await job.enqueue(**arguments(kind, chance, self._options))
        self._keep(handle)
        often = 3 if kind in ("parent", "waiter") else 1
        if chance.random() < often * self._options.load.cancel:  # soon, while it may just be running
            await asyncio.sleep(2 * chance.random() * self._options.settings.heartbeat.total_seconds())
            await handle.cancel()

    async def _enqueue_keyed(self, key: str) -> None:
        number = int(key.split()[1])
        other = 1_000 if self._chance.random() < 0.1 else 0
        job = self._workload.jobs["quick"].options(key=key)
        handle = await job.enqueue(n=number + other)
        self._keep(handle)
        self._owns(key, handle.id)

    async def _enqueue_many(self) -> None:
        chance, kind = self._chance, "quick"
        if "sleepy" in self._options.load.kinds and chance.random() < 0.5:
            kind = "sleepy"  # more than its lane lets through
        many = [arguments(kind, chance, self._options) for _ in range(chance.randint(2, 30))]
        for job in await self._workload.jobs[kind].enqueue_many(many):
            self._keep(job)

    async def _cancel(self) -> None:
        """Any job of late; rather one that runs or waits, and as often a parent as not."""
        open_jobs, seq_of = self._store.audit.open, self._store.audit.seq_of
        groups: dict[tuple[str, bool], list[Job[Any]]] = {}
        for job in self._jobs[-50:]:
            row = open_jobs.get(seq_of[job.id])
            groups.setdefault(("", False) if row is None else (row["state"], row["open_children"] > 0), []).append(job)
        if groups:
            await self._chance.choice(self._chance.choice(list(groups.values()))).cancel()

    async def _cancel_if_mine(self, id: str) -> None:
        for job in self._jobs:
            if job.id == id:
                await job.cancel()

    async def _signal(self, channel: str) -> None:
        self._sent += 1
        await self.runtime.signal(channel, f'{{"signal":"{self._sent}"}}', None)

    def _lose(self) -> None:
        """What was accepted but not passed on to the other server is gone."""
        there = self._store.audit.seq_of
        self.accepted = {id: None for id in self.accepted if id in there}
        self._jobs = [job for job in self._jobs if job.id in there]
        self._owners = {key: id for key, id in self._owners.items() if id in there}

    def _keep(self, job: Job[Any]) -> None:
        if job.id in self._store.audit.seq_of:  # if not, it was lost while its answer was on the way
            self.accepted[job.id] = None
            self._jobs.append(job)

    def _owns(self, key: str, id: str) -> None:
        """One key, one job, for as long as keys are kept."""
        jobs, seq_of = self._store.audit.jobs, self._store.audit.seq_of
        if id not in seq_of:
            return
        owner = jobs[seq_of[self._owners.get(key, id)]]
        kept_us = durations.microseconds(self._options.settings.key_retention)
        ended_at = owner["finished_at"]
        now = jobs[seq_of[id]]["created_at"]
        if owner["id"] != id and (ended_at is None or now - ended_at < kept_us):
            self._store.fail(Violation("I19 (one job for one key)", f"{key} named {dict(owner)}, and now {id}"))
        self._owners[key] = id


def _time(seconds: float) -> timedelta:
    return timedelta(microseconds=round(seconds * 1e6))
