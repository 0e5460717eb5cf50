-- Schedules: jobs that are enqueued by the clock.

-- name: put_schedule :exec
-- A changed rhythm starts anew; anything else keeps the next tick, so that a deploy loses none and fires none twice.
insert into holdfast.schedule (name, kind, queue, cron, timezone, catch_up, job, next_at, updated_at)
values (:name, :kind, :queue, :cron, :timezone, :catch_up, :job, :next_at, holdfast.now_us())
on conflict (name) do update set kind = excluded.kind, queue = excluded.queue, cron = excluded.cron,
    timezone = excluded.timezone, catch_up = excluded.catch_up, job = excluded.job, updated_at = excluded.updated_at,
    retry_at = null, error = null, next_at = case when schedule.cron = excluded.cron and schedule.timezone = excluded.timezone
        then schedule.next_at else excluded.next_at end;

-- name: due_schedules :many
-- One that could not be fired is due when it is to be tried again, and never before its tick: a release that knows
-- nothing of retries fires it, moves it on, and leaves the time of the retry as it was.
select name, kind, queue, cron, timezone, catch_up, job, next_at, last_at, cast(last_job as text) as last_job, paused_at,
    retry_at, error, holdfast.now_us() as now
from holdfast.schedule where paused_at is null and retry_at is null and next_at <= holdfast.now_us()
union all
select name, kind, queue, cron, timezone, catch_up, job, next_at, last_at, cast(last_job as text) as last_job, paused_at,
    retry_at, error, holdfast.now_us() as now
from holdfast.schedule where paused_at is null and retry_at is not null and retry_at <= holdfast.now_us()
    and next_at <= holdfast.now_us()
order by next_at limit :limit;

-- name: list_schedules :many
select name, kind, queue, cron, timezone, catch_up, job, next_at, last_at, cast(last_job as text) as last_job, paused_at,
    retry_at, error, holdfast.now_us() as now
from holdfast.schedule order by name;

-- name: find_schedule :one
select name, kind, queue, cron, timezone, catch_up, job, next_at, last_at, cast(last_job as text) as last_job, paused_at,
    retry_at, error, holdfast.now_us() as now
from holdfast.schedule where name = :name;

-- name: advance_schedule :one
-- Compare-and-set on the tick that was seen: of all who try, one enqueues, in this transaction.
update holdfast.schedule set next_at = :next_at, last_at = :seen, last_job = :job, retry_at = null, error = null
where name = :name and next_at = :seen and paused_at is null
returning name, next_at;

-- name: postpone_schedule :one
-- What keeps it from being fired, and when to try again.
update holdfast.schedule set error = :error, retry_at = holdfast.now_us() + cast(:delay_us as bigint)
where name = :name and next_at = :seen and paused_at is null
returning name, next_at;

-- name: pause_schedule :one
update holdfast.schedule set paused_at = coalesce(paused_at, holdfast.now_us()) where name = :name
returning name, next_at;

-- name: resume_schedule :one
-- Ticks of the pause are not caught up: it goes on with the next one.
update holdfast.schedule set paused_at = null, next_at = :next_at, retry_at = null, error = null where name = :name
returning name, next_at;

-- name: remove_schedule :one
delete from holdfast.schedule where name = :name returning name, next_at;
