-- Jobs that wait without a worker, what wakes them, and the steps that they do not repeat.

-- name: wake :many on postgres
-- Wakes scheduled jobs that are due, and waits that timed out.
with gone as (
    delete from holdfast.later where seq = any(array(
        select k.seq from holdfast.later k where k.due_at is not null and k.due_at <= holdfast.now_us()
        order by k.due_at limit :limit for update skip locked))
    returning *
)
insert into holdfast.ready (@ready) select @ready(g) from gone g
returning seq, route;

-- name: wake :many on sqlite
-- Forked: SQLite has no CTE that changes rows. The order is total, so that both statements choose the same rows.
insert into holdfast.ready (@ready) select @ready(g) from holdfast.later g where g.seq in (
    select k.seq from holdfast.later k where k.due_at is not null and k.due_at <= holdfast.now_us()
    order by k.due_at, k.seq limit :limit);
delete from holdfast.later where seq in (
    select k.seq from holdfast.later k where k.due_at is not null and k.due_at <= holdfast.now_us()
    order by k.due_at, k.seq limit :limit)
returning seq, route;

-- name: find_overdue :many
-- The first jobs by the index of each table.
select f.seq, (select j.parent from holdfast.job j where j.seq = f.seq) as parent
from (
    select a.seq, a.deadline_at from (
        select r.seq, r.deadline_at from holdfast.ready r
        where r.deadline_at is not null and r.deadline_at <= holdfast.now_us()
        order by r.deadline_at limit :limit) as a
    union all
    select b.seq, b.deadline_at from (
        select t.seq, t.deadline_at from holdfast.later t
        where t.deadline_at is not null and t.deadline_at <= holdfast.now_us()
        order by t.deadline_at limit :limit) as b
) as f
order by f.deadline_at limit :limit;

-- name: overdue :many on postgres
-- Fails the jobs under a new token, so that an earlier attempt cannot write any more. Each row is locked where it is
-- found, so the deleted rows and the written rows are the same. Every plan finds each of them by a probe.
with unclaimed as materialized (
    select j.seq, j.id, j.route, j.parent, j.lane, j.kind, j.queue, r.spot, r.token, r.attempts, r.rescues
    from holdfast.job j cross join lateral (
        select k.ctid as spot, k.token, k.attempts, k.rescues from holdfast.ready k
        where k.route = j.route and k.priority = j.priority and k.slot = j.slot and k.seq = j.seq
            and k.deadline_at <= holdfast.now_us()
        for update
    ) as r
    where j.seq = any(cast(:seqs as bigint[]))
), unwoken as materialized (
    select j.seq, j.id, j.route, j.parent, j.lane, j.kind, j.queue, t.token, t.attempts, t.rescues
    from holdfast.job j cross join lateral (
        select k.token, k.attempts, k.rescues from holdfast.later k
        where k.seq = j.seq and k.deadline_at <= holdfast.now_us()
        for update
    ) as t
    where j.seq = any(cast(:seqs as bigint[]))
), late as materialized (
    select seq, id, route, parent, lane, kind, queue, token, attempts, rescues from unclaimed
    union all
    select seq, id, route, parent, lane, kind, queue, token, attempts, rescues from unwoken
), from_ready as (
    delete from holdfast.ready where ctid = any(array(select spot from unclaimed))
), from_later as (
    delete from holdfast.later where seq = any(array(select seq from unwoken))
), failed as (
    insert into holdfast.ended (seq, token, finished_at, attempts, rescues, state, queue, lane, error)
    select seq, token + 1, holdfast.now_us(), attempts, rescues, 'failed', queue, lane, cast(:error as json) from late
)
select seq, cast(id as text) as id, 'failed' as state, route, parent, lane, kind from late;

