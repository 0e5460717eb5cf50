-- Lists of sessions, newest first, and how many there are, as lists of runs are made.

-- part: page
(created_at, id) < (:before_at, :before)

-- part: has_metadata on postgres
metadata @> cast(:metadata as jsonb)

-- part: has_metadata on sqlite
-- A function that the driver adds. It compares as `@>` does.
json_contains(metadata, :metadata)

-- part: fits
(cast(:tenant as text) is null or tenant = :tenant) and (cast(:parent as text) is null or parent = :parent)
    and @has_metadata

-- name: sessions_all :many
select :columns from (
    select * from holdfast.session where @page order by created_at desc, id desc limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_sessions_all :one
select created_at, id from holdfast.session where @page order by created_at desc, id desc limit 1 offset :skipped;

-- name: count_sessions_all :one
select count(*) as n from (
    select * from holdfast.session where @page order by created_at desc, id desc limit :look) as looked
where @fits;

-- name: sessions_of_tenant :many
select :columns from (
    select * from holdfast.session where tenant = :tenant and @page
    order by tenant desc, created_at desc, id desc limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_sessions_of_tenant :one
select created_at, id from holdfast.session where tenant = :tenant and @page
order by tenant desc, created_at desc, id desc limit 1 offset :skipped;

-- name: count_sessions_of_tenant :one
select count(*) as n from (
    select * from holdfast.session where tenant = :tenant and @page
    order by tenant desc, created_at desc, id desc limit :look) as looked
where @fits;

-- name: sessions_of_parent :many
select :columns from (
    select * from holdfast.session where parent = :parent and @page
    order by created_at desc, id desc limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_sessions_of_parent :one
select created_at, id from holdfast.session where parent = :parent and @page
order by created_at desc, id desc limit 1 offset :skipped;

-- name: count_sessions_of_parent :one
select count(*) as n from (
    select * from holdfast.session where parent = :parent and @page
    order by created_at desc, id desc limit :look) as looked
where @fits;

-- part: metadata_value on postgres
cast(looked.metadata -> cast(:key as text) as text)

-- part: metadata_value on sqlite
-- A function that the driver adds. It answers with the text that `->` gives.
json_value(looked.metadata, :key)

-- name: metadata_values :many
-- What most sessions have comes first, of as many of the newest as it looks at. A page begins behind a count and a value.
select @metadata_value as value, count(*) as n from (
    select metadata from holdfast.session order by created_at desc, id desc limit :look) as looked
where @metadata_value is not null
group by 1
having count(*) < :before or (count(*) = :before and @metadata_value > :after)
order by 2 desc, 1 limit :limit;

-- name: metadata_values_of :many
select @metadata_value as value, count(*) as n from (
    select metadata from holdfast.session where tenant = :tenant
    order by tenant desc, created_at desc, id desc limit :look) as looked
where @metadata_value is not null
group by 1
having count(*) < :before or (count(*) = :before and @metadata_value > :after)
order by 2 desc, 1 limit :limit;

-- name: list_tenants :many
-- From one tenant to the next by the index: it reads a row for each tenant, not one for each session.
with recursive found (tenant) as (
    select min(tenant) from holdfast.session where tenant > :after
    union all
    select (select min(s.tenant) from holdfast.session s where s.tenant > f.tenant) from found f where f.tenant is not null
)
select tenant from found where tenant is not null limit :limit;
