-- Jobs that wait without a worker, what wakes them, and the steps they need not repeat.

-- name: wake :many on postgres
-- Scheduled jobs whose time has come, and waits that timed out. The inner query locks what it found in those states;
-- naming them again outside would let the planner read every job that waits. Code of schema 5 left gates on some.
update holdfast.job set state = 'pending', due_at = null, channel = null, gate = null
where seq = any(array(
    select seq from holdfast.job
    where state in ('scheduled', 'waiting') and due_at is not null and due_at <= holdfast.now_us()
    order by due_at limit :limit for update skip locked))
returning seq, route;

-- name: wake :many on sqlite
-- No row locks to skip.
update holdfast.job set state = 'pending', due_at = null, channel = null, gate = null
where seq in (
    select seq from holdfast.job
    where state in ('scheduled', 'waiting') and due_at is not null and due_at <= holdfast.now_us()
    order by due_at limit :limit)
returning seq, route;

-- name: find_overdue :many
select seq, parent from holdfast.job
where state in ('scheduled', 'pending', 'waiting') and deadline_at is not null and deadline_at <= holdfast.now_us()
order by deadline_at limit :limit;

-- name: overdue :many
-- Takes a new token, so that nothing an earlier attempt still holds can write here.
update holdfast.job set state = 'failed', token = token + 1, due_at = null, channel = null, gate = null,
    finished_at = holdfast.now_us(), error = :error
where seq = any(cast(:seqs as bigint[])) and state in ('scheduled', 'pending', 'waiting')
    and deadline_at <= holdfast.now_us()
returning seq, cast(id as text) as id, state, route, parent, lane, kind;

-- name: lock_channel :exec
-- Both park and signal write this row first, so whichever comes second sees what the first did.
insert into holdfast.channel (name) values (:channel) on conflict (name) do update set name = excluded.name;

-- name: park :one
-- With nothing left to wait for, the job is pending at once. A cancel that was accepted refuses the wait.
update holdfast.job set
    state = case
        when cast(:channel as text) is null and open_children = 0 then 'pending'
        when exists (select 1 from holdfast.signal s where s.channel = :channel) then 'pending'
        else 'waiting' end,
    channel = case
        when exists (select 1 from holdfast.signal s where s.channel = :channel) then null
        else :channel end,
    due_at = case
        when cast(:channel as text) is null and open_children = 0 then null
        when exists (select 1 from holdfast.signal s where s.channel = :channel) then null
        else holdfast.now_us() + cast(:timeout_us as bigint) end,
    worker = null, lease_until = null
where seq = :seq and state = 'running' and worker = :worker and epoch = :epoch and token = :token
    and cancel_requested_at is null
returning seq, route, state;

-- name: record_parked :exec
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at)
values (:seq, :epoch, :token, :worker, 'parked', :started_at, holdfast.now_us());

-- name: suspend :many on postgres
-- In the transaction that enqueued them nobody has seen them pending.
update holdfast.job j set state = 'waiting', channel = s.channel, due_at = null, gate = null
from unnest(cast(:suspensions.id as uuid[]), cast(:suspensions.channel as text[])) as s (id, channel)
where j.id = s.id and j.state in ('pending', 'scheduled')
returning j.seq;

-- name: suspend :many on sqlite
-- Forked for the list of records.
update holdfast.job as j set state = 'waiting', channel = s.channel, due_at = null, gate = null
from (select value ->> :suspensions.id as id, value ->> :suspensions.channel as channel from json_each(:suspensions)) as s
where j.id = s.id and j.state in ('pending', 'scheduled')
returning seq;

