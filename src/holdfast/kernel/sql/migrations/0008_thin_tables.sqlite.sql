-- A job's state is the table in which its row stands: ready, later, lease or ended. What was asked for is in `job`, which
-- nobody updates on the way. Code of schema 7 knows nothing of these tables, so it cannot work beside them.
-- oldest_code: 8

-- up
drop view run_now;
drop view attempt_readable;
drop view job_readable;

-- A second table under another name, not columns dropped from the first: those would stay in every row for good.
create table job_thin (
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
    constraint job_asked check (cost >= 1 and case when unique_key is null then unique_scope is null
        else unique_scope is not null and unique_scope in ('pending', 'live', 'window') end)
) strict;
insert into job_thin (seq, id, route, slot, created_at, priority, max_attempts, max_rescues, cost, kind, queue,
    tenant, payload, metadata, timeout_us, deadline_at, parent, retry_of, lane, unique_key, unique_scope)
select seq, id, route, slot, created_at, priority, max_attempts, max_rescues, cost, kind, queue,
    tenant, payload, metadata, timeout_us, deadline_at, parent, retry_of, lane, unique_key, unique_scope
from job order by seq;
delete from sqlite_sequence where name = 'job_thin';
insert into sqlite_sequence (name, seq) select 'job_thin', q.seq from sqlite_sequence q where q.name = 'job';

-- What can be claimed. A row is inserted and deleted, never updated. `tenant` is there on fair queues only, `cost` in lanes.
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

-- What runs. No index contains `lease_until`, so that a renewal changes its row alone.
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
    cancel_error text
) strict;

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

-- Which job has a unique key. Whether it still holds it, its own state says: see `enqueue`.
create table unique_key (
    scope text not null,
    key text not null,
    job text not null,
    primary key (scope, key)
) strict, without rowid;

insert into ready (route, slot, seq, token, priority, attempts, rescues, cost, deadline_at, lane, tenant)
select route, slot, seq, token, priority, attempts, rescues, case when lane is not null then cost end, deadline_at, lane,
    case when slot > 0 then tenant end
from job where state = 'pending' and gate is null;
insert into later (seq, route, slot, token, priority, attempts, rescues, state, cost, due_at, deadline_at, channel,
    lane, tenant)
select seq, route, slot, token, priority, attempts, rescues, case state when 'pending' then 'blocked' else state end,
    case when lane is not null then cost end, case state when 'pending' then null else due_at end, deadline_at,
    case state when 'waiting' then channel end, lane, case when slot > 0 then tenant end
from job where state in ('scheduled', 'waiting') or (state = 'pending' and gate is not null);
insert into lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent,
    cancel_requested_at, lane, cancel_error)
select seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent,
    cancel_requested_at, lane, case when cancel_requested_at is not null then error end
from job where state = 'running';
-- An attempt whose own error is not that of its job stays where it is: see `attempt_now`.
insert into ended (seq, token, finished_at, worker, epoch, claimed_at, attempts, rescues, state, queue, outcome, lane,
    cancel_requested_at, result, error)
select j.seq, j.token, j.finished_at, a.worker, a.epoch, a.started_at, j.attempts, j.rescues, j.state, j.queue, a.outcome,
    j.lane, j.cancel_requested_at, j.result, j.error
from job j left join attempt a on a.job = j.seq and a.epoch = j.epoch and a.token = j.token
    and a.outcome in ('succeeded', 'failed', 'cancelled', 'lost') and a.error is
        case when a.outcome <> 'lost' and j.cancel_requested_at is null then j.error end
where j.finished_at is not null;
delete from attempt where exists (select 1 from ended e
    where e.seq = attempt.job and e.epoch = attempt.epoch and e.token = attempt.token and e.outcome is not null);
insert into family (job, open_children) select seq, open_children from job where open_children > 0;
insert into progress (job, value) select seq, progress from job where progress is not null;
insert into unique_key (scope, key, job)
select unique_scope, unique_key, id from job
where (unique_scope = 'pending' and token = 0 and state in ('scheduled', 'pending'))
    or (unique_scope = 'live' and finished_at is null) or unique_scope = 'window';

