-- Logins: browsers that have shown a token or a link, and links that were not used yet.

-- name: add_login :exec
insert into holdfast.login (hash, kind, name, role, tenant, scopes, token, created_at, seen_at, expires_at)
values (:hash, :kind, :name, :role, :tenant, :scopes, :token, holdfast.now_us(), holdfast.now_us(),
    holdfast.now_us() + :lasts_us);

-- name: find_link :one
select :columns from holdfast.login where hash = :hash and kind = 'link' and expires_at > holdfast.now_us();

-- name: use_link :one
-- Once: the row is gone afterwards.
delete from holdfast.login where hash = :hash and kind = 'link' and expires_at > holdfast.now_us()
returning :columns;

-- name: find_login :one
-- A login ends with the token that it was made with, also when that expires.
select :columns from holdfast.login
where hash = :hash and kind = 'session' and expires_at > holdfast.now_us() and seen_at > holdfast.now_us() - :idle_us
    and (token is null or exists (
        select 1 from holdfast.token t
        where t.id = login.token and t.revoked_at is null
            and (t.expires_at is null or t.expires_at > holdfast.now_us())
    ));

-- name: live_logins :many
-- Of these, those that have not ended.
select :columns from holdfast.login
where hash = any(cast(:hashes as text[])) and kind = 'session' and expires_at > holdfast.now_us()
    and seen_at > holdfast.now_us() - :idle_us
    and (token is null or exists (
        select 1 from holdfast.token t
        where t.id = login.token and t.revoked_at is null
            and (t.expires_at is null or t.expires_at > holdfast.now_us())
    ));

-- name: see_login :exec
update holdfast.login set seen_at = holdfast.now_us() where hash = :hash and kind = 'session';

-- name: end_login :exec
delete from holdfast.login where hash = :hash;

-- name: end_logins_of :exec
delete from holdfast.login where token = :token;

-- name: prune_logins :exec
delete from holdfast.login where expires_at <= holdfast.now_us();
