-- What agents do now and did in the last minute, for who watches. Each part reads no more than :cap rows of an index.

-- name: agent_activity :many
select a.agent, cast(sum(a.open) as bigint) as open, cast(sum(a.asking) as bigint) as asking,
    cast(sum(a.ended) as bigint) as ended, cast(sum(a.failed) as bigint) as failed,
    cast(sum(a.turns) as bigint) as turns, cast(sum(a.cost_nano) as bigint) as cost_nano
from (
    select o.agent_name as agent, 1 as open, case o.state when 'awaiting_input' then 1 else 0 end as asking, 0 as ended,
        0 as failed, 0 as turns, 0 as cost_nano
    from (select r.agent_name, r.state from holdfast.run r where r.finalized_at is null
        order by r.created_at desc, r.id desc limit :cap) as o
    union all
    select e.agent_name, 0, 0, 1, case when e.outcome is null then 1 else 0 end, 0, 0
    from (select r.agent_name, r.outcome from holdfast.run r
        where r.finalized_at > holdfast.now_us() - 60000000 and r.finalized_at is not null
        order by r.finalized_at desc, r.id desc limit :cap) as e
    union all
    select coalesce((select r.agent_name from holdfast.run r where r.id = t.run), ''), 0, 0, 0, 0, 1, t.cost_nano
    from (select k.run, k.cost_nano from holdfast.turn k
        where k.ended_at > holdfast.now_us() - 60000000 and k.ended_at is not null
        order by k.ended_at desc limit :cap) as t
    union all
    select '(compaction)', 0, 0, 0, 0, 0, c.cost_nano
    from (select k.cost_nano from holdfast.compaction k
        where k.ended_at > holdfast.now_us() - 60000000 and k.ended_at is not null
        order by k.ended_at desc limit :cap) as c
) as a group by a.agent order by 2 desc, 7 desc, 1;

-- name: waiting_people :one
select count(*) as n, min(i.asked_at) as oldest_at
from (select k.asked_at from holdfast.inquiry k where k.state = 'open' order by k.asked_at, k.id limit :cap) as i;
