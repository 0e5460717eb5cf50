-- FlatAgents' workers and work items as its document prints the tables. Nothing writes to these views.
-- oldest_code: 8

-- up
create view holdfast.worker_registry as
select w.id as worker_id,
    case when w.status = 'active' then coalesce(w.metadata ->> 'status', 'active')
        when w.status = 'draining' then 'terminating' when w.status = 'stopped' then 'terminated' else w.status end as status,
    w.metadata ->> 'host' as host, cast(w.metadata ->> 'pid' as integer) as pid, w.capabilities, w.pool as pool_id,
    coalesce(w.metadata ->> 'started_at', to_char(to_timestamp(w.started_at / 1000000.0) at time zone 'utc',
        'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')) as started_at,
    to_char(to_timestamp(w.heartbeat_at / 1000000.0) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as last_heartbeat,
    (select cast(j.id as text) from holdfast.lease l join holdfast.job j on j.seq = l.seq
        where l.worker = w.seq order by l.seq limit 1) as current_task_id
from holdfast.worker w
where w.principal = 'flatagents' and w.metadata ->> 'registered' = 'true'
    and w.seq = (select max(n.seq) from holdfast.worker n
        where n.id = w.id and n.principal = 'flatagents' and n.metadata ->> 'registered' = 'true');

create view holdfast.work_pool as
select cast(j.id as text) as id, substr(j.queue, length('flatagents.') + 1) as pool_name, cast(j.payload as text) as data,
    case j.state when 'running' then 'claimed' when 'succeeded' then 'done' when 'failed' then 'poisoned'
        when 'cancelled' then 'cancelled' else 'pending' end as status,
    w.id as claimed_by,
    case when j.state = 'running' then to_char(to_timestamp(j.claimed_at / 1000000.0) at time zone 'utc',
        'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') end as claimed_at,
    j.attempts, cast(j.result as text) as result, j.error ->> 'message' as error,
    to_char(to_timestamp(j.created_at / 1000000.0) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as created_at
from holdfast.job_now j
left join holdfast.worker w on w.seq = j.worker
where j.kind = 'flatagents.work';

-- down
drop view holdfast.work_pool;
drop view holdfast.worker_registry;
