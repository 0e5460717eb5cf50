-- Batches: turns of many runs that go to the provider together. Whatever a batch's job writes, it writes under its lease.

-- name: find_gathering :one on postgres
-- Held until whoever adds to it commits: a batch that is closed has all that was added.
select id from holdfast.batch where lane = :lane and state = 'gathering' for share;

-- name: find_gathering :one on sqlite
-- The transaction holds the write lock already.
select id from holdfast.batch where lane = :lane and state = 'gathering';

-- name: open_batch :one
insert into holdfast.batch (id, lane, model, credential, state, job, created_at)
values (:id, :lane, :model, :credential, 'gathering', :id, holdfast.now_us())
on conflict (lane) where state = 'gathering' do nothing
returning id;

-- name: add_requests :exec on postgres
insert into holdfast.batch_request (custom_id, batch, run, job, turn, attempt, body, bytes, state, created_at)
select r.custom_id, r.batch, r.run, r.job, r.turn, r.attempt, r.body, r.bytes, 'waiting', holdfast.now_us()
from unnest(cast(:requests.custom_id as text[]), cast(:requests.batch as text[]), cast(:requests.run as text[]),
    cast(:requests.job as bigint[]), cast(:requests.turn as integer[]), cast(:requests.attempt as integer[]),
    cast(:requests.body as json[]), cast(:requests.bytes as integer[]))
    as r (custom_id, batch, run, job, turn, attempt, body, bytes)
on conflict (custom_id) do nothing;

-- name: add_requests :exec on sqlite
-- Forked for the list of records.
insert into holdfast.batch_request (custom_id, batch, run, job, turn, attempt, body, bytes, state, created_at)
select value ->> :requests.custom_id, value ->> :requests.batch, value ->> :requests.run, value ->> :requests.job,
    value ->> :requests.turn, value ->> :requests.attempt, value ->> :requests.body, value ->> :requests.bytes, 'waiting',
    holdfast.now_us()
from json_each(:requests) where true
on conflict (custom_id) do nothing;

-- name: find_batch :one
-- What has not been submitted is as large as the number of its requests.
select id, lane, model, credential, state, provider_id,
    case when intent_at is not null or provider_id is not null or ended_at is not null then size
        else cast((select count(*) from holdfast.batch_request q
            where q.batch = batch.id and q.state in ('waiting', 'sent')) as integer) end as size,
    bytes, applied, attempts, unknown, held, counts, error, polls, created_at, intent_at, submitted_at, polled_at, ended_at, holdfast.now_us() as now
from holdfast.batch where id = :id;

-- name: list_batches :many
select id, lane, model, credential, state, provider_id,
    case when intent_at is not null or provider_id is not null or ended_at is not null then size
        else cast((select count(*) from holdfast.batch_request q
            where q.batch = batch.id and q.state in ('waiting', 'sent')) as integer) end as size,
    bytes, applied, attempts, unknown, held, counts, error, polls, created_at, intent_at, submitted_at, polled_at, ended_at, holdfast.now_us() as now
from holdfast.batch
where (cast(:state as text) is null or state = :state) and (created_at, id) < (:before_at, :before)
order by created_at desc, id desc limit :limit;

-- name: batch_of :one
-- The batch that a run waits for.
select b.id, b.lane, b.model, b.credential, b.state, b.provider_id, b.size, b.bytes, b.applied, b.attempts, b.unknown,
    b.held, b.counts, b.error, b.polls, b.created_at, b.intent_at, b.submitted_at, b.polled_at, b.ended_at,
    holdfast.now_us() as now
from holdfast.batch_request q join holdfast.batch b on b.id = q.batch
where q.run = :run and q.state in ('waiting', 'sent') limit 1;

-- name: close_gathering :one
-- Whoever adds to it now finds it closed and opens another.
update holdfast.batch set state = 'submitting' where id = :id and state = 'gathering' returning id;

-- name: drop_requests :exec
-- Of runs that have ended meanwhile: nobody waits for them any more.
update holdfast.batch_request set state = 'dropped', body = null
where batch = :batch and state = 'waiting'
    and exists (select 1 from holdfast.run r where r.id = batch_request.run and r.finalized_at is not null);

-- name: drop_turn :exec
-- A turn is asked anew: what was not submitted of it need not be.
update holdfast.batch_request set state = 'dropped', body = null
where run = :run and turn = :turn and state = 'waiting';

-- name: request_sizes :many
select custom_id, bytes from holdfast.batch_request where batch = :batch and state in ('waiting', 'sent') order by custom_id;

-- name: move_requests :exec
-- Into another batch, which is the next to be submitted.
update holdfast.batch_request set batch = :into where custom_id = any(cast(:ids as text[])) and state = 'waiting';

-- name: intend :one
-- The intent, before the submit: from here on the provider may have it.
update holdfast.batch set state = 'submitting', size = :size, bytes = :bytes, attempts = attempts + 1,
    intent_at = holdfast.now_us()
