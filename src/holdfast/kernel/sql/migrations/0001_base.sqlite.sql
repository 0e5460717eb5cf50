-- The tables of release 0.1.0, by subject: jobs, queues, workers, agents, money, retention, counts, the web, the
-- gateway. Then the views, and last what runs by itself. Times are microseconds since 1970, `*_us` a length of time. No
-- table has a foreign key: each statement keeps its own order of locks.
-- oldest_code: 1

-- up
-- Jobs. The state of a job is the table in which its row stands: `ready`, `later`, `lease` or `ended`. What was asked
-- for is in `job`, which nobody updates on the way. The view `job_now` shows a job as it stands.

-- `layer` names the part of the runtime that a job belongs to, such as `agents`; null: a program's own. `slot` is its
-- turn among the tenants of a fair queue, `cost` what it takes of its lane's rate.
create table job (
    seq integer primary key autoincrement,
    id text not null,
    route integer not null,
    slot integer not null default 0,
    created_at integer not null,
    priority integer not null,
    max_attempts integer not null,
    max_rescues integer not null,
    cost integer not null default 1,
    kind text not null,
    queue text not null,
    tenant text not null,
    payload text not null,
    metadata text not null,
    timeout_us integer,
    due_at integer,
    deadline_at integer,
    parent integer,
    retry_of text,
    lane text,
    unique_key text,
    unique_scope text,
    layer text,
    constraint job_asked check (cost >= 1 and case when unique_key is null then unique_scope is null
        else unique_scope is not null and unique_scope in ('pending', 'live', 'window') end)
) strict;
create unique index job_id on job (id);
create index job_parent on job (parent) where parent is not null;

-- What can be claimed. A row is inserted and deleted, never updated. `tenant` is there on fair queues only, `cost` in
-- lanes.
create table ready (
    route integer not null,
    slot integer not null,
    seq integer not null,
    token integer not null,
    priority integer not null,
    attempts integer not null,
    rescues integer not null,
    cost integer,
    deadline_at integer,
    lane text,
    tenant text,
    primary key (route, priority, slot, seq)
) strict, without rowid;
create index ready_deadline on ready (deadline_at) where deadline_at is not null;
create index ready_lane on ready (lane) where lane is not null;
create index ready_fair on ready (route, priority, tenant, slot) where slot > 0;

-- What cannot be claimed yet, and what wakes it: its time, a channel, its children, or room in its lane.
create table later (
    seq integer primary key,
    route integer not null,
    slot integer not null,
    token integer not null,
    priority integer not null,
    attempts integer not null,
    rescues integer not null,
    state text not null,
    cost integer,
    due_at integer,
    deadline_at integer,
    channel text,
    lane text,
    tenant text,
    constraint later_state check (case state
        when 'scheduled' then due_at is not null and channel is null
        when 'waiting' then true
        when 'blocked' then lane is not null and due_at is null and channel is null
        else false end)
) strict;
create index later_route on later (route, state);
create index later_due on later (due_at) where due_at is not null;
create index later_deadline on later (deadline_at) where deadline_at is not null;
create index later_channel on later (channel) where channel is not null;
create index later_lane on later (lane) where lane is not null;
create index later_blocked on later (lane, priority, slot, seq) where state = 'blocked';
create index later_fair on later (route, priority, tenant, slot) where state = 'blocked' and slot > 0;

-- What runs. No index contains `lease_until`, so that a renewal changes its row alone. `ttl_us` is the longest time
-- that it was given at once; null: a worker claimed and renews it. A lease that ends later than this shows that the
-- clock went back.
create table lease (
    seq integer primary key,
    worker integer not null,
    epoch integer not null,
    token integer not null,
    lease_until integer not null,
    claimed_at integer not null,
    route integer not null,
    attempts integer not null,
    rescues integer not null,
    kind text not null,
    queue text not null,
    parent integer,
    cancel_requested_at integer,
    lane text,
    cancel_error text,
    ttl_us integer
) strict;
create index lease_worker on lease (worker);
create index lease_lane on lease (lane) where lane is not null;

-- How it ended. It is the record of the last attempt too, unless none ended here: then `outcome` is null.
create table ended (
    seq integer primary key,
    token integer not null,
    finished_at integer not null,
    worker integer,
    epoch integer,
    claimed_at integer,
    attempts integer not null,
    rescues integer not null,
    state text not null,
    queue text not null,
    outcome text,
    lane text,
    cancel_requested_at integer,
    result text,
    error text,
    constraint ended_state check (state in ('succeeded', 'failed', 'cancelled')
        and case when outcome is null then worker is null else worker is not null and epoch is not null
            and claimed_at is not null and outcome in ('succeeded', 'failed', 'cancelled', 'lost') end)
) strict;
create index ended_finished on ended (queue, finished_at);
create index ended_lane on ended (lane) where lane is not null;
-- Jobs that failed or were cancelled, the last first. Nothing else on this table: each job passes through it.
create index job_troubled on ended (finished_at desc, seq desc) where state in ('failed', 'cancelled');

