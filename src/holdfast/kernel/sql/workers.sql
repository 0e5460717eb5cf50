-- Workers, the routes they serve, the duties they hold, and the identity of the database itself.

-- name: cluster :one
select epoch, identity from holdfast.cluster;

-- name: oldest_code :one
-- Reads a table that no migration changes, so code that is too old can always read it.
select oldest_code as at from holdfast.schema;

-- name: adopt_identity :one
-- If the server, the timeline or the file is another than last time, commits may be lost: from now on tokens have a
-- new epoch. The first identity is only stored.
update holdfast.cluster set epoch = case when identity = '' then epoch else epoch + 1 end, identity = :identity
where identity = :seen
returning epoch, identity;

-- name: bump_epoch :one
update holdfast.cluster set epoch = epoch + 1 returning epoch, identity;

-- name: register :one
-- No row is returned if an earlier call wrote this incarnation and its answer was lost, or if another worker with
-- the same id came in between.
insert into holdfast.worker (incarnation, id, name, hostname, pid, version, status, capabilities, queues, slots, started_at,
    heartbeat_at, ttl_us, code, lines, pool, principal, metadata, host)
values (:incarnation, :id, :name, :hostname, :pid, :version, 'active', :capabilities, :queues, :slots,
    holdfast.now_us(), holdfast.now_us(), :ttl_us, :code, :lines, :pool, :principal, cast(:metadata as jsonb), :host)
on conflict do nothing
returning seq;

-- name: find_incarnation :one
select seq, status from holdfast.worker where incarnation = :incarnation;

-- name: find_live_worker :one
-- `process` is whose presence says whether it lives: a broker shows none of its own.
select seq, hostname, pid,
    coalesce((select h.presence from holdfast.worker h where h.seq = worker.host), presence) as presence,
    heartbeat_at + ttl_us > holdfast.now_us() as fresh, coalesce(nullif(host, 0), seq) as process
from holdfast.worker
where id = :id and incarnation <> :incarnation and status in ('active', 'draining');

-- name: replace_worker :exec
-- Tests the silence again: a worker that has sent a heartbeat since it was found keeps its id.
update holdfast.worker set status = 'lost', stopped_at = holdfast.now_us(), active = 0,
    reason = 'replaced by a new worker of the same id'
where seq = :seq and status in ('active', 'draining')
    and (:gone = 1 or heartbeat_at + ttl_us <= holdfast.now_us());

-- name: advertise_presence :exec
update holdfast.worker set presence = :presence where seq = :seq;

-- name: heartbeat :one
-- No row is returned if the store gave this incarnation up: it must register as a new one. Also if the store was
-- restored to an older state, which does not know this worker or its last heartbeat; then its number may belong to
-- another worker. If the last heartbeat is later than the clock, the clock went back, and the comparison is skipped.
update holdfast.worker set heartbeat_at = holdfast.now_us(), active = :active,
    presence = coalesce(cast(:presence as integer), presence), lines = coalesce(cast(:lines as text), lines),
    idle_since = holdfast.now_us() - cast(:idle_us as bigint)
where seq = :seq and status in ('active', 'draining')
    and (heartbeat_at >= :last_beat or holdfast.now_us() < :last_beat)
    and incarnation = coalesce(cast(:incarnation as text), incarnation)
returning seq, status, holdfast.now_us() as now, (select s.oldest_code from holdfast.schema s) as oldest_code,
    (select count(*) from holdfast.lease l where l.worker = worker.seq) as leases;

-- name: drain :one
update holdfast.worker set status = 'draining'
where seq = :seq and status = 'active' and incarnation = coalesce(cast(:incarnation as text), incarnation)
returning seq, status;

-- name: unregister :exec
update holdfast.worker set status = 'stopped', stopped_at = holdfast.now_us(), active = 0, reason = :reason
where seq = :seq and status in ('active', 'draining')
    and incarnation = coalesce(cast(:incarnation as text), incarnation);

