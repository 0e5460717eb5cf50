-- What has ended of agents, for the tally: runs, turns and tool calls, some at a time, and those of a session.

-- name: runs_upto :one
-- When the last of the next so many ended. All that ended at the same time are counted together.
select r.finalized_at as at from holdfast.run r
where r.finalized_at is not null and r.finalized_at > :after and r.finalized_at < :before
order by r.finalized_at, r.id limit 1 offset :skipped;

-- name: turns_upto :one
select t.ended_at as at from holdfast.turn t
where t.ended_at is not null and t.ended_at > :after and t.ended_at < :before
order by t.ended_at limit 1 offset :skipped;

-- name: calls_upto :one
select c.finished_at as at from holdfast.tool_call c
where c.finished_at is not null and c.finished_at > :after and c.finished_at < :before
order by c.finished_at, c.id limit 1 offset :skipped;

-- part: run_ended
select r.finalized_at as at, r.agent_name as source, '' as kind, r.mode, r.state, r.tenant, r.input_tokens, r.output_tokens,
    r.cache_write_tokens, r.cache_read_tokens, r.cost_nano,
    coalesce(r.started_at, (select e.claimed_at from holdfast.ended e where e.seq = r.job)) - r.created_at as wait_us,
    r.finalized_at - coalesce(r.started_at, (select e.claimed_at from holdfast.ended e where e.seq = r.job), r.created_at)
        as duration_us,
    r.id, case when r.state = 'failed' then coalesce(r.error_type, '') end as error, r.error as message,
    cast(null as text) as layer

-- name: ended_runs :many
-- In an order that one index has: by another one a plan might read all that have ended.
@run_ended
from holdfast.run r
where r.finalized_at is not null and r.finalized_at > :after and r.finalized_at <= :upto
order by r.finalized_at, r.id;

-- part: turn_ended
select t.ended_at as at, r.agent_name as source, t.model as kind, t.mode, t.state, r.tenant, t.input_tokens, t.output_tokens,
    t.cache_write_tokens, t.cache_read_tokens, t.cost_nano, cast(null as bigint) as wait_us,
    t.ended_at - t.started_at as duration_us, t.run as id, cast(null as text) as error, cast(null as text) as message,
    cast(null as text) as layer

-- part: run_of_turn on postgres
cross join lateral (select r.agent_name, r.tenant from holdfast.run r where r.id = t.run offset 0) as r

-- part: run_of_turn on sqlite
-- SQLite has no lateral join. A cross join keeps it at this order of tables.
cross join holdfast.run r on r.id = t.run

-- name: ended_turns :many
@turn_ended
from holdfast.turn t
@run_of_turn
where t.ended_at is not null and t.ended_at > :after and t.ended_at <= :upto
order by t.ended_at;

-- part: call_ended
select c.finished_at as at, r.agent_name as source, c.name as kind, '' as mode, c.state, r.tenant, 0 as input_tokens,
    0 as output_tokens, 0 as cache_write_tokens, 0 as cache_read_tokens, 0 as cost_nano,
    (select e.claimed_at from holdfast.ended e where e.seq = c.job) - c.created_at as wait_us,
    c.finished_at - coalesce((select e.claimed_at from holdfast.ended e where e.seq = c.job), c.created_at) as duration_us,
    c.id, case when c.state = 'failed' then coalesce(c.output ->> 'type', '') end as error,
    case when c.state = 'failed' then coalesce(c.output ->> 'message', cast(c.output as text)) end as message,
    cast(null as text) as layer

-- part: run_of_call on postgres
cross join lateral (select r.agent_name, r.tenant from holdfast.run r where r.id = c.run offset 0) as r

-- part: run_of_call on sqlite
-- SQLite has no lateral join. A cross join keeps it at this order of tables.
cross join holdfast.run r on r.id = c.run

-- name: ended_calls :many
-- A call waited until its job was claimed.
@call_ended
from holdfast.tool_call c
@run_of_call
where c.finished_at is not null and c.finished_at > :after and c.finished_at <= :upto
order by c.finished_at, c.id;

-- part: hours
-- What ended, added up as the tally has it: by hour and tenant.
select cast(:again as text) as subject, 'tenant_hour' as grain, f.tenant, f.at / 3600000000 * 3600000000 as at, f.source,
    f.kind, f.mode, f.state, count(*) as number, cast(sum(f.input_tokens) as bigint) as input_tokens,
    cast(sum(f.output_tokens) as bigint) as output_tokens, cast(sum(f.cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(f.cache_read_tokens) as bigint) as cache_read_tokens, cast(sum(f.cost_nano) as bigint) as cost_nano

-- part: by_hour
group by f.tenant, f.at / 3600000000 * 3600000000, f.source, f.kind, f.mode, f.state

-- name: runs_again :many
@hours
from (
@run_ended
from holdfast.run r
where r.finalized_at is not null and r.finalized_at > :after and r.finalized_at <= :upto) as f
@by_hour;

-- name: turns_again :many
@hours
from (
@turn_ended
from holdfast.turn t
@run_of_turn
where t.ended_at is not null and t.ended_at > :after and t.ended_at <= :upto) as f
@by_hour;

-- name: calls_again :many
@hours
from (
@call_ended
from holdfast.tool_call c
@run_of_call
where c.finished_at is not null and c.finished_at > :after and c.finished_at <= :upto) as f
@by_hour;

-- name: runs_in :many
-- Of a session that is about to be removed, what ended after the mark of the second walk.
@run_ended
from holdfast.run r
where r.session = :session and r.finalized_at > :after;

-- part: turns_of_run on postgres
cross join lateral (select t.run, t.ended_at, t.model, t.mode, t.state, t.input_tokens, t.output_tokens,
    t.cache_write_tokens, t.cache_read_tokens, t.cost_nano, t.started_at from holdfast.turn t
    where t.run = r.id offset 0) as t

-- part: turns_of_run on sqlite
-- As `run_of_turn`.
cross join holdfast.turn t on t.run = r.id

-- name: turns_in :many
-- The condition does not say that a turn has ended: a plan might then begin with all turns that have.
@turn_ended
from holdfast.run r
@turns_of_run
where r.session = :session and coalesce(t.ended_at, -1) > :after;

-- part: calls_of_run on postgres
cross join lateral (select c.id, c.name, c.state, c.job, c.created_at, c.finished_at, c.output from holdfast.tool_call c
    where c.run = r.id offset 0) as c

-- part: calls_of_run on sqlite
-- As `run_of_turn`.
cross join holdfast.tool_call c on c.run = r.id

-- name: calls_in :many
@call_ended
from holdfast.run r
@calls_of_run
where r.session = :session and coalesce(c.finished_at, -1) > :after;

-- name: compactions_in :many
-- All of them: what they used is read from their rows for as long as they are there.
select c.ended_at as at, '(compaction)' as source, c.model as kind, 'streaming' as mode, c.state, :tenant as tenant,
    c.input_tokens, c.output_tokens, c.cache_write_tokens, c.cache_read_tokens, c.cost_nano,
    cast(null as bigint) as wait_us, c.ended_at - c.started_at as duration_us, c.id, cast(null as text) as error,
    cast(null as text) as message, cast(null as text) as layer
from holdfast.compaction c where c.session = :session and c.ended_at is not null;
