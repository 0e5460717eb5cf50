"""The nemesis: breaks machines, clocks and the store, each fault at its own random pace."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from random import Random

from holdfast.kernel import epoch
from holdfast.kernel.duties import CLEANUP
from tests.simulation.cluster import Machine, Process
from tests.simulation.store import Store


class Nemesis:
    name = "nemesis"
    dead = False

    def __init__(self, store: Store, machines: Sequence[Machine]) -> None:
        self._store = store
        self._machines = machines
        self._faults = store.options.faults
        self._chance = Random(f"nemesis of {store.options.seed}")

    def begin(self) -> None:
        faults = self._faults
        for mean, strike in (
            (faults.crash_s, self._crash),
            (faults.pause_s, self._pause),
            (faults.block_s, self._block),
            (faults.drain_s, self._drain),
            (faults.skew_s, self._skew),
            (faults.outage_s, self._outage),
            (faults.busy_s, self._busy),
            (faults.epoch_s, self._bump_epoch),
            (faults.failover_s, self._fail_over),
            (faults.flap_s, self._flap),
        ):
            if mean != math.inf:
                asyncio.create_task(self._now_and_then(mean, strike))  # noqa: RUF006  the loop holds it

    def crash(self) -> None: ...

    def freeze(self, seconds: float) -> None: ...

    async def _now_and_then(self, mean: float, strike: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / mean))
            if self._store.healed:
                return
            strike()

    def _victim(self) -> Process | None:
        return self._chance.choice(self._machines).process

    def _crash(self) -> None:
        if (process := self._victim()) is not None:
            process.crash()

    def _pause(self) -> None:
        holder = self._duty_holder() if self._chance.random() < 0.3 else None
        if (process := holder or self._victim()) is not None:
            process.freeze(self._longer_or_shorter_than_leases())

    def _block(self) -> None:
        if (process := self._victim()) is not None:
            process.block(self._longer_or_shorter_than_leases())

    def _drain(self) -> None:
        if (process := self._victim()) is not None:
            process.drain()

    def _skew(self) -> None:
        if (process := self._victim()) is not None:
            drift = self._faults.drift
            process.skew(1 + self._chance.uniform(-drift, drift))

    def _outage(self) -> None:
        self._store.go_away(self._longer_or_shorter_than_leases() * self._chance.random())

    def _busy(self) -> None:
        self._store.be_busy(self._chance.uniform(2, 30))

    def _bump_epoch(self) -> None:
        self._store.execute(self, epoch.bump, (), {}, again=False)

    def _fail_over(self) -> None:
        self._store.replicate()
        behind = self._chance.expovariate(1 / self._chance.choice((2, 20)))
        epoch_then = self._store.observer.epoch
        self._store.loop.call_later(behind, self._promote, epoch_then, context=self._store.context)

    def _promote(self, epoch_then: int) -> None:
        # A failover that also loses a rise of the epoch gives its number out again, and with it tokens. The epoch
        # is a counter in the store that forgets; until it is not, this world has no such failover.
        if not self._store.healed and self._store.observer.epoch == epoch_then:
            self._store.fail_over(self)
            self._store.go_away(self._chance.uniform(0, 10))

    def _flap(self) -> None:
        if self._store.options.presence == "flapping":
            grace = self._store.options.settings.presence_grace.total_seconds()
            self._store.signs.flap(grace * self._chance.uniform(0.1, 5))

    def _longer_or_shorter_than_leases(self) -> float:
        settings = self._store.options.settings
        ttl = self._chance.choice((settings.lease_ttl, settings.duty_ttl, settings.worker_ttl)).total_seconds()
        return ttl * self._chance.choice((0.3, 0.8, 1.2, 3.0))

    def _duty_holder(self) -> Process | None:
        duty = self._store.audit.duties.get(CLEANUP)
        processes = [machine.process for machine in self._machines if machine.process is not None]
        holders = (p for p in processes if duty and p.worker is not None and p.worker.seq == duty["holder"])
        return next(holders, None)
