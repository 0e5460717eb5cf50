"""`universal_agent.durable.state`: runs and their leases, for code without an event loop.

`conn` is what `connect_runtime_db` returns; any thread may use it, and async code too, for which `conn.runs` has the
same calls to await.
"""

from __future__ import annotations

from typing import Any

from holdfast.facades.universal_agent.runs import HANDLER_FAILED
from holdfast.facades.universal_agent.runtime_db import RuntimeDb, connect_runtime_db, require

__all__ = [
    "acquire_run_lease",
    "complete_run",
    "connect_runtime_db",
    "fail_run",
    "get_run",
    "heartbeat_run_lease",
    "is_cancel_requested",
    "list_run_attempts",
    "load_last_checkpoint",
    "mark_run_cancelled",
    "queue_run",
    "release_run_lease",
    "request_run_cancel",
    "requeue_run",
    "save_checkpoint",
]


def queue_run(
    conn: RuntimeDb,
    run_id: str,
    prompt: str,
    workspace_dir: str | None = None,
    max_iterations: int | None = None,
) -> dict[str, Any]:
    """Queue a run. The same id with the same request is the same run; with another it is an `IdempotencyConflict`."""
    return (runs := require(conn)).call(runs.runs.queue(run_id, prompt, workspace_dir, max_iterations))


def requeue_run(conn: RuntimeDb, run_id: str) -> bool:
    """Start a run that has ended again, under the same id; False when it has not ended."""
    return (runs := require(conn)).call(runs.runs.requeue(run_id))


def get_run(conn: RuntimeDb, run_id: str) -> dict[str, Any] | None:
    """A run as a dict, or None."""
    return (runs := require(conn)).call(runs.runs.get(run_id))


def list_run_attempts(conn: RuntimeDb, run_id: str) -> list[dict[str, Any]]:
    """The attempts of a run that have ended, numbered from 1; `canonical` is the last that succeeded."""
    return (runs := require(conn)).call(runs.runs.attempts(run_id))


def acquire_run_lease(conn: RuntimeDb, run_id: str, lease_owner: str, lease_ttl_seconds: float) -> bool:
    """Take a run that is queued, or whose lease has run out. A live lease is refused, also to its own owner."""
    return (runs := require(conn)).call(runs.runs.acquire(run_id, lease_owner, lease_ttl_seconds))


def heartbeat_run_lease(conn: RuntimeDb, run_id: str, lease_owner: str, lease_ttl_seconds: float) -> bool:
    """Extend a lease; False when it is lost."""
    return (runs := require(conn)).call(runs.runs.heartbeat(run_id, lease_owner, lease_ttl_seconds))


def release_run_lease(conn: RuntimeDb, run_id: str, lease_owner: str) -> None:
    """Hand a run back, to be had at once. Who does not hold it changes nothing."""
    (runs := require(conn)).call(runs.runs.release(run_id, lease_owner))


def complete_run(conn: RuntimeDb, run_id: str, lease_owner: str, result: object = None) -> bool:
    """End a run under its owner's lease; False when that is lost, and then nothing is changed."""
    return (runs := require(conn)).call(runs.runs.complete(run_id, lease_owner, result))


def fail_run(conn: RuntimeDb, run_id: str, lease_owner: str, reason: str, failure_class: str = HANDLER_FAILED) -> bool:
    """End a run as failed under its owner's lease; False when that is lost, and then nothing is changed."""
    return (runs := require(conn)).call(runs.runs.fail(run_id, lease_owner, reason, failure_class))


def request_run_cancel(conn: RuntimeDb, run_id: str, reason: str | None = None) -> bool:
    """Cancel a run: at once if it is queued, else its owner is asked. False when it has ended or is not known."""
    return (runs := require(conn)).call(runs.runs.request_cancel(run_id, reason))


def is_cancel_requested(conn: RuntimeDb, run_id: str) -> bool:
    return (runs := require(conn)).call(runs.runs.is_cancel_requested(run_id))


def mark_run_cancelled(conn: RuntimeDb, run_id: str, lease_owner: str | None = None) -> bool:
    """Acknowledge a cancel that was requested; False when there is none, or the lease is lost."""
    return (runs := require(conn)).call(runs.runs.mark_cancelled(run_id, lease_owner))


def save_checkpoint(  # noqa: PLR0913, PLR0917  as the document has it
    conn: RuntimeDb,
    run_id: str,
    step_id: str,
    checkpoint_type: str,
    state_snapshot: dict[str, Any],
    cursor: Any = None,
    corpus_data: Any = None,
    lease_owner: str | None = None,
) -> str:
    """Store a checkpoint of a run, and return its id. Outside of the run's handler, `lease_owner` says who holds it.

    `LeaseLost` or `UsageError` when the run is not held so any more: nothing is written.
    """
    checkpoint = {
        "step_id": step_id,
        "checkpoint_type": checkpoint_type,
        "state_snapshot": state_snapshot,
        "cursor": cursor,
        "corpus_data": corpus_data,
    }
    return (runs := require(conn)).call(runs.runs.save_checkpoint(run_id, checkpoint, lease_owner))


def load_last_checkpoint(conn: RuntimeDb, run_id: str) -> dict[str, Any] | None:
    """The newest checkpoint of a run, also of its attempts before a requeue; None when it has none."""
    return (runs := require(conn)).call(runs.runs.last_checkpoint(run_id))
