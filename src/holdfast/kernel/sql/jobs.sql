-- The life of a job from its claim to its end, in that order, and how it is read. enqueue.sql has how a job is
-- accepted, waiting.sql how it waits, leases.sql how leases are lost.

-- name: now :one
select holdfast.now_us() as at;

-- name: claim :many on postgres
-- Three stages: pick rows without locks; count how many each queue may give by the order of arrival, and each of its
-- routes by the turns of its tenants; then lock that many on each route. A claim that locked its picks would starve:
-- claimers that picked the same rows would return empty while thousands of jobs are claimable. If other claimers
-- have taken all of the picked rows in the meantime, `spare` takes from all routes.
-- At first the claim reads only a `few` rows of each route, twice its part of :n. It reads more of a route (`deep`)
-- if all of these may be among the first :n. It also reads more if tenants take turns there: their first rows do not
-- tell when the others arrived.
-- A row of `ready` is never updated, so the claim deletes it by the address at which it locked it. A claim names few
-- routes, so it compares the queue of each with the paused queues. The queues get numbers, because sorting by text
-- is slow.
with served as materialized (
    select s.route, dense_rank() over (order by q.queue collate "C") as queue
    from rows(:routes) as s (route bigint)
    cross join lateral (
        select coalesce((select r.queue from holdfast.route r where r.id = s.route), '') as queue offset 0) as q
    where q.queue not in (select p.name from holdfast.queue p where p.paused_at is not null)
), few as (
    select least(cast(:n as bigint), 1 + 2 * cast(:n as bigint) / greatest(1, count(*))) as n from served
), first as materialized (
    select p.route, served.queue, @place(p)
    from served
    cross join lateral (
        select k.route, @place(k) from holdfast.ready k where k.route = served.route
        order by @place(k) limit (select n from few)
    ) as p
), deep as materialized (
    select route, queue from first group by route, queue
    having count(*) = (select n from few) and (bool_or(slot > 0) or bool_and((@arrival) <= (
        select @arrival(l) from first l order by @arrival(l) offset cast(:n as bigint) - 1 limit 1)) is not false)
), pick as materialized (
    select p.route, p.queue, @arrival(p), row_number() over (partition by p.queue order by @place(p)) as place
    from (
        select * from first
        union all
        select deep.route, deep.queue, @place(m) from deep
        cross join lateral (
            select @place(k) from holdfast.ready k where k.route = deep.route
            order by @place(k) offset (select n from few) limit cast(:n as bigint) - (select n from few)
        ) as m
    ) as p
), share as materialized (
    select f.queue, count(*) as n from (select queue from pick order by @arrival limit :n) as f group by f.queue
), quota as materialized (
    select p.route, count(*) as n from pick p join share s on s.queue = p.queue where p.place <= s.n group by p.route
), held as materialized (
    select h.at from quota
    cross join lateral (
        select k.ctid as at from holdfast.ready k where k.route = quota.route
        order by @place(k) limit quota.n for update skip locked
    ) as h
), spare as materialized (
    select s.at from served
    cross join lateral (
        select k.ctid as at from holdfast.ready k where k.route = served.route
        order by @place(k) limit :n for update skip locked
    ) as s
    where not exists (select 1 from held) limit :n
), taken as (
    delete from holdfast.ready where ctid = any(array(select at from held union all select at from spare))
    returning seq, route, token + 1 as token, attempts, rescues
), found as materialized (
    select t.*, j.*, (select c.epoch from holdfast.cluster c) as epoch, holdfast.now_us() as claimed_at,
        holdfast.now_us() + :ttl_us as lease_until
    from taken t
    cross join lateral (
        select k.id, k.kind, k.queue, k.tenant, k.priority, k.slot, k.max_attempts, k.timeout_us, k.deadline_at,
            k.created_at, k.parent, k.lane, k.payload, k.metadata, k.layer
        from holdfast.job k where k.seq = t.seq offset 0
    ) as j
), leased as (
    insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue,
        parent, lane)
    select seq, :worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent, lane
    from found
)
select seq, cast(id as text) as id, kind, queue, tenant, priority, slot, cast(:worker as bigint) as worker, epoch, token,
    attempts, max_attempts, rescues, timeout_us, deadline_at, claimed_at, lease_until, created_at, parent, lane, payload,
    metadata, layer from found;

