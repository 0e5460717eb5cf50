-- A job's state is the table in which its row stands: ready, later, lease or ended. What was asked for is in `job`, which
-- nobody updates on the way. Code of schema 7 knows nothing of these tables, so it cannot work beside them.
-- oldest_code: 8

-- up
drop view holdfast.run_now;
drop view holdfast.attempt_readable;
drop view holdfast.job_readable;

-- A second table under another name, not columns dropped from the first: those would stay in every row for good.
create table holdfast.job_thin (
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
    constraint job_asked check (cost >= 1 and case when unique_key is null then unique_scope is null
        else unique_scope is not null and unique_scope in ('pending', 'live', 'window') end)
);
insert into holdfast.job_thin (seq, id, route, slot, created_at, priority, max_attempts, max_rescues, cost, kind, queue,
    tenant, payload, metadata, timeout_us, deadline_at, parent, retry_of, lane, unique_key, unique_scope)
overriding system value
select seq, id, route, slot, created_at, priority, max_attempts, max_rescues, cost, kind, queue,
    tenant, payload, metadata, timeout_us, deadline_at, parent, retry_of, lane, unique_key, unique_scope
from holdfast.job order by seq;
select setval('holdfast.job_thin_seq_seq', s.last_value, s.is_called) from holdfast.job_seq_seq s;

-- What can be claimed. A row is inserted and deleted, never updated. `tenant` is there on fair queues only, `cost` in lanes.
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

-- What runs. No index contains `lease_until`, and a page has room, so that a renewal changes its row alone.
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
    cancel_error json
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);

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

-- Which job has a unique key. Whether it still holds it, its own state says: see `enqueue`.
create table holdfast.unique_key (
    scope text not null,
    key text not null,
    job uuid not null,
    primary key (scope, key)
);

insert into holdfast.ready (route, slot, seq, token, priority, attempts, rescues, cost, deadline_at, lane, tenant)
select route, slot, seq, token, priority, attempts, rescues, case when lane is not null then cost end, deadline_at, lane,
    case when slot > 0 then tenant end
from holdfast.job where state = 'pending' and gate is null;
insert into holdfast.later (seq, route, slot, token, priority, attempts, rescues, state, cost, due_at, deadline_at, channel,
    lane, tenant)
select seq, route, slot, token, priority, attempts, rescues, case state when 'pending' then 'blocked' else state end,
    case when lane is not null then cost end, case state when 'pending' then null else due_at end, deadline_at,
    case state when 'waiting' then channel end, lane, case when slot > 0 then tenant end
from holdfast.job where state in ('scheduled', 'waiting') or (state = 'pending' and gate is not null);
insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent,
    cancel_requested_at, lane, cancel_error)
select seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent,
    cancel_requested_at, lane, case when cancel_requested_at is not null then error end
from holdfast.job where state = 'running';
-- An attempt whose own error is not that of its job stays where it is: see `attempt_now`.
insert into holdfast.ended (seq, token, finished_at, worker, epoch, claimed_at, attempts, rescues, state, queue, outcome, lane,
    cancel_requested_at, result, error)
select j.seq, j.token, j.finished_at, a.worker, a.epoch, a.started_at, j.attempts, j.rescues, j.state, j.queue, a.outcome,
    j.lane, j.cancel_requested_at, j.result, j.error
from holdfast.job j left join holdfast.attempt a on a.job = j.seq and a.epoch = j.epoch and a.token = j.token
    and a.outcome in ('succeeded', 'failed', 'cancelled', 'lost') and cast(a.error as text) is not distinct from
        case when a.outcome <> 'lost' and j.cancel_requested_at is null then cast(j.error as text) end
where j.finished_at is not null;
delete from holdfast.attempt a using holdfast.ended e
where a.job = e.seq and a.epoch = e.epoch and a.token = e.token and e.outcome is not null;
insert into holdfast.family (job, open_children) select seq, open_children from holdfast.job where open_children > 0;
insert into holdfast.progress (job, value) select seq, progress from holdfast.job where progress is not null;
insert into holdfast.unique_key (scope, key, job)
select unique_scope, unique_key, id from holdfast.job
where (unique_scope = 'pending' and token = 0 and state in ('scheduled', 'pending'))
    or (unique_scope = 'live' and finished_at is null) or unique_scope = 'window';

