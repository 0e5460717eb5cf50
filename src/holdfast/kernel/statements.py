"""The SQL files as Python sees them: a name, how many rows, and the record each row becomes.

Each file of `kernel/sql` has a module of its name here, which declares its group.
"""

from __future__ import annotations

from holdfast.kernel.broker_rows import (
    Alias,
    Asker,
    BeatAnswer,
    LaneDemand,
    LeaseKey,
    LeaseRequest,
    LiveOwner,
    Offer,
    OwnedLease,
    OwnerBeat,
    Renewal,
    RouteDemand,
    StaleWorker,
    TransferredLease,
    Want,
    WantedJob,
    WorkerRow,
)
from holdfast.kernel.database import Announcement
from holdfast.kernel.flow_rows import (
    Candidate,
    ChannelName,
    Charge,
    CountedBack,
    DeclaredLane,
    FinishedCount,
    FinishedJob,
    FinishedQueue,
    FirstBlocked,
    HeldDuty,
    LaneCrowd,
    LaneName,
    LaneNote,
    LaneRow,
    LaneState,
    Moment,
    OldKey,
    OldLane,
    OldWorker,
    PausedQueue,
    PrunedJob,
    QueueCount,
    QueueRow,
    ReadyRoute,
    ScheduleRow,
    Tick,
    WhyJob,
)
from holdfast.kernel.rows import (
    AdjacentIds,
    AheadOfClock,
    AttemptRow,
    Backlog,
    Cancellation,
    CancelRequested,
    Change,
    ChildRef,
    ChildRow,
    Cluster,
    CreatedJob,
    DutyRow,
    EndedAtSeq,
    EndedAttempt,
    EndedJob,
    EndedLease,
    Ending,
    EnqueueResult,
    Expiry,
    FailedJob,
    Fence,
    Heartbeat,
    HeldToken,
    Incarnation,
    JobItem,
    JobRow,
    KeyOwner,
    LastBeat,
    LastStep,
    Latencies,
    Lease,
    LeaseRef,
    LiveWorker,
    LoadRow,
    LockedJob,
    LostJob,
    LostWorker,
    Match,
    Misplaced,
    MovedJob,
    NewJob,
    Number,
    Observation,
    OpenChildren,
    PastWorker,
    PlaceRow,
    PlaceStanding,
    PoolRow,
    RenewedLease,
    ReplacedJob,
    Resolution,
    RetriedKind,
    Route,
    RouteId,
    Seq,
    SettledJob,
    Signal,
    Step,
    Suspension,
    Symptoms,
    Term,
    UniqueJob,
    UnnamedLease,
    WokenJob,
)
from holdfast.kernel.sql import Exec, Many, One, Statements
from holdfast.kernel.tally_rows import (
    CountedTime,
    FailureGroup,
    Failures,
    Finished,
    SeriesPoint,
    SourceMark,
    TalliedName,
    Tally,
    TallyTime,
    TimeRow,
)

# The statements of `brokers.sql`, as Python sees them.


class BrokersSql(
    Statements,
    file="brokers.sql",
    rows={"wants": Want, "takings": LeaseRequest, "askers": Asker, "leases": LeaseKey, "beats": OwnerBeat},
):
    offers: Many[Offer]
    take_for: Many[Lease]
    claim_each: Many[Lease]
    find_unanswered: Many[UnnamedLease]
    seek: One[WantedJob]
    wake_one: One[WokenJob]
    find_lease: One[OwnedLease]
    leases_of: Many[OwnedLease]
    transfer_leases: Many[TransferredLease]
    beat_many: Many[BeatAnswer]
    lock_living: Many[Incarnation]
    find_live_owner: One[LiveOwner]
    refresh_owner: One[Seq]
    demand: Many[RouteDemand]
    lane_demand: Many[LaneDemand]
    name_job: One[Alias]
    find_alias: One[Alias]
    list_aliases: Many[Alias]
    alias_of: One[Alias]


# The statements of `cancel.sql`, as Python sees them.


class CancelSql(Statements, file="cancel.sql", types={"id": "uuid", "error": "json"}):
    find_cancellable: One[ChildRef]
    cancel: Many[MovedJob]
    request_cancel: Many[CancelRequested]
    open_cancellation: Exec
    cancellable_ready: Many[Seq]
    cancellable_later: Many[Seq]
    cancellable_running: Many[Seq]
    next_cancellations: Many[Cancellation]
    cancellable_children: Many[ChildRef]
    pass_cancellation: Exec
    close_cancellation: Exec


# The statements of `crowd.sql`, as Python sees them.


class CrowdSql(Statements, file="crowd.sql"):
    ready_routes: Many[ReadyRoute]
    duties_held: Many[HeldDuty]


# The statements of `enqueue.sql`, as Python sees them.


