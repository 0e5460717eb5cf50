"""Reading jobs: for handles, commands and people. Nothing here changes a row."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.errors import NotFound
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import JobId
from holdfast.kernel.records import AttemptRow, EndedJob, JobRow
from holdfast.kernel.statements import Jobs

NEWEST = 2**63 - 1


@reading
async def now(tx: Transaction) -> int:
    """The store's clock, which decides everything but self-fencing."""
    moment = await tx.one(Jobs.now)
    assert moment is not None
    return moment.at


@reading
async def find_job(tx: Transaction, id: JobId) -> JobRow:
    job = await tx.one(Jobs.find_job, id=id)
    if job is None:
        raise NotFound(f"there is no job {id} in this database.")
    return job


@reading
async def list_jobs(
    tx: Transaction,
    *,
    state: str | None = None,
    queue: str | None = None,
    kind: str | None = None,
    tenant: str | None = None,
    before: int = NEWEST,
    limit: int = 100,
) -> list[JobRow]:
    """Newest first; `before` is the seq of the last row of the previous page."""
    return await tx.many(Jobs.list_jobs, state=state, queue=queue, kind=kind, tenant=tenant, before=before, limit=limit)


@reading
async def list_attempts(tx: Transaction, seq: int) -> list[AttemptRow]:
    return await tx.many(Jobs.list_attempts, seq=seq)


@reading
async def find_ended(tx: Transaction, ids: Collection[JobId]) -> list[EndedJob]:
    return await tx.many(Jobs.find_ended, ids=sorted(ids))
