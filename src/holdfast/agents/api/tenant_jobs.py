"""The jobs of one tenant as a program sees them: `hf.tenant(id).jobs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.agents.core import AgentsCore
from holdfast.errors import NotFound
from holdfast.handles import Jobs
from holdfast.jobs import Job
from holdfast.kernel.states import StateName
from holdfast.values.jobs import AttemptRecord, JobRecord, Why, why_of
from holdfast.values.page import Page


class TenantJobs:
    """The jobs of one tenant."""

    def __init__(self, app: AgentsCore, tenant: str) -> None:
        self._app = app
        self._jobs = Jobs(app)
        self._tenant = tenant

    async def get(self, id: str) -> JobRecord:
        row = await self._jobs.get(id)
        if row.tenant != self._tenant:
            raise NotFound(f"there is no job {id} in this database.")
        return row

    async def list(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        kind: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page[JobRecord]:
        """Jobs of this tenant, the newest first."""
        return await self._jobs.list(state=state, queue=queue, kind=kind, tenant=self._tenant, limit=limit, after=after)

    async def attempts(self, id: str) -> Sequence[AttemptRecord]:
        return await self._jobs.attempts((await self.get(id)).id)

    async def why(self, id: str) -> Why:
        """Why no worker runs the job, without names of workers, lanes or queues; empty when nothing holds it back."""
        return why_of(await self._app.reasons((await self.get(id)).id), for_tenant=True)

    async def retry(self, id: str) -> Job[Any]:
        """Enqueue an ended job again, as `hf.jobs.retry` does."""
        return await self._jobs.retry((await self.get(id)).id)

    async def cancel(self, id: str, reason: str = "cancelled by its owner") -> StateName:
        """Cancel a job and its family; returns its state now."""
        return await self._jobs[(await self.get(id)).id].cancel(reason)
