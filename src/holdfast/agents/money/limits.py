"""Limits: how far a run may go with all that it starts, which it has reached, and whether a turn is its last."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

from holdfast.agents.definition import AgentSpec, Limits
from holdfast.agents.money.budgets import above
from holdfast.agents.money.cost import Spent
from holdfast.agents.queries import tree_usage, usage_below
from holdfast.agents.rows import LoadedRun, UsageBelow, UsageRow
from holdfast.durations import microseconds, show
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import Transactor
from holdfast.outcomes import Fail
from holdfast.text import plural


def limits_of(run: LoadedRun, spec: AgentSpec) -> Limits:
    """The run's own limits, or those of its agent."""
    given = codec.decode(run.options).get("limits")
    return spec.limits if given is None else stored_limits(run, given)


def stored_limits(run: LoadedRun, given: object) -> Limits:
    return codec.read(Limits, given, what=f"the limits of run {run.id}")


class PricedLimits(Protocol):
    def require_price(self, model: str, *, hour: bool = False) -> None: ...


def missing_price(book: PricedLimits, model: str, run: LoadedRun, spec: AgentSpec) -> Fail | None:
    """The end of a run under a budget or a limit of money whose calls cannot be counted; None where they can.

    Money counts for a budget, for the run's own limit and for those of the runs above it.
    """
    enclosing = above(codec.decode(run.options), run.root)
    limited = limits_of(run, spec).cost is not None or any(limits.get("cost") is not None for _, limits in enclosing)
    if not run.budgets and not limited:
        return None
    try:
        book.require_price(model, hour=spec.caching == "1h")
    except UsageError as problem:
        return Fail(f"its cost is limited, but the price is unknown: {problem}", type(problem).__name__)
    return None


class ExceededLimit(NamedTuple):
    limit: str
    words: str


def is_last(run: LoadedRun, spec: AgentSpec, spent: Spent) -> bool:
    """Whether the limits of a run leave no room for another turn after this answer."""
    tokens = spent.input_tokens + spent.output_tokens + spent.cache_write_tokens + spent.cache_read_tokens
    then = run._replace(turns=run.turns + 1, tokens=run.tokens + tokens, cost_nano=run.cost_nano + spent.cost_nano)
    return exceeded(then, limits_of(run, spec)) is not None


def exceeded(run: LoadedRun, limits: Limits) -> ExceededLimit | None:
    """Which limit the run has reached, and in words."""
    if limits.turns is not None and run.turns >= limits.turns:
        return ExceededLimit("turns", f"{plural(run.turns, 'turn')} of {limits.turns}")
    if limits.tokens is not None and run.tokens >= limits.tokens:
        return ExceededLimit("tokens", f"{run.tokens:,} tokens of {limits.tokens:,}")
    if limits.cost_nano is not None and run.cost_nano and run.cost_nano >= limits.cost_nano:
        return ExceededLimit("cost", f"{run.cost_nano / 1e9:.6f} USD of {limits.cost}")
    if limits.time is not None and run.now - run.created_at >= microseconds(limits.time):
        return ExceededLimit("time", f"{show(microseconds(limits.time))} of wall clock")
    return None


async def reached(store: Transactor, run: LoadedRun, spec: AgentSpec) -> ExceededLimit | None:
    """Which limit is reached: the run's own, over all that is below it, or that of a run above it."""
    limits = limits_of(run, spec)
    used = await _used(store, run, spec, limits)
    found = exceeded(run if used is None else _with(run, used), limits)
    if found is not None or run.parent is None:
        return found
    for id, given in above(codec.decode(run.options), run.root):
        theirs = replace(stored_limits(run, given), time=None)  # its deadline has been passed on
        if (theirs.turns, theirs.tokens, theirs.cost) == (None, None, None):
            continue
        whole = await (store.transact(tree_usage, id) if id == run.root else store.transact(usage_below, id))
        found = None if whole is None else exceeded(_with(run, whole), theirs)
        if found is not None:
            return found
    return None


async def _used(store: Transactor, run: LoadedRun, spec: AgentSpec, limits: Limits) -> UsageRow | UsageBelow | None:
    """What the run and all below it have used; None: what is known of itself is all there is."""
    if not spec.agents or (limits.turns, limits.tokens, limits.cost) == (None, None, None):
        return None
    if run.parent is None:
        return await store.transact(tree_usage, run.root)
    return await store.transact(usage_below, run.id)


def _with(run: LoadedRun, used: UsageRow | UsageBelow) -> LoadedRun:
    """A run with what it and all below it have used in place of its own."""
    tokens = used.input_tokens + used.output_tokens + used.cache_write_tokens + used.cache_read_tokens
    return run._replace(tokens=int(tokens), cost_nano=int(used.cost_nano), turns=int(used.turns))
