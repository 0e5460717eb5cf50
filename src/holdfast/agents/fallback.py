"""Failures of a model: what a run does after one, and when it gives its model up for the next one of its agent.

`step_after` decides it, for every failure of a call: ask again, wait behind the closed lane, ask the next model, or
fail.
`run.fallback` counts the models that were given up. It changes together with what caused the change, in one fenced
transaction. Whatever fails counts: a model that has failed for the agent's `fallback_after` is given up, or one whose
lane will be closed for longer than that. Signed thinking is bound to the model that thought it: inside an open tool
loop the next model is asked without it. What waits for a tool of the provider's own stays with its model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from holdfast.agents.definition import AgentSpec
from holdfast.agents.events.log import Changes
from holdfast.agents.forks.past import Policy, policy_of
from holdfast.agents.money.budgets import above
from holdfast.agents.money.limits import limits_of, stored_limits
from holdfast.agents.rows import FailedTurn, LoadedRun, ProviderLaneRow, RunRow, WindowBlock
from holdfast.agents.runs import turn
from holdfast.agents.runs.decision import Decision
from holdfast.agents.runs.end import PROVIDER_ERROR, Conclusion
from holdfast.agents.runs.history import server_tool_is_open
from holdfast.agents.runs.turn import Answer, CommitResult, Play
from holdfast.agents.statements import FallbacksSql, RunsSql
from holdfast.agents.states import RUN
from holdfast.durations import microseconds, show
from holdfast.errors import NotUnderstood
from holdfast.kernel import codec, leases
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import derived_id
from holdfast.kernel.waiting import store_step
from holdfast.models import ModelFailure
from holdfast.outcomes import Snooze
from holdfast.reasons import ACCOUNT_REFUSED, Gate, Reason, is_of_account
from holdfast.workers.ledger import Ledger

# Playable: whether this worker can play a run, asked before the run costs anything.
#
# What a newer release wrote may be more than this one can do. A run that was enqueued before its route named its
# needs
# may be claimed by a worker that lacks one of them. Such a run is put off, never failed.


_PAUSE = "30s"


def check_played_here(run: LoadedRun, spec: AgentSpec, has: Callable[[str], bool]) -> None:
    """Raise `NotUnderstood`, or a `Snooze` when the code of an `approve=` is missing.

    `has` says whether the tool of this name is here.
    """
    options = codec.decode(run.options)
    if not isinstance(options, dict) or not isinstance(options.get("fork") or {}, dict):
        raise NotUnderstood(f"the options of run {run.id}", f"they are {codec.clip(run.options, 60)}")
    policy = policy_of(run)
    if run.state not in RUN.names:
        raise NotUnderstood(f"the state of run {run.id}", f"it is {run.state!r}")
    if policy not in get_args(Policy):
        raise NotUnderstood(f"how run {run.id} was forked", f"its tools are to be {policy!r}")
    limits_of(run, spec)
    for _, limits in above(options, run.root):
        stored_limits(run, limits)
    missing = [] if policy == "replayed" else lacking(spec, has)
    if missing:
        names = ", ".join(missing)
        raise Snooze(
            _PAUSE, f"the worker that claimed it lacks tool {names}, whose approve= says what a person approves"
        )


def understood(definition: str, options: str) -> tuple[AgentSpec, dict[str, Any]] | None:
    """The agent and the options of a run; None where a newer release wrote more than this one can read."""
    given = codec.decode(options)
    try:
        return (AgentSpec.parse(definition), given) if isinstance(given, dict) else None
    except NotUnderstood:
        return None


def lacking(spec: AgentSpec, has: Callable[[str], bool]) -> Sequence[str]:
    """The tools whose approve= has to be asked, and which are not here."""
    return sorted(tool.name for tool in spec.tools if tool.approve and not tool.person and not has(tool.name))


def is_played_here(run: LoadedRun, parse: Callable[[str], AgentSpec], has: Callable[[str], bool]) -> bool:
    """Whether what follows from an answer to this run can be decided here."""
    try:
        check_played_here(run, parse(run.definition), has)
    except (NotUnderstood, Snooze):
        return False
    return True


class ModelChange(NamedTuple):
    """From one model of an agent to the next; `given_up` is how many a run has given up before."""

    given_up: int
    from_model: str
    to_model: str


def next_model(run: LoadedRun, spec: AgentSpec, window: Sequence[WindowBlock]) -> ModelChange | None:
    """The change that would follow if the run's model were given up now; None: it cannot be."""
    own = codec.decode(run.options).get("model")
    models = spec.models_for(own)
    if run.fallback + 1 >= len(models) or (run.turns and server_tool_is_open(window)):
        return None
    return ModelChange(run.fallback, models[run.fallback], models[run.fallback + 1])