-- The attempts that did not end their job. The view `attempt_now` has all of them.
create table attempt (
    job integer not null,
    epoch integer not null,
    token integer not null,
    worker integer not null,
    outcome text not null,
    started_at integer not null,
    ended_at integer not null,
    error text,
    constraint attempt_outcome check (outcome in
        ('succeeded', 'failed', 'retried', 'snoozed', 'released', 'parked', 'cancelled', 'lost')),
    primary key (job, epoch, token)
) strict;

-- How many children of a job are open. Whoever reads or changes it has locked the row of the job before.
create table family (
    job integer primary key,
    open_children integer not null,
    constraint family_open check (open_children >= 0)
) strict;

-- What a job last said of itself while it ran.
create table progress (
    job integer primary key,
    value text not null
) strict;

-- What a job stored on its way, so that its next attempt does not do it again.
create table step (
    job integer not null,
    name text not null,
    result text not null,
    signal text,
    stored_at integer not null,
    primary key (job, name)
) strict;
create unique index step_signal on step (signal) where signal is not null;

-- The row of a channel is what `park` and `signal` lock first, so that neither can miss the other.
create table channel (name text primary key) strict;

-- Signals that nobody has taken yet.
create table signal (
    seq integer primary key autoincrement,
    id text not null,
    channel text not null,
    payload text not null,
    sent_at integer not null
) strict;
create unique index signal_id on signal (id);
create index signal_channel on signal (channel, seq);
create index signal_sent on signal (sent_at);

-- Jobs whose children are still to be cancelled. Whoever sweeps continues where a dead canceller stopped.
create table cancellation (
    job integer primary key,
    reason text not null,
    requested_at integer not null
) strict;

-- Which job has a unique key. Whether it still holds it, its own state says: see `enqueue`.
create table unique_key (
    scope text not null,
    key text not null,
    job text not null,
    primary key (scope, key)
) strict, without rowid;
create index unique_key_job on unique_key (job);

-- Which job a caller's key made. `freed_at` is when retention removed the job; the key stays as long after that as
-- after the job's end.
create table idempotency (
    tenant text not null,
    key text not null,
    digest text not null,
    job text not null,
    created_at integer not null,
    freed_at integer,
    primary key (tenant, key)
) strict;
create index idempotency_created on idempotency (created_at);
create index idempotency_freed on idempotency (freed_at) where freed_at is not null;
-- A session that is deleted frees the keys of its runs.
create index idempotency_job on idempotency (job);

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

-- Queues, what their jobs require, and how many of them may run.

-- `fair` takes tenants in turn. `lost_counts` is 1 where a lost lease is an attempt like any other, without a pause
-- before the next one. `keep_us` and `keep_jobs` say what retention leaves.
create table queue (
    name text primary key,
    on_orphan text not null check (on_orphan in ('requeue', 'fail')),
    updated_at integer not null,
    paused_at integer,
    pause_reason text,
    fair integer not null default 0,
    keep_us integer,
    keep_jobs integer,
    lost_counts integer not null default 0
) strict;
create index queue_paused on queue (name) where paused_at is not null;

-- A queue and the capabilities that a worker must have, under the number that is made of them.
create table route (
    id integer primary key,
    queue text not null,
    capabilities text not null,
    used_at integer not null
) strict;
create index route_used on route (used_at);
create index route_queue on route (queue);

-- Routes that are used while somebody else's transaction holds their row; see `lane_note`.
create table route_note (
    id integer primary key autoincrement,
    route integer not null,
    queue text not null,
    capabilities text not null
) strict;

-- How many at once, and how often. `free_at` is when the rate has caught up, and `charged_at` when that was last
-- written: a clock that has gone back since is seen by it. `opens_at` is when to look again whether a blocked job may
-- go on, null when none is blocked.
create table lane (
    name text primary key,
    concurrency integer,
    interval_us integer,
    burst integer not null,
    free_at integer not null default 0,
    opens_at integer,
    updated_at integer not null,
    charged_at integer not null default 0,
    constraint lane_limits check (concurrency >= 1 and interval_us >= 1 and burst >= 1)
) strict;
create index lane_opens on lane (opens_at) where opens_at is not null;
create index lane_updated on lane (updated_at);

-- What is to be done with a lane whose row somebody else holds. On SQLite one transaction writes at a time, so few
-- notes are ever left.
create table lane_note (
    id integer primary key autoincrement,
    lane text not null,
    declares integer not null,
    concurrency integer,
    interval_us integer,
    burst integer not null,
    look_at integer not null
) strict;
create index lane_note_lane on lane_note (lane);
create index lane_note_look on lane_note (look_at);

