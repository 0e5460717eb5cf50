"""The SQL files of agents as Python sees them."""

from __future__ import annotations

from holdfast.agents.batches.records import (
    Applied,
    BatchId,
    BatchJob,
    BatchRow,
    MovedRun,
    NewRequest,
    OpenRequest,
    RequestBody,
    RequestId,
    RequestRow,
    RequestSize,
    Trouble,
)
from holdfast.agents.capsules.records import (
    KeptAgent,
    KeptCall,
    KeptEvent,
    KeptInquiry,
    KeptJob,
    KeptMessage,
    KeptRun,
    KeptSession,
    KeptSteer,
    KeptTurn,
    KeptVersion,
    NewSeq,
)
from holdfast.agents.compaction.records import (
    Attempt,
    CompactionRow,
    CompactionUse,
    Generation,
    HistoryBlock,
    LastRun,
    LastUsage,
    LiveMessage,
    NewMade,
    Standing,
    UnderWay,
)
from holdfast.agents.forks.records import Copy, ForkedSession, ForkOf, PastMessage
from holdfast.agents.money.records import BudgetRow, BudgetState, BudgetUse, CallCost, Reserved, UsedRow
from holdfast.agents.people.records import InquiryPlace, InquiryRow, NewInquiry, UnknownCall
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
    EndedTurn,
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
    NewMessage,
    NewRun,
    OpenRun,
    Readers,
    ReadyRun,
    Requested,
    RunEnd,
    RunRow,
    RunState,
    SessionRow,
    Speaking,
    TopicRow,
    TurnKey,
    TurnRow,
    TurnState,
    UsageBelow,
    UsageRow,
    ValueCount,
    VersionRow,
    WindowBlock,
)
from holdfast.agents.records_inbox import CurrentRun, Interrupted, Mail, MailOf, Steer
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
    lock_lines: Exec
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
    delete_inquiries: Exec
    delete_steers: Exec
    delete_batched: Exec
    forget_batched: Exec
    delete_session_reservations: Exec
    delete_session_uses: Exec
    delete_session_budgets: Exec
    delete_runs: Exec


class Runs(
    Statements,
    package=_PACKAGE,
    file="runs.sql",
    rows={"runs": NewRun, "answers": EndedTurn, "ends": RunEnd, "living": Speaking, "requests": Requested},
):
    add_runs: Exec
    load_run: One[LoadedRun]
    load_runs: Many[LoadedRun]
    find_run: One[RunRow]
    find_runs: Many[RunRow]
    list_runs: Many[RunRow]
    tree_usage: One[UsageRow]
    session_usage: One[UsageRow]
    run_ahead: One[AheadRun]
    wake_next: Many[Woken]
    move_run: Exec
    finish_runs: Many[FinishedRun]
    abandon_calls: Exec
    open_runs: Many[OpenRun]
    find_stuck: Many[Seq]
    lapse: Exec
    find_turn: One[TurnState]
    begin_turn: One[TurnState]
    note_life: Many[Interrupted]
    note_request: Exec
    end_turns: Many[TurnKey]
    fail_turn: One[FailedTurn]
    list_turns: Many[TurnRow]


class Looking(Statements, package=_PACKAGE, file="looking.sql"):
    run_states: Many[RunState]
    usage_below: Many[UsageBelow]
    open_runs_in_state: Many[RunRow]
    ended_runs_in_state: Many[RunRow]


class Messages(Statements, package=_PACKAGE, file="messages.sql", rows={"messages": NewMessage, "blocks": NewBlock}):
    add_messages: Exec
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
    rows={"events": NewEvent, "deltas": NewDelta, "cursors": Cursor},
):
    begin_reading: Exec
    end_reading: Exec
    prune_readers: Exec
    add_events: One[Readers]
    add_deltas: One[Readers]
    events_after: Many[EventRow]
    topics_after: Many[TopicRow]


class Providers(Statements, package=_PACKAGE, file="providers.sql"):
    close_lane: Exec
    open_lane: Exec
    closed_lanes: Many[LaneRow]


class Fallbacks(Statements, package=_PACKAGE, file="fallbacks.sql"):
    give_up: One[Counted]
    renew_turn: Exec
    retire_answer: Exec


class Inquiries(
    Statements, package=_PACKAGE, file="inquiries.sql", rows={"inquiries": NewInquiry}, types={"job": "uuid"}
):
    add_inquiries: Exec
    find_inquiry: One[InquiryRow]
    open_inquiries: Many[InquiryRow]
    last_decided: One[InquiryRow]
    list_inquiries: Many[InquiryRow]
    inquiry_place: One[InquiryPlace]
    decide_inquiry: One[InquiryRow]
    count_asked: One[Counted]
    count_open: One[Counted]
    withdraw_inquiries: Exec
    withdraw_calls: Exec
    change_options: Exec
    unknown_calls: Many[UnknownCall]
    hand_over: Exec


