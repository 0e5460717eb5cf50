-- Reads runs: whether they have ended, and what they and the runs below them have used.

-- name: run_states :many
-- Everything that a caller which waits for the end of runs needs at each look.
select :columns from holdfast.run where id = any(cast(:ids as text[]));

-- name: usage_below :many
-- Of each of these runs and of all runs that it started, at any depth, including the summaries made for them.
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
