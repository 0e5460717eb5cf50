-- Workers, the routes they serve, the duties they hold, and the identity of the database itself.

-- name: cluster :one
select epoch, identity from holdfast.cluster;

-- name: oldest_code :one
-- Of a table that no migration changes: code that has become too old can always read it.
select oldest_code as at from holdfast.schema;

-- name: adopt_identity :one
-- Another server, timeline or file than last time may have lost commits: from here on tokens carry a new epoch.
-- The first identity ever seen is only noted.
update holdfast.cluster set epoch = case when identity = '' then epoch else epoch + 1 end, identity = :identity
where identity = :seen
returning epoch, identity;

-- name: bump_epoch :one
update holdfast.cluster set epoch = epoch + 1 returning epoch, identity;

-- name: register :one
-- No row: an earlier call wrote this incarnation and only its answer was lost, or a namesake came in between.
insert into holdfast.worker (incarnation, id, name, hostname, pid, version, status, capabilities, queues, slots, started_at,
    heartbeat_at, ttl_us, code, lines)
values (:incarnation, :id, :name, :hostname, :pid, :version, 'active', :capabilities, :queues, :slots,
    holdfast.now_us(), holdfast.now_us(), :ttl_us, :code, :lines)
on conflict do nothing
returning seq;

-- name: find_incarnation :one
select seq, status from holdfast.worker where incarnation = :incarnation;

-- name: find_live_worker :one
select seq, hostname, pid, presence, heartbeat_at + ttl_us > holdfast.now_us() as fresh from holdfast.worker
where id = :id and incarnation <> :incarnation and status in ('active', 'draining');

-- name: replace_worker :exec
-- Its silence is tested here again: one that has beaten since it was found keeps its id.
update holdfast.worker set status = 'lost', stopped_at = holdfast.now_us(), active = 0,
    reason = 'replaced by a new worker of the same id'
where seq = :seq and status in ('active', 'draining')
    and (:gone = 1 or heartbeat_at + ttl_us <= holdfast.now_us());

-- name: advertise_presence :exec
update holdfast.worker set presence = :presence where seq = :seq;

-- name: heartbeat :one
-- No row: this incarnation was given up for lost, and must register as a new one; or the store was set back to an
-- older state, which knows nothing of it or of its last heartbeat. Then its number may belong to another by now. Where
-- the last heartbeat lies ahead of the clock, the clock went back, and the comparison would say nothing.
update holdfast.worker set heartbeat_at = holdfast.now_us(), active = :active,
    presence = coalesce(cast(:presence as integer), presence), lines = coalesce(cast(:lines as text), lines)
where seq = :seq and status in ('active', 'draining')
    and (heartbeat_at >= :last_beat or holdfast.now_us() < :last_beat)
    and incarnation = coalesce(cast(:incarnation as text), incarnation)
returning seq, status, holdfast.now_us() as now, (select s.oldest_code from holdfast.schema s) as oldest_code;

-- name: drain :one
update holdfast.worker set status = 'draining'
where seq = :seq and status = 'active' and incarnation = coalesce(cast(:incarnation as text), incarnation)
returning seq, status;

-- name: unregister :exec
update holdfast.worker set status = 'stopped', stopped_at = holdfast.now_us(), active = 0, reason = :reason
where seq = :seq and status in ('active', 'draining')
    and incarnation = coalesce(cast(:incarnation as text), incarnation);

-- name: lose_workers :many on postgres
-- A verdict about life only; its leases are expired by the sweep, each under its own guard. :until: see `find_lapsed`.
-- Whoever has beaten since it was missed is alive: of `:missed`, only a worker whose own last heartbeat is still the one
-- seen then is given up. Of those in `:gone` the caller knows by other means.
update holdfast.worker set status = 'lost', stopped_at = holdfast.now_us(), active = 0, reason = :reason
where status in ('active', 'draining')
    and ((heartbeat_at + ttl_us <= holdfast.now_us() and heartbeat_at + ttl_us <= cast(:until as bigint))
        or seq = any(cast(:gone as bigint[]))
        or (seq, heartbeat_at) in (
            select m.seq, m.heartbeat_at
            from unnest(cast(:missed as bigint[]), cast(:last_beats as bigint[])) as m (seq, heartbeat_at)))
