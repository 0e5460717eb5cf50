"""Jobs over HTTP: what is in the store, why it does not run, again, and no more."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from holdfast.http.api.routes import MOST_COUNTED, Count, Paged, Routes
from holdfast.http.api.runs import Body, ReasonBody
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.values import Bulk, Page
from holdfast.values.jobs import AttemptRecord, JobRecord, ReasonRecord

routes = Routes("jobs")


class ManyJobs(Body):
    """Which jobs; `dry_run` only counts them. Continue with `next` as `after`. To cancel every job, say `all`.

    `error` and `message` are those of a group of `GET /system/failures`, to enqueue only jobs again that failed so.
    """

    dry_run: bool = False
    all: bool = False
    state: str | None = None
    queue: str | None = None
    kind: str | None = None
    error: str | None = None
    message: str | None = None
    after: str | None = None
    reason: Annotated[str, Field(max_length=2_000)] = "cancelled by its owner"

    @property
    def choice(self) -> dict[str, Any]:
        return {"queue": self.queue, "kind": self.kind, "state": self.state}


@routes.get("/jobs")
async def list_jobs(
    seen: RequestScope,
    page: Paged,
    state: str | None = None,
    queue: str | None = None,
    kind: str | None = None,
    tenant: str | None = None,
    since: datetime | str | None = None,
    key: str | None = None,
    system: bool = False,
    count: Count = False,
) -> Page[JobRecord]:
    """List jobs, newest first; failed or cancelled ones, the last to end first. A short page may have a `next`.

    `kind` may be a pattern with one or two `*`: "mail.*". `since` is a time, or how long ago ("1h"). `key` is the
    idempotency key of a job, of `tenant` if it has one. The runtime's own jobs are listed with `system`, or if you name
    their queue or their kind.
    """
    wanted: dict[str, Any] = {"state": state, "queue": queue, "kind": kind, "tenant": seen.chosen(tenant)}
    wanted |= {"since": since, "key": key, "system": system}
    found = await seen.hf.jobs.list(**wanted, **page.place, look=MOST_COUNTED)
    found.total = await seen.hf.jobs.count(**wanted) if count else None
    return found


@routes.post("/jobs/retry")
async def retry_jobs(seen: RequestScope, many: ManyJobs) -> Bulk:
    """Enqueue ended jobs again, at most 1,000 a call, each once; failed ones unless `state` says otherwise."""
    group = {"error": many.error, "message": many.message}
    where = {**many.choice, **group, "after": many.after, "tenant": seen.tenant}
    return await seen.hf.jobs.retry_some(**where, dry_run=many.dry_run)


@routes.post("/jobs/cancel")
async def cancel_jobs(seen: RequestScope, many: ManyJobs) -> Bulk:
    """Cancel jobs that have not ended, with their families, at most 1,000 a call."""
    how: dict[str, Any] = {"dry_run": many.dry_run, "reason": many.reason, "all": many.all}
    return await seen.hf.jobs.cancel_some(**many.choice, tenant=seen.tenant, **how)


async def _find(seen: PrincipalScope, id: str) -> JobRecord:
    return await (seen.hf.jobs if seen.part is None else seen.part.jobs).get(id)


@routes.get("/jobs/{id}")
async def show_job(seen: RequestScope, id: str) -> JobRecord:
    """Show one job."""
    return await _find(seen, id)


@routes.get("/jobs/{id}/attempts")
async def list_attempts(seen: RequestScope, id: str) -> list[AttemptRecord]:
    """List the attempts of a job that have ended, in their order; the last 1,000."""
    return list(await seen.hf.jobs.attempts((await _find(seen, id)).id))


@routes.get("/jobs/{id}/why")
async def explain_job(seen: RequestScope, id: str) -> list[ReasonRecord]:
    """Explain why no worker runs the job; empty when nothing holds it back."""
    return list(await seen.why((await _find(seen, id)).id))


@routes.post("/jobs/{id}/retry", creates=True)
async def retry_job(seen: RequestScope, id: str) -> JobRecord:
    """Enqueue an ended job again, as a new one that names it."""
    again = await seen.hf.jobs.retry((await _find(seen, id)).id)
    return await seen.hf.jobs.get(again.id)


@routes.post("/jobs/{id}/cancel")
async def cancel_job(seen: RequestScope, id: str, why: ReasonBody | None = None) -> dict[str, str]:
    """Cancel a job and its family; answers its state now."""
    job = await _find(seen, id)
    return {"id": job.id, "state": await seen.hf.jobs[job.id].cancel((why or ReasonBody()).reason)}
