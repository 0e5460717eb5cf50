-- How many runs a list would give, among as many as a count looks at.

-- name: count_runs_all :one
select count(*) as n from (
    select * from holdfast.run_now
    where (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (cast(:mode as text) is null or mode = :mode);

-- name: count_runs_of_session :one
select count(*) as n from (
    select * from holdfast.run_now
    where session = :session and (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (cast(:mode as text) is null or mode = :mode);

-- name: count_runs_of_parent :one
select count(*) as n from (
    select * from holdfast.run_now
    where parent = :parent and (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (cast(:mode as text) is null or mode = :mode);

-- name: count_runs_of_agent :one
select count(*) as n from (
    select * from holdfast.run_now
    where agent = :agent and (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (cast(:mode as text) is null or mode = :mode);

-- name: count_runs_of_tenant :one
select count(*) as n from (
    select * from holdfast.run_now
    where tenant = :tenant and (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (cast(:mode as text) is null or mode = :mode);

-- name: count_runs_open :one
select count(*) as n from (
    select * from holdfast.run_now
    where finalized_at is null and (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (cast(:mode as text) is null or mode = :mode);

-- name: count_runs_open_of_tenant :one
select count(*) as n from (
    select * from holdfast.run_now
    where finalized_at is null and tenant = :tenant and (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (cast(:mode as text) is null or mode = :mode);

-- name: count_runs_unanswered :one
select count(*) as n from (
    select * from holdfast.run_now
    where finalized_at is not null and outcome is null and (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (cast(:mode as text) is null or mode = :mode);

-- name: count_runs_unanswered_of_tenant :one
select count(*) as n from (
    select * from holdfast.run_now
    where finalized_at is not null and outcome is null and tenant = :tenant and (created_at, id) < (:before_at, :before) and created_at >= :since
    order by created_at desc, id desc limit :look) as looked
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:session as text) is null or session = :session)
    and (cast(:agent as text) is null or agent = :agent or agent_name = :agent)
    and (cast(:state as text) is null or state = :state) and (cast(:parent as text) is null or parent = :parent)
    and (cast(:mode as text) is null or mode = :mode);
