-- The life of a job from enqueue to its end, in that order. Waiting is in waiting.sql, lost leases in leases.sql.

-- name: enqueue :one on postgres
-- One statement, so that it is one round trip and can run inside the caller's own transaction. Routes are written
-- in one order by everybody: no deadlock.
with item as materialized (
    select * from unnest(
        cast(:jobs.id as uuid[]), cast(:jobs.kind as text[]), cast(:jobs.queue as text[]),
        cast(:jobs.route as bigint[]), cast(:jobs.tenant as text[]), cast(:jobs.priority as integer[]),
        cast(:jobs.delay_us as bigint[]), cast(:jobs.due_at as bigint[]), cast(:jobs.timeout_us as bigint[]),
        cast(:jobs.deadline_us as bigint[]), cast(:jobs.deadline_at as bigint[]),
        cast(:jobs.max_attempts as integer[]), cast(:jobs.max_rescues as integer[]),
        cast(:jobs.parent as bigint[]), cast(:jobs.retry_of as uuid[]),
        cast(:jobs.payload as json[]), cast(:jobs.metadata as jsonb[])
    ) as i (id, kind, queue, route, tenant, priority, delay_us, due_at, timeout_us, deadline_us, deadline_at,
        max_attempts, max_rescues, parent, retry_of, payload, metadata)
), known as (
    insert into holdfast.route (id, queue, capabilities, used_at)
    select r.id, r.queue, r.capabilities, holdfast.now_us()
    from unnest(cast(:routes.id as bigint[]), cast(:routes.queue as text[]), cast(:routes.capabilities as text[]))
        as r (id, queue, capabilities)
    order by r.id
    on conflict (id) do update set used_at = excluded.used_at
), fresh as (
    insert into holdfast.job (id, kind, queue, route, tenant, state, priority, due_at, timeout_us, deadline_at,
        max_attempts, max_rescues, parent, retry_of, payload, metadata, created_at)
    select id, kind, queue, route, tenant,
        case when coalesce(due_at, 0) > holdfast.now_us() or delay_us > 0 then 'scheduled' else 'pending' end,
        priority,
        case when delay_us > 0 then holdfast.now_us() + delay_us
            when due_at > holdfast.now_us() then due_at end,
        timeout_us, coalesce(deadline_at, holdfast.now_us() + deadline_us),
        max_attempts, max_rescues, parent, retry_of, payload, metadata, holdfast.now_us()
    from item
    on conflict (id) do nothing
    returning route, state
)
select (select count(*) from fresh) as inserted, holdfast.now_us() as now,
    (select holdfast.hint('route ' || string_agg(distinct cast(route as text), ',')) from fresh
        where state = 'pending' and :notify = 1) as hinted;

-- name: enqueue :one on sqlite
-- No data-modifying CTE here: three statements in the one transaction.
insert into holdfast.route (id, queue, capabilities, used_at)
select value ->> :routes.id, value ->> :routes.queue, value ->> :routes.capabilities, holdfast.now_us()
from json_each(:routes) where true
on conflict (id) do update set used_at = excluded.used_at;
insert into holdfast.job (id, kind, queue, route, tenant, state, priority, due_at, timeout_us, deadline_at,
    max_attempts, max_rescues, parent, retry_of, payload, metadata, created_at)
select id, kind, queue, route, tenant,
    case when coalesce(due_at, 0) > holdfast.now_us() or delay_us > 0 then 'scheduled' else 'pending' end,
    priority,
    case when delay_us > 0 then holdfast.now_us() + delay_us
        when due_at > holdfast.now_us() then due_at end,
    timeout_us, coalesce(deadline_at, holdfast.now_us() + deadline_us),
    max_attempts, max_rescues, parent, retry_of, payload, metadata, holdfast.now_us()
