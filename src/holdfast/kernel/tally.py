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
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.failure_groups import group_failures
from holdfast.kernel.queries import now
from holdfast.kernel.sql import Many, One
from holdfast.kernel.statements import TallySql
from holdfast.kernel.tally_rows import CountedTime, Finished, SeriesPoint, Tally, TallyTime, TimeRow

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


# Hours of the tally, counted again from the rows: something may have ended late, in a transaction that was open while
# the tally passed the moment at which it ended.
#
# A second walk follows the first one in whole hours, ten minutes behind. It counts into rows of its own; a
# transaction
# that removes what it has not counted yet counts it there too. When an hour is complete, the tally gets what it
# misses,
# and never less than it had. Minutes, and how long something took, stay as they were counted first.


_LATE = 10 * MINUTE
_FIRST = DAY  # how far back the first walk of a store begins
_GRAINS = {"tenant_hour": HOUR, "hour": HOUR, "tenant_day": DAY, "day": DAY}


class SecondWalk(NamedTuple):
    """What to count again. `source` is a queue, and empty for subjects that one mark serves.

    `upto` says where a step ends, `counted` what is in it.
    """

    subject: str
    upto: One[TimeRow]
    counted: Many[Tally]
    source: str = ""

    @property
    def where(self) -> dict[str, str]:
        return {"queue": self.source} if self.subject == JOBS else {}


def over(now_us: int) -> int:
    """Every hour that ended before this moment can be counted again."""
    return (now_us - _LATE) // HOUR * HOUR


async def count_jobs_again(tx: Transaction, *, look: int = LOOK) -> bool:
    """Count some jobs of one queue again; True when there may be more."""
    before = over(await now(tx))
    found = await tx.one(TallySql.queue_to_count_again, before=before, first=before - _FIRST)
    if found is None:
        return False
    walk = SecondWalk(JOBS, TallySql.jobs_upto, TallySql.jobs_again, found.name)
    return await count_again(tx, walk, look=look) is not None


async def count_again(tx: Transaction, walk: SecondWalk, *, look: int = LOOK) -> bool | None:
    """Count some of a subject again; True when there may be more, None when the first walk has to come first."""
    before = over(await now(tx))
    first = await hold_mark(tx, walk.subject, walk.source)
    mark = max(await hold_mark(tx, AGAIN + walk.subject, walk.source), before - _FIRST - 1)
    if await tx.one(walk.upto, **walk.where, after=first, before=before, skipped=0) is not None:
        return None
    last = await tx.one(walk.upto, **walk.where, after=mark, before=before, skipped=look - 1)
    upto = before - 1 if last is None else last.at
    await put(tx, await tx.many(walk.counted, **walk.where, again=AGAIN + walk.subject, after=mark, upto=upto), [])
    await move_mark(tx, AGAIN + walk.subject, upto, walk.source)
    if last is None:
        await move_mark(tx, walk.subject, max(first, upto), walk.source)
        await _complete(tx, walk, before)
    return last is not None


async def is_left(tx: Transaction, walk: SecondWalk) -> bool:
    """Whether there is anything to count again, or an hour to complete."""
    before = over(await now(tx))
    mark = await tx.one(TallySql.find_tally_mark, subject=AGAIN + walk.subject, source=walk.source)
    after = max(-1 if mark is None else mark.at, before - _FIRST - 1)
    if await tx.one(walk.upto, **walk.where, after=after, before=before, skipped=0) is not None:
        return True
    return await tx.one(TallySql.hour_to_complete, again=AGAIN + walk.subject, before=before) is not None


async def _complete(tx: Transaction, walk: SecondWalk, before: int) -> None:
    """Give the tally what it misses of the hours before this moment."""
    where = {"again": AGAIN + walk.subject, "before": before, "source": walk.source or None}
    missing = await tx.many(TallySql.missing_in_tally, **where, subject=walk.subject)
    await put(tx, _spread_missing(missing, await now(tx)), [])
    await tx.run(TallySql.forget_again, **where)


