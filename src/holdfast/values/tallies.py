"""What has ended, counted, and failures of one kind, as programs see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

from holdfast.kernel.tally_rows import CountedTime, FailureGroup, SeriesPoint
from holdfast.kernel.tally_series import percentile
from holdfast.values.rows import value_of
from holdfast.values.times import moment


@dataclass(frozen=True, slots=True, kw_only=True)
class StatRecord:
    """What ended in one step of time, which begins `at`; the parts that were not asked for are empty.

    `source` is a queue or an agent; `kind` is a job's kind, a model or a tool. Half of them waited and took `…_p50` or
    less, 95 of 100 `…_p95`; None where that is not known. These are read from powers of two, so they are about right.
    """

    SHOWN: ClassVar = ("cost",)

    at: datetime
    source: str
    kind: str
    mode: str
    state: str
    tenant: str
    count: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int
    wait_p50: timedelta | None
    wait_p95: timedelta | None
    duration_p50: timedelta | None
    duration_p95: timedelta | None

    @property
    def cost(self) -> Decimal:
        return Decimal(self.cost_nano) / 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Failures that differ only in numbers and ids.

    `subject` is "jobs", "runs" or "calls", and `kind` a job's kind, an agent or a tool. `last_id` is the last of them.
    """

    subject: str
    kind: str
    error: str
    message: str
    count: int
    first_at: datetime
    last_at: datetime
    last_id: str


def stats_of(rows: Sequence[SeriesPoint], times: Sequence[CountedTime]) -> list[StatRecord]:
    buckets: dict[tuple[Any, ...], dict[int, int]] = {}
    for each in times:
        buckets.setdefault((*each[:6], each.measure), {})[each.bucket] = each.number
    return [_stat(row, buckets) for row in rows]


def _stat(row: SeriesPoint, buckets: Mapping[tuple[Any, ...], Mapping[int, int]]) -> StatRecord:
    taken: dict[str, Any] = {
        f"{measure}_{name}": _about(percentile(buckets.get((*row[:6], measure), {}), share))
        for measure in ("wait", "duration")
        for name, share in (("p50", 0.5), ("p95", 0.95))
    }
    return StatRecord(at=moment(row.at), **_but(row, "at", "number"), count=row.number, **taken)


def _but(row: SeriesPoint, *names: str) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name not in names}


def _about(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(milliseconds=-(-us // 1_000))


def failure_of(row: FailureGroup) -> FailureRecord:
    return value_of(FailureRecord, row, count=row.number)
