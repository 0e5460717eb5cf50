"""The statements of `queues.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.flow_rows import FinishedCount, LaneRow, PausedQueue, QueueCount, QueueRow
from holdfast.kernel.sql import Exec, Many, One, Statements


class QueuesSql(Statements, file="queues.sql"):
    set_queue: Exec
    pause_queue: One[PausedQueue]
    resume_queue: One[PausedQueue]
    find_queue: One[QueueRow]
    list_queues: Many[QueueRow]
    count_pending: Many[QueueCount]
    count_later: Many[QueueCount]
    count_blocked: Many[QueueCount]
    count_running: Many[QueueCount]
    count_finished: Many[FinishedCount]
    list_lanes: Many[LaneRow]
