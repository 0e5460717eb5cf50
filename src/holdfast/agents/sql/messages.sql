-- Messages and their blocks. A block is the provider's JSON, byte for byte.

-- part: next_messages
-- Each at the next place of its branch, at most one for each branch: only the run whose turn it is writes there.
insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, created_at)
select n.id, n.session, n.branch, 1 + coalesce((
        select max(m.ordinal) from holdfast.message m where m.session = n.session and m.branch = n.branch), 0),
    n.role, n.run, n.turn, n.kind, holdfast.now_us()
from rows(:messages) as n (id text, session text, branch text, role text, run text, turn integer, kind text)
where true
on conflict (id) do nothing

-- part: their_blocks
insert into holdfast.block (message, ordinal, type, body, blob)
select b.message, b.ordinal, b.type, b.body, b.blob
from rows(:blocks) as b (message text, ordinal integer, type text, body json, blob text)
where true
on conflict (message, ordinal) do nothing

-- name: add_messages :exec on postgres
with message as (
@next_messages
)
@their_blocks;

-- name: add_messages :exec on sqlite
-- Forked: SQLite has no CTE that changes rows.
@next_messages;
@their_blocks;

-- name: add_blob :exec
-- An existing blob is locked and not changed: it stays until the caller has stored the block that names it.
insert into holdfast.blob (hash, body) values (:hash, :body)
on conflict (hash) do update set hash = excluded.hash where false;

-- name: window :many
-- What is sent: the live messages of a branch, block by block. The cost depends on the window, not on the history.
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

-- name: use_ids :many
-- The calls that the live messages of a branch ask for.
select coalesce(b.body, l.body) ->> 'id' as id
from holdfast.message m
join holdfast.block b on b.message = m.id and b.type = 'tool_use'
left join holdfast.blob l on l.hash = b.blob
where m.session = :session and m.branch = :branch and m.live = 1;

-- name: retire :exec
-- Kept, and never sent again. Only in this session: copies in other sessions do not change.
update holdfast.message set live = 0 where run = :run and live = 1
    and session = (select r.session from holdfast.run r where r.id = :run);

-- part: shown
id, session, branch, ordinal, role, run, turn, kind, live, preserved, created_at,
    case when live = 0 and (retired is not null or compacted is null) then 1 else 0 end as retired

-- part: kept
-- With retired messages, which are marked. Messages that a compaction took out are included on request.
(live = 1 or (retired is null and compacted is null) or (made_by is null and (retired is not null or :archived = 1)))

-- name: list_messages :many
-- Of one branch, from a place on. Of as many as are looked at, those that are shown.
select @shown from (
    select * from holdfast.message where session = :session and branch = :branch and ordinal > cast(:after as bigint)
    order by session, branch, ordinal limit :look) as looked
where @kept order by ordinal, live, id limit :limit;

-- name: end_of_messages :one
select ordinal as number from holdfast.message
where session = :session and branch = :branch and ordinal > cast(:after as bigint)
order by session, branch, ordinal limit 1 offset :skipped;

-- name: latest_messages :many
-- The same from the end of the conversation backwards.
select @shown from (
    select * from holdfast.message where session = :session and branch = :branch and ordinal < cast(:before as bigint)
    order by session desc, branch desc, ordinal desc limit :look) as looked
where @kept order by ordinal desc, live desc, id desc limit :limit;

-- name: begin_of_messages :one
select ordinal as number from holdfast.message
where session = :session and branch = :branch and ordinal < cast(:before as bigint)
order by session desc, branch desc, ordinal desc limit 1 offset :skipped;

-- name: messages_of_run :many
-- A run says little beside its session. Copies in other sessions name it too.
select @shown from holdfast.message
where run = :run and session = :session and ordinal > cast(:after as bigint) and @kept
order by run, ordinal, live, id limit :limit;

-- name: messages_of_session :many
-- Of all branches, for those who copy a session.
select @shown from holdfast.message
where session = :session and ordinal > cast(:after as bigint) and @kept
order by session, branch, ordinal, live, id limit :limit;

-- name: blocks_of :many
select b.message, b.ordinal, b.type, coalesce(b.body, l.body) as body
from holdfast.block b left join holdfast.blob l on l.hash = b.blob
where b.message = any(cast(:messages as text[])) order by b.message, b.ordinal;

-- name: short_blocks_of :many
-- The same for a page, with a note in place of a block that is longer than `most` characters.
select b.message, b.ordinal, b.type, case when length(coalesce(cast(b.body as text), cast(l.body as text))) <= :most
    then coalesce(cast(b.body as text), cast(l.body as text)) else cast(:cut as text) end as body
from holdfast.block b left join holdfast.blob l on l.hash = b.blob
where b.message = any(cast(:messages as text[])) order by b.message, b.ordinal;
