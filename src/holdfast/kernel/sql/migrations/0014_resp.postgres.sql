-- What the Redis-protocol gateway keeps besides jobs: keys of its clients, plans, actions, and plain data. Code of schema 8
-- knows nothing of it and works beside it.
-- oldest_code: 8

-- up
-- Of a key only its SHA-256. `workers` are the ids that it may register; null: all queues, all commands.
create table holdfast.resp_key (
    name text primary key,
    digest text not null,
    workers json not null,
    queues json,
    commands json,
    tenant text not null,
    created_at bigint not null,
    revoked_at bigint
);
create unique index resp_key_digest on holdfast.resp_key (digest);

-- Plans never change. A job has its plan in its payload, so that a plan without live jobs may go.
create table holdfast.plan (
    tenant text not null,
    id text not null,
    body json not null,
    digest text not null,
    created_at bigint not null,
    primary key (tenant, id)
);

create table holdfast.action (
    tenant text not null,
    id text not null,
    plan text not null,
    inputs bigint not null,
    created_at bigint not null,
    primary key (tenant, id)
);
create index action_plan on holdfast.action (tenant, plan);
create index action_created on holdfast.action (tenant, created_at);

-- The public id of a job of an action, and the job that it stands for now: one that is retried gets another.
create table holdfast.plan_job (
    id text primary key,
    tenant text not null,
    action text not null,
    plan text not null,
    place bigint not null,
    job uuid not null,
    retries bigint not null default 0,
    created_at bigint not null
);
create index plan_job_action on holdfast.plan_job (tenant, action, place);
create index plan_job_plan on holdfast.plan_job (tenant, plan);
create index plan_job_job on holdfast.plan_job (job);

-- Plain data, as Redis has it: a string is in its row, what has parts has them below. The parts of a list are called by
-- their place, as eight bytes that sort as the place does. SCAN walks along `place`, which is a hash of the key.
create table holdfast.resp_value (
    space text not null,
    key bytea not null,
    place bigint not null,
    kind text not null,
    value bytea,
    expires_at bigint,
    primary key (space, key),
    constraint resp_value_kind check (kind in ('string', 'hash', 'zset', 'list'))
);
create index resp_value_place on holdfast.resp_value (space, place);
create index resp_value_expiry on holdfast.resp_value (expires_at) where expires_at is not null;
create table holdfast.resp_part (
    space text not null,
    key bytea not null,
    part bytea not null,
    score double precision,
    value bytea,
    primary key (space, key, part)
);
create index resp_part_score on holdfast.resp_part (space, key, score, part) where score is not null;

-- down
drop table holdfast.resp_part;
drop table holdfast.resp_value;
drop table holdfast.plan_job;
drop table holdfast.action;
drop table holdfast.plan;
drop table holdfast.resp_key;
