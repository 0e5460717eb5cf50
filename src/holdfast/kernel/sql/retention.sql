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

-- name: count_back :one
-- The oldest of so many that finished before a moment, and how many there are. Somebody who counts further begins there.
select min(c.at) as at, count(*) as jobs
from (select j.finished_at as at from holdfast.job j
    where j.queue = :queue and j.finished_at is not null and j.finished_at < :below
    order by j.queue desc, j.finished_at desc limit :limit) as c;

-- name: find_prunable :many on postgres
-- So many of those that may go by their age, oldest first, and which of them may go at all. A child goes after its
-- parent: whoever waits for it reads how it ended. Those that must stay are looked at too, so that the next look can
-- begin behind them: by seq too, because one commit may end a thousand at the same moment. In the order of the index, and
-- those that ended with the last one, are taken before seq decides: to order all by seq, a plan made without statistics
-- would read and sort whatever is old enough.
select j.seq, j.finished_at as at, case when j.open_children = 0
    and (j.parent is null or (select p.seq from holdfast.job p where p.seq = j.parent) is null) then 1 else 0 end
    as prunable
from (select k.seq, k.finished_at, k.open_children, k.parent from holdfast.job k
    where k.queue = :queue and k.finished_at is not null and (k.finished_at, k.seq) > (:after, :after_seq)
        and k.finished_at <= :before
    order by k.queue, k.finished_at fetch first :limit rows with ties) as j
order by j.finished_at, j.seq limit :limit;

-- name: find_prunable :many on sqlite
-- An index has its entries in the order of seq where all else is equal.
select j.seq, j.finished_at as at, case when j.open_children = 0
    and (j.parent is null or (select p.seq from holdfast.job p where p.seq = j.parent) is null) then 1 else 0 end
    as prunable
from holdfast.job j
where j.queue = :queue and j.finished_at is not null and (j.finished_at, j.seq) > (:after, :after_seq)
    and j.finished_at <= :before
order by j.queue, j.finished_at, j.seq limit :limit;

-- name: prune_attempts :exec
delete from holdfast.attempt where job = any(cast(:seqs as bigint[]));

-- name: prune_steps :exec
delete from holdfast.step where job = any(cast(:seqs as bigint[]));

-- name: prune :many
delete from holdfast.job where seq = any(cast(:seqs as bigint[])) and finished_at is not null and open_children = 0
returning seq, cast(id as text) as id;

-- name: release_keys :exec
-- From now on they stay for as long as keys outlive their jobs.
update holdfast.idempotency set freed_at = holdfast.now_us() where job = any(cast(:jobs as uuid[])) and freed_at is null;

-- name: freed_keys :many
select cast(job as text) as job, freed_at as at, 1 as spent from holdfast.idempotency
where freed_at is not null and freed_at <= holdfast.now_us() - :age_us
order by freed_at limit :limit;

-- name: old_keys :many on postgres
-- So many keys that are old enough, oldest first, and which of them are spent: those of a job that ended long ago, or
-- was removed by a release that left no word of it. A value for each key, where `not exists` may be planned as a join
-- with every job there is. Many keys may be as old as each other: those of the last one's age are all taken, before
-- their jobs decide, so that the index gives the order.
select cast(i.job as text) as job, i.created_at as at,
    case when coalesce((select j.finished_at is null or j.finished_at > holdfast.now_us() - :age_us
        from holdfast.job j where j.id = i.job), false) then 0 else 1 end as spent
from (select k.job, k.created_at from holdfast.idempotency k
    where (k.created_at, k.job) > (:after, :after_job) and k.created_at <= holdfast.now_us() - :age_us
        and k.freed_at is null
    order by k.created_at fetch first :limit rows with ties) as i
order by i.created_at, i.job limit :limit;

-- name: old_keys :many on sqlite
-- Sorts those of one age only, and has no ties to fetch.
select i.job, i.created_at as at,
    case when coalesce((select j.finished_at is null or j.finished_at > holdfast.now_us() - :age_us
        from holdfast.job j where j.id = i.job), false) then 0 else 1 end as spent
from holdfast.idempotency i
where (i.created_at, i.job) > (:after, :after_job) and i.created_at <= holdfast.now_us() - :age_us
    and i.freed_at is null
order by i.created_at, i.job limit :limit;

-- name: prune_keys :exec
delete from holdfast.idempotency where job = any(cast(:jobs as uuid[]));
