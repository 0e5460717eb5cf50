-- Workers that are no processes of ours, workers that are about to start, names under which jobs follow each other, and
-- pools of workers. Code of schema 8 knows nothing of them: it overlooks a worker that is starting.
-- oldest_code: 8

-- up
-- `starting`: somebody starts a process, which has until `boot_by` to make this row its own. It counts for scaling,
-- never as alive. `idle_since` is null while the worker runs something, and in a row that older code writes. `host` is
-- the worker in whose process a broker lives, and whose presence is the broker's too; 0: the owner lives in no process
-- that we know, and shows no presence; null: the worker is a process of its own. `principal` is who registered it.
alter table holdfast.worker
    add column boot_by bigint,
    add column idle_since bigint,
    add column pool text,
    add column principal text,
    add column metadata jsonb,
    add column host bigint,
    drop constraint worker_status,
    add constraint worker_status check (status in ('starting', 'active', 'draining', 'stopped', 'lost')),
    add constraint worker_boot check (status <> 'starting' or boot_by is not null);
create index worker_pool on holdfast.worker (pool, status) where pool is not null;

-- 1: a lost lease is an attempt like any other, without a pause before the next one.
alter table holdfast.queue add column lost_counts integer not null default 0;

-- The jobs that a public name has had, by number; the last one is current. A name outlives its jobs, so that it is
-- never given to another. `attempts` are those that the jobs before this one made.
create table holdfast.alias (
    scope text not null,
    name text not null,
    number integer not null,
    job uuid not null,
    digest text not null,
    attempts integer not null,
    created_at bigint not null,
    primary key (scope, name, number)
);
create index alias_job on holdfast.alias (job);

-- Pools as they were declared, and what the last decision about each found.
create table holdfast.pool (
    name text primary key,
    settings jsonb not null,
    standing jsonb not null,
    updated_at bigint not null
);

-- down
drop table holdfast.pool;
drop table holdfast.alias;
alter table holdfast.queue drop column lost_counts;
drop index holdfast.worker_pool;
update holdfast.worker set status = 'lost', stopped_at = heartbeat_at where status = 'starting';
alter table holdfast.worker
    drop constraint worker_boot,
    drop constraint worker_status,
    add constraint worker_status check (status in ('active', 'draining', 'stopped', 'lost')),
    drop column boot_by,
    drop column idle_since,
    drop column pool,
    drop column principal,
    drop column metadata,
    drop column host;