drop table job;
alter table job_thin rename to job;
create unique index job_id on job (id);
create index job_parent on job (parent) where parent is not null;
create index ready_deadline on ready (deadline_at) where deadline_at is not null;
create index ready_lane on ready (lane) where lane is not null;
create index ready_fair on ready (route, priority, tenant, slot) where slot > 0;
create index later_route on later (route, state);
create index later_due on later (due_at) where due_at is not null;
create index later_deadline on later (deadline_at) where deadline_at is not null;
create index later_channel on later (channel) where channel is not null;
create index later_lane on later (lane) where lane is not null;
create index later_blocked on later (lane, priority, slot, seq) where state = 'blocked';
create index later_fair on later (route, priority, tenant, slot) where state = 'blocked' and slot > 0;
create index lease_worker on lease (worker);
create index lease_lane on lease (lane) where lane is not null;
create index ended_finished on ended (queue, finished_at);
create index ended_lane on ended (lane) where lane is not null;
create index unique_key_job on unique_key (job);

-- A new job stands in `ready`, or in `later` if it is not due yet. PostgreSQL does this in the statement that inserts it.
create trigger job_ready after insert on job when new.due_at is null begin
    insert into ready (route, slot, seq, token, priority, attempts, rescues, cost, deadline_at, lane, tenant)
    values (new.route, new.slot, new.seq, 0, new.priority, 0, 0, case when new.lane is not null then new.cost end,
        new.deadline_at, new.lane, case when new.slot > 0 then new.tenant end); end;
create trigger job_later after insert on job when new.due_at is not null begin
    insert into later (route, slot, seq, token, priority, attempts, rescues, cost, deadline_at, lane, tenant, state, due_at)
    values (new.route, new.slot, new.seq, 0, new.priority, 0, 0, case when new.lane is not null then new.cost end,
        new.deadline_at, new.lane, case when new.slot > 0 then new.tenant end, 'scheduled', new.due_at); end;

-- A job as it stands now, wherever its row is. The error of one
-- that goes on is that of its last attempt which had one.
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
            where a.job = j.seq and a.error is not null order by a.epoch desc, a.token desc limit 1) end as error
from job j
left join lease l on l.seq = j.seq
left join ended e on e.seq = j.seq
left join ready r on r.route = j.route and r.priority = j.priority and r.slot = j.slot and r.seq = j.seq
left join later t on t.seq = j.seq;

-- Every attempt that ended: the last one of an ended job stands in `ended`, all others in `attempt`. One that was lost has
-- no error of its own, and where a cancel was accepted the job's error is its reason: an attempt that failed nevertheless
-- stands in `attempt`.
create view attempt_now as
select job, epoch, token, worker, outcome, started_at, ended_at, error from attempt
union all
select seq, epoch, token, worker, outcome, claimed_at, finished_at,
    case when outcome <> 'lost' and cancel_requested_at is null then error end
from ended where outcome is not null;

create view job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    datetime(created_at / 1000000.0, 'unixepoch', 'subsec') as created_at,
    datetime(due_at / 1000000.0, 'unixepoch', 'subsec') as due_at,
    datetime(claimed_at / 1000000.0, 'unixepoch', 'subsec') as claimed_at,
    datetime(lease_until / 1000000.0, 'unixepoch', 'subsec') as lease_until,
    datetime(finished_at / 1000000.0, 'unixepoch', 'subsec') as finished_at
from job_now;

create view attempt_readable as
select job, epoch || '.' || token as token, worker, outcome, error,
    datetime(started_at / 1000000.0, 'unixepoch', 'subsec') as started_at,
    datetime(ended_at / 1000000.0, 'unixepoch', 'subsec') as ended_at
from attempt_now;

-- A run as it stands: while nothing else is said, a lease of its job says that a worker has it.
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

