-- Batches: turns of many runs that are sent to the provider together. A batch's job writes everything under its
-- lease.

-- name: find_gathering :one
-- Locked until the caller, which adds requests, commits: a closed batch contains all requests that were added.
select id from holdfast.batch where lane = :lane and state = 'gathering' for share;

-- name: open_batch :one
insert into holdfast.batch (id, lane, model, credential, state, job, created_at)
values (:id, :lane, :model, :credential, 'gathering', :id, holdfast.now_us())
on conflict (lane) where state = 'gathering' do nothing
returning id;

-- name: add_requests :exec
insert into holdfast.batch_request (custom_id, batch, run, job, turn, attempt, body, bytes, state, created_at)
select r.custom_id, r.batch, r.run, r.job, r.turn, r.attempt, r.body, r.bytes, 'waiting', holdfast.now_us()
from rows(:requests) as r (custom_id text, batch text, run text, job bigint, turn integer, attempt integer, body json,
    bytes integer)
where true
on conflict (custom_id) do nothing;

-- name: find_batch :one
-- The size of a batch that was not submitted is the number of its requests.
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
select :columns(b)
from holdfast.batch_request q join holdfast.batch b on b.id = q.batch
where q.run = :run and q.state in ('waiting', 'sent') limit 1;

-- name: close_gathering :one
-- A caller that wants to add a request now finds the batch closed and opens another.
update holdfast.batch set state = 'submitting' where id = :id and state = 'gathering' returning id;

-- name: drop_requests :exec
-- Requests of runs that have ended since: nobody waits for them any more.
update holdfast.batch_request set state = 'dropped', body = null
where batch = :batch and state = 'waiting'
    and exists (select 1 from holdfast.run r where r.id = batch_request.run and r.finalized_at is not null);

-- name: drop_turn :exec
-- The run asks the turn again, so its requests that were not submitted are dropped.
update holdfast.batch_request set state = 'dropped', body = null
where run = :run and turn = :turn and state = 'waiting';

-- name: request_sizes :many
select custom_id, bytes from holdfast.batch_request where batch = :batch and state in ('waiting', 'sent') order by custom_id;

-- name: move_requests :exec
-- Into another batch, which is submitted next.
update holdfast.batch_request set batch = :into where custom_id = any(cast(:ids as text[])) and state = 'waiting';

-- name: intend :one
-- The intent, stored before the submit: from now on the provider may have the batch.
update holdfast.batch set state = 'submitting', size = :size, bytes = :bytes, attempts = attempts + 1,
    intent_at = holdfast.now_us()
where id = :id and state = 'submitting' and provider_id is null and intent_at is null
returning id;

-- name: request_bodies :many
select custom_id, body from holdfast.batch_request
where batch = :batch and state in ('waiting', 'sent') and custom_id > :after order by custom_id limit :limit;

-- name: refused :one
-- The provider has not taken the batch, so it may be submitted again. Returns for how long the provider has refused.
update holdfast.batch set state = 'submitting', intent_at = null, error = :error,
    troubled_at = case when :troubled = 1 then coalesce(troubled_at, holdfast.now_us()) end
where id = :id and state in ('submitting', 'searching') and provider_id is null
returning coalesce(holdfast.now_us() - troubled_at, 0) as us;

-- name: search :exec
-- It is unknown whether the provider has the batch.
update holdfast.batch set state = 'searching', unknown = unknown + :unknown, held = :held, error = :error
where id = :id and state in ('submitting', 'searching') and provider_id is null;

-- name: taken_ids :many
select provider_id as id from holdfast.batch where provider_id = any(cast(:ids as text[]));

-- name: is_request :one
select custom_id from holdfast.batch_request where custom_id = :custom_id and batch = :batch;

-- name: lock_provider_id :exec on postgres
-- Two batches that are looked for may take one of the provider's at once: the second must see what the first has stored.
select length(cast(pg_advisory_xact_lock(hashtextextended(:provider_id, 2)) as text)) as locked;

-- name: lock_provider_id :exec on sqlite
-- Forked: there is one writer, so nothing is to be locked.
select null as locked where :provider_id is null;

