-- What a session has used, in a row beside its own.
-- oldest_code: 8

-- up
-- Added where a run ends or a compaction is paid for, whichever release does that, and once. Not in the row of the
-- session: a caller's open transaction that adds a run locks that row.
create table holdfast.session_total (
    session text primary key,
    runs bigint not null,
    turns bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cache_write_tokens bigint not null,
    cache_read_tokens bigint not null,
    cost_nano bigint not null
);
-- The open runs of a session: those below another one. The others have an index already.
create index run_child_open on holdfast.run (session) where parent is not null and finalized_at is null;

-- At the commit, so that nobody waits for the row for long; a session that went in the same transaction is not counted.
-- As the owner: the role of a tenant's request writes nothing here.
create function holdfast.count_run() returns trigger language plpgsql security definer set search_path = pg_catalog as $$
begin
    insert into holdfast.session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    select new.session, case when old.finalized_at is null then 1 else 0 end,
        new.turns - case when old.finalized_at is null then 0 else old.turns end,
        new.input_tokens - case when old.finalized_at is null then 0 else old.input_tokens end,
        new.output_tokens - case when old.finalized_at is null then 0 else old.output_tokens end,
        new.cache_write_tokens - case when old.finalized_at is null then 0 else old.cache_write_tokens end,
        new.cache_read_tokens - case when old.finalized_at is null then 0 else old.cache_read_tokens end,
        new.cost_nano - case when old.finalized_at is null then 0 else old.cost_nano end
    where exists (select 1 from holdfast.session s where s.id = new.session)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; return null; end $$;
create constraint trigger run_counted after update of finalized_at, cost_nano on holdfast.run
deferrable initially deferred for each row when (new.finalized_at is not null) execute function holdfast.count_run();
create constraint trigger run_counted_whole after insert on holdfast.run
deferrable initially deferred for each row when (new.finalized_at is not null) execute function holdfast.count_run();
create function holdfast.count_compaction() returns trigger language plpgsql security definer set search_path = pg_catalog
as $$ begin
    insert into holdfast.session_total (session, runs, turns, input_tokens, output_tokens,
        cache_write_tokens, cache_read_tokens, cost_nano)
    select new.session, 0, 0, new.input_tokens - coalesce(old.input_tokens, 0),
        new.output_tokens - coalesce(old.output_tokens, 0),
        new.cache_write_tokens - coalesce(old.cache_write_tokens, 0),
        new.cache_read_tokens - coalesce(old.cache_read_tokens, 0), new.cost_nano - coalesce(old.cost_nano, 0)
    where exists (select 1 from holdfast.session s where s.id = new.session)
    on conflict (session) do update set runs = session_total.runs + excluded.runs,
        turns = session_total.turns + excluded.turns, input_tokens = session_total.input_tokens + excluded.input_tokens,
        output_tokens = session_total.output_tokens + excluded.output_tokens,
        cache_write_tokens = session_total.cache_write_tokens + excluded.cache_write_tokens,
        cache_read_tokens = session_total.cache_read_tokens + excluded.cache_read_tokens,
        cost_nano = session_total.cost_nano + excluded.cost_nano
    ; return null; end $$;
create constraint trigger compaction_counted after insert or update of cost_nano on holdfast.compaction
deferrable initially deferred for each row execute function holdfast.count_compaction();
create function holdfast.forget_total() returns trigger language plpgsql security definer set search_path = pg_catalog
as $$ begin delete from holdfast.session_total where session = old.id; return null; end $$;
create trigger session_forgotten after delete on holdfast.session for each row execute function holdfast.forget_total();
insert into holdfast.session_total (session, runs, turns, input_tokens, output_tokens, cache_write_tokens,
    cache_read_tokens, cost_nano)
select u.session, sum(u.runs), sum(u.turns), sum(u.input_tokens), sum(u.output_tokens), sum(u.cache_write_tokens),
    sum(u.cache_read_tokens), sum(u.cost_nano)
from (
    select session, 1 as runs, turns, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano
    from holdfast.run where finalized_at is not null
    union all
    select session, 0, 0, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano
    from holdfast.compaction
) as u group by u.session;

-- down
drop trigger session_forgotten on holdfast.session;
drop trigger compaction_counted on holdfast.compaction;
drop trigger run_counted_whole on holdfast.run;
drop trigger run_counted on holdfast.run;
drop function holdfast.forget_total;
drop function holdfast.count_compaction;
drop function holdfast.count_run;
drop index holdfast.run_child_open;
drop table holdfast.session_total;
