-- Events of runs, numbered without gaps, written together with the change that they describe.

-- name: begin_reading :exec
insert into holdfast.reader (id, until) values (:id, holdfast.now_us() + :ttl_us)
on conflict (id) do update set until = excluded.until;

-- name: end_reading :exec
delete from holdfast.reader where id = :id;

-- name: prune_readers :exec
-- Readers whose process was killed.
delete from holdfast.reader where until <= holdfast.now_us();

-- name: add_events :one on postgres
-- Returns whether anybody reads: only then the writer sends a hint after the commit.
with counted as materialized (
    select e.run, count(*) as n from rows(:events) as e (run text) group by e.run
), numbered as (
    update holdfast.run r set events = r.events + c.n from counted c where r.id = c.run
    returning r.id, r.events - c.n as base
), added as (
    insert into holdfast.run_event (run, seq, at, type, data, topic, epoch, tx)
    select e.run, n.base + e.place, holdfast.now_us(), e.type, e.data, e.topic,
        (select c.epoch from holdfast.cluster c), cast(cast(pg_current_xact_id() as text) as bigint)
    from rows(:events) as e (run text, place integer, type text, data json, topic text)
    join numbered n on n.id = e.run order by e.run, e.place
)
select case when exists (select 1 from holdfast.reader d where d.until > holdfast.now_us()) then 1 else 0 end as readers;

-- name: add_events :one on sqlite
-- Forked: SQLite has no CTE that changes rows. First the numbers, then the rows with these numbers.
update holdfast.run as r set events = r.events + c.n
from (select value ->> :events.run as run, count(*) as n from json_each(:events) group by 1) as c
where r.id = c.run;
insert into holdfast.run_event (run, seq, at, type, data, topic, epoch, tx)
select r.id, r.events - c.n + (value ->> :events.place), holdfast.now_us(), value ->> :events.type,
    value ->> :events.data, value ->> :events.topic, (select u.epoch from holdfast.cluster u), 0
from json_each(:events) cross join holdfast.run r on r.id = value ->> :events.run
join (select value ->> :events.run as run, count(*) as n from json_each(:events) group by 1) as c on c.run = r.id
order by r.id, value ->> :events.place;
select case when exists (select 1 from holdfast.reader d where d.until > holdfast.now_us()) then 1 else 0 end as readers;

-- name: lock_speaking :many
-- Before deltas are added, in the order of their ids. The same deltas may be under way already, over a connection that was
-- lost: the statement that adds them must begin after that one has committed, or it would not see what is stored.
select r.id from rows(:speaking) as s (run text, epoch bigint, token bigint)
join holdfast.run r on r.id = s.run and r.epoch = s.epoch and r.token = s.token order by r.id for update of r;

-- name: add_deltas :one on postgres
-- What a model says while it speaks. Only the attempt that has the run can write this: a late one finds another
-- token. Each piece is written once: it says its position, so if the last piece is the last event of the run, all
-- are there already.
with counted as materialized (
    select d.run, d.epoch, d.token, count(*) as n, (array_agg(d.data order by d.place desc))[1] as last
    from rows(:deltas) as d (run text, epoch bigint, token bigint, place integer, data text)
    group by d.run, d.epoch, d.token
), numbered as (
    update holdfast.run r set events = r.events + c.n, progressed_at = holdfast.now_us()
    from counted c where r.id = c.run and r.epoch = c.epoch and r.token = c.token and r.state = 'streaming'
        and not exists (select 1 from holdfast.run_event e
            where e.run = r.id and e.seq = r.events and cast(e.data as text) = c.last)
    returning r.id, r.epoch, r.token, r.events - c.n as base
), added as (
    insert into holdfast.run_event (run, seq, at, type, data, tx)
    select d.run, n.base + d.place, holdfast.now_us(), d.type, d.data, 0
    from rows(:deltas) as d (run text, epoch bigint, token bigint, place integer, type text, data json)
    join numbered n on n.id = d.run and n.epoch = d.epoch and n.token = d.token order by d.run, d.place
)
select case when exists (select 1 from holdfast.reader d where d.until > holdfast.now_us()) then 1 else 0 end as readers;