-- name: take_batch :one
-- The provider has the batch under this id, and no other of ours has it.
update holdfast.batch set provider_id = :provider_id, state = 'submitted', submitted_at = holdfast.now_us(), held = null,
    error = null
where id = :id and state in ('submitting', 'searching') and provider_id is null
    and not exists (select 1 from holdfast.batch o where o.provider_id = :provider_id)
returning id;

-- name: offer_batch :one
-- Called by an attempt that has lost its lease and now knows that the provider has the batch. It is in time if
-- nothing else was submitted since.
update holdfast.batch set provider_id = :provider_id, state = 'submitted', submitted_at = holdfast.now_us(), held = null
where id = :id and provider_id is null and (state = 'searching' or (state = 'submitting' and intent_at is not null))
    and not exists (select 1 from holdfast.batch o where o.provider_id = :provider_id)
returning id;

-- name: add_orphan :one
-- A batch at the provider that nobody needs any more: its job cancels it and watches it until it has ended.
insert into holdfast.batch (id, lane, model, credential, state, job, provider_id, created_at, submitted_at, error)
select :id, b.lane, b.model, b.credential, 'canceling', :id, :provider_id, holdfast.now_us(), holdfast.now_us(), :error
from holdfast.batch b where b.id = :batch
on conflict do nothing
returning id;

-- name: agents_in :many
-- The agents whose turns wait in a batch.
select distinct r.agent_name as id from holdfast.batch_request q join holdfast.run r on r.id = q.run
where q.batch = :batch and q.state in ('waiting', 'sent');

-- name: rekey_batch :exec
-- The batch continues under another key.
update holdfast.batch set credential = :credential, lane = :lane, error = null
where id = :id and state not in ('gathering', 'ended', 'failed');

-- name: jobless_batches :many
-- Active batches whose job has ended: no job would ever read them again. The condition reads one value for each,
-- because `not exists` may be planned as a join.
select b.id, b.job from holdfast.batch b
where b.ended_at is null and (select j.seq from holdfast.job j
    where j.id = cast(b.job as uuid) and (select e.seq from holdfast.ended e where e.seq = j.seq) is null) is null
order by b.id limit :limit;

-- name: revive_batch :one
update holdfast.batch set job = :job where id = :id and job = :before and ended_at is null returning id;

-- name: split_batch :one
-- A new batch for one half of the requests of another.
insert into holdfast.batch (id, lane, model, credential, state, job, created_at)
select :id, b.lane, b.model, b.credential, 'submitting', :id, holdfast.now_us() from holdfast.batch b where b.id = :batch
on conflict do nothing
returning id;

-- name: note_download :exec
update holdfast.batch set held = :held, error = :error, polled_at = holdfast.now_us() where id = :id;

-- name: note_unknown :exec
-- The result of a submit is unknown, and its requests are sent again: they may have been paid for already.
update holdfast.turn set unknown = unknown + 1
where state = 'batched' and exists (select 1 from holdfast.batch_request q
    where q.batch = :batch and q.state in ('waiting', 'sent') and q.run = turn.run and q.turn = turn.number);

-- name: send_requests :exec
update holdfast.batch_request set state = 'sent' where batch = :batch and state = 'waiting';

-- name: runs_to_move :many
-- Runs of a batch that are still in a given state, some at a time.
select :columns(r)
from holdfast.batch_request q join holdfast.run r on r.id = q.run
where q.batch = :batch and q.state in ('waiting', 'sent') and r.state = :state
order by r.id limit :limit;

-- name: move_runs :many
update holdfast.run set previous_state = state, state = :state, progressed_at = holdfast.now_us()
where id = any(cast(:ids as text[])) and state = :before and finalized_at is null
returning id, session, agent_name, parent, previous_state as state, agent;

-- name: note_poll :exec
update holdfast.batch set state = :state, polls = polls + 1, polled_at = holdfast.now_us(), counts = :counts, error = null
where id = :id and state in ('submitted', 'processing', 'canceling');

-- name: note_error :exec
update holdfast.batch set error = :error, polls = polls + 1 where id = :id;

