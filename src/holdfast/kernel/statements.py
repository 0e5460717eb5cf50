"""The SQL files as Python sees them: a name, how many rows, and the record each row becomes."""

from __future__ import annotations

from holdfast.kernel.records import (
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
    Fence,
    Held,
    HeldToken,
    JobRow,
    KeyOwner,
    Kin,
    Lease,
    LiveWorker,
    LockedJob,
    LostWorker,
    Moved,
    NewJob,
    Renewed,
    Route,
    RouteId,
    Seq,
    Settled,
    Sight,
    Signal,
    Step,
    Term,
    Woken,
    WorkerRow,
    WorkerStatus,
)
from holdfast.kernel.sql import Exec, Many, One, Statements


class Jobs(Statements, file="jobs.sql", rows={"jobs": NewJob, "routes": Route, "endings": Ending}):
    enqueue: One[Enqueued]
    take_key: One[KeyOwner]
    claim: Many[Lease]
    heads: Many[RouteId]
    complete: Many[Ended]
    ended_attempts: Many[EndedAttempt]
    lock_jobs: Many[LockedJob]
    settle_parent: One[Settled]
    hint_routes: Exec
    report_progress: One[Seq]
    find_job: One[JobRow]
    list_jobs: Many[JobRow]
    list_attempts: Many[AttemptRow]
    find_ended: Many[EndedJob]


class Leases(Statements, file="leases.sql", rows={"held": Held}):
    renew: Many[Renewed]
    held_tokens: Many[HeldToken]
    find_lapsed: Many[Kin]
    try_lock_jobs: Many[Seq]
    record_lost: Exec
    expire: Many[Moved]


class Waiting(Statements, file="waiting.sql"):
    wake: Many[Woken]
    find_overdue: Many[Kin]
    overdue: Many[Moved]
    lock_channel: Exec
    park: One[Settled]
    record_parked: Exec
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
    hint_cancel: Exec
    open_cancellation: Exec
    next_cancellation: One[Cancellation]
    cancellable_children: Many[Seq]
    pass_cancellation: Exec
    close_cancellation: Exec
    prune_channels: Exec


class Workers(Statements, file="workers.sql", rows={"routes": Route}):
    cluster: One[Cluster]
    adopt_identity: One[Cluster]
    bump_epoch: One[Cluster]
    register: One[Seq]
    find_incarnation: One[Seq]
    find_live_worker: One[LiveWorker]
    replace_worker: Exec
    advertise_presence: Exec
    heartbeat: One[WorkerStatus]
    drain: One[WorkerStatus]
    unregister: Exec
    lose_workers: Many[LostWorker]
    present_workers: Many[Seq]
    list_workers: Many[WorkerRow]
    list_duties: Many[DutyRow]
    look: One[Sight]
    list_routes: Many[Route]
    add_routes: Exec
    set_queue: Exec
    acquire_duty: One[Term]
    renew_duty: One[Term]
    release_duty: Exec
    hold_duty: One[Term]
    prune_workers: Exec
    prune_keys: Exec
    prune_routes: Exec


GROUPS: tuple[type[Statements], ...] = (Jobs, Leases, Waiting, Workers)