returning seq, id;

-- name: lose_workers :many on sqlite
-- Forked for the list: json_each where PostgreSQL has unnest.
update holdfast.worker set status = 'lost', stopped_at = holdfast.now_us(), active = 0, reason = :reason
where status in ('active', 'draining')
    and ((heartbeat_at + ttl_us <= holdfast.now_us() and heartbeat_at + ttl_us <= cast(:until as bigint))
        or seq = any(:gone)
        or (seq, heartbeat_at) in (
            select m.value, b.value from json_each(:missed) as m join json_each(:last_beats) as b on b.key = m.key))
returning seq, id;

-- name: living_workers :many
-- Those of a list that the store has not given up.
select seq from holdfast.worker where seq = any(cast(:workers as bigint[])) and status in ('active', 'draining');

-- name: present_workers :many
-- Those whose death would be seen at once, were their sign to go, and when each showed life last.
select seq, heartbeat_at from holdfast.worker where status in ('active', 'draining') and presence = 1 order by seq;

-- name: list_workers :many
select seq, id, name, hostname, pid, version, status, capabilities, queues, slots, active, presence, started_at,
    heartbeat_at, ttl_us, stopped_at, reason, holdfast.now_us() as now,
    (select count(*) from holdfast.job j where j.worker = worker.seq and j.state = 'running') as leases, code, lines
from holdfast.worker
where :all = 1 or status in ('active', 'draining')
order by seq desc limit :limit;

-- name: list_duties :many
select name, term, holder, held_until from holdfast.duty where holder is not null order by name;

-- name: look :one on postgres
-- One cheap question a poll: is there anything to claim, wake, end or rescue? The first row in an index's order, never
-- `exists` or `min`: those may be planned as a walk through the table to a match that is not there, or through all
-- that is there. Nothing here reads what runs: leases that ran out are asked for apart, see `next_expiry`. The paused
-- routes are a hashed set, made without a join: that may be planned as a walk through all routes for each paused queue.
select holdfast.now_us() as now,
    (select due_at from holdfast.job where state in ('scheduled', 'waiting') and due_at is not null
        order by due_at limit 1) as next_due,
    (select deadline_at from holdfast.job where state in ('scheduled', 'pending', 'waiting')
        and deadline_at is not null order by deadline_at limit 1) as next_deadline,
    exists (select 1 from holdfast.cancellation) as cancellations,
    exists (select 1 from holdfast.worker
        where status in ('active', 'draining') and heartbeat_at + ttl_us <= holdfast.now_us()) as silent,
    (select count(*) from holdfast.worker where status in ('active', 'draining')) as alive,
    (select max(used_at) from holdfast.route) as routes_changed,
    (select opens_at from holdfast.lane where opens_at is not null order by opens_at limit 1) as next_opening,
    (select t.at from (
        select (select next_at from holdfast.schedule where paused_at is null and retry_at is null
            order by next_at limit 1) as at
        union all
        select (select greatest(next_at, retry_at) from holdfast.schedule where paused_at is null and retry_at is not null
            order by greatest(next_at, retry_at) limit 1)) as t where t.at is not null order by t.at limit 1) as next_tick,
    (select j.seq from unnest(cast(:routes as bigint[])) as served (route)
        cross join lateral (select k.seq from holdfast.job k
            where k.route = served.route and k.state = 'pending' and k.gate is null limit 1) as j
        where served.route not in (select r.id from holdfast.route r where r.queue = any(array(
            select q.name from holdfast.queue q where q.paused_at is not null))) limit 1) is not null as pending,
    coalesce((select worker from holdfast.job where state = 'running' order by worker limit 1) <> :worker
        or (select worker from holdfast.job where state = 'running' order by worker desc limit 1) <> :worker, false)
        as leased_elsewhere,
    (select worker from holdfast.job where state = 'running' order by worker limit 1) is not null as leased,
    (select held_until from holdfast.duty where name = 'expiry') as next_turn;

