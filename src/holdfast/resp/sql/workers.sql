-- Workers behind connections: what each holds, and what waits where.

-- name: find_live :one
-- The live epoch of a worker; there is at most one, by an index. Its number may be given out again after a failover to a
-- standby that has lost the registration; its incarnation never is.
select seq, incarnation, capabilities, holdfast.now_us() as now,
    (select count(*) from holdfast.lease l where l.worker = worker.seq) as leases
from holdfast.worker
where id = :id and status in ('active', 'draining') and host = 0 and heartbeat_at + ttl_us > holdfast.now_us();

-- name: lock_holders :many
-- Those of these who may take something. Their rows are locked, so that two servers cannot both give out the last place of
-- a worker. What each holds is counted by a statement of its own, which sees all that was taken before the lock. A row that
-- somebody else holds is left out: those who wait for jobs beside it do not wait for it.
select w.seq, w.incarnation, w.slots, w.heartbeat_at + w.ttl_us - holdfast.now_us() as left_us
from holdfast.worker w
where w.seq = any(cast(:workers as bigint[])) and w.status = 'active' and w.heartbeat_at + w.ttl_us > holdfast.now_us()
order by w.seq for update skip locked;

-- name: find_holders :many
-- As `lock_holders`, without the locks.
select w.seq, w.incarnation, w.slots, w.heartbeat_at + w.ttl_us - holdfast.now_us() as left_us
from holdfast.worker w
where w.seq = any(cast(:workers as bigint[])) and w.status = 'active' and w.heartbeat_at + w.ttl_us > holdfast.now_us()
order by w.seq;

-- name: count_held :many
select l.worker, count(*) as leases from holdfast.lease l where l.worker = any(cast(:workers as bigint[]))
group by l.worker;

-- name: live_holders :many
-- Those of these who are alive, and what they have told about themselves if somebody asks for it: it may be long.
select w.seq, w.incarnation, case when w.seq = any(cast(:told as bigint[])) then w.metadata end as metadata,
    holdfast.now_us() as now, w.heartbeat_at + w.ttl_us - holdfast.now_us() as left_us
from holdfast.worker w
where w.seq = any(cast(:workers as bigint[])) and w.status in ('active', 'draining')
    and w.heartbeat_at + w.ttl_us > holdfast.now_us();

-- name: silent_holders :many
-- Registered workers that hold something although their time is over: no call of theirs is taken any more, so nobody
-- can end what they hold. Also those that were given up while somebody else had locked a job of theirs. For :until see
-- `find_lapsed`.
select w.seq, w.status, w.heartbeat_at
from (select distinct l.worker from holdfast.lease l) as h join holdfast.worker w on w.seq = h.worker
where w.host = 0 and w.metadata ->> 'registration' is not null and (w.status not in ('active', 'draining')
    or (w.heartbeat_at + w.ttl_us <= holdfast.now_us() and w.heartbeat_at + w.ttl_us <= cast(:until as bigint)))
order by w.seq;

-- name: held_leases :many
-- What these hold, and what they have reported about it.
select l.seq, l.worker, l.epoch, l.token, cast(j.id as text) as id, l.attempts, l.rescues, l.claimed_at, j.timeout_us,
    holdfast.now_us() as now, (select p.value from holdfast.progress p where p.job = l.seq) as progress
from holdfast.lease l join holdfast.job j on j.seq = l.seq
where l.worker = any(cast(:workers as bigint[]))
order by l.seq;

-- name: taken_away :many
-- The attempts at these jobs that were lost because they took longer than their jobs may.
select a.job as seq, a.worker, a.epoch, a.token, cast(j.id as text) as id
from holdfast.attempt_now a join holdfast.job j on j.seq = a.job
where a.job = any(cast(:seqs as bigint[])) and a.outcome = 'lost' and a.ended_at - a.started_at >= j.timeout_us
order by a.job, a.started_at;

-- name: standing_leases :many
-- Those of these leases that hold, and whose holders are alive, with what was reported about them.
select l.seq, l.worker, l.epoch, l.token, w.incarnation,
    (select p.value from holdfast.progress p where p.job = l.seq) as progress
from holdfast.lease l join holdfast.worker w on w.seq = l.worker
where l.seq = any(cast(:seqs as bigint[])) and l.lease_until > holdfast.now_us() and w.status in ('active', 'draining')
    and w.heartbeat_at + w.ttl_us > holdfast.now_us();

-- name: queue_length :one
-- What a tenant has in a queue to be popped. No more jobs are looked at than is asked for.
select count(*) as jobs from (
    select k.seq from holdfast.ready k where k.route in (select r.id from holdfast.route r where r.queue = :queue)
    limit :most
) as waiting
where (select j.tenant from holdfast.job j where j.seq = waiting.seq) = :tenant;

-- name: next_on_route :many
-- What a tenant has on a route, in the order in which it is popped. No more jobs are looked at than is asked for: those
-- before it may be of others.
select waiting.priority, waiting.slot, waiting.seq from (
    select k.priority, k.slot, k.seq from holdfast.ready k where k.route = :route
    order by k.priority, k.slot, k.seq limit :look
) as waiting
where (select j.tenant from holdfast.job j where j.seq = waiting.seq) = :tenant
order by waiting.priority, waiting.slot, waiting.seq limit :most;

-- name: pending_of :many
-- What a tenant has waiting on each route, among so many of the route.
select r.id as route, r.queue, (select count(*) from (select k.seq from holdfast.ready k where k.route = r.id limit :cap)
    as c where (select j.tenant from holdfast.job j where j.seq = c.seq) = :tenant) as jobs
from holdfast.route r;

-- name: later_of :many
select r.id as route, r.queue, (select count(*) from (select t.seq from holdfast.later t
        where t.route = r.id and t.state in ('scheduled', 'waiting') limit :cap)
    as c where (select j.tenant from holdfast.job j where j.seq = c.seq) = :tenant) as jobs
from holdfast.route r;

-- name: running_of :many
select l.queue, count(*) as jobs from holdfast.lease l join holdfast.job j on j.seq = l.seq
where j.tenant = :tenant group by l.queue;
