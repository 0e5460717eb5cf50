-- Lanes to a provider: the answer that one worker got closes a lane for all workers. Runs wait for a lane on a
-- channel of its name. To close, open or wait for a lane, a transaction first locks that channel.

-- name: close_lane :exec
-- The later end counts; a lane that waits for a person stays closed in any case. If a lane is closed again within a
-- minute, it counts as closed since the first time, unless there was an answer in between.
insert into holdfast.provider_lane (name, closed_until, person, reason, updated_at)
values (:name, holdfast.now_us() + cast(:wait_us as bigint), :person, :reason, holdfast.now_us())
on conflict (name) do update set
    closed_until = case when coalesce(provider_lane.closed_until, 0) > coalesce(excluded.closed_until, 0)
        then provider_lane.closed_until else excluded.closed_until end,
    person = case when provider_lane.person = 1 then 1 else excluded.person end,
    reason = case when provider_lane.person = 1 and excluded.person = 0 then provider_lane.reason
        else excluded.reason end,
    updated_at = case when provider_lane.person = 1 or provider_lane.closed_until > excluded.updated_at - 60000000
        then provider_lane.updated_at else excluded.updated_at end;

-- name: note_answer :exec
-- Somebody got through. A lane that is closed again counts as closed since then.
update holdfast.provider_lane set updated_at = holdfast.now_us() where name = :name and person = 0;

-- name: begin_opening :exec
-- From now on it is closed to nobody. Its row stays until nobody waits for it.
update holdfast.provider_lane set person = 0, closed_until = holdfast.now_us(), updated_at = holdfast.now_us()
where name = :name;

-- name: forget_lane :exec
delete from holdfast.provider_lane where name = :name;

-- name: lanes :many
-- Closed lanes, and open lanes for which somebody may still wait.
select :columns from holdfast.provider_lane
order by name;

-- name: find_lane :one
select :columns from holdfast.provider_lane
where name = :name;

-- name: closed_lanes :many
-- With how many runs wait for each, counted up to a cap.
select name, closed_until, person, reason, updated_at, holdfast.now_us() as now,
    (select count(*) from (select 1 as one from holdfast.later t
        where t.channel = 'holdfast:lane ' || provider_lane.name limit 10001) as w) as waiting
from holdfast.provider_lane where person = 1 or closed_until > holdfast.now_us() order by name;

-- name: due_behind :one
-- How many of the runs that wait there are due by then, counted up to a cap: these runs try the lane.
select count(*) as n from (
    select 1 as one from holdfast.later t
    where t.channel = :channel and case when t.due_at is null then false else t.due_at <= :until end limit :limit
) as w;
