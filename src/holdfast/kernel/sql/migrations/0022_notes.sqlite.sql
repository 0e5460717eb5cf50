-- Notes about lanes and routes, for the next transaction that holds their rows.
-- oldest_code: 8

-- up
-- On SQLite one transaction writes at a time, so few notes are ever left.
create table lane_note (
    id integer primary key autoincrement,
    lane text not null,
    declares integer not null,
    concurrency integer,
    interval_us integer,
    burst integer not null,
    look_at integer not null
) strict;
create index lane_note_lane on lane_note (lane);
create index lane_note_look on lane_note (look_at);
create table route_note (
    id integer primary key autoincrement,
    route integer not null,
    queue text not null,
    capabilities text not null
) strict;

-- down
update lane set opens_at = 0 where name in (select n.lane from lane_note n);
drop table route_note;
drop table lane_note;
