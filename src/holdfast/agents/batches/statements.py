"""The SQL file of batches as Python sees it."""

from __future__ import annotations

from holdfast.agents.batches.batch_rows import (
    Applied,
    BatchId,
    BatchJob,
    BatchRow,
    MovedRun,
    NewRequest,
    OpenRequest,
    RequestBody,
    RequestId,
    RequestRow,
    RequestSize,
    Trouble,
)
from holdfast.agents.rows import RowCount
from holdfast.kernel.sql import Exec, Many, One, Statements

_PACKAGE = "holdfast.agents.sql"


class BatchesSql(Statements, package=_PACKAGE, file="batches.sql", rows={"requests": NewRequest, "applied": Applied}):
    find_gathering: One[BatchId]
    open_batch: One[BatchId]
    add_requests: Exec
    find_batch: One[BatchRow]
    list_batches: Many[BatchRow]
    batch_of: One[BatchRow]
    close_gathering: One[BatchId]
    drop_requests: Exec
    drop_turn: Exec
    request_sizes: Many[RequestSize]
    move_requests: Exec
    intend: One[BatchId]
    request_bodies: Many[RequestBody]
    refused: One[Trouble]
    search: Exec
    taken_ids: Many[BatchId]
    is_request: One[RequestId]
    lock_provider_id: Exec
    take_batch: One[BatchId]
    offer_batch: One[BatchId]
    add_orphan: One[BatchId]
    agents_in: Many[BatchId]
    rekey_batch: Exec
    jobless_batches: Many[BatchJob]
    revive_batch: One[BatchId]
    split_batch: One[BatchId]
    note_download: Exec
    note_unknown: Exec
    send_requests: Exec
    runs_to_move: Many[MovedRun]
    move_runs: Many[MovedRun]
    note_poll: Exec
    note_error: Exec
    wanted_requests: One[RowCount]
    find_requests: Many[OpenRequest]
    unanswered: Many[OpenRequest]
    request_body: Many[RequestBody]
    apply_requests: Many[BatchId]
    count_applied: Exec
    kept_answer: One[RequestBody]
    settle_doubt: Exec
    take_answer: Exec
    retry_turns: Exec
    doubt_turns: Exec
    fail_batched: Exec
    end_batch: One[BatchId]
    list_requests: Many[RequestRow]
    prune_batches: Many[BatchId]
    delete_requests: Exec
    delete_batches: Exec
