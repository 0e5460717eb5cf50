"""Collecting: results of a batch, applied to the runs that wait for them, some hundred in one transaction.

A result is applied once, by its custom id: whoever brings it again finds nothing to apply it to. What a batch has not
answered, or not for good, is asked again with the next one, as often as its agent's attempts allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.agents.answering import (
    Answer,
    Conclusion,
    Decision,
    Spent,
    Turned,
    end_of,
    retire_refused,
    store_answers,
    to_json,
    told_above,
)
from holdfast.agents.batches.batching import Gathering, add_requests, channel_of_run
from holdfast.agents.batches.records import Applied, OpenRequest
from holdfast.agents.batches.replying import reply_of
from holdfast.agents.changes import Changes, state_change
from holdfast.agents.compaction.automatic import compact_after
from holdfast.agents.deciding import Deciding
from holdfast.agents.definitions import AgentSpec
from holdfast.agents.ending import end_runs
from holdfast.agents.forks.simulating import Records, load_records
from holdfast.agents.history import said_before
from holdfast.agents.money.budgets import charge
from holdfast.agents.money.limits import is_last
from holdfast.agents.people.inquiring import channel_of
from holdfast.agents.records import LoadedRun, RunEnd
from holdfast.agents.records_inbox import MailOf
from holdfast.agents.statements import Batches, Inbox, Messages, Runs
from holdfast.agents.turns import heeding
from holdfast.errors import LeaseLost
from holdfast.kernel.complete import error_json
from holdfast.kernel.database import Transaction
from holdfast.kernel.families import lock_order
from holdfast.kernel.records import Lease, Resolution
from holdfast.kernel.statements import Jobs, Waiting
from holdfast.kernel.states import State
from holdfast.kernel.waiting import resolve
from holdfast.models.batches import BatchLine
from holdfast.models.folding import Reply

BATCH_ERROR = "batch_error"
MISSING, NOT_SUBMITTED, NOT_STORED = "missing", "not_submitted", "not_stored"
# Errors of one request after which asking again would be answered the same way, or has been tried for long.
_FINAL = frozenset(
    {
        *("invalid_request_error", "not_found_error", "request_too_large", "permission_error"),
        *("authentication_error", NOT_SUBMITTED, NOT_STORED),
    }
)


class Collector(NamedTuple):
    """What applying results needs beside them."""

    batch: str
    serves: Callable[[str], bool]  # whether runs of this agent are played here, so that what follows is decided here
    deciding: Callable[[LoadedRun, AgentSpec, int, Records], Deciding]
    spent: Callable[[str, dict[str, Any]], Spent]
    parse: Callable[[str], AgentSpec]
    prefix: str
    notify: bool


class _Case(NamedTuple):
    """One request, its run, and what the provider said of it."""

    request: OpenRequest
    run: LoadedRun
    line: BatchLine
    records: Records = Records()  # what a fork may be answered with

    @property
    def wanted(self) -> bool:
        """Whether its run still waits for it, and not for a person, say, since its time is over."""
        waits = self.run.state.startswith("batch_") and self.run.turns == self.request.turn - 1
        return waits and self.request.turn_state == "batched"


async def apply(tx: Transaction, lease: Lease, lines: Sequence[BatchLine], by: Collector, where: Gathering) -> int:
    """Apply results to the runs that wait for them; returns how many were new.

    A batch that came late may bring answers to requests which have been submitted again since: an answer is one, but
    that it has none says nothing about the other batch.
    """
    if await tx.one(Waiting.hold, **lease.held._asdict()) is None:
        raise LeaseLost(lease.id, lease.fence)
    by_id: dict[str, BatchLine] = {}
    for line in lines:  # of several about one request, the one with its answer
        if line.message is not None or line.custom_id not in by_id:
            by_id[line.custom_id] = line
    locked = await tx.many(Jobs.lock_jobs, seqs=await _family(tx, by_id))
    found = await tx.many(Batches.find_requests, ids=sorted(by_id))  # as they are now that nobody else changes them
    requests = [each for each in found if each.batch == by.batch or by_id[each.custom_id].message is not None]
    if not requests:
        return 0
    loaded = {run.id: run for run in await tx.many(Runs.load_runs, jobs=[each.job for each in requests])}
    waiting = {job.seq for job in locked if job.state == State.WAITING}
    cases = [_Case(each, loaded[each.run], by_id[each.custom_id]) for each in requests if each.run in loaded]
    changes = Changes(by.prefix)
    live = [case for case in cases if case.wanted and case.run.job in waiting]
    late = [case for case in cases if not (case.wanted and case.run.job in waiting)]
    usable = [case for case in live if _is_usable(case.line)]
    kept = [case for case in usable if not by.serves(case.run.agent_name)]
    await _apply_succeeded(tx, [case for case in usable if by.serves(case.run.agent_name)], by, changes)
    await _keep(tx, kept, changes)
    await _apply_failed(tx, [case for case in live if not _is_usable(case.line)], by, changes, where)
    await _account(tx, late, by)
    bodies = {case.request.custom_id: to_json(case.line.message) for case in kept}
    applied = [Applied(id, by_id[id].type, bodies.get(id)) for id in (each.custom_id for each in requests)]
    await tx.run(Batches.apply_requests, applied=applied)
    await changes.write(tx)
    return len(requests)


async def _family(tx: Transaction, ids: Iterable[str]) -> list[int]:
    """The jobs of the runs that these requests are of, and their parents, in the order in which they are locked."""
    requests = await tx.many(Batches.find_requests, ids=sorted(ids))
    kin = await tx.many(Jobs.parents_of, seqs=[request.job for request in requests])
    return lock_order(kin)


async def _apply_succeeded(tx: Transaction, cases: Sequence[_Case], by: Collector, changes: Changes) -> None:
    if not cases:
        return
    mails = {mail.run: mail for mail in await tx.many(Inbox.mails, runs=[case.run.id for case in cases])}
    cases = [case._replace(records=await load_records(tx, case.run)) for case in cases]
    turned = [_turned(case, by, mails.get(case.run.id), await _before(tx, case)) for case in cases]
    fresh = await store_answers(tx, turned, changes, notify=by.notify)
    concluded = [each for each in fresh if each.decision.conclusion is not None]
    await retire_refused(tx, [each.run.id for each in concluded if _conclusion(each).outcome == "refused"])
    if concluded:
        await end_runs(tx, [end_of(each.run.id, _conclusion(each)) for each in concluded], changes)
    await changes.write(tx)
    for each in concluded:
        await compact_after(tx, each.run)
    await resolve(tx, [_resolution(each) for each in fresh])


async def _keep(tx: Transaction, cases: Sequence[_Case], changes: Changes) -> None:
    """Answers to runs of another program: its worker decides, by its own rules and prices. They wait for it."""
    if not cases:
        return
    await tx.run(Batches.doubt_turns, runs=[case.run.id for case in cases])  # until it has stored them
    await _move(tx, cases, "pending", changes)
    await changes.write(tx)
    await resolve(tx, [Resolution(case.run.job, channel_of_run(case.run.id), State.PENDING) for case in cases])


async def _move(tx: Transaction, cases: Sequence[_Case], state: str, changes: Changes) -> None:
    """Runs that wait go to another state."""
    for before in sorted({case.run.state for case in cases} - {state}):
        runs = [case.run for case in cases if case.run.state == before]
        await tx.many(Batches.move_runs, ids=[run.id for run in runs], state=state, before=before)
        for run in runs:
            moved = state_change(run.id, run.session, run.agent_name, run.parent, state=state, before=before)
            changes.tell(run.id, "run_state", moved, topic="run_state")


async def _before(tx: Transaction, case: _Case) -> str:
    """The text that an answer goes on with, if one was cut off."""
    if not case.run.continued:
        return ""
    window = await tx.many(Messages.window, session=case.run.session, branch=case.run.branch)
    return said_before(window, case.run.id, case.request.turn)


def _conclusion(each: Turned) -> Conclusion:
    assert each.decision.conclusion is not None
    return each.decision.conclusion


def _turned(case: _Case, by: Collector, mail: MailOf | None, before: str) -> Turned:
    """What follows from an answer, as from one that was streamed."""
    run, number = case.run, case.request.turn
    reply = reply_of(case.line.message or {}, case.request.model)
    answer = Answer(
        model=reply.model,
        blocks=reply.blocks,
        stop_reason=reply.stop_reason or "",
        spent=by.spent(reply.model, reply.usage),
        request_id=reply.id or None,
        container=(reply.container or {}).get("id"),
    )
    last = is_last(run, by.parse(run.definition), answer.spent)
    return Turned(run, number, answer, heeding(mail, _decided(case, reply, by, before)._replace(last=last)))


def _is_usable(line: BatchLine) -> bool:
    """Whether an answer can be stored: its calls have names, and ids that tell them apart."""
    if line.message is None:
        return False
    uses = [block for block in line.message.get("content") or () if block.get("type") == "tool_use"]
    ids = [use.get("id") for use in uses]
    named = all(isinstance(use.get("id"), str) and use.get("name") for use in uses)
    return named and len(set(ids)) == len(ids) and isinstance(line.message.get("usage") or {}, dict)


def _decided(case: _Case, reply: Reply, by: Collector, before: str) -> Decision:
    spec, number = by.parse(case.run.definition), case.request.turn
    return by.deciding(case.run, spec, number, case.records).decide(reply, before)


def _resolution(each: Turned) -> Resolution:
    """What becomes of the run's job: it ends, waits for its calls or a person, or goes on."""
    seq, channel = each.run.job, channel_of_run(each.run.id)
    conclusion = each.decision.conclusion
    if conclusion is not None and conclusion.outcome == "failed":
        return Resolution(seq, channel, State.FAILED, error=error_json(BATCH_ERROR, conclusion.text))
    if conclusion is not None:
        return Resolution(seq, channel, State.SUCCEEDED, result=to_json(told_above(conclusion)))
    if each.launched:
        return Resolution(seq, channel, State.WAITING, children=len(each.launched))
    if each.decision.inquiry is not None:
        return Resolution(seq, channel, State.WAITING, onto=channel_of(each.decision.inquiry.id))
    return Resolution(seq, channel, State.PENDING)


