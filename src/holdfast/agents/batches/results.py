"""Results of a batch, applied to the runs that wait for them, some hundred in one transaction.

A result is applied once, by its custom id: a second delivery finds nothing to apply it to. What a batch has not
answered, or not for good, is asked again with the next one, as often as its agent's attempts allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.agents.batches.records import AppliedResult, BatchesSql, OpenRequest
from holdfast.agents.batches.steps import BatchDestination, add_requests, channel_of_run
from holdfast.agents.compaction.automatic import compact_after
from holdfast.agents.content import readable
from holdfast.agents.definition import DEFAULT_ATTEMPTS, AgentSpec
from holdfast.agents.events.log import Changes, state_change
from holdfast.agents.forks.past import RecordedCalls, load_records
from holdfast.agents.money.budgets import charge
from holdfast.agents.money.cost import Spent
from holdfast.agents.money.limits import is_last
from holdfast.agents.people.questions import channel_of
from holdfast.agents.rows import LoadedRun, RunEnd, RunMail
from holdfast.agents.runs.decision import AskedCall, Decider, Decision, asked_calls, repair_calls
from holdfast.agents.runs.end import (
    Conclusion,
    ContentRefusal,
    end_of,
    end_runs,
    result_for_caller,
    retire_refused,
    retire_unaccepted,
    to_json,
)
from holdfast.agents.runs.history import CLIENT_USE, said_before, was_corrected
from holdfast.agents.runs.output import UnreadAnswer
from holdfast.agents.runs.turn import (
    Answer,
    CommitResult,
    CommittedTurn,
    Play,
    after_mail,
    commit,
    repair_results,
    store_answers,
)
from holdfast.agents.statements import InboxSql, MessagesSql, RunsSql
from holdfast.agents.states import IN_BATCH, RunState, TurnState
from holdfast.errors import NotUnderstood
from holdfast.kernel import codec, leases
from holdfast.kernel.complete import error_json
from holdfast.kernel.database import Transaction
from holdfast.kernel.families import lock_jobs, lock_order, parents_of
from holdfast.kernel.rows import Lease, Resolution
from holdfast.kernel.states import State
from holdfast.kernel.waiting import resolve
from holdfast.models.batches import BatchLine
from holdfast.models.fold import Reply
from holdfast.models.protocol import Wire
from holdfast.workers.endings import redacted

# Replies: an answer from a batch, read as one that was streamed.


def reply_of(message: Wire, model: str) -> Reply:
    """What a message of the provider says; `model` is the one that was asked."""
    return Reply(
        id=str(message.get("id", "")),
        model=str(message.get("model") or model),
        blocks=readable(message.get("content") or []),
        stop_reason=message.get("stop_reason"),
        stop_details=message.get("stop_details"),
        usage=message.get("usage") or {},
        container=message.get("container"),
    )


async def commit_kept(tx: Transaction, play: Play, answer: Answer, decision: Decision, custom_id: str) -> CommitResult:
    """Store an answer that another program's worker had kept for this one: what was in doubt is known now."""
    committed = await commit(tx, play, answer, decision)
    await tx.run(BatchesSql.settle_doubt, custom_id=custom_id)
    await tx.run(BatchesSql.take_answer, custom_id=custom_id)
    return committed


_LONGEST = 2_000  # bytes of what the provider says about one request
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
    serves: Callable[[LoadedRun], bool]  # whether this run is played here, so that what follows is decided here
    deciding: Callable[[LoadedRun, AgentSpec, int, RecordedCalls], Decider]
    spent: Callable[[str, dict[str, Any]], Spent]
    parse: Callable[[str], AgentSpec]
    prefix: str
    notify: bool
    linked: Callable[[Decision], Decision] = lambda decision: decision  # names the present span in what is called


