-- The life of a job from enqueue to its end, in that order. Waiting is in waiting.sql, lost leases in leases.sql.

-- name: enqueue :one on postgres
-- One statement, so that it is one round trip and can run inside the caller's own transaction, which may be long: so
-- routes and lanes are written only when they are new, changed or nearly forgotten, and no row of theirs stays locked
-- because it was used. They are written by one upsert each: one that is being forgotten is waited for, and written
-- anew. A lane is written only with a job: locks come in the order jobs, then lanes, and a call whose unique key is taken
-- has yet to lock the job that has it.
-- What many jobs share travels once: `jobs` are the different ones, `items` each job by itself.
-- `turn` numbers the jobs of one tenant on a fair queue, from 1: they come after this tenant's last one, but before the
-- second turn of the others. A job that is there already, or whose unique key is taken, is not inserted.
with alike as materialized (
    select * from unnest(
        cast(:jobs.kind as text[]), cast(:jobs.queue as text[]), cast(:jobs.route as bigint[]), cast(:jobs.tenant as text[]), cast(:jobs.priority as integer[]),
        cast(:jobs.delay_us as bigint[]), cast(:jobs.due_at as bigint[]), cast(:jobs.timeout_us as bigint[]),
        cast(:jobs.deadline_us as bigint[]), cast(:jobs.deadline_at as bigint[]),
        cast(:jobs.max_attempts as integer[]), cast(:jobs.max_rescues as integer[]),
        cast(:jobs.parent as bigint[]), cast(:jobs.retry_of as uuid[]),
        cast(:jobs.metadata as jsonb[]), cast(:jobs.lane as text[]),
        cast(:jobs.cost as integer[]), cast(:jobs.concurrency as integer[]), cast(:jobs.interval_us as bigint[]),
        cast(:jobs.burst as integer[]), cast(:jobs.unique_key as text[]),
        cast(:jobs.unique_scope as text[]), cast(:jobs.window_us as bigint[])
    ) with ordinality as a (kind, queue, route, tenant, priority, delay_us, due_at, timeout_us, deadline_us,
        deadline_at, max_attempts, max_rescues, parent, retry_of, metadata, lane, cost, concurrency, interval_us, burst,
        unique_key, unique_scope, window_us, number)
), item as materialized (
    select i.id, i.payload, i.turn, a.* from unnest(
        cast(:items.id as uuid[]), cast(:items.payload as json[]), cast(:items.turn as integer[]),
        cast(:items.alike as bigint[])
    ) with ordinality as i (id, payload, turn, alike, place)
    join alike a on a.number = i.alike order by i.place
), given_route as materialized (
    select r.id, r.queue, r.capabilities
    from unnest(cast(:routes.id as bigint[]), cast(:routes.queue as text[]), cast(:routes.capabilities as text[]))
        as r (id, queue, capabilities) order by r.id
), written_route as (
    insert into holdfast.route (id, queue, capabilities, used_at)
    select g.id, g.queue, g.capabilities, holdfast.now_us() from given_route g left join holdfast.route r on r.id = g.id
    where r.id is null or r.used_at < holdfast.now_us() - 1800000000 order by g.id
    on conflict (id) do update set used_at = excluded.used_at
), fresh as (
    insert into holdfast.job (id, kind, queue, route, tenant, state, priority, due_at, timeout_us, deadline_at,
        max_attempts, max_rescues, parent, retry_of, payload, metadata, created_at, lane, cost, unique_key,
        unique_scope, slot)
    select id, kind, queue, route, tenant,
        case when coalesce(due_at, 0) > holdfast.now_us() or delay_us > 0 then 'scheduled' else 'pending' end, priority,
        case when delay_us > 0 then holdfast.now_us() + delay_us when due_at > holdfast.now_us() then due_at end,
        timeout_us, coalesce(deadline_at, holdfast.now_us() + deadline_us),
        max_attempts, max_rescues, parent, retry_of, payload, metadata, holdfast.now_us(), lane, cost,
        unique_key || case when window_us is null then '' else ':' || (holdfast.now_us() / window_us) end, unique_scope,
        case when turn = 0 then 0 else turn - 1 + greatest(
            (select h.slot from holdfast.job h where h.route = item.route and h.priority = item.priority
                and h.state = 'pending' and h.gate is null order by h.slot limit 1),
            (select t.slot + 1 from holdfast.job t where t.route = item.route and t.priority = item.priority
                and t.tenant = item.tenant and t.state = 'pending' and t.slot > 0 order by t.slot desc limit 1),
            1) end
    from item on conflict do nothing
    returning route, state, lane
), given_lane as materialized (
    select distinct on (lane) lane as name, concurrency, interval_us, burst from alike
    where lane = any(array(select lane from fresh)) order by lane
), written_lane as (
    insert into holdfast.lane (name, concurrency, interval_us, burst, updated_at)
    select g.name, g.concurrency, g.interval_us, g.burst, holdfast.now_us() from given_lane g
    left join holdfast.lane l on l.name = g.name
    where l.name is null or l.updated_at < holdfast.now_us() - 3600000000
        or (l.concurrency, l.interval_us, l.burst) is distinct from (g.concurrency, g.interval_us, g.burst)
    order by g.name
    on conflict (name) do update set concurrency = excluded.concurrency, interval_us = excluded.interval_us,
        burst = excluded.burst, updated_at = excluded.updated_at
)
select h.inserted, holdfast.now_us() as now, h.routes,
    case when :notify = 1 then holdfast.hint('route ' || h.routes) end as hinted
