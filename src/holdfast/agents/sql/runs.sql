-- Runs and their turns. A run is a job: `job` is the job's number, and the run's id is the job's id.

-- name: add_runs :exec
insert into holdfast.run (id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, parent,
    call, root, depth, input, variables, metadata, options, deadline_at, created_at)
select r.id, j.seq, r.session, r.branch, r.ordinal, r.tenant, r.agent, r.agent_name, r.version, r.mode, 'pending',
    r.parent, r.call, r.root, r.depth, r.input, r.variables, r.metadata, r.options, holdfast.now_us() + r.deadline_us,
    holdfast.now_us()
from rows(:runs) as r (id text, session text, branch text, ordinal integer, tenant text, agent text, agent_name text,
    version integer, mode text, parent text, call text, root text, depth integer, input json, variables json,
    metadata jsonb, options json, deadline_us bigint)
join holdfast.job j on j.id = cast(r.id as uuid)
where true
on conflict do nothing;

-- name: load_run :one
-- What the worker that has its lease needs.
select r.id, r.job, r.session, r.branch, r.ordinal, r.tenant, r.agent, r.agent_name, r.version, r.mode, r.state,
    r.parent, r.call, r.root, r.depth, r.input, r.variables, r.options, r.container, r.prompted, r.turns, r.started_at,
    cast(r.cost_nano + coalesce((select sum(c.cost_nano) from holdfast.compaction c where c.run = r.id), 0) as bigint)
        as cost_nano,
    cast(r.input_tokens + r.output_tokens + r.cache_write_tokens + r.cache_read_tokens + coalesce((select
        sum(c.input_tokens + c.output_tokens + c.cache_write_tokens + c.cache_read_tokens)
        from holdfast.compaction c where c.run = r.id), 0) as bigint) as tokens,
    r.created_at, v.definition, case when exists (select 1 from holdfast.provider_lane) then 1 else 0 end as lanes,
    holdfast.now_us() as now, s.generation, r.interrupted, r.fallback, r.continued, r.deadline_at, r.forked_from,
    case when exists (select 1 from holdfast.steer i where i.run = r.id and i.turn is null) then 1 else 0 end as steered,
    case when exists (select 1 from holdfast.budget) then 1 else 0 end as budgets,
    (select t.input_tokens + t.cache_write_tokens + t.cache_read_tokens + t.output_tokens from holdfast.turn t
        where t.run = r.id and t.number = r.turns and t.generation = s.generation) as reported, a.tenant as owner
from holdfast.run r join holdfast.agent_version v on v.agent = r.agent and v.version = r.version
join holdfast.agent a on a.id = r.agent
join holdfast.session s on s.id = r.session
where r.job = :job;

-- name: load_runs :many
-- The same for many runs, for the job that brings what they wait for.
select r.id, r.job, r.session, r.branch, r.ordinal, r.tenant, r.agent, r.agent_name, r.version, r.mode, r.state,
    r.parent, r.call, r.root, r.depth, r.input, r.variables, r.options, r.container, r.prompted, r.turns, r.started_at,
    cast(r.cost_nano + coalesce((select sum(c.cost_nano) from holdfast.compaction c where c.run = r.id), 0) as bigint)
        as cost_nano,
    cast(r.input_tokens + r.output_tokens + r.cache_write_tokens + r.cache_read_tokens + coalesce((select
        sum(c.input_tokens + c.output_tokens + c.cache_write_tokens + c.cache_read_tokens)
        from holdfast.compaction c where c.run = r.id), 0) as bigint) as tokens,
    r.created_at, v.definition, case when exists (select 1 from holdfast.provider_lane) then 1 else 0 end as lanes,
    holdfast.now_us() as now, s.generation, r.interrupted, r.fallback, r.continued, r.deadline_at, r.forked_from,
    case when exists (select 1 from holdfast.steer i where i.run = r.id and i.turn is null) then 1 else 0 end as steered,
    case when exists (select 1 from holdfast.budget) then 1 else 0 end as budgets,
    (select t.input_tokens + t.cache_write_tokens + t.cache_read_tokens + t.output_tokens from holdfast.turn t
        where t.run = r.id and t.number = r.turns and t.generation = s.generation) as reported, a.tenant as owner
from holdfast.run r join holdfast.agent_version v on v.agent = r.agent and v.version = r.version
join holdfast.agent a on a.id = r.agent
join holdfast.session s on s.id = r.session
where r.job = any(cast(:jobs as bigint[]));

-- name: find_run :one
select :columns
from holdfast.run_now where id = :id;

-- name: find_runs :many
select :columns
from holdfast.run_now where id = any(cast(:ids as text[]));

-- name: runs_of_root :many
-- A run and all runs that it started, at any depth.
select :columns
from holdfast.run_now where root = :root order by created_at, id limit :limit;

