-- The tables of release 0.1.0, by subject: jobs, queues, workers, agents, money, retention, counts, the web, the
-- gateway. Then the views, and last what runs by itself. Times are microseconds since 1970, `*_us` a length of time. No
-- table has a foreign key: each statement keeps its own order of locks.
-- oldest_code: 1

-- up
-- Jobs. The state of a job is the table in which its row stands: `ready`, `later`, `lease` or `ended`. What was asked
-- for is in `job`, which nobody updates on the way. The view `job_now` shows a job as it stands.

-- `layer` names the part of the runtime that a job belongs to, such as `agents`; null: a program's own. `slot` is its
-- turn among the tenants of a fair queue, `cost` what it takes of its lane's rate.
create table holdfast.job (
    seq bigint generated always as identity primary key,
    id uuid not null,
    route bigint not null,
    slot bigint not null default 0,
    created_at bigint not null,
    priority integer not null,
    max_attempts integer not null,
    max_rescues integer not null,
    cost integer not null default 1,
    kind text not null,
    queue text not null,
    tenant text not null,
    payload json not null,
    metadata jsonb not null,
    timeout_us bigint,
    due_at bigint,
    deadline_at bigint,
    parent bigint,
    retry_of uuid,
    lane text,
    unique_key text,
    unique_scope text,
    layer text,
    constraint job_asked check (cost >= 1 and case when unique_key is null then unique_scope is null
        else unique_scope is not null and unique_scope in ('pending', 'live', 'window') end)
);
create unique index job_id on holdfast.job (id);
create index job_parent on holdfast.job (parent) where parent is not null;

