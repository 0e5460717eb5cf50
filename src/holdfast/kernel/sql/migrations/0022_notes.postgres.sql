-- Notes about lanes and routes, for the next transaction that holds their rows.
-- oldest_code: 8

-- up
-- Nobody waits for a row that somebody else's transaction holds: what is to be done with it is written here, and a new
-- row waits for nobody. Limits in a note are those that a call declared; without them the lane is to be looked at.
create table holdfast.lane_note (
    id bigint generated always as identity primary key,
    lane text not null,
    declares integer not null,
    concurrency integer,
    interval_us bigint,
    burst integer not null,
    look_at bigint not null
);
create index lane_note_lane on holdfast.lane_note (lane);
create index lane_note_look on holdfast.lane_note (look_at);
create table holdfast.route_note (
    id bigint generated always as identity primary key,
    route bigint not null,
    queue text not null,
    capabilities text not null
);

-- down
-- A release without notes opens a lane that a note was to open within a minute.
insert into holdfast.lane (name, concurrency, interval_us, burst, updated_at, opens_at)
select distinct on (n.lane) n.lane, n.concurrency, n.interval_us, n.burst, holdfast.now_us(), holdfast.now_us()
from holdfast.lane_note n where n.declares = 1 order by n.lane, n.id desc
on conflict (name) do update set concurrency = excluded.concurrency, interval_us = excluded.interval_us,
    burst = excluded.burst, updated_at = excluded.updated_at, opens_at = excluded.opens_at;
update holdfast.lane set opens_at = holdfast.now_us() where name in (select n.lane from holdfast.lane_note n);
insert into holdfast.route (id, queue, capabilities, used_at)
select distinct on (n.route) n.route, n.queue, n.capabilities, holdfast.now_us() from holdfast.route_note n
order by n.route
on conflict (id) do update set used_at = excluded.used_at;
drop table holdfast.route_note;
drop table holdfast.lane_note;
