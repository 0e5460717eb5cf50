"""The states that a run, a batch and an inquiry can be in, as the store's constraints have them."""

from __future__ import annotations

RUN_STATES = (
    *("pending", "batch_submitting", "batch_pending", "batch_processing", "streaming", "pending_tools"),
    *("awaiting_input", "completed", "cancelled", "failed"),
)
BATCH_STATES = (
    *("gathering", "submitting", "searching", "submitted", "processing", "canceling", "collecting", "ended", "failed"),
)
INQUIRY_STATES = ("open", "approved", "denied", "answered", "expired", "withdrawn")
