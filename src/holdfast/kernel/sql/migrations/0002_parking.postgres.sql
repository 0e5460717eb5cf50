-- What lets a job wait without a worker: stored steps, channels with their signals, families being cancelled.
-- oldest_code: 1

-- up
create table holdfast.step (
    job bigint not null,
    name text not null,
    result json not null,
    signal uuid,
    stored_at bigint not null,
    primary key (job, name)
);
create unique index step_signal on holdfast.step (signal) where signal is not null;

-- The row of a channel is what `park` and `signal` lock first, so that neither can miss the other.
create table holdfast.channel (
    name text primary key
);

create table holdfast.signal (
    seq bigint generated always as identity primary key,
    id uuid not null,
    channel text not null,
    payload json not null,
    sent_at bigint not null
);
create unique index signal_id on holdfast.signal (id);
create index signal_channel on holdfast.signal (channel, seq);

-- Jobs whose children are still to be cancelled; whoever sweeps goes on where a dead canceller stopped.
create table holdfast.cancellation (
    job bigint primary key,
    reason text not null,
    requested_at bigint not null
);

-- down
drop table holdfast.cancellation;
drop table holdfast.signal;
drop table holdfast.channel;
drop table holdfast.step;
