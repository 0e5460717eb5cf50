-- Flow control: lanes with limits, unique jobs, fair queues, pauses, schedules, and what pruning needs.
-- oldest_code: 2

-- up
alter table job add column lane text check (gate is null or lane is not null);
alter table job add column cost integer not null default 1 check (cost >= 1);
alter table job add column unique_key text;
alter table job add column unique_scope text check (unique_scope in ('pending', 'live', 'window'))
    check ((unique_key is null) = (unique_scope is null));

-- What is blocked is not in the index that claims read, but in this one.
create index job_gate on job (gate, priority, slot, seq) where state = 'pending' and gate is not null;
create index job_lane on job (lane) where state = 'running' and lane is not null;
create index job_lane_later on job (lane)
    where state in ('scheduled', 'pending', 'waiting') and lane is not null;
create index job_fair on job (route, priority, tenant, slot) where state = 'pending' and slot > 0;
create unique index job_unique_pending on job (unique_key)
    where unique_scope = 'pending' and token = 0 and state in ('scheduled', 'pending');
create unique index job_unique_live on job (unique_key)
    where unique_scope = 'live' and state in ('scheduled', 'pending', 'running', 'waiting');
create unique index job_unique_window on job (unique_key) where unique_scope = 'window';
create index job_finished on job (queue, finished_at) where finished_at is not null;

-- How many at once, and how often. `free_at` is when the rate has caught up; `opens_at` when to look again whether
-- a blocked job may go on, null when none is blocked.
create table lane (
    name text primary key,
    concurrency integer,
    interval_us integer,
    burst integer not null,
    free_at integer not null default 0,
    opens_at integer,
    updated_at integer not null,
    constraint lane_limits check (concurrency >= 1 and interval_us >= 1 and burst >= 1)
) strict;
create index lane_opens on lane (opens_at) where opens_at is not null;

alter table queue add column paused_at integer;
alter table queue add column pause_reason text;
alter table queue add column fair integer not null default 0;
alter table queue add column keep_us integer;
alter table queue add column keep_jobs integer;
create index queue_paused on queue (name) where paused_at is not null;
create index route_queue on route (queue);

-- The one place that knows what a pause means: nothing on these routes is claimed.
create view paused_route as
select r.id from queue q join route r on r.queue = q.name where q.paused_at is not null;

create table schedule (
    name text primary key,
    kind text not null,
    queue text not null,
    cron text not null,
    timezone text not null,
    catch_up text not null,
    job text not null,
    next_at integer not null,
    last_at integer,
    last_job text,
    paused_at integer,
    updated_at integer not null,
    constraint schedule_catch_up check (catch_up in ('one', 'all', 'none'))
) strict;
create index schedule_next on schedule (next_at) where paused_at is null;

-- down
drop table schedule;
drop view paused_route;
drop index route_queue;
drop index queue_paused;
alter table queue drop column keep_jobs;
alter table queue drop column keep_us;
alter table queue drop column fair;
alter table queue drop column pause_reason;
alter table queue drop column paused_at;
drop table lane;
drop index job_finished;
drop index job_unique_window;
drop index job_unique_live;
drop index job_unique_pending;
drop index job_fair;
drop index job_lane_later;
drop index job_lane;
drop index job_gate;
update job set gate = null where gate is not null;
alter table job drop column unique_scope;
alter table job drop column unique_key;
alter table job drop column cost;
alter table job drop column lane;
