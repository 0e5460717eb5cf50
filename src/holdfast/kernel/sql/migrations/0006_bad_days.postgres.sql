-- What bad days ask for: which code a worker runs, clocks that leap, schedules that cannot be read, keys that outlive
-- their jobs, and who reads run events.
-- oldest_code: 5

-- up
-- `code` is the schema version of the worker's code, null for code older than this. `lines` says, as JSON, how many
-- slots each line of the worker has and how many of them are taken.
alter table holdfast.worker
    add column code integer,
    add column lines text;

-- When `free_at` was last written. A clock that has gone back since then is seen by it.
alter table holdfast.lane add column charged_at bigint not null default 0;

-- A schedule that could not be fired says why, and is tried again later; the others go on.
alter table holdfast.schedule
    add column retry_at bigint,
    add column error text;
drop index holdfast.schedule_next;
create index schedule_next on holdfast.schedule (next_at) where paused_at is null and retry_at is null;
create index schedule_retry on holdfast.schedule (retry_at) where paused_at is null and retry_at is not null;

-- When retention removed the job of a key; the key stays as long after that as after the job's end.
alter table holdfast.idempotency add column freed_at bigint;
create index idempotency_freed on holdfast.idempotency (freed_at) where freed_at is not null;

create index signal_sent on holdfast.signal (sent_at);
-- Both indexes of `job` may be there already: on a long history they are built beforehand, see docs/operating.md.
-- job_blocked says `lane is not null` so that only statements which say so too are planned with it: by lane, job_gate is
-- right.
create index if not exists job_blocked on holdfast.job (route)
    where state = 'pending' and gate is not null and lane is not null;
create index if not exists job_lane_ended on holdfast.job (lane) where lane is not null and finished_at is not null;
create index lane_updated on holdfast.lane (updated_at);

-- Processes that read the events of runs. Nobody is hinted while there is none.
create table holdfast.reader (
    id text primary key,
    until bigint not null
);
create index reader_until on holdfast.reader (until);

-- down
drop table holdfast.reader;
drop index holdfast.lane_updated;
drop index holdfast.job_lane_ended;
drop index holdfast.job_blocked;
drop index holdfast.signal_sent;
drop index holdfast.idempotency_freed;
alter table holdfast.idempotency drop column freed_at;
drop index holdfast.schedule_retry;
drop index holdfast.schedule_next;
alter table holdfast.schedule drop column retry_at, drop column error;
create index schedule_next on holdfast.schedule (next_at) where paused_at is null;
alter table holdfast.lane drop column charged_at;
alter table holdfast.worker drop column code, drop column lines;
