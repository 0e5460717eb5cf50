"""Hours of the tally, counted again from the rows: something may have ended late, in a transaction that was open while
the tally passed the moment at which it ended.

A second walk follows the first one in whole hours, ten minutes behind. It counts into rows of its own; a transaction
that removes what it has not counted yet counts it there too. When an hour is complete, the tally gets what it misses,
and never less than it had. Minutes, and how long something took, stay as they were counted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.kernel.database import Transaction
from holdfast.kernel.queries import now
from holdfast.kernel.sql import Many, One
from holdfast.kernel.statements import TallySql
from holdfast.kernel.tally import AGAIN, DAY, HOUR, JOBS, KEPT, LOOK, MINUTE, hold_mark, move_mark, put
from holdfast.kernel.tally_rows import At, Tally

_LATE = 10 * MINUTE
_FIRST = DAY  # how far back the first walk of a store begins
_GRAINS = {"tenant_hour": HOUR, "hour": HOUR, "tenant_day": DAY, "day": DAY}


class SecondWalk(NamedTuple):
    """What to count again. `source` is a queue, and empty for subjects that one mark serves.

    `upto` says where a step ends, `counted` what is in it.
    """

    subject: str
    upto: One[At]
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
    await put(tx, _spread(missing, await now(tx)), [])
    await tx.run(TallySql.forget_again, **where)


def _spread(missing: Sequence[Tally], now_us: int) -> list[Tally]:
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
