"""Reviewing: a call that may be started once, and of which nobody knows what it did, waits for a person.

Its job has ended. Another one, just like it, stands in its place and waits: approved, it runs; answered or denied, it
never does. So a call is started a second time only because a person said so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.agents.changes import Changes, state_change
from holdfast.agents.people.inquiring import call_data, digest_of_input, encode_data, inquire
from holdfast.agents.people.records import NewInquiry, UnknownCall
from holdfast.agents.statements import Inquiries, Runs
from holdfast.kernel import encoding
from holdfast.kernel.again import repeat_child
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import JobId, derived_id

# How a job ends that has not said what it did.
OUTCOME_UNKNOWN = "outcome_unknown"
_UNKNOWN = frozenset({"rescue_failed", "timeout", "process_died", "instance_disconnected", OUTCOME_UNKNOWN})


async def review_unknown(
    tx: Transaction, jobs: Sequence[int], changes: Changes, *, notify: Callable[[], bool]
) -> set[int]:
    """Put calls of unknown outcome before a person; returns the numbers of their jobs, which answer nothing."""
    reviewed: set[int] = set()
    for call in await tx.many(Inquiries.unknown_calls, jobs=jobs):
        about = (encoding.decode(call.metadata) or {}).get("call", {})
        error: dict[str, Any] = encoding.decode(call.error) or {}
        if about.get("review") and error.get("type") in _UNKNOWN:
            await _review(tx, call, about, error, changes, notify=notify())
            reviewed.add(call.job)
    return reviewed


async def _review(
    tx: Transaction, call: UnknownCall, about: dict[str, Any], error: dict[str, Any], changes: Changes, *, notify: bool
) -> None:
    again: JobId = derived_id(call.id, "review", call.job)
    await repeat_child(tx, call.job, again)
    await tx.run(Inquiries.hand_over, call=call.id, job=again)
    if call.state != "awaiting_input":
        await tx.run(Runs.move_run, id=call.run, state="awaiting_input")
        moved = state_change(
            call.run, call.session, call.agent_name, call.parent_run, state="awaiting_input", before=call.state
        )
        changes.tell(call.run, "run_state", moved, topic="run_state")
    given = encoding.decode(call.input)
    reason = f"it may have taken effect: {error.get('message') or error.get('type')}"
    new = NewInquiry(
        id=again,
        run=call.run,
        session=call.session,
        tenant=call.tenant,
        kind="review",
        call=call.id,
        name=call.name,
        digest=digest_of_input(call.name, given),
        data=encode_data(call_data(call.id, call.name, given, call.turn, reason=reason)),
        fallback=None,
        timeout_us=about.get("approve_us"),
    )
    await inquire(tx, [new], changes, notify=notify)
