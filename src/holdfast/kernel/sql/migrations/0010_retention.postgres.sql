-- What runs leave behind goes after a while, or when a tenant is erased; what they cost stays.
-- oldest_code: 8

-- up
-- How far pruning came, for each kind of what it removes. A tenant that keeps things for a time of its own has marks of
-- its own; those of all others have an empty tenant.
create table holdfast.retention_mark (
    kind text not null,
    tenant text not null,
    at bigint not null,
    id text not null,
    primary key (kind, tenant)
);

-- For how long one tenant's things are kept, as microseconds by kind; null: as everybody's.
create table holdfast.tenant_retention (
    tenant text primary key,
    deltas_us bigint,
    events_us bigint,
    inquiries_us bigint,
    turns_us bigint,
    sessions_us bigint,
    updated_at bigint not null
);

-- What turns and compactions used that are not there any more, by the UTC day on which they ended.
create table holdfast.usage_total (
    day bigint not null,
    tenant text not null,
    agent text not null,
    model text not null,
    mode text not null,
    turns bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_tokens bigint not null,
    cache_read_tokens bigint not null,
    cost_nano bigint not null,
    primary key (day, tenant, agent, model, mode)
);
create index usage_total_tenant on holdfast.usage_total (tenant);

-- Tools as the workers that have their code declare them, for agents that are made elsewhere.
create table holdfast.tool (
    name text primary key,
    definition json not null,
    digest text not null,
    updated_at bigint not null
);

-- Both may be there already: on a long history they are built beforehand, see docs/operating.md.
create index if not exists run_ended on holdfast.run (finalized_at, id) where finalized_at is not null;
create index if not exists run_tenant_ended on holdfast.run (tenant, finalized_at, id) where finalized_at is not null;
create index run_forked on holdfast.run (forked_from) where forked_from is not null;
create index session_forked on holdfast.session (forked_from) where forked_from is not null;
create index session_tenant on holdfast.session (tenant, created_at, id);

-- down
drop index holdfast.session_tenant;
drop index holdfast.session_forked;
drop index holdfast.run_forked;
drop index holdfast.run_tenant_ended;
drop index holdfast.run_ended;
drop table holdfast.tool;
drop table holdfast.usage_total;
drop table holdfast.tenant_retention;
drop table holdfast.retention_mark;
