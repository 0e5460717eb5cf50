-- An owner of Universal Agent's runs is stored under a name of its own, apart from a worker of the same name. The views
-- show its name as its callers know it.
-- oldest_code: 8

-- up
drop view holdfast.run_attempts;
drop view holdfast.runs;

create view holdfast.runs as
select a.name as run_id,
    case when j.state in ('pending', 'scheduled', 'waiting') then 'queued' when j.state = 'succeeded' then 'completed'
        when j.state = 'running' and j.cancel_requested_at is not null then 'cancel_requested'
        when j.state = 'failed' and j.error ->> 'type' = 'rescue_failed' then 'needs_review'
        when j.seq is null then 'pruned' else j.state end as status,
    j.payload ->> 'prompt' as last_job_prompt, j.payload ->> 'workspace_dir' as workspace_dir,
    cast(j.payload ->> 'max_iterations' as integer) as max_iterations,
    case w.principal when 'universal_agent' then w.name else w.id end as lease_owner,
    to_char(to_timestamp(j.lease_until / 1000000) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as lease_expires_at,
    a.attempts + coalesce((select count(*) from holdfast.attempt_now t where t.job = j.seq), 0)
        + case when j.state = 'running' then 1 else 0 end as attempts,
    case when j.state in ('failed', 'cancelled') then j.error ->> 'type' end as failure_class,
    case when j.state in ('failed', 'cancelled') then j.error ->> 'message' end as failure_reason,
    to_char(to_timestamp(a.created_at / 1000000.0) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.MS') as created_at,
    to_char(to_timestamp(j.finished_at / 1000000.0) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.MS') as finished_at,
    a.job as job_id
from holdfast.alias a
left join holdfast.job_now j on j.id = a.job
left join holdfast.worker w on w.seq = j.worker
where a.scope = 'universal_agent'
    and a.number = (select max(b.number) from holdfast.alias b where b.scope = a.scope and b.name = a.name);

create view holdfast.run_attempts as
select a.name as run_id, a.attempts + row_number() over (partition by a.job order by t.epoch, t.token) as attempt_number,
    case t.outcome when 'succeeded' then 'completed' else t.outcome end as status,
    case w.principal when 'universal_agent' then w.name else w.id end as lease_owner,
    t.error ->> 'type' as failure_class, t.error ->> 'message' as failure_reason,
    to_char(to_timestamp(t.started_at / 1000000) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as started_at,
    to_char(to_timestamp(t.ended_at / 1000000) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as ended_at
from holdfast.alias a
join holdfast.job j on j.id = a.job
join (
    select job, epoch, token, worker, outcome, started_at, ended_at, error from holdfast.attempt_now
    union all
    select seq, epoch, token, worker, 'running', claimed_at, null, null from holdfast.lease
) as t on t.job = j.seq
left join holdfast.worker w on w.seq = t.worker
where a.scope = 'universal_agent';

-- down
drop view holdfast.run_attempts;
drop view holdfast.runs;

create view holdfast.runs as
select a.name as run_id,
    case when j.state in ('pending', 'scheduled', 'waiting') then 'queued' when j.state = 'succeeded' then 'completed'
        when j.state = 'running' and j.cancel_requested_at is not null then 'cancel_requested'
        when j.state = 'failed' and j.error ->> 'type' = 'rescue_failed' then 'needs_review'
        when j.seq is null then 'pruned' else j.state end as status,
    j.payload ->> 'prompt' as last_job_prompt, j.payload ->> 'workspace_dir' as workspace_dir,
    cast(j.payload ->> 'max_iterations' as integer) as max_iterations, w.id as lease_owner,
    to_char(to_timestamp(j.lease_until / 1000000) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as lease_expires_at,
    a.attempts + coalesce((select count(*) from holdfast.attempt_now t where t.job = j.seq), 0)
        + case when j.state = 'running' then 1 else 0 end as attempts,
    case when j.state in ('failed', 'cancelled') then j.error ->> 'type' end as failure_class,
    case when j.state in ('failed', 'cancelled') then j.error ->> 'message' end as failure_reason,
    to_char(to_timestamp(a.created_at / 1000000.0) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.MS') as created_at,
    to_char(to_timestamp(j.finished_at / 1000000.0) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.MS') as finished_at,
    a.job as job_id
from holdfast.alias a
left join holdfast.job_now j on j.id = a.job
left join holdfast.worker w on w.seq = j.worker
where a.scope = 'universal_agent'
    and a.number = (select max(b.number) from holdfast.alias b where b.scope = a.scope and b.name = a.name);

create view holdfast.run_attempts as
select a.name as run_id, a.attempts + row_number() over (partition by a.job order by t.epoch, t.token) as attempt_number,
    case t.outcome when 'succeeded' then 'completed' else t.outcome end as status, w.id as lease_owner,
    t.error ->> 'type' as failure_class, t.error ->> 'message' as failure_reason,
    to_char(to_timestamp(t.started_at / 1000000) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as started_at,
    to_char(to_timestamp(t.ended_at / 1000000) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') as ended_at
from holdfast.alias a
join holdfast.job j on j.id = a.job
join (
    select job, epoch, token, worker, outcome, started_at, ended_at, error from holdfast.attempt_now
    union all
    select seq, epoch, token, worker, 'running', claimed_at, null, null from holdfast.lease
) as t on t.job = j.seq
left join holdfast.worker w on w.seq = t.worker
where a.scope = 'universal_agent';
