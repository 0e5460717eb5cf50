-- Indexes for what the web lists.
-- oldest_code: 8

-- up
-- Jobs that failed or were cancelled, the last first. Nothing else on this table: each job passes through it.
create index job_troubled on holdfast.ended (finished_at desc, seq desc) where state in ('failed', 'cancelled');

-- Inquiries in the order in which they were asked. Those that are open have an index of their own.
create index inquiry_tenant on holdfast.inquiry (tenant, asked_at, id);
create index inquiry_decided on holdfast.inquiry (asked_at, id) where state <> 'open';

-- All lives of a worker, the last first.
create index worker_named on holdfast.worker (id, seq desc);

drop index holdfast.session_parent;
create index session_parent on holdfast.session (parent, created_at desc, id desc) where parent is not null;

-- down
drop index holdfast.session_parent;
create index session_parent on holdfast.session (parent) where parent is not null;
drop index holdfast.worker_named;
drop index holdfast.inquiry_decided;
drop index holdfast.inquiry_tenant;
drop index holdfast.job_troubled;