-- What can be claimed. A row is inserted and deleted, never updated. `tenant` is there on fair queues only, `cost` in
-- lanes.
create table holdfast.ready (
    route bigint not null,
    slot bigint not null,
    seq bigint not null,
    token bigint not null,
    priority integer not null,
    attempts integer not null,
    rescues integer not null,
    cost integer,
    deadline_at bigint,
    lane text,
    tenant text,
    primary key (route, priority, slot, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
create index ready_deadline on holdfast.ready (deadline_at) where deadline_at is not null;
create index ready_lane on holdfast.ready (lane) where lane is not null;
create index ready_fair on holdfast.ready (route, priority, tenant, slot) where slot > 0;

-- What cannot be claimed yet, and what wakes it: its time, a channel, its children, or room in its lane.
create table holdfast.later (
    seq bigint primary key,
    route bigint not null,
    slot bigint not null,
    token bigint not null,
    priority integer not null,
    attempts integer not null,
    rescues integer not null,
    state text not null,
    cost integer,
    due_at bigint,
    deadline_at bigint,
    channel text,
    lane text,
    tenant text,
    constraint later_state check (case state
        when 'scheduled' then due_at is not null and channel is null
        when 'waiting' then true
        when 'blocked' then lane is not null and due_at is null and channel is null
        else false end)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
create index later_route on holdfast.later (route, state);
create index later_due on holdfast.later (due_at) where due_at is not null;
create index later_deadline on holdfast.later (deadline_at) where deadline_at is not null;
create index later_channel on holdfast.later (channel) where channel is not null;
create index later_lane on holdfast.later (lane) where lane is not null;
create index later_blocked on holdfast.later (lane, priority, slot, seq) where state = 'blocked';
create index later_fair on holdfast.later (route, priority, tenant, slot) where state = 'blocked' and slot > 0;

-- What runs. No index contains `lease_until`, and a page has room, so that a renewal changes its row alone. `ttl_us` is
-- the longest time that it was given at once; null: a worker claimed and renews it. A lease that ends later than this
-- shows that the clock went back.
create table holdfast.lease (
    seq bigint primary key,
    worker bigint not null,
    epoch bigint not null,
    token bigint not null,
    lease_until bigint not null,
    claimed_at bigint not null,
    route bigint not null,
    attempts integer not null,
    rescues integer not null,
    kind text not null,
    queue text not null,
    parent bigint,
    cancel_requested_at bigint,
    lane text,
    cancel_error json,
    ttl_us bigint
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
create index lease_worker on holdfast.lease (worker);
create index lease_lane on holdfast.lease (lane) where lane is not null;

-- How it ended. It is the record of the last attempt too, unless none ended here: then `outcome` is null.
create table holdfast.ended (
    seq bigint primary key,
    token bigint not null,
    finished_at bigint not null,
    worker bigint,
    epoch bigint,
    claimed_at bigint,
    attempts integer not null,
    rescues integer not null,
    state text not null,
    queue text not null,
    outcome text,
    lane text,
    cancel_requested_at bigint,
    result json,
    error json,
    constraint ended_state check (state in ('succeeded', 'failed', 'cancelled')
        and case when outcome is null then worker is null else worker is not null and epoch is not null
            and claimed_at is not null and outcome in ('succeeded', 'failed', 'cancelled', 'lost') end)
);
create index ended_finished on holdfast.ended (queue, finished_at);
create index ended_lane on holdfast.ended (lane) where lane is not null;
-- Jobs that failed or were cancelled, the last first. Nothing else on this table: each job passes through it.
create index job_troubled on holdfast.ended (finished_at desc, seq desc) where state in ('failed', 'cancelled');

-- The attempts that did not end their job. The view `attempt_now` has all of them.
create table holdfast.attempt (
    job bigint not null,
    epoch bigint not null,
    token bigint not null,
    worker bigint not null,
    outcome text not null,
    started_at bigint not null,
    ended_at bigint not null,
    error json,
    constraint attempt_outcome check (outcome in
        ('succeeded', 'failed', 'retried', 'snoozed', 'released', 'parked', 'cancelled', 'lost')),
    primary key (job, epoch, token)
);

-- How many children of a job are open. Whoever reads or changes it has locked the row of the job before.
create table holdfast.family (
    job bigint primary key,
    open_children integer not null,
    constraint family_open check (open_children >= 0)
) with (fillfactor = 70);

-- What a job last said of itself while it ran.
create table holdfast.progress (
    job bigint primary key,
    value json not null
) with (fillfactor = 70);

-- What a job stored on its way, so that its next attempt does not do it again.
create table holdfast.step (
    job bigint not null,
    name text not null,
    result json not null,
    signal uuid,
    stored_at bigint not null,
    primary key (job, name)
);
create unique index step_signal on holdfast.step (signal) where signal is not null;

-- The row of a channel is what `park` and `signal` lock first, so that neither can miss the other.
create table holdfast.channel (name text primary key);

-- Signals that nobody has taken yet.
create table holdfast.signal (
    seq bigint generated always as identity primary key,
    id uuid not null,
    channel text not null,
    payload json not null,
    sent_at bigint not null
);
create unique index signal_id on holdfast.signal (id);
create index signal_channel on holdfast.signal (channel, seq);
create index signal_sent on holdfast.signal (sent_at);

-- Jobs whose children are still to be cancelled. Whoever sweeps continues where a dead canceller stopped.
create table holdfast.cancellation (
    job bigint primary key,
    reason text not null,
    requested_at bigint not null
);

-- Which job has a unique key. Whether it still holds it, its own state says: see `enqueue`.
create table holdfast.unique_key (
    scope text not null,
    key text not null,
    job uuid not null,
    primary key (scope, key)
);
create index unique_key_job on holdfast.unique_key (job);

-- Which job a caller's key made. `freed_at` is when retention removed the job; the key stays as long after that as
-- after the job's end.
create table holdfast.idempotency (
    tenant text not null,
    key text not null,
    digest text not null,
    job uuid not null,
    created_at bigint not null,
    freed_at bigint,
    primary key (tenant, key)
);
create index idempotency_created on holdfast.idempotency (created_at);
create index idempotency_freed on holdfast.idempotency (freed_at) where freed_at is not null;
-- A session that is deleted frees the keys of its runs.
create index idempotency_job on holdfast.idempotency (job);

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

-- Queues, what their jobs require, and how many of them may run.

-- `fair` takes tenants in turn. `lost_counts` is 1 where a lost lease is an attempt like any other, without a pause
-- before the next one. `keep_us` and `keep_jobs` say what retention leaves.
create table holdfast.queue (
    name text primary key,
    on_orphan text not null check (on_orphan in ('requeue', 'fail')),
    updated_at bigint not null,
    paused_at bigint,
    pause_reason text,
    fair integer not null default 0,
    keep_us bigint,
    keep_jobs bigint,
    lost_counts integer not null default 0
);
create index queue_paused on holdfast.queue (name) where paused_at is not null;

-- A queue and the capabilities that a worker must have, under the number that is made of them.
create table holdfast.route (
    id bigint primary key,
    queue text not null,
    capabilities text not null,
    used_at bigint not null
);
create index route_used on holdfast.route (used_at);
create index route_queue on holdfast.route (queue);

-- Routes that are used while somebody else's transaction holds their row; see `lane_note`.
create table holdfast.route_note (
    id bigint generated always as identity primary key,
    route bigint not null,
    queue text not null,
    capabilities text not null
);

-- How many at once, and how often. `free_at` is when the rate has caught up, and `charged_at` when that was last
-- written: a clock that has gone back since is seen by it. `opens_at` is when to look again whether a blocked job may
-- go on, null when none is blocked.
create table holdfast.lane (
    name text primary key,
    concurrency integer,
    interval_us bigint,
    burst integer not null,
    free_at bigint not null default 0,
    opens_at bigint,
    updated_at bigint not null,
    charged_at bigint not null default 0,
    constraint lane_limits check (concurrency >= 1 and interval_us >= 1 and burst >= 1)
);
create index lane_opens on holdfast.lane (opens_at) where opens_at is not null;
create index lane_updated on holdfast.lane (updated_at);

-- Nobody waits for a row that somebody else's transaction holds: what is to be done with it is written here, and a new
-- row waits for nobody. Limits in a note are those that a call declared; without them the lane is to be looked at.
create table holdfast.lane_note (
    id bigint generated always as identity primary key,
    lane text not null,
    declares integer not null,
    concurrency integer,
    interval_us bigint,
    burst integer not null,
    look_at bigint not null
);
create index lane_note_lane on holdfast.lane_note (lane);
create index lane_note_look on holdfast.lane_note (look_at);

-- One that could not be fired says why in `error`, and is tried again at `retry_at`; the others go on.
create table holdfast.schedule (
    name text primary key,
    kind text not null,
    queue text not null,
    cron text not null,
    timezone text not null,
    catch_up text not null,
    job json not null,
    next_at bigint not null,
    last_at bigint,
    last_job uuid,
    paused_at bigint,
    updated_at bigint not null,
    retry_at bigint,
    error text,
    constraint schedule_catch_up check (catch_up in ('one', 'all', 'none'))
);
create index schedule_next on holdfast.schedule (next_at) where paused_at is null and retry_at is null;
create index schedule_retry on holdfast.schedule (retry_at) where paused_at is null and retry_at is not null;

-- Workers and what they share.

-- `identity` is that of the server or the file. Where it is another than before, this is a restored copy or a promoted
-- standby: `epoch` rises, and no token from before is current.
create table holdfast.cluster (
    one smallint primary key default 1 check (one = 1),
    epoch bigint not null,
    identity text not null
);
insert into holdfast.cluster (epoch, identity) values (1, '');

-- `code` is the schema version of the worker's code; null: nobody knows it, as with a client of a gateway. `lines`
-- says, as JSON, how many slots each line of the worker has and how many of them are taken.
-- `starting`: somebody starts a process, which has until `boot_by` to make this row its own. It counts for scaling,
-- never as alive. `idle_since` is null while the worker runs something. `host` is the worker in whose process a broker
-- lives, and whose presence is the broker's too; 0: the owner lives in no process that we know, and shows no presence;
-- null: the worker is a process of its own. `principal` is who registered it.
create table holdfast.worker (
    seq bigint generated always as identity primary key,
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
    started_at bigint not null,
    heartbeat_at bigint not null,
    ttl_us bigint not null,
    stopped_at bigint,
    reason text,
    code integer,
    lines text,
    boot_by bigint,
    idle_since bigint,
    pool text,
    principal text,
    metadata jsonb,
    host bigint,
    constraint worker_status check (status in ('starting', 'active', 'draining', 'stopped', 'lost')),
    constraint worker_boot check (status <> 'starting' or boot_by is not null)
);
create unique index worker_incarnation on holdfast.worker (incarnation);
create unique index worker_id on holdfast.worker (id) where status in ('active', 'draining');
create index worker_pool on holdfast.worker (pool, status) where pool is not null;
-- All lives of a worker, the last first.
create index worker_named on holdfast.worker (id, seq desc);

-- What one worker at a time does for all of them.
create table holdfast.duty (
    name text primary key,
    term bigint not null,
    holder bigint,
    held_until bigint not null
);

-- Pools as they were declared, and what the last decision about each found.
create table holdfast.pool (
    name text primary key,
    settings jsonb not null,
    standing jsonb not null,
    updated_at bigint not null
);

-- Agents, on top of jobs: a run is a job, and a call of a tool is a child of it.

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

-- Tools as the workers that have their code declare them, for agents that are made elsewhere.
create table holdfast.tool (
    name text primary key,
    definition json not null,
    digest text not null,
    updated_at bigint not null
);

create table holdfast.session (
    id text primary key,
    tenant text not null,
    key text,
    parent text,
    depth integer not null,
    metadata jsonb not null,
    runs integer not null default 0,
    created_at bigint not null,
    updated_at bigint not null,
    generation text not null default '',
    compactions integer not null default 0,
    during text not null default 'queue',
    forked_from text,
    forked_at integer
);
create unique index session_key on holdfast.session (tenant, key) where key is not null;
create index session_metadata on holdfast.session using gin (metadata jsonb_path_ops);
create index session_listed on holdfast.session (created_at desc, id desc);
create index session_tenant on holdfast.session (tenant, created_at, id);
create index session_parent on holdfast.session (parent, created_at desc, id desc) where parent is not null;
create index session_forked on holdfast.session (forked_from) where forked_from is not null;
-- Keys that begin with a text.
create index session_prefix on holdfast.session (key collate "C") where key is not null;

-- What a session has used. Triggers add to it where a run ends or a compaction is paid for, once. Not in the row of the
-- session: a caller's open transaction that adds a run locks that row.
create table holdfast.session_total (
    session text primary key,
    runs bigint not null,
    turns bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_tokens bigint not null,
    cache_read_tokens bigint not null,
    cost_nano bigint not null
);

-- `state` has the names of the runs' own life; while it is pending, its job says whether a worker has it: see
-- `run_now`.
-- No index has a column that changes while the run goes on: an update then touches the row alone, on its page. A run is
-- changed about ten times, and the next version of a row must fit there.
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
    interrupted text,
    fallback integer not null default 0,
    continued integer not null default 0,
    deadline_at bigint,
    forked_from text,
    forked_at integer,
    generation text not null default '',
    retry_of text,
    constraint run_state check (state in ('pending', 'batch_submitting', 'batch_pending', 'batch_processing',
        'streaming', 'pending_tools', 'awaiting_input', 'completed', 'cancelled', 'failed')),
    constraint run_finalized check ((state in ('completed', 'cancelled', 'failed')) = (finalized_at is not null))
) with (fillfactor = 50);
create unique index run_job on holdfast.run (job);
create index run_session on holdfast.run (session, created_at desc, id desc);
create index run_queue on holdfast.run (session, ordinal) where parent is null and finalized_at is null;
create index run_root on holdfast.run (root);
create index run_listed on holdfast.run (created_at desc, id desc);
create index run_tenant on holdfast.run (tenant, created_at desc, id desc);
create index run_parent on holdfast.run (parent, created_at desc, id desc) where parent is not null;
create index run_forked on holdfast.run (forked_from) where forked_from is not null;
create index run_agent on holdfast.run (agent, created_at desc, id desc);
create index run_open on holdfast.run (created_at desc, id desc) where finalized_at is null;
create index run_tenant_open on holdfast.run (tenant, created_at desc, id desc) where finalized_at is null;
-- The open runs of a session below another one; `run_queue` has the others.
create index run_child_open on holdfast.run (session) where parent is not null and finalized_at is null;
-- Those that failed or were cancelled: only an answered run has an outcome.
create index run_unanswered on holdfast.run (created_at desc, id desc)
    where finalized_at is not null and outcome is null;
create index run_tenant_unanswered on holdfast.run (tenant, created_at desc, id desc)
    where finalized_at is not null and outcome is null;
-- For retention, of everybody or of a tenant that keeps things for a time of its own.
create index run_ended on holdfast.run (finalized_at, id) where finalized_at is not null;
create index run_tenant_ended on holdfast.run (tenant, finalized_at, id) where finalized_at is not null;

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
    mode text not null default 'streaming',
    generation text not null default '',
    primary key (run, number)
);
create index turn_ended on holdfast.turn (ended_at) where ended_at is not null;

-- The place of a message is (session, branch, ordinal), and never a time. What is not live is not sent any more: what a
-- compaction replaced keeps its place, so places are unique among what is sent. `made_by` is the compaction that wrote
-- a message, `compacted` the one that took it out. `retired` is for what somebody took out: the last run that has still
-- seen it, by its place in the line. A copy in a fork has its own fingerprint.
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
    created_at bigint not null,
    compacted text,
    made_by text,
    fingerprint text,
    retired integer
);
create index message_run on holdfast.message (run, ordinal);
create index message_place on holdfast.message (session, branch, ordinal);
create unique index message_live on holdfast.message (session, branch, ordinal) where live = 1;
create index message_compacted on holdfast.message (compacted) where compacted is not null;

-- A block is the provider's JSON, byte for byte; large ones are stored once, in `blob`.
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
create index tool_call_listed on holdfast.tool_call (finished_at desc, id desc) where finished_at is not null;
create index tool_call_failed on holdfast.tool_call (name, finished_at desc, id desc) where state = 'failed';

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

-- Processes that read the events of runs. Nobody is hinted while there is none.
create table holdfast.reader (
    id text primary key,
    until bigint not null
);
create index reader_until on holdfast.reader (until);

-- Something that only a person can decide; while it is open, what it is about waits and holds no worker.
create table holdfast.inquiry (
    id text primary key,
    run text not null,
    session text not null,
    tenant text not null,
    kind text not null,
    call text,
    name text not null,
    digest text not null,
    data json not null,
    state text not null,
    fallback json,
    asked_at bigint not null,
    expires_at bigint,
    decided_at bigint,
    decided_by text,
    decision json,
    constraint inquiry_kind check (kind in ('approval', 'question', 'review', 'continuation', 'limit')),
    constraint inquiry_state check (state in ('open', 'approved', 'denied', 'answered', 'expired', 'withdrawn')),
    constraint inquiry_decided check ((state = 'open') = (decided_at is null))
);
create index inquiry_open on holdfast.inquiry (asked_at, id) where state = 'open';
create index inquiry_run on holdfast.inquiry (run, asked_at);
create index inquiry_call on holdfast.inquiry (call) where call is not null;
-- In the order in which they were asked. Those that are open have an index of their own.
create index inquiry_tenant on holdfast.inquiry (tenant, asked_at, id);
create index inquiry_decided on holdfast.inquiry (asked_at, id) where state <> 'open';

-- Messages for a run that is under way, until a turn takes them.
create table holdfast.steer (
    id text primary key,
    run text not null,
    ordinal integer not null,
    body json not null,
    sent_at bigint not null,
    turn integer
);
create index steer_open on holdfast.steer (run, ordinal) where turn is null;

create table holdfast.compaction (
    id text primary key,
    session text not null,
    branch text not null,
    run text,
    state text not null,
    strategy text not null,
    trigger text not null,
    model text not null,
    config json not null,
    before_generation text not null,
    tokens_before bigint not null default 0,
    tokens_after bigint,
    removed integer not null default 0,
    pruned integer not null default 0,
    summary text,
    attempts integer not null default 1,
    unknown integer not null default 0,
    charged bigint not null default 0,
    usage json,
    input_tokens bigint not null default 0,
    output_tokens bigint not null default 0,
    cache_write_tokens bigint not null default 0,
    cache_read_tokens bigint not null default 0,
    cost_nano bigint not null default 0,
    error text,
    started_at bigint not null,
    ended_at bigint,
    restored_at bigint,
    constraint compaction_state check (state in ('calling', 'done', 'failed', 'restored'))
);
create index compaction_session on holdfast.compaction (session, started_at desc, id desc);
create index compaction_ended on holdfast.compaction (ended_at) where ended_at is not null;
create index compaction_run on holdfast.compaction (run) where run is not null;

-- Provider batches. Each is a job that submits, polls and collects; the requests are turns of runs.
create table holdfast.batch (
    id text primary key,
    lane text not null,
    model text not null,
    credential text not null,
    state text not null,
    job text not null,
    provider_id text,
    size integer not null default 0,
    bytes bigint not null default 0,
    applied integer not null default 0,
    attempts integer not null default 0,
    unknown integer not null default 0,
    held json,
    counts json,
    error text,
    polls integer not null default 0,
    created_at bigint not null,
    intent_at bigint,
    troubled_at bigint,
    submitted_at bigint,
    polled_at bigint,
    ended_at bigint,
    constraint batch_state check (state in
        ('gathering', 'submitting', 'searching', 'submitted', 'processing', 'canceling', 'collecting', 'ended', 'failed')),
    constraint batch_ended check ((state in ('ended', 'failed')) = (ended_at is not null))
);
create unique index batch_gathering on holdfast.batch (lane) where state = 'gathering';
create unique index batch_provider_id on holdfast.batch (provider_id) where provider_id is not null;
create index batch_listed on holdfast.batch (created_at desc, id desc);

create table holdfast.batch_request (
    custom_id text primary key,
    batch text not null,
    run text not null,
    job bigint not null,
    turn integer not null,
    attempt integer not null,
    body json,
    bytes integer not null,
    state text not null,
    outcome text,
    created_at bigint not null,
    constraint batch_request_state check (state in ('waiting', 'sent', 'answered', 'applied', 'dropped'))
);
create index batch_request_open on holdfast.batch_request (batch, custom_id) where state in ('waiting', 'sent');
create index batch_request_batch on holdfast.batch_request (batch);
create index batch_request_run on holdfast.batch_request (run, turn);

-- Providers, models or keys that are closed: until a time, or with `person` until somebody opens them.
create table holdfast.provider_lane (
    name text primary key,
    closed_until bigint,
    person integer not null default 0,
    reason text not null,
    updated_at bigint not null
);

-- Money: what may be spent, and what was.

-- By a session, a tenant or everybody, for ever or in each period of so many microseconds.
create table holdfast.budget (
    id text primary key,
    scope text not null,
    subject text not null,
    period_us bigint not null default 0,
    limit_nano bigint not null,
    policy text not null,
    updated_at bigint not null,
    constraint budget_scope check (scope in ('session', 'tenant', 'everybody')),
    constraint budget_policy check (policy in ('end', 'ask', 'wait'))
);
create unique index budget_subject on holdfast.budget (scope, subject, period_us);

-- What was spent of a budget, or of a tree of runs, in a period, and what calls under way may cost.
create table holdfast.budget_use (
    budget text not null,
    period bigint not null,
    spent_nano bigint not null default 0,
    reserved_nano bigint not null default 0,
    primary key (budget, period)
);

-- What calls under way may cost, until they are settled. A summary for no run is reserved by its compaction, and given
-- up at a time after which nobody settles it any more.
create table holdfast.reservation (
    run text not null,
    turn integer not null,
    budget text not null,
    period bigint not null,
    nano bigint not null,
    lapses_at bigint,
    primary key (run, turn, budget)
);
create index reservation_lapses on holdfast.reservation (lapses_at) where lapses_at is not null;

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

-- Retention.

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

-- Counts of what has ended.

-- `subject` is what is counted. `grain` is 'minute', 'hour' or 'day', of everybody: there `tenant` is empty; or
-- 'tenant_hour' or 'tenant_day', of one tenant. `at` is when the time begins.
create table holdfast.tally (
    subject text not null,
    grain text not null,
    tenant text not null,
    at bigint not null,
    source text not null,
    kind text not null,
    mode text not null,
    state text not null,
    number bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_tokens bigint not null,
    cache_read_tokens bigint not null,
    cost_nano bigint not null,
    constraint tally_grain check (grain in ('minute', 'hour', 'day', 'tenant_hour', 'tenant_day')),
    primary key (subject, grain, tenant, at, source, kind, mode, state)
);
create index tally_at on holdfast.tally (grain, at);

-- How many waited or took so long: bucket n is less than 2 to the power of n milliseconds, and at least half of that.
create table holdfast.tally_time (
    subject text not null,
    grain text not null,
    tenant text not null,
    at bigint not null,
    source text not null,
    kind text not null,
    mode text not null,
    state text not null,
    measure text not null,
    bucket integer not null,
    number bigint not null,
    constraint tally_time_measure check (measure in ('wait', 'duration')),
    primary key (subject, grain, tenant, at, source, kind, mode, state, measure, bucket)
);
create index tally_time_at on holdfast.tally_time (grain, at);

-- Everything of a source that ended up to this moment is in the tally.
create table holdfast.tally_mark (
    subject text not null,
    source text not null,
    at bigint not null,
    primary key (subject, source)
);

-- Failures that differ only in numbers and ids. `last_id` names the last of them.
create table holdfast.failure_group (
    id text primary key,
    subject text not null,
    tenant text not null,
    kind text not null,
    error text not null,
    message text not null,
    number bigint not null,
    first_at bigint not null,
    last_at bigint not null,
    last_id text not null
);
create index failure_group_last on holdfast.failure_group (last_at desc, id desc);
create index failure_group_tenant on holdfast.failure_group (tenant, last_at desc, id desc);

-- The web: who may reach it, and what was done through it.

-- Only the hash of a token is stored; its id may be shown.
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

-- The last row of `audit`, locked by who adds the next one.
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

-- What the Redis-protocol gateway keeps besides jobs: keys of its clients, plans, actions, and plain data.

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

-- A plan that runs over inputs.
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

-- Plain data, as Redis has it: a string is in its row, what has parts has them in `resp_part`. SCAN walks along
-- `place`, which is a hash of the key.
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

-- The parts of a list are called by their place, as eight bytes that sort as the place does.
create table holdfast.resp_part (
    space text not null,
    key bytea not null,
    part bytea not null,
    score double precision,
    value bytea,
    primary key (space, key, part)
);
create index resp_part_score on holdfast.resp_part (space, key, score, part) where score is not null;

-- Views. People and layers read a job, an attempt and a run here, wherever their rows are.

-- Each table is probed for each job by itself, in any plan. The error of a job that goes on is that of its last attempt
-- which had one.
create view holdfast.job_now as
select j.seq, j.id, j.kind, j.queue, j.route, j.tenant,
    case when l.seq is not null then 'running' when e.seq is not null then e.state when r.seq is not null then 'pending'
        when t.state = 'blocked' then 'pending' else t.state end as state,
    j.priority, j.slot, case when t.state = 'blocked' then t.lane end as gate,
    coalesce(l.epoch, e.epoch, case when coalesce(r.token, t.token, e.token) > 0 then (select a.epoch
        from holdfast.attempt a where a.job = j.seq order by a.epoch desc, a.token desc limit 1) end, 0) as epoch,
    coalesce(l.token, e.token, r.token, t.token) as token, l.worker, l.lease_until,
    coalesce(l.claimed_at, e.claimed_at, case when coalesce(r.token, t.token, e.token) > 0 then (select a.started_at
        from holdfast.attempt a where a.job = j.seq order by a.epoch desc, a.token desc limit 1) end) as claimed_at,
    coalesce(l.attempts, e.attempts, r.attempts, t.attempts) as attempts, j.max_attempts,
    coalesce(l.rescues, e.rescues, r.rescues, t.rescues) as rescues, j.max_rescues, j.timeout_us, t.due_at, j.deadline_at,
    j.created_at, e.finished_at, coalesce(l.cancel_requested_at, e.cancel_requested_at) as cancel_requested_at, j.parent,
    coalesce((select f.open_children from holdfast.family f where f.job = j.seq), 0) as open_children, t.channel,
    j.retry_of, j.lane, j.cost, j.unique_key, j.unique_scope, j.payload, j.metadata,
    (select p.value from holdfast.progress p where p.job = j.seq) as progress, e.result,
    case when e.seq is not null then e.error when l.cancel_error is not null then l.cancel_error
        when coalesce(l.token, r.token, t.token) > 0 then (select a.error from holdfast.attempt a
            where a.job = j.seq and a.error is not null order by a.epoch desc, a.token desc limit 1) end as error, j.layer
from holdfast.job j
left join lateral (select * from holdfast.lease k where k.seq = j.seq offset 0) as l on true
left join lateral (select * from holdfast.ended k where k.seq = j.seq offset 0) as e on true
left join lateral (select * from holdfast.ready k where k.route = j.route and k.priority = j.priority and k.slot = j.slot
    and k.seq = j.seq offset 0) as r on true
left join lateral (select * from holdfast.later k where k.seq = j.seq offset 0) as t on true;

-- Every attempt that ended: the last one of an ended job stands in `ended`, all others in `attempt`. One that was lost
-- has no error of its own, and where a cancel was accepted the job's error is its reason: an attempt that failed
-- nevertheless stands in `attempt`.
create view holdfast.attempt_now as
select job, epoch, token, worker, outcome, started_at, ended_at, error from holdfast.attempt
union all
select seq, epoch, token, worker, outcome, claimed_at, finished_at,
    case when outcome <> 'lost' and cancel_requested_at is null then error end
from holdfast.ended where outcome is not null;

-- While nothing else is said, a lease of its job says that a worker has a run.
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
    r.finalized_at, l.worker, r.state as stored_state,
    r.retry_of
from holdfast.run r
left join lateral (select k.seq, k.worker, k.claimed_at from holdfast.lease k where k.seq = r.job offset 0) as l on true;

-- The one place that knows what a pause means: nothing on these routes is claimed.
create view holdfast.paused_route as
select r.id from holdfast.queue q join holdfast.route r on r.queue = q.name where q.paused_at is not null;

-- The same for people, with times that they can read.

create view holdfast.job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    to_timestamp(created_at / 1000000.0) as created_at,
    to_timestamp(due_at / 1000000.0) as due_at,
    to_timestamp(claimed_at / 1000000.0) as claimed_at,
    to_timestamp(lease_until / 1000000.0) as lease_until,
    to_timestamp(finished_at / 1000000.0) as finished_at, layer
from holdfast.job_now;

create view holdfast.attempt_readable as
select job, epoch || '.' || token as token, worker, outcome, error,
    to_timestamp(started_at / 1000000.0) as started_at,
    to_timestamp(ended_at / 1000000.0) as ended_at
from holdfast.attempt_now;

create view holdfast.worker_readable as
select seq, id, name, hostname, pid, version, status, slots, active, presence, reason,
    to_timestamp(started_at / 1000000.0) as started_at,
    to_timestamp(heartbeat_at / 1000000.0) as heartbeat_at,
    to_timestamp(stopped_at / 1000000.0) as stopped_at
from holdfast.worker;

-- Universal Agent's runs and their attempts as its operators read them. Times are UTC, to the second, as
-- datetime('now') gives them, so that its queries compare them rightly. An owner of runs is stored under a name of its
-- own, apart from a worker of the same name; the views show its name as its callers know it. Nothing writes to these
-- views.

create view holdfast.runs as
select a.name as run_id,
    case when j.state in ('pending', 'scheduled', 'waiting') then 'queued' when j.state = 'succeeded' then 'completed'
        when j.state = 'running' and j.cancel_requested_at is not null then 'cancel_requested'
        when j.state = 'failed' and j.error ->> 'type' = 'rescue_failed' then 'needs_review'
        when j.seq is null then 'pruned' else j.state end as status,
    j.payload ->> 'prompt' as last_job_prompt, j.payload ->> 'workspace_dir' as workspace_dir,
    cast(j.payload ->> 'max_iterations' as integer) as max_iterations,
    case w.principal when 'universal_agent' then w.name else w.id end as lease_owner,
    to_char(to_timestamp(j.lease_until / 1000000) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as lease_expires_at,
    a.attempts + coalesce((select count(*) from holdfast.attempt_now t where t.job = j.seq), 0)
        + case when j.state = 'running' then 1 else 0 end as attempts,
    case when j.state in ('failed', 'cancelled') then j.error ->> 'type' end as failure_class,
    case when j.state in ('failed', 'cancelled') then j.error ->> 'message' end as failure_reason,
    to_char(to_timestamp(a.created_at / 1000000.0) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.MS') as created_at,
    to_char(to_timestamp(j.finished_at / 1000000.0) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.MS') as finished_at,
    a.job as job_id
from holdfast.alias a
left join holdfast.job_now j on j.id = a.job
left join holdfast.worker w on w.seq = j.worker
where a.scope = 'universal_agent'
    and a.number = (select max(b.number) from holdfast.alias b where b.scope = a.scope and b.name = a.name);

create view holdfast.run_attempts as
select a.name as run_id, a.attempts + row_number() over (partition by a.job order by t.epoch, t.token) as attempt_number,
    case t.outcome when 'succeeded' then 'completed' else t.outcome end as status,
    case w.principal when 'universal_agent' then w.name else w.id end as lease_owner,
    t.error ->> 'type' as failure_class, t.error ->> 'message' as failure_reason,
    to_char(to_timestamp(t.started_at / 1000000) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as started_at,
    to_char(to_timestamp(t.ended_at / 1000000) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as ended_at
from holdfast.alias a
join holdfast.job j on j.id = a.job
join (
    select job, epoch, token, worker, outcome, started_at, ended_at, error from holdfast.attempt_now
    union all
    select seq, epoch, token, worker, 'running', claimed_at, null, null from holdfast.lease
) as t on t.job = j.seq
left join holdfast.worker w on w.seq = t.worker
where a.scope = 'universal_agent';

-- FlatAgents' workers and work items as its document prints the tables. Nothing writes to these views.

create view holdfast.worker_registry as
select w.id as worker_id,
    case when w.status = 'active' then coalesce(w.metadata ->> 'status', 'active')
        when w.status = 'draining' then 'terminating' when w.status = 'stopped' then 'terminated' else w.status end as status,
    w.metadata ->> 'host' as host, cast(w.metadata ->> 'pid' as integer) as pid, w.capabilities, w.pool as pool_id,
    coalesce(w.metadata ->> 'started_at', to_char(to_timestamp(w.started_at / 1000000.0) at time zone 'utc',
        'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')) as started_at,
    to_char(to_timestamp(w.heartbeat_at / 1000000.0) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as last_heartbeat,
    (select cast(j.id as text) from holdfast.lease l join holdfast.job j on j.seq = l.seq
        where l.worker = w.seq order by l.seq limit 1) as current_task_id
from holdfast.worker w
where w.principal = 'flatagents' and w.metadata ->> 'registered' = 'true'
    and w.seq = (select max(n.seq) from holdfast.worker n
        where n.id = w.id and n.principal = 'flatagents' and n.metadata ->> 'registered' = 'true');

create view holdfast.work_pool as
select cast(j.id as text) as id, substr(j.queue, length('flatagents.') + 1) as pool_name, cast(j.payload as text) as data,
    case j.state when 'running' then 'claimed' when 'succeeded' then 'done' when 'failed' then 'poisoned'
        when 'cancelled' then 'cancelled' else 'pending' end as status,
    w.id as claimed_by,
    case when j.state = 'running' then to_char(to_timestamp(j.claimed_at / 1000000.0) at time zone 'utc',
        'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') end as claimed_at,
    j.attempts, cast(j.result as text) as result, j.error ->> 'message' as error,
    to_char(to_timestamp(j.created_at / 1000000.0) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as created_at
from holdfast.job_now j
left join holdfast.worker w on w.seq = j.worker
where j.kind = 'flatagents.work';

-- Functions, and what runs by itself.

-- STABLE, never VOLATILE: a volatile clock turns every index scan on a time into a sequential scan.
create function holdfast.now_us() returns bigint language sql stable parallel safe as
$$ select cast(extract(epoch from statement_timestamp()) * 1000000 as bigint) $$;

-- A note too long for NOTIFY becomes a plain "look". An expression that PostgreSQL can take into the statement that
-- calls it: a body with its own FROM it parses and plans anew for every call, which took a quarter of what an enqueue
-- costs.
create function holdfast.hint(note text) returns integer language sql volatile as
$$ select case when note is not null then 1 + length(cast(
    pg_notify('holdfast.hint', case when octet_length(note) < 7900 then note else 'look' end) as text)) end $$;

-- For the queries of Universal Agent's operators, which are written for SQLite.
create function holdfast.datetime(moment text) returns text language sql stable parallel safe as
$$ select to_char(case when moment = 'now' then statement_timestamp() at time zone 'utc'
    else cast(moment as timestamp) end, 'YYYY-MM-DD HH24:MI:SS') $$;

-- What a run or a compaction used goes into its session's total once, when it ends or is paid for. At the commit, so
-- that nobody waits for the row for long; a session that went in the same transaction is not counted. As the owner: the
-- role of a tenant's request writes nothing here.
create function holdfast.count_run() returns trigger language plpgsql security definer set search_path = pg_catalog as $$
begin
    insert into holdfast.session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    select new.session, case when old.finalized_at is null then 1 else 0 end,
        new.turns - case when old.finalized_at is null then 0 else old.turns end,
        new.input_tokens - case when old.finalized_at is null then 0 else old.input_tokens end,
        new.output_tokens - case when old.finalized_at is null then 0 else old.output_tokens end,
        new.cache_write_tokens - case when old.finalized_at is null then 0 else old.cache_write_tokens end,
        new.cache_read_tokens - case when old.finalized_at is null then 0 else old.cache_read_tokens end,
        new.cost_nano - case when old.finalized_at is null then 0 else old.cost_nano end
    where exists (select 1 from holdfast.session s where s.id = new.session)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; return null; end $$;
create constraint trigger run_counted after update of finalized_at, cost_nano on holdfast.run
deferrable initially deferred for each row when (new.finalized_at is not null) execute function holdfast.count_run();
create constraint trigger run_counted_whole after insert on holdfast.run
deferrable initially deferred for each row when (new.finalized_at is not null) execute function holdfast.count_run();

create function holdfast.count_compaction() returns trigger language plpgsql security definer set search_path = pg_catalog
as $$ begin
    insert into holdfast.session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    select new.session, 0, 0, new.input_tokens - coalesce(old.input_tokens, 0),
        new.output_tokens - coalesce(old.output_tokens, 0),
        new.cache_write_tokens - coalesce(old.cache_write_tokens, 0),
        new.cache_read_tokens - coalesce(old.cache_read_tokens, 0), new.cost_nano - coalesce(old.cost_nano, 0)
    where exists (select 1 from holdfast.session s where s.id = new.session)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; return null; end $$;
create constraint trigger compaction_counted after insert or update of cost_nano on holdfast.compaction
deferrable initially deferred for each row execute function holdfast.count_compaction();

create function holdfast.forget_total() returns trigger language plpgsql security definer set search_path = pg_catalog
as $$ begin delete from holdfast.session_total where session = old.id; return null; end $$;
create trigger session_forgotten after delete on holdfast.session for each row execute function holdfast.forget_total();

-- down
drop view holdfast.work_pool;
drop view holdfast.worker_registry;
drop view holdfast.run_attempts;
drop view holdfast.runs;
drop view holdfast.worker_readable;
drop view holdfast.attempt_readable;
drop view holdfast.job_readable;
drop view holdfast.paused_route;
drop view holdfast.run_now;
drop view holdfast.attempt_now;
drop view holdfast.job_now;
drop table holdfast.resp_part;
drop table holdfast.resp_value;
drop table holdfast.plan_job;
drop table holdfast.action;
drop table holdfast.plan;
drop table holdfast.resp_key;
drop table holdfast.request_key;
drop table holdfast.audit_head;
drop table holdfast.audit;
drop table holdfast.login;
drop table holdfast.token;
drop table holdfast.failure_group;
drop table holdfast.tally_mark;
drop table holdfast.tally_time;
drop table holdfast.tally;
drop table holdfast.tenant_retention;
drop table holdfast.retention_mark;
drop table holdfast.usage_total;
drop table holdfast.reservation;
drop table holdfast.budget_use;
drop table holdfast.budget;
drop table holdfast.provider_lane;
drop table holdfast.batch_request;
drop table holdfast.batch;
drop table holdfast.compaction;
drop table holdfast.steer;
drop table holdfast.inquiry;
drop table holdfast.reader;
drop table holdfast.run_event;
drop table holdfast.tool_call;
drop table holdfast.blob;
drop table holdfast.block;
drop table holdfast.message;
drop table holdfast.turn;
drop table holdfast.run;
drop table holdfast.session_total;
drop table holdfast.session;
drop table holdfast.tool;
drop table holdfast.agent_version;
drop table holdfast.agent;
drop table holdfast.pool;
drop table holdfast.duty;
drop table holdfast.worker;
drop table holdfast.cluster;
drop table holdfast.schedule;
drop table holdfast.lane_note;
drop table holdfast.lane;
drop table holdfast.route_note;
drop table holdfast.route;
drop table holdfast.queue;
drop table holdfast.alias;
drop table holdfast.idempotency;
drop table holdfast.unique_key;
drop table holdfast.cancellation;
drop table holdfast.signal;
drop table holdfast.channel;
drop table holdfast.step;
drop table holdfast.progress;
drop table holdfast.family;
drop table holdfast.attempt;
drop table holdfast.ended;
drop table holdfast.lease;
drop table holdfast.later;
drop table holdfast.ready;
drop table holdfast.job;
drop function holdfast.forget_total;
drop function holdfast.count_compaction;
drop function holdfast.count_run;
drop function holdfast.datetime(text);
drop function holdfast.hint(text);
drop function holdfast.now_us();