-- name: claim :many on sqlite
-- Forked: SQLite has no lateral join and no CTE that changes rows, and it needs no row locks, because it has one
-- writer. The first rows of each route come as a list: a second look into `ready` might be planned as a search
-- through all rows of the route. The share of each queue is counted in the same way. The leases are inserted first:
-- the jobs that are then in both tables are the claimed ones.
with served as materialized (
    select value as route, coalesce((select r.queue from holdfast.route r where r.id = value), '') as queue
    from json_each(:routes)
), found as materialized (
    select s.queue, s.route, f.value ->> 0 as priority, f.value ->> 1 as slot, f.value ->> 2 as seq, f.value ->> 3 as token,
        f.value ->> 4 as attempts, f.value ->> 5 as rescues
    from served s
    cross join json_each((
        select json_group_array(json_array(@place(first), first.token, first.attempts, first.rescues)) from (
            select @place(r), r.token, r.attempts, r.rescues from holdfast.ready r where r.route = s.route
            order by @place(r) limit :n
        ) as first
    )) as f
    where s.queue not in (select q.name from holdfast.queue q where q.paused_at is not null)
), pick as materialized (
    select found.*, row_number() over (order by @arrival) as arrival,
        row_number() over (partition by queue order by @place) as place
    from found
), share as materialized (
    select queue, count(*) as n from pick where arrival <= :n group by queue
)
insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent,
    lane)
select p.seq, :worker, (select c.epoch from holdfast.cluster c), p.token + 1, holdfast.now_us() + :ttl_us,
    holdfast.now_us(), p.route, p.attempts, p.rescues, j.kind, j.queue, j.parent, j.lane
from pick p join share s on s.queue = p.queue cross join holdfast.job j on j.seq = p.seq where p.place <= s.n;
select j.seq, j.id, j.kind, j.queue, j.tenant, j.priority, j.slot, l.worker, l.epoch, l.token, l.attempts, j.max_attempts,
    l.rescues, j.timeout_us, j.deadline_at, l.claimed_at, l.lease_until, j.created_at, j.parent, j.lane, j.payload,
    j.metadata, j.layer
from holdfast.lease l cross join holdfast.job j on j.seq = l.seq
cross join holdfast.ready r on r.route = l.route and r.priority = j.priority and r.slot = j.slot and r.seq = j.seq
where l.worker = :worker and l.claimed_at = holdfast.now_us();
delete from holdfast.ready where (route, priority, slot, seq) in (
    select l.route, j.priority, j.slot, l.seq from holdfast.lease l cross join holdfast.job j on j.seq = l.seq
    where l.worker = :worker and l.claimed_at = holdfast.now_us());

-- name: claim_one :many on postgres
-- Claims the first jobs of one route: there are no shares to count. See `claim`.
with taken as (
    delete from holdfast.ready where ctid = any(array(
        select k.ctid from holdfast.ready k
        where k.route = :route and coalesce((select r.queue from holdfast.route r where r.id = :route), '') not in (
            select q.name from holdfast.queue q where q.paused_at is not null)
        order by @place(k) limit :n for update skip locked))
    returning seq, route, token + 1 as token, attempts, rescues
), found as materialized (
    select t.*, j.*, (select c.epoch from holdfast.cluster c) as epoch, holdfast.now_us() as claimed_at,
        holdfast.now_us() + :ttl_us as lease_until
    from taken t
    cross join lateral (
        select k.id, k.kind, k.queue, k.tenant, k.priority, k.slot, k.max_attempts, k.timeout_us, k.deadline_at,
            k.created_at, k.parent, k.lane, k.payload, k.metadata, k.layer
        from holdfast.job k where k.seq = t.seq offset 0
    ) as j
), leased as (
    insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue,
        parent, lane)
    select seq, :worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent, lane
    from found
)
select seq, cast(id as text) as id, kind, queue, tenant, priority, slot, cast(:worker as bigint) as worker, epoch, token,
    attempts, max_attempts, rescues, timeout_us, deadline_at, claimed_at, lease_until, created_at, parent, lane, payload,
    metadata, layer from found;

-- name: claim_one :many on sqlite
-- Forked as `claim`.
insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent,
    lane)
