"""Rows of compaction. Each record's fields stand in the order of its statement's columns."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.rows import NewBlock
from holdfast.kernel.sql import Exec, Many, One, Statements


class Generation(NamedTuple):
    """Which compaction a session's history is of; "" is the history as it was said."""

    generation: str


class SessionSnapshot(NamedTuple):
    """A session as a compaction finds it."""

    generation: str
    tenant: str
    budgets: int  # whether there is any budget
    now: int


class CompactionAttempt(NamedTuple):
    id: str
    attempts: int


class HistoryBlock(NamedTuple):
    """One block of a live message, with what decides whether it may be taken out."""

    message: str
    ordinal: int
    role: str
    kind: str
    fingerprint: str
    type: str
    body: str
    run: str
    turn: int
    preserved: int


class LiveMessage(NamedTuple):
    id: str
    preserved: int


class LastRun(NamedTuple):
    """The run that was accepted last among those that have said something, with what it was made of."""

    id: str
    options: str
    definition: str


class LastUsage(NamedTuple):
    """What the provider last said of the size of this very history; `ordinal` is where its answer stands."""

    ordinal: int
    sent: int
    said: int


class OpenCompaction(NamedTuple):
    id: str


class CompactionRow(NamedTuple):
    """One compaction: what it did, what it cost, and whether it still stands ("done").

    `run` is the run that did it before a call of its own, if one did: then it is part of what that run used. `unknown`
    counts calls of the summariser whose answer was lost, so that it is unknown whether they were paid for.
    """

    id: str
    session: str
    run: str | None
    state: str
    strategy: str
    trigger: str
    model: str
    config: str
    before_generation: str
    tokens_before: int
    tokens_after: int | None
    removed: int
    pruned: int
    summary: str | None
    attempts: int
    unknown: int
    usage: str | None
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int
    error: str | None
    started_at: int
    ended_at: int | None
    restored_at: int | None

    @property
    def duration_us(self) -> int | None:
        """From its beginning to its end; if it began again, from the first time."""
        return None if self.ended_at is None else self.ended_at - self.started_at


class SummaryMessage(NamedTuple):
    """A message that a compaction writes, in the place of what it replaces."""

    id: str
    ordinal: int
    role: str
    run: str
    turn: int
    kind: str


# The SQL file of compaction as Python sees it.


_PACKAGE = "holdfast.agents.sql"


class CompactionsSql(
    Statements,
    package=_PACKAGE,
    file="compaction.sql",
    rows={"made": SummaryMessage, "blocks": NewBlock},
    types={"config": "json", "usage": "json"},
):
    hold_generation: One[Generation]
    find_generation: One[SessionSnapshot]
    history: Many[HistoryBlock]
    live_messages: Many[LiveMessage]
    last_run: One[LastRun]
    last_usage: One[LastUsage]
    recent_usage: One[LastUsage]
    under_way: One[OpenCompaction]
    open_compaction: One[CompactionRow]
    begin_compaction: One[CompactionRow]
    find_compaction: One[CompactionRow]
    list_compactions: Many[CompactionRow]
    charge_compaction: One[CompactionAttempt]
    overtaken: Exec
    fail_compaction: One[CompactionAttempt]
    end_compaction: One[CompactionRow]
    archive: Exec
    add_made: Exec
    set_generation: Exec
    withdraw_made: Exec
    bring_back: Exec
    restore_compaction: One[CompactionRow]
    preserve: One[LiveMessage]
    delete_compactions: Exec
