-- Leases for code that is no worker of ours: many who wait are served at once, a job is taken by its id, and leases are
-- found by their owner's name.

-- name: offers :many on postgres
-- What those who wait may have, locked. They are shared out in Python, and what nobody gets stays where it is. Nothing
-- is offered of a queue that is paused. Who waits for the same routes is one party. As in `claim`: pick rows without
-- locks, count how many of each route a party would get by the order of arrival, then lock that many there, and no more
-- than are wanted in all. Otherwise one call for a job would lock the first job of every route, and others who claim
-- beside it would find nothing.
with pick as materialized (
    select w.route, w.n, w.tenant, row_number() over (partition by w.party order by @arrival(k)) as place
    from rows(:wants) as w (party bigint, route bigint, n bigint, tenant text)
    cross join lateral (
        select @arrival(k) from holdfast.ready k where k.route = w.route
            and (w.tenant is null or (select j.tenant from holdfast.job j where j.seq = k.seq) = w.tenant)
        order by @place(k) limit least(w.n, cast(:most as bigint))
    ) as k
    where coalesce((select r.queue from holdfast.route r where r.id = w.route), '') not in (
        select q.name from holdfast.queue q where q.paused_at is not null)
), quota as materialized (
    select p.route, p.tenant, count(*) as n from pick p where p.place <= p.n group by p.route, p.tenant
)
select k.seq, quota.route, k.priority, k.slot, k.lane, k.cost, quota.tenant
from quota
cross join lateral (
    select k.seq, k.priority, k.slot, k.lane, k.cost from holdfast.ready k where k.route = quota.route
        and (quota.tenant is null or (select j.tenant from holdfast.job j where j.seq = k.seq) = quota.tenant)
    order by @place(k) limit quota.n for update skip locked
) as k;

-- name: offers :many on sqlite
-- Forked: a limit in SQLite cannot name a column. With one writer it does not matter to look at more than one party
-- wants, but nobody reads more than are wanted in all.
select f.value ->> 2 as seq, w.route, f.value ->> 0 as priority, f.value ->> 1 as slot, f.value ->> 3 as lane,
    f.value ->> 4 as cost, w.tenant
from (select value ->> :wants.route as route, value ->> :wants.tenant as tenant, sum(value ->> :wants.n) as n
    from json_each(:wants) group by 1, 2) as w
cross join json_each((
    select json_group_array(json_array(@place(first), first.lane, first.cost)) from (
        select @place(r), r.lane, r.cost from holdfast.ready r where r.route = w.route
            and (w.tenant is null or (select j.tenant from holdfast.job j where j.seq = r.seq) = w.tenant)
        order by @place(r) limit :most
    ) as first
)) as f
where f.key < w.n and coalesce((select r.queue from holdfast.route r where r.id = w.route), '') not in (
    select q.name from holdfast.queue q where q.paused_at is not null);

-- name: take_for :many on postgres
-- Takes jobs that are locked, each for its own holder, as `take` does for one. A holder that drains or was given up
-- gets nothing. No lease is longer than its job may run: nobody else ends the attempt of a holder that is not ours.
with asked as materialized (
    select t.worker, t.ttl_us, j.route, @place(j)
    from rows(:takings) as t (seq bigint, worker bigint, ttl_us bigint)
    cross join lateral (
        select k.route, @place(k) from holdfast.job k where k.seq = t.seq offset 0
    ) as j
    where (select w.seq from holdfast.worker w where w.seq = t.worker and w.status = 'active') is not null
), taken as (
    delete from holdfast.ready where ctid = any(array(
        select r.ctid from asked a
        cross join lateral (
            select k.ctid from holdfast.ready k where k.route = a.route and (@place(k)) = (@place(a)) offset 0
        ) as r
    ))
    returning *
), claimed as materialized (
    select j.*, t.attempts, t.rescues, t.token + 1 as token, (select c.epoch from holdfast.cluster c) as epoch,
        a.worker, a.ttl_us, holdfast.now_us() as claimed_at,
        holdfast.now_us() + least(a.ttl_us, coalesce(j.timeout_us, a.ttl_us)) as lease_until
    from taken t
    join asked a on a.seq = t.seq
    cross join lateral (select k.* from holdfast.job k where k.seq = t.seq offset 0) as j
), leased as (
    insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind,
        queue, parent, lane, ttl_us)
    select seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent, lane, ttl_us
    from claimed
)
select :columns
from claimed;

-- name: take_for :many on sqlite
-- Forked as `claim`: the jobs that are in both tables are the ones that were taken.
insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue,
    parent, lane, ttl_us)
