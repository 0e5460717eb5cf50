"""The SQL files of retention as Python sees them."""

from __future__ import annotations

from holdfast.agents.retention.retention_rows import (
    AgentId,
    AgesRow,
    BlobRow,
    EndedRoot,
    KeyRow,
    Mark,
    OldSession,
    PrunedEvent,
    PrunedId,
    PrunedSeq,
    PrunedTurn,
    ScheduleJob,
    SessionRoot,
    TenantJob,
    Total,
)
from holdfast.agents.rows import BlobHash
from holdfast.kernel.rows import Seq
from holdfast.kernel.sql import Exec, Many, One, Statements

_PACKAGE = "holdfast.agents.sql"


class PruningSql(Statements, package=_PACKAGE, file="pruning.sql"):
    own_ages: Many[AgesRow]
    find_ages: One[AgesRow]
    set_ages: Exec
    delete_ages: Exec
    find_mark: One[Mark]
    set_mark: Exec
    move_mark: Exec
    begin_anew: Exec
    delete_marks: Exec
    ended_roots: Many[EndedRoot]
    ended_roots_of: Many[EndedRoot]
    prune_deltas: Many[PrunedSeq]
    prune_events: Many[PrunedEvent]
    prune_inquiries: Many[PrunedId]
    prune_turns: Many[PrunedTurn]
    forget_trees: Exec
    blobs_after: Many[BlobRow]
    hold_blobs: Many[BlobHash]
    old_sessions: Many[OldSession]
    old_sessions_of: Many[OldSession]
    roots_in: Many[SessionRoot]


class TotalsSql(Statements, package=_PACKAGE, file="totals.sql"):
    keep_turns: Exec
    keep_compactions: Exec
    forget_trees_in: Exec
    totals_of: Many[Total]
    add_total: Exec
    delete_total: Exec


class ErasingSql(Statements, package=_PACKAGE, file="erasing.sql"):
    jobs_after: Many[TenantJob]
    still_open: Many[Seq]
    delete_keys: Many[KeyRow]
    stored_schedules: Many[ScheduleJob]
    agents_of: Many[AgentId]
