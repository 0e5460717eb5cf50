"""The commit of a turn: what is stored of answers, and everything that follows from them, together or not at all.

Answers come one by one from streams, each under the lease of its run, and by the hundred from batches, whose runs wait
in the store. What is stored is the same. Doing it again after a lost answer stores nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from holdfast.agents.definition import AgentSpec, ToolSpec
from holdfast.agents.events.log import Changes, created, state_change
from holdfast.agents.messages import Said, add_messages
from holdfast.agents.money import budgets
from holdfast.agents.money.budgets import passed_on
from holdfast.agents.people.questions import inquire
from holdfast.agents.people.records import NewInquiry
from holdfast.agents.rows import CallRow, EndedTurn, LoadedRun, NewCall, NewRun, RunEnd
from holdfast.agents.runs.history import result_block
from holdfast.agents.statements import AgentsSql, CallsSql, MessagesSql, RunsSql
from holdfast.agents.states import CallState, RunState
from holdfast.errors import NotUnderstood
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.kernel.enqueue import enqueue
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob, Route

# Needs: what a run asks of the worker that plays it, by the version of the agent that it keeps.
#
# A worker needs the code of the tools that are called where the run is played, and of every tool whose `approve=`
# says
# which calls a person has to approve. The route of the run names them, so a worker that lacks one never sees the run.
# A
# tool that has a pool of its own, by another queue or by capabilities that its agent does not require, is called
# there.


MOST_NAMED = 64  # a route has no more than these, and those with approve=; nobody depends on the others' being there


def needs_of(spec: AgentSpec) -> list[str]:
    """The kinds of the tools whose code a worker must have to play runs of this version."""
    asking = {tool.kind for tool in spec.tools if tool.approve and not tool.person}
    called = {tool.kind for tool in spec.tools if not tool.person and not _has_own_pool(tool, spec)} - asking
    return sorted([*asking, *sorted(called)[: max(0, MOST_NAMED - len(asking))]])


@lru_cache(maxsize=1_000)
def _stored_needs(definition: str) -> Sequence[str]:
    return tuple(needs_of(AgentSpec.parse(definition)))


def _has_own_pool(tool: ToolSpec, spec: AgentSpec) -> bool:
    return tool.queue != spec.queue or not set(tool.requires) <= set(spec.requires)


async def routed(tx: Transaction, job: NewJob, route: Route, agent: str) -> tuple[NewJob, Route]:
    """The job of a child run and its route, with what the present version of its agent needs."""
    row = await tx.one(AgentsSql.find_agent, id=agent)
    stored = None if row is None else await tx.one(AgentsSql.find_version, agent=row.id, version=row.version)
    try:
        needs = () if stored is None else _stored_needs(stored.definition)
    except NotUnderstood:  # the worker that plays it says so
        return job, route
    route = route_for(job.queue, job.kind, [*json.loads(route.capabilities), *needs])
    return job._replace(route=route.id), route


PROVIDER_ERROR = "streaming_error"
INTERRUPTED = "interrupted"
_CAP = 1 << 28


class Spent(NamedTuple):
    """What one answer used and cost."""

    usage: str
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int

    def counters(self) -> dict[str, int]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cost_nano": self.cost_nano,
        }


class Answer(NamedTuple):
    """What a model said, whole."""

    model: str
    blocks: list[dict[str, Any]]
    stop_reason: str
    spent: Spent
    request_id: str | None
    container: str | None = None
    deltas: Sequence[tuple[str, dict[str, Any]]] = ()  # not journaled yet
    repairs: tuple[dict[str, Any], ...] = ()  # calls that could not be told apart as they came


class ToolCallRequest(NamedTuple):
    """One request to run a tool: with a job, or answered on the spot."""

    row: NewCall
    job: NewJob | None = None
    route: Route | None = None
    child: str | None = None  # the id of the agent that answers it in a run of its own
    inquiry: NewInquiry | None = None  # it waits for a person


class Conclusion(NamedTuple):
    """How a run ends by itself; "failed" when what the model said cannot be followed."""

    outcome: Literal["answered", "refused", "truncated", "limited", "unfit", "failed"]
    text: str
    output: Any = None
    refusal: dict[str, Any] | None = None
    limited: str | None = None


class Decision(NamedTuple):
    """What is called, and what then: an end, a question to a person, a word to continue; without any, the next turn."""

    calls: tuple[ToolCallRequest, ...] = ()
    conclusion: Conclusion | None = None
    inquiry: NewInquiry | None = None
    continuation: str | None = None  # what the model is told so that it continues
    last: bool = False  # the limits of the run leave no room for another turn
    otherwise: Conclusion | None = None  # how it ends where it may not continue

    def within(self, *, last: bool) -> Decision:
        """The same, by what the limits of the run leave room for."""
        decision = self._replace(last=last)
        if not last or self.otherwise is None:
            return decision
        return decision._replace(conclusion=self.otherwise, continuation=None)


class Turned(NamedTuple):
    """One answer of one run, and what follows from it; nothing, when the run has been cancelled meanwhile."""

    run: LoadedRun
    number: int
    answer: Answer
    decision: Decision
    cancelled: bool = False

    @property
    def launched(self) -> list[ToolCallRequest]:
        return [] if self.cancelled else [call for call in self.decision.calls if call.job is not None]

    @property
    def inquiries(self) -> list[NewInquiry]:
        asked = [call.inquiry for call in self.launched if call.inquiry is not None]
        if self.decision.inquiry is not None and not self.cancelled:
            asked.append(self.decision.inquiry)
        return asked

    @property
    def next(self) -> str:
        """The state of the run, unless it ends."""
        if self.inquiries:
            return RunState.AWAITING_INPUT
        if self.launched:
            return RunState.PENDING_TOOLS
        return RunState.STREAMING if self.run.mode == "streaming" else RunState.PENDING

    @property
    def ended(self) -> EndedTurn:
        """What its turn stores of it."""
        answer, spent = self.answer, self.answer.spent
        return EndedTurn(
            run=self.run.id,
            number=self.number,
            next=self.next,
            request_id=answer.request_id,
            stop_reason=answer.stop_reason,
            usage=spent.usage,
            model=answer.model,
            container=answer.container,
            continued=1 if self.decision.continuation or self.decision.inquiry else 0,
            **spent.counters(),
        )


async def store_answers(tx: Transaction, turned: Sequence[Turned], changes: Changes, *, notify: bool) -> list[Turned]:
    """Store answers with their calls and questions; returns those that an earlier call had not stored.

    The jobs of the runs are the caller's business: they wait for their calls, continue, or end.
    """
    ended = {tuple(key) for key in await tx.many(RunsSql.end_turns, answers=[each.ended for each in turned])}
    fresh = [each for each in turned if (each.run.id, each.number) in ended]
    if not fresh:
        return []
    await add_messages(tx, [Said(each.run, "answer", each.number, each.answer.blocks) for each in fresh])
    await budgets.settle(tx, [(each.run, each.number, each.answer.spent.cost_nano) for each in fresh])
    for each in fresh:
        for type, data in each.answer.deltas:
            changes.tell(each.run.id, type, data)
        counters = each.answer.spent.counters()
        stopped = {"turn": each.number, "stop_reason": each.answer.stop_reason, **counters}
        if each.answer.repairs:
            changes.tell(each.run.id, "answer_repaired", {"turn": each.number, "calls": list(each.answer.repairs)})
        changes.tell(each.run.id, "turn_ended", stopped)
    await _add_calls(tx, [each for each in fresh if each.decision.calls], changes)
    await _answer_on_the_spot(tx, fresh)
    asked = [inquiry for each in fresh for inquiry in each.inquiries]
    if asked:
        await inquire(tx, asked, changes, notify=notify)
    for each in fresh:
        if each.next in (RunState.PENDING_TOOLS, RunState.AWAITING_INPUT):
            changes.tell(each.run.id, "run_state", moved(each.run, each.next), topic="run_state")
    return fresh


def moved(run: LoadedRun, state: str, before: str | None = None) -> dict[str, Any]:
    """What is announced of a run that is being played."""
    before = before or (RunState.STREAMING if run.mode == "streaming" else run.state)
    return state_change(run.id, run.session, run.agent_name, run.parent, agent=run.agent, state=state, before=before)


async def _add_calls(tx: Transaction, turned: Sequence[Turned], changes: Changes) -> None:
    if not turned:
        return
    jobs: list[NewJob] = []
    routes: set[Route] = set()
    rows: list[NewCall] = []
    for each in turned:
        started = {call.row.id for call in each.launched}
        for call in each.decision.calls:
            if call.row.id in started and call.job is not None and call.route is not None:
                job, route = call.job._replace(parent=each.run.job), call.route
                if call.child is not None:
                    job, route = await routed(tx, job, route, call.child)
                jobs.append(job)
                routes.add(route)
            skipped = call.row.state is None and call.row.id not in started
            rows.append(call.row._replace(state=CallState.SKIPPED, is_error=1) if skipped else call.row)
            said = {"call": call.row.id, "name": call.row.name, "input": codec.decode(call.row.input)}
            data = {**said, "turn": call.row.turn, **_pending(each.run, call)}
            topic: Literal["tool_pending"] | None = "tool_pending" if call.row.id in started else None
            changes.tell(each.run.id, "tool_called", data, topic=topic)
    if jobs:
        await enqueue(tx, jobs, sorted(routes))
    await tx.run(CallsSql.add_calls, calls=rows)
    await _add_children(tx, turned, changes)


def _pending(run: LoadedRun, call: ToolCallRequest) -> dict[str, Any]:
    return {
        "execution_id": call.row.id,
        "run_id": run.id,
        "tool_name": call.row.name,
        "is_agent_tool": call.child is not None,
        "agent_name": call.row.name if call.child is not None else None,
        "agent_id": call.child,
    }


async def _add_children(tx: Transaction, turned: Sequence[Turned], changes: Changes) -> None:
    runs: list[NewRun] = []
    for each in turned:
        for call in each.launched:
            if call.child is not None:
                agent = await tx.one(AgentsSql.find_agent, id=call.child)
                assert agent is not None, "an agent with versions that name it is never deleted"
                runs.append(_child(each.run, call, agent.id, agent.name, agent.version))
    if runs:
        await tx.run(RunsSql.add_runs, runs=runs)
        for child in runs:
            changes.tell(child.id, "run_created", created(child), topic="run_created")


def _child(run: LoadedRun, call: ToolCallRequest, agent: str, name: str, version: int) -> NewRun:
    own = codec.decode(run.options)
    task = str(codec.decode(call.row.input).get("task", ""))
    return NewRun(
        id=call.row.id,
        session=run.session,
        branch=call.row.id,
        ordinal=0,
        tenant=run.tenant,
        agent=agent,
        agent_name=name,
        version=version,
        mode=run.mode,
        parent=run.id,
        call=call.row.id,
        root=run.root,
        depth=run.depth + 1,
        input=codec.encode([{"type": "text", "text": task or "(no task was given)"}], what="a task", cap=1 << 26),
        variables=run.variables,
        metadata="{}",
        options=to_json(passed_on(run) | {name: own[name] for name in ("beyond_budget", "fork") if name in own}),
        deadline_us=None if run.deadline_at is None else max(1, run.deadline_at - run.now),
    )


async def _answer_on_the_spot(tx: Transaction, turned: Sequence[Turned]) -> None:
    """Results of turns all of whose calls were answered at once, and the word to continue where one was cut off."""
    results = []
    for each in turned:
        if each.decision.calls and not each.launched and not each.cancelled:
            results.append(await results_of(tx, each.run, each.number))
    await add_messages(tx, results)
    words = [
        Said(each.run, "continuation", each.number, [{"type": "text", "text": each.decision.continuation}])
        for each in turned
        if each.decision.continuation is not None and not each.cancelled
    ]
    await add_messages(tx, words)


async def results_of(tx: Transaction, run: LoadedRun, number: int) -> Said:
    """The results of a turn's calls as one message, in the order in which they were asked for."""
    calls: list[CallRow] = await tx.many(CallsSql.calls_of, run=run.id, turn=number)
    return Said(run, "results", number, [result_block(call) for call in calls])


async def retire_refused(tx: Transaction, runs: Sequence[str]) -> None:
    """A refused exchange is kept, and never sent again."""
    for run in runs:
        await tx.run(MessagesSql.retire, run=run)


def end_of(run: str, conclusion: Conclusion) -> RunEnd:
    if conclusion.outcome == "failed":
        return RunEnd(run, RunState.FAILED, error_type=PROVIDER_ERROR, error=conclusion.text)
    return RunEnd(
        run,
        RunState.COMPLETED,
        outcome=conclusion.outcome,
        output=to_json({"text": conclusion.text, "output": conclusion.output}),
        refusal=None if conclusion.refusal is None else to_json(conclusion.refusal),
        limited=conclusion.limited,
    )


def result_for_caller(conclusion: Conclusion) -> str:
    """The result for the caller that used the run as a tool."""
    if conclusion.outcome == "unfit":
        return f"{conclusion.text}\n\n(the agent's answer is not what it was to be: {conclusion.limited})"
    return conclusion.text or f"(the agent ended without an answer: {conclusion.outcome})"


def to_json(value: Any) -> str:
    return codec.encode(value, what="what a run stores", cap=_CAP)
