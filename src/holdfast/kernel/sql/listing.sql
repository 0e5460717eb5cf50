-- Lists of jobs, newest first.

-- part: any_kind
coalesce(cast(:kind as text), cast(:begins as text), cast(:hidden as text)) is null

-- part: kind_holds on postgres
strpos(substr(j.kind, length(:begins) + 1, length(j.kind) - length(:begins) - length(:ends)), :holds) > 0

-- part: kind_holds on sqlite
-- The function has another name here.
instr(substr(j.kind, length(:begins) + 1, length(j.kind) - length(:begins) - length(:ends)), :holds) > 0

-- part: kind_fits
(cast(:kind as text) is null or j.kind = :kind)
    and (cast(:hidden as text) is null or substr(j.kind, 1, length(:hidden)) <> :hidden)
    and (cast(:begins as text) is null or (length(j.kind) >= length(:begins) + length(:ends)
        and substr(j.kind, 1, length(:begins)) = :begins and substr(j.kind, length(j.kind) - length(:ends) + 1) = :ends
        and @kind_holds))

-- name: seq_before :one
-- The next older job, or the job that many further back. Reads only the primary key.
select seq from holdfast.job where seq < :before order by seq desc limit 1 offset :skipped;

-- name: job_at :one
-- The job with this number, or the next older one, and when it was created.
select seq, created_at as at from holdfast.job where seq <= :seq order by seq desc limit 1;

-- name: list_jobs :many
-- Between two seqs, because there may be no job that matches. A pattern of kinds is compared piece by piece: `like`
-- differs between the databases, and a pattern from outside could make it slow.
select :columns(j)
from holdfast.job_now j
where (cast(:queue as text) is null or j.queue = :queue) and @kind_fits
    and (cast(:tenant as text) is null or j.tenant = :tenant) and j.seq < :before and j.seq > :after
order by j.seq desc limit :limit;

-- name: ended_in_state :many
-- By state: reads the table that has jobs in this state, between two seqs. The job's own row says what it is.
select e.seq from holdfast.ended e
where e.state = :state and (cast(:queue as text) is null or e.queue = :queue)
    and (@any_kind or (select @kind_fits from holdfast.job j where j.seq = e.seq))
    and (cast(:tenant as text) is null or (select j.tenant from holdfast.job j where j.seq = e.seq) = :tenant)
    and e.seq < :before and e.seq > :after
order by e.seq desc limit :limit;

-- part: troubled
select e.finished_at, e.seq, e.queue, e.state from holdfast.ended e
    where e.state in ('failed', 'cancelled') and (e.finished_at, e.seq) < (:before_at, :before)
        and e.finished_at >= :since
    order by e.finished_at desc, e.seq desc

-- part: troubled_fits
t.state = :state and (cast(:queue as text) is null or t.queue = :queue)
    and (@any_kind or (select @kind_fits from holdfast.job j where j.seq = t.seq))
    and (cast(:tenant as text) is null or (select j.tenant from holdfast.job j where j.seq = t.seq) = :tenant)
    and (:since = 0 or (select j.created_at from holdfast.job j where j.seq = t.seq) >= :since)

-- name: jobs_troubled :many
-- Those that failed or were cancelled, the last first: few, so an index has them.
select t.finished_at as at, t.seq from (@troubled limit :look) as t
where @troubled_fits order by t.finished_at desc, t.seq desc limit :limit;

-- name: end_of_jobs_troubled :one
select t.finished_at as at, t.seq from (@troubled limit 1 offset :skipped) as t;

-- name: count_jobs_troubled :one
select count(*) as number from (@troubled limit :look) as t where @troubled_fits;

-- name: count_failed :one
-- Among so many of the last that failed or were cancelled.
select count(*) as number from (@troubled limit :look) as t where t.state = :state;

-- name: failed_jobs :many
-- Only what a group of failures shows of each.
select cast(j.id as text) as id, j.tenant, e.error, t.finished_at as at from (@troubled limit :look) as t
    join holdfast.job j on j.seq = t.seq join holdfast.ended e on e.seq = t.seq
