-- Jobs, their routes and queues, the attempts made at them, and the workers that make them.
-- oldest_code: 1

-- up
create table cluster (
    one integer primary key default 1 check (one = 1),
    epoch integer not null,
    identity text not null
) strict;
insert into cluster (epoch, identity) values (1, '');

create table queue (
    name text primary key,
    on_orphan text not null check (on_orphan in ('requeue', 'fail')),
    updated_at integer not null
) strict;

create table route (
    id integer primary key,
    queue text not null,
    capabilities text not null,
    used_at integer not null
) strict;
create index route_used on route (used_at);

create table job (
    seq integer primary key autoincrement,
    id text not null,
    kind text not null,
    queue text not null,
    route integer not null,
    tenant text not null,
    state text not null,
    priority integer not null,
    slot integer not null default 0,
    gate text,
    epoch integer not null default 0,
    token integer not null default 0,
    worker integer,
    lease_until integer,
    claimed_at integer,
    attempts integer not null default 0,
    max_attempts integer not null,
    rescues integer not null default 0,
    max_rescues integer not null,
    timeout_us integer,
    due_at integer,
    deadline_at integer,
    created_at integer not null,
    finished_at integer,
    cancel_requested_at integer,
    parent integer,
    open_children integer not null default 0,
    channel text,
    retry_of text,
    payload text not null,
    metadata text not null,
    progress text,
    result text,
    error text,
    constraint job_state check
        (state in ('scheduled', 'pending', 'running', 'waiting', 'succeeded', 'failed', 'cancelled')),
    constraint job_lease check
        ((state = 'running') = (worker is not null) and (state = 'running') = (lease_until is not null)),
    constraint job_finished check
        ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
    constraint job_scheduled check (state <> 'scheduled' or due_at is not null),
    constraint job_open_children check (open_children >= 0)
) strict;
create unique index job_id on job (id);
create index job_claim on job (route, priority, slot, seq) where state = 'pending' and gate is null;
create index job_running on job (worker) where state = 'running';
create index job_later on job (route) where state in ('scheduled', 'waiting');
create index job_due on job (due_at) where state in ('scheduled', 'waiting') and due_at is not null;
create index job_deadline on job (deadline_at)
    where state in ('scheduled', 'pending', 'waiting') and deadline_at is not null;
create index job_parent on job (parent) where parent is not null;
create index job_channel on job (channel) where state = 'waiting' and channel is not null;

create table attempt (
    job integer not null,
    epoch integer not null,
    token integer not null,
    worker integer not null,
    outcome text not null,
    started_at integer not null,
    ended_at integer not null,
    error text,
    constraint attempt_outcome check (outcome in
        ('succeeded', 'failed', 'retried', 'snoozed', 'released', 'parked', 'cancelled', 'lost')),
    primary key (job, epoch, token)
) strict;

create table idempotency (
    tenant text not null,
    key text not null,
    digest text not null,
    job text not null,
    created_at integer not null,
    primary key (tenant, key)
) strict;
create index idempotency_created on idempotency (created_at);

create table worker (
    seq integer primary key autoincrement,
    incarnation text not null,
    id text not null,
    name text not null,
    hostname text not null,
    pid integer not null,
    version text not null,
    status text not null,
    capabilities text not null,
    queues text not null,
    slots integer not null,
    active integer not null default 0,
    presence integer not null default 0,
    started_at integer not null,
    heartbeat_at integer not null,
    ttl_us integer not null,
    stopped_at integer,
    reason text,
    constraint worker_status check (status in ('active', 'draining', 'stopped', 'lost'))
) strict;
create unique index worker_incarnation on worker (incarnation);
create unique index worker_id on worker (id) where status in ('active', 'draining');

create table duty (
    name text primary key,
    term integer not null,
    holder integer,
    held_until integer not null
) strict;

create view job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    datetime(created_at / 1000000.0, 'unixepoch', 'subsec') as created_at,
    datetime(due_at / 1000000.0, 'unixepoch', 'subsec') as due_at,
    datetime(claimed_at / 1000000.0, 'unixepoch', 'subsec') as claimed_at,
    datetime(lease_until / 1000000.0, 'unixepoch', 'subsec') as lease_until,
    datetime(finished_at / 1000000.0, 'unixepoch', 'subsec') as finished_at
from job;

create view attempt_readable as
select job, epoch || '.' || token as token, worker, outcome, error,
    datetime(started_at / 1000000.0, 'unixepoch', 'subsec') as started_at,
    datetime(ended_at / 1000000.0, 'unixepoch', 'subsec') as ended_at
from attempt;

create view worker_readable as
select seq, id, name, hostname, pid, version, status, slots, active, presence, reason,
    datetime(started_at / 1000000.0, 'unixepoch', 'subsec') as started_at,
    datetime(heartbeat_at / 1000000.0, 'unixepoch', 'subsec') as heartbeat_at,
    datetime(stopped_at / 1000000.0, 'unixepoch', 'subsec') as stopped_at
from worker;

-- down
drop view worker_readable;
drop view attempt_readable;
drop view job_readable;
drop table duty;
drop table worker;
drop table idempotency;
drop table attempt;
drop table job;
drop table route;
drop table queue;
drop table cluster;
