-- Flow control: lanes with limits, unique jobs, fair queues, pauses, schedules, and what pruning needs.
-- oldest_code: 2

-- up
-- An expression that PostgreSQL can take into the statement that calls it: a body with its own FROM it parses and plans
-- anew for every call, which took a quarter of what an enqueue costs.
create or replace function holdfast.hint(note text) returns integer language sql volatile as
$$ select case when note is not null then 1 + length(cast(
    pg_notify('holdfast.hint', case when octet_length(note) < 7900 then note else 'look' end) as text)) end $$;

alter table holdfast.job
    add column lane text,
    add column cost integer not null default 1,
    add column unique_key text,
    add column unique_scope text,
    add constraint job_cost check (cost >= 1),
    add constraint job_unique check ((unique_key is null) = (unique_scope is null)),
    add constraint job_unique_scope check (unique_scope in ('pending', 'live', 'window')),
    add constraint job_gate check (gate is null or lane is not null);

-- What is blocked is not in the index that claims read, but in this one.
create index job_gate on holdfast.job (gate, priority, slot, seq) where state = 'pending' and gate is not null;
create index job_lane on holdfast.job (lane) where state = 'running' and lane is not null;
create index job_lane_later on holdfast.job (lane)
    where state in ('scheduled', 'pending', 'waiting') and lane is not null;
create index job_fair on holdfast.job (route, priority, tenant, slot) where state = 'pending' and slot > 0;
create unique index job_unique_pending on holdfast.job (unique_key)
    where unique_scope = 'pending' and token = 0 and state in ('scheduled', 'pending');
create unique index job_unique_live on holdfast.job (unique_key)
    where unique_scope = 'live' and state in ('scheduled', 'pending', 'running', 'waiting');
create unique index job_unique_window on holdfast.job (unique_key) where unique_scope = 'window';
create index job_finished on holdfast.job (queue, finished_at) where finished_at is not null;

-- How many at once, and how often. `free_at` is when the rate has caught up; `opens_at` when to look again whether
-- a blocked job may go on, null when none is blocked.
create table holdfast.lane (
    name text primary key,
    concurrency integer,
    interval_us bigint,
    burst integer not null,
    free_at bigint not null default 0,
    opens_at bigint,
    updated_at bigint not null,
    constraint lane_limits check (concurrency >= 1 and interval_us >= 1 and burst >= 1)
);
create index lane_opens on holdfast.lane (opens_at) where opens_at is not null;

alter table holdfast.queue
    add column paused_at bigint,
    add column pause_reason text,
    add column fair integer not null default 0,
    add column keep_us bigint,
    add column keep_jobs bigint;
create index queue_paused on holdfast.queue (name) where paused_at is not null;
create index route_queue on holdfast.route (queue);

-- The one place that knows what a pause means: nothing on these routes is claimed.
create view holdfast.paused_route as
select r.id from holdfast.queue q join holdfast.route r on r.queue = q.name where q.paused_at is not null;

create table holdfast.schedule (
    name text primary key,
    kind text not null,
    queue text not null,
    cron text not null,
    timezone text not null,
    catch_up text not null,
    job json not null,
    next_at bigint not null,
    last_at bigint,
    last_job uuid,
    paused_at bigint,
    updated_at bigint not null,
    constraint schedule_catch_up check (catch_up in ('one', 'all', 'none'))
);
create index schedule_next on holdfast.schedule (next_at) where paused_at is null;

-- down
drop table holdfast.schedule;
drop view holdfast.paused_route;
drop index holdfast.route_queue;
drop index holdfast.queue_paused;
alter table holdfast.queue drop column paused_at, drop column pause_reason, drop column fair, drop column keep_us,
    drop column keep_jobs;
drop table holdfast.lane;
drop index holdfast.job_finished;
drop index holdfast.job_unique_window;
drop index holdfast.job_unique_live;
drop index holdfast.job_unique_pending;
drop index holdfast.job_fair;
drop index holdfast.job_lane_later;
drop index holdfast.job_lane;
drop index holdfast.job_gate;
update holdfast.job set gate = null where gate is not null;
alter table holdfast.job drop constraint job_gate, drop constraint job_unique_scope, drop constraint job_unique,
    drop constraint job_cost, drop column unique_scope, drop column unique_key, drop column cost, drop column lane;
create or replace function holdfast.hint(note text) returns integer language sql volatile as
$$ select 1 from (
    select pg_notify('holdfast.hint', case when octet_length(note) < 7900 then note else 'look' end)
) as sent where note is not null $$;
