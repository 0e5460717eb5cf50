-- Capsules: the rows of one run and of all runs below it, exported here and imported into another database.

-- name: kept_agents :many
select :columns
from holdfast.agent where id = any(cast(:ids as text[])) order by id;

-- name: keep_agent :exec
insert into holdfast.agent (id, tenant, name, metadata, description, version, created_at, updated_at)
values (:id, :tenant, :name, :metadata, :description, :version, :created_at, :updated_at);

-- name: kept_versions :many
select :columns
from holdfast.agent_version where agent = any(cast(:ids as text[])) order by agent, version;

-- name: keep_version :exec
insert into holdfast.agent_version (agent, version, definition, digest, created_at)
values (:agent, :version, :definition, :digest, :created_at);

-- name: kept_session :one
select :columns
from holdfast.session where id = :id;

-- name: keep_session :exec
insert into holdfast.session (id, tenant, key, metadata, runs, created_at, updated_at, during, forked_from,
    generation, depth)
values (:id, :tenant, :key, :metadata, :runs, :created_at, :updated_at, :during, :forked_from, :generation, 0);

-- name: kept_runs :many
select id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state, previous_state, parent,
    call, root, depth, input, variables, metadata, options, prompted, turns, events, outcome, stop_reason, output,
    refusal, limited, error_type, error as error_text, input_tokens, output_tokens, cache_write_tokens,
    cache_read_tokens, cost_nano, created_at, started_at, finalized_at, fallback as given_up, continued,
    forked_from, forked_at, generation
from holdfast.run where root = :root order by job;

-- name: keep_run :exec
insert into holdfast.run (id, job, session, branch, ordinal, tenant, agent, agent_name, version, mode, state,
    previous_state, parent, call, root, depth, input, variables, metadata, options, prompted, turns, events,
    outcome, stop_reason, output, refusal, limited, error_type, error, input_tokens, output_tokens,
    cache_write_tokens, cache_read_tokens, cost_nano, created_at, started_at, finalized_at, fallback, continued,
    forked_from, forked_at, generation)
values (:id, :job, :session, :branch, :ordinal, :tenant, :agent, :agent_name, :version, :mode, :state,
    :previous_state, :parent, :call, :root, :depth, :input, :variables, :metadata, :options, :prompted, :turns,
    :events, :outcome, :stop_reason, :output, :refusal, :limited, :error_type, :error_text, :input_tokens,
    :output_tokens, :cache_write_tokens, :cache_read_tokens, :cost_nano, :created_at, :started_at, :finalized_at,
    :given_up, :continued, :forked_from, :forked_at, :generation);

-- name: kept_messages :many
-- The named messages of the main branch, and all messages of other branches.
select m.id, m.session, m.branch, m.ordinal, m.role, m.run, m.turn, m.kind, m.live, m.preserved, m.created_at,
    coalesce(m.fingerprint, t.fingerprint, '') as fingerprint
from holdfast.message m
left join holdfast.turn t on t.run = m.run and t.number = m.turn and m.kind = 'answer'
where m.session = :session and (m.id = any(cast(:ids as text[])) or m.branch = any(cast(:branches as text[])))
order by m.branch, m.ordinal, m.live, m.id;

-- name: keep_message :exec
insert into holdfast.message (id, session, branch, ordinal, role, run, turn, kind, live, preserved, created_at,
    fingerprint)
values (:id, :session, :branch, :ordinal, :role, :run, :turn, :kind, :live, :preserved, :created_at, :fingerprint);

-- name: kept_turns :many
select :columns
from holdfast.turn where run = any(cast(:runs as text[])) order by run, number;

-- name: keep_turn :exec
insert into holdfast.turn (run, number, model, request_hash, fingerprint, state, attempts, unknown, failures,
    request_id, stop_reason, usage, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, cost_nano,
    error, epoch, token, started_at, ended_at, mode, generation)
values (:run, :number, :model, :request_hash, :fingerprint, :state, :attempts, :unknown, :failures, :request_id,
    :stop_reason, :usage, :input_tokens, :output_tokens, :cache_write_tokens, :cache_read_tokens, :cost_nano,
    :error, :epoch, :token, :started_at, :ended_at, :mode, :generation);

-- name: kept_calls :many
select :columns
from holdfast.tool_call where run = any(cast(:runs as text[])) order by run, turn, ordinal;

-- name: keep_call :exec
insert into holdfast.tool_call (id, run, turn, ordinal, tool_use_id, name, input, job, child, effect, state, output,
    is_error, created_at, finished_at)
values (:id, :run, :turn, :ordinal, :tool_use_id, :name, :input, :job, :child, :effect, :state, :output, :is_error,
    :created_at, :finished_at);

-- name: kept_events :many
select :columns
from holdfast.run_event where run = any(cast(:runs as text[])) order by run, seq;

-- name: keep_event :exec
insert into holdfast.run_event (run, seq, at, type, data, topic, tx)
values (:run, :seq, :at, :type, :data, :topic, 0);

-- name: kept_inquiries :many
select id, run, session, tenant, kind, call, name, digest, data, state, fallback as otherwise, asked_at, expires_at,
    decided_at, decided_by, decision
from holdfast.inquiry where run = any(cast(:runs as text[])) order by asked_at, id;

-- name: keep_inquiry :exec
insert into holdfast.inquiry (id, run, session, tenant, kind, call, name, digest, data, state, fallback, asked_at,
    expires_at, decided_at, decided_by, decision)
values (:id, :run, :session, :tenant, :kind, :call, :name, :digest, :data, :state, :otherwise, :asked_at,
    :expires_at, :decided_at, :decided_by, :decision);

-- name: kept_steers :many
select :columns
from holdfast.steer where run = any(cast(:runs as text[])) order by run, ordinal;

-- name: keep_steer :exec
insert into holdfast.steer (id, run, ordinal, body, sent_at, turn)
values (:id, :run, :ordinal, :body, :sent_at, :turn);

-- name: kept_jobs :many
select seq, cast(id as text) as job_id, kind, queue, route, tenant, state, priority, attempts, max_attempts, rescues, max_rescues,
    timeout_us, created_at, finished_at, parent, payload, metadata, result, error
from holdfast.job_now where seq = any(cast(:seqs as bigint[])) order by seq;

-- name: keep_job :one
-- With a new number; `end_kept_job` ends it.
insert into holdfast.job (id, kind, queue, route, tenant, priority, max_attempts, max_rescues, timeout_us,
    created_at, parent, payload, metadata, layer)
values (:job_id, :kind, :queue, :route, :tenant, :priority, :max_attempts, :max_rescues, :timeout_us,
    :created_at, :parent, :payload, :metadata, 'agents')
returning seq;

-- part: end_job
-- A capsule does not contain attempts.
insert into holdfast.ended (seq, token, finished_at, attempts, rescues, state, queue, result, error)
values (:seq, 0, :finished_at, :attempts, :rescues, :state, :queue, :result, :error)

-- name: end_kept_job :exec on postgres
with withdrawn as (
    delete from holdfast.ready where route = :route and priority = :priority and slot = 0 and seq = :seq
)
@end_job;

-- name: end_kept_job :exec on sqlite
-- Forked: SQLite has no CTE that changes rows. A trigger has made the new job ready.
delete from holdfast.ready where route = :route and priority = :priority and slot = 0 and seq = :seq;
@end_job;
