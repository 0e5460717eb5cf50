-- Lists of tool calls, the last first, and how many there are, as lists of runs are made. `find_calls` reads a page of them.

-- part: page
(k.finished_at, k.id) < (:before_at, :before) and k.finished_at >= :since

-- part: fits
(cast(:name as text) is null or c.name = :name) and (cast(:state as text) is null or c.state = :state)
    and (cast(:tenant as text) is null or (select r.tenant from holdfast.run r where r.id = c.run) = :tenant)

-- part: listed
select k.id, k.run, k.name, k.state, k.finished_at from holdfast.tool_call k
    where k.finished_at is not null and @page order by k.finished_at desc, k.id desc

-- part: failed
select k.id, k.run, k.name, k.state, k.finished_at from holdfast.tool_call k
    where k.name = :name and k.state = 'failed' and @page order by k.name, k.finished_at desc, k.id desc

-- part: open
-- Open calls are few, and have an index of their own. They are collected before they are sorted.
with found as materialized (
    select c.id, c.created_at as at from holdfast.tool_call c where c.state is null and @fits limit :look
)

-- name: calls_listed :many
-- Calls that have ended.
select c.finished_at as at, c.id from (@listed limit :look) as c
where @fits order by c.finished_at desc, c.id desc limit :limit;

-- name: end_of_calls_listed :one
select c.finished_at as at, c.id from (@listed limit 1 offset :skipped) as c;

-- name: count_calls_listed :one
select count(*) as n from (@listed limit :look) as c where @fits;

-- name: calls_failed :many
-- Calls of one tool that failed.
select c.finished_at as at, c.id from (@failed limit :look) as c
where @fits order by c.finished_at desc, c.id desc limit :limit;

-- name: end_of_calls_failed :one
select c.finished_at as at, c.id from (@failed limit 1 offset :skipped) as c;

-- name: count_calls_failed :one
select count(*) as n from (@failed limit :look) as c where @fits;

-- name: calls_open :many
@open
select at, id from found where (at, id) < (:before_at, :before) and at >= :since order by at desc, id desc limit :limit;

-- name: count_calls_open :one
@open
select count(*) as n from found where at >= :since;