-- One that could not be fired says why in `error`, and is tried again at `retry_at`; the others go on.
create table schedule (
    name text primary key,
    kind text not null,
    queue text not null,
    cron text not null,
    timezone text not null,
    catch_up text not null,
    job text not null,
    next_at integer not null,
    last_at integer,
    last_job text,
    paused_at integer,
    updated_at integer not null,
    retry_at integer,
    error text,
    constraint schedule_catch_up check (catch_up in ('one', 'all', 'none'))
) strict;
create index schedule_next on schedule (next_at) where paused_at is null and retry_at is null;
create index schedule_retry on schedule (retry_at) where paused_at is null and retry_at is not null;

-- Workers and what they share.

-- `identity` is that of the server or the file. Where it is another than before, this is a restored copy or a promoted
-- standby: `epoch` rises, and no token from before is current.
create table cluster (
    one integer primary key default 1 check (one = 1),
    epoch integer not null,
    identity text not null
) strict;
insert into cluster (epoch, identity) values (1, '');

-- `code` is the schema version of the worker's code; null: nobody knows it, as with a client of a gateway. `lines`
-- says, as JSON, how many slots each line of the worker has and how many of them are taken.
-- `starting`: somebody starts a process, which has until `boot_by` to make this row its own. It counts for scaling,
-- never as alive. `idle_since` is null while the worker runs something. `host` is the worker in whose process a broker
-- lives, and whose presence is the broker's too; 0: the owner lives in no process that we know, and shows no presence;
-- null: the worker is a process of its own. `principal` is who registered it.
create table worker (
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
create unique index worker_incarnation on worker (incarnation);
create unique index worker_id on worker (id) where status in ('active', 'draining');
create index worker_pool on worker (pool, status) where pool is not null;
-- All lives of a worker, the last first.
create index worker_named on worker (id, seq desc);

-- What one worker at a time does for all of them.
create table duty (
    name text primary key,
    term integer not null,
    holder integer,
    held_until integer not null
) strict;

-- Pools as they were declared, and what the last decision about each found.
create table pool (
    name text primary key,
    settings text not null,
    standing text not null,
    updated_at integer not null
) strict;

-- Agents, on top of jobs: a run is a job, and a call of a tool is a child of it.

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

-- Tools as the workers that have their code declare them, for agents that are made elsewhere.
create table tool (
    name text primary key,
    definition text not null,
    digest text not null,
    updated_at integer not null
) strict;

create table session (
    id text primary key,
    tenant text not null,
    key text,
    parent text,
    depth integer not null,
    metadata text not null,
    runs integer not null default 0,
    created_at integer not null,
    updated_at integer not null,
    generation text not null default '',
    compactions integer not null default 0,
    during text not null default 'queue',
    forked_from text,
    forked_at integer
) strict;
create unique index session_key on session (tenant, key) where key is not null;
create index session_metadata on session (metadata);
create index session_listed on session (created_at desc, id desc);
create index session_tenant on session (tenant, created_at, id);
create index session_parent on session (parent, created_at desc, id desc) where parent is not null;
create index session_forked on session (forked_from) where forked_from is not null;
-- Keys that begin with a text.
create index session_prefix on session (key) where key is not null;

-- What a session has used. Triggers add to it where a run ends or a compaction is paid for, once. Not in the row of the
-- session: a caller's open transaction that adds a run locks that row.
create table session_total (
    session text primary key,
    runs integer not null,
    turns integer not null,
    input_tokens integer not null,
    output_tokens integer not null,
    cache_write_tokens integer not null,
    cache_read_tokens integer not null,
    cost_nano integer not null
) strict;

-- `state` has the names of the runs' own life; while it is pending, its job says whether a worker has it: see
-- `run_now`.
-- No index has a column that changes while the run goes on: an update then touches the row alone.
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
    interrupted text,
    fallback integer not null default 0,
    continued integer not null default 0,
    deadline_at integer,
    forked_from text,
    forked_at integer,
    generation text not null default '',
    retry_of text,
    constraint run_state check (state in ('pending', 'batch_submitting', 'batch_pending', 'batch_processing',
        'streaming', 'pending_tools', 'awaiting_input', 'completed', 'cancelled', 'failed')),
    constraint run_finalized check ((state in ('completed', 'cancelled', 'failed')) = (finalized_at is not null))
) strict;
create unique index run_job on run (job);
create index run_session on run (session, created_at desc, id desc);
create index run_queue on run (session, ordinal) where parent is null and finalized_at is null;
create index run_root on run (root);
create index run_listed on run (created_at desc, id desc);
create index run_tenant on run (tenant, created_at desc, id desc);
create index run_parent on run (parent, created_at desc, id desc) where parent is not null;
create index run_forked on run (forked_from) where forked_from is not null;
create index run_agent on run (agent, created_at desc, id desc);
create index run_open on run (created_at desc, id desc) where finalized_at is null;
create index run_tenant_open on run (tenant, created_at desc, id desc) where finalized_at is null;
-- The open runs of a session below another one; `run_queue` has the others.
create index run_child_open on run (session) where parent is not null and finalized_at is null;
-- Those that failed or were cancelled: only an answered run has an outcome.
create index run_unanswered on run (created_at desc, id desc) where finalized_at is not null and outcome is null;
create index run_tenant_unanswered on run (tenant, created_at desc, id desc)
    where finalized_at is not null and outcome is null;