select j.seq, value ->> :takings.worker, (select c.epoch from holdfast.cluster c), r.token + 1,
    holdfast.now_us() + min(value ->> :takings.ttl_us, coalesce(j.timeout_us, value ->> :takings.ttl_us)),
    holdfast.now_us(), j.route, r.attempts, r.rescues, j.kind, j.queue,
    j.parent, j.lane, value ->> :takings.ttl_us
from json_each(:takings)
cross join holdfast.job j on j.seq = value ->> :takings.seq
cross join holdfast.ready r on r.route = j.route and (@place(r)) = (@place(j))
where (select w.seq from holdfast.worker w where w.seq = value ->> :takings.worker and w.status = 'active') is not null;
select l.seq, j.id, l.kind, l.queue, j.tenant, j.priority, j.slot, l.worker, l.epoch, l.token, l.attempts,
    j.max_attempts, l.rescues, j.timeout_us, j.deadline_at, l.claimed_at, l.lease_until, j.created_at, l.parent, l.lane,
    j.payload, j.metadata, j.layer
from json_each(:takings)
cross join holdfast.lease l on l.seq = value ->> :takings.seq
cross join holdfast.job j on j.seq = l.seq
cross join holdfast.ready r on r.route = j.route and (@place(r)) = (@place(j));
delete from holdfast.ready where (route, @place) in (
    select j.route, @place(j) from json_each(:takings)
    cross join holdfast.lease l on l.seq = value ->> :takings.seq
    cross join holdfast.job j on j.seq = l.seq);

-- name: claim_each :many on postgres
-- One job for each of these who has a place for it, by one statement that commits by itself: for who serves many that ask
-- for the same. Who is not among the rows may have been refused for many reasons; the statements above tell them apart.
-- Two servers must not both give out the last place of an owner. Its row is locked, and every claim changes it. What it
-- holds is counted as this statement saw it when it began, so a row that somebody has changed since then is left out.
-- Where a job of a lane is among the first, nobody gets anything: `admitted` judges those.
with holder as materialized (
    select w.seq, w.incarnation, w.slots, w.ttl_us as alive_us, w.xmin as version from holdfast.worker w
    where w.seq = any(cast(:askers.worker as bigint[])) and w.status = 'active'
        and w.heartbeat_at + w.ttl_us > holdfast.now_us()
    order by w.seq for update skip locked
), room as materialized (
    select h.seq as worker, least(h.alive_us, cast(:ttl_us as bigint)) as ttl_us, l.held,
        row_number() over (order by a.place) as turn
    from rows(:askers) with ordinality as a (worker bigint, incarnation text, place)
    join holder h on h.seq = a.worker and h.incarnation = a.incarnation
    cross join lateral (
        select cast(count(*) as integer) as held from holdfast.lease l where l.worker = h.seq
    ) as l
    where h.version = (select s.xmin from holdfast.worker s where s.seq = h.seq) and l.held < h.slots
), pick as materialized (
    select k.route, k.lane, row_number() over (order by @arrival(k)) as place
    from rows(:routes) as w (route bigint)
    cross join lateral (
        select k.route, @arrival(k), k.lane from holdfast.ready k where k.route = w.route
            and (select j.tenant from holdfast.job j where j.seq = k.seq) = cast(:tenant as text)
        order by @place(k) limit cast(:most as bigint)
    ) as k
    where coalesce((select r.queue from holdfast.route r where r.id = w.route), '') not in (
        select q.name from holdfast.queue q where q.paused_at is not null)
), quota as materialized (
    select p.route, count(*) as n from pick p
    where p.place <= (select count(*) from room) and not exists (select 1 from pick l where l.lane is not null)
    group by p.route
), offered as materialized (
    select k.route, @place(k), k.lane from quota
    cross join lateral (
        select k.route, @place(k), k.lane from holdfast.ready k where k.route = quota.route
            and (select j.tenant from holdfast.job j where j.seq = k.seq) = cast(:tenant as text)
        order by @place(k) limit quota.n for update skip locked
    ) as k
), given as materialized (
    select o.route, @place(o), row_number() over (order by @arrival(o)) as turn from offered o where o.lane is null
), taken as (
    delete from holdfast.ready where ctid = any(array(
        select r.ctid from given g
        cross join lateral (
            select k.ctid from holdfast.ready k where k.route = g.route and (@place(k)) = (@place(g)) offset 0
        ) as r
    ))
    returning *
), claimed as materialized (
    select j.*, t.attempts, t.rescues, t.token + 1 as token, (select c.epoch from holdfast.cluster c) as epoch,
        h.worker, h.held, h.ttl_us, holdfast.now_us() as claimed_at,
        holdfast.now_us() + least(h.ttl_us, coalesce(j.timeout_us, h.ttl_us)) as lease_until
    from taken t
    join given g on g.seq = t.seq
    join room h on h.turn = g.turn
    cross join lateral (select k.* from holdfast.job k where k.seq = t.seq offset 0) as j
), leased as (
    insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind,
        queue, parent, lane, ttl_us)
    select seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue, parent, lane, ttl_us
    from claimed
), beaten as (
    update holdfast.worker as w set heartbeat_at = holdfast.now_us(), active = c.held + 1, idle_since = null
    from claimed c where w.seq = c.worker
)
select :columns
from claimed;

