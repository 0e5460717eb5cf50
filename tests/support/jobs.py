"""A job as the kernel takes it, with ordinary values where nobody names others."""

from __future__ import annotations

from typing import Any

from holdfast.kernel.ids import JobId
from holdfast.kernel.rows import NewJob, Route


def plain_job(id: JobId, kind: str, route: Route, /, **changes: Any) -> NewJob:
    job = NewJob(
        id=id,
        kind=kind,
        queue=route.queue,
        route=route.id,
        tenant="",
        priority=100,
        delay_us=None,
        due_at=None,
        timeout_us=None,
        deadline_us=None,
        deadline_at=None,
        max_attempts=3,
        max_rescues=5,
        parent=None,
        retry_of=None,
        payload="{}",
        metadata="{}",
    )
    return job._replace(**changes)
