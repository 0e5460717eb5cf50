"""Fallback models: when a run gives its model up for the next one of its agent.

`run.fallback` counts the models that were given up. It changes together with what caused the change, in one fenced
transaction. Signed thinking is bound to the model that thought it, so between an answer with thinking and the results
of the tools it called the model stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.agents import turns
from holdfast.agents.answering import Answer, Conclusion, Decision
from holdfast.agents.changes import Changes
from holdfast.agents.definitions import AgentSpec
from holdfast.agents.history import THINKING
from holdfast.agents.records import FailedTurn, LaneRow, LoadedRun, WindowBlock
from holdfast.agents.statements import Fallbacks
from holdfast.agents.turns import Committed, Play
from holdfast.errors import LeaseLost
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction
from holdfast.kernel.ids import derived_id
from holdfast.kernel.statements import Waiting
from holdfast.models import ModelFailure

Final = Callable[[FailedTurn], bool]


class ModelChange(NamedTuple):
    """From one model of an agent to the next; `given_up` is how many a run has given up before."""

    given_up: int
    from_model: str
    to_model: str


def next_model(run: LoadedRun, spec: AgentSpec, window: Sequence[WindowBlock]) -> ModelChange | None:
    """The change that would follow if the run's model were given up now; None: it cannot be."""
    own = encoding.decode(run.options).get("model")
    models = spec.models_for(own)
    if run.fallback + 1 >= len(models) or _is_bound(run, window):
        return None
    return ModelChange(run.fallback, models[run.fallback], models[run.fallback + 1])


def _is_bound(run: LoadedRun, window: Sequence[WindowBlock]) -> bool:
    """Whether the run has thought already: another model could not go on from there."""
    mine = {derived_id(run.id, "answer", number) for number in range(1, run.turns + 1)}
    return any(row.message in mine and row.type in THINKING for row in window)


def is_given_up_for(failure: ModelFailure) -> bool:
    """Whether another model may do what this one cannot, once its failure is final. What is wrong stays wrong."""
    return failure.transient or failure.kind == "not_found" or failure.closes_lane == "person"


def waits_for_person(lanes: Sequence[LaneRow], name: str) -> bool:
    return any(lane.name == name and lane.person for lane in lanes)


def is_refused(conclusion: Conclusion | None) -> bool:
    return conclusion is not None and conclusion.outcome == "refused"


async def fail_or_change(
    tx: Transaction,
    play: Play,
    error: dict[str, Any],
    *,
    unknown: bool,
    counted: bool,
    final: Final,
    change: ModelChange,
) -> FailedTurn:
    """Note that a call failed, and give its model up if that was final."""
    tried = await turns.fail_turn(tx, play, error, unknown=unknown, counted=counted)
    if final(tried):
        await tx.run(Fallbacks.renew_turn, run=play.run.id, number=play.number)
        await _change(tx, play, change, str(error["message"]))
    return tried


async def commit_refused(tx: Transaction, play: Play, answer: Answer, change: ModelChange) -> Committed:
    """Store an answer that declines. It is not sent again: the next model is asked what this one was."""
    committed = await turns.commit(tx, play, answer, Decision())
    if committed == "next":
        await tx.run(Fallbacks.retire_answer, id=derived_id(play.run.id, "answer", play.number))
        await _change(tx, play, change, "refused")
    return committed


async def pass_closed_lane(tx: Transaction, play: Play, change: ModelChange, reason: str) -> None:
    """Give a model up before it is asked: its lane waits for a person."""
    if await tx.one(Waiting.hold, **play.lease.held._asdict()) is None:
        raise LeaseLost(play.lease.id, play.lease.fence)
    await _change(tx, play, change, reason)


async def _change(tx: Transaction, play: Play, change: ModelChange, reason: str) -> None:
    if await tx.one(Fallbacks.give_up, run=play.run.id, given_up=change.given_up) is None:
        return  # an earlier call did it, and its answer was lost
    changes = Changes(play.prefix)
    told = {"from_model": change.from_model, "to_model": change.to_model, "reason": encoding.clip(reason, 2_000)}
    changes.tell(play.run.id, "model_changed", told)
    await changes.write(tx)
