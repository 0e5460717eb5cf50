-- Queues: their policy, their pauses, and how much is in each. Counts stop at a cap: nothing here reads a backlog whole.

-- name: set_queue :exec
-- Policy only: a pause is somebody's decision and outlives every restart.
insert into holdfast.queue (name, on_orphan, fair, keep_us, keep_jobs, updated_at)
values (:name, :on_orphan, :fair, :keep_us, :keep_jobs, holdfast.now_us())
on conflict (name) do update set on_orphan = excluded.on_orphan, fair = excluded.fair, keep_us = excluded.keep_us,
    keep_jobs = excluded.keep_jobs, updated_at = excluded.updated_at;

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
select name, on_orphan, fair, keep_us, keep_jobs, paused_at, pause_reason from holdfast.queue where name = :name;

-- name: list_queues :many
-- Every queue that has a policy or a route.
select q.name, coalesce(p.on_orphan, 'requeue') as on_orphan, coalesce(p.fair, 0) as fair, p.keep_us, p.keep_jobs,
    p.paused_at, p.pause_reason
from (select name from holdfast.queue union select queue from holdfast.route) as q
left join holdfast.queue p on p.name = q.name
order by q.name;

-- name: count_pending :many
select r.queue, (select count(*) from (select 1 from holdfast.job j
    where j.route = r.id and j.state = 'pending' and j.gate is null limit :cap) as c) as jobs
from holdfast.route r;

-- name: count_later :many
select r.queue, (select count(*) from (select 1 from holdfast.job j
    where j.route = r.id and j.state in ('scheduled', 'waiting') limit :cap) as c) as jobs
from holdfast.route r;

-- name: count_blocked :many
select b.queue, count(*) as jobs
from (select queue from holdfast.job where state = 'pending' and gate is not null limit :cap) as b
group by b.queue;

-- name: count_running :many
select queue, count(*) as jobs from holdfast.job where state = 'running' group by queue;

-- name: count_finished :many
-- Those that ended since a moment, newest first: the index is by queue and time.
select q.name as queue, s.state, (select count(*) from (select 1 from holdfast.job j
    where j.queue = q.name and j.finished_at is not null and j.finished_at > holdfast.now_us() - :since_us
        and j.state = s.state order by j.queue, j.finished_at desc limit :cap) as c) as jobs
from (select name from holdfast.queue union select queue from holdfast.route) as q
cross join (select 'succeeded' as state union all select 'failed' union all select 'cancelled') as s;

-- name: list_lanes :many
select name, concurrency, interval_us, burst, free_at, opens_at,
    (select count(*) from holdfast.job j where j.state = 'running' and j.lane = lane.name) as running,
    (select count(*) from (select 1 from holdfast.job k where k.state = 'pending' and k.gate = lane.name limit :cap)
        as c) as blocked
from holdfast.lane order by name limit :limit;
