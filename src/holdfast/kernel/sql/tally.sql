-- The tally: what has ended, counted by minute, hour and day, and failures of one kind as one.

-- name: add_tallies :exec
-- In the order of the key, so that two who add at the same time do not wait for each other in a circle.
insert into holdfast.tally (subject, grain, tenant, at, source, kind, mode, state, number, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_nano)
select t.subject, t.grain, t.tenant, t.at, t.source, t.kind, t.mode, t.state, t.number, t.input_tokens, t.output_tokens,
    t.cache_write_tokens, t.cache_read_tokens, t.cost_nano
from rows(:tallies) as t (subject text, grain text, tenant text, at bigint, source text, kind text, mode text, state text,
    number bigint, input_tokens bigint, output_tokens bigint, cache_write_tokens bigint, cache_read_tokens bigint,
    cost_nano bigint)
where true order by 1, 2, 3, 4, 5, 6, 7, 8
on conflict (subject, grain, tenant, at, source, kind, mode, state) do update set
    number = tally.number + excluded.number, input_tokens = tally.input_tokens + excluded.input_tokens,
    output_tokens = tally.output_tokens + excluded.output_tokens,
    cache_write_tokens = tally.cache_write_tokens + excluded.cache_write_tokens,
    cache_read_tokens = tally.cache_read_tokens + excluded.cache_read_tokens,
    cost_nano = tally.cost_nano + excluded.cost_nano;

-- name: add_times :exec
insert into holdfast.tally_time (subject, grain, tenant, at, source, kind, mode, state, measure, bucket, number)
select t.subject, t.grain, t.tenant, t.at, t.source, t.kind, t.mode, t.state, t.measure, t.bucket, t.number
from rows(:times) as t (subject text, grain text, tenant text, at bigint, source text, kind text, mode text, state text,
    measure text, bucket integer, number bigint)
where true order by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
on conflict (subject, grain, tenant, at, source, kind, mode, state, measure, bucket) do update set
    number = tally_time.number + excluded.number;

-- name: hold_tally_mark :one
-- A transaction that counts or removes what is behind a mark has its row until it commits, so that nothing is counted
-- twice.
insert into holdfast.tally_mark (subject, source, at) values (:subject, :source, -1)
on conflict (subject, source) do update set at = tally_mark.at
returning at;

-- name: find_tally_mark :one
select at from holdfast.tally_mark where subject = :subject and source = :source;

-- name: move_tally_mark :exec
update holdfast.tally_mark set at = :at where subject = :subject and source = :source;

-- name: untallied_queues :many
-- The queues in which jobs have ended since the mark, by an index probe for each queue.
with recursive found (queue) as (
    select (select e.queue from holdfast.ended e order by e.queue limit 1)
    union all
    select (select e.queue from holdfast.ended e where e.queue > found.queue order by e.queue limit 1)
    from found where found.queue is not null
)
select f.queue as name from found f
where f.queue is not null and (select e.finished_at from holdfast.ended e
    where e.queue = f.queue and e.finished_at < :before and e.finished_at > coalesce((select m.at
        from holdfast.tally_mark m where m.subject = 'jobs' and m.source = f.queue), -1)
    order by e.queue, e.finished_at limit 1) is not null
limit :limit;

-- name: jobs_upto :one
-- When the last of the next so many jobs of a queue ended. All that ended at the same time are counted together.
select e.finished_at as at from holdfast.ended e
where e.queue = :queue and e.finished_at > :after and e.finished_at < :before
order by e.queue, e.finished_at limit 1 offset :skipped;

-- part: job_that_ended on postgres
cross join lateral (select j.kind, j.tenant, j.due_at, j.created_at, j.id, j.layer from holdfast.job j
    where j.seq = e.seq offset 0) as j

-- part: job_that_ended on sqlite
-- SQLite has no lateral join.
cross join holdfast.job j on j.seq = e.seq

-- part: ended_job
-- A job waited from when it was due until its first attempt. Its duration is that of its last attempt.
select e.finished_at as at, e.queue as source, j.kind, '' as mode, e.state, j.tenant, 0 as input_tokens,
    0 as output_tokens, 0 as cache_write_tokens, 0 as cache_read_tokens, 0 as cost_nano,
    case when e.token > 1 then coalesce((select a.started_at from holdfast.attempt a where a.job = e.seq
        order by a.epoch, a.token limit 1), e.claimed_at) else e.claimed_at end
        - case when j.due_at > j.created_at then j.due_at else j.created_at end as wait_us,
    e.finished_at - e.claimed_at as duration_us, cast(j.id as text) as id,
    case when e.state = 'failed' then e.error ->> 'type' end as error,
    case when e.state = 'failed' then e.error ->> 'message' end as message, j.layer
