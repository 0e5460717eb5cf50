"""The words of a run: which state of a job is which status, and what a run looks like as a dict."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from holdfast.kernel import codec
from holdfast.kernel.broker_rows import Alias
from holdfast.kernel.rows import AttemptRow, JobRow
from holdfast.kernel.states import State
from holdfast.values.times import moment

RunStatus = Literal[
    "queued", "running", "completed", "failed", "cancel_requested", "cancelled", "needs_review", "pruned"
]
POISONED = "rescue_failed"  # the type of error of a job that lost its lease too often

OUTCOMES = {"succeeded": "completed", "failed": "failed", "cancelled": "cancelled", "lost": "lost"}


class SeenRun(NamedTuple):
    """A run as it stands; without a job when retention has removed it."""

    alias: Alias
    job: JobRow | None
    owner: str | None
    attempts: int

    @property
    def status(self) -> RunStatus:
        return "pruned" if self.job is None else status_of(self.job)

    @property
    def ended(self) -> bool:
        return self.job is None or self.job.finished_at is not None

    def as_dict(self) -> dict[str, Any]:
        asked = {} if self.job is None else codec.decode(self.job.payload)
        until = None if self.job is None else self.job.lease_until
        return {
            "run_id": self.alias.name,
            "status": self.status,
            "last_job_prompt": asked.get("prompt"),
            "workspace_dir": asked.get("workspace_dir"),
            "lease_owner": self.owner,
            "lease_expires_at": None if until is None else readable(until),
            "attempts": self.attempts,
        }


def status_of(job: JobRow) -> RunStatus:
    match job.state:
        case State.SUCCEEDED:
            return "completed"
        case State.FAILED:
            return "needs_review" if error_of(job.error).get("type") == POISONED else "failed"
        case State.CANCELLED:
            return "cancelled"
        case State.RUNNING:
            return "running" if job.cancel_requested_at is None else "cancel_requested"
        case _:
            return "queued"


def attempt_dict(number: int, row: AttemptRow, owner: str | None) -> dict[str, Any]:
    error = error_of(row.error)
    return {
        "attempt_number": number,
        "status": OUTCOMES.get(row.outcome, row.outcome),
        "lease_owner": owner,
        "failure_class": error.get("type"),
        "failure_reason": error.get("message"),
        "started_at": readable(row.started_at),
        "ended_at": readable(row.ended_at),
    }


def error_of(stored: str | None) -> dict[str, Any]:
    error = codec.decode(stored) if stored is not None else None
    return error if isinstance(error, dict) else {}


def readable(us: int) -> str:
    """A time as the views show it: UTC, to the second."""
    return moment(us).strftime("%Y-%m-%d %H:%M:%S")