class EnqueueSql(
    Statements,
    file="enqueue.sql",
    rows={"jobs": NewJob, "items": JobItem, "routes": Route},
    types={"id": "uuid", "job": "uuid", "payload": "json", "metadata": "jsonb"},
):
    enqueue_one: One[EnqueueResult]
    enqueue_plain: One[EnqueueResult]
    enqueue: One[EnqueueResult]
    take_key: One[KeyOwner]
    find_key: One[KeyOwner]
    find_unique: One[UniqueJob]
    replace: One[ReplacedJob]
    enqueue_again: One[SettledJob]
    repeat_child: One[ChildRef]


# The statements of `jobs.sql`, as Python sees them.


class JobsSql(
    Statements,
    file="jobs.sql",
    rows={"endings": Ending, "notes": Announcement},
    types={"id": "uuid", "progress": "json"},
):
    now: One[Moment]
    claim: Many[Lease]
    claim_one: Many[Lease]
    heads: Many[RouteId]
    finish: Many[EndedLease]
    complete: Many[EndedLease]
    ended_attempts: Many[EndedAttempt]
    parents_of: Many[ChildRef]
    lock_anchors: Many[Seq]
    try_lock_anchors: Many[Seq]
    lock_leases: Many[Seq]
    lock_places: Many[LockedJob]
    try_lock_places: Many[LockedJob]
    settle_parent: One[OpenChildren]
    wake_parent: One[WokenJob]
    hint: Exec
    announce: Exec
    report_progress: One[Seq]
    find_job: One[JobRow]
    list_attempts: Many[AttemptRow]
    count_attempts: One[Number]
    find_ended: Many[EndedJob]


# The statements of `lanes.sql`, as Python sees them.


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
    unblock: Many[WokenJob]
    charge: Exec
    mend_lanes: Many[LaneName]
    open_stranded: Exec
    old_lanes: Many[OldLane]
    keep_lanes: Exec
    wait_for_lanes: Many[LaneName]
    forget_empty: Exec
    prune_lanes: Exec


# The statements of `leases.sql`, as Python sees them.


class LeasesSql(Statements, file="leases.sql", rows={"held": LeaseRef, "renewals": Renewal}):
    renew: Many[RenewedLease]
    renew_each: Many[RenewedLease]
    held_tokens: Many[HeldToken]
    find_unnamed: Many[UnnamedLease]
    next_expiry: One[Expiry]
    find_lapsed: Many[ChildRef]
    expire: Many[LostJob]
    shorten_leases: Many[Seq]


# The statements of `listing.sql`, as Python sees them.


class ListingSql(Statements, file="listing.sql"):
    seq_before: One[Seq]
    job_at: One[CreatedJob]
    list_jobs: Many[JobRow]
    ended_in_state: Many[Seq]
    jobs_troubled: Many[EndedAtSeq]
    end_of_jobs_troubled: One[EndedAtSeq]
    count_jobs_troubled: One[Number]
    count_failed: One[Number]
    failed_jobs: Many[FailedJob]
    count_jobs: One[Number]
    later_in_state: Many[Seq]
    pending_in_order: Many[Seq]
    find_running: Many[Seq]
    jobs_by_seq: Many[JobRow]
    jobs_beside: Many[AdjacentIds]
    jobs_from: Many[Match]
    queues_called: Many[Match]
    workers_called: Many[Match]


# The statements of `pools.sql`, as Python sees them.


class PoolsSql(Statements, file="pools.sql"):
    put_pool: Exec
    list_pools: Many[PoolRow]
    past_of_pool: Many[PastWorker]
    open_places: Many[PlaceRow]
    occupy: One[Seq]
    give_place_up: One[PlaceRow]
    standing_of_places: Many[PlaceStanding]
    retire_worker: One[PlaceRow]
    load: One[LoadRow]


# The statements of `queues.sql`, as Python sees them.


class QueuesSql(Statements, file="queues.sql"):
    set_queue: Exec
    pause_queue: One[PausedQueue]
    resume_queue: One[PausedQueue]
    find_queue: One[QueueRow]
    list_queues: Many[QueueRow]
    count_pending: Many[QueueCount]
    count_later: Many[QueueCount]
    count_blocked: Many[QueueCount]
    count_running: Many[QueueCount]
    count_finished: Many[FinishedCount]
    list_lanes: Many[LaneRow]


# The statements of `retention.sql`, as Python sees them.


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


# The statements of `schedules.sql`, as Python sees them.


class SchedulesSql(Statements, file="schedules.sql"):
    put_schedule: Exec
    due_schedules: Many[ScheduleRow]
    list_schedules: Many[ScheduleRow]
    find_schedule: One[ScheduleRow]
    advance_schedule: One[Tick]
    postpone_schedule: One[Tick]
    pause_schedule: One[Tick]
    resume_schedule: One[Tick]
    delete_schedule: One[Tick]


# The statements of `tally.sql`, as Python sees them.


