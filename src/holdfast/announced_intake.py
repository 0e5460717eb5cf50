"""An intake that reports its jobs to listeners. The app uses it only while there are any."""

from __future__ import annotations

from typing import ParamSpec, TypeVar

from holdfast.kernel.database import Operation
from holdfast.kernel.enqueue import Accepted
from holdfast.kernel.rows import Batch, NewJob, Route
from holdfast.transactions import Intake
from holdfast.workers.telemetry import sending, tell_enqueued

P = ParamSpec("P")
R = TypeVar("R")


class AnnouncedIntake:
    """An `Intake` in front of another."""

    def __init__(self, intake: Intake, *, committed: bool) -> None:
        """`committed`: whether what it has taken in is there for everyone, or only once the caller commits."""
        self.settings = intake.settings
        self.ports = intake.ports
        self._intake = intake
        self._committed = committed

    async def enqueue(self, job: NewJob, route: Route, *, key: str | None, notify: bool) -> Accepted:
        with sending(self.ports, job, [job.id]) as carrying:
            accepted = await self._intake.enqueue(carrying, route, key=key, notify=notify)
        if accepted.id == job.id:
            tell_enqueued(self.ports, job, committed=self._committed)
        return accepted

    async def enqueue_many(self, batch: Batch, route: Route, notify: bool) -> None:
        with sending(self.ports, batch.job, batch.ids) as carrying:
            await self._intake.enqueue_many(batch._replace(job=carrying), route, notify)
        for id in batch.ids:
            tell_enqueued(self.ports, batch.job._replace(id=id), committed=self._committed)

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._intake.transact(operation, *args, **kwargs)

    async def signal(self, channel: str, payload: str, key: str | None) -> None:
        await self._intake.signal(channel, payload, key)
