-- Compaction: what was said is kept, and less of it is sent. One row for each, written before its summariser is asked.

-- name: hold_generation :one on postgres
-- Held while a run begins: a compaction waits for that, and then sees that it has begun. Not against those who take a
-- place in the line: a caller's open transaction that adds a run holds the row, for as long as it likes.
select generation from holdfast.session where id = :id for key share;

-- name: hold_generation :one on sqlite
-- The transaction holds the write lock already.
select generation from holdfast.session where id = :id;

-- name: find_generation :one
-- With what a summary's price is reserved by.
select generation, tenant, case when exists (select 1 from holdfast.budget) then 1 else 0 end as budgets,
    holdfast.now_us() as now
from holdfast.session where id = :id;

-- name: history :many
-- The live messages of the main line, block by block, as `window` reads them, with what decides over each.
select m.id as message, m.ordinal, m.role, m.kind, coalesce(m.fingerprint, t.fingerprint, '') as fingerprint, b.type,
    coalesce(b.body, l.body) as body, m.run, m.turn, m.preserved
from holdfast.message m
join holdfast.block b on b.message = m.id
left join holdfast.turn t on t.run = m.run and t.number = m.turn and m.kind = 'answer'
left join holdfast.blob l on l.hash = b.blob
where m.session = :session and m.branch = '' and m.live = 1
order by m.ordinal, b.ordinal;

-- name: live_messages :many
-- Whether it is still what was read.
select m.id, m.preserved from holdfast.message m
where m.session = :session and m.branch = '' and m.live = 1
    and exists (select 1 from holdfast.block b where b.message = m.id)
order by m.ordinal;

-- name: last_run :one
select r.id, r.options, v.definition
from holdfast.message m
join holdfast.run r on r.id = m.run
join holdfast.agent_version v on v.agent = r.agent and v.version = r.version
where m.session = :session and m.branch = ''
order by m.ordinal desc limit 1;

-- name: last_usage :one
-- Of a call that was sent the history as it stands: what was sent of another generation had another size.
select m.ordinal, t.input_tokens + t.cache_write_tokens + t.cache_read_tokens as sent, t.output_tokens as said
from holdfast.session s
join holdfast.message m on m.session = s.id and m.branch = '' and m.live = 1 and m.kind = 'answer'
join holdfast.turn t on t.run = m.run and t.number = m.turn and t.state = 'completed' and t.generation = s.generation
where s.id = :session
order by m.ordinal desc limit 1;

-- name: under_way :one
-- A run that has begun and not ended: what it has sent must stay what it was.
select id from holdfast.run
where session = :session and parent is null and finalized_at is null and prompted = 1
order by ordinal limit 1;

-- name: open_compaction :one
-- One whose summariser was asked, of the history as it stands. Nobody has said what became of it.
select id, session, run, state, strategy, trigger, model, config, before_generation, tokens_before, tokens_after,
    removed, pruned, summary, attempts, unknown, usage, input_tokens, output_tokens, cache_write_tokens,
    cache_read_tokens, cost_nano, error, started_at, ended_at, restored_at
from holdfast.compaction
where session = :session and before_generation = :generation and state in ('calling', 'failed')
order by started_at desc, id desc limit 1;

-- name: begin_compaction :one
-- The intent, before the call. Begun again while it was calling, what became of the call before is not known.
insert into holdfast.compaction (id, session, branch, run, state, strategy, trigger, model, config, before_generation,
    tokens_before, started_at)
values (:id, :session, '', :run, 'calling', :strategy, :trigger, :model, :config, :generation, :tokens_before,
    holdfast.now_us())
on conflict (id) do update set run = excluded.run, strategy = excluded.strategy, trigger = excluded.trigger,
    model = excluded.model, config = excluded.config, tokens_before = excluded.tokens_before,
    attempts = compaction.attempts + 1, error = null, ended_at = null,
    unknown = compaction.unknown + case when compaction.state = 'calling' then 1 else 0 end, state = 'calling'
where compaction.state in ('calling', 'failed') and compaction.attempts = :attempts
returning id, session, run, state, strategy, trigger, model, config, before_generation, tokens_before, tokens_after,
    removed, pruned, summary, attempts, unknown, usage, input_tokens, output_tokens, cache_write_tokens,
    cache_read_tokens, cost_nano, error, started_at, ended_at, restored_at;

-- name: find_compaction :one
select id, session, run, state, strategy, trigger, model, config, before_generation, tokens_before, tokens_after,
    removed, pruned, summary, attempts, unknown, usage, input_tokens, output_tokens, cache_write_tokens,
    cache_read_tokens, cost_nano, error, started_at, ended_at, restored_at
from holdfast.compaction where id = :id;

-- name: list_compactions :many
select id, session, run, state, strategy, trigger, model, config, before_generation, tokens_before, tokens_after,
    removed, pruned, summary, attempts, unknown, usage, input_tokens, output_tokens, cache_write_tokens,
    cache_read_tokens, cost_nano, error, started_at, ended_at, restored_at
from holdfast.compaction where session = :session
order by started_at desc, id desc limit :limit;