-- name: overdue :many on sqlite
-- Forked: SQLite has no CTE that changes rows. Rows of `ready` go through `later`, so that the last statement
-- returns all jobs. The second condition on the deadline is written so that no plan reads the index of deadlines,
-- which has those of all jobs.
insert into holdfast.later (@ready, state)
select @ready(r), 'waiting' from holdfast.job j cross join holdfast.ready r
    on r.route = j.route and r.priority = j.priority and r.slot = j.slot and r.seq = j.seq
where j.seq = any(:seqs) and r.deadline_at <= holdfast.now_us();
delete from holdfast.ready where deadline_at <= holdfast.now_us() and (route, priority, slot, seq) in (
    select j.route, j.priority, j.slot, j.seq from holdfast.job j where j.seq = any(:seqs));
insert into holdfast.ended (seq, token, finished_at, attempts, rescues, state, queue, lane, error)
select t.seq, t.token + 1, holdfast.now_us(), t.attempts, t.rescues, 'failed', j.queue, j.lane, :error
from json_each(:seqs) as s cross join holdfast.later t on t.seq = s.value cross join holdfast.job j on j.seq = t.seq
where coalesce(t.deadline_at <= holdfast.now_us(), false);
delete from holdfast.later where seq in (
    select e.seq from json_each(:seqs) as s cross join holdfast.ended e on e.seq = s.value)
returning seq, (select j.id from holdfast.job j where j.seq = later.seq) as id, 'failed' as state, route,
    (select j.parent from holdfast.job j where j.seq = later.seq) as parent, lane,
    (select j.kind from holdfast.job j where j.seq = later.seq) as kind;

-- name: lock_channel :exec
-- Both park and signal write this row first, so the second one sees what the first one did.
insert into holdfast.channel (name) values (:channel) on conflict (name) do update set name = excluded.name;

-- name: hold_still :one
-- Before a job begins to wait for its children. A transaction that ends a child locks the anchor, and one that
-- launches a child locks the lease. So the next statement sees how many children there are.
with anchor as materialized (
    select k.seq from holdfast.job k where k.seq = :seq for update
)
select k.seq from holdfast.lease k
where k.seq = (select a.seq from anchor a) and k.worker + 0 = :worker and k.epoch = :epoch and k.token = :token
for update;

-- name: park :one on postgres
-- If nothing is left to wait for, the job is pending at once. If a cancel was accepted, the job does not wait and no
-- row is returned.
with mine as (
    delete from holdfast.lease
    where @fence and cancel_requested_at is null
    returning seq, worker, epoch, token, claimed_at, route, attempts, rescues
), logged as (
    insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at)
    select seq, epoch, token, worker, 'parked', claimed_at, holdfast.now_us() from mine
), parked as materialized (
    select l.route, j.slot, l.seq, l.token, j.priority, l.attempts, l.rescues, j.cost, j.deadline_at, j.lane, j.tenant,
        case
            when cast(:channel as text) is null
                and coalesce((select f.open_children from holdfast.family f where f.job = l.seq), 0) = 0 then 'pending'
            when exists (select 1 from holdfast.signal s where s.channel = :channel) then 'pending'
            else 'waiting' end as state
    from mine l cross join lateral (
        select k.slot, k.priority, case when k.lane is not null then k.cost end as cost, k.deadline_at, k.lane,
            case when k.slot > 0 then k.tenant end as tenant
        from holdfast.job k where k.seq = l.seq offset 0
    ) as j
), woken as (
    insert into holdfast.ready (@ready) select @ready from parked where state = 'pending'
), waiting as (
    insert into holdfast.later (@ready, state, due_at, channel)
    select @ready, state, holdfast.now_us() + cast(:timeout_us as bigint), :channel from parked where state = 'waiting'
)
select seq, route, state from parked;

-- name: park :one on sqlite
-- Forked: SQLite has no CTE that changes rows. The lease is deleted last; the rows written before say where the job
-- is now.
insert into holdfast.attempt (job, epoch, token, worker, outcome, started_at, ended_at)
select l.seq, l.epoch, l.token, l.worker, 'parked', l.claimed_at, holdfast.now_us() from holdfast.lease l
where @fence(l) and l.cancel_requested_at is null;
insert into holdfast.ready (@ready)
select l.route, j.slot, l.seq, l.token, j.priority, l.attempts, l.rescues, case when j.lane is not null then j.cost end,
    j.deadline_at, j.lane, case when j.slot > 0 then j.tenant end
