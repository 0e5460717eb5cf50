-- What a session has used, in a row beside its own.
-- oldest_code: 8

-- up
-- Added where a run ends or a compaction is paid for, whichever release does that, and once. Not in the row of the
-- session: a caller's open transaction that adds a run locks that row.
create table session_total (
    session text primary key,
    runs integer not null,
    turns integer not null,
    input_tokens integer not null,
    output_tokens integer not null,
    cache_write_tokens integer not null,
    cache_read_tokens integer not null,
    cost_nano integer not null
) strict;
-- The open runs of a session: those below another one. The others have an index already.
create index run_child_open on run (session) where parent is not null and finalized_at is null;

create trigger run_counted after update of finalized_at, cost_nano on run when new.finalized_at is not null begin
    insert into session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    values (new.session, case when old.finalized_at is null then 1 else 0 end,
        new.turns - case when old.finalized_at is null then 0 else old.turns end,
        new.input_tokens - case when old.finalized_at is null then 0 else old.input_tokens end,
        new.output_tokens - case when old.finalized_at is null then 0 else old.output_tokens end,
        new.cache_write_tokens - case when old.finalized_at is null then 0 else old.cache_write_tokens end,
        new.cache_read_tokens - case when old.finalized_at is null then 0 else old.cache_read_tokens end,
        new.cost_nano - case when old.finalized_at is null then 0 else old.cost_nano end)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; end;
create trigger run_counted_whole after insert on run when new.finalized_at is not null begin
    insert into session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    values (new.session, 1, new.turns, new.input_tokens, new.output_tokens, new.cache_write_tokens,
        new.cache_read_tokens, new.cost_nano)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; end;
create trigger compaction_counted after update of cost_nano on compaction begin
    insert into session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    values (new.session, 0, 0, new.input_tokens - old.input_tokens, new.output_tokens - old.output_tokens,
        new.cache_write_tokens - old.cache_write_tokens, new.cache_read_tokens - old.cache_read_tokens,
        new.cost_nano - old.cost_nano)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; end;
create trigger compaction_counted_whole after insert on compaction begin
    insert into session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    values (new.session, 0, 0, new.input_tokens, new.output_tokens, new.cache_write_tokens, new.cache_read_tokens,
        new.cost_nano)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; end;
create trigger session_forgotten after delete on session begin
    delete from session_total where session = old.id; end;
insert into session_total (session, runs, turns, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens,
    cost_nano)
select u.session, sum(u.runs), sum(u.turns), sum(u.input_tokens), sum(u.output_tokens), sum(u.cache_write_tokens),
    sum(u.cache_read_tokens), sum(u.cost_nano)
from (
    select session, 1 as runs, turns, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano
    from run where finalized_at is not null
    union all
    select session, 0, 0, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano
    from compaction
) as u group by u.session;

-- down
drop trigger session_forgotten;
drop trigger compaction_counted_whole;
drop trigger compaction_counted;
drop trigger run_counted_whole;
drop trigger run_counted;
drop index run_child_open;
drop table session_total;
