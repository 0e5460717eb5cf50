-- Events of runs, numbered without gap, written with the change they tell of.

-- name: begin_reading :exec
insert into holdfast.reader (id, until) values (:id, holdfast.now_us() + :ttl_us)
on conflict (id) do update set until = excluded.until;

-- name: end_reading :exec
delete from holdfast.reader where id = :id;

-- name: prune_readers :exec
-- Of processes that were killed.
delete from holdfast.reader where until <= holdfast.now_us();

-- name: add_events :one on postgres
-- Says whether anybody reads: who writes tells them when this has committed, and nobody when nobody does.
with counted as materialized (
    select e.run, count(*) as n from unnest(cast(:events.run as text[])) as e (run) group by e.run
), numbered as (
    update holdfast.run r set events = r.events + c.n from counted c where r.id = c.run
    returning r.id, r.events - c.n as base
), told as (
    insert into holdfast.run_event (run, seq, at, type, data, topic, epoch, tx)
    select e.run, n.base + e.place, holdfast.now_us(), e.type, e.data, e.topic,
        (select c.epoch from holdfast.cluster c), cast(cast(pg_current_xact_id() as text) as bigint)
    from unnest(cast(:events.run as text[]), cast(:events.place as integer[]), cast(:events.type as text[]),
        cast(:events.data as json[]), cast(:events.topic as text[])) as e (run, place, type, data, topic)
    join numbered n on n.id = e.run order by e.run, e.place
)
select case when exists (select 1 from holdfast.reader d where d.until > holdfast.now_us()) then 1 else 0 end as readers;

-- name: add_events :one on sqlite
-- No data-modifying CTE here: the numbers first, then the rows below them.
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

-- name: add_deltas :one on postgres
-- What a model says while it says it. Only by the attempt that has the run: a late one finds another token there. And
-- once: each piece says where it stands, so if the last of them is the run's last event, they are all there already.
with counted as materialized (
    select d.run, d.epoch, d.token, count(*) as n, (array_agg(d.data order by d.place desc))[1] as last
    from unnest(cast(:deltas.run as text[]), cast(:deltas.epoch as bigint[]), cast(:deltas.token as bigint[]),
        cast(:deltas.place as integer[]), cast(:deltas.data as text[])) as d (run, epoch, token, place, data)
    group by d.run, d.epoch, d.token
), numbered as (
    update holdfast.run r set events = r.events + c.n, progressed_at = holdfast.now_us()
    from counted c where r.id = c.run and r.epoch = c.epoch and r.token = c.token and r.state = 'streaming'
        and not exists (select 1 from holdfast.run_event e
            where e.run = r.id and e.seq = r.events and cast(e.data as text) = c.last)
    returning r.id, r.epoch, r.token, r.events - c.n as base
), told as (
    insert into holdfast.run_event (run, seq, at, type, data, tx)
    select d.run, n.base + d.place, holdfast.now_us(), d.type, d.data, 0
    from unnest(cast(:deltas.run as text[]), cast(:deltas.epoch as bigint[]), cast(:deltas.token as bigint[]),
        cast(:deltas.place as integer[]), cast(:deltas.type as text[]), cast(:deltas.data as json[]))
        as d (run, epoch, token, place, type, data)
    join numbered n on n.id = d.run and n.epoch = d.epoch and n.token = d.token order by d.run, d.place
)
select case when exists (select 1 from holdfast.reader d where d.until > holdfast.now_us()) then 1 else 0 end as readers;

-- name: add_deltas :one on sqlite
-- No data-modifying CTE here: the numbers first, then the rows below them.
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
-- For all the runs a process reads, each from where its reader is.
select e.run, e.seq, e.at, e.type, e.data
from unnest(cast(:cursors.run as text[]), cast(:cursors.after as integer[])) as c (run, after)
cross join lateral (
    select f.run, f.seq, f.at, f.type, f.data from holdfast.run_event f
    where f.run = c.run and f.seq > c.after order by f.seq limit :limit
) as e
order by e.run, e.seq;

-- name: events_after :many on sqlite
-- No lateral here; the index serves each cursor.
select e.run, e.seq, e.at, e.type, e.data
from json_each(:cursors) cross join holdfast.run_event e
    on e.run = value ->> :cursors.run and e.seq > value ->> :cursors.after
        and e.seq <= (value ->> :cursors.after) + :limit
order by e.run, e.seq;

-- name: topics_after :many on postgres
-- Of all runs, in the order of their transactions. What a transaction still open might yet put before is waited for;
-- of an earlier epoch none is open, and its numbers say nothing here.
select e.epoch, e.tx, e.pos, e.run, e.seq, e.at, e.type, e.topic, e.data
from holdfast.run_event e
where e.topic is not null
    and (e.epoch, e.tx, e.pos) > (cast(:epoch as bigint), cast(:tx as bigint), cast(:pos as bigint))
    and (e.epoch < (select c.epoch from holdfast.cluster c)
        or e.tx < cast(cast(pg_snapshot_xmin(pg_current_snapshot()) as text) as bigint))
order by e.epoch, e.tx, e.pos limit :limit;

-- name: topics_after :many on sqlite
-- There is one writer: what is there comes in the order of its commits.
select e.epoch, e.tx, e.pos, e.run, e.seq, e.at, e.type, e.topic, e.data
from holdfast.run_event e
where e.topic is not null and (e.epoch, e.tx, e.pos) > (:epoch, :tx, :pos)
order by e.epoch, e.tx, e.pos limit :limit;