from (select count(*) as inserted,
    string_agg(distinct case when state = 'pending' then cast(route as text) end, ',') as routes from fresh) as h;

-- name: enqueue :one on sqlite
-- No data-modifying CTE here: four statements in the one transaction, which locks the whole file anyway. Lanes come first,
-- because `changes` counts the rows of the last insert, so whether a unique key is taken is asked here too.
insert into holdfast.lane (name, concurrency, interval_us, burst, updated_at)
select value ->> :jobs.lane, value ->> :jobs.concurrency, value ->> :jobs.interval_us, value ->> :jobs.burst,
    holdfast.now_us()
from json_each(:jobs) where value ->> :jobs.lane is not null and case value ->> :jobs.unique_scope
    when 'pending' then (select j.seq from holdfast.job j where j.unique_scope = 'pending' and j.token = 0
        and j.state in ('scheduled', 'pending') and j.unique_key = value ->> :jobs.unique_key)
    when 'live' then (select j.seq from holdfast.job j where j.unique_scope = 'live'
        and j.state in ('scheduled', 'pending', 'running', 'waiting') and j.unique_key = value ->> :jobs.unique_key)
    when 'window' then (select j.seq from holdfast.job j where j.unique_scope = 'window'
        and j.unique_key = value ->> :jobs.unique_key || ':' || (holdfast.now_us() / (value ->> :jobs.window_us)))
    end is null
on conflict (name) do update set concurrency = excluded.concurrency, interval_us = excluded.interval_us,
    burst = excluded.burst, updated_at = excluded.updated_at
where (lane.concurrency, lane.interval_us, lane.burst)
    is not (excluded.concurrency, excluded.interval_us, excluded.burst) or lane.updated_at < holdfast.now_us() - 3600000000;
insert into holdfast.route (id, queue, capabilities, used_at)
select value ->> :routes.id, value ->> :routes.queue, value ->> :routes.capabilities, holdfast.now_us()
from json_each(:routes) where true
on conflict (id) do update set used_at = excluded.used_at where route.used_at < holdfast.now_us() - 1800000000;
insert into holdfast.job (id, kind, queue, route, tenant, state, priority, due_at, timeout_us, deadline_at,
    max_attempts, max_rescues, parent, retry_of, payload, metadata, created_at, lane, cost, unique_key,
    unique_scope, slot)