async def _apply_failed(
    tx: Transaction, cases: Sequence[_Case], by: Collector, changes: Changes, where: Gathering
) -> None:
    """Ask again, or fail the run: by what went wrong and how often it has."""
    again: list[_Case] = []
    ended: list[_Case] = []
    for case in cases:
        kind, text = _trouble(case.line)
        spec = by.parse(case.run.definition)
        changes.tell(
            case.run.id,
            "turn_failed",
            {"turn": case.request.turn, "attempt": case.request.attempt, "kind": kind, "message": text},
        )
        if kind in _FINAL or case.request.failures + 1 >= spec.attempts:
            await _fail(tx, case, f"{kind}: {text}", changes)
            ended.append(case)
        else:
            again.append(case)
    await _account(tx, ended, by)
    await _ask_again(tx, again, changes, where)


def _trouble(line: BatchLine) -> tuple[str, str]:
    if line.message is not None:
        return "malformed", "the answer cannot be stored: its calls cannot be told apart"
    error: dict[str, Any] = line.error or {}
    inner = error.get("error") if isinstance(error.get("error"), dict) else error
    kind = str((inner or {}).get("type") or line.type)
    return kind, str((inner or {}).get("message") or f"the request {line.type}")


async def _fail(tx: Transaction, case: _Case, why: str, changes: Changes) -> None:
    error = {"kind": BATCH_ERROR, "message": why}
    await tx.run(Batches.fail_batched, run=case.run.id, number=case.request.turn, error=to_json(error))
    await end_runs(tx, [RunEnd(case.run.id, "failed", error_type=BATCH_ERROR, error=why)], changes)
    channel = channel_of_run(case.run.id)
    await resolve(tx, [Resolution(case.run.job, channel, State.FAILED, error=error_json(BATCH_ERROR, why))])


