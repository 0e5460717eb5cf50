"""The SQL files of agents as Python sees them, apart from those that a subject of its own has beside it."""

from __future__ import annotations

from holdfast.agents.batches import records as batches
from holdfast.agents.capsules import records as capsules
from holdfast.agents.compaction import records as compaction
from holdfast.agents.forks import records as forks
from holdfast.agents.listing_rows import (
    AgentActivity,
    CallPlace,
    EndTime,
    FailedRun,
    InquiryTimes,
    JobNumber,
    LeaseInterval,
    OpenCounts,
    OpenInquiries,
    RunCount,
    RunOfSession,
    RunPlace,
    SessionId,
    SessionMetadata,
    TenantName,
    TurnLatencies,
    TurnOfRun,
)
from holdfast.agents.money import records as money
from holdfast.agents.people import records as people
from holdfast.agents.retention import records as retention
from holdfast.agents.rows import (
    AgentRow,
    AwaitedRun,
    BlobHash,
    BlockRow,
    CallId,
    CallOutput,
    CallRequestId,
    CallRow,
    ClosedCall,
    ClosedLane,
    CurrentAgent,
    CurrentRun,
    Cursor,
    EndedTurn,
    EventRow,
    FailedTurn,
    FinishedRun,
    FoundMessage,
    InterruptFlag,
    LastFailure,
    LoadedRun,
    Mail,
    MessageRow,
    NewBlock,
    NewCall,
    NewDelta,
    NewEvent,
    NewMessage,
    NewRun,
    OpenRun,
    ProviderLaneRow,
    ReaderFlag,
    ReadyRun,
    RetiredMessage,
    RowCount,
    RunAhead,
    RunEnd,
    RunId,
    RunMail,
    RunRow,
    SessionRow,
    SharedVersion,
    Steer,
    StreamingAttempt,
    ToolRow,
    TopicRow,
    TurnAttempt,
    TurnError,
    TurnKey,
    TurnRow,
    UnansweredMessage,
    UsageBelow,
    UsageRow,
    UseId,
    ValueCount,
    VersionRow,
    WindowBlock,
)
from holdfast.kernel.rows import AdjacentIds, Match, Number, Seq, WokenJob
from holdfast.kernel.sql import Exec, Many, One, Statements, groups_of
from holdfast.kernel.tally_rows import Finished, Tally, TimeRow

_PACKAGE = "holdfast.agents.sql"


class AgentsSql(Statements, package=_PACKAGE, file="agents.sql", types={"metadata": "jsonb", "definition": "json"}):
    add_agent: Exec
    current_agent: One[CurrentAgent]
    lock_agent: One[AgentRow]
    add_version: Exec
    set_version: One[AgentRow]
    find_agent: One[AgentRow]
    agents_named: Many[AgentRow]
    list_agents: Many[AgentRow]
    count_agents: One[RowCount]
    find_version: One[VersionRow]
    list_versions: Many[VersionRow]
    current_definitions: Many[VersionRow]
    shared_versions: Many[SharedVersion]
    shared_definitions: Many[VersionRow]
    callers_of: Many[AgentRow]
    delete_versions: Exec
    delete_agent: One[AgentRow]


class RunListsSql(Statements, package=_PACKAGE, file="listing.sql"):
    runs_all: Many[RunRow]
    end_of_runs_all: One[RunPlace]
    count_runs_all: One[RowCount]
    runs_of_session: Many[RunRow]
    end_of_runs_of_session: One[RunPlace]
    count_runs_of_session: One[RowCount]
    runs_of_parent: Many[RunRow]
    end_of_runs_of_parent: One[RunPlace]
    count_runs_of_parent: One[RowCount]
    runs_of_agent: Many[RunRow]
    end_of_runs_of_agent: One[RunPlace]
    count_runs_of_agent: One[RowCount]
    runs_of_tenant: Many[RunRow]
    end_of_runs_of_tenant: One[RunPlace]
    count_runs_of_tenant: One[RowCount]
    runs_open: Many[RunRow]
    end_of_runs_open: One[RunPlace]
    count_runs_open: One[RowCount]
    runs_open_of_tenant: Many[RunRow]
    end_of_runs_open_of_tenant: One[RunPlace]
    count_runs_open_of_tenant: One[RowCount]
    runs_unanswered: Many[RunRow]
    end_of_runs_unanswered: One[RunPlace]
    count_runs_unanswered: One[RowCount]
    failed_runs: Many[FailedRun]
    failed_runs_of_tenant: Many[FailedRun]
    runs_unanswered_of_tenant: Many[RunRow]
    end_of_runs_unanswered_of_tenant: One[RunPlace]
    count_runs_unanswered_of_tenant: One[RowCount]


