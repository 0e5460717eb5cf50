-- What keeps a job from being claimed, for `why`.

-- name: why_job :one
select j.seq, j.kind, j.queue, j.route, j.state, j.priority, j.slot, j.gate, j.lane, j.cost, j.attempts, j.max_attempts,
    j.due_at, j.lease_until, j.claimed_at, j.finished_at, j.cancel_requested_at, j.open_children, j.channel, j.error,
    q.paused_at, q.pause_reason, r.capabilities, w.id as holder, w.hostname as host, holdfast.now_us() as now,
    j.layer, coalesce(nullif(w.host, 0), w.seq) as process
from holdfast.job_now j
left join holdfast.queue q on q.name = j.queue
left join holdfast.route r on r.id = j.route
left join holdfast.worker w on w.seq = j.worker
where j.id = :id;

-- name: lane_line :many
-- The jobs of a lane that a claim on these routes would consider, up to this job.
select :columns from holdfast.ready
where lane = :lane and route = any(cast(:routes as bigint[]))
    and (@place) <= (cast(:priority as integer), cast(:slot as bigint), cast(:seq as bigint))
order by @place limit :limit;

-- name: lane_crowd :one
-- For a lane whose row is missing.
select (select count(*) from holdfast.lease l where l.lane = :lane) as running,
    first.priority as first_priority, first.slot as first_slot, first.seq as first_seq, holdfast.now_us() as now
from (select 1 as one) as always
left join holdfast.later first on first.seq = (
    select t.seq from holdfast.later t where t.state = 'blocked' and t.lane = :lane order by @place(t) limit 1);

-- name: paused_routes :many
select id as route from holdfast.paused_route;
