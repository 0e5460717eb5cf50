-- Runs and their turns. A run is a job: `job` is its number, and its id is the job's.

-- name: add_runs :exec on postgres
insert into holdfast.run (id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, parent,
    call, root, depth, input, variables, metadata, options, deadline_at, created_at)
select r.id, j.seq, r.session, r.branch, r.ordinal, r.tenant, r.agent, r.agent_name, r.version, r.mode, 'pending',
    r.parent, r.call, r.root, r.depth, r.input, r.variables, r.metadata, r.options, holdfast.now_us() + r.deadline_us,
    holdfast.now_us()
from unnest(
    cast(:runs.id as text[]), cast(:runs.session as text[]), cast(:runs.branch as text[]),
    cast(:runs.ordinal as integer[]), cast(:runs.tenant as text[]), cast(:runs.agent as text[]),
    cast(:runs.agent_name as text[]), cast(:runs.version as integer[]), cast(:runs.mode as text[]),
    cast(:runs.parent as text[]), cast(:runs.call as text[]), cast(:runs.root as text[]),
    cast(:runs.depth as integer[]), cast(:runs.input as json[]), cast(:runs.variables as json[]),
    cast(:runs.metadata as jsonb[]), cast(:runs.options as json[]), cast(:runs.deadline_us as bigint[])
) as r (id, session, branch, ordinal, tenant, agent, agent_name, version, mode, parent, call, root, depth, input,
    variables, metadata, options, deadline_us)
join holdfast.job j on j.id = cast(r.id as uuid)
on conflict do nothing;

-- name: add_runs :exec on sqlite
-- Forked for the list of records.
insert into holdfast.run (id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, parent,
    call, root, depth, input, variables, metadata, options, deadline_at, created_at)
select value ->> :runs.id, j.seq, value ->> :runs.session, value ->> :runs.branch, value ->> :runs.ordinal,
    value ->> :runs.tenant, value ->> :runs.agent, value ->> :runs.agent_name, value ->> :runs.version,
    value ->> :runs.mode, 'pending', value ->> :runs.parent, value ->> :runs.call, value ->> :runs.root,
    value ->> :runs.depth, value ->> :runs.input, value ->> :runs.variables, value ->> :runs.metadata,
    value ->> :runs.options, holdfast.now_us() + (value ->> :runs.deadline_us), holdfast.now_us()
from json_each(:runs) cross join holdfast.job j on j.id = value ->> :runs.id
where true
on conflict do nothing;

-- name: load_run :one
-- As the worker that has its lease needs it.
select r.id, r.job, r.session, r.branch, r.ordinal, r.tenant, r.agent, r.agent_name, r.version, r.mode, r.state,
    r.parent, r.call, r.root, r.depth, r.input, r.variables, r.options, r.container, r.prompted, r.turns, r.started_at,
    cast(r.cost_nano + coalesce((select sum(c.cost_nano) from holdfast.compaction c where c.run = r.id), 0) as bigint)
        as cost_nano,
    cast(r.input_tokens + r.output_tokens + r.cache_write_tokens + r.cache_read_tokens + coalesce((select
        sum(c.input_tokens + c.output_tokens + c.cache_write_tokens + c.cache_read_tokens)
        from holdfast.compaction c where c.run = r.id), 0) as bigint) as tokens,
    r.created_at, v.definition, case when exists (select 1 from holdfast.provider_lane p
        where p.person = 1 or p.closed_until > holdfast.now_us()) then 1 else 0 end as lanes,
    holdfast.now_us() as now, s.generation, r.interrupted, r.fallback, r.continued, r.deadline_at, r.forked_from,
    case when exists (select 1 from holdfast.steer i where i.run = r.id and i.turn is null) then 1 else 0 end as steered,
    case when exists (select 1 from holdfast.budget) then 1 else 0 end as budgets,
    (select t.input_tokens + t.cache_write_tokens + t.cache_read_tokens + t.output_tokens from holdfast.turn t
        where t.run = r.id and t.number = r.turns and t.generation = s.generation) as reported
