"""Series: what the tally says of a time, in steps, kept apart by what was asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.statements import TallySql
from holdfast.kernel.tally_rows import CountedTime, SeriesPoint

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
