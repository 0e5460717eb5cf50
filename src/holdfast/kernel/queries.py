"""Reading jobs: for handles, commands and people. Nothing here changes a row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.errors import NotFound, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.enqueue import find_key
from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import AdjacentIds, AttemptRow, EndedJob, FailedJob, JobRow, Match, Seq
from holdfast.kernel.statements import JobsSql, ListingSql
from holdfast.kernel.states import TERMINAL, State

NEWEST = 2**63 - 1
LOOK = 100_000  # jobs that one call looks at for those that fit
COUNTED = 10_000  # jobs among which one call counts
_FEW = 4  # times a page


@reading
async def now(tx: Transaction) -> int:
    """The store's clock, which decides everything but self-fencing."""
    moment = await tx.one(JobsSql.now)
    assert moment is not None
    return moment.at


@reading
async def find_job(tx: Transaction, id: JobId) -> JobRow:
    job = await tx.one(JobsSql.find_job, id=id)
    if job is None:
        raise NotFound(f"there is no job {id} in this database.")
    return job


class JobPage(list[JobRow]):
    """Jobs, newest first. `before` is where to continue: None when there is nothing older.

    A page may be short, or empty, and yet have a `before`: so many jobs were looked at, and older ones may fit.
    """

    def __init__(self, rows: Iterable[JobRow] = (), *, before: int | None = None) -> None:
        super().__init__(rows)
        self.before = before


class JobFilters(NamedTuple):
    """Which jobs; None is any. `since` is when they were created.

    `kind` is one kind or a pattern: a `*` stands for anything, `mail.*` or `*.send`, and two of them are the most.
    `key` is an idempotency key of `tenant`. Kinds that begin with `hidden` are left out.
    """

    state: str | None = None
    queue: str | None = None
    kind: str | None = None
    tenant: str | None = None
    since: int = 0
    key: str | None = None
    hidden: str | None = None

    def given(self) -> dict[str, str | None]:
        """As the statements take it. `UsageError` for a pattern with more `*`, of which none is slow to compare."""
        rest = {"queue": self.queue, "tenant": self.tenant, "hidden": self.hidden}
        begins, *between = (self.kind or "").split("*")
        if not between:
            return {**rest, "kind": self.kind, "begins": None, "holds": "", "ends": ""}
        *holds, ends = between
        if len(holds) > 1:
            raise UsageError(f"kind {self.kind!r} has more than two *; write it as in 'mail.*' or '*.send_*'.")
        return {**rest, "kind": None, "begins": begins, "holds": "".join(holds), "ends": ends}


ANY = JobFilters()


@reading
async def list_jobs(
    tx: Transaction, filters: JobFilters = ANY, *, before: int = NEWEST, limit: int = 100, look: int = LOOK
) -> JobPage:
    """Newest first; `before` is that of the previous page, or the seq of its last row.

    At most `look` jobs are looked at for those that fit. What runs is found by an index, however old it is.
    """
    if filters.key is not None:
        return await _of_key(tx, filters, before)
    if filters.hidden is not None and filters._replace(since=0, hidden=None) == ANY:
        page = await _look(tx, filters, before, limit, min(look, _FEW * limit))  # few are hidden, in most stores
        if len(page) == limit or page.before is None:
            return page
    return await _look(tx, filters, before, limit, look)


async def _of_key(tx: Transaction, filters: JobFilters, before: int) -> JobPage:
    """The one job that has this key, if it fits."""
    owner = await find_key(tx, filters.tenant or "", codec.stored_key(filters.key))
    job = None if owner is None else await tx.one(JobsSql.find_job, id=owner.job)
    if job is None or job.seq >= before or job.created_at < filters.since:
        return JobPage()
    near = {**filters.given(), "before": job.seq + 1, "after": job.seq - 1, "limit": 1}
    rows = await tx.many(ListingSql.list_jobs, **near)
    return JobPage(row for row in rows if filters.state in (None, row.state))