class _RequestResult(NamedTuple):
    """One request, its run, and what the provider said of it."""

    request: OpenRequest
    run: LoadedRun
    line: BatchLine
    records: RecordedCalls = RecordedCalls()  # what a fork may be answered with

    @property
    def wanted(self) -> bool:
        """Whether its run still waits for it. A run whose time is up may wait for a person instead."""
        waits = self.run.state in IN_BATCH and self.run.turns == self.request.turn - 1
        return waits and self.request.turn_state == TurnState.BATCHED


async def apply(
    tx: Transaction, lease: Lease, lines: Sequence[BatchLine], by: Collector, where: BatchDestination
) -> int:
    """Apply results to the runs that wait for them; returns how many were new.

    A batch that came late may bring answers to requests which have been submitted again since: an answer is one, but
    that it has none says nothing about the other batch.
    """
    await leases.hold(tx, lease)
    by_id: dict[str, BatchLine] = {}
    for line in lines:  # of several about one request, the one with its answer
        if line.message is not None or line.custom_id not in by_id:
            by_id[line.custom_id] = line
    locked = await lock_jobs(tx, await _family(tx, by_id))
    found = await tx.many(BatchesSql.find_requests, ids=sorted(by_id))  # as they are now that nobody else changes them
    requests = [each for each in found if each.batch == by.batch or by_id[each.custom_id].message is not None]
    if not requests:
        return 0
    loaded = {run.id: run for run in await tx.many(RunsSql.load_runs, jobs=[each.job for each in requests])}
    waiting = {job.seq for job in locked if job.state == State.WAITING}
    cases = [_RequestResult(each, loaded[each.run], by_id[each.custom_id]) for each in requests if each.run in loaded]
    changes = Changes(by.prefix)
    live = [case for case in cases if case.wanted and case.run.job in waiting]
    late = [case for case in cases if not (case.wanted and case.run.job in waiting)]
    usable = [case for case in live if _is_usable(case.line)]
    ours = {case.run.id for case in usable if by.serves(case.run)}
    kept = [case for case in usable if case.run.id not in ours]
    kept += await _apply_succeeded(tx, [case for case in usable if case.run.id in ours], by, changes)
    await _keep(tx, kept, changes)
    await _apply_failed(tx, [case for case in live if not _is_usable(case.line)], by, changes, where)
    await _account(tx, late, by)
    bodies = {case.request.custom_id: to_json(case.line.message) for case in kept}
    applied = [AppliedResult(id, by_id[id].type, bodies.get(id)) for id in (each.custom_id for each in requests)]
    stored = Counter(each.id for each in await tx.many(BatchesSql.apply_requests, applied=applied))
    for batch, n in sorted(stored.items()):
        await tx.run(BatchesSql.count_applied, id=batch, n=n)
    await changes.write(tx)
    return len(requests)


async def find_asked_calls(
    tx: Transaction,
    lines: Sequence[BatchLine],
    serves: Callable[[LoadedRun], bool],
    parse: Callable[[str], AgentSpec],
) -> list[AskedCall]:
    """The calls in these answers that the program's `approve=` is asked about, of the runs that it serves."""
    calling = {line.custom_id: line for line in lines if _is_usable(line) and _calls_something(line)}
    if not calling:
        return []
    requests = await tx.many(BatchesSql.find_requests, ids=sorted(calling))
    loaded = {run.id: run for run in await tx.many(RunsSql.load_runs, jobs=[each.job for each in requests])}
    asked: list[AskedCall] = []
    for each in requests:
        run = loaded.get(each.run)
        if run is not None and serves(run):
            reply = repair_calls(reply_of(calling[each.custom_id].message or {}, each.model), run.id, each.turn).reply
            asked += asked_calls(run, parse(run.definition), each.turn, reply)
    return asked


async def _family(tx: Transaction, ids: Iterable[str]) -> list[int]:
    """The jobs of the runs that these requests are of, and their parents, in the order in which they are locked."""
    requests = await tx.many(BatchesSql.find_requests, ids=sorted(ids))
    kin = await parents_of(tx, [request.job for request in requests])
    return lock_order(kin)