-- name: lose_workers :many
-- Decides only about the worker; the sweep expires its leases, each with its own condition. For :until see
-- `find_lapsed`. A worker that has sent a heartbeat since it was missed is alive: a worker of `:missed` is given up
-- only if its last heartbeat is still the one that was seen then. The caller knows of those in `:gone` by other
-- means. An owner that lives in no process is silent by nature: it stays while it has a lease. A process that did not
-- come up by its deadline is lost too.
-- Brokers go with the process in which they live, whatever their own last heartbeat is: their hub beats for them after
-- it has beaten for itself, in one transaction. So once the hub is locked and lost, none of its heartbeats is under
-- way. Everybody locks hosts first and then those who live there, each in the order of seq. A worker whose row somebody
-- holds, perhaps by a heartbeat, is left to the next sweep, and so are those who live in its process.
with hosts as materialized (
    select seq from holdfast.worker
    where coalesce(host, 0) = 0 and ((status in ('active', 'draining')
        and ((heartbeat_at + ttl_us <= holdfast.now_us() and heartbeat_at + ttl_us <= cast(:until as bigint)
                and (host is null
                    or (select l.seq from holdfast.lease l where l.worker = worker.seq limit 1) is null))
            or seq = any(cast(:gone as bigint[]))
            or (seq, heartbeat_at) in (
                select m.seq, m.heartbeat_at from rows(:missed, :last_beats) as m (seq bigint, heartbeat_at bigint))))
        or (status = 'starting' and ((boot_by <= holdfast.now_us() and boot_by <= cast(:until as bigint))
            or seq = any(cast(:gone as bigint[])))))
    order by seq for update skip locked
), hosted as materialized (
    select seq from holdfast.worker
    where coalesce(host, 0) <> 0 and status in ('active', 'draining')
        and ((heartbeat_at + ttl_us <= holdfast.now_us() and heartbeat_at + ttl_us <= cast(:until as bigint))
            or seq = any(cast(:gone as bigint[])) or host in (select h.seq from hosts h)
            or (host = any(cast(:gone as bigint[])) and (select h.status from holdfast.worker h
                where h.seq = worker.host) not in ('active', 'draining')))
    order by seq for update skip locked
)
update holdfast.worker set status = 'lost', stopped_at = holdfast.now_us(), active = 0,
    reason = case status when 'starting' then 'it did not start in time' else :reason end
where seq in (select seq from hosts union all select seq from hosted)
returning seq, id;

-- name: lock_worker :many
-- Who gives up one worker that it names waits for the heartbeat or the claim that may be under way for it.
select seq from holdfast.worker where seq = :seq for update;

-- name: standing_of :many
-- The workers of a list and those who live in their processes, and whether the store has given them up.
select seq, status from holdfast.worker
where seq = any(cast(:workers as bigint[])) or host = any(cast(:workers as bigint[]));

-- name: present_workers :many
-- The workers whose death would be noticed at once by their presence, and the time of their last heartbeat.
select seq, heartbeat_at from holdfast.worker where status in ('active', 'draining') and presence = 1 order by seq;

-- part: worker
-- Whether a worker is absent is not stored: who reads it asks for its sign of life, see `absent_workers`.
select seq, id, name, hostname, pid, version, status, capabilities, queues, slots, active, presence, started_at,
    heartbeat_at, ttl_us, stopped_at, reason, holdfast.now_us() as now,
    (select count(*) from holdfast.lease l where l.worker = worker.seq) as leases, code, lines, boot_by, idle_since, pool,
    principal, metadata, host, 0 as absent
from holdfast.worker

-- name: list_workers :many
@worker
where seq < :before and (:all = 1 or status in ('active', 'draining'))
order by seq desc limit :limit;

-- name: lives_of_worker :many
-- All that had the same id.
@worker
where id = :id and seq < :before and (:all = 1 or status in ('active', 'draining'))
order by id, seq desc limit :limit;

-- name: pool_workers :many
-- Those of a pool that live, or are about to.
@worker
where pool = :pool and status in ('starting', 'active', 'draining') order by seq limit :limit;

-- name: stale_workers :many
-- Those who have not sent a heartbeat for so long, of one pool or of any, the most silent first.
select seq, id, status, pool, heartbeat_at from holdfast.worker
where status in ('active', 'draining') and heartbeat_at <= holdfast.now_us() - :age_us
    and (cast(:pool as text) is null or pool = :pool)
order by heartbeat_at, seq limit :limit;

-- name: list_duties :many
select :columns from holdfast.duty where holder is not null order by name;

