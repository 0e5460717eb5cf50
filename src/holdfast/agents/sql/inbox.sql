-- The inbox of an active run: messages for its next turn, and the request to stop.

-- name: add_steer :exec
-- The caller has locked the run's job, so the next number is free.
insert into holdfast.steer (id, run, ordinal, body, sent_at)
select :id, :run, 1 + coalesce(max(ordinal), 0), :body, holdfast.now_us() from holdfast.steer where run = :run
on conflict (id) do nothing;

-- name: find_steer :one
select id, run, body from holdfast.steer where id = :id;

-- name: open_steers :many
select id, run, body from holdfast.steer where run = :run and turn is null order by ordinal;

-- name: take_steers :exec
update holdfast.steer set turn = :turn where id = any(cast(:ids as text[])) and turn is null;

-- name: prune_steers :exec
-- Messages that were read long ago are in the history.
delete from holdfast.steer where turn is not null and sent_at < holdfast.now_us() - :age_us;

-- name: mail :one
-- What has arrived for a run since it was loaded.
select r.interrupted, case when exists (select 1 from holdfast.steer i where i.run = r.id and i.turn is null)
    then 1 else 0 end as steered
from holdfast.run r where r.id = :run;

-- name: mails :many
-- The same for many runs: those for which something has arrived.
select r.id as run, r.interrupted, case when exists (select 1 from holdfast.steer i where i.run = r.id and i.turn is null)
    then 1 else 0 end as steered
from holdfast.run r where r.id = any(cast(:runs as text[]))
    and (r.interrupted is not null or exists (select 1 from holdfast.steer i where i.run = r.id and i.turn is null));

-- name: interrupt :one
-- A hint and the next sign of life tell the worker that streams the run.
update holdfast.run set interrupted = :by where id = :run and finalized_at is null and interrupted is null
returning id, 1 as interrupted;

-- name: current_run :one
-- The run of a session that is active or comes next.
select r.id, r.job, r.session, r.branch, r.ordinal, r.agent_name, r.state, r.prompted, r.turns, r.parent, r.input,
    j.state as job_state, j.channel, r.agent
from holdfast.run r join holdfast.job_now j on j.seq = r.job
where r.session = :session and r.parent is null and r.finalized_at is null
order by r.ordinal limit 1;

-- name: last_accepted :one
-- The run of a session that was accepted last and has not ended.
select r.id, r.job, r.session, r.branch, r.ordinal, r.agent_name, r.state, r.prompted, r.turns, r.parent, r.input,
    j.state as job_state, j.channel, r.agent
from holdfast.run r join holdfast.job_now j on j.seq = r.job
where r.session = :session and r.parent is null and r.finalized_at is null
order by r.ordinal desc limit 1;

-- name: this_run :one
select r.id, r.job, r.session, r.branch, r.ordinal, r.agent_name, r.state, r.prompted, r.turns, r.parent, r.input,
    j.state as job_state, j.channel, r.agent
from holdfast.run r join holdfast.job_now j on j.seq = r.job
where r.id = :run and r.finalized_at is null;

-- name: note_prompted :exec
-- Stores the generation of the history before the run: the run may end without a turn that says so.
update holdfast.run set prompted = 1, generation = :generation where id = :run;
