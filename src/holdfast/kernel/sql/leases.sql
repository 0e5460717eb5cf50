-- Leases after the claim: their worker renews them, or a sweep expires them. No index contains lease_until, so a
-- renewal changes no index.

-- name: renew :many on postgres
-- Names every lease that it renews. A lease that has run out is never revived. If the clock leapt forward since the
-- last heartbeat of the worker, the leap does not count; if it went back, the end of the lease moves back with it.
-- Rows that somebody is ending are skipped. The worker is compared as a sum, so that only the primary key can find
-- the row: by the index of workers each probe would read all leases of the worker.
with held as materialized (
    select h.* from rows(:held) as h (seq bigint, worker bigint, epoch bigint, token bigint)
)
update holdfast.lease l
set lease_until = greatest(case when cast(:leap_us as bigint) < 0 then 0 else l.lease_until end,
    least(holdfast.now_us() + :ttl_us, l.claimed_at + :ceiling_us))
where l.seq = any(array(
    select k.seq from held h
    cross join lateral (
        select k.seq from holdfast.lease k where k.seq = h.seq and k.worker + 0 = h.worker
            and k.epoch = h.epoch and k.token = h.token
            and k.lease_until > holdfast.now_us() - greatest(cast(:leap_us as bigint), 0)
        for update skip locked
    ) as k
))
returning :columns(l);

-- name: renew :many on sqlite
-- Forked for the plan: with statistics SQLite would read all leases to find those of the list.
with h as materialized (
    select value ->> :held.seq as seq, value ->> :held.worker as worker,
        value ->> :held.epoch as epoch, value ->> :held.token as token
    from json_each(:held)
)
update holdfast.lease as l
set lease_until = max(case when cast(:leap_us as bigint) < 0 then 0 else l.lease_until end,
    min(holdfast.now_us() + :ttl_us, l.claimed_at + :ceiling_us))
from h
where l.seq = h.seq and l.worker = h.worker and l.epoch = h.epoch and l.token = h.token
    and l.lease_until > holdfast.now_us() - max(:leap_us, 0)
returning :columns;

-- part: lease_that_is_held
k.seq = h.seq and k.worker + 0 = h.worker and k.epoch = h.epoch and k.token = h.token
    and k.lease_until > holdfast.now_us() - greatest(cast(:leap_us as bigint), 0)

-- part: join_held_lease on postgres
cross join lateral (
    select k.seq from holdfast.lease k where @lease_that_is_held for update skip locked
) as k

-- part: join_held_lease on sqlite
-- SQLite has no lateral join.
cross join holdfast.lease k on @lease_that_is_held

-- name: renew_each :many
-- As `renew`, each lease for a time of its own, which the lease keeps: see `shorten_leases`. A holder that is not ours
-- does not end its attempts in time, so no renewal passes the time limit of the job.
with kept as materialized (
    select k.seq as held, h.ttl_us
    from rows(:renewals) as h (seq bigint, worker bigint, epoch bigint, token bigint, ttl_us bigint)
    @join_held_lease
)
update holdfast.lease as l
set lease_until = greatest(case when cast(:leap_us as bigint) < 0 then 0 else l.lease_until end,
    least(holdfast.now_us() + kept.ttl_us, l.claimed_at + :ceiling_us, l.claimed_at
        + coalesce((select j.timeout_us from holdfast.job j where j.seq = l.seq), :ceiling_us))),
    ttl_us = greatest(coalesce(l.ttl_us, 0), least(kept.ttl_us, l.claimed_at + :ceiling_us - holdfast.now_us()))
from kept where l.seq = kept.held
returning :columns;

-- name: held_tokens :many
-- Which of the leases that a renewal did not return still exist, and whose they are.
select :columns
from holdfast.lease where seq = any(cast(:seqs as bigint[]));

-- name: find_unnamed :many
-- What a worker has and does not name. The sum keeps the plan from walking through all leases in their order.
select l.seq, l.worker, l.epoch, l.token, l.parent from holdfast.lease l
where l.worker = (select w.seq from holdfast.worker w where w.seq = :worker and w.incarnation = :incarnation)
    and (l.seq, l.epoch, l.token) not in (
        select h.seq, h.epoch, h.token from rows(:held) as h (seq bigint, worker bigint, epoch bigint, token bigint))
order by l.seq + 0 limit :limit;

-- name: next_expiry :one
-- Reads all leases, so only the worker whose turn it is asks this.
select min(lease_until) as at from holdfast.lease;