select id, kind, queue, route, tenant,
    case when coalesce(due_at, 0) > holdfast.now_us() or delay_us > 0 then 'scheduled' else 'pending' end, priority,
    case when delay_us > 0 then holdfast.now_us() + delay_us when due_at > holdfast.now_us() then due_at end,
    timeout_us, coalesce(deadline_at, holdfast.now_us() + deadline_us),
    max_attempts, max_rescues, parent, retry_of, payload, metadata, holdfast.now_us(), lane, cost,
    unique_key || case when window_us is null then '' else ':' || (holdfast.now_us() / window_us) end, unique_scope,
    case when turn = 0 then 0 else turn - 1 + max(
        coalesce((select h.slot from holdfast.job h where h.route = item.route and h.priority = item.priority
            and h.state = 'pending' and h.gate is null order by h.slot limit 1), 1),
        coalesce((select t.slot + 1 from holdfast.job t where t.route = item.route and t.priority = item.priority
            and t.tenant = item.tenant and t.state = 'pending' and t.slot > 0 order by t.slot desc limit 1), 1)) end
from (
    select i.value ->> :items.id as id, i.value ->> :items.payload as payload, i.value ->> :items.turn as turn,
        a.value ->> :jobs.kind as kind, a.value ->> :jobs.queue as queue,
        a.value ->> :jobs.route as route, a.value ->> :jobs.tenant as tenant, a.value ->> :jobs.priority as priority,
        a.value ->> :jobs.delay_us as delay_us, a.value ->> :jobs.due_at as due_at,
        a.value ->> :jobs.timeout_us as timeout_us, a.value ->> :jobs.deadline_us as deadline_us,
        a.value ->> :jobs.deadline_at as deadline_at, a.value ->> :jobs.max_attempts as max_attempts,
        a.value ->> :jobs.max_rescues as max_rescues, a.value ->> :jobs.parent as parent,
        a.value ->> :jobs.retry_of as retry_of, a.value ->> :jobs.metadata as metadata,
        a.value ->> :jobs.lane as lane, a.value ->> :jobs.cost as cost, a.value ->> :jobs.unique_key as unique_key,
        a.value ->> :jobs.unique_scope as unique_scope, a.value ->> :jobs.window_us as window_us
    from json_each(:items) as i cross join json_each(:jobs) as a on a.key = (i.value ->> :items.alike) - 1
    order by i.key
) as item where true on conflict do nothing;
select changes() as inserted, holdfast.now_us() as now,
    h.routes, case when :notify = 1 then holdfast.hint('route ' || h.routes) end as hinted
from (select group_concat(distinct value ->> :jobs.route) as routes from json_each(:jobs)
    where changes() > 0 and coalesce(value ->> :jobs.delay_us, 0) = 0
        and coalesce(value ->> :jobs.due_at, 0) <= holdfast.now_us()) as h;

-- name: enqueue_plain :one on postgres
-- What most calls are: one job or many that are alike, on a route that is known, without lane, unique key or turn. It
-- inserts the rows that `enqueue` would, and starts a third as many parts of a plan.
with fresh as (
    insert into holdfast.job (id, kind, queue, route, tenant, state, priority, due_at, timeout_us, deadline_at,
        max_attempts, max_rescues, payload, metadata, created_at)
    select i.id, :kind, :queue, cast(:route as bigint), :tenant,
        case when coalesce(cast(:due_at as bigint), 0) > holdfast.now_us() or cast(:delay_us as bigint) > 0
            then 'scheduled' else 'pending' end, cast(:priority as integer),
        case when cast(:delay_us as bigint) > 0 then holdfast.now_us() + cast(:delay_us as bigint)
            when cast(:due_at as bigint) > holdfast.now_us() then cast(:due_at as bigint) end,
        cast(:timeout_us as bigint),
        coalesce(cast(:deadline_at as bigint), holdfast.now_us() + cast(:deadline_us as bigint)),
        cast(:max_attempts as integer), cast(:max_rescues as integer), i.payload, cast(:metadata as jsonb),
        holdfast.now_us()
    from unnest(cast(:items.id as uuid[]), cast(:items.payload as json[])) with ordinality as i (id, payload, place)
    order by i.place on conflict (id) do nothing
    returning route, state
)
select count(*) as inserted, holdfast.now_us() as now,
    cast(max(case when state = 'pending' then route end) as text) as routes,
    case when :notify = 1 then holdfast.hint('route ' || max(case when state = 'pending' then route end)) end as hinted
from fresh;

