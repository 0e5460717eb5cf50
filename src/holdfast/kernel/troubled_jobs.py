"""Jobs that failed or were cancelled, the last first: few among many that succeeded, so they have an index."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.listing_rows import FailedJob
from holdfast.kernel.queries import NEWEST, JobFilters
from holdfast.kernel.rows import JobRow
from holdfast.kernel.statements import ListingSql
from holdfast.kernel.states import State

LOOK = 10_000
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
    look: int = LOOK,
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
async def count_troubled(tx: Transaction, filters: JobFilters, *, look: int = LOOK) -> int:
    """How many there are, among the last that one look sees."""
    counted = await tx.one(ListingSql.count_jobs_troubled, **_given(filters, (NEWEST, NEWEST)), look=look)
    return 0 if counted is None else counted.number


class FailedJobs(NamedTuple):
    """Failed jobs of a kind, the last first. `reach` is how far the look went back, None when it saw all."""

    rows: list[FailedJob]
    reach: int | None


@reading
async def list_failed(tx: Transaction, kind: str, tenant: str | None, *, limit: int, look: int = LOOK) -> FailedJobs:
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