-- name: mark_retry :exec
update holdfast.run set retry_of = :source where id = :run;

-- name: tree_usage :one
-- Of a run and all runs that it started, at any depth, including the summaries made for them.
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
-- What has ended is in the totals, compactions too. Open runs are found by an index for those below another run, and
-- one for the others.
select cast(coalesce(sum(u.runs), 0) as bigint) as runs, cast(coalesce(sum(u.turns), 0) as bigint) as turns,
    cast(coalesce(sum(u.input_tokens), 0) as bigint) as input_tokens,
    cast(coalesce(sum(u.output_tokens), 0) as bigint) as output_tokens,
    cast(coalesce(sum(u.cache_write_tokens), 0) as bigint) as cache_write_tokens,
    cast(coalesce(sum(u.cache_read_tokens), 0) as bigint) as cache_read_tokens,
    cast(coalesce(sum(u.cost_nano), 0) as bigint) as cost_nano
from (
    select runs, turns, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano
    from holdfast.session_total where session = :session
    union all
    select 1, turns, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano
    from holdfast.run where session = :session and parent is null and finalized_at is null
    union all
    select 1, turns, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano
    from holdfast.run where session = :session and parent is not null and finalized_at is null
) as u;

-- name: wrong_totals :many
-- Among the newest sessions, those whose totals are not the sum of their rows. One with very many runs is left out.
select w.id as session from (
    select s.id,
        coalesce((select t.runs + t.turns + t.input_tokens + t.output_tokens + t.cost_nano from holdfast.session_total t
            where t.session = s.id), 0) as said,
        coalesce((select sum(1 + r.turns + r.input_tokens + r.output_tokens + r.cost_nano) from holdfast.run r
            where r.session = s.id and r.finalized_at is not null), 0)
        + coalesce((select sum(c.input_tokens + c.output_tokens + c.cost_nano) from holdfast.compaction c
            where c.session = s.id), 0) as summed
    from (select k.id, k.runs from holdfast.session k order by k.created_at desc, k.id desc limit :look) as s
    where s.runs < :most
) as w where w.said <> w.summed order by w.id limit :limit;

-- name: run_ahead :one
-- A run of the same session that was accepted earlier and has not ended: it comes first.
select id, ordinal, state from holdfast.run
where session = :session and ordinal < :ordinal and parent is null
    and finalized_at is null
order by ordinal limit 1;

-- name: wake_next :many on postgres
-- For each session the first run that has not ended, if it is parked. A row that somebody is changing is skipped:
-- that caller looks at the session after us. Found by its number only: the index of channels would read all waiting
-- jobs.
with woken as (
    delete from holdfast.later where seq = any(array(
        select t.seq from holdfast.later t
        where t.seq = any(array(
                select (select r.job from holdfast.run r
                    where r.session = s.id and r.parent is null and r.finalized_at is null
                    order by r.ordinal limit 1)
                from rows(:sessions) as s (id text)))
            and coalesce(t.state, '') = 'waiting' and coalesce(t.channel, '') like 'holdfast:session %'
        for update skip locked))
    returning *
)
insert into holdfast.ready (@ready) select @ready(w) from woken w
returning seq, route;

-- name: wake_next :many on sqlite
-- Forked: SQLite has no CTE that changes rows. Both statements find the same rows, whatever their plans.
insert into holdfast.ready (@ready) select @ready(w) from holdfast.later w
where w.seq in (
        select (select r.job from holdfast.run r
            where r.session = s.id and r.parent is null and r.finalized_at is null
            order by r.ordinal, r.job limit 1)
        from rows(:sessions) as s (id text))
    and coalesce(w.state, '') = 'waiting' and coalesce(w.channel, '') like 'holdfast:session %';
delete from holdfast.later
where seq in (
        select (select r.job from holdfast.run r
            where r.session = s.id and r.parent is null and r.finalized_at is null
            order by r.ordinal, r.job limit 1)
        from rows(:sessions) as s (id text))
    and coalesce(state, '') = 'waiting' and coalesce(channel, '') like 'holdfast:session %'
returning seq, route;

-- name: move_run :exec
update holdfast.run set previous_state = case when state = :state then previous_state else state end, state = :state,
    progressed_at = holdfast.now_us()
where id = :id and finalized_at is null;

-- name: finish_runs :many
update holdfast.run set previous_state = run.state, state = e.state, outcome = e.outcome, output = e.output,
    refusal = e.refusal, limited = e.limited, error_type = e.error_type, error = e.error,
    finalized_at = holdfast.now_us(), progressed_at = holdfast.now_us()
from rows(:ends) as e (id text, state text, outcome text, output json, refusal json, limited text, error_type text,
    error text)