-- name: wanted_requests :one
-- How many runs of a batch still wait for it.
select count(*) as n from (select 1 as one from holdfast.batch_request q join holdfast.run r on r.id = q.run
    where q.batch = :batch and q.state in ('waiting', 'sent') and r.finalized_at is null limit 1) as o;

-- name: find_requests :many
-- Requests without an applied result, with the state and the failures of their turns.
select q.custom_id, q.batch, q.run, q.job, q.turn, q.attempt, t.state as turn_state, t.failures, t.model
from holdfast.batch_request q join holdfast.turn t on t.run = q.run and t.number = q.turn
where q.custom_id = any(cast(:ids as text[])) and q.state in ('waiting', 'sent');

-- name: unanswered :many
-- Requests of a batch for which the provider has returned no result.
select q.custom_id, q.batch, q.run, q.job, q.turn, q.attempt, t.state as turn_state, t.failures, t.model
from holdfast.batch_request q join holdfast.turn t on t.run = q.run and t.number = q.turn
where q.batch = :batch and q.state in ('waiting', 'sent') order by q.custom_id limit :limit;

-- name: request_body :many
select custom_id, body from holdfast.batch_request where custom_id = any(cast(:ids as text[]));

-- name: apply_requests :many
-- Each request is applied once. Its body is then removed, unless it is an answer that is kept for a worker of the
-- program that made the run. Returns the batch of each.
update holdfast.batch_request set state = case when a.body is null then 'applied' else 'answered' end,
    outcome = a.outcome, body = a.body
from rows(:applied) as a (custom_id text, outcome text, body json)
where batch_request.custom_id = a.custom_id and batch_request.state in ('waiting', 'sent')
returning batch_request.batch as id;

-- name: count_applied :exec
update holdfast.batch set applied = applied + :n where id = :id;

-- name: kept_answer :one
-- The answer to a turn that a worker of another program stored.
select q.custom_id, q.body from holdfast.batch_request q join holdfast.turn t on t.run = q.run and t.number = q.turn
where q.run = :run and q.turn = :turn and q.state = 'answered' and t.state = 'batched' order by q.attempt desc limit 1;

-- name: settle_doubt :exec
-- It was unknown whether the answer is paid for until somebody stored it.
update holdfast.turn set unknown = unknown - 1
where exists (select 1 from holdfast.batch_request q where q.custom_id = :custom_id and q.state = 'answered'
    and q.run = turn.run and q.turn = turn.number);

-- name: take_answer :exec
update holdfast.batch_request set state = 'applied', body = null where custom_id = :custom_id and state = 'answered';

-- name: retry_turns :exec
-- The turns are tried again, and this attempt counts as failed.
update holdfast.turn set attempts = attempts + 1, failures = failures + 1, unknown = unknown + :unknown, error = :error
where run = any(cast(:runs as text[])) and state = 'batched';

-- name: doubt_turns :exec
-- The result of their last request is unknown: it may have been paid for. At most one turn of a run is open.
update holdfast.turn set unknown = unknown + 1
where run = any(cast(:runs as text[])) and state in ('batched', 'failed');

-- name: fail_batched :exec
update holdfast.turn set state = 'failed', failures = failures + 1, error = :error, ended_at = holdfast.now_us()
where run = :run and number = :number and state = 'batched';

-- name: end_batch :one
update holdfast.batch set state = :state, ended_at = holdfast.now_us(), error = coalesce(:error, error)
where id = :id and (state = 'submitting' or (state = 'collecting' and cast(:state as text) = 'ended'))
returning id;

-- name: list_requests :many
select :columns from holdfast.batch_request
where batch = :batch and custom_id > :after order by custom_id limit :limit;

-- name: prune_batches :many
-- Batches that ended long ago.
select id from holdfast.batch where ended_at < holdfast.now_us() - :age_us order by ended_at limit :limit;

-- name: delete_requests :exec
delete from holdfast.batch_request where batch = any(cast(:ids as text[]));

-- name: delete_batches :exec
delete from holdfast.batch where id = any(cast(:ids as text[]));
