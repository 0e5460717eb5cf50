"""A question to a person, in the transaction that has to wait for the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from holdfast.agents.events.log import Changes, state_change
from holdfast.agents.people.records import InquiriesSql, NewInquiry, UnknownCall
from holdfast.agents.statements import RunsSql
from holdfast.agents.states import RunState
from holdfast.agents.system_jobs import EXPIRE, NOTIFY, system_job
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue, repeat_child
from holdfast.kernel.ids import JobId, derived_id
from holdfast.kernel.rows import Suspension
from holdfast.kernel.waiting import own_channel, suspend
from holdfast.models.protocol import canonical

InquiryKind = Literal["approval", "question", "review", "continuation", "limit"]

_CAP = 1 << 26
_EVENTS = {"approval": "approval_requested", "review": "approval_requested", "question": "question_asked"}


def channel_of(inquiry: str) -> str:
    """Where the job waits that an inquiry is about."""
    return own_channel(f"inquiry {inquiry}")


def digest_of_input(name: str, input: object) -> str:
    """The identity of a call: a person who approves one approves these arguments and no others."""
    return codec.digest(canonical([name, input]))


def call_data(call: str, name: str, input: object, turn: int, **more: Any) -> dict[str, Any]:
    return {"call": {"id": call, "name": name, "input": input, "turn": turn}, **more}


async def inquire(tx: Transaction, new: Sequence[NewInquiry], changes: Changes, *, notify: bool) -> None:
    """Store what is asked, let the calls that it is about wait, announce it, and have it expire in time."""
    await tx.run(InquiriesSql.add_inquiries, inquiries=new)
    waiting = [Suspension(JobId(each.id), channel_of(each.id)) for each in new if each.call is not None]
    if waiting:  # an inquiry about a call has the id of the job that waits for it
        await suspend(tx, waiting)
    jobs = []
    for each in new:
        data = codec.decode(each.data)
        event = {"inquiry": each.id, "kind": each.kind, "name": each.name, "digest": each.digest, **data}
        changes.tell(each.run, _EVENTS.get(each.kind, "input_requested"), event)
        if each.timeout_us is not None:
            jobs.append(system_job(EXPIRE, derived_id(each.id, "expire"), {"inquiry": each.id}, each.timeout_us))
        if notify:
            jobs.append(system_job(NOTIFY, derived_id(each.id, "notify"), {"inquiry": each.id}))
    for job, route in jobs:
        await enqueue(tx, [job], [route])


def encode_data(data: dict[str, Any]) -> str:
    return codec.encode(data, what="an inquiry", cap=_CAP)


# Review: a call that may start only once, and whose outcome is unknown, waits for a person.
#
# Its job has ended. Another one, just like it, stands in its place and waits: approved, it runs; answered or denied,
# it
# never does. So a call is started a second time only because a person said so.


# How a job ends that has not said what it did.
OUTCOME_UNKNOWN = "outcome_unknown"
_UNKNOWN = frozenset({"rescue_failed", "timeout", "process_died", "instance_disconnected", OUTCOME_UNKNOWN})


async def review_unknown(
    tx: Transaction, jobs: Sequence[int], changes: Changes, *, notify: Callable[[], bool]
) -> set[int]:
    """Put calls of unknown outcome before a person; returns the numbers of their jobs, which answer nothing."""
    reviewed: set[int] = set()
    for call in await tx.many(InquiriesSql.unknown_calls, jobs=jobs):
        about = (codec.decode(call.metadata) or {}).get("call")
        about = about if isinstance(about, dict) else {}  # a newer release may have written something else
        error: dict[str, Any] = codec.decode(call.error) or {}
        if about.get("review") and error.get("type") in _UNKNOWN:
            await _review(tx, call, about, error, changes, notify=notify())
            reviewed.add(call.job)
    return reviewed


async def _review(
    tx: Transaction, call: UnknownCall, about: dict[str, Any], error: dict[str, Any], changes: Changes, *, notify: bool
) -> None:
    again: JobId = derived_id(call.id, "review", call.job)
    await repeat_child(tx, call.job, again)
    await tx.run(InquiriesSql.hand_over, call=call.id, job=again)
    if call.state != RunState.AWAITING_INPUT:
        await tx.run(RunsSql.move_run, id=call.run, state=RunState.AWAITING_INPUT)
        moved = state_change(
            call.run,
            call.session,
            call.agent_name,
            call.parent_run,
            agent=call.agent,
            state=RunState.AWAITING_INPUT,
            before=call.state,
        )
        changes.tell(call.run, "run_state", moved, topic="run_state")
    given, asked = codec.decode(call.input), codec.decode(call.asked)
    changed = {} if given == asked else {"changed": {"asked": asked, "by": call.changed_by or ""}}
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
        data=encode_data(call_data(call.id, call.name, given, call.turn, reason=reason, **changed)),
        fallback=None,
        timeout_us=about.get("approve_us"),
    )
    await inquire(tx, [new], changes, notify=notify)
