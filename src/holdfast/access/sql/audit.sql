-- The audit: rows are added, and never changed.

-- name: lock_head :one
-- One at a time: each row has a hash over the one before it.
select :columns from holdfast.audit_head where one = 1 for update;

-- name: add_head :exec
insert into holdfast.audit_head (one, seq, hash) values (1, 0, '') on conflict (one) do nothing;

-- part: add_rows
insert into holdfast.audit (seq, at, actor, role, tenant, phase, about, action, subject, status, detail, hash)
select e.seq, e.at, e.actor, e.role, e.tenant, e.phase, e.about, e.action, e.subject, e.status, e.detail, e.hash
from rows(:entries) as e (seq bigint, at bigint, actor text, role text, tenant text, phase text, about bigint,
    action text, subject text, status integer, detail json, hash text)
where true

-- name: add_entries :exec on postgres
-- The rows, and the head that the last of them makes.
with moved as (update holdfast.audit_head set seq = :seq, hash = :hash where one = 1)
@add_rows;

-- name: add_entries :exec on sqlite
-- Forked: SQLite has no CTE that changes rows.
update holdfast.audit_head set seq = :seq, hash = :hash where one = 1;
@add_rows;

-- name: list_entries :many
select :columns from holdfast.audit where seq < :before order by seq desc limit :limit;

-- name: entries_after :many
select :columns from holdfast.audit where seq > :after order by seq limit :limit;
