"""Holdfast: durable jobs and agents on the database you already have."""

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, LeaseLost, RunFailed
from holdfast.jobs import Job
from holdfast.kernel.retry import RetryPolicy as Retry
from holdfast.outcomes import Cancel, Discard, Snooze
from holdfast.queues import Queue
from holdfast.settings import Settings
from holdfast.workers.context import JobContext

__all__ = [
    "Cancel",
    "Discard",
    "Holdfast",
    "HoldfastError",
    "Job",
    "JobContext",
    "LeaseLost",
    "Queue",
    "Retry",
    "RunFailed",
    "Settings",
    "Snooze",
]
