-- Forks: a session of its own with copies of what was said. Large blocks are shared by their hash.

-- name: past :many
-- Everything that was ever said in the main line.
select m.id, m.ordinal, m.kind, m.run, m.turn, m.live, m.compacted, m.made_by,
    case when exists (select 1 from holdfast.block b where b.message = m.id and b.type = 'tool_use')
        then 1 else 0 end as asks,
    case when exists (select 1 from holdfast.block b where b.message = m.id and b.type = 'tool_result')
        then 1 else 0 end as answers
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

-- name: copy_messages :exec on postgres
-- In the same places. The fingerprint comes along: thinking stays valid when the original is no longer there.
insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, preserved, fingerprint, created_at)
select c.id, :session, '', m.ordinal, m.role, c.run, m.turn, m.kind, m.preserved,
    coalesce(c.fingerprint, m.fingerprint, t.fingerprint, ''), m.created_at
from unnest(cast(:copies.id as text[]), cast(:copies.source as text[]), cast(:copies.run as text[]),
    cast(:copies.fingerprint as text[])) as c (id, source, run, fingerprint)
join holdfast.message m on m.id = c.source
left join holdfast.turn t on t.run = m.run and t.number = m.turn and m.kind = 'answer'
on conflict (id) do nothing;

-- name: copy_messages :exec on sqlite
-- Forked for the list of records.
insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, preserved, fingerprint, created_at)
select value ->> :copies.id, :session, '', m.ordinal, m.role, value ->> :copies.run, m.turn, m.kind, m.preserved,
    coalesce(value ->> :copies.fingerprint, m.fingerprint, t.fingerprint, ''), m.created_at
from json_each(:copies) cross join holdfast.message m on m.id = value ->> :copies.source
left join holdfast.turn t on t.run = m.run and t.number = m.turn and m.kind = 'answer'
where true
on conflict (id) do nothing;

-- name: copy_blocks :exec on postgres
insert into holdfast.block (message, ordinal, type, body, blob)
select c.id, b.ordinal, b.type, b.body, b.blob
from unnest(cast(:copies.id as text[]), cast(:copies.source as text[]), cast(:copies.edited as integer[]))
    as c (id, source, edited)
join holdfast.block b on b.message = c.source
where c.edited = 0
on conflict (message, ordinal) do nothing;

-- name: copy_blocks :exec on sqlite
-- Forked for the list of records.
insert into holdfast.block (message, ordinal, type, body, blob)
select value ->> :copies.id, b.ordinal, b.type, b.body, b.blob
from json_each(:copies) cross join holdfast.block b on b.message = value ->> :copies.source
where value ->> :copies.edited = 0
on conflict (message, ordinal) do nothing;

-- name: add_blocks :exec on postgres
insert into holdfast.block (message, ordinal, type, body, blob)
select b.message, b.ordinal, b.type, b.body, b.blob
from unnest(cast(:blocks.message as text[]), cast(:blocks.ordinal as integer[]), cast(:blocks.type as text[]),
    cast(:blocks.body as json[]), cast(:blocks.blob as text[])) as b (message, ordinal, type, body, blob)
on conflict (message, ordinal) do nothing;

-- name: add_blocks :exec on sqlite
-- Forked for the list of records.
insert into holdfast.block (message, ordinal, type, body, blob)
select value ->> :blocks.message, value ->> :blocks.ordinal, value ->> :blocks.type, value ->> :blocks.body,
    value ->> :blocks.blob
from json_each(:blocks) where true
on conflict (message, ordinal) do nothing;

-- name: mark_fork :exec
-- It goes on where its history ends: what it was asked stands there, and so many turns are behind it.
update holdfast.run set prompted = 1, generation = :generation, continued = :continued, turns = :turns,
    forked_from = :source, forked_at = :at
where id = :id;

-- name: generation_seen :one
-- Which history a run had before it when it was about to play a turn; behind its last one, or of all of it, the latest.
select coalesce((select t.generation from holdfast.turn t where t.run = r.id and t.number = :turn), r.generation)
    as generation
from holdfast.run r where r.id = :run;

-- name: fork_of :one
select id, forked_from, forked_at from holdfast.run where id = :run;
