-- name: endless :one on sqlite
with recursive n (x) as (select 1 union all select x + 1 from n) select count(*) as n from n;

-- name: endless :one on postgres
select count(*) as n from (select pg_sleep(600)) as s;

-- name: count_runs :one
select count(*) as n from holdfast.run;
