-- Lanes limit how many of their jobs run at once and how often one starts. Jobs of lanes have routes of their own,
-- so that a claim of other jobs does not ask about lanes. The jobs that a lane holds back are 'blocked' in `later`,
-- where no claim reads them.

-- name: candidates :many on postgres
-- The first jobs of these routes, shared among the queues and locked as in `claim`: pick without locks, count how
-- many each route may give, lock that many. The claim takes the first few of them. So their order is the order of
-- the shares: the n-th job of a queue by arrival decides when the queue has its turn, and the n-th by place takes
-- that turn.
with served as materialized (
    select s.route, coalesce((select r.queue from holdfast.route r where r.id = s.route), '') as queue
    from rows(:routes) as s (route bigint)
), pick as materialized (
    select s.route, s.queue, @arrival(p), row_number() over (partition by s.queue order by @place(p)) as place
    from served s
    cross join lateral (
        select @place(r) from holdfast.ready r where r.route = s.route order by @place(r) limit :n
    ) as p
    where s.queue not in (select q.name from holdfast.queue q where q.paused_at is not null)
), share as materialized (
    select f.queue, count(*) as n from (select queue from pick order by @arrival limit :n) as f group by f.queue
), quota as materialized (
    select p.route, p.queue, count(*) as n from pick p join share s on s.queue = p.queue where p.place <= s.n
    group by p.route, p.queue
), held as materialized (
    select quota.queue, @place(h), h.lane, h.cost from quota
    cross join lateral (
        select @place(r), r.lane, r.cost from holdfast.ready r where r.route = quota.route
        order by @place(r) limit quota.n for update skip locked
    ) as h
), head as materialized (
    select held.*, row_number() over (partition by queue order by @place) as place,
        row_number() over (partition by queue order by @arrival) as arrival
    from held
)
select :columns(h) from head h
join head a on a.queue = h.queue and a.arrival = h.place
order by @arrival(a);

-- name: candidates :many on sqlite
-- Forked: SQLite has no lateral join, and it needs no row locks, because it has one writer. The first rows of each
-- route come as a list: a second look into `ready` might be planned as a search through all rows of the route. The
-- share of each queue is counted in the same way.
with served as materialized (
    select value as route, coalesce((select r.queue from holdfast.route r where r.id = value), '') as queue
    from json_each(:routes)
), found as materialized (
    select s.queue, f.value ->> 0 as priority, f.value ->> 1 as slot, f.value ->> 2 as seq, f.value ->> 3 as lane,
        f.value ->> 4 as cost
    from served s
    cross join json_each((
        select json_group_array(json_array(@place(first), first.lane, first.cost)) from (
            select @place(r), r.lane, r.cost from holdfast.ready r where r.route = s.route order by @place(r) limit :n
        ) as first
    )) as f
    where s.queue not in (select q.name from holdfast.queue q where q.paused_at is not null)
), pick as materialized (
    select found.*, row_number() over (order by @arrival) as arrival,
        row_number() over (partition by queue order by @place) as place
    from found
), share as materialized (
    select queue, count(*) as n from pick where arrival <= :n group by queue
), head as materialized (
    select p.queue, @place(p), p.lane, p.cost, p.place,
        row_number() over (partition by p.queue order by p.arrival) as arrival
    from pick p join share s on s.queue = p.queue where p.place <= s.n
)
select :columns(h) from head h
join head a on a.queue = h.queue and a.arrival = h.place
order by @arrival(a);

-- name: lock_lanes :many
-- A transaction that starts a job of a lane locks its row until the commit, so counting the running jobs is exact. The
-- count is a statement of its own: the snapshot of this one is older than its locks. Nobody waits for a lane: somebody's
-- open transaction may hold it, and other lanes and jobs have nothing to do with that.
select name from holdfast.lane where name = any(cast(:names as text[])) order by name for update skip locked;

-- name: known_lanes :many
-- Those that have a row, also if somebody holds it.
select name from holdfast.lane where name = any(cast(:names as text[]));

-- name: breathe :exec on postgres
-- Before the next try: most transactions hold a lane for a few milliseconds.
select length(cast(pg_sleep(:seconds) as text)) as slept where :seconds > 0;