-- name: look :one on sqlite
-- Forked for the list: json_each where PostgreSQL has unnest.
select holdfast.now_us() as now,
    (select due_at from holdfast.job where state in ('scheduled', 'waiting') and due_at is not null
        order by due_at limit 1) as next_due,
    (select deadline_at from holdfast.job where state in ('scheduled', 'pending', 'waiting')
        and deadline_at is not null order by deadline_at limit 1) as next_deadline,
    exists (select 1 from holdfast.cancellation) as cancellations,
    exists (select 1 from holdfast.worker
        where status in ('active', 'draining') and heartbeat_at + ttl_us <= holdfast.now_us()) as silent,
    (select count(*) from holdfast.worker where status in ('active', 'draining')) as alive,
    (select max(used_at) from holdfast.route) as routes_changed,
    (select opens_at from holdfast.lane where opens_at is not null order by opens_at limit 1) as next_opening,
    (select t.at from (
        select (select next_at from holdfast.schedule where paused_at is null and retry_at is null
            order by next_at limit 1) as at
        union all
        select (select max(next_at, retry_at) from holdfast.schedule where paused_at is null and retry_at is not null
            order by max(next_at, retry_at) limit 1)) as t where t.at is not null order by t.at limit 1) as next_tick,
    (select served.value from json_each(:routes) as served
        where (select k.seq from holdfast.job k
                where k.route = served.value and k.state = 'pending' and k.gate is null limit 1) is not null
            and served.value not in (select p.id from holdfast.paused_route p) limit 1) is not null as pending,
    coalesce((select worker from holdfast.job where state = 'running' order by worker limit 1) <> :worker
        or (select worker from holdfast.job where state = 'running' order by worker desc limit 1) <> :worker, false)
        as leased_elsewhere,
    (select worker from holdfast.job where state = 'running' order by worker limit 1) is not null as leased,
    (select held_until from holdfast.duty where name = 'expiry') as next_turn;

-- name: list_routes :many
select id, queue, capabilities from holdfast.route where used_at >= :since order by id;

-- name: add_routes :exec on postgres
-- In the order in which `enqueue` writes them: no deadlock.
insert into holdfast.route (id, queue, capabilities, used_at)
select r.id, r.queue, r.capabilities, holdfast.now_us()
from unnest(cast(:routes.id as bigint[]), cast(:routes.queue as text[]), cast(:routes.capabilities as text[]))
    as r (id, queue, capabilities)
order by r.id
on conflict (id) do update set used_at = excluded.used_at;

-- name: add_routes :exec on sqlite
-- Forked for the list: json_each where PostgreSQL has unnest.
insert into holdfast.route (id, queue, capabilities, used_at)
select value ->> :routes.id, value ->> :routes.queue, value ->> :routes.capabilities, holdfast.now_us()
from json_each(:routes) where true
on conflict (id) do update set used_at = excluded.used_at;

-- name: acquire_duty :one
-- Free, run out, held by someone whose presence is gone, or ours by a call whose answer was lost: whoever comes
-- first takes the next term.
insert into holdfast.duty (name, term, holder, held_until)
values (:name, 1, :worker, holdfast.now_us() + :ttl_us)
on conflict (name) do update set term = duty.term + 1, holder = excluded.holder, held_until = excluded.held_until
where duty.holder is null or duty.held_until <= holdfast.now_us() or duty.holder = any(cast(:gone as bigint[]))
    or duty.holder = excluded.holder
returning name, term;

-- name: take_turn :one
-- Work that somebody must do now and then, and nobody holds: whoever comes first when the pause is over does it. There
-- is no holder, so a worker that dies with a turn keeps it from nobody for longer than the pause; nor does a clock
-- that goes back.
insert into holdfast.duty (name, term, holder, held_until)
values (:name, 1, null, holdfast.now_us() + :pause_us)
on conflict (name) do update set term = duty.term + 1, held_until = excluded.held_until
where duty.held_until <= holdfast.now_us() or duty.held_until > excluded.held_until
returning name, term;