from holdfast.lease l cross join holdfast.job j on j.seq = l.seq
where @fence(l) and l.cancel_requested_at is null
    and case when :channel is null
        then coalesce((select f.open_children from holdfast.family f where f.job = l.seq), 0) = 0
        else exists (select 1 from holdfast.signal s where s.channel = :channel) end;
insert into holdfast.later (@ready, state, due_at, channel)
select l.route, j.slot, l.seq, l.token, j.priority, l.attempts, l.rescues, case when j.lane is not null then j.cost end,
    j.deadline_at, j.lane, case when j.slot > 0 then j.tenant end,
    'waiting', holdfast.now_us() + :timeout_us, :channel
from holdfast.lease l cross join holdfast.job j on j.seq = l.seq
where @fence(l) and l.cancel_requested_at is null
    and (select r.seq from holdfast.ready r
        where r.route = l.route and r.priority = j.priority and r.slot = j.slot and r.seq = l.seq) is null;
delete from holdfast.lease
where @fence and cancel_requested_at is null
returning seq, route, coalesce((select t.state from holdfast.later t where t.seq = lease.seq), 'pending') as state;

-- name: suspend :many on postgres
-- Runs in the transaction that enqueued the jobs, so nobody has seen them pending. A job that is in `later` already
-- is changed in place, by conflict.
with suspension as materialized (
    select s.channel, j.seq, j.route, j.priority, j.slot
    from rows(:suspensions) as s (id uuid, channel text)
    cross join lateral (
        select k.seq, k.route, k.priority, k.slot from holdfast.job k where k.id = s.id offset 0
    ) as j
), unclaimed as materialized (
    select r.*, s.channel from suspension s cross join lateral (
        select k.ctid as spot, @ready(k) from holdfast.ready k
        where k.route = s.route and k.priority = s.priority and k.slot = s.slot and k.seq = s.seq
        for update
    ) as r
), unwoken as materialized (
    select t.*, s.channel from suspension s cross join lateral (
        select @ready(k) from holdfast.later k where k.seq = s.seq and k.state in ('scheduled', 'blocked') for update
    ) as t
), gone as (
    delete from holdfast.ready where ctid = any(array(select spot from unclaimed))
)
insert into holdfast.later (@ready, state, channel)
select @ready, 'waiting', channel from unclaimed union all select @ready, 'waiting', channel from unwoken
on conflict (seq) do update set state = excluded.state, channel = excluded.channel, due_at = null
returning seq;

-- name: suspend :many on sqlite
-- Forked: SQLite has no CTE that changes rows. All jobs go through `ready`, so that the last statement returns all
-- of them.
insert into holdfast.ready (@ready)
select @ready(t) from json_each(:suspensions) cross join holdfast.job j on j.id = value ->> :suspensions.id
    cross join holdfast.later t on t.seq = j.seq
where t.state in ('scheduled', 'blocked');
delete from holdfast.later where state in ('scheduled', 'blocked') and seq in (
    select j.seq from json_each(:suspensions) cross join holdfast.job j on j.id = value ->> :suspensions.id);
insert into holdfast.later (@ready, state, channel)
select @ready(r), 'waiting', value ->> :suspensions.channel
from json_each(:suspensions) cross join holdfast.job j on j.id = value ->> :suspensions.id
    cross join holdfast.ready r on r.route = j.route and r.priority = j.priority and r.slot = j.slot and r.seq = j.seq;
delete from holdfast.ready where (route, priority, slot, seq) in (
    select j.route, j.priority, j.slot, j.seq
    from json_each(:suspensions) cross join holdfast.job j on j.id = value ->> :suspensions.id)
returning seq;

