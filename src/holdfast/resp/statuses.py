"""Statuses: what AGX calls the states of a job. A pure function of the job's row."""

from __future__ import annotations

from holdfast.kernel.states import State

STATUSES = ("pending", "running", "completed", "failed", "dead")
ENDED = frozenset({"completed", "failed", "dead"})
_NAMES = {
    State.SCHEDULED: "pending",
    State.PENDING: "pending",
    State.RUNNING: "running",
    State.WAITING: "running",
    State.SUCCEEDED: "completed",
    State.CANCELLED: "failed",
}
# What JOB.UPDATE may ask for, by the status that the job has.
MOVES = {"pending": {"running"}, "running": {"running", "completed", "failed"}}


def status_of(state: str | None, attempts: int, max_attempts: int) -> str:
    """`dead`: it failed, and has no attempts left. A job that retention removed was completed or given up: failed."""
    if state == State.FAILED:
        return "dead" if attempts >= max_attempts else "failed"
    return _NAMES.get(State(state), "pending") if state is not None else "failed"
