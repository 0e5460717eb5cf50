-- How jobs are accepted. A row of `job` says what the caller asked for; a row of `ready` or `later` says where the
-- job is now. On SQLite a trigger of `job` writes that second row.

-- part: one_job
insert into holdfast.job (id, kind, queue, route, tenant, priority, timeout_us, deadline_at, max_attempts, max_rescues,
    payload, metadata, created_at)
values (cast(:id as uuid), :kind, :queue, :route, :tenant, :priority, cast(:timeout_us as bigint),
    coalesce(cast(:deadline_at as bigint), holdfast.now_us() + cast(:deadline_us as bigint)), :max_attempts,
    :max_rescues, cast(:payload as json), cast(:metadata as jsonb), holdfast.now_us())
on conflict (id) do nothing

-- name: enqueue_one :one on postgres
-- What most calls need: one job that can be claimed at once, on a known route, without a lane, a unique key or a
-- turn.
with fresh as (
    @one_job
    returning route, seq, priority, deadline_at
), placed as (
    insert into holdfast.ready (route, slot, seq, token, priority, attempts, rescues, deadline_at)
    select route, 0, seq, 0, priority, 0, 0, deadline_at from fresh
)
select 1 as inserted, cast(route as text) as routes,
    case when :notify = 1 then holdfast.hint('route ' || route) end as hinted
from fresh;

-- name: enqueue_one :one on sqlite
-- Forked: SQLite has no CTE that changes rows. A trigger of `job` writes the row of `ready`.
@one_job
returning 1 as inserted, cast(route as text) as routes,
    case when :notify = 1 then holdfast.hint('route ' || route) end as hinted;

-- name: enqueue_plain :one on postgres
-- Many such jobs that differ only in their payloads.
with fresh as (
    insert into holdfast.job (id, kind, queue, route, tenant, priority, timeout_us, deadline_at, max_attempts, max_rescues,
        payload, metadata, created_at)
    select i.id, :kind, :queue, cast(:route as bigint), :tenant, cast(:priority as integer), cast(:timeout_us as bigint),
        coalesce(cast(:deadline_at as bigint), holdfast.now_us() + cast(:deadline_us as bigint)),
        cast(:max_attempts as integer), cast(:max_rescues as integer), i.payload, cast(:metadata as jsonb),
        holdfast.now_us()
    from rows(:items) with ordinality as i (id uuid, payload json, place)
    order by i.place on conflict (id) do nothing
    returning route, seq, priority, deadline_at
), placed as (
    insert into holdfast.ready (route, slot, seq, token, priority, attempts, rescues, deadline_at)
    select route, 0, seq, 0, priority, 0, 0, deadline_at from fresh
)
select count(*) as inserted, cast(max(route) as text) as routes,
    case when :notify = 1 then holdfast.hint('route ' || max(route)) end as hinted
from fresh;

-- name: enqueue_plain :one on sqlite
-- Forked: SQLite has no CTE that changes rows. Two statements in one transaction.
insert into holdfast.job (id, kind, queue, route, tenant, priority, timeout_us, deadline_at, max_attempts, max_rescues,
    payload, metadata, created_at)
select value ->> :items.id, :kind, :queue, :route, :tenant, :priority, :timeout_us,
    coalesce(:deadline_at, holdfast.now_us() + :deadline_us), :max_attempts, :max_rescues, value ->> :items.payload,
    :metadata, holdfast.now_us()
from json_each(:items) where true order by key on conflict (id) do nothing;
select changes() as inserted, h.routes, case when :notify = 1 then holdfast.hint('route ' || h.routes) end as hinted
from (select case when changes() > 0 then cast(:route as text) end as routes) as h;