-- name: resolve :many on postgres
-- A job that ends gets a new token, so that an earlier attempt cannot write any more. A job that is to wait for
-- children is pending at once if no child is open. A job that continues to wait is changed in place, by conflict: a
-- join may be planned to compare every row with every other. If no error is given, the error is the last one that
-- the job had.
with resolution as materialized (
    select r.* from rows(:resolutions) as r (seq bigint, channel text, state text, children integer, onto text,
        payload json, result json, error json)
), found as materialized (
    select t.*, r.children, r.onto, r.payload, r.result, r.error, j.id, j.parent, j.kind, j.queue,
        case when r.state = 'waiting' and r.onto is null and r.children
            + coalesce((select f.open_children from holdfast.family f where f.job = r.seq), 0) = 0 then 'pending'
            else r.state end as state
    from resolution r
    cross join lateral (
        select @ready(k) from holdfast.later k
        where k.seq = r.seq and case k.state when 'waiting' then k.channel is not distinct from r.channel else false end
        for update
    ) as t
    cross join lateral (
        select k.id, k.parent, k.kind, k.queue from holdfast.job k where k.seq = r.seq offset 0
    ) as j
), woken as (
    insert into holdfast.ready (@ready) select @ready from found where state = 'pending'
), finished as (
    insert into holdfast.ended (seq, token, finished_at, attempts, rescues, state, queue, lane, result, error)
    select seq, token + 1, holdfast.now_us(), attempts, rescues, state, queue, lane, result,
        coalesce(error, (select a.error from holdfast.attempt a where a.job = found.seq and a.error is not null
            order by a.epoch desc, a.token desc limit 1))
    from found where state in ('succeeded', 'failed')
), gone as (
    delete from holdfast.later where seq = any(array(select seq from found where state <> 'waiting'))
), waiting as (
    insert into holdfast.later (@ready, state, channel) select @ready, state, onto from found where state = 'waiting'
    on conflict (seq) do update set channel = excluded.channel, due_at = null
), added as (
    insert into holdfast.family (job, open_children) select seq, children from found where children > 0
    on conflict (job) do update set open_children = family.open_children + excluded.open_children
), edit as materialized (
    select seq, payload from found where payload is not null
), edited as (
    update holdfast.job j set payload = e.payload from edit e
    where j.seq = any(array(select seq from edit)) and j.seq = e.seq
)
select :columns from found;

-- name: resolve :many on sqlite
-- Forked: SQLite has no CTE that changes rows. First each waiting job gets the negative of its number, then it is
-- written to its new place, and at last the row with the negative number is deleted, so that the last statement
-- returns all jobs. Children are counted before any statement asks for their number.
with r as materialized (
    select value ->> :resolutions.seq as seq, value ->> :resolutions.channel as channel from json_each(:resolutions)
)
update holdfast.later as t set seq = -t.seq from r
where t.seq = r.seq and t.state = 'waiting' and t.channel is r.channel;
insert into holdfast.family (job, open_children)
select -t.seq, value ->> :resolutions.children
from json_each(:resolutions) cross join holdfast.later t on t.seq = -(value ->> :resolutions.seq)
where value ->> :resolutions.children > 0
on conflict (job) do update set open_children = family.open_children + excluded.open_children;
with r as materialized (
    select -t.seq as seq, value ->> :resolutions.payload as payload
    from json_each(:resolutions) cross join holdfast.later t on t.seq = -(value ->> :resolutions.seq)
    where value ->> :resolutions.payload is not null
)
update holdfast.job as j set payload = r.payload from r where j.seq = r.seq;
insert into holdfast.ended (seq, token, finished_at, attempts, rescues, state, queue, lane, result, error)
select j.seq, t.token + 1, holdfast.now_us(), t.attempts, t.rescues, value ->> :resolutions.state, j.queue, j.lane,
    value ->> :resolutions.result, coalesce(value ->> :resolutions.error, (select a.error from holdfast.attempt a
        where a.job = j.seq and a.error is not null order by a.epoch desc, a.token desc limit 1))