async def _look(tx: Transaction, filters: JobFilters, before: int, limit: int, look: int) -> JobPage:
    state, since = filters.state, filters.since
    wanted = {**filters.given(), "before": before, "limit": limit}
    if state == State.RUNNING:
        found = await tx.many(ListingSql.find_running, **wanted)
        rows = await tx.many(ListingSql.jobs_by_seq, seqs=[row.seq for row in found]) if found else []
        rows = [row for row in rows if row.state == state and row.created_at >= since]
        return JobPage(rows, before=found[-1].seq if len(found) == limit else None)
    filtered = filters._replace(since=0) != ANY
    oldest = await tx.one(ListingSql.seq_before, before=before, skipped=look) if filtered else None
    first = await _last_before(tx, since) if since else 0
    if oldest is not None and oldest.seq <= first:
        oldest = None
    after = first if oldest is None else oldest.seq
    if state is None:
        rows = await tx.many(ListingSql.list_jobs, **wanted, after=after)
        last = rows[-1].seq if len(rows) == limit else None
    else:
        found = await _in_state(tx, state, **wanted, after=after)
        rows = await tx.many(ListingSql.jobs_by_seq, seqs=[row.seq for row in found]) if found else []
        rows = [row for row in rows if row.state == state]
        last = found[-1].seq if len(found) == limit else None
    if last is None and oldest is not None:
        last = oldest.seq + 1
    return JobPage(rows, before=last)


@reading
async def count_jobs(tx: Transaction, filters: JobFilters = ANY, *, look: int = COUNTED) -> int:
    """How many there are, among the newest that it looks at."""
    if filters.key is not None:
        return len(await _of_key(tx, filters, NEWEST))
    wanted, state = filters.given(), filters.state
    first = await _last_before(tx, filters.since) if filters.since else 0
    if state is None:
        counted = await tx.one(ListingSql.count_jobs, **wanted, after=first, look=look)
        return 0 if counted is None else counted.number
    if state == State.RUNNING:
        held = await tx.many(ListingSql.find_running, **wanted, before=NEWEST, limit=look)
        return len([row for row in held if row.seq > first])
    oldest = await tx.one(ListingSql.seq_before, before=NEWEST, skipped=look)
    after = first if oldest is None else max(first, oldest.seq)
    return len(await _in_state(tx, state, **wanted, before=NEWEST, after=after, limit=look))


async def _last_before(tx: Transaction, since: int) -> int:
    """The number of the last job that was created before this moment: numbers and times grow together.

    A transaction that stayed open for long may have an older job under a newer number; that one is listed too.
    """
    low, newest = 0, await tx.one(ListingSql.job_at, seq=NEWEST)
    high = 0 if newest is None else newest.seq
    while low < high:
        middle = (low + high + 1) // 2
        job = await tx.one(ListingSql.job_at, seq=middle)
        if job is None or job.at < since:
            low = middle
        else:
            high = min(middle, job.seq) - 1
    return low


async def _in_state(tx: Transaction, state: str, **wanted: Any) -> list[Seq]:
    """The numbers of jobs in this state; one that is read a moment later may have moved on."""
    if state in TERMINAL:
        return await tx.many(ListingSql.ended_in_state, state=state, **wanted)
    if state == State.PENDING:
        return await tx.many(ListingSql.pending_in_order, **wanted)
    return await tx.many(ListingSql.later_in_state, state=state, **wanted)


@reading
async def jobs_by_seq(tx: Transaction, seqs: Sequence[int]) -> list[JobRow]:
    """These jobs as they stand, newest first; those that are gone are left out."""
    return await tx.many(ListingSql.jobs_by_seq, seqs=seqs) if seqs else []


@reading
async def list_attempts(tx: Transaction, seq: int, *, limit: int = 1_000) -> list[AttemptRow]:
    """The last attempts of a job that have ended, in their order."""
    return await tx.many(JobsSql.list_attempts, seq=seq, limit=limit)


@reading
async def count_attempts(tx: Transaction, seq: int) -> int:
    """How many attempts of a job have ended, however they did."""
    row = await tx.one(JobsSql.count_attempts, seq=seq)
    return 0 if row is None else row.number


@reading
async def find_ended(tx: Transaction, ids: Collection[JobId]) -> list[EndedJob]:
    return await tx.many(JobsSql.find_ended, ids=sorted(ids))


@reading
async def jobs_beside(tx: Transaction, ids: Sequence[str]) -> list[AdjacentIds]:
    """The ids of jobs before and after each of these, in the order of ids."""
    return await tx.many(ListingSql.jobs_beside, ids=ids)


