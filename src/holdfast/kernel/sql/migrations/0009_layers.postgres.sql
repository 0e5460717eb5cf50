-- Ownership is data: `layer` names the part of the runtime that a job belongs to, as `agents`; null: a job of a program's
-- own. Rows that code of schema 8 wrote have none, and belong to whose kinds theirs begins with. Code of schema 8 knows
-- nothing of the column and works beside it.
-- oldest_code: 8

-- up
alter table holdfast.job add column layer text;
-- A column more at the end of a view: whoever reads it goes on.
create or replace view holdfast.job_now as
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
create or replace view holdfast.job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    to_timestamp(created_at / 1000000.0) as created_at,
    to_timestamp(due_at / 1000000.0) as due_at,
    to_timestamp(claimed_at / 1000000.0) as claimed_at,
    to_timestamp(lease_until / 1000000.0) as lease_until,
    to_timestamp(finished_at / 1000000.0) as finished_at, layer
from holdfast.job_now;

-- down
drop view holdfast.job_readable;
drop view holdfast.job_now;
alter table holdfast.job drop column layer;
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
create view holdfast.job_readable as
select seq, id, kind, queue, state, priority, attempts, rescues, epoch || '.' || token as token, worker,
    payload, progress, result, error,
    to_timestamp(created_at / 1000000.0) as created_at,
    to_timestamp(due_at / 1000000.0) as due_at,
    to_timestamp(claimed_at / 1000000.0) as claimed_at,
    to_timestamp(lease_until / 1000000.0) as lease_until,
    to_timestamp(finished_at / 1000000.0) as finished_at
from holdfast.job_now;
