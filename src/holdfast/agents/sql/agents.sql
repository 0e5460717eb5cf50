-- Agents: a name, and versions of what it says. What a version says never changes.

-- name: add_agent :exec
-- The first to name it makes it; everybody then reads the same row. Its id follows from its name, so whoever comes at
-- the same moment may meet either index first.
insert into holdfast.agent (id, tenant, name, metadata, description, version, created_at, updated_at)
values (:id, :tenant, :name, :metadata, :description, 0, holdfast.now_us(), holdfast.now_us())
on conflict do nothing;

-- name: current_agent :one
-- With the digest of its present version: where that is what one has, there is nothing to write and nothing to lock.
select a.id, a.tenant, a.name, a.metadata, a.description, a.version, a.created_at, a.updated_at, v.digest
from holdfast.agent a join holdfast.agent_version v on v.agent = a.id and v.version = a.version
where a.name = :name and a.tenant = :tenant and a.metadata = :metadata;

-- name: lock_agent :one on postgres
select id, tenant, name, metadata, description, version, created_at, updated_at from holdfast.agent
where name = :name and tenant = :tenant and metadata = :metadata for update;

-- name: lock_agent :one on sqlite
-- The transaction holds the write lock already.
select id, tenant, name, metadata, description, version, created_at, updated_at from holdfast.agent
where name = :name and tenant = :tenant and metadata = :metadata;

-- name: add_version :exec
insert into holdfast.agent_version (agent, version, definition, digest, created_at)
values (:agent, 1 + coalesce((select max(v.version) from holdfast.agent_version v where v.agent = :agent), 0),
    :definition, :digest, holdfast.now_us())
on conflict (agent, digest) do nothing;

-- name: set_version :one
-- The version with this digest becomes the one that new runs take.
update holdfast.agent set description = :description, updated_at = holdfast.now_us(),
    version = (select v.version from holdfast.agent_version v where v.agent = :agent and v.digest = :digest)
where id = :agent
returning id, tenant, name, metadata, description, version, created_at, updated_at;

-- name: find_agent :one
select id, tenant, name, metadata, description, version, created_at, updated_at from holdfast.agent where id = :id;

-- name: agents_named :many
select id, tenant, name, metadata, description, version, created_at, updated_at from holdfast.agent
where name = :name and tenant = :tenant order by created_at, id;

-- name: list_agents :many on postgres
select id, tenant, name, metadata, description, version, created_at, updated_at from holdfast.agent
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:name as text) is null or name = :name)
    and metadata @> cast(:metadata as jsonb)
    and (name, id) > (:after_name, :after)
order by name, id limit :limit;

-- name: list_agents :many on sqlite
-- PostgreSQL tests containment by itself, here a function of ours does.
select id, tenant, name, metadata, description, version, created_at, updated_at from holdfast.agent
where (:tenant is null or tenant = :tenant) and (:name is null or name = :name)
    and json_contains(metadata, :metadata)
    and (name, id) > (:after_name, :after)
order by name, id limit :limit;

-- name: find_version :one
select agent, version, definition, digest, created_at from holdfast.agent_version
where agent = :agent and version = :version;

-- name: list_versions :many
select agent, version, definition, digest, created_at from holdfast.agent_version
where agent = :agent order by version desc;

-- name: current_definitions :many
-- What a worker looks through for agents that it can serve without having been told of them.
select v.agent, v.version, v.definition, v.digest, v.created_at
from holdfast.agent a join holdfast.agent_version v on v.agent = a.id and v.version = a.version
where a.name = any(cast(:names as text[]));

-- name: callers_of :many
-- Agents with a version that names this one as one they may call.
select id, tenant, name, metadata, description, version, created_at, updated_at from holdfast.agent a
where a.id <> :id and exists (select 1 from holdfast.agent_version v
    where v.agent = a.id and cast(v.definition as text) like '%"agent":"' || :id || '"%')
order by name, id;

-- name: delete_versions :exec
delete from holdfast.agent_version
where agent = :id and not exists (select 1 from holdfast.run r where r.agent = :id);

-- name: delete_agent :one
delete from holdfast.agent
where id = :id and not exists (select 1 from holdfast.run r where r.agent = :id)
returning id, tenant, name, metadata, description, version, created_at, updated_at;
