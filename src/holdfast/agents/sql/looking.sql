-- Looking at runs: whether they have ended, what they and those below them have used, and those in one state.

-- name: run_states :many
-- All that whoever waits for their end needs, look by look.
select id, tenant, state from holdfast.run where id = any(cast(:ids as text[]));

-- name: usage_below :many
-- Of each of these runs and of all that it started, however deep, with the summaries that it had made.
with recursive below (top, id) as (
    select r.id, r.id from holdfast.run r where r.id = any(cast(:ids as text[]))
    union all
    select b.top, r.id from below b join holdfast.run r on r.parent = b.id
)
select u.top as run, cast(sum(u.runs) as bigint) as runs, cast(sum(u.turns) as bigint) as turns,
    cast(sum(u.input_tokens) as bigint) as input_tokens, cast(sum(u.output_tokens) as bigint) as output_tokens,
    cast(sum(u.cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(u.cache_read_tokens) as bigint) as cache_read_tokens, cast(sum(u.cost_nano) as bigint) as cost_nano
from (
    select b.top, 1 as runs, r.turns, r.input_tokens, r.output_tokens, r.cache_write_tokens, r.cache_read_tokens,
        r.cost_nano
    from below b join holdfast.run r on r.id = b.id
    union all
    select b.top, 0, 0, c.input_tokens, c.output_tokens, c.cache_write_tokens, c.cache_read_tokens, c.cost_nano
    from below b join holdfast.compaction c on c.run = b.id
) as u group by u.top;

-- name: open_runs_in_state :many
-- Among the runs that have not ended, newest first. No index has their state, which changes too often for that.
select id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, previous_state, parent,
    call, root, depth, input, variables, metadata, options, turns, events, outcome, stop_reason, output, refusal,
    limited, error_type, error, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano,
    created_at, started_at, finalized_at
from holdfast.run_now
where finalized_at is null and state = :state
    and (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:parent as text) is null or parent = :parent)
    and (created_at, id) < (:before_at, :before)
order by created_at desc, id desc limit :limit;

-- name: ended_runs_in_state :many
-- Among the runs that failed or were cancelled: those have no outcome. Completed ones are in `list_runs`.
select id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, previous_state, parent,
    call, root, depth, input, variables, metadata, options, turns, events, outcome, stop_reason, output, refusal,
    limited, error_type, error, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano,
    created_at, started_at, finalized_at
from holdfast.run_now
where finalized_at is not null and outcome is null and state = :state
    and (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:parent as text) is null or parent = :parent)
    and (created_at, id) < (:before_at, :before)
order by created_at desc, id desc limit :limit;
