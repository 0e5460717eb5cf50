"""Agents in the simulated cluster: tools, runs below runs, sessions with several runs, and a client that cancels."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

from holdfast import Holdfast
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.agents.definition import Limits, Mode
from holdfast.agents.runs.turn import commit
from holdfast.agents.tools import Tool, ToolContext
from holdfast.app import core_of
from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.kernel.drivers.sqlite_file import SqliteFile
from holdfast.workers.worker import Worker
from tests.simulation.agent_audit import ENDED, AgentAudit
from tests.simulation.audit import Violation
from tests.simulation.client import Client
from tests.simulation.cluster import Process, WorkerFactory
from tests.simulation.provider import SimProvider
from tests.simulation.store import Store
from tests.simulation.swarm import Options
from tests.simulation.world import World
from tests.support.snapshots import Row
from tests.support.virtual_time import VirtualLoop

SESSIONS = 6


class Troupe:
    """The app of one world: its agents and tools, and the witness of what the tools did."""

    def __init__(self, app: Holdfast, store: Store, here: Callable[[], Process]) -> None:
        self.app = app
        self.registry = core_of(app).registry
        self.starts: Counter[str] = Counter()  # of calls that may start once
        self._store = store
        self._here = here
        self._chance = Random(f"tools of {store.options.seed}")
        self.agents = self._declare()

    def _declare(self) -> list[Agent[str]]:
        app = self.app

        @app.tool
        async def quick(n: int) -> int:
            """Quick."""
            return n

        @app.tool
        async def slow(ctx: ToolContext, seconds: float) -> str:
            """Slow."""
            await asyncio.sleep(seconds)
            return f"{ctx.call_id} slept"

        @app.tool
        async def flaky(n: int) -> str:
            """Flaky."""
            await asyncio.sleep(self._chance.random())
            if self._chance.random() < 0.4:
                raise ValueError(f"failed at {n}")
            return "worked"

        @app.tool(effect="once", unknown="report")
        async def once(ctx: ToolContext, n: int) -> str:
            """Once."""
            self._begins_once(ctx)
            await asyncio.sleep(2 * self._chance.random())
            return f"once {n}"

        @app.tool
        async def poison(n: int) -> str:
            """Poison."""
            await asyncio.sleep(0.1 * self._chance.random())
            if not self._store.healed and self._chance.random() < self._store.options.load.poison / 3:
                self._here().crash()
                await asyncio.get_running_loop().create_future()
            return f"survived {n}"

        tools: list[Tool[Any, Any]] = [quick, slow, flaky, once, poison]
        solo = app.agent("solo", model="scripted:solo", tools=tools, attempts=1)
        lead = app.agent("lead", model="scripted:lead", tools=tools, agents=[solo])
        boss = app.agent("boss", model="scripted:boss", tools=tools, agents=[lead, solo])
        return [solo, lead, boss]

    def _begins_once(self, ctx: ToolContext) -> None:
        """I14."""
        self.starts[ctx.call_id] += 1
        audit = self._store.audit
        assert isinstance(audit, AgentAudit)
        if self.starts[ctx.call_id] > 1 and ctx.run_id not in audit.excused:
            self._store.fail(Violation("I14 (once means at most once)", f"call {ctx.call_id} of run {ctx.run_id}"))


class AgentClient(Client):
    """Sends messages to agents, several to one session, reads along, and cancels."""

    def __init__(self, loop: VirtualLoop, store: Store, options: Options) -> None:
        super().__init__(loop, store, options, None)  # type: ignore[arg-type]  # it enqueues no jobs
        self.troupe: Troupe | None = None
        self._asked = 0

    def overhear(self, operation: Callable[..., Any], args: Any, answer: Any) -> None:
        """A worker that is told that its lease is given up has given it up."""
        if operation is commit and answer in ("parked", "ended"):
            lease = args[0].lease
            job = self._store.audit.jobs[lease.seq]
            if job["state"] == "running" and (job["epoch"], job["token"]) == (lease.epoch, lease.token):
                self._store.fail(Violation("what is settled is not held any more", f"{answer}: {dict(job)}"))

    async def signal_all(self) -> None:
        """Nothing here waits for a signal."""

    async def _signal(self, channel: str) -> None:
        """In place of signals: read what is stored of a run, as one who reconnects does."""
        if self._jobs:
            run: Any = self._chance.choice(self._jobs[-20:])
            events = await run.events()
            if [event.seq for event in events] != list(range(1, len(events) + 1)):
                self._store.fail(Violation("I22 (a reader misses nothing)", f"{[event.seq for event in events]}"))

    async def _enqueue(self) -> None:
        run = await self._ask(self._session())
        if self._chance.random() < 2 * self._options.load.cancel:
            await asyncio.sleep(self._chance.choice((1.0, 10.0)) * self._chance.random())
            await run.cancel()

    async def _enqueue_many(self) -> None:
        session = f"session {self._chance.randrange(SESSIONS)}"
        for _ in range(self._chance.randint(2, 6)):
            await self._ask(session)

    async def _enqueue_keyed(self, key: str) -> None:
        agent = self._agents[0]
        other = " again" if self._chance.random() < 0.1 else ""
        run = await agent.enqueue(f"question {key}{other}", key=key, session=f"session {key}")
        self._keep(run)  # type: ignore[arg-type]
        self._owns(key, run.id)

    async def _ask(self, session: str | None) -> Run[str]:
        self._asked += 1
        delay = timedelta(seconds=5) if self._chance.random() < 0.1 else None
        agent = self._chance.choice(self._agents)
        limits = None
        if self._chance.random() < 0.2:
            limits = self._chance.choice((Limits(turns=1), Limits(time="10s"), Limits(time="60s"), Limits(tokens=800)))
        mode: Mode = "batch" if self._chance.random() < 0.35 else "streaming"
        run = await agent.enqueue(f"question {self._asked}", session=session, delay=delay, limits=limits, mode=mode)
        self._keep(run)  # type: ignore[arg-type]
        return run

    def _session(self) -> str | None:
        return None if self._chance.random() < 0.4 else f"session {self._chance.randrange(SESSIONS)}"

    @property
    def _agents(self) -> list[Agent[str]]:
        assert self.troupe is not None
        return self.troupe.agents


class AgentWorld(World):
    """A world whose work is runs."""

    def __init__(self, loop: VirtualLoop, options: Options, make_worker: WorkerFactory = Worker) -> None:
        chance = Random(f"rescues of {options.seed}")
        settings = replace(
            options.settings,
            rescue_timeout=chance.choice((2 * options.settings.lease_ttl, timedelta(minutes=5))),
            rescue_interval=timedelta(seconds=chance.choice((5, 60))),
            batch_wait=timedelta(seconds=chance.choice((0, 1, 10))),
            batch_grace=timedelta(seconds=chance.choice((5, 30))),
            batch_poll_interval=timedelta(seconds=chance.choice((2, 30))),
        )
        super().__init__(loop, replace(options, settings=settings), make_worker)

    def _players(self) -> tuple[Any, Client]:
        options, store = self.options, self.store
        store.make_audit = self._make_audit
        client = AgentClient(self.loop, store, options)
        ports = Ports(clock=client.node.clock, random=Random(f"run ids of {options.seed}"))
        app = Holdfast("sqlite:///simulated", settings=options.settings, embedded=False, ports=ports)
        core_of(app).binding.of(self.loop).runtime = client.runtime
        core_of(app).loop._ports = lambda: self._here().ports
        core_of(app).book.substitute = self.provider = SimProvider(store, self._here)
        store.file.layers = core_of(app).registry.layers
        client.troupe = Troupe(app, store, self._here)
        self.app = app
        return client.troupe, client

    def _make_audit(self, file: SqliteFile, **given: Any) -> AgentAudit:
        audit = AgentAudit(file, **given)
        audit.rescue_us = microseconds(self.options.settings.rescue_timeout)
        return audit

    def _judge(self) -> None:
        super()._judge()
        audit = self.store.audit
        assert isinstance(audit, AgentAudit)
        audit.last_word()
        for key, turn in audit.turns.items():
            if key[0] in audit.excused:
                continue
            if turn["mode"] == "batch":
                self._judge_batched(key, turn)
                continue
            bought, recorded = self.provider.purchases[key], turn["state"] == "completed"
            under_way = turn["state"] == "calling"  # when its run was ended
            if not recorded <= bought <= recorded + turn["unknown"] + under_way:
                raise Violation("I11 (what was bought is recorded or unknown)", f"{bought} for {dict(turn)}")
            said = self.provider.usage[key] if recorded else {}
            if recorded and (turn["input_tokens"], turn["output_tokens"]) != (
                said["input_tokens"],
                said["output_tokens"],
            ):
                raise Violation("I11 (usage is what the provider counted)", f"{said} for {dict(turn)}")
        if not audit.excused:
            audit.batches_are_known(self.provider.bay.accountable())
        self._see(audit)

    def _judge_batched(self, key: tuple[str, int], turn: Row) -> None:
        """I11, I12: a turn that was answered by a batch was bought once, however often it was asked."""
        bought, recorded = self.provider.bay.bought[key], turn["state"] == "completed"
        streamed = self.provider.purchases[key]
        if not recorded <= bought + streamed <= recorded + turn["unknown"]:
            raise Violation("I11 (what was bought is recorded or unknown)", f"{bought} + {streamed} for {dict(turn)}")

    def _see(self, audit: AgentAudit) -> None:
        """Count what this world has seen of what agents must survive."""
        see = self.rare.hit
        for run in audit.runs.values():
            see(f"run {run['state']}")
            if run["parent"] is not None and self._state_of(audit, run["parent"]) == "cancelled" == run["state"]:
                see("run cancelled with its parent")
            if run["depth"] == 2:
                see("run below a run below a run")
        for turn in audit.turns.values():
            if turn["unknown"] and turn["state"] == "completed":
                see("turn bought again after a death")
            if turn["failures"] and turn["state"] == "completed":
                see("turn answered after a failure")
        self._see_batches(audit)
        for call in audit.calls.values():
            if call["state"] == "skipped":
                see("call skipped")
            if call["effect"] == "once" and call["state"] == "failed":
                see("once failed and was not repeated")

    def _see_batches(self, audit: AgentAudit) -> None:
        see = self.rare.hit
        for turn in audit.turns.values():
            if turn["mode"] == "batch" and turn["state"] == "completed":
                see("turn answered by another batch" if turn["attempts"] > 1 else "turn answered by a batch")
        for row in audit.batches.values():
            if row["unknown"] and row["attempts"] == 1 and row["provider_id"] is not None:
                see("batch adopted")
            if row["attempts"] > 1 and row["unknown"]:
                see("batch submitted again")
            if row["size"] > 1:
                see("batch of several runs")

    @staticmethod
    def _state_of(audit: AgentAudit, run: str) -> str:
        return str(audit.runs[run]["state"]) if audit.runs[run]["state"] in ENDED else ""