select p.seq, :worker, (select c.epoch from holdfast.cluster c), p.token + 1, holdfast.now_us() + :ttl_us,
    holdfast.now_us(), p.route, p.attempts, p.rescues, j.kind, j.queue, j.parent, j.lane
from (select @ready(k) from holdfast.ready k
    where k.route = :route and coalesce((select r.queue from holdfast.route r where r.id = :route), '') not in (
        select q.name from holdfast.queue q where q.paused_at is not null)
    order by @place(k) limit :n) as p
cross join holdfast.job j on j.seq = p.seq;
select j.seq, j.id, j.kind, j.queue, j.tenant, j.priority, j.slot, l.worker, l.epoch, l.token, l.attempts, j.max_attempts,
    l.rescues, j.timeout_us, j.deadline_at, l.claimed_at, l.lease_until, j.created_at, j.parent, j.lane, j.payload,
    j.metadata, j.layer
from holdfast.lease l cross join holdfast.job j on j.seq = l.seq
cross join holdfast.ready r on r.route = l.route and r.priority = j.priority and r.slot = j.slot and r.seq = j.seq
where l.worker = :worker and l.claimed_at = holdfast.now_us();
delete from holdfast.ready where (route, priority, slot, seq) in (
    select l.route, j.priority, j.slot, l.seq from holdfast.lease l cross join holdfast.job j on j.seq = l.seq
    where l.worker = :worker and l.claimed_at = holdfast.now_us());

-- name: heads :many on postgres
-- Which of these routes have something to claim, the most urgent first and then the oldest, by one index probe each.
-- Not `exists`, which may be planned as a join that reads the whole backlog. For paused routes see `look`.
select served.route from rows(:routes) as served (route bigint)
cross join lateral (
    select @place(k) from holdfast.ready k where k.route = served.route order by @place(k) limit 1
) as k
where served.route not in (select r.id from holdfast.route r where r.queue = any(array(
    select q.name from holdfast.queue q where q.paused_at is not null)))
order by @arrival(k);

-- name: heads :many on sqlite
-- Forked: SQLite has no lateral join.
select served.route from rows(:routes) as served (route bigint)
cross join holdfast.ready k on (k.route, @place(k)) = (
    select h.route, @place(h) from holdfast.ready h where h.route = served.route order by @place(h) limit 1)
where served.route not in (select r.id from holdfast.route r where r.queue in (
    select q.name from holdfast.queue q where q.paused_at is not null))
order by @arrival(k);

-- name: finish :many on postgres
-- Ends attempts that are the last of their jobs, each under its own token. If a row is not returned, its lease was
-- lost. A cancel that was accepted before wins over every outcome, and its reason becomes the error of the job; if
-- the attempt has an error too, `attempt` keeps it, see `attempt_now`. The statement does not join the endings with
-- the leases: a plan made while nothing ran would read one list for each entry of the other. `:seqs` is sorted, and
-- `width_bucket` tells the position of a job in it. A column that is equal in all endings is sent as one value.
with gone as (
    delete from holdfast.lease where seq = any(cast(:seqs as bigint[]))
        and worker + 0 = @nth(:endings.worker as bigint, width_bucket(seq, cast(:seqs as bigint[])))
        and epoch = @nth(:endings.epoch as bigint, width_bucket(seq, cast(:seqs as bigint[])))
        and token = @nth(:endings.token as bigint, width_bucket(seq, cast(:seqs as bigint[])))
    returning *, width_bucket(seq, cast(:seqs as bigint[])) as n
), ending as materialized (
    select g.*, case when g.cancel_requested_at is null then @nth(:endings.state as text, n) else 'cancelled' end as state,
        case when g.cancel_requested_at is not null then @nth(:endings.error as json, n) end as own_error
    from gone g
), kept as (
    insert into holdfast.ended (seq, token, finished_at, worker, epoch, claimed_at, attempts, rescues, state, queue, outcome,
        lane, cancel_requested_at, result, error)
    select seq, token, holdfast.now_us(), case when own_error is null then worker end,
        case when own_error is null then epoch end, case when own_error is null then claimed_at end,
        attempts + @nth(:endings.counted as integer, n), rescues, state, queue,
        case when cancel_requested_at is null then @nth(:endings.outcome as text, n)
            when own_error is null then 'cancelled' end, lane,
        cancel_requested_at, case when cancel_requested_at is null then @nth(:endings.result as json, n) end,
        case when cancel_requested_at is not null then cancel_error
            when state <> 'succeeded' then @nth(:endings.error as json, n) end
    from ending
), logged as (
    insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
    select seq, epoch, token, worker, 'cancelled', claimed_at, holdfast.now_us(), own_error
    from ending where own_error is not null
)
select :columns from ending;