-- For retention, of everybody or of a tenant that keeps things for a time of its own.
create index run_ended on run (finalized_at, id) where finalized_at is not null;
create index run_tenant_ended on run (tenant, finalized_at, id) where finalized_at is not null;

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
    mode text not null default 'streaming',
    generation text not null default '',
    primary key (run, number)
) strict;
create index turn_ended on turn (ended_at) where ended_at is not null;

-- The place of a message is (session, branch, ordinal), and never a time. What is not live is not sent any more: what a
-- compaction replaced keeps its place, so places are unique among what is sent. `made_by` is the compaction that wrote
-- a message, `compacted` the one that took it out. `retired` is for what somebody took out: the last run that has still
-- seen it, by its place in the line. A copy in a fork has its own fingerprint.
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
    created_at integer not null,
    compacted text,
    made_by text,
    fingerprint text,
    retired integer
) strict;
create index message_run on message (run, ordinal);
create index message_place on message (session, branch, ordinal);
create unique index message_live on message (session, branch, ordinal) where live = 1;
create index message_compacted on message (compacted) where compacted is not null;

-- A block is the provider's JSON, byte for byte; large ones are stored once, in `blob`.
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
create index tool_call_listed on tool_call (finished_at desc, id desc) where finished_at is not null;
create index tool_call_failed on tool_call (name, finished_at desc, id desc) where state = 'failed';

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

-- Processes that read the events of runs. Nobody is hinted while there is none.
create table reader (
    id text primary key,
    until integer not null
) strict;
create index reader_until on reader (until);

-- Something that only a person can decide; while it is open, what it is about waits and holds no worker.
create table inquiry (
    id text primary key,
    run text not null,
    session text not null,
    tenant text not null,
    kind text not null,
    call text,
    name text not null,
    digest text not null,
    data text not null,
    state text not null,
    fallback text,
    asked_at integer not null,
    expires_at integer,
    decided_at integer,
    decided_by text,
    decision text,
    constraint inquiry_kind check (kind in ('approval', 'question', 'review', 'continuation', 'limit')),
    constraint inquiry_state check (state in ('open', 'approved', 'denied', 'answered', 'expired', 'withdrawn')),
    constraint inquiry_decided check ((state = 'open') = (decided_at is null))
) strict;
create index inquiry_open on inquiry (asked_at, id) where state = 'open';
create index inquiry_run on inquiry (run, asked_at);
create index inquiry_call on inquiry (call) where call is not null;
-- In the order in which they were asked. Those that are open have an index of their own.
create index inquiry_tenant on inquiry (tenant, asked_at, id);
create index inquiry_decided on inquiry (asked_at, id) where state <> 'open';

-- Messages for a run that is under way, until a turn takes them.
create table steer (
    id text primary key,
    run text not null,
    ordinal integer not null,
    body text not null,
    sent_at integer not null,
    turn integer
) strict;
create index steer_open on steer (run, ordinal) where turn is null;

create table compaction (
    id text primary key,
    session text not null,
    branch text not null,
    run text,
    state text not null,
    strategy text not null,
    trigger text not null,
    model text not null,
    config text not null,
    before_generation text not null,
    tokens_before integer not null default 0,
    tokens_after integer,
    removed integer not null default 0,
    pruned integer not null default 0,
    summary text,
    attempts integer not null default 1,
    unknown integer not null default 0,
    charged integer not null default 0,
    usage text,
    input_tokens integer not null default 0,
    output_tokens integer not null default 0,
    cache_write_tokens integer not null default 0,
    cache_read_tokens integer not null default 0,
    cost_nano integer not null default 0,
    error text,
    started_at integer not null,
    ended_at integer,
    restored_at integer,
    constraint compaction_state check (state in ('calling', 'done', 'failed', 'restored'))
) strict;
create index compaction_session on compaction (session, started_at desc, id desc);
create index compaction_ended on compaction (ended_at) where ended_at is not null;
create index compaction_run on compaction (run) where run is not null;

