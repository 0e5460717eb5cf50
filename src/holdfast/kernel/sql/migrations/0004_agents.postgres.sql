-- Agents, sessions and runs, on top of jobs: a run is a job, a tool call is a child of it.
-- oldest_code: 4

-- up
create table holdfast.agent (
    id text primary key,
    tenant text not null,
    name text not null,
    metadata jsonb not null,
    description text not null,
    version integer not null,
    created_at bigint not null,
    updated_at bigint not null
);
create unique index agent_name on holdfast.agent (name, tenant, metadata);

-- What a version says never changes; a run keeps the one it started with.
create table holdfast.agent_version (
    agent text not null,
    version integer not null,
    definition json not null,
    digest text not null,
    created_at bigint not null,
    primary key (agent, version)
);
create unique index agent_version_digest on holdfast.agent_version (agent, digest);

create table holdfast.session (
    id text primary key,
    tenant text not null,
    key text,
    parent text,
    depth integer not null,
    metadata jsonb not null,
    runs integer not null default 0,
    created_at bigint not null,
    updated_at bigint not null
);
create unique index session_key on holdfast.session (tenant, key) where key is not null;
create index session_parent on holdfast.session (parent) where parent is not null;
create index session_metadata on holdfast.session using gin (metadata jsonb_path_ops);
create index session_listed on holdfast.session (created_at desc, id desc);

-- `state` has the names of the runs' own life; while it is pending, its job says whether a worker has it.
create table holdfast.run (
    id text primary key,
    job bigint not null,
    session text not null,
    branch text not null,
    ordinal integer not null,
    tenant text not null,
    agent text not null,
    agent_name text not null,
    version integer not null,
    mode text not null,
    state text not null,
    previous_state text,
    parent text,
    call text,
    root text not null,
    depth integer not null,
    input json not null,
    variables json not null,
    metadata jsonb not null,
    options json not null,
    prompted integer not null default 0,
    turns integer not null default 0,
    events integer not null default 0,
    epoch bigint not null default 0,
    token bigint not null default 0,
    container text,
    outcome text,
    stop_reason text,
    output json,
    refusal json,
    limited text,
    error_type text,
    error text,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cache_write_tokens bigint not null default 0,
    cache_read_tokens bigint not null default 0,
    cost_nano bigint not null default 0,
    created_at bigint not null,
    started_at bigint,
    progressed_at bigint,
    finalized_at bigint,
    constraint run_state check (state in ('pending', 'batch_submitting', 'batch_pending', 'batch_processing',
        'streaming', 'pending_tools', 'awaiting_input', 'completed', 'cancelled', 'failed')),
    constraint run_finalized check ((state in ('completed', 'cancelled', 'failed')) = (finalized_at is not null))
) with (fillfactor = 80);
create unique index run_job on holdfast.run (job);
create index run_session on holdfast.run (session, created_at desc, id desc);
create index run_queue on holdfast.run (session, ordinal)
    where parent is null and finalized_at is null;
create index run_streaming on holdfast.run (progressed_at) where state = 'streaming';
create index run_root on holdfast.run (root);
create index run_agent on holdfast.run (agent);
create index run_listed on holdfast.run (created_at desc, id desc);
create index run_tenant on holdfast.run (tenant, created_at desc, id desc);
create index run_parent on holdfast.run (parent, created_at desc, id desc) where parent is not null;
create index run_state on holdfast.run (state, created_at desc, id desc) where state <> 'completed';

-- The place of a message is (session, branch, ordinal), and never a time. What is not live is not sent any more.
create table holdfast.message (
    id text primary key,
    session text not null,
    branch text not null,
    ordinal integer not null,
    role text not null,
    run text not null,
    turn integer not null,
    kind text not null,
    live integer not null default 1,
    preserved integer not null default 0,
    created_at bigint not null
);
create unique index message_place on holdfast.message (session, branch, ordinal);
create index message_live on holdfast.message (session, branch, ordinal) where live = 1;
create index message_run on holdfast.message (run, ordinal);