from holdfast.run r join holdfast.agent_version v on v.agent = r.agent and v.version = r.version
join holdfast.session s on s.id = r.session
where r.job = :job;

-- name: load_runs :many
-- The same of many, for whoever brings what they wait for.
select r.id, r.job, r.session, r.branch, r.ordinal, r.tenant, r.agent, r.agent_name, r.version, r.mode, r.state,
    r.parent, r.call, r.root, r.depth, r.input, r.variables, r.options, r.container, r.prompted, r.turns, r.started_at,
    cast(r.cost_nano + coalesce((select sum(c.cost_nano) from holdfast.compaction c where c.run = r.id), 0) as bigint)
        as cost_nano,
    cast(r.input_tokens + r.output_tokens + r.cache_write_tokens + r.cache_read_tokens + coalesce((select
        sum(c.input_tokens + c.output_tokens + c.cache_write_tokens + c.cache_read_tokens)
        from holdfast.compaction c where c.run = r.id), 0) as bigint) as tokens,
    r.created_at, v.definition, case when exists (select 1 from holdfast.provider_lane p
        where p.person = 1 or p.closed_until > holdfast.now_us()) then 1 else 0 end as lanes,
    holdfast.now_us() as now, s.generation, r.interrupted, r.fallback, r.continued, r.deadline_at, r.forked_from,
    case when exists (select 1 from holdfast.steer i where i.run = r.id and i.turn is null) then 1 else 0 end as steered,
    case when exists (select 1 from holdfast.budget) then 1 else 0 end as budgets,
    (select t.input_tokens + t.cache_write_tokens + t.cache_read_tokens + t.output_tokens from holdfast.turn t
        where t.run = r.id and t.number = r.turns and t.generation = s.generation) as reported
from holdfast.run r join holdfast.agent_version v on v.agent = r.agent and v.version = r.version
join holdfast.session s on s.id = r.session
where r.job = any(cast(:jobs as bigint[]));

-- name: find_run :one
select id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, previous_state, parent,
    call, root, depth, input, variables, metadata, options, turns, events, outcome, stop_reason, output, refusal,
    limited, error_type, error, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano,
    created_at, started_at, finalized_at
from holdfast.run_now where id = :id;

-- name: find_runs :many
select id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, previous_state, parent,
    call, root, depth, input, variables, metadata, options, turns, events, outcome, stop_reason, output, refusal,
    limited, error_type, error, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano,
    created_at, started_at, finalized_at
from holdfast.run_now where id = any(cast(:ids as text[]));

-- name: list_runs :many
select id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, previous_state, parent,
    call, root, depth, input, variables, metadata, options, turns, events, outcome, stop_reason, output, refusal,
    limited, error_type, error, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano,
    created_at, started_at, finalized_at
from holdfast.run_now
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (created_at, id) < (:before_at, :before)
order by created_at desc, id desc limit :limit;