-- name: enqueue :one on postgres
-- One statement: it takes one round trip and can run in the caller's own transaction. A route or a lane is written
-- only if it is new, changed or close to being pruned. A caller's transaction may stay open for long, so it writes a
-- note instead, and so does a call that finds the row held: the next transaction that holds the row does what it says. A
-- note waits for nobody, and nobody waits for a note. If somebody is pruning a row, the note brings it back.
-- Both are written only together with a job, so a call whose unique key is taken leaves the limits as they are.
-- `jobs` has what many jobs share, once; `items` has one entry for each job.
-- `turn` numbers the jobs of one tenant on a fair queue, from 1. They come after the last job of this tenant, but
-- before the second turn of the other tenants. A job that exists already, or whose unique key is taken, is not
-- inserted.
-- Nobody removes a key when its job is claimed or ends. The next caller that wants the key sees that its job has
-- released it for good. A job that this statement cannot see yet holds its key.
with alike as materialized (
    select * from rows(:jobs) with ordinality as a (kind text, queue text, route bigint, tenant text, priority integer,
        delay_us bigint, due_at bigint, timeout_us bigint, deadline_us bigint, deadline_at bigint, max_attempts integer,
        max_rescues integer, parent bigint, retry_of uuid, metadata jsonb, lane text, cost integer, concurrency integer,
        interval_us bigint, burst integer, unique_key text, unique_scope text, window_us bigint, layer text, number)
), item as materialized (
    select i.id, i.payload, i.turn, a.*,
        a.unique_key || case when a.window_us is null then '' else ':' || (holdfast.now_us() / a.window_us) end as whole_key
    from rows(:items) with ordinality as i (id uuid, payload json, turn integer, alike bigint, place)
    join alike a on a.number = i.alike order by i.place
), given_route as materialized (
    select r.id, r.queue, r.capabilities
    from rows(:routes) as r (id bigint, queue text, capabilities text) order by r.id
), stale_route as materialized (
    select g.*, r.id is null as missing from given_route g left join holdfast.route r on r.id = g.id
    where r.id is null or r.used_at < holdfast.now_us() - 1800000000
), free_route as materialized (
    select r.id from holdfast.route r
    where :lent = 0 and r.id = any(array(select s.id from stale_route s where not s.missing))
    order by r.id for update skip locked
), written_route as (
    insert into holdfast.route (id, queue, capabilities, used_at)
    select s.id, s.queue, s.capabilities, holdfast.now_us() from stale_route s
    where :lent = 0 and (s.missing or s.id in (select f.id from free_route f)) order by s.id
    on conflict (id) do update set used_at = excluded.used_at
), noted_route as (
    insert into holdfast.route_note (route, queue, capabilities)
    select s.id, s.queue, s.capabilities from stale_route s
    where :lent = 1 or not (s.missing or s.id in (select f.id from free_route f))
), taken_key as (
    insert into holdfast.unique_key (scope, key, job)
    select distinct on (unique_scope, whole_key) unique_scope, whole_key, id from item
    where unique_key is not null and (select j.seq from holdfast.job j where j.id = item.id) is null
    order by unique_scope, whole_key
    on conflict (scope, key) do update set job = excluded.job
    where coalesce((select case unique_key.scope when 'pending' then n.token > 0 when 'live' then n.finished_at is not null end
        from holdfast.job_now n where n.id = unique_key.job), false)
    returning job
), fresh as (
    insert into holdfast.job (id, kind, queue, route, tenant, priority, due_at, timeout_us, deadline_at,
        max_attempts, max_rescues, parent, retry_of, payload, metadata, created_at, lane, cost, unique_key,
        unique_scope, layer, slot)
    select id, kind, queue, route, tenant, priority,
        case when delay_us > 0 then holdfast.now_us() + delay_us when due_at > holdfast.now_us() then due_at end,
        timeout_us, coalesce(deadline_at, holdfast.now_us() + deadline_us),
        max_attempts, max_rescues, parent, retry_of, payload, metadata, holdfast.now_us(), lane, cost, whole_key,
        unique_scope, layer,
        case when turn = 0 then 0 else turn - 1 + greatest(
            (select h.slot from holdfast.ready h where h.route = item.route and h.priority = item.priority
                order by h.slot limit 1),
            (select t.slot + 1 from holdfast.ready t where t.route = item.route and t.priority = item.priority
                and t.tenant = item.tenant and t.slot > 0 order by t.slot desc limit 1),
            (select t.slot + 1 from holdfast.later t where t.route = item.route and t.priority = item.priority
                and t.tenant = item.tenant and t.state = 'blocked' and t.slot > 0 order by t.slot desc limit 1),
            1) end
    from item where unique_key is null or id in (select k.job from taken_key k)
    on conflict (id) do nothing
    returning route, slot, seq, priority, case when lane is not null then cost end as cost, deadline_at, lane,
        case when slot > 0 then tenant end as tenant, due_at
), placed as (
    insert into holdfast.ready (@ready)
    select route, slot, seq, 0, priority, 0, 0, cost, deadline_at, lane, tenant from fresh where due_at is null
), put_off as (
    insert into holdfast.later (@ready, state, due_at)
    select route, slot, seq, 0, priority, 0, 0, cost, deadline_at, lane, tenant, 'scheduled', due_at
    from fresh where due_at is not null
), given_lane as materialized (
    select distinct on (lane) lane as name, concurrency, interval_us, burst from alike
    where lane = any(array(select lane from fresh)) order by lane
), stale_lane as materialized (
    select g.*, l.name is null as missing from given_lane g left join holdfast.lane l on l.name = g.name
    where l.name is null or l.updated_at < holdfast.now_us() - 3600000000
        or (l.concurrency, l.interval_us, l.burst) is distinct from (g.concurrency, g.interval_us, g.burst)
), free_lane as materialized (
    select l.name from holdfast.lane l
    where :lent = 0 and l.name = any(array(select s.name from stale_lane s where not s.missing))
    order by l.name for update skip locked
), noted_lane as (
    insert into holdfast.lane_note (lane, declares, concurrency, interval_us, burst, look_at)
    select s.name, 1, s.concurrency, s.interval_us, s.burst, holdfast.now_us() from stale_lane s
    where :lent = 1 or not (s.missing or s.name in (select f.name from free_lane f))
), written_lane as (
    insert into holdfast.lane (name, concurrency, interval_us, burst, updated_at)
    select s.name, s.concurrency, s.interval_us, s.burst, holdfast.now_us() from stale_lane s
    where :lent = 0 and (s.missing or s.name in (select f.name from free_lane f)) order by s.name
    on conflict (name) do update set concurrency = excluded.concurrency, interval_us = excluded.interval_us,
        burst = excluded.burst, updated_at = excluded.updated_at
)
select h.inserted, h.routes, case when :notify = 1 then holdfast.hint('route ' || h.routes) end as hinted
from (select count(*) as inserted,
    string_agg(distinct case when due_at is null then cast(route as text) end, ',') as routes from fresh) as h;

