-- Messages and their blocks. A block is the provider's JSON, byte for byte.

-- name: add_message :exec on postgres
-- At the next place of its branch: only the run that has its turn in the session writes there.
with message as (
    insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, created_at)
    values (:id, :session, :branch, 1 + coalesce((
            select max(m.ordinal) from holdfast.message m where m.session = :session and m.branch = :branch), 0),
        :role, :run, :turn, :kind, holdfast.now_us())
    on conflict (id) do nothing
)
insert into holdfast.block (message, ordinal, type, body, blob)
select b.message, b.ordinal, b.type, b.body, b.blob
from unnest(cast(:blocks.message as text[]), cast(:blocks.ordinal as integer[]), cast(:blocks.type as text[]),
    cast(:blocks.body as json[]), cast(:blocks.blob as text[])) as b (message, ordinal, type, body, blob)
on conflict (message, ordinal) do nothing;

-- name: add_message :exec on sqlite
-- No data-modifying CTE here: two statements in the one transaction.
insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, created_at)
values (:id, :session, :branch, 1 + coalesce((
        select max(m.ordinal) from holdfast.message m where m.session = :session and m.branch = :branch), 0),
    :role, :run, :turn, :kind, holdfast.now_us())
on conflict (id) do nothing;
insert into holdfast.block (message, ordinal, type, body, blob)
select value ->> :blocks.message, value ->> :blocks.ordinal, value ->> :blocks.type, value ->> :blocks.body,
    value ->> :blocks.blob
from json_each(:blocks) where true
on conflict (message, ordinal) do nothing;

-- name: add_blob :exec
-- One that is there is locked and not changed: it stays until whoever needs it has said so.
insert into holdfast.blob (hash, body) values (:hash, :body)
on conflict (hash) do update set hash = excluded.hash where false;

-- name: window :many
-- What is sent: the live messages of a branch, block by block. Its cost is the window's, not the history's.
select m.id as message, m.ordinal, m.role, m.kind, coalesce(t.fingerprint, '') as fingerprint, b.type,
    coalesce(b.body, l.body) as body
from holdfast.message m
join holdfast.block b on b.message = m.id
left join holdfast.turn t on t.run = m.run and t.number = m.turn and m.kind = 'answer'
left join holdfast.blob l on l.hash = b.blob
where m.session = :session and m.branch = :branch and m.live = 1
order by m.ordinal, b.ordinal;

-- name: last_live :many
-- The blocks of the last live message of a branch.
select m.id as message, m.ordinal, m.role, m.kind, '' as fingerprint, b.type, coalesce(b.body, l.body) as body
from holdfast.message m
join holdfast.block b on b.message = m.id
left join holdfast.blob l on l.hash = b.blob
where m.id = (select n.id from holdfast.message n
    where n.session = :session and n.branch = :branch and n.live = 1 order by n.ordinal desc limit 1)
order by b.ordinal;

-- name: retire :exec
-- Kept, and never sent again.
update holdfast.message set live = 0 where run = :run and live = 1;

-- name: list_messages :many
select id, session, branch, ordinal, role, run, turn, kind, live, preserved, created_at from holdfast.message
where session = :session and (cast(:branch as text) is null or branch = :branch)
    and (cast(:run as text) is null or run = :run) and ordinal > :after
order by branch, ordinal limit :limit;

-- name: blocks_of :many
select b.message, b.ordinal, b.type, coalesce(b.body, l.body) as body
from holdfast.block b left join holdfast.blob l on l.hash = b.blob
where b.message = any(cast(:messages as text[])) order by b.message, b.ordinal;
