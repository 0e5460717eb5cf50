"""Inquiries: what only a person can decide, from the question to what follows from the answer.

While one is open, what it is about waits in the store and holds no worker. It is decided once, by a person or, when
its time is over, by its default, and what follows is part of the same transaction. An approval is bound to the digest
of the arguments that were shown: what was seen is what is approved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple

from holdfast.agents.changes import Changes, state_change
from holdfast.agents.compaction.config import FULL
from holdfast.agents.contents import content_of
from holdfast.agents.definitions import AgentSpec, Limits
from holdfast.agents.ending import end_run
from holdfast.agents.history import CONTINUE, text_of
from holdfast.agents.people.inquiring import channel_of
from holdfast.agents.people.records import InquiryPlace, InquiryRow
from holdfast.agents.records import RunEnd, UsageRow
from holdfast.agents.statements import Inquiries, Runs
from holdfast.agents.storing import add_message
from holdfast.durations import microseconds
from holdfast.errors import AlreadyDecided, DigestMismatch, NotFound, UsageError
from holdfast.kernel import encoding
from holdfast.kernel.complete import error_json
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.families import lock_order
from holdfast.kernel.records import Resolution
from holdfast.kernel.statements import Jobs
from holdfast.kernel.states import State
from holdfast.kernel.waiting import resolve

Verdict = Literal["approved", "denied", "answered", "expired"]

DENIED = "denied"
_CAP = 1 << 26
_NOT_RUN = "Nobody decided in time, so this call was not run."
_MAY_HAVE_RUN = "The call may have taken effect; it was not run again."


class Ruling(NamedTuple):
    """What a person says: `input` replaces the arguments of a call, `answer` is what is told in its place."""

    id: str  # of the inquiry, or of the call or run that has just one
    verdict: Verdict
    by: str = ""
    digest: str | None = None
    message: str = ""
    input: dict[str, Any] | None = None
    answer: Any = None
    tenant: str | None = None  # None: of any


async def decide(tx: Transaction, wish: Ruling, prefix: str) -> InquiryRow:
    """Decide an inquiry and do what follows. Doing it again says the same; deciding otherwise is refused."""
    found = await _meant(tx, wish)
    _check(found, wish)
    if found.state != "open":
        return _again(found, wish)
    place = await tx.one(Inquiries.inquiry_place, run=found.run, call=found.call)
    if place is None:
        raise NotFound(f"the run of inquiry {found.id} is no longer there.")
    waiting = place.call_job if found.call is not None else place.job
    family = [(seq, None) for seq in (place.parent, place.job, waiting) if seq is not None]
    await tx.many(Jobs.lock_jobs, seqs=lock_order(family))
    decided = await tx.one(
        Inquiries.decide_inquiry, id=found.id, state=wish.verdict, by=wish.by or None, decision=_json(_decision(wish))
    )
    if decided is None:  # somebody was quicker
        return _again(await _meant(tx, wish._replace(id=found.id)), wish)
    changes = Changes(prefix)
    changes.tell(
        found.run, "input_given", {"inquiry": found.id, "kind": found.kind, "verdict": wish.verdict, "by": wish.by}
    )
    await _follow(tx, decided, place, _default(decided) if wish.verdict == "expired" else wish, changes)
    return decided


async def _meant(tx: Transaction, wish: Ruling) -> InquiryRow:
    open_ones = [row for row in await tx.many(Inquiries.open_inquiries, id=wish.id) if _sees(wish, row)]
    exact = [row for row in open_ones if row.id == wish.id]
    if len(open_ones) == 1 or exact:
        return (exact or open_ones)[0]
    if open_ones:
        raise UsageError(f"{wish.id} has {len(open_ones)} inquiries open; name one of them, or its call.")
    row = await tx.one(Inquiries.find_inquiry, id=wish.id) or await tx.one(Inquiries.last_decided, id=wish.id)
    if row is None or not _sees(wish, row):
        raise NotFound(f"nothing is asked of a person about {wish.id}.")
    return row


def _sees(wish: Ruling, row: InquiryRow) -> bool:
    return wish.tenant in (None, row.tenant)


def _decision(wish: Ruling) -> dict[str, Any]:
    """What is kept of what a person said."""
    said = {"message": wish.message or None, "input": wish.input, "answer": wish.answer}
    return {name: value for name, value in said.items() if value is not None}


def _again(row: InquiryRow, wish: Ruling) -> InquiryRow:
    same = (encoding.decode(row.decision) or {}) == encoding.decode(_json(_decision(wish)))
    if wish.verdict == "expired" or (wish.verdict == row.state and same):
        return row
    raise AlreadyDecided(row.id, row.state, row.decided_by)


def _check(row: InquiryRow, wish: Ruling) -> None:
    if wish.digest is not None and wish.digest != row.digest:
        raise DigestMismatch(row.id)
    if wish.input is not None and (row.call is None or row.kind == "question"):
        raise UsageError(f"inquiry {row.id} is a {row.kind}: there are no arguments to change.")
    if wish.input is not None and encoding.decode(row.data).get("agent"):
        raise UsageError(f"inquiry {row.id} is about an agent, whose task stays: answer in its place, or deny it.")
    if row.kind == "limit" and wish.verdict == "answered":
        raise UsageError(f"inquiry {row.id} is about a limit: approve it, or deny it.")
    if row.kind == "question" and wish.verdict == "approved":
        raise UsageError(f"inquiry {row.id} is a question: answer it, or deny it.")


def _default(row: InquiryRow) -> Ruling:
    """What nobody said in time."""
    given: Mapping[str, Any] = encoding.decode(row.fallback) or {"verdict": "denied"}
    late = f"Nobody decided in time. {_MAY_HAVE_RUN}" if row.kind == "review" else _NOT_RUN
    return Ruling(row.id, given["verdict"], message=str(given.get("message") or late), answer=given.get("answer"))


async def _follow(tx: Transaction, row: InquiryRow, place: InquiryPlace, said: Ruling, changes: Changes) -> None:
    if place.finalized_at is not None:
        await changes.write(tx)
    elif row.call is not None:
        await _follow_call(tx, row, place, said, changes)
    elif said.verdict == "denied":
        await _end(tx, row, place, changes)
    else:
        await _go_on(tx, row, place, said, changes)


async def _follow_call(tx: Transaction, row: InquiryRow, place: InquiryPlace, said: Ruling, changes: Changes) -> None:
    """The call is run, or answered without being run; its siblings are not concerned."""
    left = await tx.one(Inquiries.count_open, run=row.run)
    if left is not None and left.n == 0 and place.state == "awaiting_input":
        await tx.run(Runs.move_run, id=row.run, state="pending_tools")
        changes.tell(row.run, "run_state", _moved(place, "pending_tools"), topic="run_state")
    told = content_of(said.answer, _CAP)
    if said.verdict == "answered":  # in the place of an agent, too: then the run that would have answered is over
        output = _json({"text": told if isinstance(told, str) else text_of(told), "output": None})
        await end_run(tx, RunEnd(row.id, "completed", "answered", output), changes)
    await changes.write(tx)
    assert place.call_job is not None
    seq, channel = place.call_job, channel_of(row.id)
    match said.verdict:
        case "approved":
            edited = None if said.input is None else _json(said.input)
            resolution = Resolution(seq, channel, State.PENDING, payload=edited)
        case "answered":
            resolution = Resolution(seq, channel, State.SUCCEEDED, result=_json(told))
        case _:
            resolution = Resolution(seq, channel, State.FAILED, error=error_json(DENIED, _refusal(row, said)))
    await resolve(tx, [resolution], [place.job, place.parent])


def _refusal(row: InquiryRow, said: Ruling) -> str:
    """What the model is told of a call that is not run, or not again."""
    if row.state == "expired":
        return said.message
    why = f"A person denied this call: {said.message}" if said.message else "A person denied this call."
    return f"{why} {_MAY_HAVE_RUN}" if row.kind == "review" else why


async def _go_on(tx: Transaction, row: InquiryRow, place: InquiryPlace, said: Ruling, changes: Changes) -> None:
    """The run goes on: with what the person said, or past its limit."""
    if row.kind == "continuation":
        text = str(said.answer) if said.answer not in (None, "") else CONTINUE
        await add_message(tx, place, "continuation", place.turns, [{"type": "text", "text": text}])
    else:
        used = await tx.one(Runs.tree_usage, root=place.root)
        assert used is not None, "a sum has one row"
        options = _granted(row, place, used)
        await tx.run(Inquiries.change_options, id=row.run, options=_json(options))
    await tx.run(Runs.move_run, id=row.run, state="pending")
    changes.tell(row.run, "run_state", _moved(place, "pending"), topic="run_state")
    await changes.write(tx)
    await resolve(tx, [Resolution(place.job, channel_of(row.id), State.PENDING)], [place.parent])


def _granted(row: InquiryRow, place: InquiryPlace, used: UsageRow) -> dict[str, Any]:
    """The run's options with as much again of what it had used up."""
    options: dict[str, Any] = encoding.decode(place.options)
    data = encoding.decode(row.data)
    field = data.get("limit")
    if field == "budget":
        until = {**options.get("beyond_budget", {}), data["budget"]: int(used.cost_nano) + int(data["portion"])}
        return {**options, "beyond_budget": until}
    if field == FULL:  # it is sent as it is
        return {**options, "beyond_window": True}
    first = options.get("portion") or options.get("limits") or asdict(AgentSpec.parse(place.definition).limits)
    portion = Limits(**first)
    limits = Limits(**options["limits"]) if options.get("limits") else portion
    tokens = used.input_tokens + used.output_tokens + used.cache_write_tokens + used.cache_read_tokens
    match field:
        case "turns":
            limits = replace(limits, turns=max(place.turns, int(used.turns)) + (portion.turns or 1))
        case "tokens":
            limits = replace(limits, tokens=int(tokens) + (portion.tokens or 1))
        case "cost":
            nano = int(used.cost_nano) + (portion.cost_nano or 0)
            limits = replace(limits, cost=f"{nano // 10**9}.{nano % 10**9:09}")
        case _:
            more = microseconds(portion.time) if portion.time is not None else 0
            limits = replace(limits, time=f"{place.age_us + more}us")
    return {**options, "limits": asdict(limits), "portion": first}