-- name: charge_compaction :one
-- What a call of the summariser used, whatever becomes of what it said; each call once, in whatever order they end.
update holdfast.compaction set usage = :usage, input_tokens = input_tokens + :input_tokens,
    output_tokens = output_tokens + :output_tokens, cache_write_tokens = cache_write_tokens + :cache_write_tokens,
    cache_read_tokens = cache_read_tokens + :cache_read_tokens, cost_nano = cost_nano + :cost_nano,
    charged = charged | cast(:call as bigint)
where id = :id and (charged & cast(:call as bigint)) = 0
returning id, attempts;

-- name: overtaken :exec
-- Somebody else has begun it again, or another in its place, and counted our call as unknown; it is known now.
update holdfast.compaction set unknown = unknown - 1
where id = :id and (attempts > :attempts or state = 'failed') and unknown > 0;

-- name: fail_compaction :one
update holdfast.compaction set state = 'failed', error = :error, unknown = unknown + :unknown,
    ended_at = holdfast.now_us()
where id = :id and state = 'calling' and attempts = :attempts
returning id, attempts;

-- name: end_compaction :one
-- No row: it was begun again by somebody else, or is over.
update holdfast.compaction set state = 'done', tokens_after = :tokens_after, removed = :removed, pruned = :pruned,
    summary = :summary, error = null, ended_at = holdfast.now_us()
where id = :id and state = 'calling' and attempts = :attempts
returning id, session, run, state, strategy, trigger, model, config, before_generation, tokens_before, tokens_after,
    removed, pruned, summary, attempts, unknown, usage, input_tokens, output_tokens, cache_write_tokens,
    cache_read_tokens, cost_nano, error, started_at, ended_at, restored_at;

-- name: archive :exec
-- Kept where they are, and not sent any more.
update holdfast.message set live = 0, compacted = :id where id = any(cast(:messages as text[])) and live = 1;

-- name: add_made :exec on postgres
-- In the places of what they replace, which is not live any more.
with message as (
    insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, made_by, created_at)
    select m.id, :session, '', m.ordinal, m.role, m.run, m.turn, m.kind, :id, holdfast.now_us()
    from unnest(cast(:made.id as text[]), cast(:made.ordinal as integer[]), cast(:made.role as text[]),
        cast(:made.run as text[]), cast(:made.turn as integer[]), cast(:made.kind as text[]))
        as m (id, ordinal, role, run, turn, kind)
    on conflict (id) do nothing
)
insert into holdfast.block (message, ordinal, type, body, blob)
select b.message, b.ordinal, b.type, b.body, b.blob
from unnest(cast(:blocks.message as text[]), cast(:blocks.ordinal as integer[]), cast(:blocks.type as text[]),
    cast(:blocks.body as json[]), cast(:blocks.blob as text[])) as b (message, ordinal, type, body, blob)
on conflict (message, ordinal) do nothing;

-- name: add_made :exec on sqlite
-- No data-modifying CTE here: two statements in the one transaction.
insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, made_by, created_at)
select value ->> :made.id, :session, '', value ->> :made.ordinal, value ->> :made.role, value ->> :made.run,
    value ->> :made.turn, value ->> :made.kind, :id, holdfast.now_us()
from json_each(:made) where true
on conflict (id) do nothing;
insert into holdfast.block (message, ordinal, type, body, blob)
select value ->> :blocks.message, value ->> :blocks.ordinal, value ->> :blocks.type, value ->> :blocks.body,
    value ->> :blocks.blob
from json_each(:blocks) where true
on conflict (message, ordinal) do nothing;

-- name: set_generation :exec
update holdfast.session set generation = :generation, compactions = compactions + :counted,
    updated_at = holdfast.now_us()
where id = :session;

-- name: withdraw_made :exec
-- What a compaction wrote is not sent any more: first, for its places are those of what comes back.
update holdfast.message set live = 0, compacted = :id where session = :session and made_by = :id and live = 1;

-- name: bring_back :exec
update holdfast.message set live = 1, compacted = null
where session = :session and compacted = :id and (made_by is null or made_by <> :id);

-- name: restore_compaction :one
update holdfast.compaction set state = 'restored', restored_at = holdfast.now_us()
where id = :id and state = 'done'
returning id, session, run, state, strategy, trigger, model, config, before_generation, tokens_before, tokens_after,
    removed, pruned, summary, attempts, unknown, usage, input_tokens, output_tokens, cache_write_tokens,
    cache_read_tokens, cost_nano, error, started_at, ended_at, restored_at;

-- name: preserve :one
update holdfast.message set preserved = :preserved where id = :id and session = :session
returning id, preserved;

-- name: compaction_use :one
select cast(coalesce(sum(input_tokens), 0) as bigint) as input_tokens,
    cast(coalesce(sum(output_tokens), 0) as bigint) as output_tokens,
    cast(coalesce(sum(cache_write_tokens), 0) as bigint) as cache_write_tokens,
    cast(coalesce(sum(cache_read_tokens), 0) as bigint) as cache_read_tokens,
    cast(coalesce(sum(cost_nano), 0) as bigint) as cost_nano
from holdfast.compaction where session = :session;

-- name: delete_compactions :exec
delete from holdfast.compaction where session = :id;
