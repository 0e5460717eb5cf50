-- Forks: a session of its own with copies of the messages. Large blocks are shared by their hash.

-- name: past :many
-- All messages that the main branch ever had.
select m.id, m.ordinal, m.kind, m.run, m.turn, m.live, m.compacted, m.made_by,
    case when exists (select 1 from holdfast.block b where b.message = m.id and b.type = 'tool_use')
        then 1 else 0 end as asks,
    case when exists (select 1 from holdfast.block b where b.message = m.id and b.type = 'tool_result')
        then 1 else 0 end as answers, m.retired, m.fingerprint
from holdfast.message m
where m.session = :session and m.branch = ''
order by m.ordinal, m.live, m.id;

-- name: add_fork :exec
insert into holdfast.session (id, tenant, key, parent, depth, metadata, runs, created_at, updated_at, during,
    forked_from, forked_at, generation)
select :id, s.tenant, :key, s.parent, s.depth, s.metadata, :runs, holdfast.now_us(), holdfast.now_us(), s.during, s.id,
    :at, :generation
from holdfast.session s where s.id = :source
on conflict do nothing;

-- name: find_fork :one
select id, forked_from, forked_at from holdfast.session
where id = :id or (cast(:key as text) is not null and tenant = :tenant and key = :key);

-- name: copy_messages :exec
-- In the same places. The fingerprint is copied too: thinking stays valid when the original is removed.
insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, preserved, fingerprint, created_at)
select c.id, :session, '', m.ordinal, m.role, c.run, m.turn, m.kind, m.preserved,
    coalesce(c.fingerprint, m.fingerprint, t.fingerprint, ''), m.created_at
from rows(:copies) as c (id text, source text, run text, fingerprint text)
join holdfast.message m on m.id = c.source
left join holdfast.turn t on t.run = m.run and t.number = m.turn and m.kind = 'answer'
where true
on conflict (id) do nothing;

-- name: copy_blocks :exec
insert into holdfast.block (message, ordinal, type, body, blob)
select c.id, b.ordinal, b.type, b.body, b.blob
from rows(:copies) as c (id text, source text, edited integer)
join holdfast.block b on b.message = c.source
where c.edited = 0
on conflict (message, ordinal) do nothing;

-- name: add_blocks :exec
insert into holdfast.block (message, ordinal, type, body, blob)
select b.message, b.ordinal, b.type, b.body, b.blob
from rows(:blocks) as b (message text, ordinal integer, type text, body json, blob text)
where true
on conflict (message, ordinal) do nothing;

-- name: mark_fork :exec
-- The run continues where its history ends: the prompt is there, and this many turns are done.
update holdfast.run set prompted = 1, generation = :generation, continued = :continued, turns = :turns,
    forked_from = :source, forked_at = :at
where id = :id;

-- name: generation_seen :one
-- Which generation of the history a run used for a turn. After its last turn, or for the whole run, the latest.
select coalesce((select t.generation from holdfast.turn t where t.run = r.id and t.number = :turn), r.generation)
    as generation
from holdfast.run r where r.id = :run;

-- name: fork_of :one
select id, forked_from, forked_at from holdfast.run where id = :run;
