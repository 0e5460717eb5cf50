-- Retention: finished jobs leave after a while, oldest first, some at a time.

-- name: finished_queues :many
-- Each queue with finished jobs, by one index probe each.
with recursive found (queue) as (
    select (select j.queue from holdfast.job j where j.finished_at is not null order by j.queue limit 1)
    union all
    select (select j.queue from holdfast.job j where j.finished_at is not null and j.queue > found.queue
        order by j.queue limit 1)
    from found where found.queue is not null
)
select f.queue, p.keep_us, p.keep_jobs from found f left join holdfast.queue p on p.name = f.queue
where f.queue is not null;

-- name: last_kept :one
-- When the job finished that is the last of those to keep.
select finished_at as at from holdfast.job where queue = :queue and finished_at is not null
order by finished_at desc limit 1 offset :kept_before;

-- name: find_prunable :many
-- A child goes after its parent: whoever waits for it reads how it ended.
select j.seq, j.parent from holdfast.job j
where j.queue = :queue and j.finished_at is not null and j.finished_at <= :before and j.open_children = 0
    and (j.parent is null or (select p.seq from holdfast.job p where p.seq = j.parent) is null)
order by j.finished_at limit :limit;

-- name: prune_attempts :exec
delete from holdfast.attempt where job = any(cast(:seqs as bigint[]));

-- name: prune_steps :exec
delete from holdfast.step where job = any(cast(:seqs as bigint[]));

-- name: prune :many
delete from holdfast.job where seq = any(cast(:seqs as bigint[])) and finished_at is not null and open_children = 0
returning seq;
