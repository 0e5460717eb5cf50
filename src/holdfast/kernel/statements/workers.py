"""The statements of `workers.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.broker_rows import StaleWorker, WorkerRow
from holdfast.kernel.flow_rows import Moment, OldWorker
from holdfast.kernel.rows import (
    AheadOfClock,
    Cluster,
    DutyRow,
    Heartbeat,
    Incarnation,
    LastBeat,
    LiveWorker,
    LostWorker,
    Route,
    RouteId,
    Seq,
    Sight,
    Term,
)
from holdfast.kernel.sql import Exec, Many, One, Statements


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
    look: One[Sight]
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
