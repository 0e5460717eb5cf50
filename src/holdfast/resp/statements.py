"""The SQL files of the gateway as Python sees them."""

from __future__ import annotations

from holdfast.kernel.flow_rows import QueueCount
from holdfast.kernel.sql import Exec, Many, One, Statements
from holdfast.resp.rows import (
    ActionCount,
    ActionJob,
    ActionPlace,
    ActionRow,
    Extent,
    HeldCount,
    HeldLease,
    Holder,
    JobCount,
    KeyCount,
    KeyName,
    LiveHolder,
    PartRow,
    PlanJobRow,
    PlanName,
    PlanRow,
    PlanUse,
    PublicName,
    QueueBacklog,
    QueueLength,
    QueuePlace,
    RecentJob,
    RespKeyRow,
    SilentHolder,
    StandingLease,
    TakenAway,
    ValueRow,
    WorkerEpoch,
)

_PACKAGE = "holdfast.resp.sql"


class KeysSql(Statements, file="keys.sql", package=_PACKAGE):
    add_key: One[RespKeyRow]
    find_keys: Many[RespKeyRow]
    list_keys: Many[RespKeyRow]
    revoke_key: One[RespKeyRow]


class KeyspaceSql(Statements, file="keyspace.sql", package=_PACKAGE):
    find_value: One[ValueRow]
    add_value: Exec
    lock_value: One[ValueRow]
    set_value: Exec
    set_expiry: Exec
    remove_value: Exec
    remove_parts: Exec
    list_keys: Many[ValueRow]
    count_keys: One[KeyCount]
    expired_keys: Many[KeyName]
    keys_in: Many[KeyName]
    find_part: One[PartRow]
    put_part: Exec
    remove_part: One[PartRow]
    list_parts: Many[PartRow]
    list_scores: Many[PartRow]
    measure_parts: One[Extent]


class PlansSql(Statements, file="plans.sql", package=_PACKAGE, types={"body": "json", "job": "uuid"}):
    add_plan: One[PlanRow]
    find_plan: One[PlanRow]
    lock_plan: One[PlanRow]
    list_plans: Many[PlanRow]
    remove_plan: Exec
    plan_use: One[PlanUse]
    add_action: One[ActionRow]
    find_action: One[ActionRow]
    list_actions: Many[ActionRow]
    add_plan_job: Exec
    find_plan_job: One[PlanJobRow]
    lock_plan_job: One[PlanJobRow]
    find_by_job: One[PlanJobRow]
    names_of_jobs: Many[PublicName]
    replace_job: Exec
    action_jobs: Many[ActionJob]
    find_by_jobs: Many[PlanJobRow]
    plan_ids: Many[PlanName]
    count_action_jobs: Many[ActionCount]
    recent_jobs: Many[PlanJobRow]
    recent_states: Many[RecentJob]
    actions_after: Many[ActionPlace]
    lock_action_jobs: Many[PlanJobRow]
    count_kept_jobs: One[JobCount]
    remove_action_jobs: Exec
    remove_action: Exec
    erase_jobs: Many[PlanName]
    erase_actions: Many[PlanName]
    erase_plans: Many[PlanName]


class HoldersSql(Statements, file="workers.sql", package=_PACKAGE):
    find_live: One[WorkerEpoch]
    lock_holders: Many[Holder]
    find_holders: Many[Holder]
    count_held: Many[HeldCount]
    live_holders: Many[LiveHolder]
    silent_holders: Many[SilentHolder]
    held_leases: Many[HeldLease]
    taken_away: Many[TakenAway]
    standing_leases: Many[StandingLease]
    queue_length: One[QueueLength]
    next_on_route: Many[QueuePlace]
    pending_of: Many[QueueBacklog]
    later_of: Many[QueueBacklog]
    running_of: Many[QueueCount]
