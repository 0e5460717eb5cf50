-- What happens in the store, for people who watch it. Every statement is bounded by what it reads, not by what it
-- finds, so a view may stay open beside a full backlog and a long history.

-- name: created_since :many
select seq, cast(id as text) as id, kind, queue, state, coalesce(finished_at, claimed_at, created_at) as at, error
from holdfast.job_now where seq > :after order by seq desc limit :limit;

-- name: claimed_since :many
-- The error of a running job is the reason of its cancel, or the error of its last failed attempt, as in `job_now`.
select l.seq, (select cast(j.id as text) from holdfast.job j where j.seq = l.seq) as id, l.kind, l.queue,
    'running' as state, l.claimed_at as at, coalesce(l.cancel_error, (select a.error from holdfast.attempt a
        where a.job = l.seq and a.error is not null order by a.epoch desc, a.token desc limit 1)) as error
from (select * from holdfast.lease k where k.claimed_at > :after order by k.claimed_at desc limit :limit) as l
order by l.claimed_at desc;

-- name: ended_since :many
-- The last jobs that ended in a queue, in one state or in any.
select e.seq, (select cast(j.id as text) from holdfast.job j where j.seq = e.seq) as id,
    (select j.kind from holdfast.job j where j.seq = e.seq) as kind, e.queue, e.state, e.finished_at as at, e.error
from (select k.seq, k.queue, k.state, k.finished_at, k.error from (
        select * from holdfast.ended n where n.queue = :queue and n.finished_at > :after
        order by n.queue, n.finished_at desc limit :look) as k
    where cast(:state as text) is null or k.state = :state
    order by k.finished_at desc limit :limit) as e
order by e.finished_at desc;

-- name: states_of :many
select seq, cast(id as text) as id, kind, queue, state, coalesce(finished_at, claimed_at, created_at) as at, error
from holdfast.job_now where seq = any(cast(:seqs as bigint[]));

-- name: held_by :many
select l.seq, (select cast(j.id as text) from holdfast.job j where j.seq = l.seq) as id, l.kind, l.queue,
    'running' as state, l.claimed_at as at, coalesce(l.cancel_error, (select a.error from holdfast.attempt a
        where a.job = l.seq and a.error is not null order by a.epoch desc, a.token desc limit 1)) as error
from (select * from holdfast.lease k where k.worker = :worker order by k.claimed_at limit :limit) as l
order by l.claimed_at;

-- name: count_ended :many
-- How many jobs ended in each queue between two times.
select q.name as queue, (select count(*) from (select 1 from holdfast.ended e
    where e.queue = q.name and e.finished_at > :after and e.finished_at <= :until limit :cap) as c) as jobs
from (select name from holdfast.queue union select queue from holdfast.route) as q;

-- name: backlogs :many
-- How many jobs wait to be claimed on each route, and since when: the oldest of those that were counted.
select r.id, r.queue, r.capabilities,
    (select count(*) from (select 1 from holdfast.ready k where k.route = r.id limit :cap) as c) as pending,
    (select j.created_at from holdfast.job j where j.seq = (select min(o.seq) from (
        select k.seq from holdfast.ready k where k.route = r.id limit :cap) as o)) as oldest_at
from holdfast.route r order by r.queue, r.id;

-- name: symptoms :one
-- What workers should have done by now if they were running well.
select (select count(*) from holdfast.lease where lease_until <= holdfast.now_us() - :grace_us) as lapsed,
    (select count(*) from (select 1 from holdfast.later t where t.due_at is not null
        and t.due_at <= holdfast.now_us() - :grace_us limit :cap) as c) as overdue,
    (select count(*) from holdfast.lane where opens_at is not null and opens_at <= holdfast.now_us() - :grace_us)
        as late_lanes,
    (select count(*) from holdfast.schedule where paused_at is null and retry_at is null
        and next_at <= holdfast.now_us() - :grace_us) as late_schedules,
    holdfast.now_us() as now;

-- name: stranded_lanes :many
-- Lanes with room and blocked jobs that nothing will open. Goes from each blocked lane to the next by one index
-- probe.
with recursive blocked (lane) as (
    select (select t.lane from holdfast.later t where t.state = 'blocked' order by t.lane limit 1)
    union all
    select (select t.lane from holdfast.later t where t.state = 'blocked' and t.lane > blocked.lane
        order by t.lane limit 1)
    from blocked where blocked.lane is not null
)
select b.lane as name from blocked b left join holdfast.lane l on l.name = b.lane
where b.lane is not null and l.opens_at is null
    and (select n.id from holdfast.lane_note n where n.lane = b.lane limit 1) is null and (l.concurrency is null or l.concurrency >
    (select count(*) from holdfast.lease k where k.lane = b.lane))
order by b.lane limit :limit;

-- name: missing_lanes :many
-- Lanes without a row that jobs name which do not run yet. Found in the same way, table by table.
with recursive claimable (lane) as (
    select (select r.lane from holdfast.ready r where r.lane is not null order by r.lane limit 1)
    union all
    select (select r.lane from holdfast.ready r where r.lane is not null and r.lane > claimable.lane
        order by r.lane limit 1)
    from claimable where claimable.lane is not null
), unclaimable (lane) as (
    select (select t.lane from holdfast.later t where t.lane is not null order by t.lane limit 1)
    union all
    select (select t.lane from holdfast.later t where t.lane is not null and t.lane > unclaimable.lane
        order by t.lane limit 1)
    from unclaimable where unclaimable.lane is not null
)
select n.lane as name from (select lane from claimable union select lane from unclaimable) as n
left join holdfast.lane l on l.name = n.lane
where n.lane is not null and l.name is null
    and (select k.id from holdfast.lane_note k where k.lane = n.lane limit 1) is null
