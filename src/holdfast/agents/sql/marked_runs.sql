-- Runs by their metadata, which no index has: each statement looks at a bounded number of the newest.

-- part: has_metadata on postgres
metadata @> cast(:metadata as jsonb)

-- part: has_metadata on sqlite
-- A function that the driver adds. It compares as `@>` does.
json_contains(metadata, :metadata)

-- name: marked :many
select created_at, id from (
    select * from holdfast.run_now where (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where @has_metadata and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:mode as text) is null or mode = :mode)
    and (cast(:parent as text) is null or parent = :parent)
order by created_at desc, id desc limit :limit;

-- name: end_of_marked :one
select created_at, id from holdfast.run where (created_at, id) < (:before_at, :before) and created_at >= :since
order by created_at desc, id desc limit 1 offset :skipped;

-- name: marked_of_tenant :many
select created_at, id from (
    select * from holdfast.run_now
    where tenant = :tenant and (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where @has_metadata and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:mode as text) is null or mode = :mode)
    and (cast(:parent as text) is null or parent = :parent)
order by created_at desc, id desc limit :limit;

-- name: end_of_marked_of_tenant :one
select created_at, id from holdfast.run
where tenant = :tenant and (created_at, id) < (:before_at, :before) and created_at >= :since
order by created_at desc, id desc limit 1 offset :skipped;

-- part: metadata_value on postgres
cast(metadata -> cast(:key as text) as text)

-- part: metadata_value on sqlite
-- A function that the driver adds. It answers with the text that `->` gives.
json_value(metadata, :key)

-- name: mark_values :many
-- What most of the newest runs have comes first.
select @metadata_value as value, count(*) as n from (
    select metadata from holdfast.run order by created_at desc, id desc limit :look) as looked
where @metadata_value is not null group by 1 order by 2 desc, 1 limit :limit;

-- name: mark_values_of_tenant :many
select @metadata_value as value, count(*) as n from (
    select metadata from holdfast.run where tenant = :tenant
    order by tenant, created_at desc, id desc limit :look) as looked
where @metadata_value is not null group by 1 order by 2 desc, 1 limit :limit;
