-- What goes on in the store, for people who watch it. Every statement is bounded by what it looks at, not by what it
-- finds, so that a view may stay open beside a full backlog and a long history.

-- name: created_since :many
select seq, cast(id as text) as id, kind, queue, state, coalesce(finished_at, claimed_at, created_at) as at, error
from holdfast.job where seq > :after order by seq desc limit :limit;

-- name: claimed_since :many
select seq, cast(id as text) as id, kind, queue, state, claimed_at as at, error
from holdfast.job where state = 'running' and claimed_at > :after order by claimed_at desc limit :limit;

-- name: ended_since :many
-- Of the last that ended in a queue, those in one state, or all.
select seq, cast(id as text) as id, kind, queue, state, at, error
from (select seq, id, kind, queue, state, finished_at as at, error from holdfast.job j
    where j.queue = :queue and j.finished_at is not null and j.finished_at > :after
    order by j.queue, j.finished_at desc limit :look) as ended
where cast(:state as text) is null or state = :state
order by at desc limit :limit;

-- name: states_of :many
select seq, cast(id as text) as id, kind, queue, state, coalesce(finished_at, claimed_at, created_at) as at, error
from holdfast.job where seq = any(cast(:seqs as bigint[]));

-- name: held_by :many
select seq, cast(id as text) as id, kind, queue, state, claimed_at as at, error
from holdfast.job where state = 'running' and worker = :worker order by claimed_at limit :limit;

-- name: count_ended :many
-- How many ended in each queue between two moments.
select q.name as queue, (select count(*) from (select 1 from holdfast.job j
    where j.queue = q.name and j.finished_at is not null and j.finished_at > :after and j.finished_at <= :until
    limit :cap) as c) as jobs
from (select name from holdfast.queue union select queue from holdfast.route) as q;

-- name: backlogs :many
-- What waits to be claimed on each route, and since when: the oldest of as many as are counted.
select r.id, r.queue, r.capabilities,
    (select count(*) from (select 1 from holdfast.job j
        where j.route = r.id and j.state = 'pending' and j.gate is null limit :cap) as c) as pending,
    (select min(o.created_at) from (select j.created_at from holdfast.job j
        where j.route = r.id and j.state = 'pending' and j.gate is null limit :cap) as o) as oldest_at
from holdfast.route r order by r.queue, r.id;

-- name: symptoms :one
-- What somebody should have dealt with by now, were workers there and well.
select (select count(*) from holdfast.job where state = 'running' and lease_until <= holdfast.now_us() - :grace_us)
        as lapsed,
    (select count(*) from (select 1 from holdfast.job j where j.state in ('scheduled', 'waiting')
        and j.due_at is not null and j.due_at <= holdfast.now_us() - :grace_us limit :cap) as c) as overdue,
    (select count(*) from holdfast.lane where opens_at is not null and opens_at <= holdfast.now_us() - :grace_us)
        as late_lanes,
    (select count(*) from holdfast.schedule where paused_at is null and retry_at is null
        and next_at <= holdfast.now_us() - :grace_us) as late_schedules,
    holdfast.now_us() as now;

-- name: stranded_lanes :many
-- Lanes that have room and blocked jobs, and nobody is to look at them. From each blocked lane to the next by one probe
-- of the index.
with recursive blocked (gate) as (
    select (select j.gate from holdfast.job j where j.state = 'pending' and j.gate is not null order by j.gate limit 1)
    union all
    select (select j.gate from holdfast.job j where j.state = 'pending' and j.gate is not null and j.gate > blocked.gate
        order by j.gate limit 1)
    from blocked where blocked.gate is not null
)
select b.gate as name from blocked b left join holdfast.lane l on l.name = b.gate
where b.gate is not null and l.opens_at is null and (l.concurrency is null or l.concurrency >
    (select count(*) from holdfast.job j where j.state = 'running' and j.lane = b.gate))
order by b.gate limit :limit;

-- name: missing_lanes :many
-- Lanes that live jobs name and that have no row, found in the same way.
with recursive named (lane) as (
    select (select j.lane from holdfast.job j where j.state in ('scheduled', 'pending', 'waiting')
        and j.lane is not null order by j.lane limit 1)
    union all
    select (select j.lane from holdfast.job j where j.state in ('scheduled', 'pending', 'waiting')
        and j.lane is not null and j.lane > named.lane order by j.lane limit 1)
    from named where named.lane is not null
)
select n.lane as name from named n left join holdfast.lane l on l.name = n.lane
where n.lane is not null and l.name is null
order by n.lane limit :limit;
