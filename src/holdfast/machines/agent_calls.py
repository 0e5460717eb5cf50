"""Agents in machines: an agent that a state asks answers in a run of its own, a child of the machine's job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Protocol

from holdfast.agents.api.options import chosen
from holdfast.agents.api.run import Run
from holdfast.agents.core import AgentsCore
from holdfast.agents.definition import Limits
from holdfast.agents.runs.create import Submission, create_run
from holdfast.clock import Ports
from holdfast.errors import ParentCancelled, UsageError
from holdfast.kernel import codec, leases, waiting
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import JobId
from holdfast.kernel.leases import hold
from holdfast.kernel.rows import Lease
from holdfast.machines import family
from holdfast.machines.family import Outcome, checkpoint_name
from holdfast.machines.graph import Execution, MachineGraph, Stage, ToolLoop
from holdfast.machines.graph import MachineGraph as Graph
from holdfast.machines.problems import Position
from holdfast.machines.stepping import AskAgent, EffectFailed, failure_of
from holdfast.outcomes import Snooze
from holdfast.validation import did_you_mean
from holdfast.workers.context import JobContext
from holdfast.workers.telemetry import sending


@dataclass(frozen=True, slots=True)
class Question:
    """What a state asks, whom, and within which limits."""

    agent: str
    input: Any
    loop: ToolLoop


class AgentAsker(Protocol):
    """Who asks agents for a machine."""

    async def start(self, ctx: JobContext, id: JobId, step: str, question: Question) -> None:
        """Start a run under this id, once; `step` notes that it was started."""

    async def answer(self, id: JobId) -> Any:
        """The answer of a run that has succeeded, as the output of its state."""


class Agents:
    """The agents of a program."""

    def __init__(self, core: AgentsCore) -> None:
        self._core = core

    async def start(self, ctx: JobContext, id: JobId, step: str, question: Question) -> None:
        known, agent, input = self._core.defined, question.agent, question.input
        if agent not in known:
            raise UsageError(f"this program has no agent {agent!r}.{did_you_mean(agent, known)}")
        options = chosen(
            {"limits": limits_of(question.loop), "variables": input if isinstance(input, Mapping) else None}
        )
        intake = self._core.intake(None)
        wish = known[agent]._submission(intake, prompt_of(input), options)
        wish = wish._replace(job=wish.job._replace(id=id, tenant=ctx.tenant), session=wish.session._replace(id=id))
        with sending(intake.ports, wish.job, [id]) as job:
            traced = wish._replace(job=job)
            await ctx.database.transact(_start_run, ctx.lease, traced, step, self._core.settings.announced)

    async def answer(self, id: JobId) -> Any:
        run: Run[Any] = Run(self._core, id)
        result = await run.result()
        output = result.output if result.outcome == "answered" else None
        said = {"text": result.text, "outcome": result.outcome}
        return {**said, **output} if isinstance(output, dict) else said


async def _start_run(tx: Transaction, lease: Lease, wish: Submission, step: str, prefix: str) -> None:
    fence = await leases.hold(tx, lease)
    if fence.cancel_requested_at is not None:
        raise ParentCancelled(lease.id)
    if await waiting.begin_step(tx, lease.seq, step) is not None:
        return
    await create_run(tx, wish._replace(job=wish.job._replace(parent=lease.seq)), prefix)
    await waiting.add_children(tx, lease.seq, 1)
    await waiting.store_step(tx, lease, step, "true")


def prompt_of(input: Any) -> str:
    """What an agent is told: the one text that there is, or all fields as lines."""
    if isinstance(input, str):
        return input
    if not isinstance(input, Mapping) or not input:
        return "Begin."
    if len(input) == 1 and isinstance(text := next(iter(input.values())), str):
        return text
    import json

    lines = [f"{name}: {each if isinstance(each, str) else json.dumps(each)}" for name, each in input.items()]
    return "\n".join(lines)


def limits_of(loop: ToolLoop) -> Limits | None:
    """The limits of a run."""
    given: dict[str, Any] = {"turns": loop.max_turns}
    if loop.max_cost is not None:
        given["cost"] = str(Decimal(str(loop.max_cost)))
    if loop.total_timeout is not None:
        given["time"] = timedelta(seconds=loop.total_timeout)
    given = {name: value for name, value in given.items() if value is not None}
    return Limits(**given) if given else None


def missing_answers(execution: Execution, votes: Sequence[Any]) -> int:
    """How many more answers are to be asked for; `votes` are those that there are, as texts."""
    match execution.type:
        case "parallel":
            return max(0, execution.n_samples - len(votes))
        case "mdap_voting":
            if winner_of(execution, votes) is not None or len(votes) >= execution.max_candidates:
                return 0
            return min(max(1, execution.k_margin - len(votes)), execution.max_candidates - len(votes))
        case _:
            return max(0, 1 - len(votes))


def winner_of(execution: Execution, votes: Sequence[str]) -> str | None:
    """The answer that was given `k_margin` times, or leads by as much."""
    ranks = Counter(votes).most_common(2)
    if not ranks:
        return None
    second = ranks[1][1] if len(ranks) > 1 else 0
    first, count = ranks[0]
    return first if count >= execution.k_margin or count - second >= execution.k_margin else None


def pause_of(execution: Execution, tries: int, chance: float) -> float | None:
    """Seconds before the next try; None when there is none."""
    if execution.type != "retry" or tries > len(execution.backoffs):
        return None
    pause = execution.backoffs[tries - 1]
    return pause * (1 + execution.jitter * (2 * chance - 1))


def unknown_agents(graph: Graph, defined: Collection[str]) -> Iterator[tuple[Position, str]]:
    """The names of agents that a machine asks and nobody has defined, each with where it does."""
    for state in graph.states.values():
        named = state.agent and graph.agents.get(state.agent, state.agent)
        if isinstance(named, str) and named and named not in defined:
            yield state.where("agent"), named


# Answers: a state asks an agent, once or as often as its `execution` says, and takes what comes of it.
#
# Each answer is a run, started once under an id of its own, so a worker that takes over asks nobody a second time.


Settle = Callable[[Stage, Sequence[JobId]], Awaitable[list[Outcome | None]]]


class Answers:
    """The answers of one state; `settled` says how its runs ended, or parks the machine until they have."""

    def __init__(self, ctx: JobContext, asking: AgentAsker, ports: Ports, number: int, settled: Settle) -> None:
        self._ctx = ctx
        self._asking = asking
        self._ports = ports
        self._number = number  # of the checkpoint that comes next
        self._settled = settled

    async def ask(self, machine: MachineGraph, state: Stage, effect: AskAgent) -> Any:
        """Ask the agent, once or as often as `execution` says; each answer is a run of its own."""
        execution, tries = state.execution, 0
        named = machine.agents.get(effect.agent, effect.agent)
        agent = named if isinstance(named, str) else f"{machine.name}.{effect.agent}"
        question = Question(agent, effect.input, state.tool_loop)
        ids: list[JobId] = []
        while True:
            outcomes = await self._answers(state, ids, question)
            failed = [each for each in outcomes if not each.succeeded]
            answers = [each for each in outcomes if each.succeeded]
            if failed and execution.type in ("default", "retry"):
                tries += 1
                await self._pause(state, failed=failed[-1], tries=tries)
                ids = family.child_ids(self._ctx, checkpoint_name(self._number, "agent"), tries + 1)
                continue
            votes = [_text(await self._asking.answer(JobId(each.id))) for each in answers]
            wanted = missing_answers(
                execution, [*votes, *("" for _ in failed)] if execution.type == "parallel" else votes
            )
            if execution.type == "mdap_voting" and len(outcomes) >= execution.max_candidates:
                wanted = 0
            if wanted:
                ids = family.child_ids(self._ctx, checkpoint_name(self._number, "agent"), len(outcomes) + wanted)
                continue
            return self._answered(state, votes, failed)

    def _answered(self, state: Stage, votes: Sequence[str], failed: Sequence[Outcome]) -> Any:
        execution = state.execution
        if not votes:
            raise EffectFailed(failed[-1].failure)
        if execution.type == "parallel":
            return {"results": [codec.decode(vote) for vote in votes], "count": len(votes)}
        if execution.type == "mdap_voting":
            winner = winner_of(execution, votes) or max(votes, key=votes.count)
            return {**codec.decode(winner), "votes": votes.count(winner), "candidates": len(votes)}
        return codec.decode(votes[-1])

    async def _answers(self, state: Stage, ids: Sequence[JobId], question: Question) -> list[Outcome]:
        """How the runs under these ids ended; they are started first."""
        for number, id in enumerate(ids):
            step = checkpoint_name(self._number, f"agent {number}")
            if await self._ctx.ledger.find_step(step) is None:
                try:
                    await self._asking.start(self._ctx, id, step, question)
                except UsageError as problem:
                    raise EffectFailed(failure_of(problem)) from None
        ended = await self._settled(state, ids)
        outcomes = [each for each in ended if each is not None]
        return outcomes[-1:] if state.execution.type in ("default", "retry") else outcomes

    async def _pause(self, state: Stage, *, failed: Outcome, tries: int) -> None:
        """Wait before the next try, or fail when there is none."""
        pause = pause_of(state.execution, tries, self._ports.random.random())
        if pause is None:
            raise EffectFailed(failed.failure)
        now = (await self._ctx.database.transact(hold, self._ctx.lease)).now
        step = checkpoint_name(self._number, f"try {tries}")
        stored = await self._ctx.ledger.find_step(step)
        until = int(stored or await self._ctx.ledger.store_step(step, str(now + round(pause * 1e6))))
        if now < until:
            raise Snooze(f"{until - now}us", f"agent {state.agent} failed: {failed.error}")


def _text(value: Any) -> str:
    return codec.encode(value, what="an answer", cap=1 << 30)
