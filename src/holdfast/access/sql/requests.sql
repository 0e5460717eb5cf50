-- Requests that named a key, and what was answered.

-- name: take_request :one
-- A row: the key is ours now. One that was taken and never answered is free again after a while, if the request is the
-- same: its program died.
insert into holdfast.request_key (owner, key, digest, at) values (:owner, :key, :digest, holdfast.now_us())
on conflict (owner, key) do update set at = excluded.at
    where request_key.status is null and request_key.digest = excluded.digest
        and request_key.at < excluded.at - :patience_us
returning :columns;

-- name: find_request :one
select :columns from holdfast.request_key where owner = :owner and key = :key;

-- name: answer_request :exec
update holdfast.request_key set status = :status, answer = :answer where owner = :owner and key = :key;

-- name: free_request :exec
delete from holdfast.request_key where owner = :owner and key = :key and status is null;

-- name: prune_requests :exec
delete from holdfast.request_key where at < holdfast.now_us() - :age_us;
