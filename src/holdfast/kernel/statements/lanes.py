"""The statements of `lanes.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.flow_rows import (
    Candidate,
    Charge,
    DeclaredLane,
    FirstBlocked,
    LaneName,
    LaneNote,
    LaneState,
    OldLane,
)
from holdfast.kernel.rows import Lease, Woken
from holdfast.kernel.sql import Exec, Many, Statements


class LanesSql(Statements, file="lanes.sql", rows={"charges": Charge, "limits": DeclaredLane}):
    candidates: Many[Candidate]
    lock_lanes: Many[LaneName]
    known_lanes: Many[LaneName]
    breathe: Exec
    note_lanes: Exec
    due_notes: Many[LaneName]
    take_notes: Many[LaneNote]
    put_notes_off: Exec
    follow_notes: Exec
    declare_lanes: Exec
    restore_lanes: Exec
    due_lanes: Many[LaneName]
    lane_states: Many[LaneState]
    lock_blocked: Many[FirstBlocked]
    still_blocked: Many[LaneName]
    take: Many[Lease]
    block: Exec
    unblock: Many[Woken]
    charge: Exec
    mend_lanes: Many[LaneName]
    open_stranded: Exec
    old_lanes: Many[OldLane]
    keep_lanes: Exec
    wait_for_lanes: Many[LaneName]
    forget_empty: Exec
    prune_lanes: Exec
