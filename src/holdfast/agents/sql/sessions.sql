-- Sessions: conversations. The runs of a session lock its row to decide which comes next.

-- name: add_session :exec
insert into holdfast.session (id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during)
values (:id, :tenant, :key, :parent,
    coalesce((select p.depth + 1 from holdfast.session p where p.id = :parent), 0), :metadata, :runs,
    holdfast.now_us(), holdfast.now_us(), :during)
on conflict do nothing;

-- name: find_session :one
select :columns from holdfast.session
where id = :id or (cast(:key as text) is not null and tenant = :tenant and key = :key);

-- name: take_place :one
-- The next place in the order of runs; the caller locks the row until it commits.
update holdfast.session set runs = runs + 1, updated_at = holdfast.now_us() where id = :id
returning :columns;

-- name: lock_session :one
select :columns from holdfast.session
where id = :id for update;

-- name: lock_lines :exec on postgres
-- A transaction that adds a run to a session and one that lets its next run begin must see each other. This does not
-- lock the row of the session: a caller's open transaction that adds a run locks that row for as long as it is open.
select length(cast(pg_advisory_xact_lock(hashtextextended(l.session, 1)) as text)) as locked
from (select s.session from rows(:sessions) as s (session text) order by s.session) as l;

-- name: lock_lines :exec on sqlite
-- Forked: there is one writer, so nothing is to be locked.
select null as locked where :sessions is null;

-- name: runs_had :many
-- For all sessions that a process follows, in one look.
select id, runs from holdfast.session where id = any(cast(:ids as text[]));

-- name: metadata_of :many
select id, tenant, metadata from holdfast.session where id = any(cast(:ids as text[]));

-- name: update_session :one
update holdfast.session set metadata = coalesce(:metadata, metadata), during = coalesce(:during, during),
    updated_at = holdfast.now_us() where id = :id
returning :columns;

-- name: delete_session :one
-- Not while a run of it is open. The statements that follow remove what belongs to it.
delete from holdfast.session
where id = :id and not exists (
    select 1 from holdfast.run r where r.session = :id and r.finalized_at is null)
returning :columns;

-- name: free_sources :exec
-- The forks in it go: what was kept for them alone is old enough by now, so the clean-up passes their sources again.
update holdfast.retention_mark set at = s.at - 1, id = ''
from (
    select min(o.finalized_at) as at, min(o.tenant) as tenant from holdfast.run f
    cross join holdfast.run t cross join holdfast.run o
    where f.session = :id and t.id = f.forked_from and o.id = t.root
) as s
where retention_mark.kind in ('deltas', 'events', 'inquiries', 'turns') and retention_mark.tenant in ('', s.tenant)
    and retention_mark.at >= s.at;

-- name: lock_blobs :many
-- Locks the blobs that the blocks of the session name. A caller that is about to name one of them comes before or
-- after the whole transaction.
select b.hash from holdfast.blob b
where b.hash in (select l.blob from holdfast.message m join holdfast.block l on l.message = m.id
    where m.session = :id and l.blob is not null)
order by b.hash for update;

-- name: delete_blobs :exec
-- Those that no block names any more.
delete from holdfast.blob where hash = any(cast(:hashes as text[]))
    and not exists (select 1 from holdfast.block l where l.blob = blob.hash);

-- name: jobs_of :many
-- The ended jobs of the session's runs and of their calls. Retention removes those that have not ended yet.
select e.seq from holdfast.ended e
where e.seq = any(array(
    select r.job from holdfast.run r where r.session = :id
    union all
    select c.job from holdfast.run r join holdfast.tool_call c on c.run = r.id where r.session = :id))
order by e.seq;

-- name: free_keys :exec
delete from holdfast.idempotency
where job = any(array(select cast(r.id as uuid) from holdfast.run r where r.session = :id));

-- name: delete_blocks :exec
delete from holdfast.block where message in (select m.id from holdfast.message m where m.session = :id);

-- name: delete_messages :exec
delete from holdfast.message where session = :id;

-- name: delete_events :exec
delete from holdfast.run_event where run in (select r.id from holdfast.run r where r.session = :id);

-- name: delete_calls :exec
delete from holdfast.tool_call where run in (select r.id from holdfast.run r where r.session = :id);

-- name: delete_turns :exec
delete from holdfast.turn where run in (select r.id from holdfast.run r where r.session = :id);

-- name: delete_inquiries :exec
delete from holdfast.inquiry where run in (select r.id from holdfast.run r where r.session = :id);

-- name: delete_steers :exec
delete from holdfast.steer where run in (select r.id from holdfast.run r where r.session = :id);

-- name: delete_batched :exec
-- Its requests with an applied result. Of the others the custom ids stay, for the job that brings their results.
delete from holdfast.batch_request where run in (select r.id from holdfast.run r where r.session = :id)
    and state in ('applied', 'dropped');

-- name: forget_batched :exec
update holdfast.batch_request set state = 'dropped', body = null
where run in (select r.id from holdfast.run r where r.session = :id) and state in ('waiting', 'sent', 'answered');

-- name: delete_session_reservations :exec
delete from holdfast.reservation
where budget in (select b.id from holdfast.budget b where b.scope = 'session' and b.subject = :id);

-- name: delete_session_uses :exec
delete from holdfast.budget_use
where budget in (select b.id from holdfast.budget b where b.scope = 'session' and b.subject = :id);

-- name: delete_session_budgets :exec
delete from holdfast.budget where scope = 'session' and subject = :id;

-- name: delete_runs :exec
delete from holdfast.run where session = :id;
