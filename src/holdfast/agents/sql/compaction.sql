-- Compaction: the whole history is kept, but less of it is sent. One row for each compaction, written before the
-- summariser is asked.

-- name: hold_generation :one
-- Locked while a run begins: a compaction waits for that, and then sees that the run has begun. The lock does not
-- exclude callers that add a run: their open transaction may lock the row for a long time.
select generation from holdfast.session where id = :id for key share;

-- name: find_generation :one
-- With what is needed to reserve the price of a summary.
select generation, tenant, case when exists (select 1 from holdfast.budget) then 1 else 0 end as budgets,
    holdfast.now_us() as now
from holdfast.session where id = :id;

-- name: history :many
-- The live messages of the main branch, block by block, as `window` reads them, with the columns that decide about
-- each.
select m.id as message, m.ordinal, m.role, m.kind, coalesce(m.fingerprint, t.fingerprint, '') as fingerprint, b.type,
    coalesce(b.body, l.body) as body, m.run, m.turn, m.preserved
from holdfast.message m
join holdfast.block b on b.message = m.id
left join holdfast.turn t on t.run = m.run and t.number = m.turn and m.kind = 'answer'
left join holdfast.blob l on l.hash = b.blob
where m.session = :session and m.branch = '' and m.live = 1
order by m.ordinal, b.ordinal;

-- name: live_messages :many
-- Whether the history is still the one that was read.
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
-- Usage of a call with the current history: another generation had another size, and so had the history before an
-- exchange was retired.
select m.ordinal, t.input_tokens + t.cache_write_tokens + t.cache_read_tokens as sent, t.output_tokens as said
from holdfast.session s
join holdfast.message m on m.session = s.id and m.branch = '' and m.live = 1 and m.kind = 'answer'
    and substr(coalesce(m.fingerprint, ''), 1, 8) <> 'retired '
join holdfast.turn t on t.run = m.run and t.number = m.turn and t.state = 'completed' and t.generation = s.generation
where s.id = :session
order by m.ordinal desc limit 1;

-- name: recent_usage :one
-- The same among the last answers alone, for who only looks: a long session has many of them.
select f.ordinal, t.input_tokens + t.cache_write_tokens + t.cache_read_tokens as sent, t.output_tokens as said
from (
    select a.run, a.turn, a.ordinal, a.session from holdfast.message a
    where a.session = :session and a.branch = '' and a.live = 1 and a.kind = 'answer'
        and substr(coalesce(a.fingerprint, ''), 1, 8) <> 'retired '
    order by a.ordinal desc limit :look) as f
join holdfast.session s on s.id = f.session
join holdfast.turn t on t.run = f.run and t.number = f.turn and t.state = 'completed' and t.generation = s.generation
order by f.ordinal desc limit 1;

-- name: under_way :one
-- A run that has begun and not ended: the history that it has sent must not change.
select id from holdfast.run
where session = :session and parent is null and finalized_at is null and prompted = 1
order by ordinal limit 1;

-- name: open_compaction :one
-- A compaction of the current history whose summariser was asked, and whose result is unknown.
select :columns
from holdfast.compaction
where session = :session and before_generation = :generation and state in ('calling', 'failed')
order by started_at desc, id desc limit 1;

-- name: begin_compaction :one
-- The intent, stored before the call. If it begins again while it was calling, the result of the earlier call is
-- unknown.
insert into holdfast.compaction (id, session, branch, run, state, strategy, trigger, model, config, before_generation,
    tokens_before, started_at)
values (:id, :session, '', :run, 'calling', :strategy, :trigger, :model, :config, :generation, :tokens_before,
    holdfast.now_us())
on conflict (id) do update set run = excluded.run, strategy = excluded.strategy, trigger = excluded.trigger,
    model = excluded.model, config = excluded.config, tokens_before = excluded.tokens_before,
    attempts = compaction.attempts + 1, error = null, ended_at = null,
    unknown = compaction.unknown + case when compaction.state = 'calling' then 1 else 0 end, state = 'calling'
