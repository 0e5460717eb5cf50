-- Agents: a name and its versions. The definition in a version never changes.

-- name: add_agent :exec
-- The first caller to use the name inserts the agent; then everybody reads the same row. The id is derived from the
-- name, so callers at the same moment may conflict on either index.
insert into holdfast.agent (id, tenant, name, metadata, description, version, created_at, updated_at)
values (:id, :tenant, :name, :metadata, :description, 0, holdfast.now_us(), holdfast.now_us())
on conflict do nothing;

-- name: current_agent :one
-- With the digest of its current version: if the caller has the same digest, there is nothing to write and nothing
-- to lock.
select a.id, a.tenant, a.name, a.metadata, a.description, a.version, a.created_at, a.updated_at, v.digest
from holdfast.agent a join holdfast.agent_version v on v.agent = a.id and v.version = a.version
where a.name = :name and a.tenant = :tenant and a.metadata = :metadata;

-- name: lock_agent :one
select :columns from holdfast.agent
where name = :name and tenant = :tenant and metadata = :metadata for update;

-- name: add_version :exec
insert into holdfast.agent_version (agent, version, definition, digest, created_at)
values (:agent, 1 + coalesce((select max(v.version) from holdfast.agent_version v where v.agent = :agent), 0),
    :definition, :digest, holdfast.now_us())
on conflict (agent, digest) do nothing;

-- name: set_version :one
-- The version with this digest becomes the one that new runs use.
update holdfast.agent set description = :description, updated_at = holdfast.now_us(),
    version = (select v.version from holdfast.agent_version v where v.agent = :agent and v.digest = :digest)
where id = :agent
returning :columns;

-- name: find_agent :one
select :columns from holdfast.agent where id = :id;

-- name: agents_named :many
select :columns from holdfast.agent
where name = :name and tenant = :tenant order by created_at, id;

-- part: has_metadata on postgres
metadata @> cast(:metadata as jsonb)

-- part: has_metadata on sqlite
-- A function that the driver adds. It compares as `@>` does.
json_contains(metadata, :metadata)

-- name: list_agents :many
select :columns from holdfast.agent
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:name as text) is null or name = :name)
    and @has_metadata
    and (name, id) > (:after_name, :after)
order by name, id limit :limit;

-- name: count_agents :one
select count(*) as n from (select id from holdfast.agent
where (cast(:tenant as text) is null or tenant = :tenant) and (cast(:name as text) is null or name = :name)
    and @has_metadata limit :look) as looked;

-- name: find_version :one
select :columns from holdfast.agent_version
where agent = :agent and version = :version;

-- name: list_versions :many
select :columns from holdfast.agent_version
where agent = :agent and version < :before order by version desc limit :limit;

-- name: current_definitions :many
-- A worker searches these for agents that it can serve although its program does not declare them.
select :columns(v)
from holdfast.agent a join holdfast.agent_version v on v.agent = a.id and v.version = a.version
where a.name = any(cast(:names as text[]));

-- name: shared_versions :many
-- What tenants may use: agents that belong to none of them. The newest, because there may be many. Who asks often has
-- read most of their definitions before.
select id as agent, version from holdfast.agent
where tenant = '' order by updated_at desc, id limit :limit;

-- name: shared_definitions :many
select :columns(v)
from holdfast.agent a join holdfast.agent_version v on v.agent = a.id and v.version = a.version
where a.id = any(cast(:agents as text[])) and a.tenant = '';

-- name: callers_of :many
-- Agents with a version that names this agent as one they may call.
select :columns from holdfast.agent a
where a.id <> :id and exists (select 1 from holdfast.agent_version v
    where v.agent = a.id and cast(v.definition as text) like '%"agent":"' || :id || '"%')
order by name, id;

-- name: delete_versions :exec
delete from holdfast.agent_version
where agent = :id and not exists (select 1 from holdfast.run r where r.agent = :id);

-- name: delete_agent :one
delete from holdfast.agent
where id = :id and not exists (select 1 from holdfast.run r where r.agent = :id)
returning :columns;
