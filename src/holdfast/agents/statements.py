"""The SQL files of agents as Python sees them."""

from __future__ import annotations

from holdfast.agents.records import (
    AgentRow,
    AheadRun,
    BlobHash,
    BlockRow,
    CallRow,
    ClosedCall,
    Counted,
    CurrentAgent,
    Cursor,
    EventRow,
    FailedTurn,
    FinishedRun,
    LaneRow,
    LoadedRun,
    MessageRow,
    NewBlock,
    NewCall,
    NewDelta,
    NewEvent,
    NewRun,
    Note,
    OpenRun,
    ReadyRun,
    RunRow,
    RunState,
    SessionRow,
    TopicRow,
    TurnRow,
    TurnState,
    UsageBelow,
    UsageRow,
    ValueCount,
    VersionRow,
    WindowBlock,
)
from holdfast.kernel.records import Seq, Woken
from holdfast.kernel.sql import Exec, Many, One, Statements

_PACKAGE = "holdfast.agents.sql"


class Agents(Statements, package=_PACKAGE, file="agents.sql", types={"metadata": "jsonb", "definition": "json"}):
    add_agent: Exec
    current_agent: One[CurrentAgent]
    lock_agent: One[AgentRow]
    add_version: Exec
    set_version: One[AgentRow]
    find_agent: One[AgentRow]
    agents_named: Many[AgentRow]
    list_agents: Many[AgentRow]
    find_version: One[VersionRow]
    list_versions: Many[VersionRow]
    current_definitions: Many[VersionRow]
    callers_of: Many[AgentRow]
    delete_versions: Exec
    delete_agent: One[AgentRow]


class Sessions(Statements, package=_PACKAGE, file="sessions.sql", types={"metadata": "jsonb"}):
    add_session: Exec
    find_session: One[SessionRow]
    take_place: One[SessionRow]
    lock_session: One[SessionRow]
    lock_line: Exec
    list_sessions: Many[SessionRow]
    count_sessions: One[Counted]
    metadata_values: Many[ValueCount]
    update_session: One[SessionRow]
    delete_session: One[SessionRow]
    lock_blobs: Many[BlobHash]
    delete_blobs: Exec
    jobs_of: Many[Seq]
    free_keys: Exec
    delete_blocks: Exec
    delete_messages: Exec
    delete_events: Exec
    delete_calls: Exec
    delete_turns: Exec
    delete_runs: Exec


class Runs(Statements, package=_PACKAGE, file="runs.sql", rows={"runs": NewRun}):
    add_runs: Exec
    load_run: One[LoadedRun]
    find_run: One[RunRow]
    find_runs: Many[RunRow]
    list_runs: Many[RunRow]
    tree_usage: One[UsageRow]
    session_usage: One[UsageRow]
    run_ahead: One[AheadRun]
    wake_next: Many[Woken]
    move_run: Exec
    finish_run: One[FinishedRun]
    open_runs: Many[OpenRun]
    find_stuck: Many[Seq]
    lapse: Exec
    find_turn: One[TurnState]
    begin_turn: One[TurnState]
    note_life: Exec
    note_request: Exec
    end_turn: One[TurnState]
    fail_turn: One[FailedTurn]
    list_turns: Many[TurnRow]


class Looking(Statements, package=_PACKAGE, file="looking.sql"):
    run_states: Many[RunState]
    usage_below: Many[UsageBelow]
    runs_in_state: Many[RunRow]


class Messages(Statements, package=_PACKAGE, file="messages.sql", rows={"blocks": NewBlock}):
    add_message: Exec
    add_blob: Exec
    window: Many[WindowBlock]
    last_live: Many[WindowBlock]
    retire: Exec
    list_messages: Many[MessageRow]
    blocks_of: Many[BlockRow]


class Calls(Statements, package=_PACKAGE, file="calls.sql", rows={"calls": NewCall}):
    add_calls: Exec
    close_calls: Many[ClosedCall]
    skip_calls: Exec
    ready_runs: Many[ReadyRun]
    calls_of: Many[CallRow]
    find_call: One[CallRow]


class Events(
    Statements,
    package=_PACKAGE,
    file="events.sql",
    rows={"events": NewEvent, "deltas": NewDelta, "notes": Note, "cursors": Cursor},
):
    add_events: Exec
    add_deltas: Exec
    events_after: Many[EventRow]
    topics_after: Many[TopicRow]


class Providers(Statements, package=_PACKAGE, file="providers.sql"):
    close_lane: Exec
    open_lane: Exec
    closed_lanes: Many[LaneRow]


GROUPS: tuple[type[Statements], ...] = (Agents, Sessions, Runs, Looking, Messages, Calls, Events, Providers)
