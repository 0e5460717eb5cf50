"""The statements of `jobs.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.flow_rows import Moment
from holdfast.kernel.hints import Announcement
from holdfast.kernel.rows import (
    AttemptRow,
    Ended,
    EndedAttempt,
    EndedJob,
    Ending,
    JobRow,
    Kin,
    Lease,
    LockedJob,
    Number,
    OpenChildren,
    RouteId,
    Seq,
    Woken,
)
from holdfast.kernel.sql import Exec, Many, One, Statements


class JobsSql(
    Statements,
    file="jobs.sql",
    rows={"endings": Ending, "notes": Announcement},
    types={"id": "uuid", "progress": "json"},
):
    now: One[Moment]
    claim: Many[Lease]
    claim_one: Many[Lease]
    heads: Many[RouteId]
    finish: Many[Ended]
    complete: Many[Ended]
    ended_attempts: Many[EndedAttempt]
    parents_of: Many[Kin]
    lock_anchors: Many[Seq]
    try_lock_anchors: Many[Seq]
    lock_leases: Many[Seq]
    lock_places: Many[LockedJob]
    try_lock_places: Many[LockedJob]
    settle_parent: One[OpenChildren]
    wake_parent: One[Woken]
    hint: Exec
    announce: Exec
    report_progress: One[Seq]
    find_job: One[JobRow]
    list_attempts: Many[AttemptRow]
    count_attempts: One[Number]
    find_ended: Many[EndedJob]
