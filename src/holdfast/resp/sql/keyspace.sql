-- Plain data: strings, hashes, sorted sets and lists, as Redis has them.

-- name: find_value :one
-- What has expired is not there any more, whether or not somebody has removed it.
select :columns from holdfast.resp_value
where space = :space and key = :key and (expires_at is null or expires_at > holdfast.now_us());

-- name: add_value :exec
insert into holdfast.resp_value (space, key, place, kind) values (:space, :key, :place, :kind)
on conflict (space, key) do nothing;

-- name: lock_value :one
select :columns from holdfast.resp_value where space = :space and key = :key for update;

-- name: set_value :exec
update holdfast.resp_value set kind = :kind, value = :value, expires_at = :expires_at
where space = :space and key = :key;

-- name: set_expiry :exec
update holdfast.resp_value set expires_at = :expires_at where space = :space and key = :key;

-- name: remove_value :exec
delete from holdfast.resp_value where space = :space and key = :key;

-- name: remove_parts :exec
delete from holdfast.resp_part where space = :space and key = :key;

-- name: list_keys :many
select :columns from holdfast.resp_value
where space = :space and place >= :place and (expires_at is null or expires_at > holdfast.now_us())
order by place, key limit :limit;

-- name: count_keys :one
select count(*) as keys from (
    select 1 from holdfast.resp_value
    where space = :space and (expires_at is null or expires_at > holdfast.now_us()) limit :most
) as found;

-- name: expired_keys :many
select space, key from holdfast.resp_value where expires_at <= holdfast.now_us() order by expires_at limit :limit;

-- name: keys_in :many
-- The next keys of a space, in the order in which their rows are locked; also what has expired.
select space, key from holdfast.resp_value where space = :space order by key limit :limit;

-- name: find_part :one
select :columns from holdfast.resp_part where space = :space and key = :key and part = :part;

-- name: put_part :exec
insert into holdfast.resp_part (space, key, part, score, value) values (:space, :key, :part, :score, :value)
on conflict (space, key, part) do update set score = excluded.score, value = excluded.value;

-- name: remove_part :one
delete from holdfast.resp_part where space = :space and key = :key and part = :part
returning :columns;

-- name: list_parts :many
select :columns from holdfast.resp_part where space = :space and key = :key order by part limit :limit offset :skipped;

-- name: list_scores :many
select :columns from holdfast.resp_part
where space = :space and key = :key and score is not null and score >= :lowest and score <= :highest
order by score, part;

-- name: measure_parts :one
-- How many there are, and between which parts. PostgreSQL has no min(bytea) before version 18.
select count(*) as parts,
    (select f.part from holdfast.resp_part f where f.space = :space and f.key = :key order by f.part limit 1) as first,
    (select l.part from holdfast.resp_part l where l.space = :space and l.key = :key order by l.part desc limit 1) as last
from holdfast.resp_part where space = :space and key = :key;
