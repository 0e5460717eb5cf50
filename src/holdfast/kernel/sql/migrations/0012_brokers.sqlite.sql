-- Workers that are no processes of ours, workers that are about to start, names under which jobs follow each other, and
-- pools of workers. Code of schema 8 knows nothing of them: it overlooks a worker that is starting.
-- oldest_code: 8

-- up
-- `starting`: somebody starts a process, which has until `boot_by` to make this row its own. It counts for scaling,
-- never as alive. `idle_since` is null while the worker runs something, and in a row that older code writes. `host` is
-- the worker in whose process a broker lives, and whose presence is the broker's too; 0: the owner lives in no process
-- that we know, and shows no presence; null: the worker is a process of its own. `principal` is who registered it.
-- The table is made anew: SQLite cannot change a constraint.
drop view worker_readable;
create table worker_more (
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
    code integer,
    lines text,
    boot_by integer,
    idle_since integer,
    pool text,
    principal text,
    metadata text,
    host integer,
    constraint worker_status check (status in ('starting', 'active', 'draining', 'stopped', 'lost')),
    constraint worker_boot check (status <> 'starting' or boot_by is not null)
) strict;
insert into worker_more (seq, incarnation, id, name, hostname, pid, version, status, capabilities, queues, slots, active,
    presence, started_at, heartbeat_at, ttl_us, stopped_at, reason, code, lines)
select seq, incarnation, id, name, hostname, pid, version, status, capabilities, queues, slots, active,
    presence, started_at, heartbeat_at, ttl_us, stopped_at, reason, code, lines
from worker order by seq;
delete from sqlite_sequence where name = 'worker_more';
insert into sqlite_sequence (name, seq) select 'worker_more', q.seq from sqlite_sequence q where q.name = 'worker';
drop table worker;
alter table worker_more rename to worker;
create unique index worker_incarnation on worker (incarnation);
create unique index worker_id on worker (id) where status in ('active', 'draining');
create index worker_pool on worker (pool, status) where pool is not null;
create view worker_readable as
select seq, id, name, hostname, pid, version, status, slots, active, presence, reason,
    datetime(started_at / 1000000.0, 'unixepoch', 'subsec') as started_at,
    datetime(heartbeat_at / 1000000.0, 'unixepoch', 'subsec') as heartbeat_at,
    datetime(stopped_at / 1000000.0, 'unixepoch', 'subsec') as stopped_at
from worker;

-- 1: a lost lease is an attempt like any other, without a pause before the next one.
alter table queue add column lost_counts integer not null default 0;

-- The jobs that a public name has had, by number; the last one is current. A name outlives its jobs, so that it is
-- never given to another. `attempts` are those that the jobs before this one made.
create table alias (
    scope text not null,
    name text not null,
    number integer not null,
    job text not null,
    digest text not null,
    attempts integer not null,
    created_at integer not null,
    primary key (scope, name, number)
) strict;
create index alias_job on alias (job);

-- Pools as they were declared, and what the last decision about each found.
create table pool (
    name text primary key,
    settings text not null,
    standing text not null,
    updated_at integer not null
) strict;

-- down
drop table pool;
drop table alias;
alter table queue drop column lost_counts;
drop view worker_readable;
create table worker_less (
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
    code integer,
    lines text,
    constraint worker_status check (status in ('active', 'draining', 'stopped', 'lost'))
) strict;
insert into worker_less (seq, incarnation, id, name, hostname, pid, version, status, capabilities, queues, slots, active,
    presence, started_at, heartbeat_at, ttl_us, stopped_at, reason, code, lines)
select seq, incarnation, id, name, hostname, pid, version, case status when 'starting' then 'lost' else status end,
    capabilities, queues, slots, active, presence, started_at, heartbeat_at, ttl_us,
    case status when 'starting' then heartbeat_at else stopped_at end, reason, code, lines
from worker order by seq;
delete from sqlite_sequence where name = 'worker_less';
insert into sqlite_sequence (name, seq) select 'worker_less', q.seq from sqlite_sequence q where q.name = 'worker';
drop table worker;
alter table worker_less rename to worker;
create unique index worker_incarnation on worker (incarnation);
create unique index worker_id on worker (id) where status in ('active', 'draining');
create view worker_readable as
select seq, id, name, hostname, pid, version, status, slots, active, presence, reason,
    datetime(started_at / 1000000.0, 'unixepoch', 'subsec') as started_at,
    datetime(heartbeat_at / 1000000.0, 'unixepoch', 'subsec') as heartbeat_at,
    datetime(stopped_at / 1000000.0, 'unixepoch', 'subsec') as stopped_at
from worker;
