"""Redis clients in the simulated cluster: two gateways and three workers, struck like any other process.

A producer enqueues errands, and a liar reports about them in the names of others. Replies are lost after their commits,
and connections are reset before replies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

from holdfast.resp import workers
from holdfast.workers.worker import Worker
from tests.simulation.cluster import WorkerFactory
from tests.simulation.resp_journal import STORE, Journal
from tests.simulation.resp_processes import (
    ERRAND,
    WORKERS,
    GatewayProcess,
    Liar,
    Network,
    Producer,
    RespMachine,
    RespWorker,
)
from tests.simulation.swarm import Options
from tests.simulation.world import World
from tests.support.snapshots import Row
from tests.support.virtual_time import VirtualLoop

GATEWAYS = 2
CUTS = (0.0, 0.005, 0.03)


class RespWorld(World):
    def __init__(self, loop: VirtualLoop, options: Options, make_worker: WorkerFactory = Worker) -> None:
        # What a client holds, it holds for its job's time, whatever the ceiling of workers is.
        settings = replace(options.settings, lease_ceiling=timedelta(days=1))
        super().__init__(loop, replace(options, settings=settings), make_worker)
        chance = Random(f"wires of {options.seed}")
        dead_after = max(options.settings.lease_ttl, timedelta(seconds=5))
        self.journal = Journal()
        self.network = Network(dead_after, chance.choice(CUTS), self.journal, self.client.accepted)
        self.network.gateways = [
            RespMachine(self, self.network, f"g{number}", number, GatewayProcess) for number in range(GATEWAYS)
        ]
        others = {**dict.fromkeys(WORKERS, RespWorker), "producer": Producer, "liar": Liar}
        self.machines[1:] = [
            *self.network.gateways,
            *(RespMachine(self, self.network, name, 10 + n, make) for n, (name, make) in enumerate(others.items())),
        ]
        self.store.forgetful.append(self._forget)
        self.store.overheard = self._overhear
        self._note_faults(self.store.fate, self.store.go_away, self.store.be_busy)

    def _note_faults(
        self, fate: Callable[[Any], str], go_away: Callable[[float], None], be_busy: Callable[[float], None]
    ) -> None:
        def noted(operation: Callable[..., Any]) -> str:
            drawn = fate(operation)
            if drawn:
                self._note(self.store.hold_up() if drawn == "slow" else 0.0)
            return drawn

        def away(seconds: float) -> None:
            self._note(seconds)
            go_away(seconds)

        def busy(seconds: float) -> None:
            self._note(seconds)
            be_busy(seconds)

        self.store.fate, self.store.go_away, self.store.be_busy = noted, away, busy  # type: ignore[method-assign]

    def _overhear(self, operation: Callable[..., Any], arguments: Any, answer: Any) -> None:
        self.client.overhear(operation, arguments, answer)
        if getattr(operation, "func", operation) is workers.register and isinstance(answer, int):
            self.journal.process_of[answer] = arguments[0].hostname
            self.store.audit.clients.add(answer)

    def _note(self, seconds: float) -> None:
        self.journal.note(STORE, self.store.seconds, seconds)

    def _forget(self) -> None:
        """The server was lost with its last commits: so is what it acknowledged."""
        self.journal.acknowledged.clear()
        self._note(0.0)

    def _judge(self) -> None:
        super()._judge()
        whole = self.store.audit.whole(self.store.now())
        attempts: defaultdict[int, list[Row]] = defaultdict(list)
        for row in whole["attempt"].values():
            attempts[row["job"]].append(row)
        errands = [row for row in whole["job"].values() if row["kind"] == ERRAND]
        self.journal.judge(errands, attempts)