async def _apply_succeeded(
    tx: Transaction, cases: Sequence[_RequestResult], by: Collector, changes: Changes
) -> list[_RequestResult]:
    """Store answers; returns those whose type raised. Each of these is kept for its run, which reads it by itself."""
    unread: list[_RequestResult] = []
    if not cases:
        return unread
    mails = {mail.run: mail for mail in await tx.many(InboxSql.mails, runs=[case.run.id for case in cases])}
    cases = [case._replace(records=await load_records(tx, case.run)) for case in cases]
    turned = []
    for case in cases:
        try:
            turned.append(_turned(case, by, mails.get(case.run.id), await _earlier(tx, case)))
        except UnreadAnswer:
            unread.append(case)
    fresh = await store_answers(tx, turned, changes, notify=by.notify)
    concluded = [each for each in fresh if each.decision.conclusion is not None]
    await retire_refused(tx, [each.run.id for each in concluded if _conclusion(each).outcome == "refused"])
    if concluded:
        await end_runs(tx, [end_of(each.run.id, _conclusion(each)) for each in concluded], changes)
    await changes.write(tx)
    for each in concluded:
        await compact_after(tx, each.run)
    await resolve(tx, [_resolution(each) for each in fresh])
    return unread


async def _keep(tx: Transaction, cases: Sequence[_RequestResult], changes: Changes) -> None:
    """Answers to runs of another program: its worker decides, by its own rules and prices. They wait for it."""
    if not cases:
        return
    await tx.run(BatchesSql.doubt_turns, runs=[case.run.id for case in cases])  # until it has stored them
    await _move(tx, cases, RunState.PENDING, changes)
    await changes.write(tx)
    await resolve(tx, [Resolution(case.run.job, channel_of_run(case.run.id), State.PENDING) for case in cases])


async def _move(tx: Transaction, cases: Sequence[_RequestResult], state: RunState, changes: Changes) -> None:
    """Runs that wait go to another state."""
    for before in sorted({case.run.state for case in cases} - {state}):
        runs = [case.run for case in cases if case.run.state == before]
        await tx.many(BatchesSql.move_runs, ids=[run.id for run in runs], state=state, before=before)
        for run in runs:
            moved = state_change(
                run.id, run.session, run.agent_name, run.parent, agent=run.agent, state=state, before=before
            )
            changes.tell(run.id, "run_state", moved, topic="run_state")


class _PriorTurns(NamedTuple):
    """What came before an answer: the ids of calls, the text that it continues with, and whether one did not fit."""

    taken: frozenset[str]
    text: str = ""
    corrected: bool = False


async def _earlier(tx: Transaction, case: _RequestResult) -> _PriorTurns:
    taken = await _taken(tx, case)
    if not case.run.continued:
        return _PriorTurns(taken)
    window = await tx.many(MessagesSql.window, session=case.run.session, branch=case.run.branch)
    return _PriorTurns(taken, said_before(window, case.run.id, case.request.turn), was_corrected(window))


def _conclusion(each: CommittedTurn) -> Conclusion:
    assert each.decision.conclusion is not None
    return each.decision.conclusion


async def _taken(tx: Transaction, case: _RequestResult) -> frozenset[str]:
    """The ids of the calls before an answer that calls something."""
    if not _calls_something(case.line):
        return frozenset()
    found = await tx.many(MessagesSql.use_ids, session=case.run.session, branch=case.run.branch)
    return frozenset(use.id for use in found)


def _calls_something(line: BatchLine) -> bool:
    return any(block.get("type") == CLIENT_USE for block in (line.message or {}).get("content") or ())


