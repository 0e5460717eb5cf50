-- Sessions: conversations. A session's row is what its runs lock to know who comes next.

-- name: add_session :exec
insert into holdfast.session (id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during)
values (:id, :tenant, :key, :parent,
    coalesce((select p.depth + 1 from holdfast.session p where p.id = :parent), 0), :metadata, :runs,
    holdfast.now_us(), holdfast.now_us(), :during)
on conflict do nothing;

-- name: find_session :one
select id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during, compactions from holdfast.session
where id = :id or (cast(:key as text) is not null and tenant = :tenant and key = :key);

-- name: take_place :one
-- The next place in the line of runs; whoever takes one holds the row until it commits.
update holdfast.session set runs = runs + 1, updated_at = holdfast.now_us() where id = :id
returning id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during, compactions;

-- name: lock_session :one on postgres
select id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during, compactions from holdfast.session
where id = :id for update;

-- name: lock_session :one on sqlite
-- The transaction holds the write lock already.
select id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during, compactions from holdfast.session where id = :id;

-- name: lock_lines :exec on postgres
-- Whoever queues up and whoever lets the next one begin must see each other. Not the session's row: a caller's open
-- transaction that adds a run holds that one, for as long as it likes.
select length(cast(pg_advisory_xact_lock(hashtextextended(l.session, 1)) as text)) as locked
from (select s.session from unnest(cast(:sessions as text[])) as s (session) order by s.session) as l;

-- name: lock_lines :exec on sqlite
-- The transaction holds the write lock already.
select json_array_length(:sessions);

-- name: list_sessions :many on postgres
select id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during, compactions from holdfast.session
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:parent as text) is null or parent = :parent)
    and metadata @> cast(:metadata as jsonb) and (created_at, id) < (:before_at, :before)
order by created_at desc, id desc limit :limit;

-- name: list_sessions :many on sqlite
-- PostgreSQL tests containment by itself, here a function of ours does.
select id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during, compactions from holdfast.session
where (:tenant is null or tenant = :tenant) and (:parent is null or parent = :parent)
    and json_contains(metadata, :metadata) and (created_at, id) < (:before_at, :before)
order by created_at desc, id desc limit :limit;

-- name: count_sessions :one on postgres
select count(*) as n from holdfast.session
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:parent as text) is null or parent = :parent)
    and metadata @> cast(:metadata as jsonb);

-- name: count_sessions :one on sqlite
-- See list_sessions.
select count(*) as n from holdfast.session
where (:tenant is null or tenant = :tenant) and (:parent is null or parent = :parent)
    and json_contains(metadata, :metadata);

-- name: metadata_values :many on postgres
select cast(metadata -> cast(:key as text) as text) as value, count(*) as n from holdfast.session
where (cast(:tenant as text) is null or tenant = :tenant) and metadata -> cast(:key as text) is not null
group by 1 order by 2 desc, 1;

-- name: metadata_values :many on sqlite
-- The arrow reads a path here, and a key with a dot must not be one.
select json_value(metadata, :key) as value, count(*) as n from holdfast.session
where (:tenant is null or tenant = :tenant) and json_value(metadata, :key) is not null
group by 1 order by 2 desc, 1;

-- name: update_session :one
update holdfast.session set metadata = coalesce(:metadata, metadata), during = coalesce(:during, during),
    updated_at = holdfast.now_us() where id = :id
returning id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during, compactions;

-- name: delete_session :one
-- Not while a run of it is alive; what belongs to it goes in the statements that follow.
delete from holdfast.session
where id = :id and not exists (
    select 1 from holdfast.run r where r.session = :id and r.finalized_at is null)
returning id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during, compactions;

-- name: lock_blobs :many on postgres
-- Those that the session's blocks name. Whoever is about to name one too comes before this or after all of it.
select b.hash from holdfast.blob b
where b.hash in (select l.blob from holdfast.message m join holdfast.block l on l.message = m.id
    where m.session = :id and l.blob is not null)
order by b.hash for update;

-- name: lock_blobs :many on sqlite
-- The transaction holds the write lock already.
select distinct l.blob as hash from holdfast.message m join holdfast.block l on l.message = m.id
where m.session = :id and l.blob is not null order by 1;

-- name: delete_blobs :exec
-- Those that no block names any more.
delete from holdfast.blob where hash = any(cast(:hashes as text[]))
    and not exists (select 1 from holdfast.block l where l.blob = blob.hash);

-- name: jobs_of :many on postgres
-- The jobs of the session's runs and of their calls that have ended; one that has not is left to retention.
select j.seq from holdfast.job j
where j.finished_at is not null and j.seq = any(array(
    select r.job from holdfast.run r where r.session = :id
    union all
    select c.job from holdfast.run r join holdfast.tool_call c on c.run = r.id where r.session = :id))
order by j.seq;

-- name: jobs_of :many on sqlite
-- No arrays here.
select j.seq from holdfast.job j
where j.finished_at is not null and j.seq in (
    select r.job from holdfast.run r where r.session = :id
    union all
    select c.job from holdfast.run r join holdfast.tool_call c on c.run = r.id where r.session = :id)
order by j.seq;

-- name: free_keys :exec on postgres
delete from holdfast.idempotency
where job = any(array(select cast(r.id as uuid) from holdfast.run r where r.session = :id));

-- name: free_keys :exec on sqlite
-- An id is text here.
delete from holdfast.idempotency where job in (select r.id from holdfast.run r where r.session = :id);

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
delete from holdfast.inquiry where session = :id;

-- name: delete_steers :exec
delete from holdfast.steer where run in (select r.id from holdfast.run r where r.session = :id);

-- name: delete_batched :exec
-- Its turns in batches that have ended; of the others the custom ids stay, for whoever brings their results.
delete from holdfast.batch_request where run in (select r.id from holdfast.run r where r.session = :id)
    and state in ('applied', 'dropped');

-- name: forget_batched :exec
update holdfast.batch_request set state = 'dropped', body = null
where run in (select r.id from holdfast.run r where r.session = :id);

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
