-- Search: ids by how they begin, and names. Each reads a bounded part of an index, in which the tenant's are looked for.

-- name: agents_from :many
select f.id, f.name from (select a.id, a.name, a.tenant from holdfast.agent a where a.id >= :low and a.id <= :high
    order by a.id limit :look) as f
where (cast(:tenant as text) is null or f.tenant = :tenant) order by f.id limit :limit;

-- name: sessions_from :many
select f.id, coalesce(f.key, '') as name from (select s.id, s.key, s.tenant from holdfast.session s
    where s.id >= :low and s.id <= :high order by s.id limit :look) as f
where (cast(:tenant as text) is null or f.tenant = :tenant) order by f.id limit :limit;

-- name: runs_from :many
select f.id, f.agent_name as name from (select r.id, r.agent_name, r.tenant from holdfast.run r
    where r.id >= :low and r.id <= :high order by r.id limit :look) as f
where (cast(:tenant as text) is null or f.tenant = :tenant) order by f.id limit :limit;

-- name: calls_from :many
select f.id, f.name from (select c.id, c.name, c.run from holdfast.tool_call c where c.id >= :low and c.id <= :high
    order by c.id limit :look) as f
where (cast(:tenant as text) is null or (select r.tenant from holdfast.run r where r.id = f.run) = :tenant)
order by f.id limit :limit;

-- name: inquiries_from :many
select f.id, f.name from (select i.id, i.name, i.tenant from holdfast.inquiry i where i.id >= :low and i.id <= :high
    order by i.id limit :look) as f
where (cast(:tenant as text) is null or f.tenant = :tenant) order by f.id limit :limit;

-- part: key on postgres
-- In other collations than "C" texts that begin alike do not stand together.
s.key collate "C"

-- part: key on sqlite
-- SQLite compares the bytes of texts by default.
s.key

-- name: sessions_keyed :many
select f.id, f.key as name from (select s.id, s.key, s.tenant from holdfast.session s
    where s.key is not null and @key >= :low and @key <= :high order by @key limit :look) as f
where (cast(:tenant as text) is null or f.tenant = :tenant) order by f.key limit :limit;

-- name: agents_called :many
-- There are few agents.
select id, name from holdfast.agent
where substr(name, 1, length(:text)) = :text and (cast(:tenant as text) is null or tenant = :tenant)
order by name, id limit :limit;
