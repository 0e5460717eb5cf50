"""The statements of `cancel.sql`, as Python sees them."""

from __future__ import annotations

from holdfast.kernel.rows import Cancellation, CancelRequested, Kin, Moved, Seq
from holdfast.kernel.sql import Exec, Many, One, Statements


class CancelSql(Statements, file="cancel.sql", types={"id": "uuid", "error": "json"}):
    find_cancellable: One[Kin]
    cancel: Many[Moved]
    request_cancel: Many[CancelRequested]
    open_cancellation: Exec
    cancellable_ready: Many[Seq]
    cancellable_later: Many[Seq]
    cancellable_running: Many[Seq]
    next_cancellations: Many[Cancellation]
    cancellable_children: Many[Kin]
    pass_cancellation: Exec
    close_cancellation: Exec
