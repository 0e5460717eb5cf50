"""The statements of `listing.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.listing_rows import CreatedJob, EndedAtSeq, FailedJob, Match
from holdfast.kernel.rows import Beside, JobRow, Number, Seq
from holdfast.kernel.sql import Many, One, Statements


class ListingSql(Statements, file="listing.sql"):
    seq_before: One[Seq]
    job_at: One[CreatedJob]
    list_jobs: Many[JobRow]
    ended_in_state: Many[Seq]
    jobs_troubled: Many[EndedAtSeq]
    end_of_jobs_troubled: One[EndedAtSeq]
    count_jobs_troubled: One[Number]
    count_failed: One[Number]
    failed_jobs: Many[FailedJob]
    count_jobs: One[Number]
    later_in_state: Many[Seq]
    pending_in_order: Many[Seq]
    find_running: Many[Seq]
    jobs_by_seq: Many[JobRow]
    jobs_beside: Many[Beside]
    jobs_from: Many[Match]
    queues_called: Many[Match]
    workers_called: Many[Match]
