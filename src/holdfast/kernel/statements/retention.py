"""The statements of `retention.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.flow_rows import CountedBack, FinishedJob, FinishedQueue, OldKey, PrunedJob
from holdfast.kernel.sql import Exec, Many, One, Statements


class RetentionSql(Statements, file="retention.sql"):
    finished_queues: Many[FinishedQueue]
    count_back: One[CountedBack]
    find_prunable: Many[FinishedJob]
    prune: Many[PrunedJob]
    prune_endings: Exec
    prune_attempts: Exec
    prune_steps: Exec
    prune_families: Exec
    prune_progress: Exec
    prune_unique_keys: Exec
    release_keys: Exec
    freed_keys: Many[OldKey]
    old_keys: Many[OldKey]
    prune_keys: Exec