-- name: finish :many on sqlite
-- Forked: SQLite has no CTE that changes rows. An ended job is in both tables until the last statement.
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
select l.seq, l.epoch, l.token, l.worker, 'cancelled', l.claimed_at, holdfast.now_us(), value ->> :endings.error
from json_each(:endings) cross join holdfast.lease l on l.seq = value ->> :endings.seq
where l.worker = value ->> :endings.worker and l.epoch = value ->> :endings.epoch and l.token = value ->> :endings.token
    and l.cancel_requested_at is not null and value ->> :endings.error is not null;
insert into holdfast.ended (seq, token, finished_at, worker, epoch, claimed_at, attempts, rescues, state, queue, outcome,
    lane, cancel_requested_at, result, error)
select l.seq, l.token, holdfast.now_us(), case when a.job is null then l.worker end, case when a.job is null then l.epoch end,
    case when a.job is null then l.claimed_at end, l.attempts + (value ->> :endings.counted), l.rescues,
    case when l.cancel_requested_at is null then value ->> :endings.state else 'cancelled' end, l.queue,
    case when l.cancel_requested_at is null then value ->> :endings.outcome when a.job is null then 'cancelled' end, l.lane,
    l.cancel_requested_at, case when l.cancel_requested_at is null then value ->> :endings.result end,
    case when l.cancel_requested_at is not null then l.cancel_error
        when value ->> :endings.state <> 'succeeded' then value ->> :endings.error end
from json_each(:endings) cross join holdfast.lease l on l.seq = value ->> :endings.seq
left join holdfast.attempt a on a.job = l.seq and a.epoch = l.epoch and a.token = l.token
where l.worker = value ->> :endings.worker and l.epoch = value ->> :endings.epoch and l.token = value ->> :endings.token;
delete from holdfast.lease where seq = any(:seqs) and (select e.seq from holdfast.ended e where e.seq = lease.seq) is not null
returning seq, epoch, token, (select e.state from holdfast.ended e where e.seq = lease.seq) as state, route, parent, lane, kind;

-- name: complete :many on postgres
-- Ends attempts with any outcome, see `finish`. If an attempt is not the last of its job, it is kept as an attempt,
-- and the job goes back to `ready` or `later`.
with gone as (
    delete from holdfast.lease where seq = any(cast(:seqs as bigint[]))
        and worker + 0 = @nth(:endings.worker as bigint, width_bucket(seq, cast(:seqs as bigint[])))
        and epoch = @nth(:endings.epoch as bigint, width_bucket(seq, cast(:seqs as bigint[])))
        and token = @nth(:endings.token as bigint, width_bucket(seq, cast(:seqs as bigint[])))
    returning *, width_bucket(seq, cast(:seqs as bigint[])) as n
), ending as materialized (
    select g.*, case when g.cancel_requested_at is null then @nth(:endings.state as text, n) else 'cancelled' end as state,
        case when g.cancel_requested_at is not null then @nth(:endings.error as json, n) end as own_error
    from gone g
), kept as (
    insert into holdfast.ended (seq, token, finished_at, worker, epoch, claimed_at, attempts, rescues, state, queue, outcome,
        lane, cancel_requested_at, result, error)
    select seq, token, holdfast.now_us(), case when own_error is null then worker end,
        case when own_error is null then epoch end, case when own_error is null then claimed_at end,
        attempts + @nth(:endings.counted as integer, n), rescues, state, queue,
        case when cancel_requested_at is null then @nth(:endings.outcome as text, n)
            when own_error is null then 'cancelled' end, lane,
        cancel_requested_at, case when cancel_requested_at is null then @nth(:endings.result as json, n) end,
        case when cancel_requested_at is not null then cancel_error
            when state <> 'succeeded' then @nth(:endings.error as json, n) end
    from ending where state in ('succeeded', 'failed', 'cancelled')
), logged as (
    insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
    select seq, epoch, token, worker,
        case when own_error is null then @nth(:endings.outcome as text, n) else 'cancelled' end, claimed_at,
        holdfast.now_us(), @nth(:endings.error as json, n)
    from ending where state in ('pending', 'scheduled') or own_error is not null
), back as materialized (
    select t.route, j.slot, t.seq, t.token, j.priority, t.attempts + @nth(:endings.counted as integer, n) as attempts,
        t.rescues, j.cost, j.deadline_at, t.lane, j.tenant, t.state,
        holdfast.now_us() + @nth(:endings.delay_us as bigint, n) as due_at
    from ending t cross join lateral (
        select k.slot, k.priority, case when k.lane is not null then k.cost end as cost, k.deadline_at,
            case when k.slot > 0 then k.tenant end as tenant
        from holdfast.job k where k.seq = t.seq offset 0
    ) as j where t.state in ('pending', 'scheduled')
), placed as (
    insert into holdfast.ready (@ready) select @ready from back where state = 'pending'
), put_off as (
    insert into holdfast.later (@ready, state, due_at)
    select @ready, state, due_at from back where state = 'scheduled'
)
select :columns from ending;

