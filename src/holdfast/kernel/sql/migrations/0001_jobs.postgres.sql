-- Jobs, their routes and queues, the attempts made at them, and the workers that make them.
-- oldest_code: 1

-- up
create table holdfast.cluster (
    one smallint primary key default 1 check (one = 1),
    epoch bigint not null,
    identity text not null
);
insert into holdfast.cluster (epoch, identity) values (1, '');

-- STABLE, never VOLATILE: a volatile clock turns every index scan on a time into a sequential scan.
create function holdfast.now_us() returns bigint language sql stable parallel safe as
$$ select cast(extract(epoch from statement_timestamp()) * 1000000 as bigint) $$;

-- A note too long for NOTIFY becomes a plain "look".
create function holdfast.hint(note text) returns integer language sql volatile as
$$ select 1 from (
    select pg_notify('holdfast.hint', case when octet_length(note) < 7900 then note else 'look' end)
) as sent where note is not null $$;

create table holdfast.queue (
    name text primary key,
    on_orphan text not null check (on_orphan in ('requeue', 'fail')),
    updated_at bigint not null
);

create table holdfast.route (
    id bigint primary key,
    queue text not null,
    capabilities text not null,
    used_at bigint not null
);
create index route_used on holdfast.route (used_at);

create table holdfast.job (
    seq bigint generated always as identity primary key,
    id uuid not null,
    kind text not null,
    queue text not null,
    route bigint not null,
    tenant text not null,
    state text not null,
    priority integer not null,
    slot bigint not null default 0,
    gate text,
    epoch bigint not null default 0,
    token bigint not null default 0,
    worker bigint,
    lease_until bigint,
    claimed_at bigint,
    attempts integer not null default 0,
    max_attempts integer not null,
    rescues integer not null default 0,
    max_rescues integer not null,
    timeout_us bigint,
    due_at bigint,
    deadline_at bigint,
    created_at bigint not null,
    finished_at bigint,
    cancel_requested_at bigint,
    parent bigint,
    open_children integer not null default 0,
    channel text,
    retry_of uuid,
    payload json not null,
    metadata jsonb not null,
    progress json,
    result json,
    error json,
    constraint job_state check
        (state in ('scheduled', 'pending', 'running', 'waiting', 'succeeded', 'failed', 'cancelled')),
    constraint job_lease check
        ((state = 'running') = (worker is not null) and (state = 'running') = (lease_until is not null)),
    constraint job_finished check
        ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
    constraint job_scheduled check (state <> 'scheduled' or due_at is not null),
    constraint job_open_children check (open_children >= 0)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000
);
create unique index job_id on holdfast.job (id);
create index job_claim on holdfast.job (route, priority, slot, seq) where state = 'pending' and gate is null;
create index job_running on holdfast.job (worker) where state = 'running';
create index job_later on holdfast.job (route) where state in ('scheduled', 'waiting');
create index job_due on holdfast.job (due_at) where state in ('scheduled', 'waiting') and due_at is not null;
create index job_deadline on holdfast.job (deadline_at)
    where state in ('scheduled', 'pending', 'waiting') and deadline_at is not null;
create index job_parent on holdfast.job (parent) where parent is not null;
create index job_channel on holdfast.job (channel) where state = 'waiting' and channel is not null;

create table holdfast.attempt (
    job bigint not null,
    epoch bigint not null,
    token bigint not null,
    worker bigint not null,
    outcome text not null,
    started_at bigint not null,
    ended_at bigint not null,
    error json,
    constraint attempt_outcome check (outcome in
        ('succeeded', 'failed', 'retried', 'snoozed', 'released', 'parked', 'cancelled', 'lost')),
    primary key (job, epoch, token)
);

create table holdfast.idempotency (
    tenant text not null,
    key text not null,
    digest text not null,
    job uuid not null,
    created_at bigint not null,
    primary key (tenant, key)
);
create index idempotency_created on holdfast.idempotency (created_at);

create table holdfast.worker (
    seq bigint generated always as identity primary key,
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
    started_at bigint not null,
    heartbeat_at bigint not null,
    ttl_us bigint not null,
    stopped_at bigint,
    reason text,
    constraint worker_status check (status in ('active', 'draining', 'stopped', 'lost'))
);
create unique index worker_incarnation on holdfast.worker (incarnation);
create unique index worker_id on holdfast.worker (id) where status in ('active', 'draining');

create table holdfast.duty (
    name text primary key,
    term bigint not null,
    holder bigint,
    held_until bigint not null
);

create view holdfast.job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    to_timestamp(created_at / 1000000.0) as created_at,
    to_timestamp(due_at / 1000000.0) as due_at,
    to_timestamp(claimed_at / 1000000.0) as claimed_at,
    to_timestamp(lease_until / 1000000.0) as lease_until,
    to_timestamp(finished_at / 1000000.0) as finished_at
from holdfast.job;

create view holdfast.attempt_readable as
select job, epoch || '.' || token as token, worker, outcome, error,
    to_timestamp(started_at / 1000000.0) as started_at,
    to_timestamp(ended_at / 1000000.0) as ended_at
from holdfast.attempt;

create view holdfast.worker_readable as
select seq, id, name, hostname, pid, version, status, slots, active, presence, reason,
    to_timestamp(started_at / 1000000.0) as started_at,
    to_timestamp(heartbeat_at / 1000000.0) as heartbeat_at,
    to_timestamp(stopped_at / 1000000.0) as stopped_at
from holdfast.worker;

-- down
drop view holdfast.worker_readable;
drop view holdfast.attempt_readable;
drop view holdfast.job_readable;
drop table holdfast.duty;
drop table holdfast.worker;
drop table holdfast.idempotency;
drop table holdfast.attempt;
drop table holdfast.job;
drop table holdfast.route;
drop table holdfast.queue;
drop function holdfast.hint(text);
drop function holdfast.now_us();
drop table holdfast.cluster;
