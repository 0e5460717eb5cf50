"""Rows about retention."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.rows import BlobHash
from holdfast.kernel.rows import Seq
from holdfast.kernel.sql import Exec, Many, One, Statements


class AgesRow(NamedTuple):
    """For how long a tenant's things are kept, in microseconds; None: as everybody's."""

    tenant: str
    deltas_us: int | None
    events_us: int | None
    inquiries_us: int | None
    turns_us: int | None
    sessions_us: int | None


class Mark(NamedTuple):
    """How far pruning came."""

    at: int
    id: str


class EndedRoot(NamedTuple):
    id: str
    at: int
    tenant: str
    root: int  # whether it is at the top of its tree
    kept: int  # whether a fork was made from its tree


class OldSession(NamedTuple):
    id: str
    at: int
    tenant: str
    prunable: int


class SessionRoot(NamedTuple):
    id: str
    busy: int  # whether a run of the session is open


class PrunedSeq(NamedTuple):
    seq: int


class PrunedEvent(NamedTuple):
    epoch: int
    tx: int
    pos: int
    announced: int  # whether it was one of a public topic


class PrunedId(NamedTuple):
    id: str


class PrunedTurn(NamedTuple):
    number: int


class BlobRow(NamedTuple):
    hash: str
    stray: int  # whether no block names it


class DayTotal(NamedTuple):
    """What was used on one day."""

    day: int
    tenant: str
    agent: str
    model: str
    mode: str
    turns: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int


class TenantJob(NamedTuple):
    seq: int
    id: str
    lane: str | None
    mine: int  # whether it is the tenant's
    ended: int


class KeyRow(NamedTuple):
    key: str


class ScheduleJob(NamedTuple):
    name: str
    job: str


class AgentId(NamedTuple):
    id: str


# The SQL files of retention as Python sees them.


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
    totals_of: Many[DayTotal]
    add_total: Exec
    delete_total: Exec


class ErasingSql(Statements, package=_PACKAGE, file="erasing.sql"):
    jobs_after: Many[TenantJob]
    still_open: Many[Seq]
    delete_keys: Many[KeyRow]
    stored_schedules: Many[ScheduleJob]
    agents_of: Many[AgentId]
