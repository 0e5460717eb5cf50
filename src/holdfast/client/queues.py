"""Queues: named lines of jobs, and the policy that all jobs of one share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast import durations, validation
from holdfast.durations import Duration, rate
from holdfast.errors import BadSetting
from holdfast.kernel.retry import RetryPolicy

OnOrphan = Literal["requeue", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The policy of one queue; what a job declares itself comes first.

    `concurrency` and `rate` limit all workers together: so many of its jobs at once, so many starts ("100/min").
    `fair` gives every tenant its turn, however much another has enqueued. `on_orphan` says what becomes of a job whose
    worker died: run it again (default), or fail it as `instance_disconnected`. With `lost_counts` a lost lease is an
    attempt like any other: one limit for both, and no pause before the next. Finished jobs are kept for `keep`, and
    no more of them than `keep_jobs`.
    """

    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    concurrency: int | None = None
    rate: str | None = None
    fair: bool = False
    on_orphan: OnOrphan = "requeue"
    keep: Duration | None = None
    keep_jobs: int | None = None
    lost_counts: bool = False

    def __post_init__(self) -> None:
        for given in (self.timeout, self.keep):
            if given is not None:
                durations.microseconds(given)
        check_limits(self.concurrency, self.rate)
        if self.keep_jobs is not None and self.keep_jobs < 0:
            raise BadSetting(f"keep_jobs must be at least 0; got {self.keep_jobs}.")
        if self.on_orphan not in ("requeue", "fail"):
            raise BadSetting(f'on_orphan must be "requeue" or "fail"; got {self.on_orphan!r}.')

    @property
    def keep_us(self) -> int | None:
        return None if self.keep is None else durations.microseconds(self.keep)


def check_limits(concurrency: int | None, starts: str | None) -> None:
    if concurrency is not None:
        validation.at_least_one(concurrency, "concurrency")
    if starts is not None:
        rate(starts)
