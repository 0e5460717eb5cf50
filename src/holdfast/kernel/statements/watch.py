"""The statements of `watch.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.flow_rows import LaneName, QueueCount
from holdfast.kernel.sql import Many, One, Statements
from holdfast.kernel.watch_rows import Backlog, Change, Latencies, Misplaced, RetriedKind, Symptoms


class WatchSql(Statements, file="watch.sql"):
    created_since: Many[Change]
    claimed_since: Many[Change]
    ended_since: Many[Change]
    states_of: Many[Change]
    held_by: Many[Change]
    count_ended: Many[QueueCount]
    backlogs: Many[Backlog]
    symptoms: One[Symptoms]
    stranded_lanes: Many[LaneName]
    missing_lanes: Many[LaneName]
    misplaced: Many[Misplaced]
    latencies: One[Latencies]
    retried_most: Many[RetriedKind]
