-- What bad days ask for: which code a worker runs, clocks that leap, schedules that cannot be read, keys that outlive
-- their jobs, and who reads run events.
-- oldest_code: 5

-- up
-- `code` is the schema version of the worker's code, null for code older than this. `lines` says, as JSON, how many
-- slots each line of the worker has and how many of them are taken.
alter table worker add column code integer;
alter table worker add column lines text;

-- When `free_at` was last written. A clock that has gone back since then is seen by it.
alter table lane add column charged_at integer not null default 0;

-- A schedule that could not be fired says why, and is tried again later; the others go on.
alter table schedule add column retry_at integer;
alter table schedule add column error text;
drop index schedule_next;
create index schedule_next on schedule (next_at) where paused_at is null and retry_at is null;
create index schedule_retry on schedule (retry_at) where paused_at is null and retry_at is not null;

-- When retention removed the job of a key; the key stays as long after that as after the job's end.
alter table idempotency add column freed_at integer;
create index idempotency_freed on idempotency (freed_at) where freed_at is not null;

create index signal_sent on signal (sent_at);
-- It says `lane is not null` so that only statements which say so too are planned with it: by lane, job_gate is right.
create index job_blocked on job (route)
    where state = 'pending' and gate is not null and lane is not null;
create index job_lane_ended on job (lane) where lane is not null and finished_at is not null;
create index lane_updated on lane (updated_at);

-- Processes that read the events of runs. Nobody is hinted while there is none.
create table reader (
    id text primary key,
    until integer not null
) strict;
create index reader_until on reader (until);

-- down
drop table reader;
drop index lane_updated;
drop index job_lane_ended;
drop index job_blocked;
drop index signal_sent;
drop index idempotency_freed;
alter table idempotency drop column freed_at;
drop index schedule_retry;
drop index schedule_next;
alter table schedule drop column retry_at;
alter table schedule drop column error;
create index schedule_next on schedule (next_at) where paused_at is null;
alter table lane drop column charged_at;
alter table worker drop column lines;
alter table worker drop column code;