-- name: find_lapsed :many
-- Only candidates: the statement that changes a row tests everything again. Oldest first, and bounded: after an
-- outage thousands of leases end at once, and one sweep must not rescue them all in one transaction. :until is the
-- last time of the store's clock that the caller trusts: the clock may leap between two statements.
select seq, parent from holdfast.lease
where (lease_until <= holdfast.now_us() and lease_until <= cast(:until as bigint))
    or worker = any(cast(:gone as bigint[]))
order by seq limit :limit;

-- name: expire :many on postgres
-- Compare-and-set on the expiry: a lease that was renewed since it was found stays, and one that ended has no row.
-- After its first loss a job goes back to `ready`; after later ones it waits, so that a job which kills its workers
-- cannot do so again at once. Where its queue or the caller (:charge) counts a loss as an attempt, there is one limit
-- for both, and no wait; nor is there one where somebody wants the job at once. At a limit this statement ends the job.
-- A loss that ends the job is its last attempt, and no rescue; it is recorded in `ended`, any other as an attempt.
with gone as (
    delete from holdfast.lease
    where seq = any(cast(:seqs as bigint[]))
        and (lease_until <= holdfast.now_us() or worker = any(cast(:gone as bigint[])))
    returning *
), lost as materialized (
    select g.seq, g.worker, g.epoch, g.token, g.claimed_at, g.route, g.rescues, g.kind, g.queue, g.parent, g.lane,
        g.cancel_requested_at, g.cancel_error, g.attempts, g.counts,
        j.id, j.slot, j.priority, j.max_rescues, case when j.lane is not null then j.cost end as cost, j.deadline_at,
        case when j.slot > 0 then j.tenant end as tenant, case
            when g.cancel_requested_at is not null then 'cancelled'
            when j.deadline_at <= holdfast.now_us() then 'deadline'
            when (select q.on_orphan from holdfast.queue q where q.name = g.queue) = 'fail' then 'orphan'
            when g.counts = 1 and g.attempts + 1 >= j.max_attempts then 'attempts'
            when g.counts = 0 and g.rescues >= j.max_rescues then 'rescues'
            when g.rescues = 0 or g.counts = 1 or cast(:at_once as integer) = 1 then 'pending'
            else 'scheduled' end as verdict
    from (select gone.*, greatest(cast(:charge as integer),
            coalesce((select q.lost_counts from holdfast.queue q where q.name = gone.queue), 0)) as counts
        from gone) as g
    cross join lateral (
        select k.id, k.slot, k.priority, k.lane, k.cost, k.deadline_at, k.tenant, k.max_attempts, k.max_rescues
        from holdfast.job k where k.seq = g.seq offset 0
    ) as j
), again as (
    insert into holdfast.ready (@ready)
    select route, slot, seq, token, priority, attempts + counts, least(rescues + 1, max_rescues), cost, deadline_at,
        lane, tenant
    from lost where verdict = 'pending'
), paused as (
    insert into holdfast.later (@ready, state, due_at)
    select route, slot, seq, token, priority, attempts, rescues + 1, cost, deadline_at, lane, tenant, verdict,
        holdfast.now_us() + (cast(:backoff_us as bigint) << (case when rescues > 12 then 12 else rescues - 1 end))
        * (750 + (seq * 7919 + cast(:jitter as bigint)) % 500) / 1000
    from lost where verdict = 'scheduled'
), logged as (
    insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at)
    select seq, epoch, token, worker, 'lost', claimed_at, holdfast.now_us()
    from lost where verdict in ('pending', 'scheduled')
), closed as (
    insert into holdfast.ended (seq, token, finished_at, worker, epoch, claimed_at, attempts, rescues, state, queue,
        outcome, lane, cancel_requested_at, error)
    select seq, token, holdfast.now_us(), worker, epoch, claimed_at, attempts + 1, rescues,
        case verdict when 'cancelled' then verdict else 'failed' end, queue, 'lost', lane, cancel_requested_at,
        case verdict
            when 'deadline' then :deadline_error
            when 'orphan' then :orphan_error
            when 'attempts' then :attempts_error
            when 'rescues' then :rescue_error
            else cancel_error end
    from lost where verdict not in ('pending', 'scheduled')
)
select seq, cast(id as text) as id,
    case when verdict in ('deadline', 'orphan', 'attempts', 'rescues') then 'failed' else verdict end as state,
    route, parent, lane, kind, case verdict
        when 'deadline' then cast(:deadline_error as text)
        when 'orphan' then cast(:orphan_error as text)
        when 'attempts' then cast(:attempts_error as text)
        when 'rescues' then cast(:rescue_error as text) end as error
from lost;

-- name: expire :many on sqlite
-- Forked: SQLite has no CTE that changes rows. First the jobs that end, then those that continue, and at last the
-- leases. The last statement returns where each job is now.
insert into holdfast.ended (seq, token, finished_at, worker, epoch, claimed_at, attempts, rescues, state, queue,
    outcome, lane, cancel_requested_at, error)