-- Provider batches. Each is a job that submits, polls and collects; the requests are turns of runs.
create table batch (
    id text primary key,
    lane text not null,
    model text not null,
    credential text not null,
    state text not null,
    job text not null,
    provider_id text,
    size integer not null default 0,
    bytes integer not null default 0,
    applied integer not null default 0,
    attempts integer not null default 0,
    unknown integer not null default 0,
    held text,
    counts text,
    error text,
    polls integer not null default 0,
    created_at integer not null,
    intent_at integer,
    troubled_at integer,
    submitted_at integer,
    polled_at integer,
    ended_at integer,
    constraint batch_state check (state in
        ('gathering', 'submitting', 'searching', 'submitted', 'processing', 'canceling', 'collecting', 'ended', 'failed')),
    constraint batch_ended check ((state in ('ended', 'failed')) = (ended_at is not null))
) strict;
create unique index batch_gathering on batch (lane) where state = 'gathering';
create unique index batch_provider_id on batch (provider_id) where provider_id is not null;
create index batch_listed on batch (created_at desc, id desc);

create table batch_request (
    custom_id text primary key,
    batch text not null,
    run text not null,
    job integer not null,
    turn integer not null,
    attempt integer not null,
    body text,
    bytes integer not null,
    state text not null,
    outcome text,
    created_at integer not null,
    constraint batch_request_state check (state in ('waiting', 'sent', 'answered', 'applied', 'dropped'))
) strict;
create index batch_request_open on batch_request (batch, custom_id) where state in ('waiting', 'sent');
create index batch_request_batch on batch_request (batch);
create index batch_request_run on batch_request (run, turn);

-- Providers, models or keys that are closed: until a time, or with `person` until somebody opens them.
create table provider_lane (
    name text primary key,
    closed_until integer,
    person integer not null default 0,
    reason text not null,
    updated_at integer not null
) strict;

-- Money: what may be spent, and what was.

-- By a session, a tenant or everybody, for ever or in each period of so many microseconds.
create table budget (
    id text primary key,
    scope text not null,
    subject text not null,
    period_us integer not null default 0,
    limit_nano integer not null,
    policy text not null,
    updated_at integer not null,
    constraint budget_scope check (scope in ('session', 'tenant', 'everybody')),
    constraint budget_policy check (policy in ('end', 'ask', 'wait'))
) strict;
create unique index budget_subject on budget (scope, subject, period_us);

-- What was spent of a budget, or of a tree of runs, in a period, and what calls under way may cost.
create table budget_use (
    budget text not null,
    period integer not null,
    spent_nano integer not null default 0,
    reserved_nano integer not null default 0,
    primary key (budget, period)
) strict;

-- What calls under way may cost, until they are settled. A summary for no run is reserved by its compaction, and given
-- up at a time after which nobody settles it any more.
create table reservation (
    run text not null,
    turn integer not null,
    budget text not null,
    period integer not null,
    nano integer not null,
    lapses_at integer,
    primary key (run, turn, budget)
) strict;
create index reservation_lapses on reservation (lapses_at) where lapses_at is not null;

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

-- Retention.

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

-- Counts of what has ended.

-- `subject` is what is counted. `grain` is 'minute', 'hour' or 'day', of everybody: there `tenant` is empty; or
-- 'tenant_hour' or 'tenant_day', of one tenant. `at` is when the time begins.
create table tally (
    subject text not null,
    grain text not null,
    tenant text not null,
    at integer not null,
    source text not null,
    kind text not null,
    mode text not null,
    state text not null,
    number integer not null,
    input_tokens integer not null,
    output_tokens integer not null,
    cache_write_tokens integer not null,
    cache_read_tokens integer not null,
    cost_nano integer not null,
    constraint tally_grain check (grain in ('minute', 'hour', 'day', 'tenant_hour', 'tenant_day')),
    primary key (subject, grain, tenant, at, source, kind, mode, state)
) strict;
create index tally_at on tally (grain, at);

-- How many waited or took so long: bucket n is less than 2 to the power of n milliseconds, and at least half of that.
create table tally_time (
    subject text not null,
    grain text not null,
    tenant text not null,
    at integer not null,
    source text not null,
    kind text not null,
    mode text not null,
    state text not null,
    measure text not null,
    bucket integer not null,
    number integer not null,
    constraint tally_time_measure check (measure in ('wait', 'duration')),
    primary key (subject, grain, tenant, at, source, kind, mode, state, measure, bucket)
) strict;
create index tally_time_at on tally_time (grain, at);

-- Everything of a source that ended up to this moment is in the tally.
create table tally_mark (
    subject text not null,
    source text not null,
    at integer not null,
    primary key (subject, source)
) strict;

