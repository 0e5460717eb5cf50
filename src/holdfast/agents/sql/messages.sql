-- Messages and their blocks. A block is the provider's JSON, byte for byte.

-- name: add_messages :exec
-- Each at the next place of its branch, at most one for each branch: only the run whose turn it is writes there.
with message as (
    insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, created_at)
    select n.id, n.session, n.branch, 1 + coalesce((
            select max(m.ordinal) from holdfast.message m where m.session = n.session and m.branch = n.branch), 0),
        n.role, n.run, n.turn, n.kind, holdfast.now_us()
    from rows(:messages) as n (id text, session text, branch text, role text, run text, turn integer, kind text)
    where true
    on conflict (id) do nothing
)
insert into holdfast.block (message, ordinal, type, body, blob)
select b.message, b.ordinal, b.type, b.body, b.blob
from rows(:blocks) as b (message text, ordinal integer, type text, body json, blob text)
where true
on conflict (message, ordinal) do nothing;

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

-- name: list_messages :many
-- With retired messages, which are marked. Messages that a compaction took out are included on request.
select id, session, branch, ordinal, role, run, turn, kind, live, preserved, created_at,
    case when live = 0 and (retired is not null or compacted is null) then 1 else 0 end as retired
from holdfast.message
where session = :session and (cast(:branch as text) is null or branch = :branch)
    and (cast(:run as text) is null or run = :run) and ordinal > :after
    and (live = 1 or (retired is null and compacted is null)
        or (made_by is null and (retired is not null or :archived = 1)))
order by branch, ordinal, live, id limit :limit;

-- name: latest_messages :many
-- The same from the end of the conversation backwards.
select id, session, branch, ordinal, role, run, turn, kind, live, preserved, created_at,
    case when live = 0 and (retired is not null or compacted is null) then 1 else 0 end as retired
from holdfast.message
where session = :session and branch = '' and ordinal < cast(:before as bigint)
    and (live = 1 or (retired is null and compacted is null)
        or (made_by is null and (retired is not null or :archived = 1)))
order by ordinal desc, live desc, id desc limit :limit;

-- name: blocks_of :many
select b.message, b.ordinal, b.type, coalesce(b.body, l.body) as body
from holdfast.block b left join holdfast.blob l on l.hash = b.blob
where b.message = any(cast(:messages as text[])) order by b.message, b.ordinal;