-- name: complete :many on sqlite
-- Forked: SQLite has no CTE that changes rows. The lease and the rows that replace it exist side by side until the
-- last statement.
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
select l.seq, l.epoch, l.token, l.worker, 'cancelled', l.claimed_at, holdfast.now_us(), value ->> :endings.error
from json_each(:endings) cross join holdfast.lease l on l.seq = value ->> :endings.seq
where l.worker = value ->> :endings.worker and l.epoch = value ->> :endings.epoch and l.token = value ->> :endings.token
    and l.cancel_requested_at is not null and value ->> :endings.error is not null;
insert into holdfast.ended (seq, token, finished_at, worker, epoch, claimed_at, attempts, rescues, state, queue, outcome,
    lane, cancel_requested_at, result, error)
select l.seq, l.token, holdfast.now_us(), case when a.job is null then l.worker end, case when a.job is null then l.epoch end,
    case when a.job is null then l.claimed_at end, l.attempts + (value ->> :endings.counted), l.rescues,
    case when l.cancel_requested_at is null then value ->> :endings.state else 'cancelled' end, l.queue,
    case when l.cancel_requested_at is null then value ->> :endings.outcome when a.job is null then 'cancelled' end, l.lane,
    l.cancel_requested_at, case when l.cancel_requested_at is null then value ->> :endings.result end,
    case when l.cancel_requested_at is not null then l.cancel_error
        when value ->> :endings.state <> 'succeeded' then value ->> :endings.error end
from json_each(:endings) cross join holdfast.lease l on l.seq = value ->> :endings.seq
left join holdfast.attempt a on a.job = l.seq and a.epoch = l.epoch and a.token = l.token
where l.worker = value ->> :endings.worker and l.epoch = value ->> :endings.epoch and l.token = value ->> :endings.token
    and (l.cancel_requested_at is not null or value ->> :endings.state in ('succeeded', 'failed', 'cancelled'));
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
select l.seq, l.epoch, l.token, l.worker, value ->> :endings.outcome, l.claimed_at, holdfast.now_us(),
    value ->> :endings.error
from json_each(:endings) cross join holdfast.lease l on l.seq = value ->> :endings.seq
where l.worker = value ->> :endings.worker and l.epoch = value ->> :endings.epoch and l.token = value ->> :endings.token
    and l.cancel_requested_at is null and value ->> :endings.state in ('pending', 'scheduled');
insert into holdfast.ready (@ready)
select l.route, j.slot, l.seq, l.token, j.priority, l.attempts + (value ->> :endings.counted), l.rescues,
    case when j.lane is not null then j.cost end, j.deadline_at, j.lane, case when j.slot > 0 then j.tenant end
from json_each(:endings) cross join holdfast.lease l on l.seq = value ->> :endings.seq
cross join holdfast.job j on j.seq = l.seq
where l.worker = value ->> :endings.worker and l.epoch = value ->> :endings.epoch and l.token = value ->> :endings.token
    and l.cancel_requested_at is null and value ->> :endings.state = 'pending';