drop table holdfast.job;
alter table holdfast.job_thin rename to job;
alter index holdfast.job_thin_pkey rename to job_pkey;
alter sequence holdfast.job_thin_seq_seq rename to job_seq_seq;
create unique index job_id on holdfast.job (id);
create index job_parent on holdfast.job (parent) where parent is not null;
create index ready_deadline on holdfast.ready (deadline_at) where deadline_at is not null;
create index ready_lane on holdfast.ready (lane) where lane is not null;
create index ready_fair on holdfast.ready (route, priority, tenant, slot) where slot > 0;
create index later_route on holdfast.later (route, state);
create index later_due on holdfast.later (due_at) where due_at is not null;
create index later_deadline on holdfast.later (deadline_at) where deadline_at is not null;
create index later_channel on holdfast.later (channel) where channel is not null;
create index later_lane on holdfast.later (lane) where lane is not null;
create index later_blocked on holdfast.later (lane, priority, slot, seq) where state = 'blocked';
create index later_fair on holdfast.later (route, priority, tenant, slot) where state = 'blocked' and slot > 0;
create index lease_worker on holdfast.lease (worker);
create index lease_lane on holdfast.lease (lane) where lane is not null;
create index ended_finished on holdfast.ended (queue, finished_at);
create index ended_lane on holdfast.ended (lane) where lane is not null;
create index unique_key_job on holdfast.unique_key (job);

-- A job as it stands now, wherever its row is. Each table is probed for each job by itself, in any plan. The error of one
-- that goes on is that of its last attempt which had one.
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
            where a.job = j.seq and a.error is not null order by a.epoch desc, a.token desc limit 1) end as error
from holdfast.job j
left join lateral (select * from holdfast.lease k where k.seq = j.seq offset 0) as l on true
left join lateral (select * from holdfast.ended k where k.seq = j.seq offset 0) as e on true
left join lateral (select * from holdfast.ready k where k.route = j.route and k.priority = j.priority and k.slot = j.slot
    and k.seq = j.seq offset 0) as r on true
left join lateral (select * from holdfast.later k where k.seq = j.seq offset 0) as t on true;

-- Every attempt that ended: the last one of an ended job stands in `ended`, all others in `attempt`. One that was lost has
-- no error of its own, and where a cancel was accepted the job's error is its reason: an attempt that failed nevertheless
-- stands in `attempt`.
create view holdfast.attempt_now as
select job, epoch, token, worker, outcome, started_at, ended_at, error from holdfast.attempt
union all
select seq, epoch, token, worker, outcome, claimed_at, finished_at,
    case when outcome <> 'lost' and cancel_requested_at is null then error end
from holdfast.ended where outcome is not null;

create view holdfast.job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    to_timestamp(created_at / 1000000.0) as created_at,
    to_timestamp(due_at / 1000000.0) as due_at,
    to_timestamp(claimed_at / 1000000.0) as claimed_at,
    to_timestamp(lease_until / 1000000.0) as lease_until,
    to_timestamp(finished_at / 1000000.0) as finished_at
from holdfast.job_now;

create view holdfast.attempt_readable as
select job, epoch || '.' || token as token, worker, outcome, error,
    to_timestamp(started_at / 1000000.0) as started_at,
    to_timestamp(ended_at / 1000000.0) as ended_at
from holdfast.attempt_now;

-- A run as it stands: while nothing else is said, a lease of its job says that a worker has it.
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

-- down
drop view holdfast.run_now;
drop view holdfast.attempt_readable;
drop view holdfast.job_readable;
create table holdfast.job_wide (
    seq bigint generated always as identity primary key,
    id uuid not null,
    kind text not null,
    queue text not null,
    route bigint not null,
    tenant text not null,
    state text not null,
    priority integer not null,
    slot bigint not null default 0,
    gate text,
    epoch bigint not null default 0,
    token bigint not null default 0,
    worker bigint,
    lease_until bigint,
    claimed_at bigint,
    attempts integer not null default 0,
    max_attempts integer not null,
    rescues integer not null default 0,
    max_rescues integer not null,
    timeout_us bigint,
    due_at bigint,
    deadline_at bigint,
    created_at bigint not null,
    finished_at bigint,
    cancel_requested_at bigint,
    parent bigint,
    open_children integer not null default 0,
    channel text,
    retry_of uuid,
    payload json not null,
    metadata jsonb not null,
    progress json,
    result json,
    error json,
    lane text,
    cost integer not null default 1,
    unique_key text,
    unique_scope text,
    constraint job_state check
        (state in ('scheduled', 'pending', 'running', 'waiting', 'succeeded', 'failed', 'cancelled')),
    constraint job_lease check
        ((state = 'running') = (worker is not null) and (state = 'running') = (lease_until is not null)),
    constraint job_finished check
        ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
    constraint job_scheduled check (state <> 'scheduled' or due_at is not null),
    constraint job_open_children check (open_children >= 0),
    constraint job_cost check (cost >= 1),
    constraint job_unique check ((unique_key is null) = (unique_scope is null)),
    constraint job_unique_scope check (unique_scope in ('pending', 'live', 'window')),
    constraint job_gate check (gate is null or lane is not null)
) with (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000
);
insert into holdfast.job_wide (seq, id, kind, queue, route, tenant, state, priority, slot, gate, epoch, token, worker,
    lease_until, claimed_at, attempts, max_attempts, rescues, max_rescues, timeout_us, due_at, deadline_at, created_at,
    finished_at, cancel_requested_at, parent, open_children, channel, retry_of, payload, metadata, progress, result, error,
    lane, cost, unique_key, unique_scope)
