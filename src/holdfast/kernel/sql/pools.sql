-- Pools of workers: how each is declared, and which of its workers are about to start or to leave.

-- name: put_pool :exec
-- How it stands now is read from its workers, so nothing is kept that could contradict them.
insert into holdfast.pool (name, settings, standing, updated_at)
values (:name, cast(:settings as jsonb), cast('{}' as jsonb), holdfast.now_us())
on conflict (name) do update set settings = excluded.settings, updated_at = excluded.updated_at;

-- name: list_pools :many
-- A pool's keepers have its name. There are few workers, and a list is asked for by a person.
select p.name, p.settings, (select count(*) from holdfast.worker w
    where w.name = 'pool ' || p.name and w.pool is null and w.status in ('active', 'draining')) as keepers
from holdfast.pool p where cast(:name as text) is null or p.name = :name order by p.name limit :limit;

-- name: past_of_pool :many
-- The last workers of a pool, those that are still there too: newest first.
select w.seq, w.status, w.pid, w.started_at, w.stopped_at, w.boot_by, w.reason, holdfast.now_us() as now
from holdfast.worker w where w.pool = :pool order by w.seq desc limit :limit;

-- name: open_places :many
-- Workers before their processes. Nobody waits for a heartbeat of such a row; its time is up at `boot_by`.
insert into holdfast.worker (incarnation, id, name, hostname, pid, version, status, capabilities, queues, slots, started_at,
    heartbeat_at, ttl_us, boot_by, pool)
select p.id, p.id, :pool, '', 0, '', 'starting', '[]', 'null', :slots, holdfast.now_us(), holdfast.now_us(),
    cast(:boot_us as bigint), holdfast.now_us() + cast(:boot_us as bigint), :pool
from rows(:places) as p (id text)
returning seq, id;

-- name: occupy :one
-- The process makes the row its own. If its time is up it finds nothing: another was started in its place.
update holdfast.worker set status = 'active', incarnation = :incarnation, name = :name, hostname = :hostname, pid = :pid,
    version = :version, capabilities = :capabilities, queues = :queues, slots = :slots, started_at = holdfast.now_us(),
    heartbeat_at = holdfast.now_us(), idle_since = holdfast.now_us(), ttl_us = :ttl_us, code = :code, lines = :lines
where id = :id and pool = :pool and status = 'starting' and boot_by > holdfast.now_us()
returning seq;

-- name: give_place_up :one
-- By the keeper that saw its process end, or could not start it.
update holdfast.worker set status = :status, stopped_at = holdfast.now_us(), active = 0, reason = :reason
where id = :id and pool = :pool and status in ('starting', 'active', 'draining')
returning seq, id;

-- name: standing_of_places :many
-- The last rows of these workers.
select w.seq, w.id, w.status from holdfast.worker w
where w.pool = :pool and w.id = any(cast(:ids as text[])) order by w.seq;

-- name: retire_worker :one
-- Only a worker that holds nothing and has said for so long that it is idle. What it claims at this very moment it
-- finishes: nothing presses a worker that was retired.
update holdfast.worker set status = 'draining'
where seq = :seq and status = 'active' and idle_since <= holdfast.now_us() - cast(:idle_us as bigint)
    and (select l.seq from holdfast.lease l where l.worker = :seq limit 1) is null
returning seq, id;

-- part: laned on postgres
-- Of each route: claimable jobs of lanes, and blocked ones if it is time to open their lane.
select n.lane, n.cost from able a
cross join lateral (
    select n.lane, n.cost from holdfast.ready n where n.route = a.id limit :cap
) as n
where n.lane is not null
union all
select t.lane, t.cost from able a
cross join lateral (
    select t.lane, t.cost from holdfast.later t where t.route = a.id and t.state between 'blocked' and 'blocked' limit :cap
) as t
where (select l.opens_at from holdfast.lane l where l.name = t.lane) <= holdfast.now_us()

-- part: laned on sqlite
-- SQLite has no lateral join.
select n.lane, n.cost from able a
cross join holdfast.ready n on (n.route, @place(n)) in (
    select k.route, @place(k) from holdfast.ready k where k.route = a.id limit :cap)
where n.lane is not null
union all
select t.lane, t.cost from able a
cross join holdfast.later t on t.rowid in (
    select k.rowid from holdfast.later k where k.route = a.id and k.state between 'blocked' and 'blocked' limit :cap)
where (select l.opens_at from holdfast.lane l where l.name = t.lane) <= holdfast.now_us()

-- name: load :one
-- What an orchestrator asks by itself: how many jobs of these queues should have a slot. A job that is due counts, because
-- where no worker runs nobody wakes it; so does the lease of a dead worker, which somebody must take back. Of lanes as many
-- count as may start, and what is blocked counts once it is time to open the lane. Below the threshold no more are told
-- than run, but one if there is anything to claim. What no worker of the fleet could run counts too: with no worker there,
-- nobody knows. With `between` no plan can read all blocked jobs for each route.
with able as (
    select r.id from (select id, queue from holdfast.route union select route, queue from holdfast.route_note) as r
    where (:every = 1 or r.queue = any(cast(:queues as text[])))
        and r.queue not in (select q.name from holdfast.queue q where q.paused_at is not null)
), laned as (
    @laned
), waiting as (
    select (select count(*) from (select 1 from holdfast.ready k where k.route = a.id and k.lane is null limit :cap) as c)
        + (select count(*) from (select 1 from holdfast.later t where t.route = a.id and t.state = 'scheduled'
            and t.due_at <= holdfast.now_us() limit :cap) as c) as jobs
    from able a
    union all
    select least(d.jobs, greatest(0, coalesce((select @room(l) from holdfast.lane l where l.name = d.lane), 1))) as jobs
    from (select f.lane, count(*) as jobs, min(f.cost) as cost from laned f group by f.lane) as d
), total as (
    select (select cast(coalesce(sum(w.jobs), 0) as bigint) from waiting w) as pending,
        (select count(*) from holdfast.lease h join holdfast.route r on r.id = h.route
            where (:every = 1 or r.queue = any(cast(:queues as text[])))
                and r.queue not in (select q.name from holdfast.queue q where q.paused_at is not null)) as running
)
select case when s.pending >= :threshold then s.pending + s.running when s.pending > 0 then greatest(s.running, 1)
    else s.running end as jobs
from total s;