insert into holdfast.later (@ready, state, due_at)
select l.route, j.slot, l.seq, l.token, j.priority, l.attempts + (value ->> :endings.counted), l.rescues,
    case when j.lane is not null then j.cost end, j.deadline_at, j.lane, case when j.slot > 0 then j.tenant end,
    'scheduled', holdfast.now_us() + (value ->> :endings.delay_us)
from json_each(:endings) cross join holdfast.lease l on l.seq = value ->> :endings.seq
cross join holdfast.job j on j.seq = l.seq
where l.worker = value ->> :endings.worker and l.epoch = value ->> :endings.epoch and l.token = value ->> :endings.token
    and l.cancel_requested_at is null and value ->> :endings.state = 'scheduled';
delete from holdfast.lease where seq = any(:seqs) and (
    (select e.seq from holdfast.ended e where e.seq = lease.seq) is not null
    or (select a.job from holdfast.attempt a where a.job = lease.seq and a.epoch = lease.epoch and a.token = lease.token)
        is not null)
returning seq, epoch, token, coalesce((select e.state from holdfast.ended e where e.seq = lease.seq),
    (select t.state from holdfast.later t where t.seq = lease.seq), 'pending') as state, route, parent, lane, kind;

-- name: ended_attempts :many
-- Which attempts of these jobs have ended, and how. This distinguishes a repeated completion from a lost lease.
select job, epoch, token, outcome from holdfast.attempt where job = any(cast(:seqs as bigint[]))
union all
select seq, epoch, token, outcome from holdfast.ended where seq = any(cast(:seqs as bigint[])) and outcome is not null;

-- name: parents_of :many
select seq, parent from holdfast.job where seq = any(cast(:seqs as bigint[]));

-- name: lock_anchors :many
-- Parents are older than their children, so everybody locks anchors in the order of their seq.
select seq from holdfast.job where seq = any(cast(:seqs as bigint[])) order by seq for update;

-- name: try_lock_anchors :many
-- Skips rows that somebody else is changing: the next sweep finds them again.
select seq from holdfast.job where seq = any(cast(:seqs as bigint[])) order by seq for update skip locked;

-- name: lock_leases :many on postgres
-- Locks them in the order of the list, which is sorted: everybody locks leases in this order.
select l.seq from rows(:seqs) as s (seq bigint)
cross join lateral (select l.seq from holdfast.lease l where l.seq = s.seq for update) as l;

-- name: lock_leases :many on sqlite
-- Forked: SQLite has no lateral join. A probe for each: with statistics it would read all leases to find those of the
-- list.
select l.seq from rows(:seqs) as s (seq bigint) cross join holdfast.lease l on l.seq = s.seq;

-- name: lock_places :many on postgres
-- Each job is in one table at the moment at which this statement looks. A job that has moved on before its row can
-- be locked is not returned. An ended job stays ended. The rows of `job` are locked already.
with asked as materialized (
    select k.seq, k.id, k.parent, k.route, k.priority, k.slot from holdfast.job k
    where k.seq = any(cast(:seqs as bigint[])) order by k.seq
), waits as materialized (
    select k.seq, case k.state when 'blocked' then 'pending' else k.state end as state from holdfast.later k
    where k.seq = any(cast(:seqs as bigint[])) order by k.seq for update
), runs as materialized (
    select l.seq, l.cancel_requested_at from asked a cross join lateral (
        select l.seq, l.cancel_requested_at from holdfast.lease l where l.seq = a.seq for update
    ) as l
), stands as materialized (
    select k.seq from asked a cross join lateral (
        select k.seq from holdfast.ready k where k.route = a.route and k.priority = a.priority and k.slot = a.slot
            and k.seq = a.seq for update
    ) as k
), place as materialized (
    select seq, state, cast(null as bigint) as cancel_requested_at from waits
    union all select seq, 'running', cancel_requested_at from runs
    union all select seq, 'pending', null from stands
    union all select seq, state, cancel_requested_at from holdfast.ended where seq = any(cast(:seqs as bigint[]))
)
select a.seq, cast(a.id as text) as id, p.state, a.parent, p.cancel_requested_at
from asked a join place p on p.seq = a.seq;