-- down
drop view run_now;
drop view attempt_readable;
drop view job_readable;
-- The checks of columns that a step down drops stand with the column: SQLite drops no other.
create table job_wide (
    seq integer primary key autoincrement,
    id text not null,
    kind text not null,
    queue text not null,
    route integer not null,
    tenant text not null,
    state text not null,
    priority integer not null,
    slot integer not null default 0,
    gate text,
    epoch integer not null default 0,
    token integer not null default 0,
    worker integer,
    lease_until integer,
    claimed_at integer,
    attempts integer not null default 0,
    max_attempts integer not null,
    rescues integer not null default 0,
    max_rescues integer not null,
    timeout_us integer,
    due_at integer,
    deadline_at integer,
    created_at integer not null,
    finished_at integer,
    cancel_requested_at integer,
    parent integer,
    open_children integer not null default 0,
    channel text,
    retry_of text,
    payload text not null,
    metadata text not null,
    progress text,
    result text,
    error text,
    lane text check (gate is null or lane is not null),
    cost integer not null default 1 check (cost >= 1),
    unique_key text,
    unique_scope text check (unique_scope in ('pending', 'live', 'window'))
        check ((unique_key is null) = (unique_scope is null)),
    constraint job_state check
        (state in ('scheduled', 'pending', 'running', 'waiting', 'succeeded', 'failed', 'cancelled')),
    constraint job_lease check
        ((state = 'running') = (worker is not null) and (state = 'running') = (lease_until is not null)),
    constraint job_finished check
        ((state in ('succeeded', 'failed', 'cancelled')) = (finished_at is not null)),
    constraint job_scheduled check (state <> 'scheduled' or due_at is not null),
    constraint job_open_children check (open_children >= 0)
) strict;
insert into job_wide (seq, id, kind, queue, route, tenant, state, priority, slot, gate, epoch, token, worker,
    lease_until, claimed_at, attempts, max_attempts, rescues, max_rescues, timeout_us, due_at, deadline_at, created_at,
    finished_at, cancel_requested_at, parent, open_children, channel, retry_of, payload, metadata, progress, result, error,
    lane, cost, unique_key, unique_scope)
select seq, id, kind, queue, route, tenant, state, priority, slot, gate, epoch, token, worker,
    lease_until, claimed_at, attempts, max_attempts, rescues, max_rescues, timeout_us, due_at, deadline_at, created_at,
    finished_at, cancel_requested_at, parent, open_children, channel, retry_of, payload, metadata, progress, result, error,
    lane, cost, unique_key, unique_scope
from job_now order by seq;
delete from sqlite_sequence where name = 'job_wide';
insert into sqlite_sequence (name, seq) select 'job_wide', q.seq from sqlite_sequence q where q.name = 'job';
insert into attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
select seq, epoch, token, worker, outcome, claimed_at, finished_at,
    case when outcome <> 'lost' and cancel_requested_at is null then error end
from ended where outcome is not null;
drop view attempt_now;
drop view job_now;
drop table unique_key;
drop table progress;
drop table family;
drop table ended;
drop table lease;
drop table later;
drop table ready;
drop table job;
alter table job_wide rename to job;
create unique index job_id on job (id);
create index job_claim on job (route, priority, slot, seq) where state = 'pending' and gate is null;
create index job_running on job (worker) where state = 'running';
create index job_later on job (route) where state in ('scheduled', 'waiting');
create index job_due on job (due_at) where state in ('scheduled', 'waiting') and due_at is not null;
create index job_deadline on job (deadline_at)
    where state in ('scheduled', 'pending', 'waiting') and deadline_at is not null;
create index job_parent on job (parent) where parent is not null;
create index job_channel on job (channel) where state = 'waiting' and channel is not null;
create index job_gate on job (gate, priority, slot, seq) where state = 'pending' and gate is not null;
create index job_lane on job (lane) where state = 'running' and lane is not null;
create index job_lane_later on job (lane)
    where state in ('scheduled', 'pending', 'waiting') and lane is not null;
create index job_fair on job (route, priority, tenant, slot) where state = 'pending' and slot > 0;
create unique index job_unique_pending on job (unique_key)
    where unique_scope = 'pending' and token = 0 and state in ('scheduled', 'pending');
create unique index job_unique_live on job (unique_key)
    where unique_scope = 'live' and state in ('scheduled', 'pending', 'running', 'waiting');
create unique index job_unique_window on job (unique_key) where unique_scope = 'window';
create index job_finished on job (queue, finished_at) where finished_at is not null;
create index job_blocked on job (route) where state = 'pending' and gate is not null and lane is not null;
create index job_lane_ended on job (lane) where lane is not null and finished_at is not null;
create view job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    datetime(created_at / 1000000.0, 'unixepoch', 'subsec') as created_at,
    datetime(due_at / 1000000.0, 'unixepoch', 'subsec') as due_at,
    datetime(claimed_at / 1000000.0, 'unixepoch', 'subsec') as claimed_at,
    datetime(lease_until / 1000000.0, 'unixepoch', 'subsec') as lease_until,
    datetime(finished_at / 1000000.0, 'unixepoch', 'subsec') as finished_at
from job;
create view attempt_readable as
select job, epoch || '.' || token as token, worker, outcome, error,
    datetime(started_at / 1000000.0, 'unixepoch', 'subsec') as started_at,
    datetime(ended_at / 1000000.0, 'unixepoch', 'subsec') as ended_at
from attempt;
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