def _spread_missing(missing: Sequence[Tally], now_us: int) -> list[Tally]:
    """What an hour misses, in every row in which it is kept."""
    sums: dict[tuple[str | int, ...], list[int]] = {}
    for row in missing:
        for grain, size in _GRAINS.items():
            if row.at < now_us - KEPT.get(grain, now_us):
                continue
            tenant = row.tenant if grain.startswith("tenant_") else ""
            key = (row.subject, grain, tenant, row.at // size * size, *row[4:8])
            sums[key] = [a + b for a, b in zip(sums.get(key, [0] * len(row[8:])), row[8:], strict=True)]
    return [Tally._make((*key, *numbers)) for key, numbers in sums.items()]


# What the tally says of an erased tenant: the counts stay, the names go.


ERASED = "(erased)"
_PAGE = 200


async def make_nameless(tx: Transaction, subject: str, tenant: str, *, page: int = _PAGE) -> bool:
    """Leave no source in the counts of one tenant, and none that is there for it alone; True when there are more."""
    more = False
    for grain in ("tenant_hour", "tenant_day"):
        given = {"subject": subject, "grain": grain, "tenant": tenant, "erased": ERASED, "limit": page}
        tallies = await tx.many(TallySql.tenants_tallies, **given)
        times = await tx.many(TallySql.tenants_times, **given)
        await _move(tx, tallies, times)
        await _move(
            tx,
            [row._replace(grain=grain.removeprefix("tenant_"), tenant="") for row in tallies],
            [row._replace(grain=grain.removeprefix("tenant_"), tenant="") for row in times],
        )
        more = more or max(len(tallies), len(times)) == page
        if tallies:
            sources = sorted({row.source for row in tallies})
            await tx.run(
                TallySql.forget_minutes, subject=subject, sources=sources, since=await now(tx) - KEPT["minute"]
            )
    return more


async def forget_again(tx: Transaction, subject: str, tenant: str) -> None:
    """Forget what was counted again of hours that are not complete: it has names, and the rows are gone."""
    await tx.run(TallySql.forget_again_of, again=AGAIN + subject, tenant=tenant)


async def _move(tx: Transaction, tallies: Sequence[Tally], times: Sequence[TallyTime]) -> None:
    """Count this under no name, and no more under its own."""
    await put(tx, [_less(row) for row in tallies], [row._replace(number=-row.number) for row in times])
    await put(tx, _joined(tallies), _joined_times(times))
    for statement, rows in ((TallySql.forget_empty_tallies, tallies), (TallySql.forget_empty_times, times)):
        if rows:
            first, last = rows[0], rows[-1]
            where = {"subject": first.subject, "grain": first.grain, "tenant": first.tenant}
            await tx.run(statement, **where, since=first.at, until=last.at)


def _less(row: Tally) -> Tally:
    return Tally._make((*row[:8], *(-value for value in _numbers(row))))


def _joined(rows: Sequence[Tally]) -> list[Tally]:
    """Without their sources, each key once."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        key, numbers = row._replace(source=ERASED)[:8], _numbers(row)
        sums[key] = [a + b for a, b in zip(sums.get(key, [0] * len(numbers)), numbers, strict=True)]
    return [Tally._make((*key, *numbers)) for key, numbers in sums.items()]


def _numbers(row: Tally) -> Sequence[int]:
    return row[8:]


def _joined_times(rows: Sequence[TallyTime]) -> list[TallyTime]:
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        sums[row._replace(source=ERASED)[:10]] += row.number
    return [TallyTime._make((*key, number)) for key, number in sums.items()]


# Series: what the tally says of a time, in steps, kept apart by what was asked for.


CAP = 100_000  # rows of the tally that one question reads


class SeriesQuery(NamedTuple):
    """Which part of the tally. `by` are the columns that are kept apart; `tenant`: of one, None of everybody."""

    subject: str
    grain: str
    since: int
    until: int
    step: int
    by: Collection[str] = ()
    tenant: str | None = None
    source: str | None = None
    kind: str | None = None
    state: str | None = None


@reading
async def read_series(tx: Transaction, asked: SeriesQuery, *, limit: int, cap: int = CAP) -> list[SeriesPoint]:
    """The newest first; of one time, what there is most of."""
    if "tenant" in asked.by and asked.tenant is None:
        return await tx.many(TallySql.series_by_tenant, **_given(asked), cap=cap, limit=limit)
    return await tx.many(TallySql.series, **_given(asked), tenant=asked.tenant or "", cap=cap, limit=limit)


@reading
async def read_times(tx: Transaction, asked: SeriesQuery, *, cap: int = CAP) -> list[CountedTime]:
    if "tenant" in asked.by and asked.tenant is None:
        return await tx.many(TallySql.times_by_tenant, **_given(asked), cap=cap)
    return await tx.many(TallySql.series_of_times, **_given(asked), tenant=asked.tenant or "", cap=cap)


def _given(asked: SeriesQuery) -> dict[str, object]:
    flags = {f"by_{part}": int(part in asked.by) for part in ("source", "kind", "mode", "state")}
    own = of_tenants(asked)
    grain = f"tenant_{asked.grain}" if own else asked.grain
    named = ("subject", "since", "until", "step", "source", "kind", "state")
    return {**flags, "grain": grain, **{name: getattr(asked, name) for name in named}}


def of_tenants(asked: SeriesQuery) -> bool:
    """Whether this reads the rows of tenants: only they say whose something was."""
    return asked.tenant is not None or "tenant" in asked.by


def percentile(buckets: Mapping[int, int], share: float) -> int | None:
    """How many microseconds this share took at most, about; None when there are none."""
    wanted = sum(buckets.values()) * share
    passed = 0
    for bucket, number in sorted(buckets.items()):
        if number and passed + number >= wanted:
            high = 1_000 << bucket
            low = high // 2 if bucket else 0
            return low + round((high - low) * (wanted - passed) / number)
        passed += number
    return None