order by n.lane limit :limit;

-- name: misplaced :many
-- Of the newest jobs, and of some jobs of every table: those that are not in exactly one of ready, later, lease and
-- ended, rows there whose job is missing, and rows of ready and later that name another place than their job. One
-- statement sees one moment, so a job that moves is seen once. No index finds a row of `ready` by its job alone, so
-- such a row is looked for among those that are read anyway. A subquery, not a join, which may read every job.
with claimable (seq, route, priority, slot, lane) as (
    select r.seq, r.route, r.priority, r.slot, r.lane from holdfast.ready r limit :limit
), unclaimable (seq, route, priority, slot, lane) as (
    select t.seq, t.route, t.priority, t.slot, t.lane from holdfast.later t limit :limit
), astray (seq, uncounted) as (
    select n.seq, case when n.differs = 2 then n.claimable else 0 end
    from (select c.seq, c.claimable, (select case
            when c.route <> j.route or c.priority <> j.priority or c.slot <> j.slot then 2
            when coalesce(c.lane, '') <> coalesce(j.lane, '') then 1 end
            from holdfast.job j where j.seq = c.seq) as differs
        from (select r.*, 1 as claimable from claimable r union all select u.*, 0 from unclaimable u) as c) as n
    where n.differs is not null
), looked (seq) as (
    select n.seq from (select j.seq from holdfast.job j order by j.seq desc limit :limit) as n
    union select c.seq from claimable c
    union select u.seq from unclaimable u
    union select n.seq from (select l.seq from holdfast.lease l limit :limit) as n
    union select n.seq from (select e.seq from holdfast.ended e order by e.seq desc limit :limit) as n
)
select f.seq, f.id, f.places, f.astray
from (select s.seq, (select cast(j.id as text) from holdfast.job j where j.seq = s.seq) as id,
    (select count(*) from holdfast.job j join holdfast.ready r on r.route = j.route and r.priority = j.priority
        and r.slot = j.slot and r.seq = j.seq where j.seq = s.seq)
    + (select count(*) from astray a where a.seq = s.seq and a.uncounted = 1)
    + (select count(*) from holdfast.later t where t.seq = s.seq)
    + (select count(*) from holdfast.lease l where l.seq = s.seq)
    + (select count(*) from holdfast.ended e where e.seq = s.seq) as places,
    (select count(*) from astray a where a.seq = s.seq) as astray
    from looked s) as f
where f.id is null or f.places <> 1 or f.astray <> 0
order by f.seq limit :limit;

-- name: latencies :one
-- How long the last jobs of a queue waited for their first claim, and how long their last attempt took. Of those that
-- ended since a time, and of those only the newest.
with looked as (
    select e.token, e.claimed_at, e.finished_at,
        (select j.created_at from holdfast.job j where j.seq = e.seq) as created_at
    from (select n.seq, n.token, n.claimed_at, n.finished_at from holdfast.ended n
        where n.queue = :queue and n.finished_at > holdfast.now_us() - :since_us
        order by n.queue, n.finished_at desc limit :look) as e
    where e.claimed_at is not null
), waited as (
    select k.us, row_number() over (order by k.us) as n, count(*) over () as total
    from (select claimed_at - created_at as us from looked where token = 1 and created_at is not null) as k
), ran as (
    select k.us, row_number() over (order by k.us) as n, count(*) over () as total
    from (select finished_at - claimed_at as us from looked) as k
)
select (select max(us) from waited where n <= (total * 50 + 99) / 100) as wait_p50,
    (select max(us) from waited where n <= (total * 95 + 99) / 100) as wait_p95,
    (select max(us) from waited where n <= (total * 99 + 99) / 100) as wait_p99,
    (select max(us) from ran where n <= (total * 50 + 99) / 100) as duration_p50,
    (select max(us) from ran where n <= (total * 95 + 99) / 100) as duration_p95,
    (select max(us) from ran where n <= (total * 99 + 99) / 100) as duration_p99;

-- name: retried_most :many
-- Kinds of jobs by how many attempts failed or were lost and were tried again since a time, among the last attempts of
-- the newest jobs. The primary key has them in this order.
select k.kind, k.retries, k.jobs, k.last_at,
    (select cast(j.id as text) from holdfast.job j where j.seq = k.last_job) as last_id,
    (select a.error from holdfast.attempt a where a.job = k.last_job and a.outcome in ('retried', 'lost')
        order by a.job, a.epoch desc, a.token desc limit 1) as error
from (select f.kind, count(*) as retries, count(distinct f.job) as jobs, max(f.ended_at) as last_at, max(f.job) as last_job
    from (select looked.job, looked.ended_at, (select j.kind from holdfast.job j where j.seq = looked.job) as kind,
            (select j.tenant from holdfast.job j where j.seq = looked.job) as tenant
        from (select n.job, n.ended_at, n.outcome from holdfast.attempt n
            order by n.job desc, n.epoch desc, n.token desc limit :look) as looked
        where looked.outcome in ('retried', 'lost') and looked.ended_at >= :since) as f
    where f.kind is not null and (cast(:kind as text) is null or f.kind = :kind)
        and (cast(:tenant as text) is null or f.tenant = :tenant)
    group by f.kind) as k
order by k.retries desc, k.kind limit :limit;