async def _ask_again(tx: Transaction, cases: Sequence[_Case], changes: Changes, where: Gathering) -> None:
    if not cases:
        return
    bodies = {
        row.custom_id: row.body for row in await tx.many(Batches.request_body, ids=[c.request.custom_id for c in cases])
    }
    requests = []
    for case in cases:
        body = bodies[case.request.custom_id]
        assert body is not None, "a request that is open has its body"
        requests.append((case.run, case.request.turn, case.request.attempt + 1, body))
    for unknown in (0, 1):  # what is missing or cannot be read may have been bought all the same
        ids = [case.run.id for case in cases if _may_be_bought(case.line) == bool(unknown)]
        if ids:
            await tx.run(Batches.retry_turns, runs=ids, error=to_json({"kind": BATCH_ERROR}), unknown=unknown)
    await _move(tx, cases, "batch_submitting", changes)
    await add_requests(tx, where, requests)


def _may_be_bought(line: BatchLine) -> bool:
    return line.type in (MISSING, NOT_STORED) or line.message is not None


async def _account(tx: Transaction, cases: Sequence[_Case], by: Collector) -> None:
    """Answers that nobody reads are paid for all the same: by their usage, or as ones that may have been bought."""
    open_ones = [case for case in cases if case.request.turn_state == "batched" and _may_be_bought(case.line)]
    doubted = [case.run.id for case in open_ones if not _usage(case)]
    if doubted:
        await tx.run(Batches.doubt_turns, runs=doubted)
    unwanted = [
        Turned(case.run, case.request.turn, _unread(case, by), Decision(), cancelled=True)
        for case in open_ones
        if _usage(case)
    ]
    if unwanted:  # whatever its run does by now, it goes on doing
        await tx.many(Runs.end_turns, answers=[each.ended._replace(next=each.run.state) for each in unwanted])
    for each in unwanted:  # what was reserved for them was freed when their runs ended
        await charge(tx, each.run.session, each.answer.spent.cost_nano)


def _usage(case: _Case) -> dict[str, Any]:
    return (case.line.message or {}).get("usage") or {}


def _unread(case: _Case, by: Collector) -> Answer:
    message = case.line.message or {}
    model = str(message.get("model") or case.request.model)
    return Answer(model, [], str(message.get("stop_reason") or ""), by.spent(model, _usage(case)), None)
