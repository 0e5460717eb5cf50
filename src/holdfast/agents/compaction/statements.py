"""The SQL file of compaction as Python sees it."""

from __future__ import annotations

from holdfast.agents.compaction.compaction_rows import (
    CompactionAttempt,
    CompactionRow,
    Generation,
    HistoryBlock,
    LastRun,
    LastUsage,
    LiveMessage,
    NewMade,
    Standing,
    UnderWay,
)
from holdfast.agents.rows import NewBlock
from holdfast.kernel.sql import Exec, Many, One, Statements

_PACKAGE = "holdfast.agents.sql"


class CompactionsSql(
    Statements,
    package=_PACKAGE,
    file="compaction.sql",
    rows={"made": NewMade, "blocks": NewBlock},
    types={"config": "json", "usage": "json"},
):
    hold_generation: One[Generation]
    find_generation: One[Standing]
    history: Many[HistoryBlock]
    live_messages: Many[LiveMessage]
    last_run: One[LastRun]
    last_usage: One[LastUsage]
    recent_usage: One[LastUsage]
    under_way: One[UnderWay]
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
