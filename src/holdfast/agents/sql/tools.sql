-- Tools as the workers that have their code declare them.

-- name: declare_tool :exec
-- An unchanged declaration is not written again.
insert into holdfast.tool (name, definition, digest, updated_at) values (:name, :definition, :digest, holdfast.now_us())
on conflict (name) do update set definition = excluded.definition, digest = excluded.digest,
    updated_at = excluded.updated_at
where tool.digest <> excluded.digest;

-- name: find_tools :many
select name, definition, digest from holdfast.tool where name = any(cast(:names as text[]));