-- A block is the provider's JSON, byte for byte; large ones are stored once.
create table holdfast.block (
    message text not null,
    ordinal integer not null,
    type text not null,
    body json,
    blob text,
    primary key (message, ordinal)
);
create index block_blob on holdfast.block (blob) where blob is not null;
create table holdfast.blob (hash text primary key, body json not null);

create table holdfast.turn (
    run text not null,
    number integer not null,
    model text not null,
    request_hash text not null,
    fingerprint text not null,
    state text not null,
    attempts integer not null default 1,
    unknown integer not null default 0,
    failures integer not null default 0,
    request_id text,
    stop_reason text,
    usage json,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cache_write_tokens bigint not null default 0,
    cache_read_tokens bigint not null default 0,
    cost_nano bigint not null default 0,
    error json,
    epoch bigint not null,
    token bigint not null,
    started_at bigint not null,
    ended_at bigint,
    primary key (run, number)
);

create table holdfast.tool_call (
    id text primary key,
    run text not null,
    turn integer not null,
    ordinal integer not null,
    tool_use_id text not null,
    name text not null,
    input json not null,
    job bigint,
    child text,
    effect text not null,
    state text,
    output json,
    is_error integer not null default 0,
    created_at bigint not null,
    finished_at bigint,
    constraint tool_call_state check (state in ('completed', 'failed', 'skipped'))
);
create unique index tool_call_place on holdfast.tool_call (run, turn, ordinal);
create unique index tool_call_job on holdfast.tool_call (job) where job is not null;
create index tool_call_open on holdfast.tool_call (run) where state is null;

-- Numbered without gap by `run.events`. `tx` lets a reader of all runs wait for whoever has not committed yet; a
-- restored database counts transactions anew, so what has a topic has the cluster's `epoch` before it.
create table holdfast.run_event (
    run text not null,
    seq integer not null,
    at bigint not null,
    type text not null,
    data json not null,
    topic text,
    epoch bigint not null default 0,
    tx bigint not null,
    pos bigint generated always as identity primary key
);
create unique index run_event_seq on holdfast.run_event (run, seq);
create index run_event_topic on holdfast.run_event (epoch, tx, pos) where topic is not null;

create table holdfast.provider_lane (
    name text primary key,
    closed_until bigint,
    person integer not null default 0,
    reason text not null,
    updated_at bigint not null
);

-- A session that is deleted frees the keys of its runs.
create index idempotency_job on holdfast.idempotency (job);

-- A run as it stands: while nothing else is said, its job says whether a worker has it.
create view holdfast.run_now as
select r.id, r.job, r.session, r.branch, r.ordinal, r.tenant, r.agent, r.agent_name, r.version, r.mode,
    case when r.state in ('pending', 'streaming') and j.state = 'running'
            then case r.mode when 'batch' then 'batch_submitting' else 'streaming' end
        when r.state = 'streaming' then 'pending'
        else r.state end as state,
    case when r.state = 'pending' and j.state = 'running' then 'pending'
        else r.previous_state end as previous_state,
    r.parent, r.call, r.root, r.depth, r.input, r.variables, r.metadata, r.options, r.turns, r.events, r.outcome,
    r.stop_reason, r.output, r.refusal, r.limited, r.error_type, r.error, r.input_tokens, r.output_tokens,
    r.cache_write_tokens, r.cache_read_tokens, r.cost_nano, r.created_at,
    coalesce(r.started_at, j.claimed_at) as started_at, r.finalized_at, j.worker, r.state as stored_state
from holdfast.run r left join holdfast.job j on j.seq = r.job;

-- down
drop view holdfast.run_now;
drop index holdfast.idempotency_job;
drop table holdfast.provider_lane;
drop table holdfast.run_event;
drop table holdfast.tool_call;
drop table holdfast.turn;
drop table holdfast.blob;
drop table holdfast.block;
drop table holdfast.message;
drop table holdfast.run;
drop table holdfast.session;
drop table holdfast.agent_version;
drop table holdfast.agent;