where id = :id and provider_id is null and intent_at is null
returning id;

-- name: request_bodies :many
select custom_id, body from holdfast.batch_request
where batch = :batch and state in ('waiting', 'sent') and custom_id > :after order by custom_id limit :limit;

-- name: refused :one
-- The provider has not taken it: it may be submitted again. Says for how long the provider has taken nothing.
update holdfast.batch set state = 'submitting', intent_at = null, error = :error,
    troubled_at = case when :troubled = 1 then coalesce(troubled_at, holdfast.now_us()) end
where id = :id and provider_id is null
returning coalesce(holdfast.now_us() - troubled_at, 0) as us;

-- name: search :exec
-- Whether the provider has it is not known.
update holdfast.batch set state = 'searching', unknown = unknown + :unknown, held = :held, error = :error
where id = :id and provider_id is null;

-- name: taken_ids :many
select provider_id as id from holdfast.batch where provider_id = any(cast(:ids as text[]));

-- name: is_request :one
select custom_id from holdfast.batch_request where custom_id = :custom_id and batch = :batch;

-- name: take_batch :one
-- The provider has it, under this id.
update holdfast.batch set provider_id = :provider_id, state = 'submitted', submitted_at = holdfast.now_us(), held = null,
    error = null
where id = :id and provider_id is null
returning id;

-- name: offer_batch :one
-- By one who was overtaken and knows now that the provider has it; in time, if nothing else was submitted since.
update holdfast.batch set provider_id = :provider_id, state = 'submitted', submitted_at = holdfast.now_us(), held = null
where id = :id and provider_id is null and (state = 'searching' or (state = 'submitting' and intent_at is not null))
returning id;

-- name: add_orphan :one
-- A batch at the provider that nobody needs any more: it is cancelled, and looked after until it has ended.
insert into holdfast.batch (id, lane, model, credential, state, job, provider_id, created_at, submitted_at, error)
select :id, b.lane, b.model, b.credential, 'canceling', :id, :provider_id, holdfast.now_us(), holdfast.now_us(), :error
from holdfast.batch b where b.id = :batch
on conflict do nothing
returning id;

-- name: agents_in :many
-- Whose turns wait in a batch.
select distinct r.agent_name as id from holdfast.batch_request q join holdfast.run r on r.id = q.run
where q.batch = :batch and q.state in ('waiting', 'sent');

-- name: rekey_batch :exec
-- It goes on under another key.
update holdfast.batch set credential = :credential, lane = :lane, error = null
where id = :id and state not in ('gathering', 'ended', 'failed');

-- name: jobless_batches :many on postgres
-- Batches under way whose job has ended: nobody would ever look at them again.
select b.id, b.job from holdfast.batch b
where b.ended_at is null and not exists (select 1 from holdfast.job j
    where j.id = cast(b.job as uuid) and j.state in ('scheduled', 'pending', 'running', 'waiting'))
order by b.id limit :limit;

-- name: jobless_batches :many on sqlite
-- Ids of jobs are text here.
select b.id, b.job from holdfast.batch b
where b.ended_at is null and not exists (select 1 from holdfast.job j
    where j.id = b.job and j.state in ('scheduled', 'pending', 'running', 'waiting'))
order by b.id limit :limit;

-- name: revive_batch :one
update holdfast.batch set job = :job where id = :id and job = :before and ended_at is null returning id;

-- name: split_batch :one
-- A batch of its own for one half of the requests of another.
insert into holdfast.batch (id, lane, model, credential, state, job, created_at)
select :id, b.lane, b.model, b.credential, 'submitting', :id, holdfast.now_us() from holdfast.batch b where b.id = :batch
on conflict do nothing
returning id;

-- name: note_download :exec
update holdfast.batch set held = :held, error = :error, polled_at = holdfast.now_us() where id = :id;

-- name: note_unknown :exec
-- What became of a submit is not known, and its requests are asked again: they may have been bought.
update holdfast.turn set unknown = unknown + 1
where state = 'batched' and exists (select 1 from holdfast.batch_request q
    where q.batch = :batch and q.state in ('waiting', 'sent') and q.run = turn.run and q.turn = turn.number);

-- name: send_requests :exec
update holdfast.batch_request set state = 'sent' where batch = :batch and state = 'waiting';

-- name: runs_to_move :many
-- Runs of a batch that are in one state yet, some at a time.
select r.id, r.session, r.agent_name, r.parent, r.state from holdfast.batch_request q join holdfast.run r on r.id = q.run
where q.batch = :batch and q.state in ('waiting', 'sent') and r.state = :state
order by r.id limit :limit;

-- name: move_runs :many
update holdfast.run set previous_state = state, state = :state, progressed_at = holdfast.now_us()
where id = any(cast(:ids as text[])) and state = :before and finalized_at is null
returning id, session, agent_name, parent, previous_state as state;

-- name: note_poll :exec
update holdfast.batch set state = :state, polls = polls + 1, polled_at = holdfast.now_us(), counts = :counts, error = null
where id = :id and state not in ('ended', 'failed');

