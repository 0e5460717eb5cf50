"""Planted bugs of agents, each a mistake that some agent system really made. The simulation must notice each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from holdfast.agents.batches import steps
from holdfast.agents.batches.records import BatchesSql
from holdfast.agents.events.log import Changes
from holdfast.agents.rows import RunEnd
from holdfast.agents.runs import turn
from holdfast.agents.runs.decision import Decision
from holdfast.agents.runs.end import AgentJobs, end_run
from holdfast.agents.runs.turn import Answer, CommitResult, CommittedTurn, Play
from holdfast.agents.statements import CallsSql, EventsSql, RunsSql
from holdfast.app import core_of
from holdfast.kernel.database import Transaction
from holdfast.kernel.rows import EndedLease, Lease, MovedJob
from holdfast.kernel.statements import WaitingSql
from holdfast.kernel.waiting import park
from holdfast.workers.context import JobContext
from tests.simulation.agents import AgentWorld
from tests.simulation.mutants import Mutant, Plant, rewrite
from tests.simulation.world import World

Commit = Callable[..., Any]


def committing(make: Callable[[AgentWorld], Commit]) -> Plant:
    """Store answers in another way."""

    def plant(world: World) -> None:
        assert isinstance(world, AgentWorld)
        world.store.replaced[turn.commit] = make(world)

    return plant


def _in_two_transactions(world: AgentWorld) -> Commit:
    async def commit(tx: Transaction, play: Play, answer: Answer, decision: Decision) -> CommitResult:
        if not any(call.job for call in decision.calls):
            return await turn.commit(tx, play, answer, decision)
        committed = await turn.commit(tx, play, answer, Decision())
        turned = CommittedTurn(play.run, play.number, answer, decision)
        later = partial(world.store.execute, world.client, _launch, (play, turned), {}, again=False)
        world.store.loop.call_later(0.01, later, context=world.store.context)
        return "parked" if committed == "next" else committed

    return commit


async def _launch(tx: Transaction, play: Play, turned: CommittedTurn) -> None:
    changes = Changes()
    await turn._add_calls(tx, [turned], changes)
    await changes.write(tx)
    await tx.run(WaitingSql.add_children, seq=play.lease.seq, added=len(turned.launched))
    await park(tx, play.lease, channel=None, timeout_us=None)


def _with_usage_added_up(world: AgentWorld) -> Commit:
    async def commit(tx: Transaction, play: Play, answer: Answer, decision: Decision) -> CommitResult:
        added = answer.spent._replace(output_tokens=world.provider.deltas[play.run.id, play.number])
        return await turn.commit(tx, play, answer._replace(spent=added), decision)

    return commit


def _with_once_repeated(world: AgentWorld) -> Commit:
    async def commit(tx: Transaction, play: Play, answer: Answer, decision: Decision) -> CommitResult:
        again = tuple(
            call._replace(job=call.job._replace(max_rescues=5)) if call.job is not None and call.child is None else call
            for call in decision.calls
        )
        return await turn.commit(tx, play, answer, decision._replace(calls=again))

    return commit


class Careless(AgentJobs):
    """Ends a run whose job has ended, and leaves its calls as they are."""

    async def ended(self, tx: Transaction, jobs: Sequence[EndedLease | MovedJob]) -> None:
        changes = Changes()
        seqs = [job.seq for job in jobs if job.kind.startswith("agent:")]
        for run in await tx.many(RunsSql.open_runs, jobs=seqs):
            await tx.run(CallsSql.skip_calls, run=run.id)
            await end_run(tx, RunEnd(run.id, run.state, error_type="", error=""), changes)
        await changes.write(tx)
        await super().ended(tx, jobs)


def _follow_carelessly(world: World) -> None:
    world.store.file.layers = (Careless(),)


class Fearless:
    """A run's context, without the look at the clock."""

    def __init__(self, context: JobContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def require_lease(self) -> None: ...


def _call_whatever_the_time(world: World) -> None:
    assert isinstance(world, AgentWorld)
    definitions = core_of(world.app).registry.definitions

    async def play(ctx: JobContext) -> Any:
        return await core_of(world.app).loop.play(cast(JobContext, Fearless(ctx)))

    for kind in [kind for kind in definitions if kind.startswith("agent:")]:
        definitions[kind] = replace(definitions[kind], function=play)


def _submit_blindly(world: World) -> None:
    """Submit again what may have been taken, without a look."""

    async def refused(tx: Transaction, lease: Lease, id: str, error: str) -> None:
        await steps.refused(tx, lease, id, error, troubled=True)

    world.store.replaced[steps.search] = refused


def _keep_no_intent(world: World) -> None:
    """Submit first, and store afterwards."""

    async def intend(tx: Transaction, lease: Lease, id: str) -> set[str]:
        return {each.custom_id for each in await tx.many(BatchesSql.request_sizes, batch=id)}

    world.store.replaced[steps.intend] = intend


MUTANTS: Final = (
    Mutant(
        "batch submitted blindly",
        "a batch whose submit was lost is submitted again (agentpg)",
        _submit_blindly,
        soon=12,
    ),
    Mutant("batch without intent", "a batch is submitted before that is stored (agentpg)", _keep_no_intent),
    Mutant(
        "late answer unpaid",
        "an answer of a batch that nobody waits for is not accounted",
        rewrite(
            RunsSql.end_turns,
            ("where r.id = value ->> 0 and exists", "where r.finalized_at is null and r.id = value ->> 0 and exists"),
        ),
        soon=22,
    ),
    Mutant(
        "call after the lease",
        "a worker that was stopped after it stored its intent makes the call when it goes on",
        _call_whatever_the_time,
        soon=59,
    ),
    Mutant(
        "calls launched later",
        "an answer is stored in one transaction and its calls in the next (agentpg, LangGraph #8039)",
        committing(_in_two_transactions),
    ),
    Mutant(
        "results by time",
        "results are put in the order in which the tools ended",
        rewrite(CallsSql.calls_of, ("order by c.turn, c.ordinal", "order by c.turn, c.finished_at, c.ordinal desc")),
    ),
    Mutant(
        "recorded turn asked again",
        "a run goes on from one turn before its last answer",
        rewrite(RunsSql.load_run, (" r.turns,", " max(r.turns - 1, 0),")),
    ),
    Mutant("dangling tool use", "a run that fails or is cancelled leaves its calls unanswered", _follow_carelessly),
    Mutant(
        "usage added up",
        "the counts of a stream's deltas are added, though each replaces the one before",
        committing(_with_usage_added_up),
    ),
    Mutant("once repeated", "a tool that may start once is rescued", committing(_with_once_repeated)),
    Mutant(
        "unknown calls forgotten",
        "a call whose worker died is not counted",
        rewrite(
            RunsSql.begin_turn,
            ("unknown = turn.unknown + case when turn.state in ('calling', 'batched') then 1 else 0 end, ", ""),
        ),
    ),
    Mutant(
        "session overtaken",
        "a run does not wait for those of its session that came before",
        rewrite(RunsSql.run_ahead, ("ordinal < :ordinal", "ordinal < 0")),
    ),
    Mutant(
        "session left waiting",
        "a run that ends does not wake the next of its session",
        rewrite(
            RunsSql.wake_next,
            ("coalesce(w.state, '') = 'waiting'", "coalesce(w.state, '') = 'running'"),
            ("coalesce(state, '') = 'waiting'", "coalesce(state, '') = 'running'"),
        ),
    ),
    Mutant(
        "words said twice",
        "what a model says is shown again when the answer to the write is lost",
        rewrite(EventsSql.add_deltas, (" and e.seq = r.events and e.data = c.last", " and e.seq = 0")),
        soon=2,
    ),
    Mutant(
        "words after the end",
        "what a late attempt says is shown, whatever became of its run",
        rewrite(
            EventsSql.add_deltas,
            (" and r.epoch = c.epoch and r.token = c.token and r.state = 'streaming'", ""),
            (" and r.epoch = value ->> 1 and r.token = value ->> 2 and r.state = 'streaming'", ""),
        ),
    ),
)
