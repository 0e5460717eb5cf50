"""Playable: whether this worker can play a run, asked before the run costs anything.

What a newer release wrote may be more than this one can do. A run that was enqueued before its route named its needs
may be claimed by a worker that lacks one of them. Such a run is put off, never failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

from holdfast.agents.definition import AgentSpec
from holdfast.agents.forks.simulation import Policy, policy_of
from holdfast.agents.money.limits import limits_of, stored_limits
from holdfast.agents.money.trees import above
from holdfast.agents.rows import LoadedRun
from holdfast.agents.states import RUN
from holdfast.errors import NotUnderstood
from holdfast.kernel import codec
from holdfast.outcomes import Snooze

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
