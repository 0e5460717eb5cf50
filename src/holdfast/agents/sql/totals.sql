-- Totals: the usage of turns and compactions that are removed. The statement that removes them adds it, so each
-- counts once.

-- name: keep_turns :exec
-- A completed turn has ended. The condition does not say so: a plan might then begin with all turns that have ended.
insert into holdfast.usage_total (day, tenant, agent, model, mode, turns, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_nano)
select t.ended_at / 86400000000 as day, r.tenant, r.agent_name, t.model, t.mode, count(*), sum(t.input_tokens),
    sum(t.output_tokens), sum(t.cache_write_tokens), sum(t.cache_read_tokens), sum(t.cost_nano)
from holdfast.run r join holdfast.turn t on t.run = r.id
where r.session = :session and t.state = 'completed'
group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5
on conflict (day, tenant, agent, model, mode) do update set turns = usage_total.turns + excluded.turns,
    input_tokens = usage_total.input_tokens + excluded.input_tokens,
    output_tokens = usage_total.output_tokens + excluded.output_tokens,
    cache_write_tokens = usage_total.cache_write_tokens + excluded.cache_write_tokens,
    cache_read_tokens = usage_total.cache_read_tokens + excluded.cache_read_tokens,
    cost_nano = usage_total.cost_nano + excluded.cost_nano;

-- name: keep_compactions :exec
insert into holdfast.usage_total (day, tenant, agent, model, mode, turns, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_nano)
select c.ended_at / 86400000000 as day, :tenant, '(compaction)', c.model, 'streaming', 0, sum(c.input_tokens),
    sum(c.output_tokens), sum(c.cache_write_tokens), sum(c.cache_read_tokens), sum(c.cost_nano)
from holdfast.compaction c
where c.session = :session and c.ended_at is not null
group by 1, c.model order by 1, c.model
on conflict (day, tenant, agent, model, mode) do update set turns = usage_total.turns + excluded.turns,
    input_tokens = usage_total.input_tokens + excluded.input_tokens,
    output_tokens = usage_total.output_tokens + excluded.output_tokens,
    cache_write_tokens = usage_total.cache_write_tokens + excluded.cache_write_tokens,
    cache_read_tokens = usage_total.cache_read_tokens + excluded.cache_read_tokens,
    cost_nano = usage_total.cost_nano + excluded.cost_nano;

-- name: forget_trees_in :exec
-- The rows under which a session's runs reserved what they and the runs below them may cost.
delete from holdfast.budget_use
where period = 0 and budget in (select 'tree ' || r.id from holdfast.run r
    where r.session = :session);

-- name: totals_of :many
-- The totals of one tenant, and which agents they name.
select :columns
from holdfast.usage_total where tenant = :tenant and agent <> :erased order by day, agent, model, mode limit :limit;

-- name: add_total :exec
insert into holdfast.usage_total (day, tenant, agent, model, mode, turns, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_nano)
values (:day, :tenant, :agent, :model, :mode, :turns, :input_tokens, :output_tokens, :cache_write_tokens,
    :cache_read_tokens, :cost_nano)
on conflict (day, tenant, agent, model, mode) do update set turns = usage_total.turns + excluded.turns,
    input_tokens = usage_total.input_tokens + excluded.input_tokens,
    output_tokens = usage_total.output_tokens + excluded.output_tokens,
    cache_write_tokens = usage_total.cache_write_tokens + excluded.cache_write_tokens,
    cache_read_tokens = usage_total.cache_read_tokens + excluded.cache_read_tokens,
    cost_nano = usage_total.cost_nano + excluded.cost_nano;

-- name: delete_total :exec
delete from holdfast.usage_total
where day = :day and tenant = :tenant and agent = :agent and model = :model and mode = :mode;