-- name: look :one
-- One cheap question for each poll: is there anything to claim, wake, end or rescue? It reads the first row in the
-- order of an index, not `exists` or `min`: those may be planned as a walk through the whole table. It reads no
-- lease: `next_expiry` asks for leases that ran out. The paused routes are a hashed set without a join, which may be
-- planned as a walk through all routes for each paused queue.
select holdfast.now_us() as now,
    (select due_at from holdfast.later where due_at is not null order by due_at limit 1) as next_due,
    (select t.at from (
        select (select deadline_at from holdfast.ready where deadline_at is not null order by deadline_at limit 1) as at
        union all
        select (select deadline_at from holdfast.later where deadline_at is not null order by deadline_at limit 1)
        ) as t where t.at is not null order by t.at limit 1) as next_deadline,
    exists (select 1 from holdfast.cancellation) as cancellations,
    exists (select 1 from holdfast.worker
        where (status in ('active', 'draining') and heartbeat_at + ttl_us <= holdfast.now_us()
            and (host is null or host <> 0 or (select l.seq from holdfast.lease l where l.worker = worker.seq limit 1) is null))
        or (status = 'starting' and boot_by <= holdfast.now_us())) as silent,
    (select count(*) from holdfast.worker where status in ('active', 'draining') and host is null) as alive,
    coalesce((select holdfast.now_us() from holdfast.route_note limit 1), (select max(used_at) from holdfast.route))
        as routes_changed,
    (select t.at from (
        select (select opens_at from holdfast.lane where opens_at is not null order by opens_at limit 1) as at
        union all
        select (select look_at from holdfast.lane_note order by look_at limit 1)) as t where t.at is not null
        order by t.at limit 1) as next_opening,
    (select t.at from (
        select (select next_at from holdfast.schedule where paused_at is null and retry_at is null
            order by next_at limit 1) as at
        union all
        select (select greatest(next_at, retry_at) from holdfast.schedule where paused_at is null and retry_at is not null
            order by greatest(next_at, retry_at) limit 1)) as t where t.at is not null order by t.at limit 1) as next_tick,
    (select s.route from rows(:served) as s (route bigint)
        where (select k.seq from holdfast.ready k where k.route = s.route limit 1) is not null
            and s.route not in (select r.id from holdfast.route r where r.queue = any(array(
                select q.name from holdfast.queue q where q.paused_at is not null))) limit 1) is not null as pending,
    coalesce((select worker from holdfast.lease order by worker limit 1) <> :worker
        or (select worker from holdfast.lease order by worker desc limit 1) <> :worker, false) as leased_elsewhere,
    (select worker from holdfast.lease order by worker limit 1) is not null as leased,
    (select held_until from holdfast.duty where name = 'expiry') as next_turn,
    (select count(*) from holdfast.duty d where d.held_until > holdfast.now_us() and (select w.seq from holdfast.worker w
        where w.seq = d.holder and w.status in ('active', 'draining')) is not null) as duties_held;

-- name: list_routes :many
-- With those of which there is only a note yet.
select id, queue, capabilities from holdfast.route where used_at >= :since
union select route, queue, capabilities from holdfast.route_note order by id;

-- name: lock_routes :many
-- Those of them that nobody else holds.
select id as route from holdfast.route where id = any(cast(:ids as bigint[])) order by id for update skip locked;

-- name: known_routes :many
-- Those of them that have a row, also if somebody holds it.
select id as route from holdfast.route where id = any(cast(:ids as bigint[]));

-- name: add_routes :exec
-- In the order in which `enqueue` writes them, so there is no deadlock. The caller has locked those that are there.
insert into holdfast.route (id, queue, capabilities, used_at)
select r.id, r.queue, r.capabilities, holdfast.now_us()
from rows(:routes) as r (id bigint, queue text, capabilities text)
where true order by r.id
on conflict (id) do update set used_at = excluded.used_at;

-- name: note_routes :exec
-- For routes that somebody else holds, who may be pruning them: see `enqueue`.
insert into holdfast.route_note (route, queue, capabilities)
select r.id, r.queue, r.capabilities from rows(:routes) as r (id bigint, queue text, capabilities text)
where true order by r.id;

-- name: noted_routes :many
select distinct route as id, queue, capabilities from holdfast.route_note order by route limit :limit;

-- name: drop_route_notes :exec
delete from holdfast.route_note where route = any(cast(:ids as bigint[]));

-- name: acquire_duty :one
-- A duty can be taken if it is free or its term is over, if the store gave its holder up or the holder's presence is
-- gone, or if it is ours by a call whose answer was lost. The first worker to ask takes the next term. The condition
-- on the holder is tested here, because the holder may have come back.
insert into holdfast.duty (name, term, holder, held_until)
values (:name, 1, :worker, holdfast.now_us() + :ttl_us)
on conflict (name) do update set term = duty.term + 1, holder = excluded.holder, held_until = excluded.held_until
where duty.holder is null or duty.held_until <= holdfast.now_us() or duty.holder = any(cast(:gone as bigint[]))
    or duty.holder = excluded.holder
    or not exists (select 1 from holdfast.worker w where w.seq = duty.holder and w.status in ('active', 'draining'))
returning name, term;

