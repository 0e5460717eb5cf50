-- Indexes for what the web lists.
-- oldest_code: 8

-- up
-- Jobs that failed or were cancelled, the last first. Nothing else on this table: each job passes through it.
create index job_troubled on ended (finished_at desc, seq desc) where state in ('failed', 'cancelled');

-- Inquiries in the order in which they were asked. Those that are open have an index of their own.
create index inquiry_tenant on inquiry (tenant, asked_at, id);
create index inquiry_decided on inquiry (asked_at, id) where state <> 'open';

-- All lives of a worker, the last first.
create index worker_named on worker (id, seq desc);

drop index session_parent;
create index session_parent on session (parent, created_at desc, id desc) where parent is not null;

-- down
drop index session_parent;
create index session_parent on session (parent) where parent is not null;
drop index worker_named;
drop index inquiry_decided;
drop index inquiry_tenant;
drop index job_troubled;