from holdfast.ended e
@job_that_ended

-- name: ended_jobs :many
@ended_job
where e.queue = :queue and e.finished_at > :after and e.finished_at <= :upto;

-- name: hold_marks_of_jobs :many
insert into holdfast.tally_mark (subject, source, at)
select distinct cast(:subject as text), e.queue, -1 from holdfast.ended e where e.seq = any(cast(:seqs as bigint[])) order by 2
on conflict (subject, source) do update set at = tally_mark.at
returning source as name, at;

-- name: untallied_jobs :many
-- Of these jobs, those that the second walk through their queue has not counted. It is behind the first.
@ended_job
where e.seq = any(cast(:seqs as bigint[])) and e.finished_at > coalesce((select m.at from holdfast.tally_mark m
    where m.subject = 'again:jobs' and m.source = e.queue), -1);

-- name: queue_to_count_again :one
-- A queue in which jobs ended that the second walk has not counted, or one that has an hour to complete.
with recursive found (queue) as (
    select (select e.queue from holdfast.ended e order by e.queue limit 1)
    union all
    select (select e.queue from holdfast.ended e where e.queue > found.queue order by e.queue limit 1)
    from found where found.queue is not null
)
select f.queue as name from found f
where f.queue is not null and (select e.finished_at from holdfast.ended e
    where e.queue = f.queue and e.finished_at < :before and e.finished_at >= :first
        and e.finished_at > coalesce((select m.at from holdfast.tally_mark m
            where m.subject = 'again:jobs' and m.source = f.queue), -1)
    order by e.queue, e.finished_at limit 1) is not null
union all
select t.source from holdfast.tally t
where t.subject = 'again:jobs' and t.grain = 'tenant_hour' and t.at < :before
limit 1;

