-- Plans, actions, and the public ids of their jobs.

-- name: add_plan :one
insert into holdfast.plan (tenant, id, body, digest, created_at)
values (:tenant, :id, :body, :digest, holdfast.now_us())
on conflict (tenant, id) do nothing
returning :columns;

-- name: find_plan :one
select :columns from holdfast.plan where tenant = :tenant and id = :id;

-- name: lock_plan :one
-- Against an action that is submitted while the plan is removed.
select :columns from holdfast.plan where tenant = :tenant and id = :id for update;

-- name: list_plans :many
select :columns from holdfast.plan where tenant = :tenant order by created_at desc, id limit :limit offset :skipped;

-- name: remove_plan :exec
delete from holdfast.plan where tenant = :tenant and id = :id;

-- name: plan_use :one
-- How much a plan is used, and whether any of its jobs has not ended.
select count(distinct p.action) as actions, count(*) as jobs, max(p.created_at) as last_used_at,
    coalesce(sum(case when e.seq is null and j.seq is not null then 1 else 0 end), 0) as active
from holdfast.plan_job p
left join holdfast.job j on j.id = p.job
left join holdfast.ended e on e.seq = j.seq
where p.tenant = :tenant and p.plan = :plan;

-- name: add_action :one
insert into holdfast.action (tenant, id, plan, inputs, created_at)
values (:tenant, :id, :plan, :inputs, holdfast.now_us())
on conflict (tenant, id) do nothing
returning :columns;

-- name: find_action :one
select :columns from holdfast.action where tenant = :tenant and id = :id;

-- name: list_actions :many
select :columns from holdfast.action where tenant = :tenant order by created_at desc, id limit :limit offset :skipped;

-- name: add_plan_job :exec
insert into holdfast.plan_job (id, tenant, action, plan, place, job, created_at)
values (:id, :tenant, :action, :plan, :place, :job, holdfast.now_us());

-- name: find_plan_job :one
select :columns from holdfast.plan_job where id = :id;

-- name: lock_plan_job :one
select :columns from holdfast.plan_job where id = :id for update;

-- name: find_by_job :one
select :columns from holdfast.plan_job where job = :job;

-- name: names_of_jobs :many
select cast(job as text) as job, id from holdfast.plan_job where job = any(cast(:jobs as uuid[]));

-- name: replace_job :exec
update holdfast.plan_job set job = :job, retries = retries + 1 where id = :id;

-- name: action_jobs :many
-- What retention has removed has no state any more.
select p.id, p.place, p.retries, j.state, j.attempts + j.rescues as attempts, j.max_attempts
from holdfast.plan_job p left join holdfast.job_now j on j.id = p.job
where p.tenant = :tenant and p.action = :action order by p.place;

-- name: find_by_jobs :many
select :columns from holdfast.plan_job where job = any(cast(:jobs as uuid[]));

-- name: plan_ids :many
select id from holdfast.plan where tenant = :tenant order by created_at desc, id limit :limit;

-- name: count_action_jobs :many
-- How many jobs of each action are in each state; `spent`: they have no attempts left.
select p.action, j.state, case when j.attempts + j.rescues >= j.max_attempts then 1 else 0 end as spent, count(*) as jobs
from holdfast.plan_job p left join holdfast.job_now j on j.id = p.job
where p.tenant = :tenant and p.action = any(cast(:actions as text[]))
group by 1, 2, 3;

-- name: recent_jobs :many
-- By way of their actions: an index has these in the order of time. An action has a job at least, so no more actions are
-- needed than jobs.
select :columns(p)
from (select a.id, a.created_at from holdfast.action a where a.tenant = :tenant
    order by a.created_at desc, a.id limit :look) as newest
join holdfast.plan_job p on p.tenant = :tenant and p.action = newest.id
order by newest.created_at desc, newest.id, p.place desc limit :limit offset :skipped;

-- name: recent_states :many
-- As `recent_jobs`; then how each of them stands.
select p.id, p.plan, j.state, j.attempts + j.rescues as attempts, j.max_attempts
from (
    select p.id, p.plan, p.job, newest.created_at, newest.id as action, p.place
    from (select a.id, a.created_at from holdfast.action a where a.tenant = :tenant
        order by a.created_at desc, a.id limit :look) as newest
    join holdfast.plan_job p on p.tenant = :tenant and p.action = newest.id
    order by newest.created_at desc, newest.id, p.place desc limit :look
) as p
left join holdfast.job_now j on j.id = p.job
order by p.created_at desc, p.action, p.place desc;

-- name: actions_after :many
-- The next actions in the order of their ids, and which of them retention has left no job of.
select a.tenant, a.id, case when not exists (
    select 1 from holdfast.plan_job p join holdfast.job j on j.id = p.job where p.tenant = a.tenant and p.action = a.id)
    then 1 else 0 end as spent
from holdfast.action a where (a.tenant, a.id) > (:tenant, :id) order by a.tenant, a.id limit :limit;

-- name: lock_action_jobs :many
-- Against a job of it that is retried meanwhile.
select :columns from holdfast.plan_job where tenant = :tenant and action = :action order by id for update;

-- name: count_kept_jobs :one
select count(*) as jobs from holdfast.plan_job p join holdfast.job j on j.id = p.job
where p.tenant = :tenant and p.action = :action;

-- name: remove_action_jobs :exec
delete from holdfast.plan_job where tenant = :tenant and action = :action;

-- name: remove_action :exec
delete from holdfast.action where tenant = :tenant and id = :action;

-- name: erase_jobs :many
delete from holdfast.plan_job where id in (
    select p.id from holdfast.plan_job p where p.tenant = :tenant order by p.id limit :limit)
returning id;

-- name: erase_actions :many
delete from holdfast.action where tenant = :tenant and id in (
    select a.id from holdfast.action a where a.tenant = :tenant order by a.id limit :limit)
returning id;

-- name: erase_plans :many
delete from holdfast.plan where tenant = :tenant and id in (
    select p.id from holdfast.plan p where p.tenant = :tenant order by p.id limit :limit)
returning id;