-- Failures that differ only in numbers and ids. `last_id` names the last of them.
create table failure_group (
    id text primary key,
    subject text not null,
    tenant text not null,
    kind text not null,
    error text not null,
    message text not null,
    number integer not null,
    first_at integer not null,
    last_at integer not null,
    last_id text not null
) strict;
create index failure_group_last on failure_group (last_at desc, id desc);
create index failure_group_tenant on failure_group (tenant, last_at desc, id desc);

-- The web: who may reach it, and what was done through it.

-- Only the hash of a token is stored; its id may be shown.
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

-- The last row of `audit`, locked by who adds the next one.
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

-- What the Redis-protocol gateway keeps besides jobs: keys of its clients, plans, actions, and plain data.

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

-- A plan that runs over inputs.
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

-- Plain data, as Redis has it: a string is in its row, what has parts has them in `resp_part`. SCAN walks along
-- `place`, which is a hash of the key.
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

-- The parts of a list are called by their place, as eight bytes that sort as the place does.
create table resp_part (
    space text not null,
    key blob not null,
    part blob not null,
    score real,
    value blob,
    primary key (space, key, part)
) strict;
create index resp_part_score on resp_part (space, key, score, part) where score is not null;

-- Views. People and layers read a job, an attempt and a run here, wherever their rows are.

-- The error of a job that goes on is that of its last attempt which had one.
create view job_now as
select j.seq, j.id, j.kind, j.queue, j.route, j.tenant,
    case when l.seq is not null then 'running' when e.seq is not null then e.state when r.seq is not null then 'pending'
        when t.state = 'blocked' then 'pending' else t.state end as state,
    j.priority, j.slot, case when t.state = 'blocked' then t.lane end as gate,
    coalesce(l.epoch, e.epoch, case when coalesce(r.token, t.token, e.token) > 0 then (select a.epoch
        from attempt a where a.job = j.seq order by a.epoch desc, a.token desc limit 1) end, 0) as epoch,
    coalesce(l.token, e.token, r.token, t.token) as token, l.worker, l.lease_until,
    coalesce(l.claimed_at, e.claimed_at, case when coalesce(r.token, t.token, e.token) > 0 then (select a.started_at
        from attempt a where a.job = j.seq order by a.epoch desc, a.token desc limit 1) end) as claimed_at,
    coalesce(l.attempts, e.attempts, r.attempts, t.attempts) as attempts, j.max_attempts,
    coalesce(l.rescues, e.rescues, r.rescues, t.rescues) as rescues, j.max_rescues, j.timeout_us, t.due_at, j.deadline_at,
    j.created_at, e.finished_at, coalesce(l.cancel_requested_at, e.cancel_requested_at) as cancel_requested_at, j.parent,
    coalesce((select f.open_children from family f where f.job = j.seq), 0) as open_children, t.channel,
    j.retry_of, j.lane, j.cost, j.unique_key, j.unique_scope, j.payload, j.metadata,
    (select p.value from progress p where p.job = j.seq) as progress, e.result,
    case when e.seq is not null then e.error when l.cancel_error is not null then l.cancel_error
        when coalesce(l.token, r.token, t.token) > 0 then (select a.error from attempt a
            where a.job = j.seq and a.error is not null order by a.epoch desc, a.token desc limit 1) end as error, j.layer
from job j
left join lease l on l.seq = j.seq
left join ended e on e.seq = j.seq
left join ready r on r.route = j.route and r.priority = j.priority and r.slot = j.slot and r.seq = j.seq
left join later t on t.seq = j.seq;

-- Every attempt that ended: the last one of an ended job stands in `ended`, all others in `attempt`. One that was lost
-- has no error of its own, and where a cancel was accepted the job's error is its reason: an attempt that failed
-- nevertheless stands in `attempt`.
create view attempt_now as
select job, epoch, token, worker, outcome, started_at, ended_at, error from attempt
union all
select seq, epoch, token, worker, outcome, claimed_at, finished_at,
    case when outcome <> 'lost' and cancel_requested_at is null then error end
from ended where outcome is not null;

-- While nothing else is said, a lease of its job says that a worker has a run.
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

-- The one place that knows what a pause means: nothing on these routes is claimed.
create view paused_route as
select r.id from queue q join route r on r.queue = q.name where q.paused_at is not null;

-- The same for people, with times that they can read.

create view job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    datetime(created_at / 1000000.0, 'unixepoch', 'subsec') as created_at,
    datetime(due_at / 1000000.0, 'unixepoch', 'subsec') as due_at,
    datetime(claimed_at / 1000000.0, 'unixepoch', 'subsec') as claimed_at,
    datetime(lease_until / 1000000.0, 'unixepoch', 'subsec') as lease_until,
    datetime(finished_at / 1000000.0, 'unixepoch', 'subsec') as finished_at, layer
from job_now;

