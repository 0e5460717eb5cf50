-- What stands between a job and a worker, for `why`.

-- name: why_job :one
select j.seq, j.kind, j.queue, j.route, j.state, j.priority, j.slot, j.gate, j.lane, j.cost, j.attempts, j.max_attempts,
    j.due_at, j.lease_until, j.claimed_at, j.finished_at, j.cancel_requested_at, j.open_children, j.channel, j.error,
    q.paused_at, q.pause_reason, r.capabilities, w.id as holder, w.hostname as host, holdfast.now_us() as now
from holdfast.job j
left join holdfast.queue q on q.name = j.queue
left join holdfast.route r on r.id = j.route
left join holdfast.worker w on w.seq = j.worker
where j.id = :id;

-- name: lane_line :many
-- Those of a lane that a claim on these routes would consider, up to this job itself.
select seq, priority, slot, lane, cost from holdfast.job
where lane = :lane and state in ('scheduled', 'pending', 'waiting') and state = 'pending' and gate is null
    and route = any(cast(:routes as bigint[]))
    and (priority, slot, seq) <= (cast(:priority as integer), cast(:slot as bigint), cast(:seq as bigint))
order by priority, slot, seq limit :limit;

-- name: paused_routes :many
select id as route from holdfast.paused_route;