-- name: breathe :exec on sqlite
-- Forked: there is one writer, so nobody else holds a lane.
select null as slept where :seconds > 0;

-- name: note_lanes :exec
-- For lanes that somebody else holds: the next transaction that holds them lets through what there is room for. A row of its
-- own, so that it waits for nobody; written together with what makes it necessary, so that a crash loses neither.
insert into holdfast.lane_note (lane, declares, burst, look_at)
select n.name, 0, 1, holdfast.now_us() from rows(:names) as n (name text) where true order by n.name;

-- name: due_notes :many
select lane as name from holdfast.lane_note where look_at <= holdfast.now_us() order by look_at, id limit :limit;

-- name: take_notes :many
-- Under the locks of the lanes.
delete from holdfast.lane_note where lane = any(cast(:names as text[]))
returning id, lane, declares, concurrency, interval_us, burst;

-- name: put_notes_off :exec
-- Their lanes are held still. Skips notes that somebody is taking.
update holdfast.lane_note set look_at = holdfast.now_us() + :pause_us
where id = any(array(
    select n.id from holdfast.lane_note n where n.lane = any(cast(:names as text[])) and n.look_at <= holdfast.now_us()
    order by n.id for update skip locked));

-- name: follow_notes :exec
-- The lane is looked at again at once, unless the caller finds a better time.
update holdfast.lane set opens_at = holdfast.now_us() where name = any(cast(:names as text[]));

-- name: declare_lanes :exec
update holdfast.lane set concurrency = d.concurrency, interval_us = d.interval_us, burst = d.burst,
    updated_at = holdfast.now_us()
from rows(:limits) as d (name text, concurrency integer, interval_us bigint, burst integer)
where lane.name = d.name;

-- name: restore_lanes :exec
-- A lane's row is kept as long as jobs name the lane. If it is missing nevertheless, nobody knows its limits. One
-- job at a time is the lowest concurrency. The rate may have been slower than one start per second; then it is
-- exceeded until the next call that enqueues a job writes the declared limits. See `UNKNOWN`.
insert into holdfast.lane (name, concurrency, interval_us, burst, updated_at, opens_at)
select missing.name, 1, 1000000, 1, holdfast.now_us(), holdfast.now_us() from rows(:names) as missing (name text)
where (select l.name from holdfast.lane l where l.name = missing.name) is null order by missing.name
on conflict (name) do nothing;

-- name: due_lanes :many
-- Skips lanes that somebody else is opening.
select name from holdfast.lane where opens_at is not null and opens_at <= holdfast.now_us()
order by opens_at limit :limit for update skip locked;

-- name: lane_states :many
-- Running jobs are counted, not stored: a count cannot drift. It reads no more entries than the limit allows to run.
-- If the clock went back since the lane was charged, `free_at` moves back with it.
select name, concurrency, interval_us, burst,
    case when charged_at > holdfast.now_us() then holdfast.now_us() + free_at - charged_at else free_at end as free_at,
    (select count(*) from holdfast.lease l where l.lane = lane.name) as running,
    (select k.priority from holdfast.later k where k.state = 'blocked' and k.lane = lane.name
        order by @place(k) limit 1) as first_priority,
    (select k.slot from holdfast.later k where k.state = 'blocked' and k.lane = lane.name
        order by @place(k) limit 1) as first_slot,
    (select k.seq from holdfast.later k where k.state = 'blocked' and k.lane = lane.name
        order by @place(k) limit 1) as first_seq,
    holdfast.now_us() as now,
    case when (select n.id from holdfast.lane_note n where n.lane = lane.name limit 1) is null then 0 else 1 end as noted
from holdfast.lane where name = any(cast(:names as text[])) order by name;

-- name: lock_blocked :many on postgres
-- The first blocked job of each lane that nobody is changing: a job in somebody's open transaction does not keep the
-- jobs behind it from running. The lock keeps it the first until the commit.
select l.name, @place(k) from rows(:names) as l (name text)
cross join lateral (
    select @place(k) from holdfast.later k where k.state = 'blocked' and k.lane = l.name
    order by @place(k) limit 1 for update skip locked
) as k;

-- name: lock_blocked :many on sqlite
-- Forked: SQLite has no lateral join.
select l.name, @place(k) from rows(:names) as l (name text)
cross join holdfast.later k on k.rowid = (
    select b.rowid from holdfast.later b where b.state = 'blocked' and b.lane = l.name order by @place(b) limit 1);