select seq, token, holdfast.now_us(), worker, epoch, claimed_at, attempts + 1, rescues,
    case verdict when 'cancelled' then verdict else 'failed' end, queue, 'lost', lane, cancel_requested_at,
    case verdict
        when 'deadline' then :deadline_error
        when 'orphan' then :orphan_error
        when 'attempts' then :attempts_error
        when 'rescues' then :rescue_error
        else cancel_error end
from (
    select l.*, case
        when l.cancel_requested_at is not null then 'cancelled'
        when j.deadline_at <= holdfast.now_us() then 'deadline'
        when (select q.on_orphan from holdfast.queue q where q.name = l.queue) = 'fail' then 'orphan'
        when l.counts = 1 and l.attempts + 1 >= j.max_attempts then 'attempts'
        when l.counts = 0 and l.rescues >= j.max_rescues then 'rescues' end as verdict
    from (select k.*, max(:charge, coalesce((select q.lost_counts from holdfast.queue q where q.name = k.queue), 0)) as counts
        from holdfast.lease k) as l cross join holdfast.job j on j.seq = l.seq
    where l.seq = any(:seqs) and (l.lease_until <= holdfast.now_us() or l.worker = any(:gone))
) as lost
where verdict is not null;
insert into holdfast.ready (@ready)
select l.route, j.slot, l.seq, l.token, j.priority, l.attempts + l.counts, min(l.rescues + 1, j.max_rescues),
    case when j.lane is not null then j.cost end, j.deadline_at, j.lane, case when j.slot > 0 then j.tenant end
from (select k.*, max(:charge, coalesce((select q.lost_counts from holdfast.queue q where q.name = k.queue), 0)) as counts
    from holdfast.lease k) as l cross join holdfast.job j on j.seq = l.seq
where l.seq = any(:seqs) and (l.lease_until <= holdfast.now_us() or l.worker = any(:gone))
    and (l.rescues = 0 or l.counts = 1 or :at_once = 1) and not exists (select 1 from holdfast.ended e where e.seq = l.seq);
insert into holdfast.later (@ready, state, due_at)
select l.route, j.slot, l.seq, l.token, j.priority, l.attempts, l.rescues + 1,
    case when j.lane is not null then j.cost end, j.deadline_at, j.lane, case when j.slot > 0 then j.tenant end,
    'scheduled', holdfast.now_us() + (:backoff_us << (case when l.rescues > 12 then 12 else l.rescues - 1 end))
    * (750 + (l.seq * 7919 + :jitter) % 500) / 1000
from holdfast.lease l cross join holdfast.job j on j.seq = l.seq
where l.seq = any(:seqs) and (l.lease_until <= holdfast.now_us() or l.worker = any(:gone))
    and not (l.rescues = 0 or :at_once = 1
        or max(:charge, coalesce((select q.lost_counts from holdfast.queue q where q.name = l.queue), 0)) = 1)
    and not exists (select 1 from holdfast.ended e where e.seq = l.seq);
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at)
select l.seq, l.epoch, l.token, l.worker, 'lost', l.claimed_at, holdfast.now_us() from holdfast.lease l
where l.seq = any(:seqs) and (l.lease_until <= holdfast.now_us() or l.worker = any(:gone))
    and not exists (select 1 from holdfast.ended e where e.seq = l.seq);
delete from holdfast.lease where seq = any(:seqs) and (lease_until <= holdfast.now_us() or worker = any(:gone))
returning seq, (select j.id from holdfast.job j where j.seq = lease.seq) as id,
    coalesce((select e.state from holdfast.ended e where e.seq = lease.seq),
        (select t.state from holdfast.later t where t.seq = lease.seq), 'pending') as state, route, parent, lane, kind,
    (select e.error from holdfast.ended e where e.seq = lease.seq and e.state = 'failed') as error;

-- name: shorten_leases :many
-- After the clock went back: no lease may end later than one that is given now, for the longest time that it was given
-- itself. Otherwise the death of its worker would be found that much later. Skips rows that somebody else is changing;
-- renewals do the same for what they renew.
update holdfast.lease set lease_until = holdfast.now_us() + greatest(:ttl_us, coalesce(ttl_us, 0),
    coalesce((select w.ttl_us from holdfast.worker w where w.seq = lease.worker), 0))
where seq = any(array(
    select k.seq from holdfast.lease k where k.lease_until > holdfast.now_us() + greatest(:ttl_us, coalesce(k.ttl_us, 0),
        coalesce((select w.ttl_us from holdfast.worker w where w.seq = k.worker), 0))
    order by k.seq limit :limit for update skip locked))
returning seq;
