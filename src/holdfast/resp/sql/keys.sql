-- Keys of the gateway's clients. Only the digest of a key is here.

-- name: add_key :one
-- A name that was revoked may have a new key; one that is in use keeps its key.
insert into holdfast.resp_key (name, digest, workers, queues, commands, tenant, created_at)
values (:name, :digest, :workers, :queues, :commands, :tenant, holdfast.now_us())
on conflict (name) do update set digest = excluded.digest, workers = excluded.workers, queues = excluded.queues,
    commands = excluded.commands, tenant = excluded.tenant, created_at = excluded.created_at, revoked_at = null
    where resp_key.revoked_at is not null
returning :columns;

-- name: find_keys :many
select :columns from holdfast.resp_key where digest = :digest and revoked_at is null;

-- name: list_keys :many
select :columns from holdfast.resp_key where :all = 1 or revoked_at is null order by name;

-- name: revoke_key :one
update holdfast.resp_key set revoked_at = holdfast.now_us() where name = :name and revoked_at is null
returning :columns;
