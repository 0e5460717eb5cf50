"""Jobs and their attempts as programs see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import AttemptRow, Change, JobRow, RetriedKind, Token
from holdfast.kernel.states import StateName
from holdfast.kernel.tally import percentile
from holdfast.kernel.tally_rows import CountedTime, FailureGroup, SeriesPoint
from holdfast.reasons import Gate, Reason
from holdfast.values import Stored, moment, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as it stands in the store.

    `seq` is its number, by which `worker` and `parent` name theirs. `token` is that of its last lease. `layer` is the
    part of the runtime that it belongs to, None for a program's own job.
    """

    id: JobId
    seq: int
    kind: str
    queue: str
    tenant: str
    state: StateName
    priority: int
    gate: str | None
    token: str
    worker: int | None
    lease_until: datetime | None
    claimed_at: datetime | None
    attempts: int
    max_attempts: int
    rescues: int
    max_rescues: int
    timeout: timedelta | None
    due_at: datetime | None
    deadline_at: datetime | None
    created_at: datetime
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    parent: int | None
    open_children: int
    channel: str | None
    retry_of: JobId | None
    payload: Stored
    metadata: Stored
    progress: Stored
    result: Stored
    error: Stored
    layer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt of a job that has ended, with the lease and the worker that it ran under.

    The web tells who sees one tenant only, or a part of it, no worker.
    """

    job: int
    token: str
    worker: int | None
    outcome: str
    started_at: datetime
    ended_at: datetime
    error: Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """A job in a state, and since when."""

    seq: int
    id: JobId
    kind: str
    queue: str
    state: StateName
    at: datetime
    error: Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriedRecord:
    """How often jobs of one kind were tried again, how many jobs these are, and the newest of them with its error."""

    kind: str
    retries: int
    jobs: int
    last_at: datetime
    last_id: JobId
    error: Stored


@dataclass(frozen=True, slots=True)
class ReasonRecord:
    """One thing that keeps a job or a run: its gate, the sentence for people, and when it ends if that is known."""

    gate: Gate
    sentence: str
    until: datetime | None = None


class Why(tuple[ReasonRecord, ...]):
    """All that keeps a job or a run; empty when nothing does. As text, `str(why)`, it is its sentences."""

    __slots__ = ()

    def __str__(self) -> str:
        return "; ".join(reason.sentence for reason in self)


def job_of(row: JobRow) -> JobRecord:
    timeout = None if row.timeout_us is None else timedelta(microseconds=row.timeout_us)
    return value_of(JobRecord, row, token=str(Token(row.epoch, row.token)), timeout=timeout)


def attempt_of(row: AttemptRow) -> AttemptRecord:
    return value_of(AttemptRecord, row, token=str(Token(row.epoch, row.token)))


def change_of(row: Change) -> JobChange:
    return value_of(JobChange, row)


def retried_of(row: RetriedKind) -> RetriedRecord:
    return value_of(RetriedRecord, row)


def why_of(reasons: Iterable[Reason], *, for_tenant: bool = False) -> Why:
    """These reasons in words: those of operators, or those for who sees one tenant."""
    return Why(
        ReasonRecord(each.gate, each.sentence_for_tenant if for_tenant else each.sentence, moment(each.until))
        for each in reasons
    )


# What has ended, counted, and failures of one kind, as programs see them.


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
