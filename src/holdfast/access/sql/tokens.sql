-- Tokens. The store has the hash of each, never the token.

-- name: add_token :one
insert into holdfast.token (id, hash, name, role, tenant, scopes, created_at, created_by, expires_at)
values (:id, :hash, :name, :role, :tenant, :scopes, holdfast.now_us(), :created_by, holdfast.now_us() + :lasts_us)
returning :columns;

-- name: find_token :one
select :columns from holdfast.token where id = :id;

-- name: token_of_hash :one
select :columns from holdfast.token where hash = :hash;

-- name: live_tokens :many
-- Of these, those that are neither revoked nor expired.
select :columns from holdfast.token
where id = any(cast(:ids as text[])) and revoked_at is null and (expires_at is null or expires_at > holdfast.now_us());

-- name: list_tokens :many
select :columns from holdfast.token
where id > :after order by id limit :limit;

-- name: count_live :one
select count(*) as n from holdfast.token
where revoked_at is null and (expires_at is null or expires_at > holdfast.now_us());

-- name: end_token :one
-- At a time, or earlier if it ends earlier anyway.
update holdfast.token set
    expires_at = least(coalesce(expires_at, holdfast.now_us() + :within_us), holdfast.now_us() + :within_us)
where id = :id and revoked_at is null
returning :columns;

-- name: revoke_token :one
update holdfast.token set revoked_at = holdfast.now_us() where id = :id and revoked_at is null
returning :columns;
