-- Content that a provider refuses, and content that is taken out of a conversation.

-- name: failed_turn :one
-- Why the last call of a run was not answered.
select error from holdfast.turn where run = :run and number = :number and state = 'failed';

-- name: unaccepted :many
-- Messages since the last answer: no provider has accepted them yet. A summary stands for accepted messages.
select :columns(m) from holdfast.message m
where m.session = :session and m.branch = '' and m.live = 1 and m.kind <> 'summary'
    and m.ordinal > coalesce((select max(a.ordinal) from holdfast.message a
        where a.session = :session and a.branch = '' and a.kind = 'answer' and (a.live = 1 or a.compacted is not null)), 0)
order by m.ordinal;

-- name: retire_messages :exec
-- Kept, and never sent again.
update holdfast.message set live = 0 where id = any(cast(:ids as text[])) and live = 1;

-- name: refuse_result :exec
-- Changes what the model reads about a call. The call's job still has what the tool returned.
update holdfast.tool_call set output = :output, is_error = 1
where run = :run and turn = :turn and tool_use_id = :use;

-- name: lock_blobs_of :many
-- Locks the blobs that the blocks of a message name. A caller that is about to name one of them comes before or
-- after the whole transaction.
select b.hash from holdfast.blob b
where b.hash in (select l.blob from holdfast.block l where l.message = :message and l.blob is not null)
order by b.hash for update;

-- name: rewrite_block :exec
update holdfast.block set body = :body, blob = null where message = :message and ordinal = :ordinal;

-- name: find_message :one
select :columns from holdfast.message where id = :id and session = :session;

-- name: open_run :one
-- A run of a session that has not ended, whether it has begun or not.
select id from holdfast.run where session = :session and parent is null and finalized_at is null
order by ordinal limit 1;

-- name: retire_exchange :many
-- All messages of a run in the main branch of a session, including those that a compaction took out: they do not
-- come back when the compaction is undone. Of a summary the run has only the place.
update holdfast.message set live = 0, retired = (select s.runs from holdfast.session s where s.id = :session)
where session = :session and branch = '' and run = :run and kind <> 'summary'
    and (live = 1 or (compacted is not null and retired is null))
returning id, ordinal, made_by;

-- name: outdate_thinking :exec
-- Thinking is valid only after exactly the same messages. The mark is followed by what it was valid for, for readers
-- of the history as it was.
update holdfast.message set fingerprint = :mark || coalesce(fingerprint, (
        select t.fingerprint from holdfast.turn t where t.run = message.run and t.number = message.turn), '')
where session = :session and branch = '' and kind = 'answer' and ordinal > :after
    and (fingerprint is null or substr(fingerprint, 1, length(cast(:mark as text))) <> :mark);
