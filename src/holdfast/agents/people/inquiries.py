"""Inquiries: what only a person can decide, from the question to what follows from the answer.

While one is open, what it is about waits in the store and holds no worker. It is decided once, by a person or, when
its time is over, by its default, and what follows is part of the same transaction. An approval is bound to the digest
of the arguments that were shown: what was seen is what is approved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, cast, get_args

from holdfast.agents.compaction.config import FULL
from holdfast.agents.content import content_of
from holdfast.agents.definition import AgentSpec, Limits, as_stored
from holdfast.agents.events.log import Changes, state_change
from holdfast.agents.messages import add_message
from holdfast.agents.people.questions import InquiryKind, channel_of
from holdfast.agents.people.records import InquiriesSql, InquiryPlace, InquiryRow
from holdfast.agents.rows import RunEnd, UsageRow
from holdfast.agents.runs.end import end_run
from holdfast.agents.runs.history import text_of
from holdfast.agents.statements import RunsSql
from holdfast.agents.states import InquiryState, RunState
from holdfast.durations import microseconds
from holdfast.errors import AlreadyDecided, DigestMismatch, NotFound, NotUnderstood, UsageError
from holdfast.kernel import codec
from holdfast.kernel.complete import error_json
from holdfast.kernel.database import Transaction, reading
from holdfast.kernel.families import lock_anchors
from holdfast.kernel.rows import Resolution
from holdfast.kernel.states import State
from holdfast.kernel.waiting import resolve
from holdfast.models.request_view import CONTINUE
from holdfast.text import plural

# Expiry: what is decided when nobody decides in time, and what a person who comes too late reads. Pure.


MAY_HAVE_RUN = "The call may have taken effect; it was not run again."
_Verdict = Literal[InquiryState.APPROVED, InquiryState.DENIED, InquiryState.ANSWERED]
_NOT_RUN = "Nobody decided in time, so this call was not run."


class DefaultRuling(NamedTuple):
    """What nobody said in time."""

    verdict: _Verdict
    message: str
    answer: Any


def default_of(row: InquiryRow) -> DefaultRuling:
    """What an inquiry was asked with for this case; without anything, nobody has allowed it."""
    given: Mapping[str, Any] = codec.decode(row.fallback) or {"verdict": InquiryState.DENIED}
    if given.get("verdict") not in get_args(_Verdict):
        raise NotUnderstood(f"inquiry {row.id}", f"when nobody decides, {given!r} is to be done")
    late = f"Nobody decided in time. {MAY_HAVE_RUN}" if row.kind == "review" else _NOT_RUN
    verdict = cast(_Verdict, InquiryState(given["verdict"]))
    return DefaultRuling(verdict, str(given.get("message") or late), given.get("answer"))


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


Verdict = Literal[InquiryState.APPROVED, InquiryState.DENIED, InquiryState.ANSWERED, InquiryState.EXPIRED]

DENIED = "denied"
_CAP = 1 << 26


class Ruling(NamedTuple):
    """What a person says: `input` replaces the arguments of a call, `answer` is what the model reads in its place."""

    id: str  # of the inquiry, or of the call or run that has just one
    verdict: Verdict
    by: str = ""
    digest: str | None = None
    message: str = ""
    input: dict[str, Any] | None = None
    answer: Any = None
    tenant: str | None = None  # None: of any


async def decide(tx: Transaction, wish: Ruling, prefix: str) -> InquiryRow:
    """Decide an inquiry and do what follows. Doing it again says the same; deciding otherwise is refused.

    Who comes after its time finds it expired in what is returned: what follows from that is stored, and `too_late` is
    what to raise once it is committed.
    """
    found = await _find_inquiry(tx, wish)
    _check(found, wish)
    if found.state != InquiryState.OPEN:
        return _check_same_decision(found, wish)
    place = await tx.one(InquiriesSql.inquiry_place, run=found.run, call=found.call)
    if place is None:
        raise NotFound(f"the run of inquiry {found.id} no longer exists.")
    waiting = place.call_job if found.call is not None else place.job
    # Whatever else ends them takes these too; what follows locks the jobs themselves.
    await lock_anchors(tx, [seq for seq in (place.parent, place.job, waiting) if seq is not None])
    wish = wish._replace(id=found.id)
    decided = await _store(tx, wish)
    if decided is None:  # its time is over, or somebody was quicker
        wish = (late := wish)._replace(verdict=InquiryState.EXPIRED, by="", message="", input=None, answer=None)
        decided = await _store(tx, wish)
        if decided is None:
            return _check_same_decision(await _find_inquiry(tx, late), late)
    changes = Changes(prefix)
    changes.tell(
        found.run, "input_given", {"inquiry": found.id, "kind": found.kind, "verdict": wish.verdict, "by": wish.by}
    )
    said = wish if wish.verdict != InquiryState.EXPIRED else wish._replace(**default_of(decided)._asdict())
    await _follow(tx, decided, place, said, changes)
    return decided


async def _store(tx: Transaction, wish: Ruling) -> InquiryRow | None:
    """The inquiry as it is decided now; None when it is not open any more, or only its default may decide it."""
    given = _json(_decision(wish))
    return await tx.one(InquiriesSql.decide_inquiry, id=wish.id, state=wish.verdict, by=wish.by or None, decision=given)


async def _find_inquiry(tx: Transaction, wish: Ruling) -> InquiryRow:
    open_ones = [row for row in await tx.many(InquiriesSql.open_inquiries, id=wish.id) if _sees(wish, row)]
    exact = [row for row in open_ones if row.id == wish.id]
    if len(open_ones) == 1 or exact:
        return (exact or open_ones)[0]
    if open_ones:
        raise UsageError(
            f"{wish.id} has {plural(len(open_ones), 'inquiry', 'inquiries')} open; name one of them, or its call."
        )
    row = await tx.one(InquiriesSql.find_inquiry, id=wish.id) or await tx.one(InquiriesSql.last_decided, id=wish.id)
    if row is None or not _sees(wish, row):
        raise NotFound(f"no inquiry is open about {wish.id}.")
    return row


def _sees(wish: Ruling, row: InquiryRow) -> bool:
    return wish.tenant in (None, row.tenant)


def _decision(wish: Ruling) -> dict[str, Any]:
    """What is kept of what a person said."""
    said = {"message": wish.message or None, "input": wish.input, "answer": wish.answer}
    return {name: value for name, value in said.items() if value is not None}


def _check_same_decision(row: InquiryRow, wish: Ruling) -> InquiryRow:
    same = (codec.decode(row.decision) or {}) == codec.decode(_json(_decision(wish)))
    if wish.verdict == InquiryState.EXPIRED or (wish.verdict == row.state and same):
        return row
    raise too_late(row) if row.state == InquiryState.EXPIRED else AlreadyDecided(row.id, row.state, row.decided_by)


def _check(row: InquiryRow, wish: Ruling) -> None:
    if row.kind not in get_args(InquiryKind):
        raise NotUnderstood(f"inquiry {row.id}", f"its kind is {row.kind!r}")
    if wish.digest is not None and wish.digest != row.digest:
        raise DigestMismatch(row.id)
    if wish.input is not None and (row.call is None or row.kind == "question"):
        raise UsageError(f"inquiry {row.id} is a {row.kind}: it has no arguments to change.")
    if wish.input is not None and codec.decode(row.data).get("agent"):
        raise UsageError(f"inquiry {row.id} is about an agent, whose task cannot change: answer for it, or deny it.")
    if row.kind == "limit" and wish.verdict == InquiryState.ANSWERED:
        raise UsageError(f"inquiry {row.id} is about a limit: approve it, or deny it.")
    if row.kind == "question" and wish.verdict == InquiryState.APPROVED:
        raise UsageError(f"inquiry {row.id} is a question: answer it, or deny it.")


async def _follow(tx: Transaction, row: InquiryRow, place: InquiryPlace, said: Ruling, changes: Changes) -> None:
    if place.finalized_at is not None:
        await changes.write(tx)
    elif row.call is not None:
        await _follow_call(tx, row, place, said, changes)
    elif said.verdict == InquiryState.DENIED:
        await _end(tx, row, place, changes)
    else:
        await _continue_run(tx, row, place, said, changes)


async def _follow_call(tx: Transaction, row: InquiryRow, place: InquiryPlace, said: Ruling, changes: Changes) -> None:
    """The call is run, or answered without being run; its siblings are not concerned."""
    left = await tx.one(InquiriesSql.count_open, run=row.run)
    if left is not None and left.n == 0 and place.state == RunState.AWAITING_INPUT:
        await tx.run(RunsSql.move_run, id=row.run, state=RunState.PENDING_TOOLS)
        changes.tell(row.run, "run_state", _moved(place, RunState.PENDING_TOOLS), topic="run_state")
    content = content_of(said.answer, _CAP)
    if said.verdict == InquiryState.ANSWERED:  # in the place of an agent, too: the run that would answer is over
        output = _json({"text": content if isinstance(content, str) else text_of(content), "output": None})
        await end_run(tx, RunEnd(row.id, RunState.COMPLETED, "answered", output), changes)
    await changes.write(tx)
    assert place.call_job is not None
    seq, channel = place.call_job, channel_of(row.id)
    match said.verdict:
        case InquiryState.APPROVED:
            edited = None if said.input is None else _json(said.input)
            resolution = Resolution(seq, channel, State.PENDING, payload=edited)
        case InquiryState.ANSWERED:
            resolution = Resolution(seq, channel, State.SUCCEEDED, result=_json(content))
        case _:
            resolution = Resolution(seq, channel, State.FAILED, error=error_json(DENIED, _refusal(row, said)))
    await resolve(tx, [resolution], [place.job, place.parent])


def _refusal(row: InquiryRow, said: Ruling) -> str:
    """What the model reads about a call that does not run, or not again."""
    if row.state == InquiryState.EXPIRED:
        return said.message
    why = f"A person denied this call: {said.message}" if said.message else "A person denied this call."
    return f"{why} {MAY_HAVE_RUN}" if row.kind == "review" else why


async def _continue_run(tx: Transaction, row: InquiryRow, place: InquiryPlace, said: Ruling, changes: Changes) -> None:
    """The run continues: with what the person said, or past its limit."""
    if row.kind == "continuation":
        text = str(said.answer) if said.answer not in (None, "") else CONTINUE
        await add_message(tx, place, "continuation", place.turns, [{"type": "text", "text": text}])
    else:
        used = await tx.one(RunsSql.tree_usage, root=place.root)
        assert used is not None, "a sum has one row"
        options = _granted(row, place, used)
        await tx.run(InquiriesSql.change_options, id=row.run, options=_json(options))
    await tx.run(RunsSql.move_run, id=row.run, state=RunState.PENDING)
    changes.tell(row.run, "run_state", _moved(place, RunState.PENDING), topic="run_state")
    await changes.write(tx)
    await resolve(tx, [Resolution(place.job, channel_of(row.id), State.PENDING)], [place.parent])


def _granted(row: InquiryRow, place: InquiryPlace, used: UsageRow) -> dict[str, Any]:
    """The run's options with as much again of what it had used up."""
    options: dict[str, Any] = codec.decode(place.options)
    data = codec.decode(row.data)
    field = data.get("limit")
    if field == "budget":
        until = {**options.get("beyond_budget", {}), data["budget"]: int(used.cost_nano) + int(data["portion"])}
        return {**options, "beyond_budget": until}
    if field == FULL:  # it is sent as it is
        return {**options, "beyond_window": True}
    first = options.get("portion") or options.get("limits") or as_stored(AgentSpec.parse(place.definition).limits)
    what = f"the limits of run {row.run}"
    portion = codec.read(Limits, first, what=what)
    limits = codec.read(Limits, options["limits"], what=what) if options.get("limits") else portion
    tokens = used.input_tokens + used.output_tokens + used.cache_write_tokens + used.cache_read_tokens
    match field:
        case "turns":
            limits = replace(limits, turns=max(place.turns, int(used.turns)) + (portion.turns or 1))
        case "tokens":
            limits = replace(limits, tokens=int(tokens) + (portion.tokens or 1))
        case "cost":
            needed = int(data.get("portion") or 0)  # the call that did not fit, which may cost more than a portion
            nano = int(used.cost_nano) + max(portion.cost_nano or 0, needed)
            limits = replace(limits, cost=f"{nano // 10**9}.{nano % 10**9:09}")
        case "time":
            more = microseconds(portion.time) if portion.time is not None else 0
            limits = replace(limits, time=f"{place.age_us + more}us")
        case _:
            raise NotUnderstood(f"inquiry {row.id}", f"it is about the limit {field!r}")
    return {**options, "limits": as_stored(limits), "portion": first}


