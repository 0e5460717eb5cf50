-- Lists of inquiries, the oldest first, and how many there are, as lists of runs are made.

-- part: page
(i.asked_at, i.id) > (:after_at, :after)

-- part: fits
(cast(:state as text) is null or i.state = :state) and (cast(:tenant as text) is null or i.tenant = :tenant)

-- part: below
-- Of a run and all runs below it.
i.run = any(array(
    select cast(:run as text) union all select r.id from holdfast.run r where r.root = :run))

-- part: open
select i.* from holdfast.inquiry i where i.state = 'open' and @page order by i.asked_at, i.id

-- part: decided
select i.* from holdfast.inquiry i where i.state <> 'open' and @page order by i.asked_at, i.id

-- part: of_tenant
select i.* from holdfast.inquiry i where i.tenant = :tenant and @page order by i.tenant, i.asked_at, i.id

-- name: inquiries_all :many
-- No index has all of them in this order, so a page is made of two.
select :columns(both_kinds) from (
    select * from (@open limit :limit) as opened union all select * from (@decided limit :limit) as ruled) as both_kinds
order by both_kinds.asked_at, both_kinds.id limit :limit;

-- name: count_inquiries_all :one
select count(*) as n from (
    select id from (@open limit :look) as opened union all select id from (@decided limit :look) as ruled
    limit :look) as both_kinds;

-- name: inquiries_of_run :many
select :columns(i) from holdfast.inquiry i where @below and @page and @fits order by i.asked_at, i.id limit :limit;

-- name: count_inquiries_of_run :one
select count(*) as n from (select i.id from holdfast.inquiry i where @below and @fits limit :look) as counted;

-- name: inquiries_open :many
select :columns(i) from (@open limit :look) as i where @fits order by i.asked_at, i.id limit :limit;

-- name: end_of_inquiries_open :one
select i.asked_at, i.id from (@open limit 1 offset :skipped) as i;

-- name: count_inquiries_open :one
select count(*) as n from (@open limit :look) as i where @fits;

-- name: inquiries_decided :many
select :columns(i) from (@decided limit :look) as i where @fits order by i.asked_at, i.id limit :limit;

-- name: end_of_inquiries_decided :one
select i.asked_at, i.id from (@decided limit 1 offset :skipped) as i;

-- name: count_inquiries_decided :one
select count(*) as n from (@decided limit :look) as i where @fits;

-- name: inquiries_of_tenant :many
select :columns(i) from (@of_tenant limit :look) as i where @fits order by i.asked_at, i.id limit :limit;

-- name: end_of_inquiries_of_tenant :one
select i.asked_at, i.id from (@of_tenant limit 1 offset :skipped) as i;

-- name: count_inquiries_of_tenant :one
select count(*) as n from (@of_tenant limit :look) as i where @fits;