-- name: enqueue :one on sqlite
-- Forked: SQLite has no CTE that changes rows. Five statements in one transaction, which locks the whole file
-- anyway, so a caller's transaction (`:lent`) is no other. Keys come first: a job is inserted if it has its key. The
-- jobs come last, because `changes` counts the rows of the last insert.
insert into holdfast.unique_key (scope, key, job)
select scope, key, job from (
    select a.value ->> :jobs.unique_scope as scope, (a.value ->> :jobs.unique_key) || case
        when a.value ->> :jobs.window_us is null then '' else ':' || (holdfast.now_us() / (a.value ->> :jobs.window_us)) end
        as key, i.value ->> :items.id as job
    from json_each(:items) as i cross join json_each(:jobs) as a on a.key = (i.value ->> :items.alike) - 1
    where a.value ->> :jobs.unique_key is not null
        and (select j.seq from holdfast.job j where j.id = i.value ->> :items.id) is null
    order by i.key
) where true on conflict (scope, key) do update set job = excluded.job
where (select case unique_key.scope when 'pending' then n.token > 0 when 'live' then n.finished_at is not null end
    from holdfast.job_now n where n.id = unique_key.job);
insert into holdfast.lane (name, concurrency, interval_us, burst, updated_at)
select value ->> :jobs.lane, value ->> :jobs.concurrency, value ->> :jobs.interval_us, value ->> :jobs.burst,
    holdfast.now_us()