overriding system value
select seq, id, kind, queue, route, tenant, state, priority, slot, gate, epoch, token, worker,
    lease_until, claimed_at, attempts, max_attempts, rescues, max_rescues, timeout_us, due_at, deadline_at, created_at,
    finished_at, cancel_requested_at, parent, open_children, channel, retry_of, payload, metadata, progress, result, error,
    lane, cost, unique_key, unique_scope
from holdfast.job_now order by seq;
select setval('holdfast.job_wide_seq_seq', s.last_value, s.is_called) from holdfast.job_seq_seq s;
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
select seq, epoch, token, worker, outcome, claimed_at, finished_at,
    case when outcome <> 'lost' and cancel_requested_at is null then error end
from holdfast.ended where outcome is not null;
drop view holdfast.attempt_now;
drop view holdfast.job_now;
drop table holdfast.unique_key;
drop table holdfast.progress;
drop table holdfast.family;
drop table holdfast.ended;
drop table holdfast.lease;
drop table holdfast.later;
drop table holdfast.ready;
drop table holdfast.job;
alter table holdfast.job_wide rename to job;
alter index holdfast.job_wide_pkey rename to job_pkey;
alter sequence holdfast.job_wide_seq_seq rename to job_seq_seq;
create unique index job_id on holdfast.job (id);
create index job_claim on holdfast.job (route, priority, slot, seq) where state = 'pending' and gate is null;
create index job_running on holdfast.job (worker) where state = 'running';
create index job_later on holdfast.job (route) where state in ('scheduled', 'waiting');
create index job_due on holdfast.job (due_at) where state in ('scheduled', 'waiting') and due_at is not null;
create index job_deadline on holdfast.job (deadline_at)
    where state in ('scheduled', 'pending', 'waiting') and deadline_at is not null;
create index job_parent on holdfast.job (parent) where parent is not null;
create index job_channel on holdfast.job (channel) where state = 'waiting' and channel is not null;
create index job_gate on holdfast.job (gate, priority, slot, seq) where state = 'pending' and gate is not null;
create index job_lane on holdfast.job (lane) where state = 'running' and lane is not null;
create index job_lane_later on holdfast.job (lane)
    where state in ('scheduled', 'pending', 'waiting') and lane is not null;
create index job_fair on holdfast.job (route, priority, tenant, slot) where state = 'pending' and slot > 0;
create unique index job_unique_pending on holdfast.job (unique_key)
    where unique_scope = 'pending' and token = 0 and state in ('scheduled', 'pending');
create unique index job_unique_live on holdfast.job (unique_key)
    where unique_scope = 'live' and state in ('scheduled', 'pending', 'running', 'waiting');
create unique index job_unique_window on holdfast.job (unique_key) where unique_scope = 'window';
create index job_finished on holdfast.job (queue, finished_at) where finished_at is not null;
create index job_blocked on holdfast.job (route) where state = 'pending' and gate is not null and lane is not null;
create index job_lane_ended on holdfast.job (lane) where lane is not null and finished_at is not null;
create view holdfast.job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    to_timestamp(created_at / 1000000.0) as created_at,
    to_timestamp(due_at / 1000000.0) as due_at,
    to_timestamp(claimed_at / 1000000.0) as claimed_at,
    to_timestamp(lease_until / 1000000.0) as lease_until,
    to_timestamp(finished_at / 1000000.0) as finished_at
from holdfast.job;
create view holdfast.attempt_readable as
select job, epoch || '.' || token as token, worker, outcome, error,
    to_timestamp(started_at / 1000000.0) as started_at,
    to_timestamp(ended_at / 1000000.0) as ended_at
from holdfast.attempt;
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