create view attempt_readable as
select job, epoch || '.' || token as token, worker, outcome, error,
    datetime(started_at / 1000000.0, 'unixepoch', 'subsec') as started_at,
    datetime(ended_at / 1000000.0, 'unixepoch', 'subsec') as ended_at
from attempt_now;

create view worker_readable as
select seq, id, name, hostname, pid, version, status, slots, active, presence, reason,
    datetime(started_at / 1000000.0, 'unixepoch', 'subsec') as started_at,
    datetime(heartbeat_at / 1000000.0, 'unixepoch', 'subsec') as heartbeat_at,
    datetime(stopped_at / 1000000.0, 'unixepoch', 'subsec') as stopped_at
from worker;

-- Universal Agent's runs and their attempts as its operators read them. Times are UTC, to the second, as
-- datetime('now') gives them, so that its queries compare them rightly. An owner of runs is stored under a name of its
-- own, apart from a worker of the same name; the views show its name as its callers know it. Nothing writes to these
-- views.

create view runs as
select a.name as run_id,
    case when j.state in ('pending', 'scheduled', 'waiting') then 'queued' when j.state = 'succeeded' then 'completed'
        when j.state = 'running' and j.cancel_requested_at is not null then 'cancel_requested'
        when j.state = 'failed' and j.error ->> '$.type' = 'rescue_failed' then 'needs_review'
        when j.seq is null then 'pruned' else j.state end as status,
    j.payload ->> '$.prompt' as last_job_prompt, j.payload ->> '$.workspace_dir' as workspace_dir,
    j.payload ->> '$.max_iterations' as max_iterations,
    case w.principal when 'universal_agent' then w.name else w.id end as lease_owner,
    datetime(j.lease_until / 1000000.0, 'unixepoch') as lease_expires_at,
    a.attempts + coalesce((select count(*) from attempt_now t where t.job = j.seq), 0)
        + case when j.state = 'running' then 1 else 0 end as attempts,
    case when j.state in ('failed', 'cancelled') then j.error ->> '$.type' end as failure_class,
    case when j.state in ('failed', 'cancelled') then j.error ->> '$.message' end as failure_reason,
    datetime(a.created_at / 1000000.0, 'unixepoch', 'subsec') as created_at,
    datetime(j.finished_at / 1000000.0, 'unixepoch', 'subsec') as finished_at, a.job as job_id
from alias a
left join job_now j on j.id = a.job
left join worker w on w.seq = j.worker
where a.scope = 'universal_agent'
    and a.number = (select max(b.number) from alias b where b.scope = a.scope and b.name = a.name);

create view run_attempts as
select a.name as run_id, a.attempts + row_number() over (partition by a.job order by t.epoch, t.token) as attempt_number,
    case t.outcome when 'succeeded' then 'completed' else t.outcome end as status,
    case w.principal when 'universal_agent' then w.name else w.id end as lease_owner,
    t.error ->> '$.type' as failure_class, t.error ->> '$.message' as failure_reason,
    datetime(t.started_at / 1000000.0, 'unixepoch') as started_at, datetime(t.ended_at / 1000000.0, 'unixepoch') as ended_at
from alias a
join job j on j.id = a.job
join (
    select job, epoch, token, worker, outcome, started_at, ended_at, error from attempt_now
    union all
    select seq, epoch, token, worker, 'running', claimed_at, null, null from lease
) as t on t.job = j.seq
left join worker w on w.seq = t.worker
where a.scope = 'universal_agent';

-- FlatAgents' workers and work items as its document prints the tables. Nothing writes to these views.

create view worker_registry as
select w.id as worker_id,
    case when w.status = 'active' then coalesce(w.metadata ->> '$.status', 'active')
        when w.status = 'draining' then 'terminating' when w.status = 'stopped' then 'terminated' else w.status end as status,
    w.metadata ->> '$.host' as host, w.metadata ->> '$.pid' as pid, w.capabilities, w.pool as pool_id,
    coalesce(w.metadata ->> '$.started_at', strftime('%Y-%m-%dT%H:%M:%fZ', w.started_at / 1000000.0, 'unixepoch')) as started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', w.heartbeat_at / 1000000.0, 'unixepoch') as last_heartbeat,
    (select j.id from lease l join job j on j.seq = l.seq where l.worker = w.seq order by l.seq limit 1) as current_task_id
from worker w
where w.principal = 'flatagents' and w.metadata ->> '$.registered' = 1
    and w.seq = (select max(n.seq) from worker n
        where n.id = w.id and n.principal = 'flatagents' and n.metadata ->> '$.registered' = 1);

