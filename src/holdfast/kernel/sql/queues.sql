-- Queues: their policy, their pauses, and how many jobs each has. Counts stop at a cap, so no statement reads a
-- whole backlog.

-- name: set_queue :exec
-- Only the policy: a pause is a person's decision and survives every restart.
insert into holdfast.queue (name, on_orphan, fair, keep_us, keep_jobs, lost_counts, updated_at)
values (:name, :on_orphan, :fair, :keep_us, :keep_jobs, :lost_counts, holdfast.now_us())
on conflict (name) do update set on_orphan = excluded.on_orphan, fair = excluded.fair, keep_us = excluded.keep_us,
    keep_jobs = excluded.keep_jobs, lost_counts = excluded.lost_counts, updated_at = excluded.updated_at;

-- name: pause_queue :one
insert into holdfast.queue (name, on_orphan, updated_at, paused_at, pause_reason)
values (:name, 'requeue', holdfast.now_us(), holdfast.now_us(), :reason)
on conflict (name) do update set paused_at = coalesce(queue.paused_at, excluded.paused_at),
    pause_reason = excluded.pause_reason
returning name, paused_at;

-- name: resume_queue :one
update holdfast.queue set paused_at = null, pause_reason = null where name = :name and paused_at is not null
returning name, paused_at;

-- name: find_queue :one
select :columns from holdfast.queue where name = :name;

-- name: list_queues :many
-- Every queue that has a policy or a route.
select q.name, coalesce(p.on_orphan, 'requeue') as on_orphan, coalesce(p.fair, 0) as fair, p.keep_us, p.keep_jobs,
    p.paused_at, p.pause_reason
from (select name from holdfast.queue union select queue from holdfast.route) as q
left join holdfast.queue p on p.name = q.name
order by q.name;

-- name: count_pending :many
select r.queue, (select count(*) from (select 1 from holdfast.ready p where p.route = r.id limit :cap) as c) as jobs
from holdfast.route r;

-- name: count_later :many
select r.queue, (select count(*) from (select 1 from holdfast.later t
    where t.route = r.id and t.state in ('scheduled', 'waiting') limit :cap) as c) as jobs
from holdfast.route r;

-- name: count_blocked :many
-- Counted by route. One job of each route tells its queue.
select (select j.queue from holdfast.job j where j.seq = b.seq) as queue, b.jobs
from (
    select min(c.seq) as seq, count(*) as jobs
    from (select t.seq, t.route from holdfast.later t where t.state = 'blocked' order by t.lane limit :cap) as c
    group by c.route
) as b;

-- name: count_running :many
select queue, count(*) as jobs from holdfast.lease group by queue;

-- name: count_finished :many
-- Jobs that ended after a given time, newest first: the index is by queue and time.
select q.name as queue, s.state, (select count(*) from (select 1 from holdfast.ended e
    where e.queue = q.name and e.finished_at > holdfast.now_us() - :since_us and e.state = s.state
    order by e.queue, e.finished_at desc limit :cap) as c) as jobs
from (select name from holdfast.queue union select queue from holdfast.route) as q
cross join (select 'succeeded' as state union all select 'failed' union all select 'cancelled') as s;

-- name: list_lanes :many
-- By name, after one. A lane of a kind is named after it, or after it and a slash.
select name, concurrency, interval_us, burst, free_at, opens_at,
    (select count(*) from holdfast.lease l where l.lane = lane.name) as running,
    (select count(*) from (select 1 from holdfast.later k where k.state = 'blocked' and k.lane = lane.name limit :cap)
        as c) as blocked
from holdfast.lane
where name > :after and (:all = 1 or name = :own or exists (
    select 1 from rows(:kinds) as k (name text)
    where lane.name = k.name or substr(lane.name, 1, length(k.name) + 1) = k.name || '/'))
order by name limit :limit;