from (
    select value ->> :jobs.id as id, value ->> :jobs.kind as kind, value ->> :jobs.queue as queue,
        value ->> :jobs.route as route, value ->> :jobs.tenant as tenant, value ->> :jobs.priority as priority,
        value ->> :jobs.delay_us as delay_us, value ->> :jobs.due_at as due_at,
        value ->> :jobs.timeout_us as timeout_us, value ->> :jobs.deadline_us as deadline_us,
        value ->> :jobs.deadline_at as deadline_at, value ->> :jobs.max_attempts as max_attempts,
        value ->> :jobs.max_rescues as max_rescues, value ->> :jobs.parent as parent,
        value ->> :jobs.retry_of as retry_of, value ->> :jobs.payload as payload,
        value ->> :jobs.metadata as metadata
    from json_each(:jobs)
) where true
on conflict (id) do nothing;
select changes() as inserted, holdfast.now_us() as now,
    (select holdfast.hint('route ' || group_concat(distinct value ->> :jobs.route)) from json_each(:jobs)
        where coalesce(value ->> :jobs.delay_us, 0) = 0
            and coalesce(value ->> :jobs.due_at, 0) <= holdfast.now_us() and :notify = 1) as hinted;

-- name: take_key :one
-- The first to write the key owns it. The update of nothing makes the loser wait for, and see, the winner's row.
insert into holdfast.idempotency (tenant, key, digest, job, created_at)
values (:tenant, :key, :digest, :job, holdfast.now_us())
on conflict (tenant, key) do update set key = excluded.key
returning digest, cast(job as text) as job;

-- name: claim :many on postgres
-- Pick without locks, count what each route may give, then lock that many per route. Locking the picks
-- themselves starves: claimers that chose the same rows come back empty while thousands are claimable. When others
-- took the last of every picked route meanwhile, `spare` takes from the routes that were not picked.
-- Updating by array keeps the plan on the primary key, with or without statistics.
with pick as materialized (
    select p.route from unnest(cast(:routes as bigint[])) as served (route)
    cross join lateral (
        select j.route, j.priority, j.seq from holdfast.job j
        where j.route = served.route and j.state = 'pending' and j.gate is null
        order by j.priority, j.slot, j.seq limit :n
    ) as p
    order by p.priority, p.seq limit :n
), quota as materialized (
    select route, count(*) as n from pick group by route
), held as materialized (
    select h.seq from quota
    cross join lateral (
        select j.seq from holdfast.job j
        where j.route = quota.route and j.state = 'pending' and j.gate is null
        order by j.priority, j.slot, j.seq limit quota.n for update skip locked
    ) as h
), spare as materialized (
    select s.seq from unnest(cast(:routes as bigint[])) as served (route)
    cross join lateral (
        select j.seq from holdfast.job j
        where j.route = served.route and j.state = 'pending' and j.gate is null
        order by j.priority, j.slot, j.seq limit :n for update skip locked
    ) as s
    where not exists (select 1 from held) limit :n
)
update holdfast.job set state = 'running', token = token + 1, epoch = (select c.epoch from holdfast.cluster c),
    worker = :worker, claimed_at = holdfast.now_us(), lease_until = holdfast.now_us() + :ttl_us
where seq = any(array(select seq from held union all select seq from spare))
returning seq, cast(id as text) as id, kind, queue, tenant, priority, worker, epoch, token, attempts, max_attempts,
    rescues, timeout_us, deadline_at, claimed_at, lease_until, created_at, parent, payload, metadata;

-- name: claim :many on sqlite
-- No row locks and no lateral: there is one writer, and it is us. The quota rule is the same.
with pick as materialized (
    select j.seq, j.route, j.priority,
        row_number() over (partition by j.route order by j.priority, j.slot, j.seq) as place
    from json_each(:routes) as served
    cross join holdfast.job j on j.seq in (
        select k.seq from holdfast.job k
        where k.route = served.value and k.state = 'pending' and k.gate is null
        order by k.priority, k.slot, k.seq limit :n)
), quota as materialized (
    select route, count(*) as n from (select route from pick order by priority, seq limit :n) group by route
)
update holdfast.job set state = 'running', token = token + 1, epoch = (select c.epoch from holdfast.cluster c),
    worker = :worker, claimed_at = holdfast.now_us(), lease_until = holdfast.now_us() + :ttl_us
where seq in (select pick.seq from pick join quota on quota.route = pick.route where pick.place <= quota.n)
returning seq, cast(id as text) as id, kind, queue, tenant, priority, worker, epoch, token, attempts, max_attempts,
    rescues, timeout_us, deadline_at, claimed_at, lease_until, created_at, parent, payload, metadata;

