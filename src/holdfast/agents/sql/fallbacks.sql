-- Models that are given up for the next one.

-- name: give_up :one
-- No row: this very change has been made already, and its answer was lost.
update holdfast.run set fallback = fallback + 1, progressed_at = holdfast.now_us()
where id = :run and fallback = :given_up and finalized_at is null
returning fallback as n;

-- name: renew_turn :exec
-- The next model has its own attempts and its own time.
update holdfast.turn set failures = 0, started_at = holdfast.now_us()
where run = :run and number = :number and state = 'failed';

-- name: retire_answer :exec
-- Kept, and never sent again; what was asked stays.
update holdfast.message set live = 0 where id = :id and live = 1;