-- name: still_blocked :many
-- After `unblock`, in a statement of its own: it sees the jobs that `unblock` skipped. A job is blocked only under
-- the lock of its lane, so a lane that is not returned has no blocked job.
select name from holdfast.lane where name = any(cast(:names as text[]))
    and (select k.seq from holdfast.later k where k.state = 'blocked' and k.lane = lane.name
        order by @place(k) limit 1) is not null;

-- name: take :many on postgres
-- Takes the jobs that a claim has locked and that their lanes let start. A job says where its row in `ready` is, and
-- each row is deleted by its address, so that no plan reads all of `ready`. The address stays valid: a row of
-- `ready` is never updated.
with asked as materialized (
    select route, @place from holdfast.job where seq = any(cast(:seqs as bigint[]))
), taken as (
    delete from holdfast.ready where ctid = any(array(
        select r.ctid from asked a
        cross join lateral (
            select k.ctid from holdfast.ready k where k.route = a.route and (@place(k)) = (@place(a)) offset 0
        ) as r
    ))
    returning *
), claimed as materialized (
    select j.*, t.attempts, t.rescues, t.token + 1 as token, (select c.epoch from holdfast.cluster c) as epoch,
        cast(:worker as bigint) as worker, holdfast.now_us() as claimed_at, holdfast.now_us() + :ttl_us as lease_until
    from taken t
    cross join lateral (select k.* from holdfast.job k where k.seq = t.seq offset 0) as j
), leased as (
    insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind,
        queue, parent, lane)
    select seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent, lane
    from claimed
)
select :columns
from claimed;

-- name: take :many on sqlite
-- Forked: SQLite has no CTE that changes rows. Insert the leases, delete the rows of `ready`, read the jobs.
insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue,
    parent, lane)
select j.seq, :worker, (select c.epoch from holdfast.cluster c), r.token + 1, holdfast.now_us() + :ttl_us,
    holdfast.now_us(), j.route, r.attempts, r.rescues, j.kind, j.queue, j.parent, j.lane
from json_each(:seqs)
cross join holdfast.job j on j.seq = value
cross join holdfast.ready r on r.route = j.route and (@place(r)) = (@place(j));
delete from holdfast.ready where (route, @place) in (
    select j.route, @place(j) from json_each(:seqs) cross join holdfast.job j on j.seq = value);
select l.seq, j.id, l.kind, l.queue, j.tenant, j.priority, j.slot, l.worker, l.epoch, l.token, l.attempts,
    j.max_attempts, l.rescues, j.timeout_us, j.deadline_at, l.claimed_at, l.lease_until, j.created_at, l.parent, l.lane,
    j.payload, j.metadata, j.layer
from json_each(:seqs)
cross join holdfast.lease l on l.seq = value and l.worker = :worker
cross join holdfast.job j on j.seq = l.seq;

-- name: block :exec on postgres
-- Blocks the jobs that a claim has locked and that must wait for their lanes. Found as in `take`.
with held as (
    delete from holdfast.ready where ctid = any(array(
        select k.ctid from holdfast.job j
        cross join lateral (
            select k.ctid from holdfast.ready k where k.route = j.route and (@place(k)) = (@place(j)) offset 0
        ) as k
        where j.seq = any(cast(:seqs as bigint[]))))
    returning *
)
insert into holdfast.later (@ready, state) select @ready(h), 'blocked' from held h;

-- name: block :exec on sqlite
-- Forked: SQLite has no CTE that changes rows.
insert into holdfast.later (@ready, state) select @ready(h), 'blocked' from holdfast.ready h
where (h.route, @place(h)) in (select j.route, @place(j) from holdfast.job j where j.seq = any(cast(:seqs as bigint[])));
delete from holdfast.ready
where (route, @place) in (select j.route, @place(j) from holdfast.job j where j.seq = any(cast(:seqs as bigint[])));

-- name: unblock :many on postgres
-- Frees the next jobs of a lane that has room. Skips jobs that somebody else is changing: they may wait for this
-- lane. `still_blocked` sees what was skipped.
with freed as (
    delete from holdfast.later where seq = any(array(
        select k.seq from holdfast.later k where k.state = 'blocked' and k.lane = :name
        order by @place(k) limit :n for update skip locked))
    returning *
)
insert into holdfast.ready (@ready) select @ready(f) from freed f returning seq, route;