-- name: add_deltas :one on sqlite
-- Forked: SQLite has no CTE that changes rows. First the numbers, then the rows with these numbers.
update holdfast.run as r set events = r.events + c.n, progressed_at = holdfast.now_us()
from (select value ->> :deltas.run as run, value ->> :deltas.epoch as epoch, value ->> :deltas.token as token,
    count(*) as n, max(value ->> :deltas.place), value ->> :deltas.data as last  -- of the row that has the maximum
    from json_each(:deltas) group by 1, 2, 3) as c
where r.id = c.run and r.epoch = c.epoch and r.token = c.token and r.state = 'streaming'
    and not exists (select 1 from holdfast.run_event e where e.run = r.id and e.seq = r.events and e.data = c.last);
insert into holdfast.run_event (run, seq, at, type, data, tx)
select r.id, r.events - c.n + (value ->> :deltas.place), holdfast.now_us(), value ->> :deltas.type,
    value ->> :deltas.data, 0
from json_each(:deltas) cross join holdfast.run r on r.id = value ->> :deltas.run
    and r.epoch = value ->> :deltas.epoch and r.token = value ->> :deltas.token and r.state = 'streaming'
join (select value ->> :deltas.run as run, value ->> :deltas.epoch as epoch, value ->> :deltas.token as token,
    count(*) as n from json_each(:deltas) group by 1, 2, 3) as c
    on c.run = r.id and c.epoch = r.epoch and c.token = r.token
where true
order by r.id, value ->> :deltas.place
on conflict (run, seq) do nothing;
select case when exists (select 1 from holdfast.reader d where d.until > holdfast.now_us()) then 1 else 0 end as readers;

-- name: events_after :many on postgres
-- For all the runs that a process reads, each after the position of its reader.
select :columns(e)
from rows(:cursors) as c (run text, after integer)
cross join lateral (
    select :columns(e) from holdfast.run_event e where e.run = c.run and e.seq > c.after order by e.seq limit :limit
) as e
order by e.run, e.seq;

-- name: events_after :many on sqlite
-- Forked: SQLite has no lateral join.
select :columns(e)
from rows(:cursors) as c (run text, after integer)
cross join holdfast.run_event e on e.rowid in (
    select k.rowid from holdfast.run_event k where k.run = c.run and k.seq > c.after order by k.seq limit :limit)
order by e.run, e.seq;

-- part: settled on postgres
-- No open transaction can commit an earlier event. Transactions of an earlier epoch are over, and their numbers do not
-- compare with ours.
(e.epoch < (select c.epoch from holdfast.cluster c)
    or e.tx < cast(cast(pg_snapshot_xmin(pg_current_snapshot()) as text) as bigint))

-- part: settled on sqlite
-- There is one writer: nobody commits an event that comes before one that can be read.
true

-- name: last_topic :one
-- The last event before every open transaction: what such a transaction commits later must come after it.
select :columns(e) from holdfast.run_event e
where e.topic is not null and @settled
order by e.epoch desc, e.tx desc, e.pos desc limit 1;

-- name: topics_after :many
-- Events of all runs, in the order of their transactions. It waits for open transactions that could still add
-- earlier events. Each of the three queries reads one range of the index: for `(epoch, tx, pos) > (…)` SQLite, where
-- `tx` is always 0, would read all events of the epoch.
select :columns(e)
from (
    select * from (
        select :columns(k) from holdfast.run_event k
        where k.topic is not null and k.epoch = cast(:epoch as bigint) and k.tx = cast(:tx as bigint)
            and k.pos > cast(:pos as bigint)
        order by k.epoch, k.tx, k.pos limit :limit) as same_transaction
    union all select * from (
        select :columns(k) from holdfast.run_event k
        where k.topic is not null and k.epoch = cast(:epoch as bigint) and k.tx > cast(:tx as bigint)
        order by k.epoch, k.tx, k.pos limit :limit) as same_epoch
    union all select * from (
        select :columns(k) from holdfast.run_event k where k.topic is not null and k.epoch > cast(:epoch as bigint)
        order by k.epoch, k.tx, k.pos limit :limit) as later_epochs
) as e
where @settled
order by e.epoch, e.tx, e.pos limit :limit;
