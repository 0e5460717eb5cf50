-- Tool calls. Each is a child job of its run. While that job exists, it says what the call does.

-- name: add_calls :exec
insert into holdfast.tool_call (id, run, turn, ordinal, tool_use_id, name, input, job, child, effect, state, output,
    is_error, created_at, finished_at)
select c.id, c.run, c.turn, c.ordinal, c.tool_use_id, c.name, c.input, j.seq, c.child, c.effect, c.state, c.output,
    c.is_error, holdfast.now_us(), case when c.state is not null then holdfast.now_us() end
from rows(:calls) as c (id text, run text, turn integer, ordinal integer, tool_use_id text, name text, input json,
    child text, effect text, state text, output json, is_error integer)
left join holdfast.job j on j.id = cast(c.id as uuid)
where true
on conflict do nothing;

-- name: close_calls :many
-- Calls whose job has ended: stores what the job returned, or why it did not. A probe for each: a join might read
-- all ended jobs. A result is unusual if it is not a text, or is a very long one: a broker may return anything.
update holdfast.tool_call set (output, state, is_error, finished_at) = (
    select coalesce(e.result, e.error), case e.state when 'succeeded' then 'completed' else 'failed' end,
        case e.state when 'succeeded' then 0 else 1 end, e.finished_at
    from holdfast.ended e where e.seq = tool_call.job)
where job = any(cast(:jobs as bigint[])) and state is null
returning id, run, turn, name, state, case when state = 'completed' and child is null
    and (substr(cast(output as text), 1, 1) <> '"' or length(cast(output as text)) > :cap) then 1 else 0 end as unusual;

-- name: outputs_of :many
select id, output from holdfast.tool_call where id = any(cast(:ids as text[])) order by id;

-- name: set_output :exec
update holdfast.tool_call set output = cast(:output as json) where id = :id;

-- name: skip_calls :exec
-- The run is over: it does not wait for calls that have not ended.
update holdfast.tool_call set state = 'skipped', is_error = 1, finished_at = holdfast.now_us()
where run = :run and state is null;

-- name: ready_runs :many
-- Runs that wait for tools and have no open call any more.
select :columns(r) from holdfast.run r
where r.id = any(cast(:runs as text[])) and r.state in ('pending_tools', 'awaiting_input')
    and not exists (select 1 from holdfast.tool_call c where c.run = r.id and c.state is null)
order by r.job;

-- part: call
-- Most calls have ended, so their attempts are looked up there first. The decision is the last one that changed the
-- arguments: a later decision to run the call again does not change them.
select c.id, c.run, c.turn, c.ordinal, c.tool_use_id, c.name, c.input, c.child, c.effect,
    coalesce(c.state, case when (select l.seq from holdfast.lease l where l.seq = c.job) is not null then 'running'
        else 'pending' end) as state,
    c.output, c.is_error,
    coalesce((select e.attempts from holdfast.ended e where e.seq = c.job),
        (select l.attempts from holdfast.lease l where l.seq = c.job),
        (select t.attempts from holdfast.later t where t.seq = c.job),
        (select r.attempts from holdfast.job j join holdfast.ready r on r.route = j.route and r.priority = j.priority
            and r.slot = j.slot and r.seq = j.seq where j.seq = c.job), 0) as attempts,
    c.created_at, c.finished_at,
    (select i.decision from holdfast.inquiry i where i.call = c.id and i.state = 'approved'
        and i.decision ->> 'input' is not null order by i.decided_at desc limit 1) as decision
from holdfast.tool_call c

-- name: calls_of :many
@call
where c.run = :run and (cast(:turn as integer) is null or c.turn = :turn)
order by c.turn, c.ordinal;

-- name: call_ids :many
-- A page of the calls of a run, behind one; `find_calls` reads them.
select id from holdfast.tool_call where run = :run and (turn, ordinal) > (:turn, :ordinal)
order by turn, ordinal limit :limit;

-- name: find_calls :many
@call
where c.id = any(cast(:ids as text[])) order by c.turn, c.ordinal;