def limit_us(spec: AgentSpec) -> int | None:
    """How long a model may fail before the next one is asked; None: as long as a run waits for a provider at all."""
    return None if spec.fallback_after is None else microseconds(spec.fallback_after)


def wait_of(number: int, change: ModelChange) -> str:
    """The step of a run's job that says since when one of its turns has waited for this model."""
    return f"model {number}.{change.given_up}"


async def waiting_since(ledger: Ledger, number: int, change: ModelChange | None, lane: ProviderLaneRow) -> int | None:
    """Since when the run itself has waited for its model: since this moment, if it has not waited before."""
    return None if change is None else int(await ledger.store_step(wait_of(number, change), str(lane.now)))


def is_beyond(lane: ProviderLaneRow, spec: AgentSpec, since: int | None) -> bool:
    """Whether a lane lets nobody through for longer than the agent waits for its model, or not the run that has
    waited since then."""
    most = limit_us(spec)
    return bool(lane.person) or (most is not None and (lane.closed_until or 0) - _begun(lane, since) > most)


def wait_left(lane: ProviderLaneRow, spec: AgentSpec, since: int | None) -> int | None:
    """How much longer a run waits behind a lane before it asks another model, in microseconds."""
    most = limit_us(spec)
    return None if most is None else max(1, most - (lane.now - _begun(lane, since)))


def _begun(lane: ProviderLaneRow, since: int | None) -> int:
    return lane.updated_at if since is None else min(lane.updated_at, since)


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackModels(Reason):
    """Which models a run has given up for the one it asks, and which it asks `after_us` of failures."""

    gate = Gate.MODEL

    given_up: Sequence[str]
    model: str
    next_model: str | None = None
    after_us: int = 0

    @property
    def sentence(self) -> str:
        words = [f"it no longer uses {', '.join(self.given_up)} and asks {self.model}"] if self.given_up else []
        if self.next_model is not None:
            words.append(f"after {show(self.after_us)} of failures it switches to {self.next_model}")
        return ", and ".join(words)


async def reasons_of_fallback(tx: Transaction, run: RunRow) -> list[Reason]:
    """What `why` says of the models of a run that waits for one: which were given up, and when the next is asked."""
    loaded = await tx.one(RunsSql.load_run, job=run.job)
    if loaded is None or (read := understood(loaded.definition, run.options)) is None:
        return []
    spec, options = read
    models, most = spec.models_for(options.get("model")), limit_us(spec)
    given_up, model = models[: loaded.fallback], spec.model_for(options.get("model"), loaded.fallback)
    if loaded.fallback + 1 < len(models) and most is not None:
        return [FallbackModels(given_up=given_up, model=model, next_model=models[loaded.fallback + 1], after_us=most)]
    return [FallbackModels(given_up=given_up, model=model)] if given_up else []


def is_given_up_for(failure: ModelFailure) -> bool:
    """Whether another model may do what this one cannot, once its failure is final. What is wrong stays wrong."""
    return failure.transient or failure.kind in ("not_found", "permission") or failure.closes_lane == "person"


def is_refused(conclusion: Conclusion | None) -> bool:
    return conclusion is not None and conclusion.outcome == "refused"


class FailureTerms(NamedTuple):
    """What an agent and its app say of calls that fail."""

    attempts: int  # that may have been bought
    patience_us: int  # how long an outage is waited for
    change: ModelChange | None = None  # from the model that failed, if another may do what it cannot
    most_us: int | None = None  # how long a model may fail before that change


class Retry(NamedTuple):
    """Ask again after so long."""

    after_us: int


class NextModel(NamedTuple):
    """The run has given its model up: ask the next one at once."""


class WaitForLane(NamedTuple):
    """The failure holds for everybody: close the lane and wait behind it, no longer than `left_us`."""

    left_us: int | None


class RepairResults(NamedTuple):
    """Results of tools were refused and are errors now: ask again with those."""


