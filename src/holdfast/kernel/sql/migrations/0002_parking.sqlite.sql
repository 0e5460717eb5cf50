-- What lets a job wait without a worker: stored steps, channels with their signals, families being cancelled.
-- oldest_code: 1

-- up
create table step (
    job integer not null,
    name text not null,
    result text not null,
    signal text,
    stored_at integer not null,
    primary key (job, name)
) strict;
create unique index step_signal on step (signal) where signal is not null;

-- The row of a channel is what `park` and `signal` lock first, so that neither can miss the other.
create table channel (
    name text primary key
) strict;

create table signal (
    seq integer primary key autoincrement,
    id text not null,
    channel text not null,
    payload text not null,
    sent_at integer not null
) strict;
create unique index signal_id on signal (id);
create index signal_channel on signal (channel, seq);

-- Jobs whose children are still to be cancelled; whoever sweeps goes on where a dead canceller stopped.
create table cancellation (
    job integer primary key,
    reason text not null,
    requested_at integer not null
) strict;

-- down
drop table cancellation;
drop table signal;
drop table channel;
drop table step;
