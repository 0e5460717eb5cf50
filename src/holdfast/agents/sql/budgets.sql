-- Budgets: how much may be spent. A call is reserved before it is made and settled after it.
--
-- The default budget of tenants is stored as that of a session 'each tenant'. No session has such an id, so a release
-- that does not know defaults applies it to nobody. Each tenant has its own use of a default. The name of that use is
-- the id of the default, which has 36 characters, a space and the tenant.

-- name: set_budget :one
insert into holdfast.budget (id, scope, subject, period_us, limit_nano, policy, updated_at)
values (:id, :scope, :subject, :period_us, :limit_nano, :policy, holdfast.now_us())
on conflict (scope, subject, period_us) do update set limit_nano = excluded.limit_nano, policy = excluded.policy,
    updated_at = excluded.updated_at
returning :columns;

-- name: delete_budget :one
delete from holdfast.budget where id = :id returning :columns;

-- name: delete_uses :exec
-- Of a default, the uses of all tenants.
delete from holdfast.budget_use where substr(budget, 1, 36) = :id;

-- name: delete_reservations :exec
delete from holdfast.reservation where substr(budget, 1, 36) = :id;

-- name: list_budgets :many
-- With the amounts that are spent and reserved now; of a default nothing, because its uses are the tenants'.
select b.id, b.scope, b.subject, b.period_us, b.limit_nano, b.policy, coalesce(u.spent_nano, 0) as spent_nano,
    coalesce(u.reserved_nano, 0) as reserved_nano
from holdfast.budget b left join holdfast.budget_use u on u.budget = b.id
    and u.period = case when b.period_us = 0 then 0 else holdfast.now_us() / b.period_us end
where (cast(:scope as text) is null or b.scope = :scope) and (cast(:subject as text) is null or b.subject = :subject)
order by b.scope, b.subject, b.period_us;

-- name: list_default_uses :many
-- What tenants have used of defaults, as far as a default applies to them.
select d.id, 'each_tenant' as scope, substr(u.budget, 38) as subject, d.period_us, d.limit_nano, d.policy,
    u.spent_nano, u.reserved_nano
from holdfast.budget_use u join holdfast.budget d on d.id = substr(u.budget, 1, 36)
where length(u.budget) > 36 and d.scope = 'session' and d.subject = 'each tenant'
    and u.period = case when d.period_us = 0 then 0 else holdfast.now_us() / d.period_us end
    and not exists (select 1 from holdfast.budget own where own.scope = 'tenant'
        and own.subject = substr(u.budget, 38) and own.period_us = d.period_us);

-- name: list_defaults_of :many
-- The defaults that apply to one tenant, also if it has used nothing of them.
select d.id, 'each_tenant' as scope, cast(:tenant as text) as subject, d.period_us, d.limit_nano, d.policy,
    coalesce(u.spent_nano, 0) as spent_nano, coalesce(u.reserved_nano, 0) as reserved_nano
from holdfast.budget d left join holdfast.budget_use u on u.budget = d.id || ' ' || cast(:tenant as text)
    and u.period = case when d.period_us = 0 then 0 else holdfast.now_us() / d.period_us end
where d.scope = 'session' and d.subject = 'each tenant' and cast(:tenant as text) <> ''
    and not exists (select 1 from holdfast.budget own where own.scope = 'tenant' and own.subject = :tenant
        and own.period_us = d.period_us);

-- name: budgets_of :many
-- The budgets that apply to a run, and under what name the run uses each. A default applies to a tenant that has no
-- budget of its own for the same period.
select b.id as budget, b.id, b.scope, b.subject, b.period_us, b.limit_nano, b.policy
from holdfast.budget b
where (b.scope = 'session' and b.subject = :session) or (b.scope = 'tenant' and b.subject = :tenant)
    or b.scope = 'everybody'
union all
select d.id || ' ' || cast(:tenant as text), d.id, 'each_tenant', cast(:tenant as text), d.period_us, d.limit_nano,
    d.policy
from holdfast.budget d
where d.scope = 'session' and d.subject = 'each tenant' and cast(:tenant as text) <> ''
    and not exists (select 1 from holdfast.budget own where own.scope = 'tenant' and own.subject = :tenant
        and own.period_us = d.period_us);

-- name: open_uses :many
-- What is used in this period of the budgets that apply, locked in one order until the call is reserved. `:nano` is
-- spent in addition.
insert into holdfast.budget_use (budget, period, spent_nano, reserved_nano)
select a.budget, case when b.period_us = 0 then 0 else holdfast.now_us() / b.period_us end, cast(:nano as bigint), 0
from rows(:applied) as a (budget text, id text) join holdfast.budget b on b.id = a.id
order by a.budget
on conflict (budget, period) do update set spent_nano = budget_use.spent_nano + excluded.spent_nano
returning :columns;