-- name: heads :many on postgres
-- Which of these routes have something to claim, the most urgent and then the oldest first: one index probe each.
-- Not `exists`, which may be planned as a join that reads the whole backlog.
select served.route from unnest(cast(:routes as bigint[])) as served (route)
cross join lateral (
    select j.priority, j.seq from holdfast.job j
    where j.route = served.route and j.state = 'pending' and j.gate is null
    order by j.priority, j.slot, j.seq limit 1
) as head
order by head.priority, head.seq;

-- name: heads :many on sqlite
-- Forked for the list: json_each where PostgreSQL has unnest.
select served.value as route from json_each(:routes) as served
cross join holdfast.job head on head.seq = (
    select j.seq from holdfast.job j
    where j.route = served.value and j.state = 'pending' and j.gate is null
    order by j.priority, j.slot, j.seq limit 1)
order by head.priority, head.seq;

-- name: complete :many on postgres
-- Ends attempts, whatever their outcome, each under its own token; a row that is not returned was lost.
-- A cancel that was accepted meanwhile wins over every outcome, its reason included. The source state is a column,
-- not a literal, so that only the primary key can find the rows: by the index of running jobs each ending would
-- read them all. `mine` locks in the order of `lock_jobs`; the update itself may come to the rows in any order.
with ending as materialized (
    select e.*, 'running' as source from unnest(
        cast(:endings.seq as bigint[]), cast(:endings.worker as bigint[]), cast(:endings.epoch as bigint[]),
        cast(:endings.token as bigint[]), cast(:endings.outcome as text[]), cast(:endings.state as text[]),
        cast(:endings.delay_us as bigint[]), cast(:endings.counted as integer[]),
        cast(:endings.result as json[]), cast(:endings.error as json[])
    ) as e (seq, worker, epoch, token, outcome, state, delay_us, counted, result, error)
), mine as materialized (
    select seq from holdfast.job where seq = any(cast(:seqs as bigint[])) order by seq for update
), ended as (
    update holdfast.job j set
        state = case when j.cancel_requested_at is null then e.state else 'cancelled' end,
        worker = null, lease_until = null, attempts = j.attempts + e.counted,
        due_at = case when e.state = 'scheduled' and j.cancel_requested_at is null
            then holdfast.now_us() + e.delay_us end,
        finished_at = case when j.cancel_requested_at is not null or e.state in ('succeeded', 'failed', 'cancelled')
            then holdfast.now_us() end,
        result = case when j.cancel_requested_at is null then e.result end,
        error = case when j.cancel_requested_at is not null then j.error
            when e.state <> 'succeeded' then coalesce(e.error, j.error) end
    from ending e
    where j.seq = any(array(select seq from mine)) and j.seq = e.seq and j.state = e.source
        and j.worker = e.worker and j.epoch = e.epoch and j.token = e.token
    returning j.seq, e.worker, j.epoch, j.token, j.state, j.route, j.parent, j.claimed_at, e.outcome, e.error
), logged as (
    insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
    select seq, epoch, token, worker, case state when 'cancelled' then 'cancelled' else outcome end,
        claimed_at, holdfast.now_us(), error
    from ended
)
select seq, epoch, token, state, route, parent,
    (select holdfast.hint('route ' || string_agg(distinct cast(route as text), ',')) from ended
        where state = 'pending') as hinted
from ended;

-- name: complete :many on sqlite
-- No data-modifying CTE here: the attempts are written from the rows as they still are, then the rows change.
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
select j.seq, j.epoch, j.token, j.worker,
    case when j.cancel_requested_at is null then value ->> :endings.outcome else 'cancelled' end,
    j.claimed_at, holdfast.now_us(), value ->> :endings.error
from json_each(:endings) cross join holdfast.job j on j.seq = value ->> :endings.seq
where j.state = 'running' and j.worker = value ->> :endings.worker
    and j.epoch = value ->> :endings.epoch and j.token = value ->> :endings.token;