create view work_pool as
select j.id, substr(j.queue, length('flatagents.') + 1) as pool_name, j.payload as data,
    case j.state when 'running' then 'claimed' when 'succeeded' then 'done' when 'failed' then 'poisoned'
        when 'cancelled' then 'cancelled' else 'pending' end as status,
    w.id as claimed_by,
    case when j.state = 'running' then strftime('%Y-%m-%dT%H:%M:%fZ', j.claimed_at / 1000000.0, 'unixepoch') end as claimed_at,
    j.attempts, j.result, j.error ->> '$.message' as error,
    strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1000000.0, 'unixepoch') as created_at
from job_now j
left join worker w on w.seq = j.worker
where j.kind = 'flatagents.work';

-- What runs by itself.

-- A new job stands in `ready`, or in `later` if it is not due yet. PostgreSQL does this in the statement that inserts
-- it.
create trigger job_ready after insert on job when new.due_at is null begin
    insert into ready (route, slot, seq, token, priority, attempts, rescues, cost, deadline_at, lane, tenant)
    values (new.route, new.slot, new.seq, 0, new.priority, 0, 0, case when new.lane is not null then new.cost end,
        new.deadline_at, new.lane, case when new.slot > 0 then new.tenant end); end;
create trigger job_later after insert on job when new.due_at is not null begin
    insert into later (route, slot, seq, token, priority, attempts, rescues, cost, deadline_at, lane, tenant, state, due_at)
    values (new.route, new.slot, new.seq, 0, new.priority, 0, 0, case when new.lane is not null then new.cost end,
        new.deadline_at, new.lane, case when new.slot > 0 then new.tenant end, 'scheduled', new.due_at); end;

-- What a run or a compaction used goes into its session's total once, when it ends or is paid for.
create trigger run_counted after update of finalized_at, cost_nano on run when new.finalized_at is not null begin
    insert into session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    values (new.session, case when old.finalized_at is null then 1 else 0 end,
        new.turns - case when old.finalized_at is null then 0 else old.turns end,
        new.input_tokens - case when old.finalized_at is null then 0 else old.input_tokens end,
        new.output_tokens - case when old.finalized_at is null then 0 else old.output_tokens end,
        new.cache_write_tokens - case when old.finalized_at is null then 0 else old.cache_write_tokens end,
        new.cache_read_tokens - case when old.finalized_at is null then 0 else old.cache_read_tokens end,
        new.cost_nano - case when old.finalized_at is null then 0 else old.cost_nano end)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; end;
create trigger run_counted_whole after insert on run when new.finalized_at is not null begin
    insert into session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    values (new.session, 1, new.turns, new.input_tokens, new.output_tokens, new.cache_write_tokens,
        new.cache_read_tokens, new.cost_nano)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; end;
create trigger compaction_counted after update of cost_nano on compaction begin
    insert into session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    values (new.session, 0, 0, new.input_tokens - old.input_tokens, new.output_tokens - old.output_tokens,
        new.cache_write_tokens - old.cache_write_tokens, new.cache_read_tokens - old.cache_read_tokens,
        new.cost_nano - old.cost_nano)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; end;
create trigger compaction_counted_whole after insert on compaction begin
    insert into session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    values (new.session, 0, 0, new.input_tokens, new.output_tokens, new.cache_write_tokens, new.cache_read_tokens,
        new.cost_nano)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; end;
create trigger session_forgotten after delete on session begin
    delete from session_total where session = old.id; end;

-- down
drop view work_pool;
drop view worker_registry;
drop view run_attempts;
drop view runs;
drop view worker_readable;
drop view attempt_readable;
drop view job_readable;
drop view paused_route;
drop view run_now;
drop view attempt_now;
drop view job_now;
drop table resp_part;
drop table resp_value;
drop table plan_job;
drop table action;
drop table plan;
drop table resp_key;
drop table request_key;
drop table audit_head;
drop table audit;
drop table login;
drop table token;
drop table failure_group;
drop table tally_mark;
drop table tally_time;
drop table tally;
drop table tenant_retention;
drop table retention_mark;
drop table usage_total;
drop table reservation;
drop table budget_use;
drop table budget;
drop table provider_lane;
drop table batch_request;
drop table batch;
drop table compaction;
drop table steer;
drop table inquiry;
drop table reader;
drop table run_event;
drop table tool_call;
drop table blob;
drop table block;
drop table message;
drop table turn;
drop table run;
drop table session_total;
drop table session;
drop table tool;
drop table agent_version;
drop table agent;
drop table pool;
drop table duty;
drop table worker;
drop table cluster;
drop table schedule;
drop table lane_note;
drop table lane;
drop table route_note;
drop table route;
drop table queue;
drop table alias;
drop table idempotency;
drop table unique_key;
drop table cancellation;
drop table signal;
drop table channel;
drop table step;
drop table progress;
drop table family;
drop table attempt;
drop table ended;
drop table lease;
drop table later;
drop table ready;
drop table job;