-- name: claim_each :many on sqlite
-- Forked as `claim`. With one writer, nobody claims meanwhile; who asks is heard of when it was silent for long.
insert into holdfast.lease (seq, worker, epoch, token, lease_until, claimed_at, route, attempts, rescues, kind, queue,
    parent, lane, ttl_us)
select p.seq, h.worker, (select c.epoch from holdfast.cluster c), p.token + 1,
    holdfast.now_us() + min(h.ttl_us, coalesce(j.timeout_us, h.ttl_us)), holdfast.now_us(), p.route, p.attempts,
    p.rescues, j.kind, j.queue, j.parent, j.lane, h.ttl_us
from (
    select w.seq as worker, min(w.ttl_us, :ttl_us) as ttl_us, row_number() over (order by a.key) as turn
    from json_each(:askers) a
    cross join holdfast.worker w on w.seq = a.value ->> :askers.worker and w.incarnation = a.value ->> :askers.incarnation
    where w.status = 'active' and w.heartbeat_at + w.ttl_us > holdfast.now_us()
        and (select count(*) from holdfast.lease l where l.worker = w.seq) < w.slots
) as h
cross join (
    select f.*, row_number() over (order by @arrival(f)) as turn, max(f.lane is not null) over () as laned from (
        select @ready(r) from holdfast.ready r
        where r.route in (select value from json_each(:routes))
            and coalesce((select q.queue from holdfast.route q where q.id = r.route), '') not in (
                select q.name from holdfast.queue q where q.paused_at is not null)
            and (select j.tenant from holdfast.job j where j.seq = r.seq) = :tenant
        order by @place(r) limit :most
    ) as f
) as p on p.turn = h.turn and not p.laned
cross join holdfast.job j on j.seq = p.seq;
select l.seq, j.id, l.kind, l.queue, j.tenant, j.priority, j.slot, l.worker, l.epoch, l.token, l.attempts,
    j.max_attempts, l.rescues, j.timeout_us, j.deadline_at, l.claimed_at, l.lease_until, j.created_at, l.parent, l.lane,
    j.payload, j.metadata, j.layer
from json_each(:askers) a
cross join holdfast.lease l on l.worker = a.value ->> :askers.worker and l.claimed_at = holdfast.now_us()
cross join holdfast.job j on j.seq = l.seq
cross join holdfast.ready r on r.route = l.route and (@place(r)) = (@place(j));
update holdfast.worker set heartbeat_at = holdfast.now_us(), idle_since = null,
    active = (select count(*) from holdfast.lease l where l.worker = worker.seq)
where seq in (select value ->> :askers.worker from json_each(:askers))
    and heartbeat_at < holdfast.now_us() - ttl_us / 4
    and seq in (select l.worker from holdfast.lease l where l.claimed_at = holdfast.now_us());
delete from holdfast.ready where (route, @place) in (
    select l.route, @place(j) from json_each(:askers) a
    cross join holdfast.lease l on l.worker = a.value ->> :askers.worker and l.claimed_at = holdfast.now_us()
    cross join holdfast.job j on j.seq = l.seq);

-- name: find_unanswered :many on postgres
-- Leases that a claim took whose answer was lost, as far as they were committed and hold still.
select k.seq, k.worker, k.epoch, k.token, k.parent
from rows(:leases) as n (seq bigint, epoch bigint, token bigint, claimed_at bigint)
cross join lateral (
    select k.seq, k.worker, k.epoch, k.token, k.parent from holdfast.lease k where k.seq = n.seq and k.epoch = n.epoch
        and k.token = n.token and k.claimed_at = n.claimed_at offset 0
) as k
order by k.seq;