select holdfast.hint('route ' || group_concat(distinct j.route))
from json_each(:endings) cross join holdfast.job j on j.seq = value ->> :endings.seq
where value ->> :endings.state = 'pending';
with e as materialized (
    select value ->> :endings.seq as seq, value ->> :endings.worker as worker, value ->> :endings.epoch as epoch,
        value ->> :endings.token as token, value ->> :endings.state as state,
        value ->> :endings.delay_us as delay_us, value ->> :endings.counted as counted,
        value ->> :endings.result as result, value ->> :endings.error as error, 'running' as source
    from json_each(:endings)
)
update holdfast.job as j set
    state = case when j.cancel_requested_at is null then e.state else 'cancelled' end,
    worker = null, lease_until = null, attempts = j.attempts + e.counted,
    due_at = case when e.state = 'scheduled' and j.cancel_requested_at is null
        then holdfast.now_us() + e.delay_us end,
    finished_at = case when j.cancel_requested_at is not null or e.state in ('succeeded', 'failed', 'cancelled')
        then holdfast.now_us() end,
    result = case when j.cancel_requested_at is null then e.result end,
    error = case when j.cancel_requested_at is not null then j.error
        when e.state <> 'succeeded' then coalesce(e.error, j.error) end
from e
where j.seq = any(:seqs) and j.seq = e.seq and j.state = e.source
    and j.worker = e.worker and j.epoch = e.epoch and j.token = e.token
returning seq, epoch, token, state, route, parent, null as hinted;

-- name: ended_attempts :many
-- Which of these jobs' attempts have ended, and how: tells a repeated completion from a lost lease.
select job, epoch, token, outcome from holdfast.attempt where job = any(cast(:seqs as bigint[]));

-- name: lock_jobs :many on postgres
-- Parents are older than their children, so ascending seq is one order for everybody: no deadlock.
select seq, cast(id as text) as id, state, parent, open_children, cancel_requested_at from holdfast.job
where seq = any(cast(:seqs as bigint[])) order by seq for update;

-- name: lock_jobs :many on sqlite
-- The transaction holds the write lock already.
select seq, cast(id as text) as id, state, parent, open_children, cancel_requested_at from holdfast.job
where seq = any(:seqs) order by seq;

-- name: settle_parent :one
-- A child's end and its parent's counter change in one transaction. At zero a parent parked on its children wakes.
update holdfast.job set open_children = open_children - :ended,
    state = case when state = 'waiting' and channel is null and open_children = :ended then 'pending' else state end,
    due_at = case when state = 'waiting' and channel is null and open_children = :ended then null else due_at end
where seq = :parent
returning seq, route, state;

-- name: hint_routes :exec
select holdfast.hint('route ' || :routes);

-- name: report_progress :one
update holdfast.job set progress = :progress
where seq = :seq and state = 'running' and worker = :worker and epoch = :epoch and token = :token
returning seq;

-- name: find_job :one
select seq, cast(id as text) as id, kind, queue, tenant, state, priority, gate, epoch, token, worker, lease_until,
    claimed_at, attempts, max_attempts, rescues, max_rescues, timeout_us, due_at, deadline_at, created_at,
    finished_at, cancel_requested_at, parent, open_children, channel, cast(retry_of as text) as retry_of,
    payload, metadata, progress, result, error
from holdfast.job where id = :id;

-- name: list_jobs :many
select seq, cast(id as text) as id, kind, queue, tenant, state, priority, gate, epoch, token, worker, lease_until,
    claimed_at, attempts, max_attempts, rescues, max_rescues, timeout_us, due_at, deadline_at, created_at,
    finished_at, cancel_requested_at, parent, open_children, channel, cast(retry_of as text) as retry_of,
    payload, metadata, progress, result, error
from holdfast.job
where (cast(:state as text) is null or state = :state) and (cast(:queue as text) is null or queue = :queue)
    and (cast(:kind as text) is null or kind = :kind) and (cast(:tenant as text) is null or tenant = :tenant)
    and seq < :before
order by seq desc limit :limit;

-- name: list_attempts :many
select job, epoch, token, worker, outcome, started_at, ended_at, error
from holdfast.attempt where job = :seq order by started_at, epoch, token;

-- name: find_ended :many
-- What a waiting caller asks, for all the jobs it waits for at once.
select cast(id as text) as id, state, result, error from holdfast.job
where id = any(cast(:ids as uuid[])) and state in ('succeeded', 'failed', 'cancelled');
