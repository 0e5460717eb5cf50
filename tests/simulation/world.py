"""One simulated world: its parts, its time of troubles, its healing, and what must hold in the end."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.kernel import epoch, migrate
from holdfast.kernel.states import State
from holdfast.workers.worker import Worker
from tests.simulation.audit import Violation
from tests.simulation.client import Client
from tests.simulation.cluster import Machine, Process, WorkerFactory
from tests.simulation.nemesis import Nemesis
from tests.simulation.rare import Rare
from tests.simulation.store import Store
from tests.simulation.swarm import Options
from tests.simulation.workload import NEVER, Workload
from tests.support.invariants import check_whole
from tests.support.snapshots import Row
from tests.support.virtual_time import VirtualLoop, current_node

LOOK_S = 2.0
LONGEST_HEALING_S = 4 * 3600.0


class World:
    def __init__(self, loop: VirtualLoop, options: Options, make_worker: WorkerFactory = Worker) -> None:
        self.loop = loop
        self.options = options
        self.rare = Rare()
        self.verdict: asyncio.Future[None] = loop.create_future()
        self.store = Store(loop, options, self.rare, self.fail)
        self.nodes: dict[str, Process] = {}
        self.workload, self.client = self._players()
        self.machines = [
            Machine(self.store, self.workload, self.nodes, number, make_worker) for number in range(options.machines)
        ]
        self.nemesis = Nemesis(self.store, self.machines)

    def _players(self) -> tuple[Any, Client]:
        """Whose handlers the workers run, and who gives them work."""
        workload = Workload(self.store, self.options, self._here)
        client = Client(self.loop, self.store, self.options, workload)
        workload.declare(client.runtime)
        return workload, client

    def fail(self, problem: BaseException) -> None:
        if not self.verdict.done():
            self.verdict.set_exception(problem)

    async def run(self) -> None:
        """Trouble, then peace. The verdict is set at the end, or by the first violation."""
        try:
            await self._open()
            await asyncio.sleep(self.options.chaos_s)
            self._heal()
            await self._settle()
            self._judge()
            await self._part()
        except Exception as problem:  # noqa: BLE001  whatever it is, it is the verdict
            self.fail(problem)
        if not self.verdict.done():
            self.verdict.set_result(None)

    def _here(self) -> Process:
        node = current_node()
        assert node is not None
        return self.nodes[node.name]

    async def _open(self) -> None:
        database = self.client.database
        await migrate.migrate(database, "")
        self.store.watch()
        self.store.execute(self.client, epoch.adopt, ("simulated",), {}, again=False)
        for machine in self.machines:
            machine.start()
        self.client.node.spawn(self.client.run)
        self.nemesis.begin()

    def _heal(self) -> None:
        self.store.heal()
        for machine in self.machines:
            if machine.process is not None:
                machine.process.heal()
            machine.start()

    async def _settle(self) -> None:
        """Until everything has ended that can. Long silence, or lasting noise, is a failure."""
        healed_at = changed_at = self.store.seconds
        seen: dict[int, tuple[str, int]] = {}
        while unsettled := self._unsettled():
            now = self.store.seconds
            states = {seq: (row["state"], row["token"]) for seq, row in self.store.audit.open.items()}
            if states != seen:
                seen, changed_at = states, now
            self._nothing_is_overlooked(healed_at)
            if now - changed_at > self._patience() or now - healed_at > LONGEST_HEALING_S:
                rows = "\n".join(str(dict(row)) for row in unsettled[:5])
                raise Violation("all work ends", f"{len(unsettled)} jobs are stuck {now - healed_at:.0f} s on:\n{rows}")
            await self.client.node.spawn(self.client.signal_all)
            await asyncio.sleep(LOOK_S)

    def _unsettled(self) -> list[Row]:
        return [row for row in self.store.audit.open.values() if not self._may_wait(row)]

    def _may_wait(self, row: Row) -> bool:
        if row["state"] != State.WAITING or row["due_at"] is not None or row["deadline_at"] is not None:
            return False
        if row["channel"] is not None:
            return bool(row["channel"] == NEVER)
        children = [child for child in self.store.audit.open.values() if child["parent"] == row["seq"]]
        return bool(children) and all(self._may_wait(child) for child in children)

    def _patience(self) -> float:
        """The longest that nothing may change: one back-off, one long job, one lease, some looks."""
        settings = self.options.settings
        return 400 + 3 * (settings.lease_ttl + settings.worker_ttl + settings.poll_interval).total_seconds()

    def _nothing_is_overlooked(self, healed_at: float) -> None:
        """I9: once all is well, what is over is noticed within a poll or two."""
        settings = self.options.settings
        late = (settings.worker_ttl + 2 * settings.poll_interval).total_seconds() + 10
        if self.store.seconds < healed_at + late:
            return
        limit = self.store.now() - round(late * 1e6)
        for row in self.store.audit.open.values():
            if row["state"] == State.RUNNING and row["lease_until"] < limit:
                raise Violation("I9 (no lease outlives its time)", f"nobody rescued {dict(row)}")
            due = row["due_at"] if row["state"] in (State.SCHEDULED, State.WAITING) else None
            if due is not None and due < limit:
                raise Violation("I9 (what is due is woken)", f"nobody woke {dict(row)}")

    def _judge(self) -> None:
        whole = self.store.audit.whole(self.store.now())
        check_whole(whole)
        ids = {row["id"] for row in whole["job"].values()}
        if missing := [id for id in self.client.accepted if id not in ids]:
            raise Violation("I1 (accepted work is there)", f"lost: {missing[:5]}")
        if whole["job"] != self.store.audit.jobs:
            raise Violation("the audit saw every change", "the rows in the store are others")
        for row in whole["cancellation"].values():
            job = whole["job"][row["job"]]
            raise Violation("families are cancelled whole", f"still to be done: {dict(row)} of {dict(job)}")

    async def _part(self) -> None:
        """All processes leave; nothing must be left behind."""
        for machine in self.machines:
            machine.keep_up = False
        left: set[int] = set()
        limit = self.store.seconds + 120 + 2 * self.options.settings.drain_grace.total_seconds()
        while here := [m.process for m in self.machines if m.process is not None and not m.process.dead]:
            if self.store.seconds > limit:
                raise Violation("a worker that drains goes", f"still there: {[process.name for process in here]}")
            for process in here:
                if process.worker is not None:
                    left.add(process.worker.seq)
                process.drain()
            await asyncio.sleep(1)
        whole = self.store.audit.whole(self.store.now())
        for row in whole["job"].values():
            if row["state"] == State.RUNNING:
                raise Violation("a worker that goes leaves nothing behind", f"leased: {dict(row)}")
        for row in whole["duty"].values():
            if row["holder"] in left:
                raise Violation("a worker that goes leaves nothing behind", f"held: {dict(row)}")