class SessionsSql(Statements, package=_PACKAGE, file="sessions.sql", types={"metadata": "jsonb"}):
    add_session: Exec
    find_session: One[SessionRow]
    take_place: One[SessionRow]
    lock_session: One[SessionRow]
    lock_lines: Exec
    runs_had: Many[RunCount]
    metadata_of: Many[SessionMetadata]
    update_session: One[SessionRow]
    delete_session: One[SessionRow]
    free_sources: Exec
    lock_blobs: Many[BlobHash]
    delete_blobs: Exec
    jobs_of: Many[Seq]
    free_keys: Exec
    delete_blocks: Exec
    delete_messages: Exec
    delete_events: Exec
    delete_calls: Exec
    delete_turns: Exec
    delete_inquiries: Exec
    delete_steers: Exec
    delete_batched: Exec
    forget_batched: Exec
    delete_session_reservations: Exec
    delete_session_uses: Exec
    delete_session_budgets: Exec
    delete_runs: Exec


class SessionListsSql(Statements, package=_PACKAGE, file="session_lists.sql", types={"metadata": "jsonb"}):
    sessions_all: Many[SessionRow]
    end_of_sessions_all: One[RunPlace]
    count_sessions_all: One[RowCount]
    sessions_of_tenant: Many[SessionRow]
    end_of_sessions_of_tenant: One[RunPlace]
    count_sessions_of_tenant: One[RowCount]
    sessions_of_parent: Many[SessionRow]
    end_of_sessions_of_parent: One[RunPlace]
    count_sessions_of_parent: One[RowCount]
    metadata_values: Many[ValueCount]
    metadata_values_of: Many[ValueCount]
    list_tenants: Many[TenantName]


class RunsSql(
    Statements,
    package=_PACKAGE,
    file="runs.sql",
    rows={"runs": NewRun, "answers": EndedTurn, "ends": RunEnd, "living": StreamingAttempt, "requests": CallRequestId},
):
    add_runs: Exec
    load_run: One[LoadedRun]
    load_runs: Many[LoadedRun]
    find_run: One[RunRow]
    find_runs: Many[RunRow]
    runs_of_root: Many[RunRow]
    mark_retry: Exec
    tree_usage: One[UsageRow]
    session_usage: One[UsageRow]
    wrong_totals: Many[SessionId]
    run_ahead: One[RunAhead]
    wake_next: Many[WokenJob]
    move_run: Exec
    finish_runs: Many[FinishedRun]
    abandon_calls: Exec
    held_runs: Many[Seq]
    open_runs: Many[OpenRun]
    find_stuck: Many[Seq]
    lapse: Exec
    find_turn: One[TurnAttempt]
    begin_turn: One[TurnAttempt]
    note_life: Many[InterruptFlag]
    note_request: Exec
    end_turns: Many[TurnKey]
    fail_turn: One[FailedTurn]
    list_turns: Many[TurnRow]


class RunTreesSql(Statements, package=_PACKAGE, file="looking.sql"):
    run_states: Many[AwaitedRun]
    usage_below: Many[UsageBelow]
    jobs_below: Many[JobNumber]
    stretches: Many[LeaseInterval]
    run_before: One[EndTime]
    short_family: Many[RunRow]
    short_runs: Many[RunRow]
    turns_below: Many[TurnRow]
    calls_below: Many[CallRow]
    asked_below: Many[InquiryTimes]
    run_weight: One[Number]


class ActivitySql(Statements, package=_PACKAGE, file="activity.sql"):
    agent_activity: Many[AgentActivity]
    waiting_people: One[OpenInquiries]
    turn_latencies: Many[TurnLatencies]


class SearchSql(Statements, package=_PACKAGE, file="search.sql"):
    agents_from: Many[Match]
    sessions_from: Many[Match]
    runs_from: Many[Match]
    calls_from: Many[Match]
    inquiries_from: Many[Match]
    sessions_keyed: Many[Match]
    agents_called: Many[Match]


class IdsSql(Statements, package=_PACKAGE, file="ids.sql"):
    agents_beside: Many[AdjacentIds]
    sessions_beside: Many[AdjacentIds]
    runs_beside: Many[AdjacentIds]
    calls_beside: Many[AdjacentIds]
    inquiries_beside: Many[AdjacentIds]
    batches_beside: Many[AdjacentIds]
    budgets_beside: Many[AdjacentIds]


class MessagesSql(Statements, package=_PACKAGE, file="messages.sql", rows={"messages": NewMessage, "blocks": NewBlock}):
    add_messages: Exec
    add_blob: Exec
    window: Many[WindowBlock]
    last_live: Many[WindowBlock]
    use_ids: Many[UseId]
    retire: Exec
    list_messages: Many[MessageRow]
    end_of_messages: One[Number]
    latest_messages: Many[MessageRow]
    begin_of_messages: One[Number]
    messages_of_run: Many[MessageRow]
    messages_of_session: Many[MessageRow]
    blocks_of: Many[BlockRow]
    short_blocks_of: Many[BlockRow]


