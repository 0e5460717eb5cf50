-- Budgets: what may be spent. A call is reserved before it is made and settled after it.

-- name: set_budget :one
insert into holdfast.budget (id, scope, subject, period_us, limit_nano, policy, updated_at)
values (:id, :scope, :subject, :period_us, :limit_nano, :policy, holdfast.now_us())
on conflict (scope, subject, period_us) do update set limit_nano = excluded.limit_nano, policy = excluded.policy,
    updated_at = excluded.updated_at
returning id, scope, subject, period_us, limit_nano, policy;

-- name: delete_budget :one
delete from holdfast.budget where id = :id returning id, scope, subject, period_us, limit_nano, policy;

-- name: delete_uses :exec
delete from holdfast.budget_use where budget = :id;

-- name: delete_reservations :exec
delete from holdfast.reservation where budget = :id;

-- name: list_budgets :many
-- With what is spent and reserved of them now.
select b.id, b.scope, b.subject, b.period_us, b.limit_nano, b.policy, coalesce(u.spent_nano, 0) as spent_nano,
    coalesce(u.reserved_nano, 0) as reserved_nano
from holdfast.budget b left join holdfast.budget_use u on u.budget = b.id
    and u.period = case when b.period_us = 0 then 0 else holdfast.now_us() / b.period_us end
where (cast(:scope as text) is null or b.scope = :scope) and (cast(:subject as text) is null or b.subject = :subject)
order by b.scope, b.subject, b.period_us;

-- name: open_uses :many
-- The budgets that a run is under, each with its use in this period, locked in one order until the call is reserved.
insert into holdfast.budget_use (budget, period, spent_nano, reserved_nano)
select b.id, case when b.period_us = 0 then 0 else holdfast.now_us() / b.period_us end, 0, 0
from holdfast.budget b
where (b.scope = 'session' and b.subject = :session) or (b.scope = 'tenant' and b.subject = :tenant)
    or b.scope = 'everybody'
order by b.id
on conflict (budget, period) do update set spent_nano = budget_use.spent_nano
returning budget, period, spent_nano, reserved_nano;

-- name: budgets_of :many
select b.id, b.scope, b.subject, b.period_us, b.limit_nano, b.policy from holdfast.budget b
where (b.scope = 'session' and b.subject = :session) or (b.scope = 'tenant' and b.subject = :tenant)
    or b.scope = 'everybody'
order by b.id;

-- name: reserve :exec on postgres
-- `lasting_us`: after so long nobody settles it any more; null: its run does, or ends.
with reserved as (
    insert into holdfast.reservation (run, turn, budget, period, nano, lapses_at)
    select :run, :turn, r.budget, r.period, r.nano, holdfast.now_us() + cast(:lasting_us as bigint)
    from unnest(cast(:reserved.budget as text[]), cast(:reserved.period as bigint[]),
        cast(:reserved.nano as bigint[])) as r (budget, period, nano)
    returning budget, period, nano
)
update holdfast.budget_use u set reserved_nano = u.reserved_nano + r.nano
from reserved r where u.budget = r.budget and u.period = r.period;

-- name: reserve :exec on sqlite
-- No data-modifying CTE here.
insert into holdfast.reservation (run, turn, budget, period, nano, lapses_at)
select :run, :turn, value ->> :reserved.budget, value ->> :reserved.period, value ->> :reserved.nano,
    holdfast.now_us() + :lasting_us
from json_each(:reserved);
update holdfast.budget_use as u set reserved_nano = u.reserved_nano + (value ->> :reserved.nano)
from json_each(:reserved) where u.budget = value ->> :reserved.budget and u.period = value ->> :reserved.period;

-- name: last_reserved :one
-- When the last of the calls was begun that are under way.
select coalesce(max(t.started_at), 0) as n from holdfast.reservation v
join holdfast.turn t on t.run = v.run and t.number = v.turn where v.budget = :budget;

-- name: settle :exec on postgres
-- What was reserved is free again, and what the calls cost is spent; a cost of nothing frees alone. Summed for each
-- budget: an update touches a row once.
with settled as (
    delete from holdfast.reservation r
    using unnest(cast(:costs.run as text[]), cast(:costs.turn as integer[]), cast(:costs.nano as bigint[]))
        as c (run, turn, nano)
    where r.run = c.run and r.turn = c.turn
    returning r.budget, r.period, r.nano, c.nano as cost
), summed as materialized (
    select budget, period, sum(nano) as nano, sum(cost) as cost from settled group by budget, period
    order by budget, period
), locked as materialized (
    select u.budget, u.period from holdfast.budget_use u join summed s on s.budget = u.budget and s.period = u.period
    order by u.budget, u.period for update of u
)
update holdfast.budget_use u set reserved_nano = u.reserved_nano - s.nano, spent_nano = u.spent_nano + s.cost
from summed s join locked l on l.budget = s.budget and l.period = s.period
where u.budget = s.budget and u.period = s.period;

