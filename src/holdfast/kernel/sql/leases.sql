-- Leases after the claim: renewed by their worker, or expired by whoever sweeps. No index contains lease_until,
-- so that a renewal changes no index.

-- name: renew :many on postgres
-- Names every lease it renews; a lease that has run out is never revived. Where the clock leapt forward since the worker
-- last beat, it has run out only beyond that; where it went back, the lease is brought back with it. Rows that someone
-- is ending are skipped, not waited for. The source state is a column so that the primary key finds each row: see
-- `complete`.
with held as materialized (
    select h.*, 'running' as source from unnest(
        cast(:held.seq as bigint[]), cast(:held.worker as bigint[]),
        cast(:held.epoch as bigint[]), cast(:held.token as bigint[])
    ) as h (seq, worker, epoch, token)
)
update holdfast.job j
set lease_until = greatest(case when cast(:leap_us as bigint) < 0 then 0 else j.lease_until end,
    least(holdfast.now_us() + :ttl_us, j.claimed_at + :ceiling_us))
from (
    select h.seq from held h
    cross join lateral (
        select k.seq from holdfast.job k where k.seq = h.seq and k.state = h.source and k.worker = h.worker
            and k.epoch = h.epoch and k.token = h.token
            and k.lease_until > holdfast.now_us() - greatest(cast(:leap_us as bigint), 0)
        for update skip locked
    ) as k
    order by h.seq
) as mine
where j.seq = mine.seq
returning j.seq, j.epoch, j.token, j.lease_until, j.cancel_requested_at;

-- name: renew :many on sqlite
-- No row locks to skip.
with h as materialized (
    select value ->> :held.seq as seq, value ->> :held.worker as worker,
        value ->> :held.epoch as epoch, value ->> :held.token as token, 'running' as source
    from json_each(:held)
)
update holdfast.job as j
set lease_until = max(case when cast(:leap_us as bigint) < 0 then 0 else j.lease_until end,
    min(holdfast.now_us() + :ttl_us, j.claimed_at + :ceiling_us))
from h
where j.seq = h.seq and j.state = h.source and j.worker = h.worker and j.epoch = h.epoch and j.token = h.token
    and j.lease_until > holdfast.now_us() - max(:leap_us, 0)
returning seq, epoch, token, lease_until, cancel_requested_at;

-- name: held_tokens :many
-- What became of leases that a renewal did not return.
select seq, state, epoch, token, lease_until, cancel_requested_at, holdfast.now_us() as now
from holdfast.job where seq = any(cast(:seqs as bigint[]));

-- name: next_expiry :one
-- Reads every job that runs, so only those ask whose turn it is. Not `exists`, which may be planned as a walk through
-- the table to a match that is not there.
select min(lease_until) as at from holdfast.job where state = 'running';

-- name: find_lapsed :many
-- Only candidates: everything is tested again in the statement that changes the row. Oldest first and bounded:
-- after an outage thousands of leases end at once, and one sweep must not rescue them all in one transaction.
-- :until is the last moment of the store's clock that the caller trusts: the clock may leap between two statements.
-- Materialized, so that the order cannot be had by walking the primary key past every job ever finished.
with lapsed as materialized (
    select seq, parent from holdfast.job
    where state = 'running' and ((lease_until <= holdfast.now_us() and lease_until <= cast(:until as bigint))
        or worker = any(cast(:gone as bigint[])))
)
select seq, parent from lapsed order by seq limit :limit;

-- name: try_lock_jobs :many on postgres
-- Skips what someone else is changing: if it is still lapsed, the next sweep finds it again.
select seq from holdfast.job where seq = any(cast(:seqs as bigint[])) order by seq for update skip locked;

-- name: try_lock_jobs :many on sqlite
-- The transaction holds the write lock already.
select seq from holdfast.job where seq = any(:seqs) order by seq;

-- name: record_lost :exec
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at)
select seq, epoch, token, worker, 'lost', claimed_at, holdfast.now_us() from holdfast.job
where seq = any(cast(:seqs as bigint[])) and state = 'running'
    and (lease_until <= holdfast.now_us() or worker = any(cast(:gone as bigint[])));

-- name: expire :many
-- Compare-and-set on state and expiry: a lease that was renewed or ended since it was found stays as it is.
-- The first loss goes straight back; later ones wait, so that a job which kills its workers cannot do so at once.
-- At a limit this statement itself ends the job. The source state is a column so that the primary key finds each
-- row: see `complete`.
with lost as materialized (
    select j.seq, 'running' as source, case
        when j.cancel_requested_at is not null then 'cancelled'
        when j.deadline_at <= holdfast.now_us() then 'deadline'
        when q.on_orphan = 'fail' then 'orphan'
        when j.rescues >= j.max_rescues then 'rescues'
        when j.rescues = 0 then 'pending'
        else 'scheduled' end as verdict
    from holdfast.job j left join holdfast.queue q on q.name = j.queue
    where j.seq = any(cast(:seqs as bigint[]))
)
update holdfast.job set
    state = case
        when lost.verdict in ('deadline', 'orphan', 'rescues') then 'failed' else lost.verdict end,
    error = case lost.verdict
        when 'deadline' then :deadline_error
        when 'orphan' then :orphan_error
        when 'rescues' then :rescue_error
        else error end,
    due_at = case when lost.verdict = 'scheduled' then holdfast.now_us()
        + (cast(:backoff_us as bigint) << (case when rescues > 12 then 12 else rescues - 1 end))
        * (750 + (job.seq * 7919 + cast(:jitter as bigint)) % 500) / 1000 end,
    finished_at = case when lost.verdict not in ('pending', 'scheduled') then holdfast.now_us() end,
    rescues = rescues + 1, worker = null, lease_until = null
from lost
where job.seq = any(cast(:seqs as bigint[])) and job.seq = lost.seq and state = lost.source
    and (lease_until <= holdfast.now_us() or worker = any(cast(:gone as bigint[])))
returning job.seq, cast(id as text) as id, state, route, parent, lane, kind;

-- name: shorten_leases :many on postgres
-- After the clock went back: no lease may end later than one that is given now, or its worker's death would be found
-- that much later. Skips what someone else is changing; renewals do the same for what they renew.
update holdfast.job j set lease_until = holdfast.now_us()
    + greatest(:ttl_us, coalesce((select w.ttl_us from holdfast.worker w where w.seq = j.worker), 0))
where j.seq = any(array(
    select k.seq from holdfast.job k where k.state = 'running' and k.lease_until > holdfast.now_us()
        + greatest(:ttl_us, coalesce((select w.ttl_us from holdfast.worker w where w.seq = k.worker), 0))
    order by k.seq limit :limit for update skip locked))
returning j.seq;

-- name: shorten_leases :many on sqlite
-- No row locks to skip. Materialized: see `find_lapsed`.
with far as materialized (
    select k.seq from holdfast.job k where k.state = 'running' and k.lease_until > holdfast.now_us()
        + max(:ttl_us, coalesce((select w.ttl_us from holdfast.worker w where w.seq = k.worker), 0))
)
update holdfast.job as j set lease_until = holdfast.now_us()
    + max(:ttl_us, coalesce((select w.ttl_us from holdfast.worker w where w.seq = j.worker), 0))
where j.seq in (select seq from far order by seq limit :limit)
returning seq;