-- name: unblock :many on sqlite
-- Forked: SQLite has no CTE that changes rows. The order is total, so that both statements choose the same rows.
insert into holdfast.ready (@ready) select @ready(f) from holdfast.later f where f.seq in (
    select k.seq from holdfast.later k where k.state = 'blocked' and k.lane = :name order by @place(k) limit :n);
delete from holdfast.later where seq in (
    select k.seq from holdfast.later k where k.state = 'blocked' and k.lane = :name order by @place(k) limit :n)
returning seq, route;

-- name: charge :exec
update holdfast.lane set free_at = c.free_at, opens_at = c.opens_at, charged_at = c.charged_at
from rows(:charges) as c (name text, free_at bigint, opens_at bigint, charged_at bigint)
where lane.name = c.name;

-- name: mend_lanes :many
-- After the clock went back: `free_at` moves back with it, and the lane is looked at now. Skips lanes that somebody
-- is charging, because a charge corrects them too.
update holdfast.lane set free_at = holdfast.now_us() + free_at - charged_at, charged_at = holdfast.now_us(),
    opens_at = case when opens_at is not null then holdfast.now_us() end
where name = any(array(
    select l.name from holdfast.lane l where l.charged_at > holdfast.now_us()
    order by l.name limit :limit for update skip locked))
returning name;

-- name: open_stranded :exec
-- Lanes with blocked jobs that nothing will open, because somebody changed or removed the row by hand. Goes from each
-- blocked lane to the next by one index probe. It writes notes, and so waits for nobody. For a missing row see
-- `restore_lanes`.
with recursive blocked (lane) as (
    select (select t.lane from holdfast.later t where t.state = 'blocked' order by t.lane limit 1)
    union all
    select (select t.lane from holdfast.later t where t.state = 'blocked' and t.lane > blocked.lane
        order by t.lane limit 1)
    from blocked where blocked.lane is not null
)
insert into holdfast.lane_note (lane, declares, burst, look_at)
select lane, 0, 1, holdfast.now_us() from blocked
where lane is not null and (select l.opens_at from holdfast.lane l where l.name = blocked.lane) is null
    and (select n.id from holdfast.lane_note n where n.lane = blocked.lane limit 1) is null
limit :limit;

-- name: old_lanes :many
-- Lanes into which nobody has enqueued for a while. Skips lanes that somebody else is changing. A call that enqueues
-- into one of them writes a note in the same statement, which makes the lane again if it goes meanwhile.
select name, free_at > holdfast.now_us() or opens_at is not null
    or (select l.seq from holdfast.lease l where l.lane = lane.name limit 1) is not null
    or (select r.seq from holdfast.ready r where r.lane = lane.name limit 1) is not null
    or (select t.seq from holdfast.later t where t.lane = lane.name limit 1) is not null
    or (select e.seq from holdfast.ended e where e.lane = lane.name limit 1) is not null
    or (select n.id from holdfast.lane_note n where n.lane = lane.name limit 1) is not null as used
from holdfast.lane where updated_at <= holdfast.now_us() - :age_us
order by updated_at, name limit :limit for update skip locked;

-- name: keep_lanes :exec
-- They are checked again after the same time.
update holdfast.lane set updated_at = holdfast.now_us() where name = any(cast(:names as text[]));

-- name: wait_for_lanes :many
-- For who has nothing else to do.
select name from holdfast.lane where name = any(cast(:names as text[])) order by name for update;

-- name: forget_empty :exec
-- The caller has locked them. A lane that any job names stays.
delete from holdfast.lane where name = any(cast(:names as text[]))
    and (select l.seq from holdfast.lease l where l.lane = lane.name limit 1) is null
    and (select r.seq from holdfast.ready r where r.lane = lane.name limit 1) is null
    and (select t.seq from holdfast.later t where t.lane = lane.name limit 1) is null
    and (select e.seq from holdfast.ended e where e.lane = lane.name limit 1) is null;

-- name: prune_lanes :exec
delete from holdfast.lane where name = any(cast(:names as text[]));
