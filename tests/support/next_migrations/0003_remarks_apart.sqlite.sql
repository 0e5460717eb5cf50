-- Made up: a step that moves rows, after which no code of before may use the tables.
-- oldest_code: 3

-- up
create table remarked (
    job integer primary key,
    remark text not null
) strict;
insert into remarked (job, remark) select seq, remark from job where remark is not null;
drop index job_remark;
alter table job drop column remark;

-- down
alter table job add column remark text;
update job set remark = (select r.remark from remarked r where r.job = seq);
drop table remarked;
create index job_remark on job (remark) where remark is not null;
