-- Cancel: one job, its family, or many jobs.

-- name: find_cancellable :one
select seq, parent from holdfast.job where id = :id;

-- name: cancel :many on postgres
-- For jobs that do not run: they end at once, under a new token. All are locked, so none moves between these tables.
-- Every plan finds each of them by a probe.
with unclaimed as materialized (
    select j.seq, j.id, j.route, j.parent, j.lane, j.kind, j.queue, r.spot, r.token, r.attempts, r.rescues
    from holdfast.job j cross join lateral (
        select k.ctid as spot, k.token, k.attempts, k.rescues from holdfast.ready k
        where k.route = j.route and k.priority = j.priority and k.slot = j.slot and k.seq = j.seq
        for update
    ) as r
    where j.seq = any(cast(:seqs as bigint[]))
), unwoken as materialized (
    select j.seq, j.id, j.route, j.parent, j.lane, j.kind, j.queue, t.token, t.attempts, t.rescues
    from holdfast.job j cross join lateral (
        select k.token, k.attempts, k.rescues from holdfast.later k where k.seq = j.seq for update
    ) as t
    where j.seq = any(cast(:seqs as bigint[]))
), idle as materialized (
    select seq, id, route, parent, lane, kind, queue, token, attempts, rescues from unclaimed
    union all
    select seq, id, route, parent, lane, kind, queue, token, attempts, rescues from unwoken
), from_ready as (
    delete from holdfast.ready where ctid = any(array(select spot from unclaimed))
), from_later as (
    delete from holdfast.later where seq = any(array(select seq from unwoken))
), cancelled as (
    insert into holdfast.ended
        (seq, token, finished_at, attempts, rescues, state, queue, lane, cancel_requested_at, error)
    select seq, token + 1, holdfast.now_us(), attempts, rescues, 'cancelled', queue, lane, holdfast.now_us(),
        cast(:error as json)
    from idle
)
select seq, cast(id as text) as id, 'cancelled' as state, route, parent, lane, kind from idle;

-- name: cancel :many on sqlite
-- Forked: SQLite has no CTE that changes rows. Rows of `ready` go through `later`, so that the last statement
-- returns all jobs.
insert into holdfast.later (@ready, state)
select @ready(r), 'waiting' from holdfast.job j cross join holdfast.ready r
    on r.route = j.route and r.priority = j.priority and r.slot = j.slot and r.seq = j.seq
where j.seq = any(:seqs);
delete from holdfast.ready where (route, priority, slot, seq) in (
    select j.route, j.priority, j.slot, j.seq from holdfast.job j where j.seq = any(:seqs));
insert into holdfast.ended (seq, token, finished_at, attempts, rescues, state, queue, lane, cancel_requested_at, error)
select t.seq, t.token + 1, holdfast.now_us(), t.attempts, t.rescues, 'cancelled', j.queue, j.lane, holdfast.now_us(),
    :error
from holdfast.later t cross join holdfast.job j on j.seq = t.seq
where t.seq = any(:seqs);
delete from holdfast.later where seq = any(:seqs)
returning seq, (select j.id from holdfast.job j where j.seq = later.seq) as id, 'cancelled' as state, route,
    (select j.parent from holdfast.job j where j.seq = later.seq) as parent, lane,
    (select j.kind from holdfast.job j where j.seq = later.seq) as kind;

-- name: request_cancel :many
-- For running jobs: a hint and the next renewal tell the worker, which ends the job. If the worker dies, the sweep
-- ends it.
update holdfast.lease set cancel_requested_at = holdfast.now_us(), cancel_error = :error
where seq = any(cast(:seqs as bigint[])) and cancel_requested_at is null
returning seq, worker;

-- name: open_cancellation :exec
-- Also if no child is open: an ended child may have open children of its own. Looks for the first child, not
-- `exists`, which may be planned as a walk through all children.
insert into holdfast.cancellation (job, reason, requested_at)
select seq, :reason, holdfast.now_us() from holdfast.job
where seq = any(cast(:seqs as bigint[]))
    and (select c.parent from holdfast.job c where c.parent = job.seq limit 1) is not null
on conflict (job) do nothing;

-- name: cancellable_ready :many
-- By the routes, as claims read them. The row of the job itself says what it is.
select k.seq from holdfast.ready k
where k.route = any(cast(:routes as bigint[])) and k.seq <= :upto
    and (select j.seq from holdfast.job j where j.seq = k.seq and j.kind <> all(cast(:kept as text[]))
        and (cast(:kind as text) is null or j.kind = :kind)
        and (cast(:tenant as text) is null or j.tenant = :tenant)) is not null
limit :limit;

-- name: cancellable_later :many
-- `+ 0` keeps the plan from reading the primary key, which has the jobs of all routes.
select k.seq from holdfast.later k
where k.route = any(cast(:routes as bigint[])) and k.state = any(cast(:states as text[])) and k.seq + 0 <= :upto
    and (select j.seq from holdfast.job j where j.seq = k.seq and j.kind <> all(cast(:kept as text[]))
        and (cast(:kind as text) is null or j.kind = :kind)
        and (cast(:tenant as text) is null or j.tenant = :tenant)) is not null
limit :limit;

-- name: cancellable_running :many
-- Skips jobs that were already asked to stop. The number of running jobs is bounded by the slots of all workers.
select l.seq from holdfast.lease l
where l.cancel_requested_at is null and l.route = any(cast(:routes as bigint[])) and l.seq <= :upto
    and l.kind <> all(cast(:kept as text[])) and (cast(:kind as text) is null or l.kind = :kind)
    and (cast(:tenant as text) is null or (select j.tenant from holdfast.job j where j.seq = l.seq) = :tenant)
limit :limit;

-- name: next_cancellations :many
select job, reason from holdfast.cancellation order by job limit :limit for update skip locked;

-- name: cancellable_children :many
-- Children that have not ended and were not asked to stop yet: a probe each, because `not exists` may be planned as
-- a join.
select j.seq, j.parent from holdfast.job j
where j.parent = any(cast(:parents as bigint[]))
    and (select e.seq from holdfast.ended e where e.seq = j.seq) is null
    and (select l.cancel_requested_at from holdfast.lease l where l.seq = j.seq) is null
order by j.seq limit :limit;

-- name: pass_cancellation :exec
-- A child that has ended is not cancelled, but passes the cancel on to its own children.
insert into holdfast.cancellation (job, reason, requested_at)
select j.seq, :reason, holdfast.now_us() from holdfast.job j
where j.parent = any(cast(:parents as bigint[]))
    and (select e.seq from holdfast.ended e where e.seq = j.seq) is not null
    and (select c.parent from holdfast.job c where c.parent = j.seq limit 1) is not null
on conflict (job) do nothing;

-- name: close_cancellation :exec
delete from holdfast.cancellation where job = any(cast(:jobs as bigint[]));
