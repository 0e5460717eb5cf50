"""The statements of `tally.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.sql import Exec, Many, One, Statements
from holdfast.kernel.tally_rows import (
    At,
    CountedTime,
    FailureGroup,
    Failures,
    Finished,
    SeriesPoint,
    SourceMark,
    TalliedName,
    Tally,
    TallyTime,
)


class TallySql(Statements, file="tally.sql", rows={"tallies": Tally, "times": TallyTime, "failures": Failures}):
    add_tallies: Exec
    add_times: Exec
    hold_tally_mark: One[At]
    find_tally_mark: One[At]
    move_tally_mark: Exec
    untallied_queues: Many[TalliedName]
    jobs_upto: One[At]
    ended_jobs: Many[Finished]
    hold_marks_of_jobs: Many[SourceMark]
    untallied_jobs: Many[Finished]
    queue_to_count_again: One[TalliedName]
    jobs_again: Many[Tally]
    hour_to_complete: One[At]
    missing_in_tally: Many[Tally]
    forget_again: Exec
    forget_again_of: Exec
    known_failures: Many[TalliedName]
    last_failure_group: One[TalliedName]
    add_failures: Exec
    forget_tallies: Many[At]
    forget_times: Many[At]
    forget_failures: Many[At]
    series: Many[SeriesPoint]
    series_of_times: Many[CountedTime]
    series_by_tenant: Many[SeriesPoint]
    times_by_tenant: Many[CountedTime]
    failures: Many[FailureGroup]
    failures_of: Many[FailureGroup]
    tenants_tallies: Many[Tally]
    tenants_times: Many[TallyTime]
    forget_empty_tallies: Exec
    forget_empty_times: Exec
    delete_failures_of: Exec
    forget_minutes: Exec
