"""A question to a person, in the transaction that has to wait for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from holdfast.agents.events.log import Changes
from holdfast.agents.people.inquiry_rows import NewInquiry
from holdfast.agents.people.statements import InquiriesSql
from holdfast.agents.system_jobs import EXPIRE, NOTIFY, system_job
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
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
