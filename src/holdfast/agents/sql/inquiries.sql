-- Inquiries: what only a person can decide. Each is decided once; a second decision is refused.

-- name: add_inquiries :exec
insert into holdfast.inquiry (id, run, session, tenant, kind, call, name, digest, data, state, fallback, asked_at,
    expires_at)
select i.id, i.run, i.session, i.tenant, i.kind, i.call, i.name, i.digest, i.data, 'open', i.fallback,
    holdfast.now_us(), holdfast.now_us() + i.timeout_us
from rows(:inquiries) as i (id text, run text, session text, tenant text, kind text, call text, name text, digest text,
    data json, fallback json, timeout_us bigint)
where true
on conflict (id) do nothing;

-- name: find_inquiry :one
select :columns
from holdfast.inquiry where id = :id;

-- part: meant
-- By an index each: its own id, that of a call, or that of a run, with all runs below it.
array(
    select m.id from holdfast.inquiry m where m.id = :id
    union all
    select m.id from holdfast.inquiry m where m.call = :id
    union all
    select m.id from holdfast.inquiry m where m.run = any(array(
        select cast(:id as text) union all select r.id from holdfast.run r where r.root = :id)))

-- name: open_inquiries :many
-- The inquiries that an id may mean: its own, or those of a call, or those of a run and all runs below it. In the
-- order in which the model asked for the calls.
select :columns(i)
from holdfast.inquiry i left join holdfast.tool_call c on c.id = i.call
where i.id = any(@meant) and i.state = 'open'
order by i.asked_at, coalesce(c.turn, 0), coalesce(c.ordinal, 0), i.id;

-- name: inquiries_below :many
-- A page of the open inquiries of a run and all runs below it, in the same order, after the inquiry `:after`.
select :columns(i)
from holdfast.inquiry i left join holdfast.tool_call c on c.id = i.call
where i.state = 'open' and i.run = any(array(
        select cast(:run as text) union all select r.id from holdfast.run r where r.root = :run))
    and (:after = '' or (i.asked_at, coalesce(c.turn, 0), coalesce(c.ordinal, 0), i.id) > (
        select a.asked_at, coalesce(b.turn, 0), coalesce(b.ordinal, 0), a.id
        from holdfast.inquiry a left join holdfast.tool_call b on b.id = a.call where a.id = :after))
order by i.asked_at, coalesce(c.turn, 0), coalesce(c.ordinal, 0), i.id limit :limit;

-- name: last_decided :one
-- Of a call, or of a run and all runs below it.
select :columns
from holdfast.inquiry where id = any(@meant) and state <> 'open'
order by decided_at desc, id desc limit 1;

-- name: inquiry_place :one
-- What an inquiry is about: its run, and the jobs that wait for it.
select r.id, r.session, r.branch, r.job, j.parent, r.turns, r.state, r.agent_name, r.parent as parent_run, r.options,
    r.input_tokens + r.output_tokens + r.cache_write_tokens + r.cache_read_tokens as tokens,
    cast(r.cost_nano + coalesce((select sum(p.cost_nano) from holdfast.compaction p where p.run = r.id), 0) as bigint)
        as cost_nano, r.continued,
    v.definition, c.job as call_job, r.finalized_at, holdfast.now_us() - r.created_at as age_us, r.root, r.agent
from holdfast.run r join holdfast.agent_version v on v.agent = r.agent and v.version = r.version
left join holdfast.job j on j.seq = r.job
left join holdfast.tool_call c on c.id = :call
where r.id = :run;

-- name: decide_inquiry :one
-- When its time is over, only its default decides. This is tested here, because possibly no worker has noticed yet.
update holdfast.inquiry set state = :state, decided_at = holdfast.now_us(), decided_by = :by, decision = :decision
where id = :id and state = 'open'
    and (cast(:state as text) = 'expired' or expires_at is null or expires_at > holdfast.now_us())
returning :columns;

-- name: count_asked :one
select count(*) as n from holdfast.inquiry where run = :run;

-- name: count_open :one
select count(*) as n from holdfast.inquiry where run = :run and state = 'open';

-- name: withdraw_inquiries :exec
update holdfast.inquiry set state = 'withdrawn', decided_at = holdfast.now_us() where run = :run and state = 'open';

-- name: withdraw_calls :exec
-- Inquiries about calls that have ended otherwise: nobody needs to decide about them any more.
update holdfast.inquiry set state = 'withdrawn', decided_at = holdfast.now_us()
where call = any(cast(:calls as text[])) and state = 'open';

-- name: change_options :exec
-- For a run that a person lets continue under other conditions.
update holdfast.run set options = :options where id = :id and finalized_at is null;

-- name: unknown_calls :many
-- Calls that may be started only once and whose job has ended without a known result. The job says with which
-- arguments they ran, and will run again if a person says so; the call itself has the arguments that the model asked
-- for.
select c.id, c.run, c.turn, c.name, c.input as asked,
    (select j.payload from holdfast.job j where j.seq = c.job) as input, c.job, r.session, r.tenant, r.job as parent,
    r.state, r.agent_name, r.parent as parent_run,
    (select e.error from holdfast.ended e where e.seq = c.job) as error,
    (select j.metadata from holdfast.job j where j.seq = c.job) as metadata,
    (select i.decided_by from holdfast.inquiry i where i.call = c.id and i.state = 'approved'
        and i.decision ->> 'input' is not null order by i.decided_at desc limit 1) as changed_by, r.agent
from holdfast.tool_call c join holdfast.run r on r.id = c.run
where c.job = any(cast(:jobs as bigint[])) and c.state is null and c.effect = 'once' and r.finalized_at is null
    and (select e.state from holdfast.ended e where e.seq = c.job) = 'failed'
order by c.job;

-- name: hand_over :exec
-- From now on another job answers the call.
update holdfast.tool_call set job = (select j.seq from holdfast.job j where j.id = :job) where id = :call and state is null;
