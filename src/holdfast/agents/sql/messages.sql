-- Messages and their blocks. A block is the provider's JSON, byte for byte.

-- name: add_messages :exec on postgres
-- Each at the next place of its branch, at most one for each branch: only the run that has its turn writes there.
with message as (
    insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, created_at)
    select n.id, n.session, n.branch, 1 + coalesce((
            select max(m.ordinal) from holdfast.message m where m.session = n.session and m.branch = n.branch), 0),
        n.role, n.run, n.turn, n.kind, holdfast.now_us()
    from unnest(cast(:messages.id as text[]), cast(:messages.session as text[]), cast(:messages.branch as text[]),
        cast(:messages.role as text[]), cast(:messages.run as text[]), cast(:messages.turn as integer[]),
        cast(:messages.kind as text[])) as n (id, session, branch, role, run, turn, kind)
    on conflict (id) do nothing
)
insert into holdfast.block (message, ordinal, type, body, blob)
select b.message, b.ordinal, b.type, b.body, b.blob
from unnest(cast(:blocks.message as text[]), cast(:blocks.ordinal as integer[]), cast(:blocks.type as text[]),
    cast(:blocks.body as json[]), cast(:blocks.blob as text[])) as b (message, ordinal, type, body, blob)
on conflict (message, ordinal) do nothing;

-- name: add_messages :exec on sqlite
-- No data-modifying CTE here: two statements in the one transaction.
insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, created_at)
select value ->> :messages.id, value ->> :messages.session, value ->> :messages.branch, 1 + coalesce((
        select max(m.ordinal) from holdfast.message m
        where m.session = value ->> :messages.session and m.branch = value ->> :messages.branch), 0),
    value ->> :messages.role, value ->> :messages.run, value ->> :messages.turn, value ->> :messages.kind,
    holdfast.now_us()
from json_each(:messages) where true
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
select m.id as message, m.ordinal, m.role, m.kind, coalesce(m.fingerprint, t.fingerprint, '') as fingerprint, b.type,
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
-- Kept, and never sent again. In its own session: what others have copied of it is theirs.
update holdfast.message set live = 0 where run = :run and live = 1
    and session = (select r.session from holdfast.run r where r.id = :run);

-- name: list_messages :many
-- Not what a compaction took out, unless that is asked for.
select id, session, branch, ordinal, role, run, turn, kind, live, preserved, created_at from holdfast.message
where session = :session and (cast(:branch as text) is null or branch = :branch)
    and (cast(:run as text) is null or run = :run) and ordinal > :after
    and (live = 1 or compacted is null or (:archived = 1 and made_by is null))
order by branch, ordinal, live, id limit :limit;

-- name: blocks_of :many
select b.message, b.ordinal, b.type, coalesce(b.body, l.body) as body
from holdfast.block b left join holdfast.blob l on l.hash = b.blob
where b.message = any(cast(:messages as text[])) order by b.message, b.ordinal;
