"""Reading jobs: for handles, commands and people. Nothing here changes a row."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.errors import NotFound
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.ids import JobId
from holdfast.kernel.records import AttemptRow, EndedJob, JobRow
from holdfast.kernel.statements import Jobs
from holdfast.kernel.states import State

NEWEST = 2**63 - 1
LOOK = 100_000  # jobs that one call looks at for those that fit


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


class Page(list[JobRow]):
    """Jobs, newest first. `before` is where to go on: None when there is nothing older.

    A page may be short, or empty, and yet have a `before`: so many jobs were looked at, and older ones may fit.
    """

    def __init__(self, rows: Iterable[JobRow] = (), *, before: int | None = None) -> None:
        super().__init__(rows)
        self.before = before


@reading
async def list_jobs(  # noqa: PLR0913  what it filters by, and how far
    tx: Transaction,
    *,
    state: str | None = None,
    queue: str | None = None,
    kind: str | None = None,
    tenant: str | None = None,
    before: int = NEWEST,
    limit: int = 100,
    look: int = LOOK,
) -> Page:
    """Newest first; `before` is that of the previous page, or the seq of its last row.

    At most `look` jobs are looked at for those that fit. What runs is found by an index, however old it is.
    """
    if state == State.RUNNING:
        found = await tx.many(Jobs.find_running, queue=queue, kind=kind, tenant=tenant, before=before, limit=limit)
        rows = await tx.many(Jobs.jobs_by_seq, seqs=[row.seq for row in found]) if found else []
        rows = [row for row in rows if row.state == state]
        return Page(rows, before=found[-1].seq if len(found) == limit else None)
    filtered = (state, queue, kind, tenant) != (None, None, None, None)
    oldest = await tx.one(Jobs.seq_before, before=before, skipped=look) if filtered else None
    rows = await tx.many(
        Jobs.list_jobs,
        state=state,
        queue=queue,
        kind=kind,
        tenant=tenant,
        before=before,
        after=0 if oldest is None else oldest.seq,
        limit=limit,
    )
    if len(rows) == limit:
        return Page(rows, before=rows[-1].seq)
    return Page(rows, before=None if oldest is None else oldest.seq + 1)


@reading
async def list_attempts(tx: Transaction, seq: int) -> list[AttemptRow]:
    return await tx.many(Jobs.list_attempts, seq=seq)


@reading
async def find_ended(tx: Transaction, ids: Collection[JobId]) -> list[EndedJob]:
    return await tx.many(Jobs.find_ended, ids=sorted(ids))