-- name: enqueue_plain :one on sqlite
-- No data-modifying CTE here: two statements in the one transaction.
insert into holdfast.job (id, kind, queue, route, tenant, state, priority, due_at, timeout_us, deadline_at,
    max_attempts, max_rescues, payload, metadata, created_at)
select value ->> :items.id, :kind, :queue, :route, :tenant,
    case when coalesce(:due_at, 0) > holdfast.now_us() or :delay_us > 0 then 'scheduled' else 'pending' end, :priority,
    case when :delay_us > 0 then holdfast.now_us() + :delay_us when :due_at > holdfast.now_us() then :due_at end,
    :timeout_us, coalesce(:deadline_at, holdfast.now_us() + :deadline_us),
    :max_attempts, :max_rescues, value ->> :items.payload, :metadata, holdfast.now_us()
from json_each(:items) where true order by key on conflict (id) do nothing;
select changes() as inserted, holdfast.now_us() as now, h.routes,
    case when :notify = 1 then holdfast.hint('route ' || h.routes) end as hinted
from (select case when changes() > 0 and coalesce(:delay_us, 0) = 0 and coalesce(:due_at, 0) <= holdfast.now_us()
    then cast(:route as text) end as routes) as h;

-- name: now :one
select holdfast.now_us() as at;

-- name: take_key :one
-- The first to write the key owns it. The update of nothing makes the loser wait for, and see, the winner's row.
insert into holdfast.idempotency (tenant, key, digest, job, created_at)
values (:tenant, :key, :digest, :job, holdfast.now_us())
on conflict (tenant, key) do update set key = excluded.key
returning digest, cast(job as text) as job;

-- name: find_unique :one
-- The job itself, if it was inserted by a call whose answer was lost; else the one that has its unique key.
select seq, cast(id as text) as id, state, token from holdfast.job where id = :id
union all
select seq, cast(id as text) as id, state, token from holdfast.job
where unique_scope = 'pending' and token = 0 and state in ('scheduled', 'pending') and unique_key = :unique_key
    and :scope = 'pending'
union all
select seq, cast(id as text) as id, state, token from holdfast.job
where unique_scope = 'live' and state in ('scheduled', 'pending', 'running', 'waiting') and unique_key = :unique_key
    and :scope = 'live'
union all
select seq, cast(id as text) as id, state, token from holdfast.job
where unique_scope = 'window' and :scope = 'window'
    and unique_key = :unique_key || ':' || (holdfast.now_us() / cast(:window_us as bigint))
limit 1;

-- name: replace :one
-- The newer call takes the place of one that nobody has claimed yet: what it says, and when it is due. Its lane judges
-- it anew. No row: it was claimed or has ended meanwhile.
update holdfast.job set payload = :payload, metadata = :metadata, priority = :priority,
    state = case when coalesce(cast(:due_at as bigint), 0) > holdfast.now_us() or coalesce(cast(:delay_us as bigint), 0) > 0
        then 'scheduled' else 'pending' end,
    due_at = case when coalesce(cast(:delay_us as bigint), 0) > 0 then holdfast.now_us() + cast(:delay_us as bigint)
        when coalesce(cast(:due_at as bigint), 0) > holdfast.now_us() then cast(:due_at as bigint) end,
    timeout_us = :timeout_us, deadline_at = holdfast.now_us() + cast(:deadline_us as bigint), gate = null
where seq = :seq and token = 0 and state in ('scheduled', 'pending')
returning seq, route, state, lane;

-- name: enqueue_again :one
-- A new job that says what an ended one said. Its deadline is as far away as the old one's was; on a fair queue it
-- comes after its tenant's last one, as in `enqueue`.
insert into holdfast.job (id, kind, queue, route, tenant, state, priority, timeout_us, deadline_at, max_attempts,
    max_rescues, retry_of, payload, metadata, created_at, lane, cost, slot)
select :id, o.kind, o.queue, o.route, o.tenant, 'pending', o.priority, o.timeout_us,
    holdfast.now_us() + (o.deadline_at - o.created_at), o.max_attempts, o.max_rescues, o.id, o.payload, o.metadata,
    holdfast.now_us(), o.lane, o.cost,
    case when o.slot = 0 then 0 else (select max(s.slot) from (
        select 1 as slot
        union all select (select h.slot from holdfast.job h where h.route = o.route and h.priority = o.priority
            and h.state = 'pending' and h.gate is null order by h.slot limit 1)
        union all select (select t.slot + 1 from holdfast.job t where t.route = o.route and t.priority = o.priority
            and t.tenant = o.tenant and t.state = 'pending' and t.slot > 0 order by t.slot desc limit 1)
    ) as s) end