def _turned(case: _RequestResult, by: Collector, mail: RunMail | None, earlier: _PriorTurns) -> CommittedTurn:
    """What follows from an answer, as from one that was streamed."""
    run, number = case.run, case.request.turn
    reply, repairs = repair_calls(reply_of(case.line.message or {}, case.request.model), run.id, number, earlier.taken)
    answer = Answer(
        model=reply.model,
        blocks=reply.blocks,
        stop_reason=reply.stop_reason or "",
        spent=by.spent(reply.model, reply.usage),
        request_id=reply.id or None,
        container=(reply.container or {}).get("id"),
        repairs=repairs,
    )
    last = is_last(run, by.parse(run.definition), answer.spent)
    return CommittedTurn(run, number, answer, after_mail(mail, _decided(case, reply, by, earlier).within(last=last)))


def _is_usable(line: BatchLine) -> bool:
    """Whether an answer can be stored: it is made of blocks, and says what it used."""
    if line.message is None:
        return False
    content: Any = line.message.get("content") or []
    blocks = isinstance(content, list) and all(isinstance(block, dict) for block in content)
    return blocks and isinstance(line.message.get("usage") or {}, dict)


def _decided(case: _RequestResult, reply: Reply, by: Collector, earlier: _PriorTurns) -> Decision:
    spec, number = by.parse(case.run.definition), case.request.turn
    deciding = by.deciding(case.run, spec, number, case.records)
    return by.linked(deciding.decide(reply, earlier.text, corrected=earlier.corrected))


def _resolution(each: CommittedTurn) -> Resolution:
    """What becomes of the run's job: it ends, waits for its calls or a person, or continues."""
    seq, channel = each.run.job, channel_of_run(each.run.id)
    conclusion = each.decision.conclusion
    if conclusion is not None and conclusion.outcome == "failed":
        return Resolution(seq, channel, State.FAILED, error=error_json(BATCH_ERROR, conclusion.text))
    if conclusion is not None:
        return Resolution(seq, channel, State.SUCCEEDED, result=to_json(result_for_caller(conclusion)))
    if each.launched:
        return Resolution(seq, channel, State.WAITING, children=len(each.launched))
    if each.decision.inquiry is not None:
        return Resolution(seq, channel, State.WAITING, onto=channel_of(each.decision.inquiry.id))
    return Resolution(seq, channel, State.PENDING)


async def _apply_failed(
    tx: Transaction, cases: Sequence[_RequestResult], by: Collector, changes: Changes, where: BatchDestination
) -> None:
    """Ask again, or fail the run: by what went wrong and how often it has."""
    again: list[_RequestResult] = []
    ended: list[_RequestResult] = []
    for case in cases:
        kind, text = _error_of(case.line)
        changes.tell(
            case.run.id,
            "turn_failed",
            {"turn": case.request.turn, "attempt": case.request.attempt, "kind": kind, "message": text},
        )
        if kind in _FINAL and await _repair_results(tx, case, ContentRefusal(kind, text), changes):
            continue
        if kind in _FINAL or case.request.failures + 1 >= _attempts(case.run, by):
            refusal = ContentRefusal(kind, text) if kind in _FINAL else None
            await retire_unaccepted(tx, case.run, refusal, changes)
            await _fail(tx, case, f"{kind}: {text}", changes)
            ended.append(case)
        else:
            again.append(case)
    await _account(tx, ended, by)
    await _ask_again(tx, again, changes, where)


def _attempts(run: LoadedRun, by: Collector) -> int:
    try:
        return by.parse(run.definition).attempts
    except NotUnderstood:  # it failed anyway, as often as an agent usually may
        return DEFAULT_ATTEMPTS


def _error_of(line: BatchLine) -> tuple[str, str]:
    if line.message is not None:
        return "malformed", "the answer cannot be stored: it is not made of blocks"
    error: dict[str, Any] = line.error or {}
    inner = error.get("error") if isinstance(error.get("error"), dict) else error
    kind = str((inner or {}).get("type") or line.type)
    return kind, redacted((inner or {}).get("message") or f"the request {line.type}", _LONGEST)


