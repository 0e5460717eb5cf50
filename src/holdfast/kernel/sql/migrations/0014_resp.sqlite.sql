-- What the Redis-protocol gateway keeps besides jobs: keys of its clients, plans, actions, and plain data. Code of schema 8
-- knows nothing of it and works beside it.
-- oldest_code: 8

-- up
-- Of a key only its SHA-256. `workers` are the ids that it may register; null: all queues, all commands.
create table resp_key (
    name text primary key,
    digest text not null,
    workers text not null,
    queues text,
    commands text,
    tenant text not null,
    created_at integer not null,
    revoked_at integer
) strict;
create unique index resp_key_digest on resp_key (digest);

-- Plans never change. A job has its plan in its payload, so that a plan without live jobs may go.
create table plan (
    tenant text not null,
    id text not null,
    body text not null,
    digest text not null,
    created_at integer not null,
    primary key (tenant, id)
) strict;

create table action (
    tenant text not null,
    id text not null,
    plan text not null,
    inputs integer not null,
    created_at integer not null,
    primary key (tenant, id)
) strict;
create index action_plan on action (tenant, plan);
create index action_created on action (tenant, created_at);

-- The public id of a job of an action, and the job that it stands for now: one that is retried gets another.
create table plan_job (
    id text primary key,
    tenant text not null,
    action text not null,
    plan text not null,
    place integer not null,
    job text not null,
    retries integer not null default 0,
    created_at integer not null
) strict;
create index plan_job_action on plan_job (tenant, action, place);
create index plan_job_plan on plan_job (tenant, plan);
create index plan_job_job on plan_job (job);

-- Plain data, as Redis has it: a string is in its row, what has parts has them below. The parts of a list are called by
-- their place, as eight bytes that sort as the place does. SCAN walks along `place`, which is a hash of the key.
create table resp_value (
    space text not null,
    key blob not null,
    place integer not null,
    kind text not null,
    value blob,
    expires_at integer,
    primary key (space, key),
    constraint resp_value_kind check (kind in ('string', 'hash', 'zset', 'list'))
) strict;
create index resp_value_place on resp_value (space, place);
create index resp_value_expiry on resp_value (expires_at) where expires_at is not null;
create table resp_part (
    space text not null,
    key blob not null,
    part blob not null,
    score real,
    value blob,
    primary key (space, key, part)
) strict;
create index resp_part_score on resp_part (space, key, score, part) where score is not null;

-- down
drop table resp_part;
drop table resp_value;
drop table plan_job;
drop table action;
drop table plan;
drop table resp_key;
