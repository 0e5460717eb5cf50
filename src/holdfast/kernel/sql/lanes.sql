-- Lanes: how many of their jobs run at once, and how often one starts. Jobs of lanes are on routes of their own, so that
-- all other jobs are claimed without asking. What a lane holds back has its name as its gate, and leaves the claim index.

-- name: candidates :many on postgres
-- The heads of these routes, shared out among the queues and locked as in `claim`: pick without locks, count what each
-- route may give, lock that many. The claim takes the first few of them, so they come in the order of that share: when
-- the n-th job of a queue to arrive has its turn among the queues, the n-th by place goes.
with served as materialized (
    select s.route from unnest(cast(:routes as bigint[])) as s (route)
    where coalesce((select r.queue from holdfast.route r where r.id = s.route), '') not in (
        select q.name from holdfast.queue q where q.paused_at is not null)
), pick as materialized (
    select p.route, p.queue, @arrival(p), row_number() over (partition by p.queue order by @place(p)) as place
    from served
    cross join lateral (
        select j.route, j.queue, @place(j) from holdfast.job j
        where j.route = served.route and j.state = 'pending' and j.gate is null
        order by @place(j) limit :n
    ) as p
), share as materialized (
    select f.queue, count(*) as n from (select queue from pick order by @arrival limit :n) as f group by f.queue
), quota as materialized (
    select p.route, count(*) as n from pick p join share s on s.queue = p.queue where p.place <= s.n group by p.route
), held as materialized (
    select h.queue, @place(h), h.lane, h.cost from quota
    cross join lateral (
        select j.queue, @place(j), j.lane, j.cost from holdfast.job j
        where j.route = quota.route and j.state = 'pending' and j.gate is null
        order by @place(j) limit quota.n for update skip locked
    ) as h
), head as materialized (
    select held.*, row_number() over (partition by queue order by @place) as place,
        row_number() over (partition by queue order by @arrival) as arrival
    from held
)
select h.seq, h.priority, h.slot, h.lane, h.cost from head h
join head a on a.queue = h.queue and a.arrival = h.place
order by @arrival(a);

-- name: candidates :many on sqlite
-- No row locks and no lateral: there is one writer, and it is us. What each queue may give is counted the same way.
with pick as materialized (
    select j.queue, @place(j), j.lane, j.cost, row_number() over (order by @arrival(j)) as arrival,
        row_number() over (partition by j.queue order by @place(j)) as place
    from json_each(:routes) as served
    cross join holdfast.job j on j.seq in (
        select k.seq from holdfast.job k
        where k.route = served.value and k.state = 'pending' and k.gate is null
        order by @place(k) limit :n)
    where coalesce((select r.queue from holdfast.route r where r.id = served.value), '') not in (
        select q.name from holdfast.queue q where q.paused_at is not null)
), share as materialized (
    select queue, count(*) as n from pick where arrival <= :n group by queue
), head as materialized (
    select p.queue, @place(p), p.lane, p.cost, p.place,
        row_number() over (partition by p.queue order by p.arrival) as arrival
    from pick p join share s on s.queue = p.queue where p.place <= s.n
)
select h.seq, h.priority, h.slot, h.lane, h.cost from head h
join head a on a.queue = h.queue and a.arrival = h.place
order by @arrival(a);

-- name: lock_lanes :many on postgres
-- After jobs, in the order of names. Whoever starts or ends a job of a lane holds its row until the commit, so that
-- counting the running ones is exact, in a statement of its own: this one's snapshot is older than its locks.
select name from holdfast.lane where name = any(cast(:names as text[])) order by name for update;

-- name: lock_lanes :many on sqlite
-- The transaction holds the write lock already.
select name from holdfast.lane where name = any(:names) order by name;

-- name: restore_lanes :exec on postgres
-- A job names its lane for as long as it is kept, and the lane's row is kept as long. Should the row be missing all the
-- same, nobody knows its limits. No concurrency is lower than one at a time; a rate may be slower than one start a
-- second, and is exceeded then, until the next call that makes a job writes down what is declared. See `UNKNOWN`.
insert into holdfast.lane (name, concurrency, interval_us, burst, updated_at, opens_at)
select name, 1, 1000000, 1, holdfast.now_us(), holdfast.now_us() from unnest(cast(:names as text[])) as missing (name)
order by name
on conflict (name) do nothing;