class Compactions(
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
    under_way: One[UnderWay]
    open_compaction: One[CompactionRow]
    begin_compaction: One[CompactionRow]
    find_compaction: One[CompactionRow]
    list_compactions: Many[CompactionRow]
    charge_compaction: One[Attempt]
    overtaken: Exec
    fail_compaction: One[Attempt]
    end_compaction: One[CompactionRow]
    archive: Exec
    add_made: Exec
    set_generation: Exec
    withdraw_made: Exec
    bring_back: Exec
    restore_compaction: One[CompactionRow]
    preserve: One[LiveMessage]
    compaction_use: One[CompactionUse]
    delete_compactions: Exec


class Budgets(Statements, package=_PACKAGE, file="budgets.sql", rows={"reserved": Reserved, "costs": CallCost}):
    set_budget: One[BudgetRow]
    delete_budget: One[BudgetRow]
    delete_uses: Exec
    delete_reservations: Exec
    list_budgets: Many[BudgetState]
    open_uses: Many[BudgetUse]
    budgets_of: Many[BudgetRow]
    reserve: Exec
    last_reserved: One[Counted]
    settle: Exec
    charge_budgets: Exec
    reserved_turns: Many[TurnKey]
    lapsed: Many[TurnKey]
    prune_uses: Exec
    note_wait: Exec
    usage: Many[UsedRow]


class Inbox(Statements, package=_PACKAGE, file="inbox.sql"):
    add_steer: Exec
    find_steer: One[Steer]
    open_steers: Many[Steer]
    take_steers: Exec
    prune_steers: Exec
    mail: One[Mail]
    mails: Many[MailOf]
    interrupt: One[Interrupted]
    current_run: One[CurrentRun]
    last_accepted: One[CurrentRun]
    this_run: One[CurrentRun]
    note_prompted: Exec


class Batches(Statements, package=_PACKAGE, file="batches.sql", rows={"requests": NewRequest, "applied": Applied}):
    find_gathering: One[BatchId]
    open_batch: One[BatchId]
    add_requests: Exec
    find_batch: One[BatchRow]
    list_batches: Many[BatchRow]
    batch_of: One[BatchRow]
    close_gathering: One[BatchId]
    drop_requests: Exec
    drop_turn: Exec
    request_sizes: Many[RequestSize]
    move_requests: Exec
    intend: One[BatchId]
    request_bodies: Many[RequestBody]
    refused: One[Trouble]
    search: Exec
    taken_ids: Many[BatchId]
    is_request: One[RequestId]
    take_batch: One[BatchId]
    offer_batch: One[BatchId]
    add_orphan: One[BatchId]
    agents_in: Many[BatchId]
    rekey_batch: Exec
    jobless_batches: Many[BatchJob]
    revive_batch: One[BatchId]
    split_batch: One[BatchId]
    note_download: Exec
    note_unknown: Exec
    send_requests: Exec
    runs_to_move: Many[MovedRun]
    move_runs: Many[MovedRun]
    note_poll: Exec
    note_error: Exec
    wanted_requests: One[Counted]
    find_requests: Many[OpenRequest]
    unanswered: Many[OpenRequest]
    request_body: Many[RequestBody]
    apply_requests: Exec
    kept_answer: One[RequestBody]
    settle_doubt: Exec
    take_answer: Exec
    retry_turns: Exec
    doubt_turns: Exec
    fail_batched: Exec
    end_batch: One[BatchId]
    list_requests: Many[RequestRow]
    prune_batches: Many[BatchId]
    delete_requests: Exec
    delete_batches: Exec


class Forks(Statements, package=_PACKAGE, file="forks.sql", rows={"copies": Copy, "blocks": NewBlock}):
    past: Many[PastMessage]
    add_fork: Exec
    find_fork: One[ForkedSession]
    copy_messages: Exec
    copy_blocks: Exec
    add_blocks: Exec
    mark_fork: Exec
    generation_seen: One[Generation]
    fork_of: One[ForkOf]


class Capsules(
    Statements,
    package=_PACKAGE,
    file="capsules.sql",
    types={
        "job_id": "uuid",
        "metadata": "jsonb",
        **dict.fromkeys(("definition", "input", "variables", "options", "output", "refusal", "usage", "error"), "json"),
        **dict.fromkeys(("data", "otherwise", "decision", "payload", "result", "body"), "json"),
    },
):
    kept_agents: Many[KeptAgent]
    keep_agent: Exec
    kept_versions: Many[KeptVersion]
    keep_version: Exec
    kept_session: One[KeptSession]
    keep_session: Exec
    kept_runs: Many[KeptRun]
    keep_run: Exec
    kept_messages: Many[KeptMessage]
    keep_message: Exec
    kept_turns: Many[KeptTurn]
    keep_turn: Exec
    kept_calls: Many[KeptCall]
    keep_call: Exec
    kept_events: Many[KeptEvent]
    keep_event: Exec
    kept_inquiries: Many[KeptInquiry]
    keep_inquiry: Exec
    kept_steers: Many[KeptSteer]
    keep_steer: Exec
    kept_jobs: Many[KeptJob]
    keep_job: One[NewSeq]


GROUPS: tuple[type[Statements], ...] = (
    Agents,
    Sessions,
    Runs,
    Looking,
    Messages,
    Calls,
    Events,
    Providers,
    Inquiries,
    Compactions,
    Budgets,
    Inbox,
    Batches,
    Forks,
    Capsules,
)