where run.id = e.id and run.finalized_at is null
returning run.id, run.session, run.branch, run.ordinal, run.state, run.previous_state, run.parent, run.call,
    run.agent_name, run.turns, run.prompted,
    (select count(*) from holdfast.turn t where t.run = run.id and t.state = 'calling') as calling,
    (select count(*) from holdfast.reservation v where v.run = run.id) as reserved,
    (select count(*) from holdfast.steer i where i.run = run.id and i.turn is null) as steered, run.agent;

-- name: abandon_calls :exec
-- Calls of runs that have ended since: nobody will read the answer, and nobody knows whether it is paid for.
update holdfast.turn set state = 'failed', unknown = unknown + 1, error = :error, ended_at = holdfast.now_us()
where run = any(cast(:runs as text[])) and state = 'calling';

-- name: held_runs :many
-- Those of these jobs, of runs and of calls of tools, whose end would write what somebody else has locked: the run, its turn
-- that is asked for, what it reserved, the totals of its session. A sweep leaves them to the next one. What is free is
-- locked, in the order in which everybody locks it.
with touched as materialized (
    select r.job as seq, r.id as run, r.session from holdfast.run r
    where r.job = any(cast(:jobs as bigint[])) and r.finalized_at is null
    union all
    select c.job, c.run, (select r.session from holdfast.run r where r.id = c.run) from holdfast.tool_call c
    where c.job = any(cast(:jobs as bigint[])) and c.state is null
), free_run as materialized (
    select r.id from holdfast.run r where r.id = any(array(select t.run from touched t)) order by r.id
    for update skip locked
), free_turn as materialized (
    select u.run, u.number from holdfast.turn u where u.run = any(array(select f.id from free_run f)) and u.state = 'calling'
    order by u.run, u.number for update skip locked
), free_use as materialized (
    select u.budget, u.period from holdfast.budget_use u
    where (u.budget, u.period) in (
        select v.budget, v.period from holdfast.reservation v where v.run = any(array(select f.id from free_run f)))
    order by u.budget, u.period for update skip locked
), free_total as materialized (
    select s.session from holdfast.session_total s where s.session = any(array(select t.session from touched t))
    order by s.session for update skip locked
)
select t.seq from touched t
where t.run not in (select f.id from free_run f)
    or exists (select 1 from holdfast.turn u where u.run = t.run and u.state = 'calling'
        and (u.run, u.number) not in (select f.run, f.number from free_turn f))
    or exists (select 1 from holdfast.reservation v where v.run = t.run
        and (v.budget, v.period) not in (select f.budget, f.period from free_use f))
    or exists (select 1 from holdfast.session_total s where s.session = t.session
        and s.session not in (select f.session from free_total f));

-- name: open_runs :many
-- Runs whose job has ended without ending them: by a cancel, a deadline, or the limit of rescues.
select r.id, r.session, r.branch, r.ordinal, r.agent_name, r.turns,
    (select e.state from holdfast.ended e where e.seq = r.job) as state,
    (select e.error from holdfast.ended e where e.seq = r.job) as error
from holdfast.run r where r.job = any(cast(:jobs as bigint[])) and r.finalized_at is null
order by r.job;

-- name: find_stuck :many
-- Runs that a worker holds and that have made no progress for too long. The time before the claim does not count.
-- Found through the leases, which are as many as slots; materialized, and on SQLite joined in this order, because
-- otherwise all runs might be read.
with held as materialized (
    select l.seq from holdfast.lease l where l.claimed_at < holdfast.now_us() - :timeout_us
)
select r.job as seq from held h cross join holdfast.run r
where r.job = h.seq and r.state = 'streaming' and r.progressed_at < holdfast.now_us() - :timeout_us
order by r.job limit :limit;

-- name: lapse :exec
-- Their leases end now; the sweep does the rest, and counts it as a rescue. The statement tests claim and progress
-- again: a run that was claimed again or has made progress since it was found keeps its lease.
update holdfast.lease set lease_until = holdfast.now_us()
where seq = any(cast(:seqs as bigint[])) and lease_until > holdfast.now_us()
    and claimed_at < holdfast.now_us() - :timeout_us
    and exists (select 1 from holdfast.run r where r.job = lease.seq and r.state = 'streaming'
        and r.progressed_at < holdfast.now_us() - :timeout_us);

-- name: find_turn :one
select :columns from holdfast.turn
where run = :run and number = :number;