from holdfast.job o where o.seq = :seq and o.state in ('succeeded', 'failed', 'cancelled')
on conflict do nothing
returning seq, route, state;

-- name: repeat_child :one
-- Under the same parent, with the same deadline.
insert into holdfast.job (id, kind, queue, route, tenant, state, priority, timeout_us, deadline_at, max_attempts,
    max_rescues, parent, retry_of, payload, metadata, created_at, lane, cost)
select :id, o.kind, o.queue, o.route, o.tenant, 'pending', o.priority, o.timeout_us, o.deadline_at, o.max_attempts,
    o.max_rescues, o.parent, o.id, o.payload, o.metadata, holdfast.now_us(), o.lane, o.cost
from holdfast.job o where o.seq = :seq and o.state in ('succeeded', 'failed', 'cancelled')
on conflict do nothing
returning seq, parent;

-- name: claim :many on postgres
-- Pick without locks, count what each queue may give by the order of arrival and what each of its routes by the turns
-- of its tenants, then lock that many per route. Locking the picks
-- themselves starves: claimers that chose the same rows come back empty while thousands are claimable. When others
-- took the last of every picked route meanwhile, `spare` takes from the routes that were not picked.
-- Updating by array keeps the plan on the primary key, with or without statistics. A claim names few routes, so each is
-- held against the paused queues by itself.
with served as materialized (
    select s.route from unnest(cast(:routes as bigint[])) as s (route)
    where coalesce((select r.queue from holdfast.route r where r.id = s.route), '') not in (
        select q.name from holdfast.queue q where q.paused_at is not null)
), pick as materialized (
    select p.route, p.queue, @arrival(p), row_number() over (partition by p.queue order by @place(p)) as place
    from served
    cross join lateral (
        select j.route, j.queue, @place(j) from holdfast.job j
        where j.route = served.route and j.state = 'pending' and j.gate is null
        order by @place(j) limit :n
    ) as p
), share as materialized (
    select f.queue, count(*) as n from (select queue from pick order by @arrival limit :n) as f group by f.queue
), quota as materialized (
    select p.route, count(*) as n from pick p join share s on s.queue = p.queue where p.place <= s.n group by p.route
), held as materialized (
    select h.seq from quota
    cross join lateral (
        select j.seq from holdfast.job j
        where j.route = quota.route and j.state = 'pending' and j.gate is null
        order by @place(j) limit quota.n for update skip locked
    ) as h
), spare as materialized (
    select s.seq from served
    cross join lateral (
        select j.seq from holdfast.job j
        where j.route = served.route and j.state = 'pending' and j.gate is null
        order by @place(j) limit :n for update skip locked
    ) as s
    where not exists (select 1 from held) limit :n
)
update holdfast.job set state = 'running', token = token + 1, epoch = (select c.epoch from holdfast.cluster c),
    worker = :worker, claimed_at = holdfast.now_us(), lease_until = holdfast.now_us() + :ttl_us
where seq = any(array(select seq from held union all select seq from spare))
returning seq, cast(id as text) as id, kind, queue, tenant, priority, slot, worker, epoch, token, attempts, max_attempts,
    rescues, timeout_us, deadline_at, claimed_at, lease_until, created_at, parent, lane, payload, metadata;

-- name: claim :many on sqlite
-- No row locks and no lateral: there is one writer, and it is us. What each queue may give is counted the same way.
with pick as materialized (
    select j.seq, row_number() over (order by @arrival(j)) as arrival, j.queue,
        row_number() over (partition by j.queue order by @place(j)) as place
    from json_each(:routes) as served
    cross join holdfast.job j on j.seq in (
        select k.seq from holdfast.job k
        where k.route = served.value and k.state = 'pending' and k.gate is null
        order by @place(k) limit :n)
    where coalesce((select r.queue from holdfast.route r where r.id = served.value), '') not in (
        select q.name from holdfast.queue q where q.paused_at is not null)
), share as materialized (
    select queue, count(*) as n from pick where arrival <= :n group by queue
)
update holdfast.job set state = 'running', token = token + 1, epoch = (select c.epoch from holdfast.cluster c),
    worker = :worker, claimed_at = holdfast.now_us(), lease_until = holdfast.now_us() + :ttl_us
