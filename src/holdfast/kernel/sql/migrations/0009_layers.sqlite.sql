-- Ownership is data: `layer` names the part of the runtime that a job belongs to, as `agents`; null: a job of a program's
-- own. Rows that code of schema 8 wrote have none, and belong to whose kinds theirs begins with. Code of schema 8 knows
-- nothing of the column and works beside it.
-- oldest_code: 8

-- up
drop view job_readable;
drop view job_now;
alter table job add column layer text;
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
create view job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    datetime(created_at / 1000000.0, 'unixepoch', 'subsec') as created_at,
    datetime(due_at / 1000000.0, 'unixepoch', 'subsec') as due_at,
    datetime(claimed_at / 1000000.0, 'unixepoch', 'subsec') as claimed_at,
    datetime(lease_until / 1000000.0, 'unixepoch', 'subsec') as lease_until,
    datetime(finished_at / 1000000.0, 'unixepoch', 'subsec') as finished_at, layer
from job_now;

-- down
drop view job_readable;
drop view job_now;
alter table job drop column layer;
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
create view job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    datetime(created_at / 1000000.0, 'unixepoch', 'subsec') as created_at,
    datetime(due_at / 1000000.0, 'unixepoch', 'subsec') as due_at,
    datetime(claimed_at / 1000000.0, 'unixepoch', 'subsec') as claimed_at,
    datetime(lease_until / 1000000.0, 'unixepoch', 'subsec') as lease_until,
    datetime(finished_at / 1000000.0, 'unixepoch', 'subsec') as finished_at
from job_now;