-- name: find_unanswered :many on sqlite
-- SQLite has no lateral join.
select k.seq, k.worker, k.epoch, k.token, k.parent
from rows(:leases) as n (seq bigint, epoch bigint, token bigint, claimed_at bigint)
cross join holdfast.lease k on k.seq = n.seq and k.epoch = n.epoch and k.token = n.token and k.claimed_at = n.claimed_at
order by k.seq;

-- name: seek :one
-- Where a job stands that somebody wants by its id: only a hint, the statements that follow test it again.
select j.seq, j.parent, j.route, j.queue,
    coalesce((select r.capabilities from holdfast.route r where r.id = j.route), '[]') as capabilities, j.lane, j.cost,
    j.priority, j.slot,
    exists (select 1 from holdfast.queue q where q.name = j.queue and q.paused_at is not null) as paused,
    exists (select 1 from holdfast.ready k where k.route = j.route and (@place(k)) = (@place(j))) as ready,
    exists (select 1 from holdfast.lease l where l.seq = j.seq and l.lease_until <= holdfast.now_us()) as lapsed,
    exists (select 1 from holdfast.later t where t.seq = j.seq and t.due_at <= holdfast.now_us()) as due
from holdfast.job j where j.id = cast(:id as uuid);

-- name: wake_one :one on postgres
-- As `wake`, for one job that somebody wants.
with gone as (
    delete from holdfast.later where seq = :seq and due_at <= holdfast.now_us()
    returning *
)
insert into holdfast.ready (@ready) select @ready(g) from gone g
returning seq, route;

-- name: wake_one :one on sqlite
-- Forked: SQLite has no CTE that changes rows.
insert into holdfast.ready (@ready) select @ready from holdfast.later where seq = :seq and due_at <= holdfast.now_us();
delete from holdfast.later where seq = :seq and due_at <= holdfast.now_us()
returning seq, route;

-- name: find_lease :one
-- By the name of its owner: a caller that knows it may speak for the owner, in any process.
select l.seq, cast(j.id as text) as id, l.kind, l.queue, j.tenant, j.priority, j.slot, l.worker, l.epoch, l.token,
    l.attempts, j.max_attempts, l.rescues, j.timeout_us, j.deadline_at, l.claimed_at, l.lease_until, j.created_at, l.parent,
    l.lane, j.payload, j.metadata, j.layer, l.cancel_requested_at
from holdfast.job j
join holdfast.lease l on l.seq = j.seq
join holdfast.worker w on w.seq = l.worker
where j.id = cast(:id as uuid) and w.id = :owner;

-- name: leases_of :many
-- Oldest first, of one queue or of any.
select l.seq, cast(j.id as text) as id, l.kind, l.queue, j.tenant, j.priority, j.slot, l.worker, l.epoch, l.token,
    l.attempts, j.max_attempts, l.rescues, j.timeout_us, j.deadline_at, l.claimed_at, l.lease_until, j.created_at, l.parent,
    l.lane, j.payload, j.metadata, j.layer, l.cancel_requested_at
from holdfast.lease l join holdfast.job j on j.seq = l.seq
where l.worker = :worker and (cast(:queue as text) is null or l.queue = :queue)
order by l.seq limit :limit;

-- name: transfer_leases :many
-- Gives a holder's leases to another, under the tokens they have: the old holder is fenced by its number. Leases that
-- have run out stay where they are, for the sweep.
update holdfast.lease set worker = :new
where seq = any(array(
        select k.seq from holdfast.lease k where k.worker = :old and k.lease_until > holdfast.now_us()
        order by k.seq limit :limit for update))
    and (select w.seq from holdfast.worker w where w.seq = :new and w.status = 'active') is not null
returning :columns;

-- part: worker_that_beats on postgres
cross join lateral (
    select k.seq from holdfast.worker k where k.seq = b.seq and k.status in ('active', 'draining') for update
) as k

-- part: worker_that_beats on sqlite
-- SQLite has no lateral join.
cross join holdfast.worker k on k.seq = b.seq and k.status in ('active', 'draining')

-- name: beat_many :many
-- One statement for all who live in one process. A row that is not returned was given up. In the order of the list,
-- which is sorted: everybody locks them in this order.
with mine as materialized (
    select k.seq as mine, b.active as busy, b.idle_us, b.metadata as told
    from rows(:beats) as b (seq bigint, active integer, idle_us bigint, metadata text)
    @worker_that_beats
)
update holdfast.worker as w set heartbeat_at = holdfast.now_us(), active = mine.busy,
    idle_since = holdfast.now_us() - mine.idle_us, metadata = coalesce(cast(mine.told as jsonb), w.metadata),
    host = coalesce(cast(:host as bigint), w.host)