where compaction.state in ('calling', 'failed') and compaction.attempts = :attempts
returning :columns;

-- name: find_compaction :one
select :columns
from holdfast.compaction where id = :id;

-- name: list_compactions :many
select :columns
from holdfast.compaction where session = :session and (started_at, id) < (:before_at, :before)
order by started_at desc, id desc limit :limit;

-- name: charge_compaction :one
-- What a call of the summariser used, also if its summary is not used. Each call is charged once, in any order.
update holdfast.compaction set usage = :usage, input_tokens = input_tokens + :input_tokens,
    output_tokens = output_tokens + :output_tokens, cache_write_tokens = cache_write_tokens + :cache_write_tokens,
    cache_read_tokens = cache_read_tokens + :cache_read_tokens, cost_nano = cost_nano + :cost_nano,
    charged = charged | cast(:call as bigint)
where id = :id and (charged & cast(:call as bigint)) = 0
returning id, attempts;

-- name: overtaken :exec
-- Somebody else has begun it again, or another one in its place, and counted our call as unknown. Now its result is
-- known.
update holdfast.compaction set unknown = unknown - 1
where id = :id and (attempts > :attempts or state = 'failed') and unknown > 0;

-- name: fail_compaction :one
update holdfast.compaction set state = 'failed', error = :error, unknown = unknown + :unknown,
    ended_at = holdfast.now_us()
where id = :id and state = 'calling' and attempts = :attempts
returning id, attempts;

-- name: end_compaction :one
-- No row is returned if somebody else has begun it again, or if it is over.
update holdfast.compaction set state = 'done', tokens_after = :tokens_after, removed = :removed, pruned = :pruned,
    summary = :summary, error = null, ended_at = holdfast.now_us()
where id = :id and state = 'calling' and attempts = :attempts
returning :columns;

-- name: archive :exec
-- The messages are kept in their places, and no longer sent.
update holdfast.message set live = 0, compacted = :id where id = any(cast(:messages as text[])) and live = 1;

-- part: made_messages
-- In the places of those that they replace, which are not live any more.
insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, made_by, created_at)
select m.id, :session, '', m.ordinal, m.role, m.run, m.turn, m.kind, :id, holdfast.now_us()
from rows(:made) as m (id text, ordinal integer, role text, run text, turn integer, kind text)
where true
on conflict (id) do nothing

-- part: their_blocks
insert into holdfast.block (message, ordinal, type, body, blob)
select b.message, b.ordinal, b.type, b.body, b.blob
from rows(:blocks) as b (message text, ordinal integer, type text, body json, blob text)
where true
on conflict (message, ordinal) do nothing

-- name: add_made :exec on postgres
with message as (
@made_messages
)
@their_blocks;

-- name: add_made :exec on sqlite
-- Forked: SQLite has no CTE that changes rows.
@made_messages;
@their_blocks;

-- name: set_generation :exec
update holdfast.session set generation = :generation, compactions = compactions + :counted,
    updated_at = holdfast.now_us()
where id = :session;

-- name: withdraw_made :exec
-- The messages that a compaction wrote are no longer sent. This comes first, because the messages that come back
-- have the same places.
update holdfast.message set live = 0, compacted = :id where session = :session and made_by = :id and live = 1;

-- name: bring_back :exec
-- Without messages that were retired since.
update holdfast.message set live = 1, compacted = null
where session = :session and compacted = :id and (made_by is null or made_by <> :id) and retired is null;

-- name: restore_compaction :one
update holdfast.compaction set state = 'restored', restored_at = holdfast.now_us()
where id = :id and state = 'done'
returning :columns;

-- name: preserve :one
update holdfast.message set preserved = :preserved where id = :id and session = :session
returning id, preserved;

-- name: delete_compactions :exec
delete from holdfast.compaction where session = :id;