-- name: resolve :many on postgres
-- Under a new token where it ends, so that nothing an earlier attempt still holds can write here. One that is to wait
-- for children of which none is open is pending at once.
with resolution as materialized (
    select r.*, 'waiting' as source from unnest(
        cast(:resolutions.seq as bigint[]), cast(:resolutions.channel as text[]), cast(:resolutions.state as text[]),
        cast(:resolutions.children as integer[]), cast(:resolutions.onto as text[]),
        cast(:resolutions.payload as json[]), cast(:resolutions.result as json[]), cast(:resolutions.error as json[])
    ) as r (seq, channel, state, children, onto, payload, result, error)
)
update holdfast.job j set
    state = case when r.state = 'waiting' and r.onto is null and j.open_children + r.children = 0 then 'pending'
        else r.state end,
    token = case when r.state in ('succeeded', 'failed') then j.token + 1 else j.token end,
    channel = r.onto, due_at = null, open_children = j.open_children + r.children,
    payload = coalesce(r.payload, j.payload), result = r.result, error = coalesce(r.error, j.error),
    finished_at = case when r.state in ('succeeded', 'failed') then holdfast.now_us() end
from resolution r
where j.seq = any(cast(:seqs as bigint[])) and j.seq = r.seq and j.state = r.source
    and j.channel is not distinct from r.channel
returning j.seq, cast(j.id as text) as id, j.state, j.route, j.parent, j.lane, j.kind;

-- name: resolve :many on sqlite
-- Forked for the list of records.
with r as materialized (
    select value ->> :resolutions.seq as seq, value ->> :resolutions.channel as channel,
        value ->> :resolutions.state as state, value ->> :resolutions.children as children,
        value ->> :resolutions.onto as onto, value ->> :resolutions.payload as payload, value ->> :resolutions.result as result,
        value ->> :resolutions.error as error
    from json_each(:resolutions)
)
update holdfast.job as j set
    state = case when r.state = 'waiting' and r.onto is null and j.open_children + r.children = 0 then 'pending'
        else r.state end,
    token = case when r.state in ('succeeded', 'failed') then j.token + 1 else j.token end,
    channel = r.onto, due_at = null, open_children = j.open_children + r.children,
    payload = coalesce(r.payload, j.payload), result = r.result, error = coalesce(r.error, j.error),
    finished_at = case when r.state in ('succeeded', 'failed') then holdfast.now_us() end
from r
where j.seq = any(:seqs) and j.seq = r.seq and j.state = 'waiting' and j.channel is r.channel
returning seq, id, state, route, parent, lane, kind;

-- name: send_signal :exec
-- Sent again because its answer was lost it stays one signal, also when a job has taken it meanwhile.
insert into holdfast.signal (id, channel, payload, sent_at)
select :id, :channel, :payload, holdfast.now_us()
where not exists (select 1 from holdfast.step t where t.signal = :id)
on conflict (id) do nothing;

-- name: signal :many on postgres
-- Every job parked on the channel looks again; one of them takes the signal and the others park again. Locked in
-- the order of `lock_jobs`.
update holdfast.job set state = 'pending', channel = null, due_at = null
where seq = any(array(
    select seq from holdfast.job where state = 'waiting' and channel = :channel order by seq for update))
returning seq, route;

-- name: signal :many on sqlite
-- No row to lock.
update holdfast.job set state = 'pending', channel = null, due_at = null
where state = 'waiting' and channel = :channel
returning seq, route;

-- name: take_signal :one
delete from holdfast.signal
where seq = (select min(s.seq) from holdfast.signal s where s.channel = :channel)
returning cast(id as text) as id, payload;

-- name: hold :one on postgres
-- The fence for writes beside the job's own row: locks the row, so that the lease cannot change hands meanwhile.
select seq, cancel_requested_at, holdfast.now_us() as now from holdfast.job
where seq = :seq and state = 'running' and worker = :worker and epoch = :epoch and token = :token
for update;

-- name: hold :one on sqlite
-- The transaction holds the write lock already.
select seq, cancel_requested_at, holdfast.now_us() as now from holdfast.job
where seq = :seq and state = 'running' and worker = :worker and epoch = :epoch and token = :token;

-- name: store_step :one on postgres
-- The lease is locked and tested in the same statement that stores.
with mine as (
    select seq from holdfast.job
    where seq = :seq and state = 'running' and worker = :worker and epoch = :epoch and token = :token
    for update
)
insert into holdfast.step (job, name, result, signal, stored_at)
select seq, :name, :result, :signal, holdfast.now_us() from mine
on conflict (job, name) do nothing
returning name, result;