# Jobs that failed or were cancelled, the last first: few among many that succeeded, so they have an index.


TROUBLED_LOOK = 10_000
TROUBLED = frozenset({State.FAILED, State.CANCELLED})


class TroubledJobs(NamedTuple):
    """A page. `place` is where the look ended, None when nothing is left behind it."""

    rows: list[JobRow]
    place: tuple[int, int] | None
    looked: int


@reading
async def list_troubled(
    tx: Transaction,
    filters: JobFilters,
    *,
    before: tuple[int, int] = (NEWEST, NEWEST),
    limit: int = 100,
    look: int = TROUBLED_LOOK,
) -> TroubledJobs:
    given = _given(filters, before)
    found = await tx.many(ListingSql.jobs_troubled, **given, limit=limit, look=look)
    read = await tx.many(ListingSql.jobs_by_seq, seqs=[row.seq for row in found]) if found else []
    by_seq = {row.seq: row for row in read}
    rows = [by_seq[row.seq] for row in found if row.seq in by_seq]
    if len(found) == limit:
        return TroubledJobs(rows, (found[-1].at, found[-1].seq), limit)
    end = await tx.one(ListingSql.end_of_jobs_troubled, **given, skipped=look - 1)
    return TroubledJobs(rows, None if end is None else (end.at, end.seq), len(rows) if end is None else look)


@reading
async def count_troubled(tx: Transaction, filters: JobFilters, *, look: int = TROUBLED_LOOK) -> int:
    """How many there are, among the last that one look sees."""
    counted = await tx.one(ListingSql.count_jobs_troubled, **_given(filters, (NEWEST, NEWEST)), look=look)
    return 0 if counted is None else counted.number


class FailedJobs(NamedTuple):
    """Failed jobs of a kind, the last first. `reach` is how far the look went back, None when it saw all."""

    rows: list[FailedJob]
    reach: int | None


@reading
async def list_failed(
    tx: Transaction, kind: str, tenant: str | None, *, limit: int, look: int = TROUBLED_LOOK
) -> FailedJobs:
    """Only what a group of failures shows of each."""
    place = {"before_at": NEWEST, "before": NEWEST, "since": 0}
    wanted = {"state": State.FAILED.value, "kind": kind, "tenant": tenant}
    rows = await tx.many(ListingSql.failed_jobs, **place, **wanted, limit=limit, look=look)
    if len(rows) == limit:
        return FailedJobs(rows, rows[-1].at)
    end = await tx.one(ListingSql.end_of_jobs_troubled, **place, skipped=look - 1)
    return FailedJobs(rows, end and end.at)


@reading
async def count_failed(tx: Transaction, since: int, *, look: int) -> int:
    """How many jobs failed since then, among the last that one look sees."""
    place = {"before_at": NEWEST, "before": NEWEST}
    counted = await tx.one(ListingSql.count_failed, **place, state=State.FAILED.value, since=since, look=look)
    return 0 if counted is None else counted.number


def _given(filters: JobFilters, before: tuple[int, int]) -> dict[str, Any]:
    wanted = {**filters.given(), "state": filters.state, "since": filters.since}
    return {**wanted, "before_at": before[0], "before": before[1]}


# Search: jobs by how their ids begin, queues and workers by how their names do. Every look is bounded.


SEARCH_LOOK = 1_000


@reading
async def search_jobs(
    tx: Transaction, ids: tuple[str, str] | None, text: str, tenant: str | None, limit: int
) -> list[tuple[str, Match]]:
    """What it found, each with its noun. `ids` are the first and the last id that begins with the text. Queues and
    workers belong to no tenant."""
    found: list[tuple[str, Match]] = []
    if ids is not None:
        given = {"low": ids[0], "high": ids[1], "tenant": tenant, "look": SEARCH_LOOK, "limit": limit}
        found += [("job", row) for row in await tx.many(ListingSql.jobs_from, **given)]
    if tenant is None:
        found += [("queue", row) for row in await tx.many(ListingSql.queues_called, text=text, limit=limit)]
        found += [
            ("worker", row)
            for row in await tx.many(ListingSql.workers_called, text=text, look=SEARCH_LOOK, limit=limit)
        ]
    return found
