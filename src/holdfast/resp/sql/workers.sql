-- Workers behind connections: what each holds, and what waits where.

-- name: lock_holders :many
-- Those of these who may take something, each with what it holds. Their rows are locked, so that two connections of one
-- worker cannot both take its last place.
select w.seq, w.slots, (select count(*) from holdfast.lease l where l.worker = w.seq) as held
from holdfast.worker w
where w.seq = any(cast(:workers as bigint[])) and w.status = 'active' and w.heartbeat_at + w.ttl_us > holdfast.now_us()
order by w.seq for update;

-- name: route_backlog :many
select r.route, count(*) as jobs from holdfast.ready r where r.route = any(cast(:routes as bigint[])) group by r.route;

-- name: list_progress :many
select p.job as seq, p.value as progress from holdfast.progress p where p.job = any(cast(:seqs as bigint[]));