-- name: take_turn :one
-- For work that must be done now and then, and that nobody holds: the first worker to ask after the pause does it.
-- There is no holder, so neither a worker that dies during its turn nor a clock that goes back delays the next turn
-- for longer than the pause.
insert into holdfast.duty (name, term, holder, held_until)
values (:name, 1, null, holdfast.now_us() + :pause_us)
on conflict (name) do update set term = duty.term + 1, held_until = excluded.held_until
where duty.held_until <= holdfast.now_us() or duty.held_until > excluded.held_until
returning name, term;

-- name: ahead_of_clock :one
-- How many rows have a time that is later than the clock by more than the grace: the clock went back. A lease may be
-- longer than the settings say, and says so itself.
select (select count(*) from holdfast.worker
        where (status in ('active', 'draining') and heartbeat_at > holdfast.now_us() + ttl_us)
            or (status = 'starting' and boot_by > holdfast.now_us() + ttl_us + :grace_us)) as workers,
    (select count(*) from holdfast.lane where charged_at > holdfast.now_us() + :grace_us) as lanes,
    (select count(*) from holdfast.lease l
        where l.lease_until > holdfast.now_us() + :grace_us + greatest(:ttl_us, coalesce(l.ttl_us, 0))
            and l.lease_until > holdfast.now_us() + :grace_us
            + coalesce((select w.ttl_us from holdfast.worker w where w.seq = l.worker), 0)) as leases;

-- name: bring_back_workers :exec
-- After the clock went back: the store must not wait for a silent worker much longer than for one that sends a
-- heartbeat now. A worker that is ahead by less than its TTL is left alone: its own next heartbeat corrects that. If
-- it found a heartbeat that it did not send, it would believe that the store was restored. A process that is to come
-- up has no more time than if it were started now; its `ttl_us` is the time that it was given.
update holdfast.worker set heartbeat_at = holdfast.now_us(),
    boot_by = case status when 'starting' then holdfast.now_us() + ttl_us else boot_by end
where (status in ('active', 'draining') and heartbeat_at > holdfast.now_us() + ttl_us)
    or (status = 'starting' and boot_by > holdfast.now_us() + ttl_us);

-- name: bring_back_duties :exec
-- The same for duties and turns. No term becomes shorter than its holder believes.
update holdfast.duty set held_until = holdfast.now_us() + :ttl_us where held_until > holdfast.now_us() + :ttl_us;

-- name: bring_back_routes :exec
-- The same for routes: workers find new routes by the latest time.
update holdfast.route set used_at = holdfast.now_us() where used_at > holdfast.now_us();

-- name: renew_duty :one
update holdfast.duty set held_until = holdfast.now_us() + :ttl_us
where name = :name and holder = :worker and term = :term and held_until > holdfast.now_us()
returning name, term;

-- name: release_duty :exec
update holdfast.duty set holder = null, held_until = 0 where name = :name and holder = :worker and term = :term;

-- name: hold_duty :one
-- Every maintenance transaction begins with this: it refuses a holder that was frozen until its term was over.
select name, term from holdfast.duty
where name = :name and holder = :worker and term = :term and held_until > holdfast.now_us()
for update;

-- name: old_workers :many
-- The next workers, oldest first, and which of them left long ago and hold no lease.
select w.seq, case when w.status in ('stopped', 'lost') and w.stopped_at <= holdfast.now_us() - :age_us
    and (select l.seq from holdfast.lease l where l.worker = w.seq limit 1) is null
    then 1 else 0 end as gone
from holdfast.worker w where w.seq > :after order by w.seq limit :limit;

-- name: prune_workers :exec
delete from holdfast.worker where seq = any(cast(:seqs as bigint[])) and status in ('stopped', 'lost');

-- name: prune_routes :exec
-- A call that enqueues writes its route again within an hour, so nobody uses a route that was not written for a day.
-- A pause is known by its routes, so the routes of blocked jobs stay too. The age is tested twice: a route that was
-- written in between stays. Not `exists`, which may be planned as a join with every job. The routes of running jobs
-- are a hashed set: no index finds leases by their route. Skips routes that somebody else holds, and those of which
-- there is a note.
delete from holdfast.route
where used_at <= holdfast.now_us() - :age_us and id = any(array(
    select r.id from holdfast.route r where r.used_at <= holdfast.now_us() - :age_us
        and (select k.seq from holdfast.ready k where k.route = r.id limit 1) is null
        and (select k.seq from holdfast.later k where k.route = r.id limit 1) is null
        and r.id not in (select l.route from holdfast.lease l)
        and r.id not in (select n.route from holdfast.route_note n)
    order by r.used_at limit :limit for update skip locked));
