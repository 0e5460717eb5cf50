-- Schedules: jobs that the clock enqueues.

-- name: put_schedule :exec
-- A changed rhythm starts again; otherwise the next tick stays, so that a deploy loses no tick and fires none twice.
insert into holdfast.schedule (name, kind, queue, cron, timezone, catch_up, job, next_at, updated_at)
values (:name, :kind, :queue, :cron, :timezone, :catch_up, :job, :next_at, holdfast.now_us())
on conflict (name) do update set kind = excluded.kind, queue = excluded.queue, cron = excluded.cron,
    timezone = excluded.timezone, catch_up = excluded.catch_up, job = excluded.job, updated_at = excluded.updated_at,
    retry_at = null, error = null, next_at = case when schedule.cron = excluded.cron and schedule.timezone = excluded.timezone
        then schedule.next_at else excluded.next_at end;

-- name: due_schedules :many
-- A schedule that could not be fired is due at the time of its retry, and never before its tick: a release that does
-- not know retries fires it, advances it, and does not change the time of the retry.
select :columns
from holdfast.schedule where paused_at is null and retry_at is null and next_at <= holdfast.now_us()
union all
select :columns
from holdfast.schedule where paused_at is null and retry_at is not null and retry_at <= holdfast.now_us()
    and next_at <= holdfast.now_us()
order by next_at limit :limit;

-- name: list_schedules :many
select :columns
from holdfast.schedule order by name;

-- name: find_schedule :one
select :columns
from holdfast.schedule where name = :name;

-- name: advance_schedule :one
-- Compare-and-set on the tick that the caller saw: only one of all who try enqueues, in this transaction.
update holdfast.schedule set next_at = :next_at, last_at = :seen, last_job = :job, retry_at = null, error = null
where name = :name and next_at = :seen and paused_at is null
returning name, next_at;

-- name: postpone_schedule :one
-- Stores why it could not be fired, and when to try again.
update holdfast.schedule set error = :error, retry_at = holdfast.now_us() + cast(:delay_us as bigint)
where name = :name and next_at = :seen and paused_at is null
returning name, next_at;

-- name: pause_schedule :one
update holdfast.schedule set paused_at = coalesce(paused_at, holdfast.now_us()) where name = :name
returning name, next_at;

-- name: resume_schedule :one
-- Ticks of the pause are not caught up: it continues with the next one.
update holdfast.schedule set paused_at = null, next_at = :next_at, retry_at = null, error = null where name = :name
returning name, next_at;

-- name: delete_schedule :one
delete from holdfast.schedule where name = :name returning name, next_at;
