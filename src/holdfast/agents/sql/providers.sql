-- Lanes to a provider: closed for all workers by the answer that one of them got.

-- name: close_lane :exec
-- A later end stands; a lane that waits for a person stays closed whatever else is heard.
insert into holdfast.provider_lane (name, closed_until, person, reason, updated_at)
values (:name, holdfast.now_us() + cast(:wait_us as bigint), :person, :reason, holdfast.now_us())
on conflict (name) do update set
    closed_until = case when coalesce(provider_lane.closed_until, 0) > coalesce(excluded.closed_until, 0)
        then provider_lane.closed_until else excluded.closed_until end,
    person = case when provider_lane.person = 1 then 1 else excluded.person end,
    reason = case when provider_lane.person = 1 and excluded.person = 0 then provider_lane.reason
        else excluded.reason end, updated_at = excluded.updated_at;

-- name: open_lane :exec
delete from holdfast.provider_lane where name = :name;

-- name: closed_lanes :many
select name, closed_until, person, reason, updated_at, holdfast.now_us() as now from holdfast.provider_lane
where person = 1 or closed_until > holdfast.now_us() order by name;
