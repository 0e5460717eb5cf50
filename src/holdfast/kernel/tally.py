"""The tally: what has ended, counted by minute, hour and day, so that nobody counts rows to know it.

Nothing is counted where a job is claimed or ends. A chore reads what ended since its mark, some at a time, adds it to
the counts and moves the mark, in one transaction. It leaves the last two minutes alone, because transactions may be
under way that end something at a moment that has passed; `tally_again` finds those that take longer. Retention counts
what is behind the mark before removing it. So everything is counted once, and a count never becomes lower.

Minutes are kept for two days, hours for 90, days for good. Minutes are of everybody, hours and days also of each
tenant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.kernel.database import Transaction
from holdfast.kernel.failure_groups import group_failures
from holdfast.kernel.queries import now
from holdfast.kernel.statements import TallySql
from holdfast.kernel.tally_rows import Finished, Tally, TallyTime

MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000
SIZES: Mapping[str, int] = {"minute": MINUTE, "hour": HOUR, "day": DAY, "tenant_hour": HOUR, "tenant_day": DAY}
KEPT: Mapping[str, int] = {"minute": 2 * DAY, "hour": 90 * DAY, "tenant_hour": 90 * DAY}
JOBS = "jobs"
AGAIN = "again:"  # before a subject: what `tally_again` has counted of hours that are not complete
LOOK = 5_000  # what one transaction counts
BUCKETS = 24
_LAG = 2 * MINUTE
_QUEUES = 20
_FORGET = 1_000


def settled(now_us: int) -> int:
    """Everything that ended before this moment can be counted."""
    return (now_us - _LAG) // MINUTE * MINUTE


async def tally_jobs(tx: Transaction, *, look: int = LOOK) -> bool:
    """Count some of the jobs that have ended; True when there may be more."""
    moment = await now(tx)
    before = settled(moment)
    queues = await tx.many(TallySql.untallied_queues, before=before, limit=_QUEUES)
    left = look
    for queue in queues:
        mark = await hold_mark(tx, JOBS, queue.name)
        given = {"queue": queue.name, "after": mark}
        last = await tx.one(TallySql.jobs_upto, **given, before=before, skipped=left - 1)
        upto = before - 1 if last is None else last.at
        rows = await tx.many(TallySql.ended_jobs, **given, upto=upto)
        await add(tx, JOBS, rows, moment)
        await move_mark(tx, JOBS, upto, queue.name)
        left -= len(rows)
        if left <= 0:
            break
    return bool(queues)


async def tally_removed_jobs(tx: Transaction, seqs: Sequence[int]) -> None:
    """Count those of these jobs that no chore has counted; they are about to be removed."""
    marks = {row.name: row.at for row in await tx.many(TallySql.hold_marks_of_jobs, subject=JOBS, seqs=seqs)}
    await tx.many(TallySql.hold_marks_of_jobs, subject=AGAIN + JOBS, seqs=seqs)
    rows = await tx.many(TallySql.untallied_jobs, seqs=seqs)
    await add_removed(tx, JOBS, rows, marks)


async def add_removed(tx: Transaction, subject: str, rows: Sequence[Finished], marks: Mapping[str, int]) -> None:
    """Count what is about to be removed: what is behind the mark of its source, and all of it again."""
    if rows:
        first = [row for row in rows if row.at > marks.get(row.source, marks.get("", -1))]
        await add(tx, subject, first, await now(tx))
        await put(tx, _hours(AGAIN + subject, rows), [])


def _hours(subject: str, rows: Sequence[Finished]) -> list[Tally]:
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        key = (subject, "tenant_hour", row.tenant, row.at // HOUR * HOUR, *row[1:5])
        used = (1, *row[6:11])
        sums[key] = [a + b for a, b in zip(sums.get(key, (0,) * len(used)), used, strict=True)]
    return [Tally._make((*key, *used)) for key, used in sums.items()]


async def hold_mark(tx: Transaction, subject: str, source: str = "") -> int:
    """Up to which moment everything is counted. It does not move before this transaction has ended."""
    mark = await tx.one(TallySql.hold_tally_mark, subject=subject, source=source)
    assert mark is not None
    return mark.at


async def find_mark(tx: Transaction, subject: str, source: str = "") -> int:
    """The mark as it is now."""
    mark = await tx.one(TallySql.find_tally_mark, subject=subject, source=source)
    return -1 if mark is None else mark.at


async def move_mark(tx: Transaction, subject: str, at: int, source: str = "") -> None:
    await tx.run(TallySql.move_tally_mark, subject=subject, source=source, at=at)


class _Group(NamedTuple):
    minute: int
    source: str
    kind: str
    mode: str
    state: str
    tenant: str


async def add(tx: Transaction, subject: str, rows: Sequence[Finished], now_us: int) -> None:
    """Add what ended to the counts of its minute, hour and day, and failures to those of their kind."""
    if not rows:
        return
    numbers: dict[_Group, list[int]] = {}
    times: dict[_Group, Counter[tuple[str, int]]] = {}
    for row in rows:
        group = _Group(row.at // MINUTE * MINUTE, row.source, row.kind, row.mode, row.state, row.tenant)
        used = (1, *row[6:11])
        numbers[group] = [a + b for a, b in zip(numbers.get(group, (0,) * len(used)), used, strict=True)]
        found = times.setdefault(group, Counter())
        for measure, us in (("wait", row.wait_us), ("duration", row.duration_us)):
            if us is not None:
                found[measure, bucket_of(us)] += 1
    await put(tx, *_spread(subject, numbers, times, now_us))
    apart = {layer.name for layer in tx.layers if layer.own_failures}
    await group_failures(tx, subject, [row for row in rows if row.error is not None and row.layer not in apart])


def _spread(
    subject: str,
    numbers: Mapping[_Group, Sequence[int]],
    times: Mapping[_Group, Mapping[tuple[str, int], int]],
    now_us: int,
) -> tuple[list[Tally], list[TallyTime]]:
    """The counts of each minute, in every row in which they are kept."""
    tallies: dict[tuple[Any, ...], list[int]] = {}
    buckets: Counter[tuple[Any, ...]] = Counter()
    for group, used in numbers.items():
        for grain, size in SIZES.items():
            if group.minute < now_us - KEPT.get(grain, now_us):
                continue
            tenant = group.tenant if grain.startswith("tenant_") else ""
            key = (subject, grain, tenant, group.minute // size * size, *group[1:5])
            before = tallies.get(key, (0,) * len(used))
            tallies[key] = [a + b for a, b in zip(before, used, strict=True)]
            for place, number in times[group].items():
                buckets[*key, *place] += number
    return (
        [Tally._make((*key, *used)) for key, used in tallies.items()],
        [TallyTime._make((*key, number)) for key, number in buckets.items()],
    )


async def put(tx: Transaction, tallies: Sequence[Tally], times: Sequence[TallyTime]) -> None:
    """Add counts to those that are there."""
    if tallies:
        await tx.run(TallySql.add_tallies, tallies=tallies)
    if times:
        await tx.run(TallySql.add_times, times=times)


def bucket_of(us: int) -> int:
    """Bucket n is less than 2 to the power of n milliseconds; the last one has all that is longer."""
    return min((max(us, 0) // 1_000).bit_length(), BUCKETS - 1)


async def forget_old(tx: Transaction) -> bool:
    """Remove some of what is older than it is kept; True when there may be more."""
    moment = await now(tx)
    more = False
    for grain, age in KEPT.items():
        given = {"grain": grain, "before": moment - age, "limit": _FORGET}
        for statement in (TallySql.forget_tallies, TallySql.forget_times):
            more = len(await tx.many(statement, **given)) == _FORGET or more
    gone = await tx.many(TallySql.forget_failures, before=moment - 90 * DAY, limit=_FORGET)
    return len(gone) == _FORGET or more
