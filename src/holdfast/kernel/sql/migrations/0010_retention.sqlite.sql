-- What runs leave behind goes after a while, or when a tenant is erased; what they cost stays.
-- oldest_code: 8

-- up
-- How far pruning came, for each kind of what it removes. A tenant that keeps things for a time of its own has marks of
-- its own; those of all others have an empty tenant.
create table retention_mark (
    kind text not null,
    tenant text not null,
    at integer not null,
    id text not null,
    primary key (kind, tenant)
) strict;

-- For how long one tenant's things are kept, as microseconds by kind; null: as everybody's.
create table tenant_retention (
    tenant text primary key,
    deltas_us integer,
    events_us integer,
    inquiries_us integer,
    turns_us integer,
    sessions_us integer,
    updated_at integer not null
) strict;

-- What turns and compactions used that are not there any more, by the UTC day on which they ended.
create table usage_total (
    day integer not null,
    tenant text not null,
    agent text not null,
    model text not null,
    mode text not null,
    turns integer not null,
    input_tokens integer not null,
    output_tokens integer not null,
    cache_write_tokens integer not null,
    cache_read_tokens integer not null,
    cost_nano integer not null,
    primary key (day, tenant, agent, model, mode)
) strict;
create index usage_total_tenant on usage_total (tenant);

-- Tools as the workers that have their code declare them, for agents that are made elsewhere.
create table tool (
    name text primary key,
    definition text not null,
    digest text not null,
    updated_at integer not null
) strict;

create index run_ended on run (finalized_at, id) where finalized_at is not null;
create index run_tenant_ended on run (tenant, finalized_at, id) where finalized_at is not null;
create index run_forked on run (forked_from) where forked_from is not null;
create index session_forked on session (forked_from) where forked_from is not null;
create index session_tenant on session (tenant, created_at, id);

-- down
drop index session_tenant;
drop index session_forked;
drop index run_forked;
drop index run_tenant_ended;
drop index run_ended;
drop table tool;
drop table usage_total;
drop table tenant_retention;
drop table retention_mark;
