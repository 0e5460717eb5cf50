-- What a page shows of many runs at once: each statement reads by an index, and as much as the page shows.

-- name: calls_of_turns :many
-- The calls of these turns; `find_calls` reads them.
select c.id
from rows(:turns) as t (run text, turn integer)
join holdfast.tool_call c on c.run = t.run and c.turn = t.turn
order by c.run, c.turn, c.ordinal limit :limit;

-- part: message_of_run on postgres
holdfast.message m

-- part: message_of_run on sqlite
-- Without the index SQLite would read all messages of the session.
holdfast.message m indexed by message_run

-- name: last_words :many
-- The last live messages of each of these runs. A fork has copies of messages under the same run, in its own session.
select m.id, m.session, m.branch, m.ordinal, m.role, m.run, m.turn, m.kind, m.live, m.preserved, m.created_at, 0 as retired
from (
    select r.id, r.session, coalesce((select m.ordinal from @message_of_run
        where m.run = r.id and m.session = r.session and m.live = 1
        order by m.ordinal desc limit 1 offset :skipped), 0) as first
    from rows(:runs) as r (id text, session text)) as f
join @message_of_run
    on m.run = f.id and m.session = f.session and m.ordinal >= f.first and m.live = 1
order by m.run, m.ordinal;

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
