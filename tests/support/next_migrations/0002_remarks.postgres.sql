-- Made up: what a next release might add. Code of release 0.1.0 works beside it, and writes none of it.
-- oldest_code: 1

-- up
alter table holdfast.job add column remark text;
create index job_remark on holdfast.job (remark) where remark is not null;
alter table holdfast.lane add column remark text;
alter table holdfast.idempotency add column remark text;
alter table holdfast.worker add column zone text not null default '';
create table holdfast.remark_author (
    name text primary key,
    remarks integer not null default 0
);
create or replace view holdfast.paused_route as
select r.id, q.name as queue from holdfast.queue q join holdfast.route r on r.queue = q.name where q.paused_at is not null;

-- down
drop view holdfast.paused_route;
create view holdfast.paused_route as
select r.id from holdfast.queue q join holdfast.route r on r.queue = q.name where q.paused_at is not null;
drop table holdfast.remark_author;
alter table holdfast.worker drop column zone;
alter table holdfast.idempotency drop column remark;
alter table holdfast.lane drop column remark;
drop index holdfast.job_remark;
alter table holdfast.job drop column remark;