class TallySql(Statements, file="tally.sql", rows={"tallies": Tally, "times": TallyTime, "failures": Failures}):
    add_tallies: Exec
    add_times: Exec
    hold_tally_mark: One[TimeRow]
    find_tally_mark: One[TimeRow]
    move_tally_mark: Exec
    untallied_queues: Many[TalliedName]
    jobs_upto: One[TimeRow]
    ended_jobs: Many[Finished]
    hold_marks_of_jobs: Many[SourceMark]
    untallied_jobs: Many[Finished]
    queue_to_count_again: One[TalliedName]
    jobs_again: Many[Tally]
    hour_to_complete: One[TimeRow]
    missing_in_tally: Many[Tally]
    forget_again: Exec
    forget_again_of: Exec
    known_failures: Many[TalliedName]
    last_failure_group: One[TalliedName]
    add_failures: Exec
    forget_tallies: Many[TimeRow]
    forget_times: Many[TimeRow]
    forget_failures: Many[TimeRow]
    series: Many[SeriesPoint]
    series_of_times: Many[CountedTime]
    series_by_tenant: Many[SeriesPoint]
    times_by_tenant: Many[CountedTime]
    failures: Many[FailureGroup]
    failures_of: Many[FailureGroup]
    tenants_tallies: Many[Tally]
    tenants_times: Many[TallyTime]
    forget_empty_tallies: Exec
    forget_empty_times: Exec
    delete_failures_of: Exec
    forget_minutes: Exec


# The statements of `waiting.sql`, as Python sees them.


class WaitingSql(
    Statements,
    file="waiting.sql",
    rows={"suspensions": Suspension, "resolutions": Resolution},
    types={"id": "uuid", "payload": "json"},
):
    wake: Many[WokenJob]
    find_overdue: Many[ChildRef]
    overdue: Many[MovedJob]
    lock_channel: Exec
    hold_still: One[Seq]
    park: One[SettledJob]
    suspend: Many[Seq]
    resolve: Many[MovedJob]
    send_signal: One[Signal]
    sent_signal: One[Signal]
    signal: Many[WokenJob]
    wake_some: Many[WokenJob]
    take_signal: One[Signal]
    hold: One[Fence]
    store_step: One[Step]
    raise_count: One[Step]
    list_steps: Many[Step]
    last_step: One[LastStep]
    take_write_lock: Exec
    find_step: One[Step]
    add_children: Exec
    list_children: Many[ChildRow]
    untaken_signals: Many[Seq]
    prune_signals: Exec
    held_channels: Many[ChannelName]
    list_channels: Many[ChannelName]
    prune_channels: Exec


# The statements of `watch.sql`, as Python sees them.


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


# The statements of `why.sql`, as Python sees them.


class WhySql(Statements, file="why.sql"):
    why_job: One[WhyJob]
    lane_line: Many[Candidate]
    lane_crowd: One[LaneCrowd]
    paused_routes: Many[RouteId]


# The statements of `workers.sql`, as Python sees them.


class WorkersSql(Statements, file="workers.sql", rows={"routes": Route}):
    cluster: One[Cluster]
    oldest_code: One[Moment]
    adopt_identity: One[Cluster]
    bump_epoch: One[Cluster]
    register: One[Seq]
    find_incarnation: One[Incarnation]
    find_live_worker: One[LiveWorker]
    replace_worker: Exec
    advertise_presence: Exec
    heartbeat: One[Heartbeat]
    drain: One[Incarnation]
    unregister: Exec
    lose_workers: Many[LostWorker]
    lock_worker: Many[Seq]
    standing_of: Many[Incarnation]
    present_workers: Many[LastBeat]
    list_workers: Many[WorkerRow]
    lives_of_worker: Many[WorkerRow]
    pool_workers: Many[WorkerRow]
    stale_workers: Many[StaleWorker]
    list_duties: Many[DutyRow]
    look: One[Observation]
    list_routes: Many[Route]
    lock_routes: Many[RouteId]
    known_routes: Many[RouteId]
    add_routes: Exec
    note_routes: Exec
    noted_routes: Many[Route]
    drop_route_notes: Exec
    acquire_duty: One[Term]
    take_turn: One[Term]
    ahead_of_clock: One[AheadOfClock]
    bring_back_workers: Exec
    bring_back_duties: Exec
    bring_back_routes: Exec
    renew_duty: One[Term]
    release_duty: Exec
    hold_duty: One[Term]
    old_workers: Many[OldWorker]
    prune_workers: Exec
    prune_routes: Exec


GROUPS: tuple[type[Statements], ...] = (
    BrokersSql,
    CancelSql,
    CrowdSql,
    EnqueueSql,
    JobsSql,
    LanesSql,
    LeasesSql,
    ListingSql,
    PoolsSql,
    QueuesSql,
    RetentionSql,
    SchedulesSql,
    TallySql,
    WaitingSql,
    WatchSql,
    WhySql,
    WorkersSql,
)
