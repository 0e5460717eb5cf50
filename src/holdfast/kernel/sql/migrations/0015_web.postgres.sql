-- The web: who may reach it, what was done through it, and indexes for what it lists.
-- oldest_code: 8

-- up
-- Tokens. Only the hash of one is stored; its id may be shown.
create table holdfast.token (
    id text primary key,
    hash text not null,
    name text not null,
    role text not null constraint token_role check (role in ('viewer', 'operator', 'admin')),
    tenant text,
    scopes json not null,
    created_at bigint not null,
    created_by text not null,
    expires_at bigint,
    revoked_at bigint
);
create unique index token_hash on holdfast.token (hash);

-- A browser that has logged in, and links with which one can: `seen_at` is null until it was used.
create table holdfast.login (
    hash text primary key,
    kind text not null constraint login_kind check (kind in ('link', 'session')),
    name text not null,
    role text not null constraint login_role check (role in ('viewer', 'operator', 'admin')),
    tenant text,
    scopes json not null,
    token text,
    created_at bigint not null,
    seen_at bigint,
    expires_at bigint not null
);
create index login_token on holdfast.login (token) where token is not null;
create index login_expires on holdfast.login (expires_at);

-- What people and programs changed: a row before and a row after, each with a hash over itself and the one before it.
create table holdfast.audit (
    seq bigint primary key,
    at bigint not null,
    actor text not null,
    role text not null,
    tenant text,
    phase text not null constraint audit_phase check (phase in ('intent', 'outcome', 'done')),
    about bigint,
    action text not null,
    subject text not null,
    status integer,
    detail json not null,
    hash text not null
);
create table holdfast.audit_head (
    one integer primary key default 1 constraint audit_head_one check (one = 1),
    seq bigint not null,
    hash text not null
);

-- What was answered to a request that named a key, so that the same request again creates nothing.
create table holdfast.request_key (
    owner text not null,
    key text not null,
    digest text not null,
    status integer,
    answer json,
    at bigint not null,
    primary key (owner, key)
);
create index request_key_at on holdfast.request_key (at);

alter table holdfast.run add column retry_of text;
create or replace view holdfast.run_now as
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
    coalesce(r.started_at, l.claimed_at, (select e.claimed_at from holdfast.ended e where e.seq = r.job), (select a.started_at
        from holdfast.attempt a where a.job = r.job order by a.epoch desc, a.token desc limit 1)) as started_at,
    r.finalized_at, l.worker, r.state as stored_state,
    r.retry_of
from holdfast.run r
left join lateral (select k.seq, k.worker, k.claimed_at from holdfast.lease k where k.seq = r.job offset 0) as l on true;
drop index holdfast.run_agent;
create index run_agent on holdfast.run (agent, created_at desc, id desc);
create index run_tenant_open on holdfast.run (tenant, created_at desc, id desc) where finalized_at is null;
create index run_tenant_unanswered on holdfast.run (tenant, created_at desc, id desc)
    where finalized_at is not null and outcome is null;

-- down
drop index holdfast.run_tenant_unanswered;
drop index holdfast.run_tenant_open;
drop index holdfast.run_agent;
create index run_agent on holdfast.run (agent);
drop view holdfast.run_now;
create view holdfast.run_now as
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
    coalesce(r.started_at, l.claimed_at, (select e.claimed_at from holdfast.ended e where e.seq = r.job), (select a.started_at
        from holdfast.attempt a where a.job = r.job order by a.epoch desc, a.token desc limit 1)) as started_at,
    r.finalized_at, l.worker, r.state as stored_state
from holdfast.run r
left join lateral (select k.seq, k.worker, k.claimed_at from holdfast.lease k where k.seq = r.job offset 0) as l on true;
alter table holdfast.run drop column retry_of;
drop table holdfast.request_key;
drop table holdfast.audit_head;
drop table holdfast.audit;
drop table holdfast.login;
drop table holdfast.token;