where seq in (select pick.seq from pick join share on share.queue = pick.queue where pick.place <= share.n)
returning seq, cast(id as text) as id, kind, queue, tenant, priority, slot, worker, epoch, token, attempts, max_attempts,
    rescues, timeout_us, deadline_at, claimed_at, lease_until, created_at, parent, lane, payload, metadata;

-- name: heads :many on postgres
-- Which of these routes have something to claim, the most urgent and then the oldest first: one index probe each.
-- Not `exists`, which may be planned as a join that reads the whole backlog. Paused routes: see `look`.
select served.route from unnest(cast(:routes as bigint[])) as served (route)
cross join lateral (
    select @arrival(j) from holdfast.job j
    where j.route = served.route and j.state = 'pending' and j.gate is null
    order by @place(j) limit 1
) as head
where served.route not in (select r.id from holdfast.route r where r.queue = any(array(
    select q.name from holdfast.queue q where q.paused_at is not null)))
order by @arrival(head);

-- name: heads :many on sqlite
-- Forked for the list: json_each where PostgreSQL has unnest.
select served.value as route from json_each(:routes) as served
cross join holdfast.job head on head.seq = (
    select j.seq from holdfast.job j
    where j.route = served.value and j.state = 'pending' and j.gate is null
    order by @place(j) limit 1)
where served.value not in (select p.id from holdfast.paused_route p)
order by @arrival(head);

-- name: complete :many on postgres
-- Ends attempts, whatever their outcome, each under its own token; a row that is not returned was lost.
-- A cancel that was accepted meanwhile wins over every outcome, its reason included. The source state is a column,
-- not a literal, so that only the primary key can find the rows: by the index of running jobs each ending would
-- read them all. The endings come in the order of `lock_jobs`, and the primary key is read in it. A column in which
-- all endings agree is one value long, and this one is read for all of them.
with ending as materialized (
    select e.seq, coalesce(e.worker, (cast(:endings.worker as bigint[]))[1]) as worker,
        coalesce(e.epoch, (cast(:endings.epoch as bigint[]))[1]) as epoch,
        coalesce(e.token, (cast(:endings.token as bigint[]))[1]) as token,
        coalesce(e.outcome, (cast(:endings.outcome as text[]))[1]) as outcome,
        coalesce(e.state, (cast(:endings.state as text[]))[1]) as state,
        coalesce(e.delay_us, (cast(:endings.delay_us as bigint[]))[1]) as delay_us,
        coalesce(e.counted, (cast(:endings.counted as integer[]))[1]) as counted,
        case cardinality(cast(:endings.result as json[]))
            when 1 then (cast(:endings.result as json[]))[1] else e.result end as result,
        case cardinality(cast(:endings.error as json[]))
            when 1 then (cast(:endings.error as json[]))[1] else e.error end as error,
        'running' as source
    from unnest(
        cast(:endings.seq as bigint[]), cast(:endings.worker as bigint[]), cast(:endings.epoch as bigint[]),
        cast(:endings.token as bigint[]), cast(:endings.outcome as text[]), cast(:endings.state as text[]),
        cast(:endings.delay_us as bigint[]), cast(:endings.counted as integer[]),
        cast(:endings.result as json[]), cast(:endings.error as json[])
    ) as e (seq, worker, epoch, token, outcome, state, delay_us, counted, result, error)
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
    where j.seq = any(cast(:seqs as bigint[])) and j.seq = e.seq and j.state = e.source
        and j.worker = e.worker and j.epoch = e.epoch and j.token = e.token
    returning j.seq, e.worker, j.epoch, j.token, j.state, j.route, j.parent, j.lane, j.kind, j.claimed_at, e.outcome,
        e.error
), logged as (
    insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
    select seq, epoch, token, worker, case state when 'cancelled' then 'cancelled' else outcome end,
        claimed_at, holdfast.now_us(), error
    from ended
)
select seq, epoch, token, state, route, parent, lane, kind from ended;