-- part: hours
-- What ended, added up as the tally has it: by hour and tenant.
select cast(:again as text) as subject, 'tenant_hour' as grain, f.tenant, f.at / 3600000000 * 3600000000 as at, f.source, f.kind, f.mode,
    f.state, count(*) as number, cast(sum(f.input_tokens) as bigint) as input_tokens,
    cast(sum(f.output_tokens) as bigint) as output_tokens, cast(sum(f.cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(f.cache_read_tokens) as bigint) as cache_read_tokens, cast(sum(f.cost_nano) as bigint) as cost_nano

-- name: jobs_again :many
@hours
from (
@ended_job
where e.queue = :queue and e.finished_at > :after and e.finished_at <= :upto) as f
group by f.tenant, f.at / 3600000000 * 3600000000, f.source, f.kind, f.mode, f.state;

-- name: hour_to_complete :one
select t.at from holdfast.tally t
where t.subject = :again and t.grain = 'tenant_hour' and t.at < :before limit 1;

-- name: missing_in_tally :many
-- What was found by the second walk and not by the first. A number that became lower is that of rows that are gone.
select m.subject, m.grain, m.tenant, m.at, m.source, m.kind, m.mode, m.state, m.number, m.input_tokens, m.output_tokens,
    m.cache_write_tokens, m.cache_read_tokens, m.cost_nano
from (
    select cast(:subject as text) as subject, a.grain, a.tenant, a.at, a.source, a.kind, a.mode, a.state,
        greatest(0, a.number - coalesce(t.number, 0)) as number,
        greatest(0, a.input_tokens - coalesce(t.input_tokens, 0)) as input_tokens,
        greatest(0, a.output_tokens - coalesce(t.output_tokens, 0)) as output_tokens,
        greatest(0, a.cache_write_tokens - coalesce(t.cache_write_tokens, 0)) as cache_write_tokens,
        greatest(0, a.cache_read_tokens - coalesce(t.cache_read_tokens, 0)) as cache_read_tokens,
        greatest(0, a.cost_nano - coalesce(t.cost_nano, 0)) as cost_nano
    from holdfast.tally a left join holdfast.tally t on t.subject = :subject and t.grain = a.grain and t.tenant = a.tenant
        and t.at = a.at and t.source = a.source and t.kind = a.kind and t.mode = a.mode and t.state = a.state
    where a.subject = :again and a.grain = 'tenant_hour' and a.at < :before
        and (cast(:source as text) is null or a.source = :source)) as m
where m.number > 0;

-- name: forget_again :exec
delete from holdfast.tally where subject = :again and grain = 'tenant_hour' and at < :before
    and (cast(:source as text) is null or source = :source);

-- name: forget_again_of :exec
delete from holdfast.tally where subject = :again and grain = 'tenant_hour' and tenant = :tenant;

-- name: known_failures :many
select id as name from holdfast.failure_group where id = any(cast(:ids as text[]));

-- name: last_failure_group :one
-- The group that is this far back among those of a tenant.
select id as name from holdfast.failure_group where tenant = :tenant
order by tenant, last_at desc, id desc limit 1 offset :skipped;

-- name: add_failures :exec
insert into holdfast.failure_group (id, subject, tenant, kind, error, message, number, first_at, last_at, last_id)
select f.id, f.subject, f.tenant, f.kind, f.error, f.message, f.number, f.first_at, f.last_at, f.last_id
from rows(:failures) as f (id text, subject text, tenant text, kind text, error text, message text, number bigint,
    first_at bigint, last_at bigint, last_id text)
where true order by 1
on conflict (id) do update set number = failure_group.number + excluded.number,
    first_at = least(failure_group.first_at, excluded.first_at),
    last_id = case when excluded.last_at >= failure_group.last_at then excluded.last_id else failure_group.last_id end,
    last_at = greatest(failure_group.last_at, excluded.last_at);

-- name: forget_tallies :many on postgres
delete from holdfast.tally where ctid = any(array(select t.ctid from holdfast.tally t
    where t.grain = :grain and t.at < :before order by t.grain, t.at limit :limit))
returning at;

-- name: forget_tallies :many on sqlite
-- Forked: the address of a row is called `rowid` here.
delete from holdfast.tally where rowid in (select t.rowid from holdfast.tally t
    where t.grain = :grain and t.at < :before order by t.grain, t.at limit :limit)
returning at;

-- name: forget_times :many on postgres
delete from holdfast.tally_time where ctid = any(array(select t.ctid from holdfast.tally_time t
    where t.grain = :grain and t.at < :before order by t.grain, t.at limit :limit))
returning at;

-- name: forget_times :many on sqlite
-- Forked: the address of a row is called `rowid` here.
delete from holdfast.tally_time where rowid in (select t.rowid from holdfast.tally_time t
    where t.grain = :grain and t.at < :before order by t.grain, t.at limit :limit)
returning at;

-- name: forget_failures :many on postgres
delete from holdfast.failure_group where ctid = any(array(select t.ctid from holdfast.failure_group t
    where t.last_at < :before order by t.last_at limit :limit))
returning last_at as at;

-- name: forget_failures :many on sqlite
-- Forked: the address of a row is called `rowid` here.
delete from holdfast.failure_group where rowid in (select t.rowid from holdfast.failure_group t
    where t.last_at < :before order by t.last_at limit :limit)
returning last_at as at;

-- name: series :many
-- Of everybody or of one tenant: the newest first, as far as the cap goes.
select t.at / :step * :step as at, '' as tenant, case when :by_source = 1 then t.source else '' end as source,
    case when :by_kind = 1 then t.kind else '' end as kind, case when :by_mode = 1 then t.mode else '' end as mode,
    case when :by_state = 1 then t.state else '' end as state, cast(sum(t.number) as bigint) as number,
    cast(sum(t.input_tokens) as bigint) as input_tokens, cast(sum(t.output_tokens) as bigint) as output_tokens,
    cast(sum(t.cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(t.cache_read_tokens) as bigint) as cache_read_tokens, cast(sum(t.cost_nano) as bigint) as cost_nano
from (select k.* from holdfast.tally k
    where k.subject = :subject and k.grain = :grain and k.tenant = :tenant and k.at >= :since and k.at < :until
        and (cast(:source as text) is null or k.source = :source) and (cast(:kind as text) is null or k.kind = :kind)
        and (cast(:state as text) is null or k.state = :state)
    order by k.subject, k.grain, k.tenant, k.at desc limit :cap) as t
group by 1, 3, 4, 5, 6 order by 1 desc, 7 desc, 3, 4, 5, 6 limit :limit;

-- name: series_of_times :many
select t.at / :step * :step as at, '' as tenant, case when :by_source = 1 then t.source else '' end as source,
    case when :by_kind = 1 then t.kind else '' end as kind, case when :by_mode = 1 then t.mode else '' end as mode,
    case when :by_state = 1 then t.state else '' end as state, t.measure, t.bucket, cast(sum(t.number) as bigint) as number
from (select k.* from holdfast.tally_time k
    where k.subject = :subject and k.grain = :grain and k.tenant = :tenant and k.at >= :since and k.at < :until
        and (cast(:source as text) is null or k.source = :source) and (cast(:kind as text) is null or k.kind = :kind)
        and (cast(:state as text) is null or k.state = :state)
    order by k.subject, k.grain, k.tenant, k.at desc limit :cap) as t
group by 1, 3, 4, 5, 6, 7, 8;

-- name: series_by_tenant :many
-- Of each tenant.
select t.at / :step * :step as at, t.tenant, case when :by_source = 1 then t.source else '' end as source,
    case when :by_kind = 1 then t.kind else '' end as kind, case when :by_mode = 1 then t.mode else '' end as mode,
    case when :by_state = 1 then t.state else '' end as state, cast(sum(t.number) as bigint) as number,
    cast(sum(t.input_tokens) as bigint) as input_tokens, cast(sum(t.output_tokens) as bigint) as output_tokens,
    cast(sum(t.cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(t.cache_read_tokens) as bigint) as cache_read_tokens, cast(sum(t.cost_nano) as bigint) as cost_nano
from (select k.* from holdfast.tally k
    where k.subject = :subject and k.grain = :grain and k.at >= :since and k.at < :until
        and (cast(:source as text) is null or k.source = :source) and (cast(:kind as text) is null or k.kind = :kind)
        and (cast(:state as text) is null or k.state = :state)
    order by k.grain, k.at desc limit :cap) as t
group by 1, 2, 3, 4, 5, 6 order by 1 desc, 7 desc, 2, 3, 4, 5, 6 limit :limit;

-- name: times_by_tenant :many
select t.at / :step * :step as at, t.tenant, case when :by_source = 1 then t.source else '' end as source,
    case when :by_kind = 1 then t.kind else '' end as kind, case when :by_mode = 1 then t.mode else '' end as mode,
    case when :by_state = 1 then t.state else '' end as state, t.measure, t.bucket, cast(sum(t.number) as bigint) as number
from (select k.* from holdfast.tally_time k
    where k.subject = :subject and k.grain = :grain and k.at >= :since and k.at < :until
        and (cast(:source as text) is null or k.source = :source) and (cast(:kind as text) is null or k.kind = :kind)
        and (cast(:state as text) is null or k.state = :state)
    order by k.grain, k.at desc limit :cap) as t
group by 1, 2, 3, 4, 5, 6, 7, 8;

-- name: failures :many
-- Of all tenants: the last ones first, as far as the cap goes. Groups of several tenants are one.
select f.subject, f.kind, f.error, f.message, cast(sum(f.number) as bigint) as number, min(f.first_at) as first_at,
    max(f.last_at) as last_at, max(f.last_id) as last_id
from (select k.* from holdfast.failure_group k where k.last_at >= :since
    order by k.last_at desc, k.id desc limit :cap) as f
where (cast(:subject as text) is null or f.subject = :subject) and (cast(:kind as text) is null or f.kind = :kind)
group by f.subject, f.kind, f.error, f.message order by 7 desc, 1, 2, 3, 4 limit :limit;

-- name: failures_of :many
select f.subject, f.kind, f.error, f.message, f.number, f.first_at, f.last_at, f.last_id
from (select k.* from holdfast.failure_group k where k.tenant = :tenant and k.last_at >= :since
    order by k.tenant, k.last_at desc, k.id desc limit :cap) as f
where (cast(:subject as text) is null or f.subject = :subject) and (cast(:kind as text) is null or f.kind = :kind)
order by 7 desc, 1, 2, 3, 4 limit :limit;

-- name: tenants_tallies :many
-- Rows of one tenant that name a source.
select :columns from holdfast.tally
where subject = :subject and grain = :grain and tenant = :tenant and source <> :erased order by at limit :limit;

-- name: tenants_times :many
select :columns from holdfast.tally_time
where subject = :subject and grain = :grain and tenant = :tenant and source <> :erased order by at limit :limit;

-- name: forget_empty_tallies :exec
-- What has become nothing because it was counted elsewhere.
delete from holdfast.tally where subject = :subject and grain = :grain and tenant = :tenant and at >= :since
    and at <= :until and number = 0 and input_tokens = 0 and output_tokens = 0;

-- name: forget_empty_times :exec
delete from holdfast.tally_time where subject = :subject and grain = :grain and tenant = :tenant and at >= :since
    and at <= :until and number = 0;

-- name: delete_failures_of :exec
delete from holdfast.failure_group where tenant = :tenant;

-- name: forget_minutes :exec
-- Minutes of sources that no hour has any more.
delete from holdfast.tally where subject = :subject and grain = 'minute' and tenant = ''
    and source = any(cast(:sources as text[]))
    and (select h.at from holdfast.tally h where h.subject = :subject and h.grain = 'hour' and h.tenant = ''
        and h.at >= :since and h.source = tally.source limit 1) is null;
