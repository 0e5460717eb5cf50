"""The store as an app in a lab uses it: what it enqueues may run at once, and what it waits for is run first.

Handlers use it too, and a lab kills their worker in the middle of a call. The test and the next worker share its locks,
so a call that has begun is completed, as a server completes what a killed process has sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from holdfast.agents.runs.create import Created
from holdfast.kernel.database import Operation
from holdfast.kernel.enqueue import Accepted
from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import Batch, NewJob, Route
from holdfast.runtime import Runtime
from holdfast.testing.crashes import outlive

P = ParamSpec("P")
R = TypeVar("R")


class RunningLab(Protocol):
    """As much of the lab as its runtime needs."""

    async def accepted(self, ids: Sequence[JobId]) -> None:
        """These were enqueued, or signalled: an inline lab runs them now."""

    async def awaited(self, id: JobId, limit: float | None) -> None:
        """Somebody is about to wait for this job; run it, if it can be run."""


class LabRuntime(Runtime):
    def __init__(self, lab: RunningLab, *given: Any) -> None:
        super().__init__(*given)
        self._lab = lab

    async def enqueue(self, job: NewJob, route: Route, *, key: str | None, notify: bool) -> Accepted:
        accepted = await outlive(super().enqueue(job, route, key=key, notify=notify))
        await self._lab.accepted([accepted.id])
        return accepted

    async def enqueue_many(self, batch: Batch, route: Route, notify: bool) -> None:
        await outlive(super().enqueue_many(batch, route, notify))
        await self._lab.accepted(batch.ids)

    async def signal(self, channel: str, payload: str, key: str | None) -> None:
        await outlive(super().signal(channel, payload, key))
        await self._lab.accepted([])

    async def transact(self, operation: Operation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer = await outlive(super().transact(operation, *args, **kwargs))
        answers = answer if isinstance(answer, list) else [answer]
        created = [JobId(each.run) for each in answers if isinstance(each, Created)]
        if created:
            await self._lab.accepted(created)
        return answer

    async def expect(self, id: JobId, limit: float | None) -> None:
        await self._lab.awaited(id, limit)