-- name: complete :many on sqlite
-- No data-modifying CTE here: the attempts are written from the rows as they still are, then the rows change.
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at, error)
select j.seq, j.epoch, j.token, j.worker,
    case when j.cancel_requested_at is null then value ->> :endings.outcome else 'cancelled' end,
    j.claimed_at, holdfast.now_us(), value ->> :endings.error
from json_each(:endings) cross join holdfast.job j on j.seq = value ->> :endings.seq
where j.state = 'running' and j.worker = value ->> :endings.worker
    and j.epoch = value ->> :endings.epoch and j.token = value ->> :endings.token;
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
returning seq, epoch, token, state, route, parent, lane, kind;

-- name: ended_attempts :many
-- Which of these jobs' attempts have ended, and how: tells a repeated completion from a lost lease.
select job, epoch, token, outcome from holdfast.attempt where job = any(cast(:seqs as bigint[]));

-- name: parents_of :many
select seq, parent from holdfast.job where seq = any(cast(:seqs as bigint[]));

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

-- name: hint :exec
-- In a caller's transaction: part of it. Everywhere else the driver sends hints when the commit is done.
select holdfast.hint(:note);

-- name: announce :exec on postgres
-- In a caller's transaction, as `hint`.
select sum(length(cast(pg_notify(n.channel, n.payload) as text)))
from unnest(cast(:notes.channel as text[]), cast(:notes.payload as text[])) as n (channel, payload);

-- name: announce :exec on sqlite
-- Nobody can listen to a file from outside.
select json_array_length(:notes);

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

-- name: seq_before :one
-- The next older job, or the one so many further back: the primary key alone is read.
select seq from holdfast.job where seq < :before order by seq desc limit 1 offset :skipped;

-- name: list_jobs :many
-- Between two seqs, because what is asked for may be nowhere.
select seq, cast(id as text) as id, kind, queue, tenant, state, priority, gate, epoch, token, worker, lease_until,
    claimed_at, attempts, max_attempts, rescues, max_rescues, timeout_us, due_at, deadline_at, created_at,
    finished_at, cancel_requested_at, parent, open_children, channel, cast(retry_of as text) as retry_of,
    payload, metadata, progress, result, error
from holdfast.job
where (cast(:state as text) is null or state = :state) and (cast(:queue as text) is null or queue = :queue)
    and (cast(:kind as text) is null or kind = :kind) and (cast(:tenant as text) is null or tenant = :tenant)
    and seq < :before and seq > :after
order by seq desc limit :limit;

-- name: find_running :many
-- What runs is few and has an index of its own. It is gathered before it is sorted, whatever the database thinks of
-- `limit`.
with found as materialized (
    select j.seq from holdfast.job j
    where j.state = 'running' and (cast(:queue as text) is null or j.queue = :queue)
        and (cast(:kind as text) is null or j.kind = :kind) and (cast(:tenant as text) is null or j.tenant = :tenant)
)
select seq from found where seq < :before order by seq desc limit :limit;

-- name: jobs_by_seq :many
select seq, cast(id as text) as id, kind, queue, tenant, state, priority, gate, epoch, token, worker, lease_until,
    claimed_at, attempts, max_attempts, rescues, max_rescues, timeout_us, due_at, deadline_at, created_at,
    finished_at, cancel_requested_at, parent, open_children, channel, cast(retry_of as text) as retry_of,
    payload, metadata, progress, result, error
from holdfast.job where seq = any(cast(:seqs as bigint[])) order by seq desc;

-- name: list_attempts :many
select job, epoch, token, worker, outcome, started_at, ended_at, error
from holdfast.attempt where job = :seq order by started_at, epoch, token;

-- name: find_ended :many
-- What a waiting caller asks, for all the jobs it waits for at once.
select cast(id as text) as id, state, result, error from holdfast.job
where id = any(cast(:ids as uuid[])) and state in ('succeeded', 'failed', 'cancelled');
