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
select s.job, s.outcome, s.error, s.started_at, s.ended_at,
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
