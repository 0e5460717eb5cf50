"""Answers: a state asks an agent, once or as often as its `execution` says, and takes what comes of it.

Each answer is a run, started once under an id of its own, so a worker that takes over asks nobody a second time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.clock import Ports
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.kernel.ids import JobId
from holdfast.kernel.leases import hold
from holdfast.machines import family
from holdfast.machines.agent_calls import AgentAsker, Question, more_wanted, pause_of, winner_of
from holdfast.machines.checkpoints import checkpoint_name
from holdfast.machines.family import Outcome
from holdfast.machines.graph import MachineGraph, Stage
from holdfast.machines.stepping import AskAgent, EffectFailed, failure_of
from holdfast.outcomes import Snooze
from holdfast.workers.context import JobContext

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
            wanted = more_wanted(execution, [*votes, *("" for _ in failed)] if execution.type == "parallel" else votes)
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