-- name: begin_turn :one on postgres
-- The intent, stored before the call, and the token for everything that this attempt writes. If the turn begins
-- again, the result of the earlier call is unknown. Its time begins again if a closed lane kept it waiting. No row
-- is returned if this same attempt has begun it already and its answer was lost.
--
-- The order of locks, here and wherever both are written: a run, then its turns. The journal of an attempt that lost its
-- lease may write beside this, and holds the run when it comes to the turn.
with held as materialized (
    select r.id from holdfast.run r where r.id = :run for update
), begun as (
    insert into holdfast.turn (run, number, model, request_hash, fingerprint, state, mode, generation, epoch, token,
        started_at)
    values ((select h.id from held h), :number, :model, :request_hash, :fingerprint, :state, :mode, :generation, :epoch, :token,
        holdfast.now_us())
    on conflict (run, number) do update set model = excluded.model, request_hash = excluded.request_hash,
        fingerprint = excluded.fingerprint, attempts = turn.attempts + 1,
        unknown = turn.unknown + case when turn.state in ('calling', 'batched') then 1 else 0 end, state = excluded.state,
        mode = excluded.mode, generation = excluded.generation, epoch = excluded.epoch, token = excluded.token,
        request_id = null, started_at = case when turn.error ->> 'lane' is null then turn.started_at
            else excluded.started_at end
    where turn.state <> 'completed' and (turn.epoch, turn.token) <> (excluded.epoch, excluded.token)
    returning :columns
), moved as (
    update holdfast.run r set previous_state = case when r.state = :next then r.previous_state else r.state end,
        state = :next, prompted = 1, generation = :generation, epoch = b.epoch, token = b.token,
        started_at = coalesce(r.started_at, holdfast.now_us()), progressed_at = holdfast.now_us()
    from begun b where r.id = b.run
)
select :columns from begun;

-- name: begin_turn :one on sqlite
-- Forked: SQLite has no CTE that changes rows. The run first: a repeated update changes nothing there.
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
returning :columns;

-- name: note_life :many
-- For all runs of a worker at once, locked in the order of their ids. Returns which of them somebody has
-- interrupted, in case the hint was lost.
with held as materialized (
    select r.id from rows(:living) as l (run text, epoch bigint, token bigint)
    join holdfast.run r on r.id = l.run and r.epoch = l.epoch and r.token = l.token
    where r.state = 'streaming' order by r.id for update of r
)
update holdfast.run set progressed_at = holdfast.now_us() from held h where run.id = h.id
returning run.id, case when run.interrupted is null then 0 else 1 end as interrupted;

-- name: note_request :exec
-- For all runs of a worker at once, in the same order.
with held as materialized (
    select t.run, t.number, q.request_id
    from rows(:requests) as q (run text, number integer, epoch bigint, token bigint, request_id text)
    join holdfast.turn t on t.run = q.run and t.number = q.number and t.epoch = q.epoch and t.token = q.token
    where t.state = 'calling' order by t.run, t.number for update of t
)
update holdfast.turn set request_id = h.request_id from held h where turn.run = h.run and turn.number = h.number;

-- name: end_turns :many on postgres
-- The statement that stores the turns also adds to the totals of the runs, so these are always the sum of the turns.
-- If a turn is not returned, an earlier call whose answer was lost has stored it. All runs are locked before the first of
-- their turns: see `begin_turn`.
with answered as materialized (
    select * from rows(:answers) as a (run text, number integer, next text, request_id text, stop_reason text, usage json,
        model text, container text, continued integer, input_tokens bigint, output_tokens bigint,
        cache_write_tokens bigint, cache_read_tokens bigint, cost_nano bigint)
), held as materialized (
    select r.id from holdfast.run r where r.id in (select a.run from answered a) order by r.id for update
), ended as (
    update holdfast.turn t set state = 'completed', request_id = coalesce(a.request_id, t.request_id),
        stop_reason = a.stop_reason, usage = a.usage, model = a.model, input_tokens = a.input_tokens,
        output_tokens = a.output_tokens, cache_write_tokens = a.cache_write_tokens,
        cache_read_tokens = a.cache_read_tokens, cost_nano = a.cost_nano, error = null, ended_at = holdfast.now_us()
    from answered a where t.run = a.run and t.number = a.number and t.state <> 'completed'
        and (select count(*) from held) > 0
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
-- Forked: SQLite has no CTE that changes rows. The runs first, while their turns are open.
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
-- `unknown` is 1 if the provider may have done the work and nobody got the answer; `counted` is 0 if waiting helps. The
-- run is locked before its turn: see `begin_turn`.
with held as materialized (
    select r.id from holdfast.run r where r.id = :run for update
)
update holdfast.turn set state = 'failed', error = :error, unknown = unknown + :unknown,
    failures = failures + :counted, ended_at = holdfast.now_us()
where run = (select h.id from held h) and number = :number and epoch = :epoch and token = :token and state = 'calling'
returning failures, attempts, holdfast.now_us() - started_at as age_us;

-- name: list_turns :many
select :columns
from holdfast.turn where run = :run and number > :after order by number limit :limit;
