-- Lists of runs, newest first, and how many there are: statements for each filter that has an index. The other filters
-- look at a bounded number of the rows that the index gives, and a statement says where such a look ended.

-- part: page
(created_at, id) < (:before_at, :before) and created_at >= :since order by created_at desc, id desc

-- part: fits
(cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (cast(:mode as text) is null or mode = :mode)

-- part: unanswered
-- Those that failed or were cancelled have no outcome.
finalized_at is not null and outcome is null

-- name: runs_all :many
-- Whatever they are.
select :columns from (
    select * from holdfast.run_now where @page limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_runs_all :one
select created_at, id from holdfast.run
where @page limit 1 offset :skipped;

-- name: count_runs_all :one
select count(*) as n from (
    select * from holdfast.run_now where @page limit :look) as looked
where @fits;

-- name: runs_of_session :many
select :columns from (
    select * from holdfast.run_now where session = :session and @page limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_runs_of_session :one
select created_at, id from holdfast.run
where session = :session and @page limit 1 offset :skipped;

-- name: count_runs_of_session :one
select count(*) as n from (
    select * from holdfast.run_now where session = :session and @page limit :look) as looked
where @fits;

-- name: runs_of_parent :many
select :columns from (
    select * from holdfast.run_now where parent = :parent and @page limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_runs_of_parent :one
select created_at, id from holdfast.run
where parent = :parent and @page limit 1 offset :skipped;

-- name: count_runs_of_parent :one
select count(*) as n from (
    select * from holdfast.run_now where parent = :parent and @page limit :look) as looked
where @fits;

-- name: runs_of_agent :many
select :columns from (
    select * from holdfast.run_now where agent = :agent and @page limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_runs_of_agent :one
select created_at, id from holdfast.run
where agent = :agent and @page limit 1 offset :skipped;

-- name: count_runs_of_agent :one
select count(*) as n from (
    select * from holdfast.run_now where agent = :agent and @page limit :look) as looked
where @fits;

-- name: runs_of_tenant :many
select :columns from (
    select * from holdfast.run_now where tenant = :tenant and @page limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_runs_of_tenant :one
select created_at, id from holdfast.run
where tenant = :tenant and @page limit 1 offset :skipped;

-- name: count_runs_of_tenant :one
select count(*) as n from (
    select * from holdfast.run_now where tenant = :tenant and @page limit :look) as looked
where @fits;

-- name: runs_open :many
-- No index has the state of an open run, because it changes too often.
select :columns from (
    select * from holdfast.run_now where finalized_at is null and @page limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_runs_open :one
select created_at, id from holdfast.run
where finalized_at is null and @page limit 1 offset :skipped;

-- name: count_runs_open :one
select count(*) as n from (
    select * from holdfast.run_now where finalized_at is null and @page limit :look) as looked
where @fits;

-- name: runs_open_of_tenant :many
select :columns from (
    select * from holdfast.run_now where finalized_at is null and tenant = :tenant and @page limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_runs_open_of_tenant :one
select created_at, id from holdfast.run
where finalized_at is null and tenant = :tenant and @page limit 1 offset :skipped;

-- name: count_runs_open_of_tenant :one
select count(*) as n from (
    select * from holdfast.run_now where finalized_at is null and tenant = :tenant and @page limit :look) as looked
where @fits;

-- name: runs_unanswered :many
select :columns from (
    select * from holdfast.run_now where @unanswered and @page limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_runs_unanswered :one
select created_at, id from holdfast.run
where @unanswered and @page limit 1 offset :skipped;

-- name: count_runs_unanswered :one
select count(*) as n from (
    select * from holdfast.run_now where @unanswered and @page limit :look) as looked
where @fits;

-- part: failed
select id, tenant, error_type as error, error as message, finalized_at as at

-- part: failed_looks
select id, tenant, agent_name, state, error_type, error, finalized_at, created_at from holdfast.run_now

-- part: failed_fits
state = :state and agent_name = :agent order by created_at desc, id desc limit :limit

-- name: failed_runs :many
-- Only what a group of failures shows of each.
@failed from (@failed_looks where @unanswered and @page limit :look) as looked where @failed_fits;

-- name: failed_runs_of_tenant :many
@failed from (@failed_looks where @unanswered and tenant = :tenant and @page limit :look) as looked where @failed_fits;

-- name: runs_unanswered_of_tenant :many
select :columns from (
    select * from holdfast.run_now where @unanswered and tenant = :tenant and @page limit :look) as looked
where @fits order by created_at desc, id desc limit :limit;

-- name: end_of_runs_unanswered_of_tenant :one
select created_at, id from holdfast.run
where @unanswered and tenant = :tenant and @page limit 1 offset :skipped;

-- name: count_runs_unanswered_of_tenant :one
select count(*) as n from (
    select * from holdfast.run_now where @unanswered and tenant = :tenant and @page limit :look) as looked
where @fits;