from json_each(:jobs) where value ->> :jobs.lane is not null and (value ->> :jobs.unique_key is null
    or (select k.job from holdfast.unique_key k where k.scope = value ->> :jobs.unique_scope
        and k.key = (value ->> :jobs.unique_key) || case when value ->> :jobs.window_us is null then ''
            else ':' || (holdfast.now_us() / (value ->> :jobs.window_us)) end)
        in (select i.value ->> :items.id from json_each(:items) as i))
on conflict (name) do update set concurrency = excluded.concurrency, interval_us = excluded.interval_us,
    burst = excluded.burst, updated_at = excluded.updated_at
where (lane.concurrency, lane.interval_us, lane.burst)
    is not (excluded.concurrency, excluded.interval_us, excluded.burst) or lane.updated_at < holdfast.now_us() - 3600000000;
insert into holdfast.route (id, queue, capabilities, used_at)
select value ->> :routes.id, value ->> :routes.queue, value ->> :routes.capabilities, holdfast.now_us()
from json_each(:routes) where :lent is not null
on conflict (id) do update set used_at = excluded.used_at where route.used_at < holdfast.now_us() - 1800000000;
insert into holdfast.job (id, kind, queue, route, tenant, priority, due_at, timeout_us, deadline_at,
    max_attempts, max_rescues, parent, retry_of, payload, metadata, created_at, lane, cost, unique_key,
    unique_scope, layer, slot)
select id, kind, queue, route, tenant, priority,
    case when delay_us > 0 then holdfast.now_us() + delay_us when due_at > holdfast.now_us() then due_at end,
    timeout_us, coalesce(deadline_at, holdfast.now_us() + deadline_us),
    max_attempts, max_rescues, parent, retry_of, payload, metadata, holdfast.now_us(), lane, cost, whole_key, unique_scope,
    layer,
    case when turn = 0 then 0 else turn - 1 + max(
        coalesce((select h.slot from holdfast.ready h where h.route = item.route and h.priority = item.priority
            order by h.slot limit 1), 1),
        coalesce((select t.slot + 1 from holdfast.ready t where t.route = item.route and t.priority = item.priority
            and t.tenant = item.tenant and t.slot > 0 order by t.slot desc limit 1), 1),
        coalesce((select t.slot + 1 from holdfast.later t where t.route = item.route and t.priority = item.priority
            and t.tenant = item.tenant and t.state = 'blocked' and t.slot > 0 order by t.slot desc limit 1), 1)) end
from (
    select i.value ->> :items.id as id, i.value ->> :items.payload as payload, i.value ->> :items.turn as turn,
        a.value ->> :jobs.kind as kind, a.value ->> :jobs.queue as queue,
        a.value ->> :jobs.route as route, a.value ->> :jobs.tenant as tenant, a.value ->> :jobs.priority as priority,
        a.value ->> :jobs.delay_us as delay_us, a.value ->> :jobs.due_at as due_at,
        a.value ->> :jobs.timeout_us as timeout_us, a.value ->> :jobs.deadline_us as deadline_us,
        a.value ->> :jobs.deadline_at as deadline_at, a.value ->> :jobs.max_attempts as max_attempts,
        a.value ->> :jobs.max_rescues as max_rescues, a.value ->> :jobs.parent as parent,
        a.value ->> :jobs.retry_of as retry_of, a.value ->> :jobs.metadata as metadata,
        a.value ->> :jobs.lane as lane, a.value ->> :jobs.cost as cost, a.value ->> :jobs.unique_scope as unique_scope,
        a.value ->> :jobs.layer as layer,
        (a.value ->> :jobs.unique_key) || case when a.value ->> :jobs.window_us is null then ''
            else ':' || (holdfast.now_us() / (a.value ->> :jobs.window_us)) end as whole_key
    from json_each(:items) as i cross join json_each(:jobs) as a on a.key = (i.value ->> :items.alike) - 1
    order by i.key
) as item
where whole_key is null or id = (select k.job from holdfast.unique_key k where k.scope = unique_scope and k.key = whole_key)
on conflict (id) do nothing;
select changes() as inserted, h.routes, case when :notify = 1 then holdfast.hint('route ' || h.routes) end as hinted
from (select group_concat(distinct value ->> :jobs.route) as routes from json_each(:jobs)
    where changes() > 0 and coalesce(value ->> :jobs.delay_us, 0) = 0
        and coalesce(value ->> :jobs.due_at, 0) <= holdfast.now_us()) as h;