from json_each(:resolutions) cross join holdfast.later t on t.seq = -(value ->> :resolutions.seq)
    cross join holdfast.job j on j.seq = -t.seq
where value ->> :resolutions.state in ('succeeded', 'failed');
insert into holdfast.ready (@ready)
select t.route, t.slot, -t.seq, t.token, t.priority, t.attempts, t.rescues, t.cost, t.deadline_at, t.lane, t.tenant
from json_each(:resolutions) cross join holdfast.later t on t.seq = -(value ->> :resolutions.seq)
where value ->> :resolutions.state = 'pending' or (value ->> :resolutions.state = 'waiting'
    and value ->> :resolutions.onto is null
    and coalesce((select f.open_children from holdfast.family f where f.job = -t.seq), 0) = 0);
insert into holdfast.later (@ready, state, channel)
select t.route, t.slot, -t.seq, t.token, t.priority, t.attempts, t.rescues, t.cost, t.deadline_at, t.lane, t.tenant,
    'waiting', value ->> :resolutions.onto
from json_each(:resolutions) cross join holdfast.later t on t.seq = -(value ->> :resolutions.seq)
where value ->> :resolutions.state = 'waiting' and (value ->> :resolutions.onto is not null
    or coalesce((select f.open_children from holdfast.family f where f.job = -t.seq), 0) > 0);
delete from holdfast.later where seq in (select -(value ->> :resolutions.seq) from json_each(:resolutions))
returning -seq as seq, (select j.id from holdfast.job j where j.seq = -later.seq) as id,
    coalesce((select e.state from holdfast.ended e where e.seq = -later.seq),
        (select 'pending' from holdfast.ready r where r.route = later.route and r.priority = later.priority
            and r.slot = later.slot and r.seq = -later.seq), 'waiting') as state, route,
    (select j.parent from holdfast.job j where j.seq = -later.seq) as parent, lane,
    (select j.kind from holdfast.job j where j.seq = -later.seq) as kind;

-- name: send_signal :one
-- If a caller repeats the call because the answer was lost, it stays one signal, also if a job has taken it since.
insert into holdfast.signal (id, channel, payload, sent_at)
select :id, :channel, :payload, holdfast.now_us()
where not exists (select 1 from holdfast.step t where t.signal = :id)
on conflict (id) do nothing
returning cast(id as text) as id, cast(payload as text) as payload;

-- name: sent_signal :one
-- What was sent under this id before: it is still there, or a step of the job that took it has it. The casts keep the
-- driver of a lent connection from reading the JSON.
select cast(s.id as text) as id, cast(s.payload as text) as payload from holdfast.signal s where s.id = :id
union all
select cast(t.signal as text) as id, cast(t.result as text) as payload from holdfast.step t where t.signal = :id
limit 1;

-- name: signal :many on postgres
-- Wakes every job parked on the channel. One of them takes the signal and the others park again. Rows are locked in
-- ascending order, as everywhere; `+ 0` keeps the plan from walking the whole table in that order.
with gone as (
    delete from holdfast.later where seq = any(array(
        select k.seq from holdfast.later k where k.channel = :channel order by k.seq + 0 for update))
    returning *
)
insert into holdfast.ready (@ready) select @ready(g) from gone g
returning seq, route;

-- name: signal :many on sqlite
-- Forked: SQLite has no CTE that changes rows.
insert into holdfast.ready (@ready) select @ready(g) from holdfast.later g where g.channel = :channel;
delete from holdfast.later where channel = :channel
returning seq, route;

-- name: wake_some :many on postgres
-- Wakes some of the jobs that are parked on a channel, while its row is locked. Skips jobs that somebody else is
-- changing, so it never waits. Any order will do: workers claim the jobs in the usual order.
with gone as (
    delete from holdfast.later where seq = any(array(
        select k.seq from holdfast.later k where k.channel = :channel limit :limit for update skip locked))
    returning *
)
insert into holdfast.ready (@ready) select @ready(g) from gone g
returning seq, route;

