"""Queues: named lines of jobs, and the policy that all jobs of one share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast import durations
from holdfast.durations import Duration
from holdfast.errors import BadSetting
from holdfast.kernel.retry import RetryPolicy

OnOrphan = Literal["requeue", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The policy of one queue; what a job declares itself comes first.

    `on_orphan` says what becomes of a job whose worker died: run it again (default), or fail it as
    `instance_disconnected`.
    """

    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    on_orphan: OnOrphan = "requeue"

    def __post_init__(self) -> None:
        if self.timeout is not None:
            durations.microseconds(self.timeout)
        if self.on_orphan not in ("requeue", "fail"):
            raise BadSetting(f'on_orphan is "requeue" or "fail", not {self.on_orphan!r}.')
