-- Inquiries: what only a person can decide. Each is decided once; who comes second is told so.

-- name: add_inquiries :exec on postgres
insert into holdfast.inquiry (id, run, session, tenant, kind, call, name, digest, data, state, fallback, asked_at,
    expires_at)
select i.id, i.run, i.session, i.tenant, i.kind, i.call, i.name, i.digest, i.data, 'open', i.fallback,
    holdfast.now_us(), holdfast.now_us() + i.timeout_us
from unnest(
    cast(:inquiries.id as text[]), cast(:inquiries.run as text[]), cast(:inquiries.session as text[]),
    cast(:inquiries.tenant as text[]), cast(:inquiries.kind as text[]), cast(:inquiries.call as text[]),
    cast(:inquiries.name as text[]), cast(:inquiries.digest as text[]), cast(:inquiries.data as json[]),
    cast(:inquiries.fallback as json[]), cast(:inquiries.timeout_us as bigint[])
) as i (id, run, session, tenant, kind, call, name, digest, data, fallback, timeout_us)
on conflict (id) do nothing;

-- name: add_inquiries :exec on sqlite
-- Forked for the list of records.
insert into holdfast.inquiry (id, run, session, tenant, kind, call, name, digest, data, state, fallback, asked_at,
    expires_at)
select value ->> :inquiries.id, value ->> :inquiries.run, value ->> :inquiries.session, value ->> :inquiries.tenant,
    value ->> :inquiries.kind, value ->> :inquiries.call, value ->> :inquiries.name, value ->> :inquiries.digest,
    value ->> :inquiries.data, 'open', value ->> :inquiries.fallback, holdfast.now_us(),
    holdfast.now_us() + (value ->> :inquiries.timeout_us)
from json_each(:inquiries) where true
on conflict (id) do nothing;

-- name: find_inquiry :one
select id, run, session, tenant, kind, call, name, digest, data, state, fallback, asked_at, expires_at, decided_at,
    decided_by, decision
from holdfast.inquiry where id = :id;

-- name: open_inquiries :many
-- Those that an id may mean: its own, or those of a call, or of a run and all runs below it. In the order in which the
-- model asked for the calls.
select i.id, i.run, i.session, i.tenant, i.kind, i.call, i.name, i.digest, i.data, i.state, i.fallback, i.asked_at,
    i.expires_at, i.decided_at, i.decided_by, i.decision
from holdfast.inquiry i left join holdfast.tool_call c on c.id = i.call
where i.state = 'open' and (i.id = :id or i.call = :id or i.run = :id
    or i.run in (select r.id from holdfast.run r where r.root = :id))
order by i.asked_at, coalesce(c.turn, 0), coalesce(c.ordinal, 0), i.id;

-- name: last_decided :one
-- Of a call, or of a run and all runs below it.
select id, run, session, tenant, kind, call, name, digest, data, state, fallback, asked_at, expires_at, decided_at,
    decided_by, decision
from holdfast.inquiry where state <> 'open' and (call = :id or run = :id
    or run in (select r.id from holdfast.run r where r.root = :id))
order by decided_at desc, id desc limit 1;

-- name: list_inquiries :many
select id, run, session, tenant, kind, call, name, digest, data, state, fallback, asked_at, expires_at, decided_at,
    decided_by, decision
from holdfast.inquiry
where (cast(:state as text) is null or state = :state) and (cast(:tenant as text) is null or tenant = :tenant)
    and (cast(:run as text) is null or run = :run or run in (select r.id from holdfast.run r where r.root = :run))
    and (asked_at, id) > (:after_at, :after)
order by asked_at, id limit :limit;

-- name: inquiry_place :one
-- What an inquiry is about: its run, and the jobs that wait for it.
select r.id, r.session, r.branch, r.job, j.parent, r.turns, r.state, r.agent_name, r.parent as parent_run, r.options,
    r.input_tokens + r.output_tokens + r.cache_write_tokens + r.cache_read_tokens as tokens,
    cast(r.cost_nano + coalesce((select sum(p.cost_nano) from holdfast.compaction p where p.run = r.id), 0) as bigint)
        as cost_nano, r.continued,
    v.definition, c.job as call_job, r.finalized_at, holdfast.now_us() - r.created_at as age_us, r.root
from holdfast.run r join holdfast.agent_version v on v.agent = r.agent and v.version = r.version
left join holdfast.job j on j.seq = r.job
left join holdfast.tool_call c on c.id = :call
where r.id = :run;

-- name: decide_inquiry :one
update holdfast.inquiry set state = :state, decided_at = holdfast.now_us(), decided_by = :by, decision = :decision
where id = :id and state = 'open'
returning id, run, session, tenant, kind, call, name, digest, data, state, fallback, asked_at, expires_at, decided_at,
    decided_by, decision;

-- name: count_asked :one
select count(*) as n from holdfast.inquiry where run = :run;

-- name: count_open :one
select count(*) as n from holdfast.inquiry where run = :run and state = 'open';

-- name: withdraw_inquiries :exec
update holdfast.inquiry set state = 'withdrawn', decided_at = holdfast.now_us() where run = :run and state = 'open';

-- name: withdraw_calls :exec
-- Of calls that have ended otherwise: nobody needs to decide about them any more.
update holdfast.inquiry set state = 'withdrawn', decided_at = holdfast.now_us()
where call = any(cast(:calls as text[])) and state = 'open';

-- name: change_options :exec
-- Of a run that a person lets go on under other conditions.
update holdfast.run set options = :options where id = :id and finalized_at is null;

-- name: unknown_calls :many
-- Calls that may be started once and whose job has ended without saying what it did.
select c.id, c.run, c.turn, c.name, c.input, c.job, r.session, r.tenant, r.job as parent, r.state, r.agent_name,
    r.parent as parent_run, j.error, j.metadata
from holdfast.tool_call c
join holdfast.job j on j.seq = c.job
join holdfast.run r on r.id = c.run
where c.job = any(cast(:jobs as bigint[])) and c.state is null and c.effect = 'once' and j.state = 'failed'
    and r.finalized_at is null
order by c.job;

-- name: hand_over :exec
-- The call is answered by another job now.
update holdfast.tool_call set job = (select j.seq from holdfast.job j where j.id = :job) where id = :call and state is null;