-- name: take_key :one
-- The first to write the key owns it. The update changes nothing, but makes the loser wait for the winner's row and
-- see it.
insert into holdfast.idempotency (tenant, key, digest, job, created_at)
values (:tenant, :key, :digest, :job, holdfast.now_us())
on conflict (tenant, key) do update set key = excluded.key
returning digest, cast(job as text) as job;

-- name: find_key :one
-- Reads who owns a key, without taking it.
select digest, cast(job as text) as job from holdfast.idempotency where tenant = :tenant and key = :key;

-- name: find_unique :one
-- The job itself, if a call whose answer was lost has inserted it; otherwise the job that has its unique key.
select :columns(j) from holdfast.job_now j where j.id = :id
union all
select :columns(j) from holdfast.unique_key k join holdfast.job_now j on j.id = k.job
where k.scope = :scope and k.key = :unique_key || case when cast(:window_us as bigint) is null then ''
    else ':' || (holdfast.now_us() / cast(:window_us as bigint)) end
limit 1;

-- name: replace :one on postgres
-- The newer call replaces what an unclaimed job says and when it is due. The job's lane decides about it again. The
-- row is deleted and inserted again, so that a claim which began earlier does not take the old version. No row is
-- returned if the job was claimed, ended or moved in the meantime.
with from_ready as (
    delete from holdfast.ready where ctid = any(array(
        select r.spot from holdfast.job j cross join lateral (
            select k.ctid as spot from holdfast.ready k where k.route = j.route and k.priority = j.priority
                and k.slot = j.slot and k.seq = j.seq and k.token = 0 for update
        ) as r where j.seq = :seq))
    returning seq
), from_later as (
    delete from holdfast.later where seq = :seq and token = 0 and state in ('scheduled', 'blocked') returning seq
), changed as (
    update holdfast.job set payload = :payload, metadata = :metadata, priority = :priority,
        due_at = case when coalesce(cast(:delay_us as bigint), 0) > 0 then holdfast.now_us() + cast(:delay_us as bigint)
            when coalesce(cast(:due_at as bigint), 0) > holdfast.now_us() then cast(:due_at as bigint) end,
        timeout_us = :timeout_us, deadline_at = holdfast.now_us() + cast(:deadline_us as bigint)
    where seq = any(array(select seq from from_ready union all select seq from from_later))
    returning route, slot, seq, priority, case when lane is not null then cost end as cost, deadline_at, lane,
        case when slot > 0 then tenant end as tenant, due_at
), placed as (
    insert into holdfast.ready (@ready)
    select route, slot, seq, 0, priority, 0, 0, cost, deadline_at, lane, tenant from changed where due_at is null
), put_off as (
    insert into holdfast.later (@ready, state, due_at)
    select route, slot, seq, 0, priority, 0, 0, cost, deadline_at, lane, tenant, 'scheduled', due_at
    from changed where due_at is not null
)
select seq, route, case when due_at is null then 'pending' else 'scheduled' end as state, lane from changed;

-- name: replace :one on sqlite
-- Forked: SQLite has no CTE that changes rows. The job that is in no table after the deletes is the one to insert
-- again.
delete from holdfast.ready where (route, priority, slot, seq) = (select j.route, j.priority, j.slot, j.seq
    from holdfast.job j where j.seq = :seq) and token = 0;
delete from holdfast.later where seq = :seq and token = 0 and state in ('scheduled', 'blocked');
update holdfast.job set payload = :payload, metadata = :metadata, priority = :priority,
    due_at = case when coalesce(:delay_us, 0) > 0 then holdfast.now_us() + :delay_us
        when coalesce(:due_at, 0) > holdfast.now_us() then :due_at end,
    timeout_us = :timeout_us, deadline_at = holdfast.now_us() + :deadline_us
