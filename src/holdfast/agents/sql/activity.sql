-- What agents do now and did in the last minute, for who watches. Each part reads no more than :cap rows of an index.

-- name: agent_activity :many
select a.agent, cast(sum(a.open) as bigint) as open, cast(sum(a.asking) as bigint) as asking,
    cast(sum(a.ended) as bigint) as ended, cast(sum(a.failed) as bigint) as failed,
    cast(sum(a.turns) as bigint) as turns, cast(sum(a.cost_nano) as bigint) as cost_nano,
    cast(sum(a.input_tokens) as bigint) as input_tokens, cast(sum(a.output_tokens) as bigint) as output_tokens,
    cast(sum(a.cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(a.cache_read_tokens) as bigint) as cache_read_tokens
from (
    select o.agent_name as agent, 1 as open, case o.state when 'awaiting_input' then 1 else 0 end as asking, 0 as ended,
        0 as failed, 0 as turns, 0 as cost_nano, 0 as input_tokens, 0 as output_tokens, 0 as cache_write_tokens,
        0 as cache_read_tokens
    from (select r.agent_name, r.state from holdfast.run r where r.finalized_at is null
        order by r.created_at desc, r.id desc limit :cap) as o
    union all
    select e.agent_name, 0, 0, 1, case when e.outcome is null then 1 else 0 end, 0, 0, 0, 0, 0, 0
    from (select r.agent_name, r.outcome from holdfast.run r
        where r.finalized_at > holdfast.now_us() - 60000000 and r.finalized_at is not null
        order by r.finalized_at desc, r.id desc limit :cap) as e
    union all
    select coalesce((select r.agent_name from holdfast.run r where r.id = t.run), ''), 0, 0, 0, 0, 1, t.cost_nano,
        t.input_tokens, t.output_tokens, t.cache_write_tokens, t.cache_read_tokens
    from (select k.run, k.cost_nano, k.input_tokens, k.output_tokens, k.cache_write_tokens, k.cache_read_tokens
        from holdfast.turn k
        where k.ended_at > holdfast.now_us() - 60000000 and k.ended_at is not null
        order by k.ended_at desc limit :cap) as t
    union all
    select '(compaction)', 0, 0, 0, 0, 0, c.cost_nano, c.input_tokens, c.output_tokens, c.cache_write_tokens,
        c.cache_read_tokens
    from (select k.cost_nano, k.input_tokens, k.output_tokens, k.cache_write_tokens, k.cache_read_tokens
        from holdfast.compaction k
        where k.ended_at > holdfast.now_us() - 60000000 and k.ended_at is not null
        order by k.ended_at desc limit :cap) as c
) as a group by a.agent order by 2 desc, 7 desc, 1;

-- name: waiting_people :one
select count(*) as n, min(i.asked_at) as oldest_at
from (select k.asked_at from holdfast.inquiry k where k.state = 'open' order by k.asked_at, k.id limit :cap) as i;

-- name: turn_latencies :many
-- How long the last turns of each model took, of those that were streamed and ended in the last minute.
select k.model, max(case when k.n <= (k.total * 50 + 99) / 100 then k.us end) as p50,
    max(case when k.n <= (k.total * 95 + 99) / 100 then k.us end) as p95,
    max(case when k.n <= (k.total * 99 + 99) / 100 then k.us end) as p99
from (
    select t.model, t.us, row_number() over (partition by t.model order by t.us) as n,
        count(*) over (partition by t.model) as total
    from (select q.model, q.mode, q.ended_at - q.started_at as us from holdfast.turn q
        where q.ended_at > holdfast.now_us() - 60000000 and q.ended_at is not null
        order by q.ended_at desc limit :look) as t
    where t.mode = 'streaming'
) as k group by k.model order by k.model;