where t.state = :state and j.kind = :kind and (cast(:tenant as text) is null or j.tenant = :tenant)
order by t.finished_at desc, t.seq desc limit :limit;

-- name: count_jobs :one
-- Among so many of the newest, down to one.
select count(*) as number from (
    select r.queue, r.kind, r.tenant from holdfast.job r where r.seq > :after order by r.seq desc limit :look) as j
where (cast(:queue as text) is null or j.queue = :queue) and @kind_fits
    and (cast(:tenant as text) is null or j.tenant = :tenant);

-- name: later_in_state :many
-- No index can answer `case`, so the jobs are read by their numbers.
select t.seq from holdfast.later t
where case t.state when :state then true else false end
    and (cast(:queue as text) is null or (select j.queue from holdfast.job j where j.seq = t.seq) = :queue)
    and (@any_kind or (select @kind_fits from holdfast.job j where j.seq = t.seq))
    and (cast(:tenant as text) is null or (select j.tenant from holdfast.job j where j.seq = t.seq) = :tenant)
    and t.seq < :before and t.seq > :after
order by t.seq desc limit :limit;

-- name: pending_in_order :many
-- No index has the rows of `ready` in this order, so each job is looked up.
select j.seq from holdfast.job j
where ((select r.seq from holdfast.ready r where r.route = j.route and r.priority = j.priority and r.slot = j.slot
        and r.seq = j.seq) is not null
    or (select t.state from holdfast.later t where t.seq = j.seq) = 'blocked')
    and (cast(:queue as text) is null or j.queue = :queue) and @kind_fits
    and (cast(:tenant as text) is null or j.tenant = :tenant) and j.seq < :before and j.seq > :after
order by j.seq desc limit :limit;

-- name: find_running :many
-- Running jobs are few and have a table of their own. They are collected before they are sorted, whatever the
-- planner thinks of `limit`.
with found as materialized (
    select l.seq from holdfast.lease l
    where (cast(:queue as text) is null or l.queue = :queue)
        and (@any_kind or (select @kind_fits from holdfast.job j where j.seq = l.seq))
        and (cast(:tenant as text) is null or (select j.tenant from holdfast.job j where j.seq = l.seq) = :tenant)
)
select seq from found where seq < :before order by seq desc limit :limit;

-- name: jobs_by_seq :many
select :columns
from holdfast.job_now where seq = any(cast(:seqs as bigint[])) order by seq desc;

-- name: jobs_beside :many
-- The ids next to each of these, whether or not it exists: what a short form of it could be confused with.
select g.id,
    cast((select j.id from holdfast.job j where j.id < cast(g.id as uuid) order by j.id desc limit 1) as text) as before,
    cast((select j.id from holdfast.job j where j.id > cast(g.id as uuid) order by j.id limit 1) as text) as after
from rows(:ids) as g (id text);

-- name: jobs_from :many
-- By how an id begins: a bounded part of the index, in which the tenant's are looked for.
select f.id, f.kind as name from (select cast(j.id as text) as id, j.kind, j.tenant from holdfast.job j
    where j.id >= cast(:low as uuid) and j.id <= cast(:high as uuid) order by j.id limit :look) as f
where (cast(:tenant as text) is null or f.tenant = :tenant) order by f.id limit :limit;

-- name: queues_called :many
-- A queue has a row for each set of capabilities that its jobs ask for; there are few.
select distinct r.queue as id, r.queue as name from holdfast.route r
where substr(r.queue, 1, length(:text)) = :text order by 1 limit :limit;

-- name: workers_called :many
-- The last one of each id, among the last that it looks at.
select w.id, max(w.name) as name from (
    select k.id, k.name, k.seq from holdfast.worker k order by k.seq desc limit :look) as w
where substr(w.name, 1, length(:text)) = :text or substr(w.id, 1, length(:text)) = :text
group by w.id order by max(w.seq) desc limit :limit;
