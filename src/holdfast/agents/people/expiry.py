"""Expiry: what is decided when nobody decides in time, and what a person who comes too late reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, cast, get_args

from holdfast.agents.compaction.config import FULL
from holdfast.agents.people.inquiry_rows import InquiryRow
from holdfast.agents.states import InquiryState
from holdfast.errors import AlreadyDecided, NotUnderstood
from holdfast.kernel import codec

MAY_HAVE_RUN = "The call may have taken effect; it was not run again."
_Verdict = Literal[InquiryState.APPROVED, InquiryState.DENIED, InquiryState.ANSWERED]
_NOT_RUN = "Nobody decided in time, so this call was not run."


class Default(NamedTuple):
    """What nobody said in time."""

    verdict: _Verdict
    message: str
    answer: Any


def default_of(row: InquiryRow) -> Default:
    """What an inquiry was asked with for this case; without anything, nobody has allowed it."""
    given: Mapping[str, Any] = codec.decode(row.fallback) or {"verdict": InquiryState.DENIED}
    if given.get("verdict") not in get_args(_Verdict):
        raise NotUnderstood(f"inquiry {row.id}", f"when nobody decides, {given!r} is to be done")
    late = f"Nobody decided in time. {MAY_HAVE_RUN}" if row.kind == "review" else _NOT_RUN
    verdict = cast(_Verdict, InquiryState(given["verdict"]))
    return Default(verdict, str(given.get("message") or late), given.get("answer"))


def ended_as(row: InquiryRow) -> Literal["truncated", "limited"]:
    """The outcome of a run that asked to continue and may not."""
    cut = row.kind == "continuation" or codec.decode(row.data).get("limit") == FULL
    return "truncated" if cut else "limited"


def too_late(row: InquiryRow) -> AlreadyDecided:
    """Says when the time of an inquiry was over, and what was done instead."""
    over = row.expires_at or row.decided_at or 0
    at = datetime.fromtimestamp(over / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    why = f"its time limit passed at {at}, so {_done(row)}. Look at it with hf.inquiries.get(id)."
    return AlreadyDecided(row.id, row.state, row.decided_by, why)


def _done(row: InquiryRow) -> str:
    default = default_of(row)
    if default.verdict == InquiryState.ANSWERED:
        return f"the model was told {default.answer!r}"
    if row.call is None:
        return f"the run ended as {ended_as(row)}"
    if row.kind == "question":
        return "the model read that nobody answered"
    if row.kind == "review":
        return f"the call of {row.name} was not run again"
    return f"the call of {row.name} was {default.verdict}"
