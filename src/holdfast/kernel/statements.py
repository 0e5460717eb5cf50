"""The SQL files as Python sees them: a name, how many rows, and the record each row becomes."""

from __future__ import annotations

from holdfast.kernel.hints import Announcement
from holdfast.kernel.records import (
    AheadOfClock,
    AttemptRow,
    Cancellable,
    Cancellation,
    CancelRequested,
    Child,
    Cluster,
    DutyRow,
    Ended,
    EndedAttempt,
    EndedJob,
    Ending,
    Enqueued,
    Expiry,
    Fence,
    Heartbeat,
    Held,
    HeldToken,
    Item,
    JobRow,
    KeyOwner,
    Kin,
    LastBeat,
    Lease,
    LiveWorker,
    LockedJob,
    LostWorker,
    Moved,
    NewJob,
    Renewed,
    Replaced,
    Resolution,
    Route,
    RouteId,
    Seq,
    Settled,
    Sight,
    Signal,
    Step,
    Suspension,
    Term,
    UniqueJob,
    Woken,
    WorkerRow,
    WorkerStatus,
)
from holdfast.kernel.records_flow import (
    Candidate,
    ChannelName,
    Charge,
    CountedBack,
    FinishedCount,
    FinishedJob,
    FinishedQueue,
    FirstBlocked,
    LaneCrowd,
    LaneName,
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
    ScheduleRow,
    Tick,
    WhyJob,
)
from holdfast.kernel.sightings import Backlog, Change, Symptoms
from holdfast.kernel.sql import Exec, Many, One, Statements


class Jobs(
    Statements,
    file="jobs.sql",
    rows={"jobs": NewJob, "items": Item, "routes": Route, "endings": Ending, "notes": Announcement},
    types={"id": "uuid", "job": "uuid", "payload": "json", "metadata": "jsonb"},
):
    enqueue: One[Enqueued]
    enqueue_plain: One[Enqueued]
    now: One[Moment]
    take_key: One[KeyOwner]
    find_unique: One[UniqueJob]
    replace: One[Replaced]
    enqueue_again: One[Settled]
    repeat_child: One[Kin]
    claim: Many[Lease]
    heads: Many[RouteId]
    complete: Many[Ended]
    ended_attempts: Many[EndedAttempt]
    parents_of: Many[Kin]
    lock_jobs: Many[LockedJob]
    settle_parent: One[Settled]
    hint: Exec
    announce: Exec
    report_progress: One[Seq]
    find_job: One[JobRow]
    seq_before: One[Seq]
    list_jobs: Many[JobRow]
    find_running: Many[Seq]
    jobs_by_seq: Many[JobRow]
    list_attempts: Many[AttemptRow]
    find_ended: Many[EndedJob]


class Leases(Statements, file="leases.sql", rows={"held": Held}):
    renew: Many[Renewed]
    held_tokens: Many[HeldToken]
    next_expiry: One[Expiry]
    find_lapsed: Many[Kin]
    try_lock_jobs: Many[Seq]
    record_lost: Exec
    expire: Many[Moved]
    shorten_leases: Many[Seq]


class Lanes(Statements, file="lanes.sql", rows={"charges": Charge}):
    candidates: Many[Candidate]
    lock_lanes: Many[LaneName]
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
    prune_lanes: Exec


class Queues(Statements, file="queues.sql"):
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


class Retention(Statements, file="retention.sql"):
    finished_queues: Many[FinishedQueue]
    count_back: One[CountedBack]
    find_prunable: Many[FinishedJob]
    prune_attempts: Exec
    prune_steps: Exec
    prune: Many[PrunedJob]
    release_keys: Exec
    freed_keys: Many[OldKey]
    old_keys: Many[OldKey]
    prune_keys: Exec


class Schedules(Statements, file="schedules.sql"):
    put_schedule: Exec
    due_schedules: Many[ScheduleRow]
    list_schedules: Many[ScheduleRow]
    find_schedule: One[ScheduleRow]
    advance_schedule: One[Tick]
    postpone_schedule: One[Tick]
    pause_schedule: One[Tick]
    resume_schedule: One[Tick]
    remove_schedule: One[Tick]


class Waiting(
    Statements,
    file="waiting.sql",
    rows={"suspensions": Suspension, "resolutions": Resolution},
    types={"id": "uuid", "payload": "json"},
):
    wake: Many[Woken]
    find_overdue: Many[Kin]
    overdue: Many[Moved]
    lock_channel: Exec
    park: One[Settled]
    record_parked: Exec
    suspend: Many[Seq]
    resolve: Many[Moved]
    send_signal: Exec
    signal: Many[Woken]
    take_signal: One[Signal]
    hold: One[Fence]
    store_step: One[Step]
    list_steps: Many[Step]
    find_step: One[Step]
    add_children: Exec
    list_children: Many[Child]
    find_cancellable: One[Cancellable]
    cancel: Many[Moved]
    request_cancel: Many[CancelRequested]
    open_cancellation: Exec
    cancellable_pending: Many[Seq]
    cancellable_blocked: Many[Seq]
    cancellable_later: Many[Seq]
    cancellable_running: Many[Seq]
    next_cancellations: Many[Cancellation]
    cancellable_children: Many[Kin]
    pass_cancellation: Exec
    close_cancellation: Exec
    untaken_signals: Many[Seq]
    prune_signals: Exec
    list_channels: Many[ChannelName]
    prune_channels: Exec


class Watch(Statements, file="watch.sql"):
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


class Why(Statements, file="why.sql"):
    why_job: One[WhyJob]
    lane_line: Many[Candidate]
    lane_crowd: One[LaneCrowd]
    paused_routes: Many[RouteId]


class Workers(Statements, file="workers.sql", rows={"routes": Route}):
    cluster: One[Cluster]
    oldest_code: One[Moment]
    adopt_identity: One[Cluster]
    bump_epoch: One[Cluster]
    register: One[Seq]
    find_incarnation: One[WorkerStatus]
    find_live_worker: One[LiveWorker]
    replace_worker: Exec
    advertise_presence: Exec
    heartbeat: One[Heartbeat]
    drain: One[WorkerStatus]
    unregister: Exec
    lose_workers: Many[LostWorker]
    living_workers: Many[Seq]
    present_workers: Many[LastBeat]
    list_workers: Many[WorkerRow]
    list_duties: Many[DutyRow]
    look: One[Sight]
    list_routes: Many[Route]
    add_routes: Exec
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


GROUPS: tuple[type[Statements], ...] = (Jobs, Lanes, Leases, Queues, Retention, Schedules, Waiting, Watch, Why, Workers)
