-- The web: who may reach it, what was done through it, and indexes for what it lists.
-- oldest_code: 8

-- up
-- Tokens. Only the hash of one is stored; its id may be shown.
create table token (
    id text primary key,
    hash text not null,
    name text not null,
    role text not null constraint token_role check (role in ('viewer', 'operator', 'admin')),
    tenant text,
    scopes text not null,
    created_at integer not null,
    created_by text not null,
    expires_at integer,
    revoked_at integer
) strict;
create unique index token_hash on token (hash);

-- A browser that has logged in, and links with which one can: `seen_at` is null until it was used.
create table login (
    hash text primary key,
    kind text not null constraint login_kind check (kind in ('link', 'session')),
    name text not null,
    role text not null constraint login_role check (role in ('viewer', 'operator', 'admin')),
    tenant text,
    scopes text not null,
    token text,
    created_at integer not null,
    seen_at integer,
    expires_at integer not null
) strict;
create index login_token on login (token) where token is not null;
create index login_expires on login (expires_at);

-- What people and programs changed: a row before and a row after, each with a hash over itself and the one before it.
create table audit (
    seq integer primary key,
    at integer not null,
    actor text not null,
    role text not null,
    tenant text,
    phase text not null constraint audit_phase check (phase in ('intent', 'outcome', 'done')),
    about integer,
    action text not null,
    subject text not null,
    status integer,
    detail text not null,
    hash text not null
) strict;
create table audit_head (
    one integer primary key default 1 constraint audit_head_one check (one = 1),
    seq integer not null,
    hash text not null
) strict;

-- What was answered to a request that named a key, so that the same request again creates nothing.
create table request_key (
    owner text not null,
    key text not null,
    digest text not null,
    status integer,
    answer text,
    at integer not null,
    primary key (owner, key)
) strict;
create index request_key_at on request_key (at);

alter table run add column retry_of text;
drop view run_now;
create view run_now as
select r.id, r.job, r.session, r.branch, r.ordinal, r.tenant, r.agent, r.agent_name, r.version, r.mode,
    case when r.state in ('pending', 'streaming') and l.seq is not null
            then case r.mode when 'batch' then 'batch_submitting' else 'streaming' end
        when r.state = 'streaming' then 'pending'
        else r.state end as state,
    case when r.state = 'pending' and l.seq is not null then 'pending'
        else r.previous_state end as previous_state,
    r.parent, r.call, r.root, r.depth, r.input, r.variables, r.metadata, r.options, r.turns, r.events, r.outcome,
    r.stop_reason, r.output, r.refusal, r.limited, r.error_type, r.error, r.input_tokens, r.output_tokens,
    r.cache_write_tokens, r.cache_read_tokens, r.cost_nano, r.created_at,
    coalesce(r.started_at, l.claimed_at, (select e.claimed_at from ended e where e.seq = r.job), (select a.started_at
        from attempt a where a.job = r.job order by a.epoch desc, a.token desc limit 1)) as started_at,
    r.finalized_at, l.worker, r.state as stored_state,
    r.retry_of
from run r
left join lease l on l.seq = r.job;
drop index run_agent;
create index run_agent on run (agent, created_at desc, id desc);
create index run_tenant_open on run (tenant, created_at desc, id desc) where finalized_at is null;
create index run_tenant_unanswered on run (tenant, created_at desc, id desc)
    where finalized_at is not null and outcome is null;

-- down
drop index run_tenant_unanswered;
drop index run_tenant_open;
drop index run_agent;
create index run_agent on run (agent);
drop view run_now;
create view run_now as
select r.id, r.job, r.session, r.branch, r.ordinal, r.tenant, r.agent, r.agent_name, r.version, r.mode,
    case when r.state in ('pending', 'streaming') and l.seq is not null
            then case r.mode when 'batch' then 'batch_submitting' else 'streaming' end
        when r.state = 'streaming' then 'pending'
        else r.state end as state,
    case when r.state = 'pending' and l.seq is not null then 'pending'
        else r.previous_state end as previous_state,
    r.parent, r.call, r.root, r.depth, r.input, r.variables, r.metadata, r.options, r.turns, r.events, r.outcome,
    r.stop_reason, r.output, r.refusal, r.limited, r.error_type, r.error, r.input_tokens, r.output_tokens,
    r.cache_write_tokens, r.cache_read_tokens, r.cost_nano, r.created_at,
    coalesce(r.started_at, l.claimed_at, (select e.claimed_at from ended e where e.seq = r.job), (select a.started_at
        from attempt a where a.job = r.job order by a.epoch desc, a.token desc limit 1)) as started_at,
    r.finalized_at, l.worker, r.state as stored_state
from run r
left join lease l on l.seq = r.job;
alter table run drop column retry_of;
drop table request_key;
drop table audit_head;
drop table audit;
drop table login;
drop table token;