-- name: tree_usage :one
-- Of a run and all that it started, however deep, with the summaries that it had made.
select cast(sum(u.runs) as bigint) as runs, cast(sum(u.turns) as bigint) as turns,
    cast(sum(u.input_tokens) as bigint) as input_tokens, cast(sum(u.output_tokens) as bigint) as output_tokens,
    cast(sum(u.cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(u.cache_read_tokens) as bigint) as cache_read_tokens, cast(sum(u.cost_nano) as bigint) as cost_nano
from (
    select 1 as runs, r.turns, r.input_tokens, r.output_tokens, r.cache_write_tokens, r.cache_read_tokens, r.cost_nano
    from holdfast.run r where r.root = :root
    union all
    select 0, 0, c.input_tokens, c.output_tokens, c.cache_write_tokens, c.cache_read_tokens, c.cost_nano
    from holdfast.run r join holdfast.compaction c on c.run = r.id where r.root = :root
) as u;

-- name: session_usage :one
select count(*) as runs, cast(coalesce(sum(turns), 0) as bigint) as turns, cast(coalesce(sum(input_tokens), 0) as bigint) as input_tokens,
    cast(coalesce(sum(output_tokens), 0) as bigint) as output_tokens, cast(coalesce(sum(cache_write_tokens), 0) as bigint) as cache_write_tokens,
    cast(coalesce(sum(cache_read_tokens), 0) as bigint) as cache_read_tokens, cast(coalesce(sum(cost_nano), 0) as bigint) as cost_nano
from holdfast.run where session = :session;

-- name: run_ahead :one
-- A run of the same session that was accepted earlier and has not ended: it comes first.
select id, ordinal, state from holdfast.run
where session = :session and ordinal < :ordinal and parent is null
    and finalized_at is null
order by ordinal limit 1;

-- name: wake_next :many on postgres
-- Of each session the first of those that still wait for their turn, if it waits in the store. One that somebody is
-- changing right now is skipped: whoever that is looks at the session after us. Found by its number alone: by the index
-- of channels it would read whatever waits.
update holdfast.job set state = 'pending', channel = null, due_at = null
where seq = any(array(
    select j.seq from holdfast.job j
    where j.seq = any(array(
            select (select r.job from holdfast.run r
                where r.session = s.id and r.parent is null and r.finalized_at is null
                order by r.ordinal limit 1)
            from unnest(cast(:sessions as text[])) as s (id)))
        and coalesce(j.state, '') = 'waiting' and coalesce(j.channel, '') like 'holdfast:session %'
    for update skip locked))
returning seq, route;

-- name: wake_next :many on sqlite
-- No row locks to skip, no lateral.
update holdfast.job set state = 'pending', channel = null, due_at = null
where seq in (
    select j.seq from holdfast.session s join holdfast.job j on j.seq = (select r.job from holdfast.run r
        where r.session = s.id and r.parent is null and r.finalized_at is null
        order by r.ordinal limit 1)
    where s.id = any(:sessions) and j.state = 'waiting' and j.channel = 'holdfast:session ' || s.id)
returning seq, route;

-- name: move_run :exec
update holdfast.run set previous_state = case when state = :state then previous_state else state end, state = :state,
    progressed_at = holdfast.now_us()
where id = :id and finalized_at is null;

-- name: finish_runs :many on postgres
update holdfast.run r set previous_state = r.state, state = e.state, outcome = e.outcome, output = e.output,
    refusal = e.refusal, limited = e.limited, error_type = e.error_type, error = e.error,
    finalized_at = holdfast.now_us(), progressed_at = holdfast.now_us()
from unnest(
    cast(:ends.id as text[]), cast(:ends.state as text[]), cast(:ends.outcome as text[]), cast(:ends.output as json[]),
    cast(:ends.refusal as json[]), cast(:ends.limited as text[]), cast(:ends.error_type as text[]),
    cast(:ends.error as text[])
) as e (id, state, outcome, output, refusal, limited, error_type, error)
where r.id = e.id and r.finalized_at is null
returning r.id, r.session, r.branch, r.ordinal, r.state, r.previous_state, r.parent, r.call, r.agent_name, r.turns,
    r.prompted, (select count(*) from holdfast.turn t where t.run = r.id and t.state = 'calling') as calling,
    (select count(*) from holdfast.reservation v where v.run = r.id) as reserved,
    (select count(*) from holdfast.steer i where i.run = r.id and i.turn is null) as steered;

-- name: finish_runs :many on sqlite
-- Forked for the list of records.
update holdfast.run as r set previous_state = r.state, state = value ->> :ends.state, outcome = value ->> :ends.outcome,
    output = value ->> :ends.output, refusal = value ->> :ends.refusal, limited = value ->> :ends.limited,
    error_type = value ->> :ends.error_type, error = value ->> :ends.error,
    finalized_at = holdfast.now_us(), progressed_at = holdfast.now_us()
from json_each(:ends)
where r.id = value ->> :ends.id and r.finalized_at is null
returning id, session, branch, ordinal, state, previous_state, parent, call, agent_name, turns, prompted,
    (select count(*) from (select c.run as called, c.state as how from holdfast.turn c) as t
        where t.called = id and t.how = 'calling') as calling,
    (select count(*) from holdfast.reservation v where v.run = id) as reserved,
    (select count(*) from (select s.run as steered, s.turn from holdfast.steer s) as i
        where i.steered = id and i.turn is null) as steered;

-- name: abandon_calls :exec
-- Of runs that have ended meanwhile: nobody will hear the answer, and nobody knows whether it is paid for.
update holdfast.turn set state = 'failed', unknown = unknown + 1, error = :error, ended_at = holdfast.now_us()
where run = any(cast(:runs as text[])) and state = 'calling';

-- name: open_runs :many
-- Runs whose job has ended without their saying so: by a cancel, a deadline, or the limit of rescues.
select r.id, r.session, r.branch, r.ordinal, r.agent_name, r.turns, j.state, j.error
from holdfast.run r join holdfast.job j on j.seq = r.job
where r.job = any(cast(:jobs as bigint[])) and r.finalized_at is null
order by r.job;

-- name: find_stuck :many
-- Held by a worker, and without progress for too long. What it waited before that worker took it is not counted. By way
-- of the running jobs, of which there are as many as slots; materialized, or all runs might be read in their order.
with held as materialized (
    select j.seq from holdfast.job j where j.state = 'running' and j.claimed_at < holdfast.now_us() - :timeout_us
)
select r.job as seq from held h join holdfast.run r on r.job = h.seq
where r.state = 'streaming' and r.progressed_at < holdfast.now_us() - :timeout_us
order by r.job limit :limit;

-- name: lapse :exec
-- Their leases end now; the sweep does the rest, and counts it as a rescue. Claim and progress are tested again in the
-- statement that changes the row: a run that was claimed anew or has got on since it was found keeps its lease.
update holdfast.job set lease_until = holdfast.now_us()
where seq = any(cast(:seqs as bigint[])) and state = 'running' and lease_until > holdfast.now_us()
    and claimed_at < holdfast.now_us() - :timeout_us
    and exists (select 1 from holdfast.run r where r.job = job.seq and r.state = 'streaming'
        and r.progressed_at < holdfast.now_us() - :timeout_us);

-- name: find_turn :one
select run, number, model, state, attempts, unknown, failures, epoch, token, stop_reason from holdfast.turn
where run = :run and number = :number;

-- name: begin_turn :one on postgres
-- The intent, before the call, and the token that everything this attempt writes will carry. Begun again, what became
-- of the call before is not known; its patience begins anew where a closed lane kept it waiting. No row: this very
-- attempt has begun it already, and its answer was lost.
with begun as (
    insert into holdfast.turn (run, number, model, request_hash, fingerprint, state, mode, generation, epoch, token,
        started_at)
    values (:run, :number, :model, :request_hash, :fingerprint, :state, :mode, :generation, :epoch, :token,
        holdfast.now_us())
    on conflict (run, number) do update set model = excluded.model, request_hash = excluded.request_hash,
        fingerprint = excluded.fingerprint, attempts = turn.attempts + 1,
        unknown = turn.unknown + case when turn.state in ('calling', 'batched') then 1 else 0 end, state = excluded.state,
        mode = excluded.mode, generation = excluded.generation, epoch = excluded.epoch, token = excluded.token,
        request_id = null, started_at = case when turn.error ->> 'lane' is null then turn.started_at
            else excluded.started_at end
    where turn.state <> 'completed' and (turn.epoch, turn.token) <> (excluded.epoch, excluded.token)
    returning run, number, model, state, attempts, unknown, failures, epoch, token, stop_reason
), moved as (
    update holdfast.run r set previous_state = case when r.state = :next then r.previous_state else r.state end,
        state = :next, prompted = 1, generation = :generation, epoch = b.epoch, token = b.token,
        started_at = coalesce(r.started_at, holdfast.now_us()), progressed_at = holdfast.now_us()
    from begun b where r.id = b.run
)
select run, number, model, state, attempts, unknown, failures, epoch, token, stop_reason from begun;

-- name: begin_turn :one on sqlite
-- No data-modifying CTE here: the run first, where doing it again changes nothing.
update holdfast.run set previous_state = case when state = :next then previous_state else state end,
    state = :next, prompted = 1, generation = :generation, epoch = :epoch, token = :token,
    started_at = coalesce(started_at, holdfast.now_us()), progressed_at = holdfast.now_us()
where id = :run;
insert into holdfast.turn (run, number, model, request_hash, fingerprint, state, mode, generation, epoch, token,
    started_at)
values (:run, :number, :model, :request_hash, :fingerprint, :state, :mode, :generation, :epoch, :token,
    holdfast.now_us())
on conflict (run, number) do update set model = excluded.model, request_hash = excluded.request_hash,
    fingerprint = excluded.fingerprint, attempts = turn.attempts + 1,
    unknown = turn.unknown + case when turn.state in ('calling', 'batched') then 1 else 0 end, state = excluded.state,
    mode = excluded.mode, generation = excluded.generation, epoch = excluded.epoch, token = excluded.token,
    request_id = null, started_at = case when turn.error ->> 'lane' is null then turn.started_at
        else excluded.started_at end
where turn.state <> 'completed' and (turn.epoch, turn.token) <> (excluded.epoch, excluded.token)
returning run, number, model, state, attempts, unknown, failures, epoch, token, stop_reason;

-- name: note_life :many on postgres
-- Of all runs of a worker at once, locked in the order of their ids. Says which of them somebody has interrupted, should
-- the hint have been lost.
with held as materialized (
    select r.id from holdfast.run r
    join unnest(cast(:living.run as text[]), cast(:living.epoch as bigint[]), cast(:living.token as bigint[]))
        as l (run, epoch, token) on r.id = l.run and r.epoch = l.epoch and r.token = l.token
    where r.state = 'streaming' order by r.id for update of r
)
update holdfast.run r set progressed_at = holdfast.now_us() from held h where r.id = h.id
returning r.id, case when r.interrupted is null then 0 else 1 end as interrupted;

-- name: note_life :many on sqlite
-- Forked for the list of records.
update holdfast.run as r set progressed_at = holdfast.now_us() from json_each(:living)
where r.id = value ->> :living.run and r.epoch = value ->> :living.epoch and r.token = value ->> :living.token
    and r.state = 'streaming'
returning id, case when interrupted is null then 0 else 1 end as interrupted;

-- name: note_request :exec on postgres
-- Of all runs of a worker at once, in the same order.
with held as materialized (
    select t.run, t.number, q.request_id from holdfast.turn t
    join unnest(cast(:requests.run as text[]), cast(:requests.number as integer[]), cast(:requests.epoch as bigint[]),
        cast(:requests.token as bigint[]), cast(:requests.request_id as text[]))
        as q (run, number, epoch, token, request_id)
        on t.run = q.run and t.number = q.number and t.epoch = q.epoch and t.token = q.token
    where t.state = 'calling' order by t.run, t.number for update of t
)
update holdfast.turn t set request_id = h.request_id from held h where t.run = h.run and t.number = h.number;

-- name: note_request :exec on sqlite
-- Forked for the list of records.
update holdfast.turn as t set request_id = value ->> :requests.request_id from json_each(:requests)
where t.run = value ->> :requests.run and t.number = value ->> :requests.number
    and t.epoch = value ->> :requests.epoch and t.token = value ->> :requests.token and t.state = 'calling';

-- name: end_turns :many on postgres
-- The runs' totals are increased where the turns are stored: they are always the sum of the turns. One that is not
-- returned has been stored by an earlier call whose answer was lost.
with answered as materialized (
    select * from unnest(
        cast(:answers.run as text[]), cast(:answers.number as integer[]), cast(:answers.next as text[]),
        cast(:answers.request_id as text[]), cast(:answers.stop_reason as text[]), cast(:answers.usage as json[]),
        cast(:answers.model as text[]), cast(:answers.container as text[]), cast(:answers.continued as integer[]),
        cast(:answers.input_tokens as bigint[]), cast(:answers.output_tokens as bigint[]),
        cast(:answers.cache_write_tokens as bigint[]), cast(:answers.cache_read_tokens as bigint[]),
        cast(:answers.cost_nano as bigint[])
    ) as a (run, number, next, request_id, stop_reason, usage, model, container, continued, input_tokens,
        output_tokens, cache_write_tokens, cache_read_tokens, cost_nano)
), ended as (
    update holdfast.turn t set state = 'completed', request_id = coalesce(a.request_id, t.request_id),
        stop_reason = a.stop_reason, usage = a.usage, model = a.model, input_tokens = a.input_tokens,
        output_tokens = a.output_tokens, cache_write_tokens = a.cache_write_tokens,
        cache_read_tokens = a.cache_read_tokens, cost_nano = a.cost_nano, error = null, ended_at = holdfast.now_us()
    from answered a where t.run = a.run and t.number = a.number and t.state <> 'completed'
    returning a.*
), counted as (
    update holdfast.run r set turns = e.number, stop_reason = e.stop_reason,
        previous_state = case when r.finalized_at is null then r.state else r.previous_state end,
        state = case when r.finalized_at is null then e.next else r.state end,
        container = coalesce(e.container, r.container), continued = r.continued + e.continued,
        input_tokens = r.input_tokens + e.input_tokens, output_tokens = r.output_tokens + e.output_tokens,
        cache_write_tokens = r.cache_write_tokens + e.cache_write_tokens,
        cache_read_tokens = r.cache_read_tokens + e.cache_read_tokens, cost_nano = r.cost_nano + e.cost_nano,
        progressed_at = holdfast.now_us()
    from ended e where r.id = e.run
)
select run, number from ended;

-- name: end_turns :many on sqlite
-- No data-modifying CTE here: the runs first, as long as their turns are open.
update holdfast.run as r set turns = value ->> :answers.number,
    previous_state = case when r.finalized_at is null then r.state else r.previous_state end,
    state = case when r.finalized_at is null then value ->> :answers.next else r.state end, stop_reason = value ->> :answers.stop_reason,
    container = coalesce(value ->> :answers.container, r.container),
    continued = r.continued + (value ->> :answers.continued),
    input_tokens = r.input_tokens + (value ->> :answers.input_tokens),
    output_tokens = r.output_tokens + (value ->> :answers.output_tokens),
    cache_write_tokens = r.cache_write_tokens + (value ->> :answers.cache_write_tokens),
    cache_read_tokens = r.cache_read_tokens + (value ->> :answers.cache_read_tokens),
    cost_nano = r.cost_nano + (value ->> :answers.cost_nano), progressed_at = holdfast.now_us()
from json_each(:answers)
where r.id = value ->> :answers.run and exists (select 1 from holdfast.turn t
    where t.run = r.id and t.number = value ->> :answers.number and t.state <> 'completed');
update holdfast.turn as t set state = 'completed', request_id = coalesce(value ->> :answers.request_id, t.request_id),
    stop_reason = value ->> :answers.stop_reason, usage = value ->> :answers.usage, model = value ->> :answers.model,
    input_tokens = value ->> :answers.input_tokens, output_tokens = value ->> :answers.output_tokens,
    cache_write_tokens = value ->> :answers.cache_write_tokens,
    cache_read_tokens = value ->> :answers.cache_read_tokens, cost_nano = value ->> :answers.cost_nano, error = null,
    ended_at = holdfast.now_us()
from json_each(:answers)
where t.run = value ->> :answers.run and t.number = value ->> :answers.number and t.state <> 'completed'
returning run, number;

-- name: fail_turn :one
-- `unknown` is 1 where the provider may have done the work and nobody heard of it; `counted` is 0 where waiting helps.
update holdfast.turn set state = 'failed', error = :error, unknown = unknown + :unknown,
    failures = failures + :counted, ended_at = holdfast.now_us()
where run = :run and number = :number and epoch = :epoch and token = :token and state = 'calling'
returning failures, attempts, holdfast.now_us() - started_at as age_us;

-- name: list_turns :many
select run, number, model, state, attempts, unknown, request_id, stop_reason, usage, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_nano, error, started_at, ended_at
from holdfast.turn where run = :run and number > :after order by number limit :limit;
