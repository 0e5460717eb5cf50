"""Inquiries as a program sees them: what only a person can decide."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from holdfast.agents.people.inquiry_rows import InquiryRow
from holdfast.agents.states import InquiryStateName
from holdfast.errors import NotUnderstood
from holdfast.events import CallView
from holdfast.kernel import codec, stored_json
from holdfast.values.times import moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """Something that only a person can decide.

    `kind` is "approval" (may this call run?), "review" (it may have run: again?), "question", "continuation" (the
    answer was cut off: continue?) or "limit" (continue beyond it?). `call` is what is to be called, `data` the rest of
    what there is to know; `digest` is the identity of what was shown. A review shows what the call ran with; if a
    person had changed that, `data["changed"]` has what the model `asked` for, and `by` whom it was changed.
    """

    id: str
    kind: str
    state: InquiryStateName
    run_id: str
    session_id: str
    tenant: str
    name: str
    digest: str
    call: CallView | None
    data: dict[str, Any]
    asked_at: datetime
    expires_at: datetime | None
    decided_at: datetime | None = None
    decided_by: str | None = None
    decision: dict[str, Any] | None = None


def inquiry_of(row: InquiryRow) -> Inquiry:
    data: dict[str, Any] = codec.decode(row.data)
    call = _call_of(data)
    return Inquiry(
        id=row.id,
        kind=row.kind,
        state=cast(InquiryStateName, row.state),
        run_id=row.run,
        session_id=row.session,
        tenant=row.tenant,
        name=row.name,
        digest=row.digest,
        call=call,
        data=data,
        asked_at=moment(row.asked_at),
        expires_at=moment(row.expires_at),
        decided_at=moment(row.decided_at),
        decided_by=row.decided_by,
        decision=codec.decode(row.decision),
    )


def _call_of(data: dict[str, Any]) -> CallView | None:
    """Take the call out of what an inquiry is about. One that is not understood here stays there as it is."""
    if data.get("call") is None:
        data.pop("call", None)
        return None
    try:
        call = stored_json.read(CallView, data["call"], what="the call of an inquiry")
    except NotUnderstood:
        return None
    del data["call"]
    return call
