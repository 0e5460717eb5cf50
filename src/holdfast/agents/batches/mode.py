"""The mode of a run: whether it is streamed or may wait for a batch, which costs half. Pure, and it says why."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.definition import Limits, Mode
from holdfast.agents.rows import LoadedRun
from holdfast.durations import microseconds, show
from holdfast.errors import UsageError
from holdfast.models.facts import facts_for
from holdfast.settings import Settings


class ModeChoice(NamedTuple):
    mode: Mode
    reason: str


def choose(model: str, mode: str | None, deadline_us: int | None, settings: Settings) -> ModeChoice:
    """What the caller asked for, or what fits the time there is."""
    if mode not in (None, "streaming", "batch"):
        raise UsageError(f'mode must be "streaming" or "batch"; got {mode!r}.')
    facts = facts_for(model)
    able = facts.batch
    if mode == "batch" and not able and facts.listed:
        raise UsageError(f"model {model} does not support batches: leave mode out, or choose another model.")
    if mode == "batch":
        return ModeChoice("batch", "it was asked for")
    if mode == "streaming" or deadline_us is None:
        return ModeChoice("streaming", "it was asked for" if mode else "without answer_within, answers are streamed")
    if not able:
        return ModeChoice("streaming", f"model {model} does not support batches")
    return _by_time(deadline_us, settings)


def _by_time(left_us: int, settings: Settings) -> ModeChoice:
    least = microseconds(settings.batch_least)
    if left_us < least:
        return ModeChoice("streaming", f"{show(max(0, left_us))} is left, and a batch may take {show(least)} or more")
    return ModeChoice("batch", f"{show(left_us)} is left: time for a batch, at half the price")


def limit_left(run: LoadedRun, limits: Limits) -> int | None:
    """How much of its wall clock a run has left, in microseconds; None: it has no such limit."""
    return None if limits.time is None else max(1, microseconds(limits.time) - (run.now - run.created_at))


def choose_turn(run: LoadedRun, limits: Limits, betas: tuple[str, ...], settings: Settings) -> ModeChoice:
    """How the next turn is asked: a run that may wait is streamed where its time runs out.

    Its time is what is left of its `answer_within`, or until its time limit ends it, whichever comes first. A run
    without `answer_within` was asked for in a batch, and stays there.
    """
    if run.mode != "batch":
        return ModeChoice("streaming", "")
    if betas:
        return ModeChoice("streaming", f"a batch cannot ask for {', '.join(betas)}")
    if run.deadline_at is None:
        return ModeChoice("batch", "")
    until = run.deadline_at - run.now
    return _by_time(min(until, limit_left(run, limits) or until), settings)
