-- Models that are given up in favour of the next one.

-- name: give_up :one
-- No row is returned if this change was made already and its answer was lost.
update holdfast.run set fallback = fallback + 1, progressed_at = holdfast.now_us()
where id = :run and fallback = :given_up and finalized_at is null
returning fallback as n;

-- name: renew_turn :exec
-- The next model has its own attempts and its own time.
update holdfast.turn set failures = 0, started_at = holdfast.now_us()
where run = :run and number = :number and state = 'failed';

-- name: retire_answer :exec
-- Kept, and never sent again. The question stays.
update holdfast.message set live = 0 where id = :id and live = 1;

-- name: last_failure :one
-- What happened to the last call of the turn, as far as that is known.
select error, holdfast.now_us() as now from holdfast.turn where run = :run and number = :number;