-- name: restore_lanes :exec on sqlite
-- Forked for the list: json_each where PostgreSQL has unnest.
insert into holdfast.lane (name, concurrency, interval_us, burst, updated_at, opens_at)
select value, 1, 1000000, 1, holdfast.now_us(), holdfast.now_us() from json_each(:names) where true
on conflict (name) do nothing;

-- name: due_lanes :many on postgres
-- Skips what someone else is opening.
select name from holdfast.lane where opens_at is not null and opens_at <= holdfast.now_us()
order by opens_at limit :limit for update skip locked;

-- name: due_lanes :many on sqlite
-- No row locks to skip.
select name from holdfast.lane where opens_at is not null and opens_at <= holdfast.now_us()
order by opens_at limit :limit;

-- name: lane_states :many
-- How many run is counted, not kept: a count cannot drift. It reads no more entries than the limit allows to run.
-- Where the clock has gone back since the lane was charged, what it was ahead of the clock then, it is now.
select name, concurrency, interval_us, burst,
    case when charged_at > holdfast.now_us() then holdfast.now_us() + free_at - charged_at else free_at end as free_at,
    (select count(*) from holdfast.job j where j.state = 'running' and j.lane = lane.name) as running,
    (select k.priority from holdfast.job k where k.state = 'pending' and k.gate = lane.name
        order by @place(k) limit 1) as first_priority,
    (select k.slot from holdfast.job k where k.state = 'pending' and k.gate = lane.name
        order by @place(k) limit 1) as first_slot,
    (select k.seq from holdfast.job k where k.state = 'pending' and k.gate = lane.name
        order by @place(k) limit 1) as first_seq,
    holdfast.now_us() as now
from holdfast.lane where name = any(cast(:names as text[])) order by name;

-- name: lock_blocked :many on postgres
-- The first blocked job of each lane that nobody is changing: one in somebody's open transaction keeps no place before
-- those that can run. It is locked, so that it stays the first until the commit.
select l.name, @place(first) from unnest(cast(:names as text[])) as l (name)
cross join lateral (
    select @place(k) from holdfast.job k where k.state = 'pending' and k.gate = l.name
    order by @place(k) limit 1 for update skip locked
) as first;

-- name: lock_blocked :many on sqlite
-- No row locks to skip.
select l.value as name, @place(first) from json_each(:names) as l
cross join holdfast.job first on first.seq = (
    select k.seq from holdfast.job k where k.state = 'pending' and k.gate = l.value order by @place(k) limit 1);

-- name: still_blocked :many
-- After `unblock`, in a statement of its own: whatever that one skipped is here. A gate is set under the lane's lock
-- only, so a lane that is not here has nobody blocked.
select name from holdfast.lane where name = any(cast(:names as text[]))
    and (select k.seq from holdfast.job k where k.state = 'pending' and k.gate = lane.name limit 1) is not null;

-- name: take :many
-- The jobs a claim has locked and its lanes have let through. The source state is a column so that the primary key
-- finds each row: see `complete`.
with source as materialized (select 'pending' as state)
update holdfast.job set state = 'running', token = token + 1, epoch = (select c.epoch from holdfast.cluster c),
    worker = :worker, claimed_at = holdfast.now_us(), lease_until = holdfast.now_us() + :ttl_us
from source
where seq = any(cast(:seqs as bigint[])) and job.state = source.state and gate is null
returning seq, cast(id as text) as id, kind, queue, tenant, priority, slot, worker, epoch, token, attempts, max_attempts,
    rescues, timeout_us, deadline_at, claimed_at, lease_until, created_at, parent, lane, payload, metadata;

-- name: block :exec
-- Those it has locked and must leave. The source state is a column: see `complete`.
with source as materialized (select 'pending' as state)
update holdfast.job set gate = lane from source
where seq = any(cast(:seqs as bigint[])) and job.state = source.state and gate is null;

-- name: unblock :many on postgres
-- The next of a lane that has room. Skips what someone else is changing: they may wait for this lane. What was skipped
-- is seen by `still_blocked`.
update holdfast.job set gate = null
where seq = any(array(
    select k.seq from holdfast.job k where k.state = 'pending' and k.gate = :name
    order by @place(k) limit :n for update skip locked))
returning seq, route;

-- name: unblock :many on sqlite
-- No row locks to skip.
update holdfast.job set gate = null
where seq in (
    select k.seq from holdfast.job k where k.state = 'pending' and k.gate = :name
    order by @place(k) limit :n)