class GiveUp(NamedTuple):
    """The run fails, with this type of error."""

    error_type: str


FailureStep = Retry | NextModel | WaitForLane | RepairResults | GiveUp
"""What follows from a call that failed."""


def step_after(
    failure: ModelFailure, tried: FailedTurn, terms: FailureTerms, left_us: int | None, chance: Callable[[], float]
) -> FailureStep:
    """What a run does after a failure; `left_us` is how long its model may continue to fail.

    What may have been bought counts against the agent's attempts; an outage is only waited for.
    """
    wanted_us = round((failure.retry_after or 0) * 1e6)  # how long the provider wants not to be asked
    is_final = _is_final(failure, tried, terms)
    if terms.change is not None and (is_final or (left_us is not None and left_us <= wanted_us)):
        return NextModel()
    if failure.closes_lane is not None:
        return WaitForLane(left_us)
    if is_final:
        kind = "context_window" if failure.kind == "context_window" else PROVIDER_ERROR
        return GiveUp(ACCOUNT_REFUSED if is_of_account(failure.kind) else kind)
    base = min(60.0, 0.5 * 2 ** min(tried.attempts - 1, 10))
    delay_us = round((failure.retry_after or base * (0.5 + chance())) * 1e6)
    return Retry(delay_us if left_us is None else min(delay_us, left_us))


def _is_final(failure: ModelFailure, tried: FailedTurn, terms: FailureTerms) -> bool:
    if failure.closes_lane is not None:
        return failure.closes_lane == "person"
    return not failure.transient or tried.failures >= terms.attempts or tried.age_us > terms.patience_us


async def fail_call(  # noqa: PLR0917  what failed, and what is known of it
    tx: Transaction,
    play: Play,
    failure: ModelFailure,
    error: dict[str, Any],
    terms: FailureTerms,
    chance: Callable[[], float],
) -> FailureStep:
    """Note that a call failed, and decide what follows; a model that is given up is given up with it."""
    change, left_us = terms.change, None
    if change is not None:
        since, now = await _failing_since(tx, play, change)
        error = {**error, "model": change.from_model, "since": since}
        left_us = None if terms.most_us is None else since + terms.most_us - now
    unknown = failure.bought == "unknown"
    tried = await turn.fail_turn(tx, play, error, unknown=unknown, counted=unknown)
    step = step_after(failure, tried, terms, left_us, chance)
    if change is not None and isinstance(step, NextModel):
        await tx.run(FallbacksSql.renew_turn, run=play.run.id, number=play.number)
        await _change(tx, play, change, failure.kind, str(failure))
    return step


async def _failing_since(tx: Transaction, play: Play, change: ModelChange) -> tuple[int, int]:
    """Since when this turn's calls of its model have failed, and the time now."""
    last = await tx.one(FallbacksSql.last_failure, run=play.run.id, number=play.number)
    assert last is not None, "a turn that failed had begun"
    before: dict[str, Any] = codec.decode(last.error) or {}
    begun = before.get("since", last.now) if before.get("model") == change.from_model else last.now
    return int(await store_step(tx, play.lease, wait_of(play.number, change), str(begun))), last.now


async def commit_refused(tx: Transaction, play: Play, answer: Answer, change: ModelChange) -> CommitResult:
    """Store an answer that declines. It is not sent again: the next model is asked what this one was."""
    committed = await turn.commit(tx, play, answer, Decision())
    if committed == "next":
        await tx.run(FallbacksSql.retire_answer, id=derived_id(play.run.id, "answer", play.number))
        await _change(tx, play, change, "refused", "refused")
    return committed


async def pass_closed_lane(tx: Transaction, play: Play, change: ModelChange, reason: Reason) -> None:
    """Give a model up before it is asked: its lane is closed for too long."""
    await leases.hold(tx, play.lease)
    await _change(tx, play, change, reason.gate, reason.sentence)


async def _change(tx: Transaction, play: Play, change: ModelChange, cause: str, reason: str) -> None:
    if await tx.one(FallbacksSql.give_up, run=play.run.id, given_up=change.given_up) is None:
        return  # an earlier call did it, and its answer was lost
    changes = Changes(play.prefix)
    data = {"from_model": change.from_model, "to_model": change.to_model, "cause": cause}
    changes.tell(play.run.id, "model_changed", {**data, "reason": codec.clip(reason, 2_000)})
    await changes.write(tx)
