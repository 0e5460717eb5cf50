-- Made up: a step that moves rows, after which no code of before may use the tables.
-- oldest_code: 3

-- up
create table holdfast.remarked (
    job bigint primary key,
    remark text not null
);
insert into holdfast.remarked (job, remark) select seq, remark from holdfast.job where remark is not null;
drop index holdfast.job_remark;
alter table holdfast.job drop column remark;

-- down
alter table holdfast.job add column remark text;
update holdfast.job set remark = (select r.remark from holdfast.remarked r where r.job = seq);
drop table holdfast.remarked;
create index job_remark on holdfast.job (remark) where remark is not null;