async def _end(tx: Transaction, row: InquiryRow, place: InquiryPlace, changes: Changes) -> None:
    """The run ends as it would have without asking."""
    data = codec.decode(row.data)
    text = str(data.get("text") or "")
    outcome = ended_as(row)
    output = _json({"text": text, "output": None})
    await end_run(tx, RunEnd(row.run, RunState.COMPLETED, outcome, output, limited=data.get("reason")), changes)
    await changes.write(tx)
    shown = text or f"(the agent ended without an answer: {outcome})"
    resolution = Resolution(place.job, channel_of(row.id), State.SUCCEEDED, result=_json(shown))
    await resolve(tx, [resolution], [place.parent])


@reading
async def find_inquiry(tx: Transaction, id: str) -> InquiryRow | None:
    row = await tx.one(InquiriesSql.find_inquiry, id=id)
    if row is None:
        row = next(iter(await tx.many(InquiriesSql.open_inquiries, id=id)), None)
    return row


@reading
async def inquiries_below(tx: Transaction, run: str, *, after: str, limit: int) -> Sequence[InquiryRow]:
    """What is asked about a run and all runs below it, after the inquiry with the id `after`."""
    return await tx.many(InquiriesSql.inquiries_below, run=run, after=after, limit=limit)


def _moved(place: InquiryPlace, state: RunState) -> dict[str, Any]:
    return state_change(
        place.id, place.session, place.agent_name, place.parent_run, agent=place.agent, state=state, before=place.state
    )


def _json(value: object) -> str:
    return codec.encode(value, what="what a person decided", cap=_CAP)
