-- Reads runs: whether they have ended, and what they and the runs below them have used.

-- name: run_states :many
-- Everything that a caller which waits for the end of runs needs at each look.
select :columns from holdfast.run where id = any(cast(:ids as text[]));

-- name: usage_below :many
-- Of each of these runs and of all runs that it started, at any depth, including the summaries made for them.
-- SQLite keeps to the order of a cross join; otherwise it may begin with all runs.
with recursive below (top, id) as (
    select r.id, r.id from holdfast.run r where r.id = any(cast(:ids as text[]))
    union all
    select b.top, r.id from below b cross join holdfast.run r where r.parent = b.id
)
select u.top as run, cast(sum(u.runs) as bigint) as runs, cast(sum(u.turns) as bigint) as turns,
    cast(sum(u.input_tokens) as bigint) as input_tokens, cast(sum(u.output_tokens) as bigint) as output_tokens,
    cast(sum(u.cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(u.cache_read_tokens) as bigint) as cache_read_tokens, cast(sum(u.cost_nano) as bigint) as cost_nano
from (
    select b.top, 1 as runs, r.turns, r.input_tokens, r.output_tokens, r.cache_write_tokens, r.cache_read_tokens,
        r.cost_nano
    from below b cross join holdfast.run r where r.id = b.id
    union all
    select b.top, 0, 0, c.input_tokens, c.output_tokens, c.cache_write_tokens, c.cache_read_tokens, c.cost_nano
    from below b cross join holdfast.compaction c where c.run = b.id
) as u group by u.top;

-- name: jobs_below :many
-- The jobs of these runs and of their calls.
select r.id, r.job from holdfast.run r where r.id = any(cast(:ids as text[]))
union all
select c.id, c.job from holdfast.tool_call c where c.run = any(cast(:ids as text[])) and c.job is not null
limit :limit;

-- name: stretches :many
-- When workers had these jobs: the attempts that ended, and those under way, which have no outcome.
select s.job, s.outcome, s.error ->> 'type' as error_type, substr(s.error ->> 'message', 1, 1000) as message,
    s.started_at, s.ended_at,
    coalesce((select w.name || ':' || cast(w.pid as text) from holdfast.worker w where w.seq = s.worker),
        cast(s.worker as text)) as worker
from (
    select a.job, a.worker, a.outcome, a.error, a.started_at, a.ended_at
    from holdfast.attempt a where a.job = any(cast(:seqs as bigint[]))
    union all
    select e.seq, e.worker, e.outcome, case when e.outcome <> 'lost' and e.cancel_requested_at is null then e.error end,
        e.claimed_at, e.finished_at
    from holdfast.ended e where e.seq = any(cast(:seqs as bigint[])) and e.outcome is not null
    union all
    select l.seq, l.worker, null, null, l.claimed_at, null
    from holdfast.lease l where l.seq = any(cast(:seqs as bigint[]))
) as s order by s.started_at, s.job limit :limit;

-- name: run_before :one
-- When the run before this one in its session ended; no row for the first.
select r.finalized_at as at from holdfast.run r
where r.session = :session and (r.created_at, r.id) < (:created_at, cast(:id as text))
order by r.created_at desc, r.id desc limit 1;

-- part: short_run
-- A run, with a note in place of each value that is longer than `most` characters of JSON.
select id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, previous_state, parent, call,
    root, depth,
    case when length(cast(input as text)) <= :most then cast(input as text) else cast(:cut as text) end as input,
    case when length(cast(variables as text)) <= :most then cast(variables as text) else cast(:cut as text) end as variables,
    case when length(cast(metadata as text)) <= :most then cast(metadata as text) else cast(:cut as text) end as metadata,
    case when length(cast(options as text)) <= :most then cast(options as text) else cast(:cut as text) end as options,
    turns, events, outcome, stop_reason,
    case when length(cast(output as text)) > :most then cast(:cut as text) else cast(output as text) end as output,
    case when length(cast(refusal as text)) > :most then cast(:cut as text) else cast(refusal as text) end as refusal,
    limited, error_type, substr(error, 1, :most) as error, input_tokens, output_tokens, cache_write_tokens,
    cache_read_tokens, cost_nano, created_at, started_at, finalized_at, retry_of
from holdfast.run_now

-- name: short_family :many
-- A run and all runs that it started, at any depth.
@short_run
where root = :root order by created_at, id limit :limit;

-- name: short_runs :many
@short_run
where id = any(cast(:ids as text[]));

-- name: turns_below :many
-- When these runs asked their models, and for how much.
select run, number, model, state, attempts, unknown, request_id, stop_reason, null as usage, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_nano, null as error, started_at, ended_at
from holdfast.turn where run = any(cast(:ids as text[])) order by run, number limit :limit;

-- name: calls_below :many
-- When these runs called their tools, without what was given and returned.
select c.id, c.run, c.turn, c.ordinal, c.tool_use_id, c.name, 'null' as input, c.child, c.effect,
    coalesce(c.state, case when (select l.seq from holdfast.lease l where l.seq = c.job) is not null then 'running'
        else 'pending' end) as state,
    null as output, c.is_error, 0 as attempts, c.created_at, c.finished_at, null as decision
from holdfast.tool_call c where c.run = any(cast(:ids as text[])) order by c.run, c.turn, c.ordinal limit :limit;

-- name: asked_below :many
-- When these runs asked a person.
select run, call, kind, name, asked_at, decided_at, decided_by
from holdfast.inquiry where run = any(cast(:ids as text[])) order by run, asked_at, id limit :limit;

-- name: run_weight :one
-- About how many characters an export of a run has to read. SQLite keeps to the order of a cross join.
select cast(
    (select coalesce(sum(length(cast(e.data as text))), 0)
        from holdfast.run r cross join holdfast.run_event e where r.root = :root and e.run = r.id)
    + (select coalesce(sum(length(cast(c.input as text)) + coalesce(length(cast(c.output as text)), 0)), 0)
        from holdfast.run r cross join holdfast.tool_call c where r.root = :root and c.run = r.id)
    + (select coalesce(sum(coalesce(length(cast(b.body as text)), length(cast(l.body as text)))), 0)
        from holdfast.message m cross join holdfast.block b left join holdfast.blob l on l.hash = b.blob
        where m.session = :session and b.message = m.id)
    as bigint) as number;