-- name: ahead_of_clock :one
-- What bears a time that the clock has yet to reach by more than the grace: it has gone back since.
select (select count(*) from holdfast.worker
        where status in ('active', 'draining') and heartbeat_at > holdfast.now_us() + ttl_us) as workers,
    (select count(*) from holdfast.lane where charged_at > holdfast.now_us() + :grace_us) as lanes,
    (select count(*) from holdfast.job j where j.state = 'running'
        and j.lease_until > holdfast.now_us() + :ttl_us + :grace_us
        and j.lease_until > holdfast.now_us() + :grace_us
            + coalesce((select w.ttl_us from holdfast.worker w where w.seq = j.worker), 0)) as leases;

-- name: bring_back_workers :exec
-- After the clock went back: a worker may not be silent much longer than one that beats now. One that is ahead by less
-- than its time is left alone: its own next beat puts that right, and takes a heartbeat that it did not make for a store
-- that was set back.
update holdfast.worker set heartbeat_at = holdfast.now_us()
where status in ('active', 'draining') and heartbeat_at > holdfast.now_us() + ttl_us;

-- name: bring_back_duties :exec
-- The same for duties and turns; no term is shorter than its holder believes.
update holdfast.duty set held_until = holdfast.now_us() + :ttl_us where held_until > holdfast.now_us() + :ttl_us;

-- name: bring_back_routes :exec
-- The same for routes: workers learn of new ones by the latest time.
update holdfast.route set used_at = holdfast.now_us() where used_at > holdfast.now_us();

-- name: renew_duty :one
update holdfast.duty set held_until = holdfast.now_us() + :ttl_us
where name = :name and holder = :worker and term = :term and held_until > holdfast.now_us()
returning name, term;

-- name: release_duty :exec
update holdfast.duty set holder = null, held_until = 0 where name = :name and holder = :worker and term = :term;

-- name: hold_duty :one on postgres
-- Every maintenance write begins here: a holder that was frozen past its term is refused in the same transaction.
select name, term from holdfast.duty
where name = :name and holder = :worker and term = :term and held_until > holdfast.now_us()
for update;

-- name: hold_duty :one on sqlite
-- The transaction holds the write lock already.
select name, term from holdfast.duty
where name = :name and holder = :worker and term = :term and held_until > holdfast.now_us();

-- name: old_workers :many
-- So many workers, oldest first, and which of them left long ago and hold nothing.
select w.seq, case when w.status in ('stopped', 'lost') and w.stopped_at <= holdfast.now_us() - :age_us
    and (select j.seq from holdfast.job j where j.worker = w.seq and j.state = 'running' limit 1) is null
    then 1 else 0 end as gone
from holdfast.worker w where w.seq > :after order by w.seq limit :limit;

-- name: prune_workers :exec
delete from holdfast.worker where seq = any(cast(:seqs as bigint[])) and status in ('stopped', 'lost');

-- name: prune_routes :exec
-- Enqueuers write a route again within the hour they use it, so a day of silence means nobody does. A pause is known by
-- its routes, so those of blocked jobs stay too. The age is tested twice: one that was written meanwhile stays. Not
-- `exists`, which may be planned as a join with every job.
delete from holdfast.route
where used_at <= holdfast.now_us() - :age_us and id in (
    select r.id from holdfast.route r where r.used_at <= holdfast.now_us() - :age_us
        and (select j.seq from holdfast.job j where j.state = 'pending' and j.gate is null and j.route = r.id
            limit 1) is null
        and (select j.seq from holdfast.job j where j.state = 'pending' and j.gate is not null
            and j.lane is not null and j.route = r.id limit 1) is null
        and (select j.seq from holdfast.job j where j.state in ('scheduled', 'waiting') and j.route = r.id
            limit 1) is null
        and (select j.seq from holdfast.job j where j.state = 'running' and j.route = r.id limit 1) is null
    order by r.used_at limit :limit);