async def _end(tx: Transaction, row: InquiryRow, place: InquiryPlace, changes: Changes) -> None:
    """The run ends as it would have without asking."""
    data = encoding.decode(row.data)
    text = str(data.get("text") or "")
    outcome = "truncated" if row.kind == "continuation" or data.get("limit") == FULL else "limited"
    output = _json({"text": text, "output": None})
    await end_run(tx, RunEnd(row.run, "completed", outcome, output, limited=data.get("reason")), changes)
    await changes.write(tx)
    told = text or f"(the agent ended without an answer: {outcome})"
    resolution = Resolution(place.job, channel_of(row.id), State.SUCCEEDED, result=_json(told))
    await resolve(tx, [resolution], [place.parent])


@reading
async def find_inquiry(tx: Transaction, id: str) -> InquiryRow | None:
    row = await tx.one(Inquiries.find_inquiry, id=id)
    if row is None:
        row = next(iter(await tx.many(Inquiries.open_inquiries, id=id)), None)
    return row


@reading
async def open_inquiries(tx: Transaction, id: str) -> Sequence[InquiryRow]:
    """What is asked about a call, or about a run and all runs below it."""
    return await tx.many(Inquiries.open_inquiries, id=id)


@reading
async def list_inquiries(
    tx: Transaction,
    *,
    state: str | None = "open",
    tenant: str | None = None,
    run: str | None = None,
    after: tuple[int, str] = (-1, ""),
    limit: int = 100,
) -> Sequence[InquiryRow]:
    return await tx.many(
        Inquiries.list_inquiries, state=state, tenant=tenant, run=run, after_at=after[0], after=after[1], limit=limit
    )


def _moved(place: InquiryPlace, state: str) -> dict[str, Any]:
    return state_change(place.id, place.session, place.agent_name, place.parent_run, state=state, before=place.state)


def _json(value: object) -> str:
    return encoding.encode(value, what="what a person decided", cap=_CAP)
