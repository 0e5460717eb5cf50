"""Samples of the fleet: one look every two seconds for all who watch, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from holdfast.agents.values.activity import AgentNow, fleet_now
from holdfast.app import Holdfast, core_of
from holdfast.errors import HoldfastError, Unavailable
from holdfast.kernel import watch
from holdfast.values.quantiles import Quantiles, quantiles
from holdfast.values.queues import QueueCounts

EVERY = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The fleet at one moment. What ended is of the last minute, and so are the times."""

    at: datetime
    queues: list[QueueCounts]
    agents: list[AgentNow]
    inquiries: int
    workers: int
    slots: int
    active: int
    closed_lanes: int
    lapsed_leases: int
    oldest_pending: dict[str, float]  # seconds, by queue
    waiting_behind: dict[str, int]  # runs, by the closed lane
    wait_seconds: dict[str, Quantiles]  # from enqueuing to the first claim, by queue
    duration_seconds: dict[str, Quantiles]  # of the attempts that ended jobs, by queue
    turn_seconds: dict[str, Quantiles]  # by model


class Sampler:
    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._last: Sample | None = None
        self._looked = float("-inf")
        self._looking = asyncio.Lock()

    async def sample(self) -> Sample:
        """The fleet as it is, or was less than two seconds ago."""
        clock = core_of(self._hf).ports.clock
        async with self._looking:
            if self._last is None or clock.monotonic() - self._looked >= EVERY:
                self._last = await self._look()
                self._looked = clock.monotonic()
        return self._last

    async def samples(self) -> AsyncIterator[Sample]:
        """One now, and then one every two seconds; none while the store is away."""
        while True:
            try:
                yield await self.sample()
            except HoldfastError as problem:
                if isinstance(problem, Unavailable):
                    core_of(self._hf).ports.try_again(problem)
            await core_of(self._hf).ports.clock.sleep(EVERY)

    async def _look(self) -> Sample:
        hf, transact = self._hf, core_of(self._hf).runtime().transact
        now = await transact(fleet_now)
        workers = [each for each in await hf.workers.list(limit=1_000) if not each.silent]
        queues = list(await hf.queues.stats())
        busy = [each.name for each in queues if each.succeeded or each.failed or each.cancelled]
        times = await transact(watch.latencies, busy)
        lanes = await hf.lanes.list()
        return Sample(
            at=now.at,
            queues=queues,
            agents=now.agents,
            inquiries=now.inquiries,
            workers=len(workers),
            slots=sum(each.slots for each in workers),
            active=sum(each.active for each in workers),
            closed_lanes=len(lanes),
            lapsed_leases=now.lapsed,
            oldest_pending=now.oldest_pending,
            waiting_behind={each.name: each.waiting for each in lanes},
            wait_seconds={name: quantiles(*each[:3]) for name, each in times.items()},
            duration_seconds={name: quantiles(*each[3:]) for name, each in times.items()},
            turn_seconds=now.turn_seconds,
        )
