-- Pruning: removes what ended runs leave behind after a while, oldest first, some at a time. A tree of runs is
-- removed together, when the run at its top has ended. Open runs, and runs from which forks were made, stay.

-- name: own_ages :many
-- The tenants with retention ages of their own, some at a time.
select :columns from holdfast.tenant_retention
where tenant > :after order by tenant limit :limit;

-- name: find_ages :one
select :columns from holdfast.tenant_retention
where tenant = :tenant;

-- name: set_ages :exec
insert into holdfast.tenant_retention (tenant, deltas_us, events_us, inquiries_us, turns_us, sessions_us, updated_at)
values (:tenant, :deltas_us, :events_us, :inquiries_us, :turns_us, :sessions_us, holdfast.now_us())
on conflict (tenant) do update set deltas_us = excluded.deltas_us, events_us = excluded.events_us,
    inquiries_us = excluded.inquiries_us, turns_us = excluded.turns_us, sessions_us = excluded.sessions_us,
    updated_at = excluded.updated_at;

-- name: delete_ages :exec
delete from holdfast.tenant_retention where tenant = :tenant;

-- name: find_mark :one
select at, id from holdfast.retention_mark where kind = :kind and tenant = :tenant;

-- name: set_mark :exec
insert into holdfast.retention_mark (kind, tenant, at, id) values (:kind, :tenant, :at, :id)
on conflict (kind, tenant) do update set at = excluded.at, id = excluded.id;

-- name: move_mark :exec
-- Only from the position that the caller saw: a mark that was moved back in between stays there.
insert into holdfast.retention_mark (kind, tenant, at, id) values (:kind, :tenant, :at, :id)
on conflict (kind, tenant) do update set at = excluded.at, id = excluded.id
where retention_mark.at = :seen_at and retention_mark.id = :seen_id;

-- name: begin_anew :exec
-- A tenant has no ages of its own any more: the marks of all others go back, so that they pass its runs again.
update holdfast.retention_mark set at = 0, id = '' where tenant = '' and kind <> 'topics';

-- name: delete_marks :exec
delete from holdfast.retention_mark where tenant = :tenant and tenant <> '';

-- name: ended_roots :many
-- `root` tells whether a run is at the top of its tree, and `kept` whether it stays: because a fork was made from
-- it, or because its tenant has ages of its own. All runs are returned, so that the next call can begin after them.
-- SQLite joins in the order of a cross join; otherwise it might read every fork.
select r.id, r.finalized_at as at, r.tenant, case when r.parent is null then 1 else 0 end as root,
    case when r.parent is null and (
        exists (select 1 from holdfast.tenant_retention o where o.tenant = r.tenant)
        or exists (select 1 from holdfast.run t cross join holdfast.run f where t.root = r.id and f.forked_from = t.id))
    then 1 else 0 end as kept
from holdfast.run r
where r.finalized_at is not null and (r.finalized_at, r.id) > (:at, :id) and r.finalized_at <= :before
order by r.finalized_at, r.id limit :limit;

-- part: run_of_tenant on postgres
holdfast.run r

-- part: run_of_tenant on sqlite
-- Without the index SQLite would use the one of all runs, and read those of every other tenant.
holdfast.run r indexed by run_tenant_ended

-- name: ended_roots_of :many
-- The same for one tenant.
select r.id, r.finalized_at as at, r.tenant, case when r.parent is null then 1 else 0 end as root,
    case when r.parent is null and exists (select 1 from holdfast.run t cross join holdfast.run f
        where t.root = r.id and f.forked_from = t.id) then 1 else 0 end as kept
from @run_of_tenant
where r.tenant = :tenant and r.finalized_at is not null and (r.finalized_at, r.id) > (:at, :id)
    and r.finalized_at <= :before
order by r.finalized_at, r.id limit :limit;

-- name: prune_deltas :many
delete from holdfast.run_event where pos = any(array(
    select e.pos from holdfast.run_event e
    where e.run = any(array(select r.id from holdfast.run r where r.root = any(cast(:roots as text[]))))
        and e.type in ('text_delta', 'thinking_delta', 'input_delta')
    limit :limit))
returning seq;

-- name: prune_events :many
-- Returns the position of each among all events, so that readers of public topics that continue before it learn that
-- there is a gap.
delete from holdfast.run_event where pos = any(array(
    select e.pos from holdfast.run_event e
    where e.run = any(array(select r.id from holdfast.run r where r.root = any(cast(:roots as text[]))))
    limit :limit))