-- name: wake_some :many on sqlite
-- Forked as `wake`.
insert into holdfast.ready (@ready) select @ready(g) from holdfast.later g where g.seq in (
    select k.seq from holdfast.later k where k.channel = :channel order by k.seq limit :limit);
delete from holdfast.later where seq in (
    select k.seq from holdfast.later k where k.channel = :channel order by k.seq limit :limit)
returning seq, route;

-- name: take_signal :one
delete from holdfast.signal
where seq = (select min(s.seq) from holdfast.signal s where s.channel = :channel)
returning cast(id as text) as id, payload;

-- name: hold :one
-- The fence for other writes of an attempt: it locks the row of the lease, so that the lease cannot be lost before
-- the commit.
select seq, cancel_requested_at, holdfast.now_us() as now from holdfast.lease
where @fence
for update;

-- name: store_step :one
-- The statement that stores also locks and tests the lease.
with mine as (
    select seq from holdfast.lease
    where @fence
    for update
)
insert into holdfast.step (job, name, result, signal, stored_at)
select seq, :name, :result, :signal, holdfast.now_us() from mine where true
on conflict (job, name) do nothing
returning name, cast(result as text) as result;

-- name: raise_count :one
-- A number that is kept as a step of a job, and raised by others too, so no lease is asked for. It goes when the job goes.
insert into holdfast.step (job, name, result, stored_at)
select j.seq, :name, :result, holdfast.now_us() from holdfast.job j where j.id = :id
on conflict (job, name) do update
set result = cast(cast(
    cast(cast(step.result as text) as bigint) + cast(cast(excluded.result as text) as bigint) as text) as json)
returning name, cast(result as text) as result;

-- name: list_steps :many
select name, result from holdfast.step where job = :seq order by stored_at, name;

-- name: last_step :one
-- In the order of `list_steps`. The others are counted, not read: their results may be large.
select s.name, cast(s.result as text) as result, (select count(*) from holdfast.step c
    where c.job = :seq and substr(c.name, 1, length(cast(:prefix as text))) = :prefix) as number
from holdfast.step s where s.job = :seq and substr(s.name, 1, length(cast(:prefix as text))) = :prefix
order by s.stored_at desc, s.name desc limit 1;

-- name: take_write_lock :exec
-- It deletes nothing.
delete from holdfast.step where job = 0;

-- name: find_step :one
-- As text: some libraries whose connections callers lend parse JSON by themselves.
select name, cast(result as text) as result from holdfast.step where job = :seq and name = :name;

-- name: add_children :exec
-- The caller has locked the parent's anchor before.
insert into holdfast.family (job, open_children)
select seq, :added from holdfast.job where seq = :seq
on conflict (job) do update set open_children = family.open_children + excluded.open_children;

-- name: list_children :many
select :columns from holdfast.job_now where parent = :seq order by seq;

-- name: untaken_signals :many
select seq from holdfast.signal where sent_at <= holdfast.now_us() - :age_us order by sent_at limit :limit;

-- name: prune_signals :exec
delete from holdfast.signal where seq = any(cast(:seqs as bigint[]));

-- name: held_channels :many
with free as materialized (
    select c.name from holdfast.channel c where c.name = any(cast(:names as text[])) order by c.name
    for update skip locked
)
select c.name from holdfast.channel c
where c.name = any(cast(:names as text[])) and c.name not in (select f.name from free f)
order by c.name;

-- name: list_channels :many
-- The next channels in the order of their names.
select name from holdfast.channel where name > :after order by name limit :limit;

-- name: prune_channels :exec
-- Channels without waiting jobs and without signals. The condition reads one value for each, because `not exists`
-- may be planned as a join.
delete from holdfast.channel
where name = any(cast(:names as text[]))
    and (select s.seq from holdfast.signal s where s.channel = channel.name limit 1) is null
    and (select t.seq from holdfast.later t where t.channel = channel.name limit 1) is null;