where seq = (select n.seq from holdfast.job_now n where n.seq = :seq and n.state is null);
insert into holdfast.later (@ready, state, due_at)
select j.route, j.slot, j.seq, 0, j.priority, 0, 0, case when j.lane is not null then j.cost end, j.deadline_at, j.lane,
    case when j.slot > 0 then j.tenant end, 'scheduled', j.due_at
from holdfast.job_now n join holdfast.job j on j.seq = n.seq
where n.seq = :seq and n.state is null and j.due_at is not null;
insert into holdfast.ready (@ready)
select j.route, j.slot, j.seq, 0, j.priority, 0, 0, case when j.lane is not null then j.cost end, j.deadline_at, j.lane,
    case when j.slot > 0 then j.tenant end
from holdfast.job_now n join holdfast.job j on j.seq = n.seq
where n.seq = :seq and n.state is null and j.due_at is null;
select :columns(n) from holdfast.job_now n
where n.seq = :seq and n.state in ('scheduled', 'pending') and n.token = 0;

-- part: same_job
-- Enqueues a new job that says what an ended one said. Its deadline is as far away as the old job's was. On a fair
-- queue the new job comes after the last job of its tenant, as in `enqueue`.
insert into holdfast.job (id, kind, queue, route, tenant, priority, timeout_us, deadline_at, max_attempts,
    max_rescues, retry_of, payload, metadata, created_at, lane, cost, slot)
select cast(:id as uuid), o.kind, o.queue, o.route, o.tenant, o.priority, o.timeout_us,
    holdfast.now_us() + (o.deadline_at - o.created_at), o.max_attempts, o.max_rescues, o.id, o.payload, o.metadata,
    holdfast.now_us(), o.lane, o.cost,
    case when o.slot = 0 then 0 else greatest(1,
        coalesce((select h.slot from holdfast.ready h where h.route = o.route and h.priority = o.priority
            order by h.slot limit 1), 1),
        coalesce((select t.slot + 1 from holdfast.ready t where t.route = o.route and t.priority = o.priority
            and t.tenant = o.tenant and t.slot > 0 order by t.slot desc limit 1), 1),
        coalesce((select t.slot + 1 from holdfast.later t where t.route = o.route and t.priority = o.priority
            and t.tenant = o.tenant and t.state = 'blocked' and t.slot > 0 order by t.slot desc limit 1), 1)) end
from holdfast.job o join holdfast.ended e on e.seq = o.seq where o.seq = :seq
on conflict (id) do nothing

-- name: enqueue_again :one on postgres
with fresh as (
    @same_job
    returning route, slot, seq, priority, case when lane is not null then cost end as cost, deadline_at, lane,
        case when slot > 0 then tenant end as tenant
), placed as (
    insert into holdfast.ready (@ready)
    select route, slot, seq, 0, priority, 0, 0, cost, deadline_at, lane, tenant from fresh
)
select seq, route, 'pending' as state from fresh;

-- name: enqueue_again :one on sqlite
-- Forked as `enqueue_one`.
@same_job
returning seq, route, 'pending' as state;

-- part: same_child
-- Enqueues the job again under the same parent, with the same deadline.
insert into holdfast.job (id, kind, queue, route, tenant, priority, timeout_us, deadline_at, max_attempts,
    max_rescues, parent, retry_of, payload, metadata, created_at, lane, cost, layer)
select cast(:id as uuid), o.kind, o.queue, o.route, o.tenant, o.priority, o.timeout_us, o.deadline_at, o.max_attempts,
    o.max_rescues, o.parent, o.id, o.payload, o.metadata, holdfast.now_us(), o.lane, o.cost, o.layer
from holdfast.job o join holdfast.ended e on e.seq = o.seq where o.seq = :seq
on conflict (id) do nothing

-- name: repeat_child :one on postgres
with fresh as (
    @same_child
    returning route, seq, priority, case when lane is not null then cost end as cost, deadline_at, lane, parent
), placed as (
    insert into holdfast.ready (@ready)
    select route, 0, seq, 0, priority, 0, 0, cost, deadline_at, lane, null from fresh
)
select seq, parent from fresh;

-- name: repeat_child :one on sqlite
-- Forked as `enqueue_one`.
@same_child
returning seq, parent;
