-- Erasing: removes everything of one tenant, some at a time. If the eraser is killed, the next one continues.

-- name: jobs_after :many
-- The next jobs in their order, and which of them belong to the tenant. No index has the tenant, because every job
-- would pay for it.
select j.seq, cast(j.id as text) as id, j.lane, case when j.tenant = :tenant then 1 else 0 end as mine,
    case when (select e.seq from holdfast.ended e where e.seq = j.seq) is null then 0 else 1 end as ended
from holdfast.job j where j.seq > :after order by j.seq limit :limit;

-- name: still_open :many
-- Those of these jobs that have not ended.
select j.seq from holdfast.job j where j.seq = any(cast(:seqs as bigint[]))
    and (select e.seq from holdfast.ended e where e.seq = j.seq) is null;

-- name: delete_keys :many
delete from holdfast.idempotency where tenant = :tenant and key in (
    select i.key from holdfast.idempotency i where i.tenant = :tenant order by i.key limit :limit)
returning key;

-- name: stored_schedules :many
select name, job from holdfast.schedule order by name;

-- name: agents_of :many
select id from holdfast.agent where tenant = :tenant order by id limit :limit;