class MarkedRunsSql(Statements, package=_PACKAGE, file="marked_runs.sql", types={"metadata": "jsonb"}):
    marked: Many[RunPlace]
    end_of_marked: One[RunPlace]
    marked_of_tenant: Many[RunPlace]
    end_of_marked_of_tenant: One[RunPlace]
    mark_values: Many[ValueCount]
    mark_values_of_tenant: Many[ValueCount]


class OverviewsSql(Statements, package=_PACKAGE, file="glances.sql", rows={"turns": TurnOfRun, "runs": RunOfSession}):
    calls_of_turns: Many[CallId]
    open_below: One[OpenCounts]
    last_words: Many[MessageRow]


class ContentSql(Statements, package=_PACKAGE, file="content.sql", types={"output": "json", "body": "json"}):
    failed_turn: One[TurnError]
    unaccepted: Many[UnansweredMessage]
    retire_messages: Exec
    refuse_result: Exec
    lock_blobs_of: Many[BlobHash]
    rewrite_block: Exec
    find_message: One[FoundMessage]
    open_run: One[RunId]
    retire_exchange: Many[RetiredMessage]
    outdate_thinking: Exec


class CallsSql(Statements, package=_PACKAGE, file="calls.sql", rows={"calls": NewCall}):
    add_calls: Exec
    close_calls: Many[ClosedCall]
    outputs_of: Many[CallOutput]
    set_output: Exec
    skip_calls: Exec
    ready_runs: Many[ReadyRun]
    calls_of: Many[CallRow]
    call_ids: Many[CallId]
    find_calls: Many[CallRow]


class CallListsSql(Statements, package=_PACKAGE, file="call_lists.sql"):
    calls_listed: Many[CallPlace]
    end_of_calls_listed: One[CallPlace]
    count_calls_listed: One[RowCount]
    calls_failed: Many[CallPlace]
    end_of_calls_failed: One[CallPlace]
    count_calls_failed: One[RowCount]
    calls_open: Many[CallPlace]
    count_calls_open: One[RowCount]


class EndingsSql(Statements, package=_PACKAGE, file="endings.sql"):
    runs_upto: One[TimeRow]
    turns_upto: One[TimeRow]
    calls_upto: One[TimeRow]
    ended_runs: Many[Finished]
    ended_turns: Many[Finished]
    ended_calls: Many[Finished]
    runs_again: Many[Tally]
    turns_again: Many[Tally]
    calls_again: Many[Tally]
    runs_in: Many[Finished]
    turns_in: Many[Finished]
    calls_in: Many[Finished]
    compactions_in: Many[Finished]


class EventsSql(
    Statements,
    package=_PACKAGE,
    file="events.sql",
    rows={"events": NewEvent, "speaking": StreamingAttempt, "deltas": NewDelta, "cursors": Cursor},
):
    begin_reading: Exec
    end_reading: Exec
    prune_readers: Exec
    add_events: One[ReaderFlag]
    lock_speaking: Many[RunId]
    add_deltas: One[ReaderFlag]
    events_after: Many[EventRow]
    last_topic: One[TopicRow]
    topics_after: Many[TopicRow]


class ToolsSql(Statements, package=_PACKAGE, file="tools.sql", types={"definition": "json"}):
    declare_tool: Exec
    find_tools: Many[ToolRow]


class ProviderLanesSql(Statements, package=_PACKAGE, file="provider_lanes.sql"):
    close_lane: Exec
    note_answer: Exec
    begin_opening: Exec
    forget_lane: Exec
    lanes: Many[ProviderLaneRow]
    find_lane: One[ProviderLaneRow]
    closed_lanes: Many[ClosedLane]
    due_behind: One[RowCount]


class FallbacksSql(Statements, package=_PACKAGE, file="fallbacks.sql"):
    give_up: One[RowCount]
    renew_turn: Exec
    retire_answer: Exec
    last_failure: One[LastFailure]


class InboxSql(Statements, package=_PACKAGE, file="inbox.sql"):
    add_steer: Exec
    find_steer: One[Steer]
    open_steers: Many[Steer]
    take_steers: Exec
    prune_steers: Exec
    mail: One[Mail]
    mails: Many[RunMail]
    interrupt: One[InterruptFlag]
    current_run: One[CurrentRun]
    last_accepted: One[CurrentRun]
    this_run: One[CurrentRun]
    note_prompted: Exec


GROUPS = groups_of(
    __name__, *(module.__name__ for module in (batches, capsules, compaction, forks, money, people, retention))
)