-- name: lock_places :many on sqlite
-- Forked for the plan: with one writer there is nothing to lock, and one join costs half of five queries.
select seq, id, state, parent, cancel_requested_at from holdfast.job_now where seq = any(:seqs) and state is not null;

-- name: try_lock_places :many on postgres
-- The same, but skips what somebody else is changing. A sweep does not need ended jobs.
with asked as materialized (
    select k.seq, k.id, k.parent, k.route, k.priority, k.slot from holdfast.job k
    where k.seq = any(cast(:seqs as bigint[])) order by k.seq
), waits as materialized (
    select k.seq, case k.state when 'blocked' then 'pending' else k.state end as state from holdfast.later k
    where k.seq = any(cast(:seqs as bigint[])) order by k.seq for update skip locked
), runs as materialized (
    select l.seq, l.cancel_requested_at from asked a cross join lateral (
        select l.seq, l.cancel_requested_at from holdfast.lease l where l.seq = a.seq for update skip locked
    ) as l
), stands as materialized (
    select k.seq from asked a cross join lateral (
        select k.seq from holdfast.ready k where k.route = a.route and k.priority = a.priority and k.slot = a.slot
            and k.seq = a.seq for update skip locked
    ) as k
), place as materialized (
    select seq, state, cast(null as bigint) as cancel_requested_at from waits
    union all select seq, 'running', cancel_requested_at from runs
    union all select seq, 'pending', null from stands
)
select a.seq, cast(a.id as text) as id, p.state, a.parent, p.cancel_requested_at
from asked a join place p on p.seq = a.seq;

-- name: try_lock_places :many on sqlite
-- Forked for the plan, as `lock_places`.
select seq, id, state, parent, cancel_requested_at from holdfast.job_now
where seq = any(:seqs) and state in ('scheduled', 'pending', 'running', 'waiting');

-- name: settle_parent :one
-- The end of a child and the counter of its parent change in one transaction, under the lock of the parent's anchor.
update holdfast.family set open_children = open_children - :ended where job = :parent returning open_children;

-- name: wake_parent :one on postgres
-- Wakes a parent that waits for its children when the counter is zero. This is a statement of its own: it sees
-- whether the parent waits. No index can answer `case`, so the plan finds the row by its primary key.
with woken as (
    delete from holdfast.later where seq = :seq and case state when 'waiting' then channel is null else false end
    returning *
)
insert into holdfast.ready (@ready) select @ready from woken returning seq, route;

-- name: wake_parent :one on sqlite
-- Forked: SQLite has no CTE that changes rows.
insert into holdfast.ready (@ready) select @ready from holdfast.later
where seq = :seq and case state when 'waiting' then channel is null else false end;
delete from holdfast.later where seq = :seq and case state when 'waiting' then channel is null else false end
returning seq, route;

-- name: hint :exec
-- Only in a caller's transaction: the hint is part of it. In all other transactions the driver sends hints after the
-- commit.
select holdfast.hint(:note);

-- name: announce :exec on postgres
-- Only in a caller's transaction, as `hint`.
select sum(length(cast(pg_notify(n.channel, n.payload) as text)))
from rows(:notes) as n (channel text, payload text);

-- name: announce :exec on sqlite
-- Forked: nobody can listen to a file.
select null as announced from rows(:notes) as n (channel text, payload text) where false;

-- name: report_progress :one
-- Locks and tests the lease first: an attempt that has to wait for another's row finds out that its own lease is
-- gone.
with mine as (
    select seq from holdfast.lease where @fence for update
)
insert into holdfast.progress (job, value) select seq, :progress from mine where true
on conflict (job) do update set value = excluded.value
returning job as seq;

-- name: find_job :one
select :columns
from holdfast.job_now where id = :id;

-- name: list_attempts :many
-- The last of them.
select * from (
    select :columns
    from holdfast.attempt_now where job = :seq order by started_at desc, epoch desc, token desc limit :limit) as a
order by a.started_at, a.epoch, a.token;

-- name: count_attempts :one
select count(*) as number from holdfast.attempt_now where job = :seq;

-- name: find_ended :many
-- What a waiting caller asks, for all the jobs it waits for at once.
select :columns from holdfast.job_now
where id = any(cast(:ids as uuid[])) and finished_at is not null;