-- name: store_step :one on sqlite
-- No row to lock.
insert into holdfast.step (job, name, result, signal, stored_at)
select seq, :name, :result, :signal, holdfast.now_us() from holdfast.job
where seq = :seq and state = 'running' and worker = :worker and epoch = :epoch and token = :token
on conflict (job, name) do nothing
returning name, result;

-- name: list_steps :many
select name, result from holdfast.step where job = :seq order by stored_at, name;

-- name: find_step :one
select name, result from holdfast.step where job = :seq and name = :name;

-- name: add_children :exec
update holdfast.job set open_children = open_children + :added where seq = :seq;

-- name: list_children :many
select cast(id as text) as id, kind, state, result, error from holdfast.job where parent = :seq order by seq;

-- name: find_cancellable :one
select seq, parent, state from holdfast.job where id = :id;

-- name: cancel :many
-- Not running: ends at once, under a new token.
update holdfast.job set state = 'cancelled', token = token + 1, due_at = null, channel = null, gate = null,
    cancel_requested_at = holdfast.now_us(), finished_at = holdfast.now_us(), error = :error
where seq = any(cast(:seqs as bigint[])) and state in ('scheduled', 'pending', 'waiting')
returning seq, cast(id as text) as id, state, route, parent, lane, kind;

-- name: request_cancel :many
-- Running: its worker is told by a hint and by its next renewal, and ends it; if it dies, the sweep does.
update holdfast.job set cancel_requested_at = holdfast.now_us(), error = :error
where seq = any(cast(:seqs as bigint[])) and state = 'running' and cancel_requested_at is null
returning seq, worker;

-- name: open_cancellation :exec
-- Also where no child is open: one that has ended may have open children of its own. The first child, never `exists`:
-- that may be planned as a walk through all children there are.
insert into holdfast.cancellation (job, reason, requested_at)
select seq, :reason, holdfast.now_us() from holdfast.job
where seq = any(cast(:seqs as bigint[]))
    and (select c.parent from holdfast.job c where c.parent = job.seq limit 1) is not null
on conflict (job) do nothing;

-- name: cancellable_pending :many on postgres
-- Route by route: the index of what can be claimed begins with it, and nothing else is read.
select f.seq from unnest(cast(:routes as bigint[])) as r (route)
cross join lateral (select j.seq from holdfast.job j
    where j.route = r.route and j.state = 'pending' and j.gate is null and j.seq + 0 <= :upto
        and j.kind <> all(cast(:kept as text[]))
        and (cast(:kind as text) is null or j.kind = :kind) and (cast(:tenant as text) is null or j.tenant = :tenant)
    order by @place(j) limit :limit) as f
limit :limit;

-- name: cancellable_pending :many on sqlite
-- Forked for the list: json_each where PostgreSQL has unnest, and no lateral.
select j.seq from json_each(:routes) as r cross join holdfast.job j
where j.route = r.value and j.state = 'pending' and j.gate is null and j.seq + 0 <= :upto
    and j.kind not in (select value from json_each(:kept))
    and (:kind is null or j.kind = :kind) and (:tenant is null or j.tenant = :tenant)
limit :limit;

-- name: cancellable_blocked :many on postgres
-- What a lane holds back. It says `lane is not null` because its index does.
select f.seq from unnest(cast(:routes as bigint[])) as r (route)
cross join lateral (select j.seq from holdfast.job j
    where j.route = r.route and j.state = 'pending' and j.gate is not null and j.lane is not null and j.seq + 0 <= :upto
        and j.kind <> all(cast(:kept as text[]))
        and (cast(:kind as text) is null or j.kind = :kind) and (cast(:tenant as text) is null or j.tenant = :tenant)
    limit :limit) as f
limit :limit;

-- name: cancellable_blocked :many on sqlite
-- Forked for the list: json_each where PostgreSQL has unnest, and no lateral.
select j.seq from json_each(:routes) as r cross join holdfast.job j
where j.route = r.value and j.state = 'pending' and j.gate is not null and j.lane is not null and j.seq + 0 <= :upto
    and j.kind not in (select value from json_each(:kept))
    and (:kind is null or j.kind = :kind) and (:tenant is null or j.tenant = :tenant)