returning epoch, tx, pos, case when topic is null then 0 else 1 end as announced;

-- name: prune_inquiries :many
delete from holdfast.inquiry where id = any(array(
    select i.id from holdfast.inquiry i
    where i.run = any(array(select r.id from holdfast.run r where r.root = any(cast(:roots as text[]))))
        and i.state <> 'open'
    limit :limit))
returning id;

-- name: prune_turns :many on postgres
-- The turns themselves stay: their usage, their cost and the fingerprint of the request are needed. Only what the
-- provider said in addition to its answers is removed.
update holdfast.turn set usage = null, error = null, request_id = null where ctid = any(array(
    select t.ctid from holdfast.turn t
    where t.run = any(array(select r.id from holdfast.run r where r.root = any(cast(:roots as text[]))))
        and (t.usage is not null or t.error is not null or t.request_id is not null)
    limit :limit))
returning number;

-- name: prune_turns :many on sqlite
-- Forked: the address of a row is called `rowid` here.
update holdfast.turn set usage = null, error = null, request_id = null where rowid in (
    select t.rowid from holdfast.turn t
    where t.run in (select r.id from holdfast.run r where r.root = any(cast(:roots as text[])))
        and (t.usage is not null or t.error is not null or t.request_id is not null)
    limit :limit)
returning number;

-- name: forget_trees :exec
-- The rows under which they, and the runs below them, reserved.
delete from holdfast.budget_use where period = 0 and reserved_nano = 0
    and budget in (select 'tree ' || r.id from holdfast.run r where r.root = any(cast(:roots as text[])));

-- name: blobs_after :many
-- The next blobs in the order of their hashes, and which of them no block names.
select b.hash,
    case when (select l.message from holdfast.block l where l.blob = b.hash limit 1) is null then 1 else 0 end as stray
from holdfast.blob b where b.hash > :after order by b.hash limit :limit;

-- name: hold_blobs :many
-- A caller that is about to name one of them comes before or after the whole transaction.
select b.hash from holdfast.blob b where b.hash = any(cast(:hashes as text[])) order by b.hash for update;

-- name: old_sessions :many
-- The next sessions, oldest first, and which of them may be removed: nothing has happened in them since, no run is
-- open, no session is below them, and no fork was made from them. `own`: those of tenants with ages of their own
-- stay.
select s.id, s.created_at as at, s.tenant, case when s.updated_at <= :before
        and not exists (select 1 from holdfast.run r where r.session = s.id
            and (r.finalized_at is null or r.finalized_at > :before))
        and not exists (select 1 from holdfast.session c where c.parent = s.id)
        and not exists (select 1 from holdfast.session f where f.forked_from = s.id)
        and not exists (select 1 from holdfast.run r cross join holdfast.run f
            where r.session = s.id and f.forked_from = r.id and f.session <> s.id)
        and not (:own = 1 and exists (select 1 from holdfast.tenant_retention o where o.tenant = s.tenant))
    then 1 else 0 end as prunable
from holdfast.session s
where (s.created_at, s.id) > (:at, :id) and s.created_at <= :before
order by s.created_at, s.id limit :limit;

-- part: session_of_tenant on postgres
holdfast.session s

-- part: session_of_tenant on sqlite
-- Without the index SQLite might use the one of all sessions, and read those of every other tenant.
holdfast.session s indexed by session_tenant

-- name: old_sessions_of :many
-- The same for one tenant.
select s.id, s.created_at as at, s.tenant, case when s.updated_at <= :before
        and not exists (select 1 from holdfast.run r where r.session = s.id
            and (r.finalized_at is null or r.finalized_at > :before))
        and not exists (select 1 from holdfast.session c where c.parent = s.id)
        and not exists (select 1 from holdfast.session f where f.forked_from = s.id)
        and not exists (select 1 from holdfast.run r cross join holdfast.run f
            where r.session = s.id and f.forked_from = r.id and f.session <> s.id) then 1 else 0 end as prunable
from @session_of_tenant
where s.tenant = :tenant and (s.created_at, s.id) > (:at, :id) and s.created_at <= :before
order by s.created_at, s.id limit :limit;

-- name: roots_in :many
-- The runs at the top of a session, and whether any run of it is open.
select r.id, case when exists (select 1 from holdfast.run o where o.session = :session and o.finalized_at is null)
    then 1 else 0 end as busy
from holdfast.run r where r.session = :session and r.parent is null order by r.id;
