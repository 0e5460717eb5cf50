-- FlatAgents' workers and work items as its document prints the tables. Nothing writes to these views.
-- oldest_code: 8

-- up
create view worker_registry as
select w.id as worker_id,
    case when w.status = 'active' then coalesce(w.metadata ->> '$.status', 'active')
        when w.status = 'draining' then 'terminating' when w.status = 'stopped' then 'terminated' else w.status end as status,
    w.metadata ->> '$.host' as host, w.metadata ->> '$.pid' as pid, w.capabilities, w.pool as pool_id,
    coalesce(w.metadata ->> '$.started_at', strftime('%Y-%m-%dT%H:%M:%fZ', w.started_at / 1000000.0, 'unixepoch')) as started_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', w.heartbeat_at / 1000000.0, 'unixepoch') as last_heartbeat,
    (select j.id from lease l join job j on j.seq = l.seq where l.worker = w.seq order by l.seq limit 1) as current_task_id
from worker w
where w.principal = 'flatagents' and w.metadata ->> '$.registered' = 1
    and w.seq = (select max(n.seq) from worker n
        where n.id = w.id and n.principal = 'flatagents' and n.metadata ->> '$.registered' = 1);

create view work_pool as
select j.id, substr(j.queue, length('flatagents.') + 1) as pool_name, j.payload as data,
    case j.state when 'running' then 'claimed' when 'succeeded' then 'done' when 'failed' then 'poisoned'
        when 'cancelled' then 'cancelled' else 'pending' end as status,
    w.id as claimed_by,
    case when j.state = 'running' then strftime('%Y-%m-%dT%H:%M:%fZ', j.claimed_at / 1000000.0, 'unixepoch') end as claimed_at,
    j.attempts, j.result, j.error ->> '$.message' as error,
    strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1000000.0, 'unixepoch') as created_at
from job_now j
left join worker w on w.seq = j.worker
where j.kind = 'flatagents.work';

-- down
drop view work_pool;
drop view worker_registry;