-- name: settle :exec on sqlite
-- No data-modifying CTE here.
update holdfast.budget_use as u set reserved_nano = u.reserved_nano - s.nano, spent_nano = u.spent_nano + s.cost
from (select r.budget, r.period, sum(r.nano) as nano, sum(value ->> :costs.nano) as cost
    from json_each(:costs) cross join holdfast.reservation r
        on r.run = value ->> :costs.run and r.turn = value ->> :costs.turn
    group by r.budget, r.period) as s
where u.budget = s.budget and u.period = s.period;
delete from holdfast.reservation as r where exists (select 1 from json_each(:costs)
    where r.run = value ->> :costs.run and r.turn = value ->> :costs.turn);

-- name: charge_budgets :exec
-- What was spent for a session beside the turns of its runs.
insert into holdfast.budget_use (budget, period, spent_nano, reserved_nano)
select b.id, case when b.period_us = 0 then 0 else holdfast.now_us() / b.period_us end, :nano, 0
from holdfast.session s join holdfast.budget b on (b.scope = 'session' and b.subject = s.id)
    or (b.scope = 'tenant' and b.subject = s.tenant) or b.scope = 'everybody'
where s.id = :session
order by b.id
on conflict (budget, period) do update set spent_nano = budget_use.spent_nano + excluded.spent_nano;

-- name: reserved_turns :many
-- Of runs that have ended without settling.
select distinct run, turn as number from holdfast.reservation where run = any(cast(:runs as text[]));

-- name: lapsed :many
-- Of summaries whose process has died.
select distinct run, turn as number from holdfast.reservation where lapses_at < holdfast.now_us() limit :limit;

-- name: prune_uses :exec
-- Of periods that are long over.
delete from holdfast.budget_use where reserved_nano = 0 and exists (select 1 from holdfast.budget b
    where b.id = budget_use.budget and b.period_us > 0
        and (budget_use.period + 1) * b.period_us < holdfast.now_us() - :age_us);

-- name: note_wait :exec
-- What the run waits for; it says so until it has ended otherwise.
update holdfast.run set limited = :words where id = :run and finalized_at is null;

-- name: usage :many
-- Of turns that ended in a stretch of time, and of compactions; `by_…` say what is told apart.
select u.tenant, u.agent, u.model, u.mode, u.day, cast(sum(u.turns) as bigint) as turns,
    cast(sum(u.input_tokens) as bigint) as input_tokens, cast(sum(u.output_tokens) as bigint) as output_tokens,
    cast(sum(u.cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(u.cache_read_tokens) as bigint) as cache_read_tokens, cast(sum(u.cost_nano) as bigint) as cost_nano
from (
    select case when :by_tenant = 1 then r.tenant else '' end as tenant,
        case when :by_agent = 1 then r.agent_name else '' end as agent,
        case when :by_model = 1 then t.model else '' end as model,
        case when :by_mode = 1 then t.mode else '' end as mode,
        case when :by_day = 1 then t.ended_at / 86400000000 else 0 end as day, 1 as turns, t.input_tokens,
        t.output_tokens, t.cache_write_tokens, t.cache_read_tokens, t.cost_nano
    from holdfast.turn t join holdfast.run r on r.id = t.run
    where t.ended_at >= :since and t.ended_at < :until and t.state = 'completed'
        and (cast(:tenant as text) is null or r.tenant = :tenant)
    union all
    select case when :by_tenant = 1 then s.tenant else '' end, case when :by_agent = 1 then '(compaction)' else '' end,
        case when :by_model = 1 then c.model else '' end, case when :by_mode = 1 then 'streaming' else '' end,
        case when :by_day = 1 then c.ended_at / 86400000000 else 0 end, 0, c.input_tokens, c.output_tokens,
        c.cache_write_tokens, c.cache_read_tokens, c.cost_nano
    from holdfast.compaction c join holdfast.session s on s.id = c.session
    where c.ended_at >= :since and c.ended_at < :until and (cast(:tenant as text) is null or s.tenant = :tenant)
) as u
group by u.tenant, u.agent, u.model, u.mode, u.day
order by u.day desc, cost_nano desc, u.tenant, u.agent, u.model, u.mode limit :limit;