async def _repair_results(tx: Transaction, case: _RequestResult, refusal: ContentRefusal, changes: Changes) -> bool:
    """Where a result of a tool was refused: replace it, and let the run be played again, with another request."""
    run, turn = case.run, case.request.turn
    rows = await tx.many(BatchesSql.request_body, ids=[case.request.custom_id]) if turn > 1 else []
    sent = (codec.decode(rows[0].body) or {}).get("messages", []) if rows else []
    if not await repair_results(tx, run, turn, sent, refusal, changes):
        return False
    error = {"kind": refusal.kind, "message": refusal.message}
    await tx.run(BatchesSql.fail_batched, run=run.id, number=turn, error=to_json(error))
    await _move(tx, [case], RunState.PENDING, changes)
    await resolve(tx, [Resolution(run.job, channel_of_run(run.id), State.PENDING)])
    return True


async def _fail(tx: Transaction, case: _RequestResult, why: str, changes: Changes) -> None:
    error = {"kind": BATCH_ERROR, "message": why}
    await tx.run(BatchesSql.fail_batched, run=case.run.id, number=case.request.turn, error=to_json(error))
    await end_runs(tx, [RunEnd(case.run.id, RunState.FAILED, error_type=BATCH_ERROR, error=why)], changes)
    channel = channel_of_run(case.run.id)
    await resolve(tx, [Resolution(case.run.job, channel, State.FAILED, error=error_json(BATCH_ERROR, why))])


async def _ask_again(
    tx: Transaction, cases: Sequence[_RequestResult], changes: Changes, where: BatchDestination
) -> None:
    if not cases:
        return
    bodies = {
        row.custom_id: row.body
        for row in await tx.many(BatchesSql.request_body, ids=[c.request.custom_id for c in cases])
    }
    requests = []
    for case in cases:
        body = bodies[case.request.custom_id]
        assert body is not None, "a request that is open has its body"
        requests.append((case.run, case.request.turn, case.request.attempt + 1, body))
    for unknown in (0, 1):  # what is missing or cannot be read may have been bought anyway
        ids = [case.run.id for case in cases if _may_be_bought(case.line) == bool(unknown)]
        if ids:
            await tx.run(BatchesSql.retry_turns, runs=ids, error=to_json({"kind": BATCH_ERROR}), unknown=unknown)
    await _move(tx, cases, RunState.BATCH_SUBMITTING, changes)
    await add_requests(tx, where, requests)


def _may_be_bought(line: BatchLine) -> bool:
    return line.type in (MISSING, NOT_STORED) or line.message is not None


async def _account(tx: Transaction, cases: Sequence[_RequestResult], by: Collector) -> None:
    """Charge for answers that nobody reads: by their usage, or as answers that may have been bought."""
    open_ones = [case for case in cases if case.request.turn_state == TurnState.BATCHED and _may_be_bought(case.line)]
    doubted = [case.run.id for case in open_ones if not _usage(case)]
    if doubted:
        await tx.run(BatchesSql.doubt_turns, runs=doubted)
    unwanted = [
        CommittedTurn(case.run, case.request.turn, _unread(case, by), Decision(), cancelled=True)
        for case in open_ones
        if _usage(case)
    ]
    if unwanted:  # whatever its run does by now, it continues doing
        await tx.many(RunsSql.end_turns, answers=[each.ended._replace(next=each.run.state) for each in unwanted])
    for each in unwanted:  # what was reserved for them was freed when their runs ended
        await charge(tx, each.run.session, each.answer.spent.cost_nano)


def _usage(case: _RequestResult) -> dict[str, Any]:
    return (case.line.message or {}).get("usage") or {}


def _unread(case: _RequestResult, by: Collector) -> Answer:
    message = case.line.message or {}
    model = str(message.get("model") or case.request.model)
    return Answer(model, [], str(message.get("stop_reason") or ""), by.spent(model, _usage(case)), None)
