-- Retention: finished jobs are removed after a while, oldest first, some at a time.

-- name: finished_queues :many
-- Each queue with finished jobs, by one index probe each.
with recursive found (queue) as (
    select (select e.queue from holdfast.ended e order by e.queue limit 1)
    union all
    select (select e.queue from holdfast.ended e where e.queue > found.queue order by e.queue limit 1)
    from found where found.queue is not null
)
select f.queue, p.keep_us, p.keep_jobs from found f left join holdfast.queue p on p.name = f.queue
where f.queue is not null;

-- name: count_back :one
-- The oldest of a number of jobs that finished before a given time, and how many there are. The next count begins
-- there.
select min(c.at) as at, count(*) as jobs
from (select e.finished_at as at from holdfast.ended e
    where e.queue = :queue and e.finished_at < :below
    order by e.queue desc, e.finished_at desc limit :limit) as c;

-- part: ended_in_order on postgres
order by k.queue, k.finished_at fetch first :limit rows with ties

-- part: ended_in_order on sqlite
-- SQLite reads the index in its order, and stops at the limit that the query around it has.
order by k.queue, k.finished_at

-- name: find_prunable :many
-- The next jobs that are old enough, oldest first, and whether each may be removed. A child is removed after its
-- parent, because a caller that waits for the child reads how it ended. The jobs that must stay are returned too, so that
-- the next call can begin after them: also by seq, because one commit may end a thousand jobs at the same time. The
-- rows are taken in the order of the index, with all that ended at the same time as the last one, and then ordered
-- by seq: without statistics a plan that orders by seq first would read and sort everything that is old enough.
select e.seq, e.finished_at as at,
    case when coalesce((select f.open_children from holdfast.family f where f.job = e.seq), 0) = 0
        and (select p.seq from holdfast.job p where p.seq = (
            select j.parent from holdfast.job j where j.seq = e.seq)) is null then 1 else 0 end as prunable
from (select k.seq, k.finished_at from holdfast.ended k
    where k.queue = :queue and (k.finished_at, k.seq) > (:after, :after_seq) and k.finished_at <= :before
    @ended_in_order) as e
order by e.finished_at, e.seq limit :limit;

-- name: prune :many
-- An earlier statement has locked the rows, so the number of their children cannot change.
delete from holdfast.job where seq = any(cast(:seqs as bigint[]))
    and (select e.seq from holdfast.ended e where e.seq = job.seq) is not null
    and coalesce((select f.open_children from holdfast.family f where f.job = job.seq), 0) = 0
returning seq, cast(id as text) as id;

-- name: prune_endings :exec
delete from holdfast.ended where seq = any(cast(:seqs as bigint[]));

-- name: prune_attempts :exec
delete from holdfast.attempt where job = any(cast(:seqs as bigint[]));

-- name: prune_steps :exec
delete from holdfast.step where job = any(cast(:seqs as bigint[]));

-- name: prune_families :exec
delete from holdfast.family where job = any(cast(:seqs as bigint[]));

-- name: prune_progress :exec
delete from holdfast.progress where job = any(cast(:seqs as bigint[]));

-- name: prune_unique_keys :exec
-- Only keys that still name one of these jobs: another job may have taken a key since.
delete from holdfast.unique_key where job = any(cast(:jobs as uuid[]));

-- name: release_keys :exec
-- From now on they stay for as long as keys outlive their jobs.
update holdfast.idempotency set freed_at = holdfast.now_us() where job = any(cast(:jobs as uuid[])) and freed_at is null;

-- name: freed_keys :many
select cast(job as text) as job, freed_at as at, 1 as spent from holdfast.idempotency
where freed_at is not null and freed_at <= holdfast.now_us() - :age_us
order by freed_at limit :limit;

-- part: keys_in_order on postgres
order by k.created_at fetch first :limit rows with ties

-- part: keys_in_order on sqlite
-- SQLite reads the index in its order, and stops at the limit that the query around it has.
order by k.created_at

-- name: old_keys :many
-- The next keys that are old enough, oldest first, and which of them are spent: those of a job that ended long ago, or
-- that is gone. The condition reads one value for each key, because `not
-- exists` may be planned as a join with every job. Many keys may have the same age: all keys as old as the last one
-- are taken before their jobs decide, so that the index gives the order.
select cast(i.job as text) as job, i.created_at as at,
    case when coalesce((select coalesce((select e.finished_at from holdfast.ended e where e.seq = j.seq)
            > holdfast.now_us() - :age_us, true)
        from holdfast.job j where j.id = i.job), false) then 0 else 1 end as spent
from (select k.job, k.created_at from holdfast.idempotency k
    where (k.created_at, k.job) > (:after, :after_job) and k.created_at <= holdfast.now_us() - :age_us
        and k.freed_at is null
    @keys_in_order) as i
order by i.created_at, i.job limit :limit;

-- name: prune_keys :exec
delete from holdfast.idempotency where job = any(cast(:jobs as uuid[]));