limit :limit;

-- name: cancellable_later :many on postgres
select f.seq from unnest(cast(:routes as bigint[])) as r (route)
cross join lateral (select j.seq from holdfast.job j
    where j.route = r.route and j.state in ('scheduled', 'waiting') and j.state = any(cast(:states as text[]))
        and j.seq + 0 <= :upto and j.kind <> all(cast(:kept as text[]))
        and (cast(:kind as text) is null or j.kind = :kind) and (cast(:tenant as text) is null or j.tenant = :tenant)
    limit :limit) as f
limit :limit;

-- name: cancellable_later :many on sqlite
-- Forked for the list: json_each where PostgreSQL has unnest, and no lateral.
select j.seq from json_each(:routes) as r cross join holdfast.job j
where j.route = r.value and j.state in ('scheduled', 'waiting') and j.state = any(:states) and j.seq + 0 <= :upto
    and j.kind not in (select value from json_each(:kept))
    and (:kind is null or j.kind = :kind) and (:tenant is null or j.tenant = :tenant)
limit :limit;

-- name: cancellable_running :many on postgres
-- Who was asked already is not asked again. What runs is bounded by the slots of all workers, and has an index; `+ 0`
-- keeps the primary key, which has everything, out of it.
select seq from holdfast.job
where state = 'running' and cancel_requested_at is null and route = any(cast(:routes as bigint[])) and seq + 0 <= :upto
    and kind <> all(cast(:kept as text[]))
    and (cast(:kind as text) is null or kind = :kind) and (cast(:tenant as text) is null or tenant = :tenant)
limit :limit;

-- name: cancellable_running :many on sqlite
-- Forked for the list of kinds to leave alone.
select seq from holdfast.job
where state = 'running' and cancel_requested_at is null and route = any(:routes) and seq + 0 <= :upto
    and kind not in (select value from json_each(:kept))
    and (:kind is null or kind = :kind) and (:tenant is null or tenant = :tenant)
limit :limit;

-- name: next_cancellations :many on postgres
select job, reason from holdfast.cancellation order by job limit :limit for update skip locked;

-- name: next_cancellations :many on sqlite
-- No row locks to skip.
select job, reason from holdfast.cancellation order by job limit :limit;

-- name: cancellable_children :many
select seq, parent from holdfast.job
where parent = any(cast(:parents as bigint[])) and state in ('scheduled', 'pending', 'running', 'waiting')
    and cancel_requested_at is null
order by seq limit :limit;

-- name: pass_cancellation :exec
-- A child that ended by itself takes no cancel, but hands it on to its own children.
insert into holdfast.cancellation (job, reason, requested_at)
select seq, :reason, holdfast.now_us() from holdfast.job
where parent = any(cast(:parents as bigint[])) and state in ('succeeded', 'failed', 'cancelled')
    and (select c.parent from holdfast.job c where c.parent = job.seq limit 1) is not null
on conflict (job) do nothing;

-- name: close_cancellation :exec
delete from holdfast.cancellation where job = any(cast(:jobs as bigint[]));

-- name: untaken_signals :many
select seq from holdfast.signal where sent_at <= holdfast.now_us() - :age_us order by sent_at limit :limit;

-- name: prune_signals :exec
delete from holdfast.signal where seq = any(cast(:seqs as bigint[]));

-- name: list_channels :many
-- So many channels in the order of their names.
select name from holdfast.channel where name > :after order by name limit :limit;

-- name: prune_channels :exec
-- Those that nobody waits on and that hold nothing. A value for each, where `not exists` may be planned as a join.
delete from holdfast.channel
where name = any(cast(:names as text[]))
    and (select s.seq from holdfast.signal s where s.channel = channel.name limit 1) is null
    and (select j.seq from holdfast.job j where j.state = 'waiting' and j.channel = channel.name limit 1) is null;