returning seq, route;

-- name: charge :exec on postgres
update holdfast.lane set free_at = c.free_at, opens_at = c.opens_at, charged_at = c.charged_at
from unnest(cast(:charges.name as text[]), cast(:charges.free_at as bigint[]), cast(:charges.opens_at as bigint[]),
    cast(:charges.charged_at as bigint[])) as c (name, free_at, opens_at, charged_at)
where lane.name = c.name;

-- name: charge :exec on sqlite
-- Forked for the list: json_each where PostgreSQL has unnest.
update holdfast.lane set free_at = value ->> :charges.free_at, opens_at = value ->> :charges.opens_at,
    charged_at = value ->> :charges.charged_at
from json_each(:charges)
where lane.name = value ->> :charges.name;

-- name: mend_lanes :many on postgres
-- After the clock went back: what a lane was ahead of the clock when it was charged, it is now, and it is looked at
-- now. Skips what someone is charging: that mends it too.
update holdfast.lane set free_at = holdfast.now_us() + free_at - charged_at, charged_at = holdfast.now_us(),
    opens_at = case when opens_at is not null then holdfast.now_us() end
where name = any(array(
    select l.name from holdfast.lane l where l.charged_at > holdfast.now_us()
    order by l.name limit :limit for update skip locked))
returning name;

-- name: mend_lanes :many on sqlite
-- No row locks to skip.
update holdfast.lane set free_at = holdfast.now_us() + free_at - charged_at, charged_at = holdfast.now_us(),
    opens_at = case when opens_at is not null then holdfast.now_us() end
where name in (
    select l.name from holdfast.lane l where l.charged_at > holdfast.now_us() order by l.name limit :limit)
returning name;

-- name: open_stranded :exec
-- Lanes with blocked jobs that nobody is to look at: code of schema 5 leaves them so, or somebody removed the row. From
-- each blocked lane to the next by one probe of the index. What a missing row says: see `restore_lanes`.
with recursive blocked (gate) as (
    select (select j.gate from holdfast.job j where j.state = 'pending' and j.gate is not null order by j.gate limit 1)
    union all
    select (select j.gate from holdfast.job j where j.state = 'pending' and j.gate is not null and j.gate > blocked.gate
        order by j.gate limit 1)
    from blocked where blocked.gate is not null
)
insert into holdfast.lane (name, concurrency, interval_us, burst, updated_at, opens_at)
select gate, 1, 1000000, 1, holdfast.now_us(), holdfast.now_us() from blocked
where gate is not null and (select l.opens_at from holdfast.lane l where l.name = blocked.gate) is null
limit :limit
on conflict (name) do update set opens_at = excluded.opens_at where lane.opens_at is null;

-- name: old_lanes :many on postgres
-- Nobody has enqueued into them of late. Skips what someone else is changing. Whoever enqueues into one of these writes
-- it in the same statement, and waits for this lock.
select name, free_at > holdfast.now_us() or opens_at is not null
    or (select j.seq from holdfast.job j where j.state = 'running' and j.lane = lane.name limit 1) is not null
    or (select j.seq from holdfast.job j where j.state in ('scheduled', 'pending', 'waiting') and j.lane = lane.name
        limit 1) is not null
    or (select j.seq from holdfast.job j where j.finished_at is not null and j.lane is not null and j.lane = lane.name
        limit 1) is not null as used
from holdfast.lane where updated_at <= holdfast.now_us() - :age_us
order by updated_at, name limit :limit for update skip locked;

-- name: old_lanes :many on sqlite
-- No row locks to skip.
select name, free_at > holdfast.now_us() or opens_at is not null
    or (select j.seq from holdfast.job j where j.state = 'running' and j.lane = lane.name limit 1) is not null
    or (select j.seq from holdfast.job j where j.state in ('scheduled', 'pending', 'waiting') and j.lane = lane.name
        limit 1) is not null
    or (select j.seq from holdfast.job j where j.finished_at is not null and j.lane is not null and j.lane = lane.name
        limit 1) is not null as used
from holdfast.lane where updated_at <= holdfast.now_us() - :age_us
order by updated_at, name limit :limit;

-- name: keep_lanes :exec
-- They are looked at again after as long.
update holdfast.lane set updated_at = holdfast.now_us() where name = any(cast(:names as text[]));

-- name: prune_lanes :exec
delete from holdfast.lane where name = any(cast(:names as text[]));