-- name: note_error :exec
update holdfast.batch set error = :error, polls = polls + 1 where id = :id;

-- name: wanted_requests :one
-- How many of a batch's runs still wait for it.
select count(*) as n from (select 1 as one from holdfast.batch_request q join holdfast.run r on r.id = q.run
    where q.batch = :batch and q.state in ('waiting', 'sent') and r.finalized_at is null limit 1) as o;

-- name: find_requests :many
-- Those that nothing has been applied to yet, with what their turns have been through.
select q.custom_id, q.batch, q.run, q.job, q.turn, q.attempt, t.state as turn_state, t.failures, t.model
from holdfast.batch_request q join holdfast.turn t on t.run = q.run and t.number = q.turn
where q.custom_id = any(cast(:ids as text[])) and q.state in ('waiting', 'sent');

-- name: unanswered :many
-- Requests of a batch to which the provider has said nothing.
select q.custom_id, q.batch, q.run, q.job, q.turn, q.attempt, t.state as turn_state, t.failures, t.model
from holdfast.batch_request q join holdfast.turn t on t.run = q.run and t.number = q.turn
where q.batch = :batch and q.state in ('waiting', 'sent') order by q.custom_id limit :limit;

-- name: request_body :many
select custom_id, body from holdfast.batch_request where custom_id = any(cast(:ids as text[]));

-- name: apply_requests :exec on postgres
-- Each once; its body is needed no more, unless it is an answer that is kept for a worker of its own program.
with applied as (
    update holdfast.batch_request q set state = case when a.body is null then 'applied' else 'answered' end,
        outcome = a.outcome, body = a.body
    from unnest(cast(:applied.custom_id as text[]), cast(:applied.outcome as text[]), cast(:applied.body as json[]))
        as a (custom_id, outcome, body)
    where q.custom_id = a.custom_id and q.state in ('waiting', 'sent')
    returning q.batch
)
update holdfast.batch b set applied = b.applied + n.n
from (select batch, count(*) as n from applied group by batch) as n where b.id = n.batch;

-- name: apply_requests :exec on sqlite
-- No data-modifying CTE here.
update holdfast.batch as b set applied = b.applied + n.n
from (select q.batch, count(*) as n from json_each(:applied) cross join holdfast.batch_request q
        on q.custom_id = value ->> :applied.custom_id
    where q.state in ('waiting', 'sent') group by q.batch) as n
where b.id = n.batch;
update holdfast.batch_request as q set state = case when value ->> :applied.body is null then 'applied' else 'answered' end,
    outcome = value ->> :applied.outcome, body = value ->> :applied.body
from json_each(:applied) where q.custom_id = value ->> :applied.custom_id and q.state in ('waiting', 'sent');

-- name: kept_answer :one
-- The answer to a turn that another program's worker brought.
select q.custom_id, q.body from holdfast.batch_request q join holdfast.turn t on t.run = q.run and t.number = q.turn
where q.run = :run and q.turn = :turn and q.state = 'answered' and t.state = 'batched' order by q.attempt desc limit 1;

-- name: settle_doubt :exec
-- Whether the answer is paid for was in doubt as long as nobody had stored it.
update holdfast.turn set unknown = unknown - 1
where exists (select 1 from holdfast.batch_request q where q.custom_id = :custom_id and q.state = 'answered'
    and q.run = turn.run and q.turn = turn.number);

-- name: take_answer :exec
update holdfast.batch_request set state = 'applied', body = null where custom_id = :custom_id and state = 'answered';

-- name: retry_turns :exec
-- Tried once more: that attempt counts as one that failed.
update holdfast.turn set attempts = attempts + 1, failures = failures + 1, unknown = unknown + :unknown, error = :error
where run = any(cast(:runs as text[])) and state = 'batched';

-- name: doubt_turns :exec
-- What became of their last request is not known: it may have been bought. Of a run's turns one at most is open.
update holdfast.turn set unknown = unknown + 1
where run = any(cast(:runs as text[])) and state in ('batched', 'failed');

-- name: fail_batched :exec
update holdfast.turn set state = 'failed', failures = failures + 1, error = :error, ended_at = holdfast.now_us()
where run = :run and number = :number and state = 'batched';

-- name: end_batch :one
update holdfast.batch set state = :state, ended_at = holdfast.now_us(), error = coalesce(:error, error)
where id = :id and ended_at is null
returning id;

-- name: list_requests :many
select custom_id, run, turn, attempt, bytes, state, outcome, created_at from holdfast.batch_request
where batch = :batch and custom_id > :after order by custom_id limit :limit;

-- name: prune_batches :many
-- Batches that ended long ago.
select id from holdfast.batch where ended_at < holdfast.now_us() - :age_us order by ended_at limit :limit;

-- name: delete_requests :exec
delete from holdfast.batch_request where batch = any(cast(:ids as text[]));

-- name: delete_batches :exec
delete from holdfast.batch where id = any(cast(:ids as text[]));