-- part: add_reservations
-- After `lasting_us` the reservation lapses. If it is null, the run settles the reservation, or it is removed when
-- the run ends.
insert into holdfast.reservation (run, turn, budget, period, nano, lapses_at)
select :run, :turn, r.budget, r.period, r.nano, holdfast.now_us() + cast(:lasting_us as bigint)
from rows(:reserved) as r (budget text, period bigint, nano bigint)

-- part: count_reservations
update holdfast.budget_use set reserved_nano = reserved_nano + r.nano
from rows(:reserved) as r (budget text, period bigint, nano bigint)
where budget_use.budget = r.budget and budget_use.period = r.period

-- name: reserve :exec on postgres
with reserved as (
@add_reservations
)
@count_reservations;

-- name: reserve :exec on sqlite
-- Forked: SQLite has no CTE that changes rows.
@add_reservations;
@count_reservations;

-- name: hold_tree :one
-- The row under which a tree of runs reserves, locked until the call is reserved.
insert into holdfast.budget_use (budget, period, spent_nano, reserved_nano) values (:tree, 0, 0, 0)
on conflict (budget, period) do update set spent_nano = budget_use.spent_nano
returning :columns;

-- name: last_reserved :one
-- When the latest of the active calls began.
select coalesce(max(t.started_at), 0) as n from holdfast.reservation v
join holdfast.turn t on t.run = v.run and t.number = v.turn where v.budget = :budget;

-- name: settle :exec on postgres
-- Frees what was reserved, and counts the cost of the calls as spent. With a cost of nothing it only frees. Summed
-- for each budget, because an update changes a row once.
with settled as (
    delete from holdfast.reservation r
    using rows(:costs) as c (run text, turn integer, nano bigint)
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
-- Forked: SQLite has no CTE that changes rows. The sums first, while the reservations are there.
update holdfast.budget_use as u set reserved_nano = u.reserved_nano - s.nano, spent_nano = u.spent_nano + s.cost
from (select r.budget, r.period, sum(r.nano) as nano, sum(value ->> :costs.nano) as cost
    from json_each(:costs) cross join holdfast.reservation r
        on r.run = value ->> :costs.run and r.turn = value ->> :costs.turn
    group by r.budget, r.period) as s
where u.budget = s.budget and u.period = s.period;
delete from holdfast.reservation as r where exists (select 1 from json_each(:costs)
    where r.run = value ->> :costs.run and r.turn = value ->> :costs.turn);

-- name: payer :one
-- Whose budgets pay for what a session costs.
select id as session, tenant from holdfast.session where id = :session;

-- name: reserved_turns :many
-- Reservations of runs that ended without settling.
select distinct run, turn as number from holdfast.reservation where run = any(cast(:runs as text[]));

-- name: lapsed :many
-- Reservations of summaries whose process has died.
select distinct run, turn as number from holdfast.reservation where lapses_at < holdfast.now_us() limit :limit;

-- name: prune_uses :exec
-- Uses of periods that ended long ago.
delete from holdfast.budget_use where reserved_nano = 0 and exists (select 1 from holdfast.budget b
    where b.id = substr(budget_use.budget, 1, 36) and b.period_us > 0
        and (budget_use.period + 1) * b.period_us < holdfast.now_us() - :age_us);

-- name: note_wait :exec
-- What the run waits for. This stays until the run ends for another reason.
update holdfast.run set limited = :words where id = :run and finalized_at is null;

-- name: usage_of_turns :many
-- Usage of turns that ended in a period. `by_…` say by what to group.
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
) as u
group by u.tenant, u.agent, u.model, u.mode, u.day;

-- name: usage_of_compactions :many
-- Of those that are there: one that failed may be tried again, and its row then says what all tries used.
select u.tenant, u.agent, u.model, u.mode, u.day, cast(sum(u.turns) as bigint) as turns,
    cast(sum(u.input_tokens) as bigint) as input_tokens, cast(sum(u.output_tokens) as bigint) as output_tokens,
    cast(sum(u.cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(u.cache_read_tokens) as bigint) as cache_read_tokens, cast(sum(u.cost_nano) as bigint) as cost_nano
from (
    select case when :by_tenant = 1 then s.tenant else '' end as tenant,
        case when :by_agent = 1 then '(compaction)' else '' end as agent,
        case when :by_model = 1 then c.model else '' end as model, case when :by_mode = 1 then 'streaming' else '' end as mode,
        case when :by_day = 1 then c.ended_at / 86400000000 else 0 end as day, 0 as turns, c.input_tokens, c.output_tokens,
        c.cache_write_tokens, c.cache_read_tokens, c.cost_nano
    from holdfast.compaction c join holdfast.session s on s.id = c.session
    where c.ended_at >= :since and c.ended_at < :until and (cast(:tenant as text) is null or s.tenant = :tenant)
) as u
group by u.tenant, u.agent, u.model, u.mode, u.day;
