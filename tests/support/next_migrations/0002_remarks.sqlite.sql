-- Made up: what a next release might add. Code of release 0.1.0 works beside it, and writes none of it.
-- oldest_code: 1

-- up
alter table job add column remark text;
create index job_remark on job (remark) where remark is not null;
alter table lane add column remark text;
alter table idempotency add column remark text;
alter table worker add column zone text not null default '';
create table remark_author (
    name text primary key,
    remarks integer not null default 0
) strict;
drop view paused_route;
create view paused_route as
select r.id, q.name as queue from queue q join route r on r.queue = q.name where q.paused_at is not null;

-- down
drop view paused_route;
create view paused_route as
select r.id from queue q join route r on r.queue = q.name where q.paused_at is not null;
drop table remark_author;
alter table worker drop column zone;
alter table idempotency drop column remark;
alter table lane drop column remark;
drop index job_remark;
alter table job drop column remark;
