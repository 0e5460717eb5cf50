-- An owner of Universal Agent's runs is stored under a name of its own, apart from a worker of the same name. The views
-- show its name as its callers know it.
-- oldest_code: 8

-- up
drop view run_attempts;
drop view runs;

create view runs as
select a.name as run_id,
    case when j.state in ('pending', 'scheduled', 'waiting') then 'queued' when j.state = 'succeeded' then 'completed'
        when j.state = 'running' and j.cancel_requested_at is not null then 'cancel_requested'
        when j.state = 'failed' and j.error ->> '$.type' = 'rescue_failed' then 'needs_review'
        when j.seq is null then 'pruned' else j.state end as status,
    j.payload ->> '$.prompt' as last_job_prompt, j.payload ->> '$.workspace_dir' as workspace_dir,
    j.payload ->> '$.max_iterations' as max_iterations,
    case w.principal when 'universal_agent' then w.name else w.id end as lease_owner,
    datetime(j.lease_until / 1000000.0, 'unixepoch') as lease_expires_at,
    a.attempts + coalesce((select count(*) from attempt_now t where t.job = j.seq), 0)
        + case when j.state = 'running' then 1 else 0 end as attempts,
    case when j.state in ('failed', 'cancelled') then j.error ->> '$.type' end as failure_class,
    case when j.state in ('failed', 'cancelled') then j.error ->> '$.message' end as failure_reason,
    datetime(a.created_at / 1000000.0, 'unixepoch', 'subsec') as created_at,
    datetime(j.finished_at / 1000000.0, 'unixepoch', 'subsec') as finished_at, a.job as job_id
from alias a
left join job_now j on j.id = a.job
left join worker w on w.seq = j.worker
where a.scope = 'universal_agent'
    and a.number = (select max(b.number) from alias b where b.scope = a.scope and b.name = a.name);

create view run_attempts as
select a.name as run_id, a.attempts + row_number() over (partition by a.job order by t.epoch, t.token) as attempt_number,
    case t.outcome when 'succeeded' then 'completed' else t.outcome end as status,
    case w.principal when 'universal_agent' then w.name else w.id end as lease_owner,
    t.error ->> '$.type' as failure_class, t.error ->> '$.message' as failure_reason,
    datetime(t.started_at / 1000000.0, 'unixepoch') as started_at, datetime(t.ended_at / 1000000.0, 'unixepoch') as ended_at
from alias a
join job j on j.id = a.job
join (
    select job, epoch, token, worker, outcome, started_at, ended_at, error from attempt_now
    union all
    select seq, epoch, token, worker, 'running', claimed_at, null, null from lease
) as t on t.job = j.seq
left join worker w on w.seq = t.worker
where a.scope = 'universal_agent';

-- down
drop view run_attempts;
drop view runs;

create view runs as
select a.name as run_id,
    case when j.state in ('pending', 'scheduled', 'waiting') then 'queued' when j.state = 'succeeded' then 'completed'
        when j.state = 'running' and j.cancel_requested_at is not null then 'cancel_requested'
        when j.state = 'failed' and j.error ->> '$.type' = 'rescue_failed' then 'needs_review'
        when j.seq is null then 'pruned' else j.state end as status,
    j.payload ->> '$.prompt' as last_job_prompt, j.payload ->> '$.workspace_dir' as workspace_dir,
    j.payload ->> '$.max_iterations' as max_iterations, w.id as lease_owner,
    datetime(j.lease_until / 1000000.0, 'unixepoch') as lease_expires_at,
    a.attempts + coalesce((select count(*) from attempt_now t where t.job = j.seq), 0)
        + case when j.state = 'running' then 1 else 0 end as attempts,
    case when j.state in ('failed', 'cancelled') then j.error ->> '$.type' end as failure_class,
    case when j.state in ('failed', 'cancelled') then j.error ->> '$.message' end as failure_reason,
    datetime(a.created_at / 1000000.0, 'unixepoch', 'subsec') as created_at,
    datetime(j.finished_at / 1000000.0, 'unixepoch', 'subsec') as finished_at, a.job as job_id
from alias a
left join job_now j on j.id = a.job
left join worker w on w.seq = j.worker
where a.scope = 'universal_agent'
    and a.number = (select max(b.number) from alias b where b.scope = a.scope and b.name = a.name);

create view run_attempts as
select a.name as run_id, a.attempts + row_number() over (partition by a.job order by t.epoch, t.token) as attempt_number,
    case t.outcome when 'succeeded' then 'completed' else t.outcome end as status, w.id as lease_owner,
    t.error ->> '$.type' as failure_class, t.error ->> '$.message' as failure_reason,
    datetime(t.started_at / 1000000.0, 'unixepoch') as started_at, datetime(t.ended_at / 1000000.0, 'unixepoch') as ended_at
from alias a
join job j on j.id = a.job
join (
    select job, epoch, token, worker, outcome, started_at, ended_at, error from attempt_now
    union all
    select seq, epoch, token, worker, 'running', claimed_at, null, null from lease
) as t on t.job = j.seq
left join worker w on w.seq = t.worker
where a.scope = 'universal_agent';
