-- Tool calls. Each is a child job of its run; while that lives, the job says what the call does.

-- name: add_calls :exec on postgres
insert into holdfast.tool_call (id, run, turn, ordinal, tool_use_id, name, input, job, child, effect, state, output,
    is_error, created_at, finished_at)
select c.id, c.run, c.turn, c.ordinal, c.tool_use_id, c.name, c.input, j.seq, c.child, c.effect, c.state, c.output,
    c.is_error, holdfast.now_us(), case when c.state is not null then holdfast.now_us() end
from unnest(
    cast(:calls.id as text[]), cast(:calls.run as text[]), cast(:calls.turn as integer[]),
    cast(:calls.ordinal as integer[]), cast(:calls.tool_use_id as text[]), cast(:calls.name as text[]),
    cast(:calls.input as json[]), cast(:calls.child as text[]), cast(:calls.effect as text[]),
    cast(:calls.state as text[]), cast(:calls.output as json[]), cast(:calls.is_error as integer[])
) as c (id, run, turn, ordinal, tool_use_id, name, input, child, effect, state, output, is_error)
left join holdfast.job j on j.id = cast(c.id as uuid)
on conflict do nothing;

-- name: add_calls :exec on sqlite
-- Forked for the list of records.
insert into holdfast.tool_call (id, run, turn, ordinal, tool_use_id, name, input, job, child, effect, state, output,
    is_error, created_at, finished_at)
select value ->> :calls.id, value ->> :calls.run, value ->> :calls.turn, value ->> :calls.ordinal,
    value ->> :calls.tool_use_id, value ->> :calls.name, value ->> :calls.input,
    (select j.seq from holdfast.job j where j.id = value ->> :calls.id), value ->> :calls.child,
    value ->> :calls.effect, value ->> :calls.state, value ->> :calls.output, value ->> :calls.is_error,
    holdfast.now_us(), case when value ->> :calls.state is not null then holdfast.now_us() end
from json_each(:calls) where true
on conflict do nothing;

-- name: close_calls :many on postgres
-- Calls whose job has ended: what it returned, or why it did not.
update holdfast.tool_call c set output = coalesce(j.result, j.error),
    state = case j.state when 'succeeded' then 'completed' else 'failed' end,
    is_error = case j.state when 'succeeded' then 0 else 1 end, finished_at = j.finished_at
from holdfast.job j
where c.job = any(cast(:jobs as bigint[])) and j.seq = c.job and c.state is null
returning c.id, c.run, c.turn, c.name, c.state;

-- name: close_calls :many on sqlite
-- Forked for the names in returning.
update holdfast.tool_call as c set output = coalesce(j.result, j.error),
    state = case j.state when 'succeeded' then 'completed' else 'failed' end,
    is_error = case j.state when 'succeeded' then 0 else 1 end, finished_at = j.finished_at
from holdfast.job j
where c.job = any(:jobs) and j.seq = c.job and c.state is null
returning id, run, turn, name, state;

-- name: skip_calls :exec
-- The run is over: what has not ended is not waited for.
update holdfast.tool_call set state = 'skipped', is_error = 1, finished_at = holdfast.now_us()
where run = :run and state is null;

-- name: ready_runs :many
-- Runs that wait for tools of which none is open any more.
select r.id, r.session, r.branch, r.turns, r.agent_name, r.parent, r.state from holdfast.run r
where r.id = any(cast(:runs as text[])) and r.state in ('pending_tools', 'awaiting_input')
    and not exists (select 1 from holdfast.tool_call c where c.run = r.id and c.state is null)
order by r.job;

-- name: calls_of :many
select c.id, c.run, c.turn, c.ordinal, c.tool_use_id, c.name, c.input, c.child, c.effect,
    coalesce(c.state, case j.state when 'running' then 'running' else 'pending' end) as state,
    c.output, c.is_error, coalesce(j.attempts, 0) as attempts, c.created_at, c.finished_at,
    (select i.decision from holdfast.inquiry i where i.call = c.id and i.state = 'approved'
        order by i.decided_at desc limit 1) as decision
from holdfast.tool_call c left join holdfast.job j on j.seq = c.job
where c.run = :run and (cast(:turn as integer) is null or c.turn = :turn)
order by c.turn, c.ordinal;

-- name: find_call :one
select c.id, c.run, c.turn, c.ordinal, c.tool_use_id, c.name, c.input, c.child, c.effect,
    coalesce(c.state, case j.state when 'running' then 'running' else 'pending' end) as state,
    c.output, c.is_error, coalesce(j.attempts, 0) as attempts, c.created_at, c.finished_at,
    (select i.decision from holdfast.inquiry i where i.call = c.id and i.state = 'approved'
        order by i.decided_at desc limit 1) as decision
from holdfast.tool_call c left join holdfast.job j on j.seq = c.job
where c.id = :id;