from mine where w.seq = mine.mine
returning :columns;

-- name: lock_living :many
-- Those of these who live, without those whose row somebody else holds: nobody's heartbeat waits for another's.
select w.seq, w.status from holdfast.worker w
where w.seq = any(cast(:workers as bigint[])) and w.status in ('active', 'draining')
order by w.seq for update skip locked;

-- name: find_live_owner :one
select seq, principal, host, hostname, pid from holdfast.worker
where id = :id and status in ('active', 'draining');

-- name: refresh_owner :one
-- An owner that shows itself again under its own name.
update holdfast.worker set heartbeat_at = holdfast.now_us(), ttl_us = greatest(ttl_us, :ttl_us)
where seq = :seq and status in ('active', 'draining') and host = 0
returning seq;

-- name: demand :many
-- What can be claimed on each route, and what runs on it. A job that is due counts although nobody has woken it yet:
-- perhaps there is no worker that could. Jobs with lanes are counted apart.
select d.route,
    (select count(*) from (select 1 from holdfast.ready k where k.route = d.route and k.lane is null limit :cap) as c)
    + (select count(*) from (select 1 from holdfast.later t where t.route = d.route and t.state = 'scheduled'
        and t.due_at <= holdfast.now_us() limit :cap) as c) as pending,
    coalesce(h.jobs, 0) as running
from rows(:routes) as d (route bigint)
left join (select l.route, count(*) as jobs from holdfast.lease l group by l.route) as h on h.route = d.route
where coalesce((select r.queue from holdfast.route r where r.id = d.route), '') not in (
    select q.name from holdfast.queue q where q.paused_at is not null);

-- part: laned on postgres
-- Of each route: claimable jobs of lanes, and blocked ones if it is time to open their lane.
select n.lane, n.cost from able a
cross join lateral (
    select n.lane, n.cost from holdfast.ready n where n.route = a.route limit :cap
) as n
where n.lane is not null
union all
select t.lane, t.cost from able a
cross join lateral (
    select t.lane, t.cost from holdfast.later t where t.route = a.route and t.state between 'blocked' and 'blocked' limit :cap
) as t
where (select l.opens_at from holdfast.lane l where l.name = t.lane) <= holdfast.now_us()

-- part: laned on sqlite
-- SQLite has no lateral join.
select n.lane, n.cost from able a
cross join holdfast.ready n on (n.route, @place(n)) in (
    select k.route, @place(k) from holdfast.ready k where k.route = a.route limit :cap)
where n.lane is not null
union all
select t.lane, t.cost from able a
cross join holdfast.later t on t.rowid in (
    select k.rowid from holdfast.later k where k.route = a.route and k.state between 'blocked' and 'blocked' limit :cap)
where (select l.opens_at from holdfast.lane l where l.name = t.lane) <= holdfast.now_us()

-- name: lane_demand :many
-- Claimable jobs of lanes, and how many of them may start beside those that run. Blocked jobs count if it is time to open
-- their lane, although nobody has opened it yet. The cheapest job says how many starts the rate has left: rather one worker
-- too many than a job that nobody is started for. With `between` no plan can read all blocked jobs for each route.
with able as (
    select s.route from rows(:routes) as s (route bigint)
    where coalesce((select r.queue from holdfast.route r where r.id = s.route), '') not in (
        select q.name from holdfast.queue q where q.paused_at is not null)
), laned as (
    @laned
)
select d.lane, d.pending, coalesce((select @room(l) from holdfast.lane l where l.name = d.lane), 1) as room
from (select f.lane, count(*) as pending, min(f.cost) as cost from laned f group by f.lane) as d;

-- name: name_job :one
-- The next job of a name; no row is returned if the name has had that many already.
insert into holdfast.alias (scope, name, number, job, digest, attempts, created_at)
values (:scope, :name, :number, cast(:job as uuid), :digest, :attempts, holdfast.now_us())
on conflict do nothing
returning scope, name, number, cast(job as text) as job, digest, attempts, created_at;

-- name: find_alias :one
select scope, name, number, cast(job as text) as job, digest, attempts, created_at from holdfast.alias
where scope = :scope and name = :name order by number desc limit 1;

-- name: list_aliases :many
-- The jobs that a name has had after this number, the first first.
select scope, name, number, cast(job as text) as job, digest, attempts, created_at from holdfast.alias
where scope = :scope and name = :name and number > :after order by number limit :limit;

-- name: alias_of :one
select scope, name, number, cast(job as text) as job, digest, attempts, created_at from holdfast.alias
where job = cast(:job as uuid) order by scope, name, number limit 1;
