-- Agents, sessions and runs, on top of jobs: a run is a job, a tool call is a child of it.
-- oldest_code: 4

-- up
create table agent (
    id text primary key,
    tenant text not null,
    name text not null,
    metadata text not null,
    description text not null,
    version integer not null,
    created_at integer not null,
    updated_at integer not null
) strict;
create unique index agent_name on agent (name, tenant, metadata);

-- What a version says never changes; a run keeps the one it started with.
create table agent_version (
    agent text not null,
    version integer not null,
    definition text not null,
    digest text not null,
    created_at integer not null,
    primary key (agent, version)
) strict;
create unique index agent_version_digest on agent_version (agent, digest);

create table session (
    id text primary key,
    tenant text not null,
    key text,
    parent text,
    depth integer not null,
    metadata text not null,
    runs integer not null default 0,
    created_at integer not null,
    updated_at integer not null
) strict;
create unique index session_key on session (tenant, key) where key is not null;
create index session_parent on session (parent) where parent is not null;
create index session_metadata on session (metadata);
create index session_listed on session (created_at desc, id desc);

-- `state` has the names of the runs' own life; while it is pending, its job says whether a worker has it.
create table run (
    id text primary key,
    job integer not null,
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
    input text not null,
    variables text not null,
    metadata text not null,
    options text not null,
    prompted integer not null default 0,
    turns integer not null default 0,
    events integer not null default 0,
    epoch integer not null default 0,
    token integer not null default 0,
    container text,
    outcome text,
    stop_reason text,
    output text,
    refusal text,
    limited text,
    error_type text,
    error text,
    input_tokens integer not null default 0,
    output_tokens integer not null default 0,
    cache_write_tokens integer not null default 0,
    cache_read_tokens integer not null default 0,
    cost_nano integer not null default 0,
    created_at integer not null,
    started_at integer,
    progressed_at integer,
    finalized_at integer,
    constraint run_state check (state in ('pending', 'batch_submitting', 'batch_pending', 'batch_processing',
        'streaming', 'pending_tools', 'awaiting_input', 'completed', 'cancelled', 'failed')),
    constraint run_finalized check ((state in ('completed', 'cancelled', 'failed')) = (finalized_at is not null))
) strict;
create unique index run_job on run (job);
create index run_session on run (session, created_at desc, id desc);
create index run_queue on run (session, ordinal)
    where parent is null and finalized_at is null;
create index run_streaming on run (progressed_at) where state = 'streaming';
create index run_root on run (root);
create index run_agent on run (agent);
create index run_listed on run (created_at desc, id desc);
create index run_tenant on run (tenant, created_at desc, id desc);
create index run_parent on run (parent, created_at desc, id desc) where parent is not null;
create index run_state on run (state, created_at desc, id desc) where state <> 'completed';

-- The place of a message is (session, branch, ordinal), and never a time. What is not live is not sent any more.
create table message (
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
    created_at integer not null
) strict;
create unique index message_place on message (session, branch, ordinal);
create index message_live on message (session, branch, ordinal) where live = 1;
create index message_run on message (run, ordinal);

-- A block is the provider's JSON, byte for byte; large ones are stored once.
create table block (
    message text not null,
    ordinal integer not null,
    type text not null,
    body text,
    blob text,
    primary key (message, ordinal)
) strict;
create index block_blob on block (blob) where blob is not null;
create table blob (hash text primary key, body text not null) strict;

create table turn (
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
    usage text,
    input_tokens integer not null default 0,
    output_tokens integer not null default 0,
    cache_write_tokens integer not null default 0,
    cache_read_tokens integer not null default 0,
    cost_nano integer not null default 0,
    error text,
    epoch integer not null,
    token integer not null,
    started_at integer not null,
    ended_at integer,
    primary key (run, number)
) strict;

create table tool_call (
    id text primary key,
    run text not null,
    turn integer not null,
    ordinal integer not null,
    tool_use_id text not null,
    name text not null,
    input text not null,
    job integer,
    child text,
    effect text not null,
    state text,
    output text,
    is_error integer not null default 0,
    created_at integer not null,
    finished_at integer,
    constraint tool_call_state check (state in ('completed', 'failed', 'skipped'))
) strict;
create unique index tool_call_place on tool_call (run, turn, ordinal);
create unique index tool_call_job on tool_call (job) where job is not null;
create index tool_call_open on tool_call (run) where state is null;

-- Numbered without gap by `run.events`; `pos` is the order of commits in one `epoch`, which a restored file raises.
create table run_event (
    run text not null,
    seq integer not null,
    at integer not null,
    type text not null,
    data text not null,
    topic text,
    epoch integer not null default 0,
    tx integer not null,
    pos integer primary key autoincrement
) strict;
create unique index run_event_seq on run_event (run, seq);
create index run_event_topic on run_event (epoch, tx, pos) where topic is not null;

create table provider_lane (
    name text primary key,
    closed_until integer,
    person integer not null default 0,
    reason text not null,
    updated_at integer not null
) strict;

-- A session that is deleted frees the keys of its runs.
create index idempotency_job on idempotency (job);

-- A run as it stands: while nothing else is said, its job says whether a worker has it.
create view run_now as
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
from run r left join job j on j.seq = r.job;

-- down
drop view run_now;
drop index idempotency_job;
drop table provider_lane;
drop table run_event;
drop table tool_call;
drop table turn;
drop table blob;
drop table block;
drop table message;
drop table run;
drop table session;
drop table agent_version;
drop table agent;
