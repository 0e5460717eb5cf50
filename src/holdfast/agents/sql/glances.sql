-- What a page shows of many runs at once: each statement reads by an index, and as much as the page shows.

-- name: calls_of_turns :many
-- The calls of these turns; `find_calls` reads them.
select c.id
from rows(:turns) as t (run text, turn integer)
join holdfast.tool_call c on c.run = t.run and c.turn = t.turn
order by c.run, c.turn, c.ordinal limit :limit;

-- name: last_words :many
-- The last live messages of each of these runs. A fork has copies of messages under the same run, in its own session.
select m.id, m.session, m.branch, m.ordinal, m.role, m.run, m.turn, m.kind, m.live, m.preserved, m.created_at, 0 as retired
from (
    select r.id, r.session, coalesce((select n.ordinal from holdfast.message n indexed by message_run
        where n.run = r.id and n.session = r.session and n.live = 1
        order by n.ordinal desc limit 1 offset :skipped), 0) as least
    from rows(:runs) as r (id text, session text)) as f
join holdfast.message m indexed by message_run
    on m.run = f.id and m.session = f.session and m.ordinal >= f.least and m.live = 1
order by m.run, m.ordinal;

-- name: messages_of_run :many
-- By the run, because a session may hold many more messages than this run has.
select id, session, branch, ordinal, role, run, turn, kind, live, preserved, created_at,
    case when live = 0 and (retired is not null or compacted is null) then 1 else 0 end as retired
from holdfast.message indexed by message_run
where run = :run and session = :session and (cast(:branch as text) is null or branch = :branch) and ordinal > :after
    and (live = 1 or (retired is null and compacted is null)
        or (made_by is null and (retired is not null or :archived = 1)))
order by ordinal, live, id limit :limit;

-- name: open_below :one
-- How many of these runs and of the runs below them have not ended, and how many of their calls.
-- A cross join keeps SQLite at this order of tables.
with recursive below (id) as (
    select r.id from holdfast.run r where r.id = any(cast(:ids as text[]))
    union
    select r.id from below b cross join holdfast.run r where r.parent = b.id
)
select (select count(*) from below b cross join holdfast.run r where r.id = b.id and r.finalized_at is null) as runs,
    (select count(*) from below b cross join holdfast.tool_call c where c.run = b.id and c.state is null) as calls;
