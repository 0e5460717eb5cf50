"""Budgets: a call is reserved where it is decided, at the most it may cost, and settled when it has ended.

So runs that go on at the same time cannot spend the same money twice. A budget is of a session, a tenant or everybody,
for ever or for each period.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.agents.money.records import BudgetRow, CallCost, Reserved
from holdfast.agents.records import LoadedRun
from holdfast.agents.statements import Budgets
from holdfast.durations import show
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction

DAY_US = 86_400_000_000
_NANO = 1_000_000_000
_SOON_US = 500_000


class Over(NamedTuple):
    """A budget that a call does not fit into any more."""

    budget: str
    words: str
    policy: str
    wait_us: int  # until its next period begins; 0: it has none
    portion: int = 0  # how much a person may let pass: as much again, and the call that was asked for


async def reserve(tx: Transaction, run: LoadedRun, turn: int, nano: int) -> Over | None:
    """Reserve what a call may cost in every budget that the run is under, or say which of them it does not fit."""
    let_go = encoding.decode(run.options).get("beyond_budget", {})  # how far a person lets it pass each of them
    await settle(tx, [(run, turn, 0)])  # what an earlier attempt of this turn reserved
    rules = {rule.id: rule for rule in await tx.many(Budgets.budgets_of, session=run.session, tenant=run.tenant)}
    if not rules:
        return None
    uses = await tx.many(Budgets.open_uses, session=run.session, tenant=run.tenant)
    for use in uses:
        rule = rules.get(use.budget)
        if rule is None or run.cost_nano + nano <= let_go.get(rule.id, -1):
            continue
        if use.spent_nano + use.reserved_nano + nano > rule.limit_nano:
            over = _over(rule, use.spent_nano, use.reserved_nano, nano, run.now)
            if over.policy == "wait":
                await tx.run(Budgets.note_wait, run=run.id, words=over.words)
            return over
    await tx.run(
        Budgets.reserve,
        run=run.id,
        turn=turn,
        reserved=[Reserved(use.budget, use.period, nano) for use in uses if use.budget in rules],
    )
    return None


def _over(rule: BudgetRow, spent: int, reserved: int, nano: int, now: int) -> Over:
    period = f" in {name_of(rule.period_us)}" if rule.period_us else ""
    held = f", {usd(reserved)} reserved" if reserved else ""
    words = (
        f"the budget of {subject_of(rule)} is {usd(rule.limit_nano)} USD{period}: {usd(spent)} spent{held}, "
        f"and the next call may cost {usd(nano)}"
    )
    if rule.scope == "everybody":  # what others spend is nobody's business
        words = f"the budget of everybody{period} does not hold the next call, which may cost {usd(nano)} USD"
    if (
        reserved and spent + nano <= rule.limit_nano
    ):  # there is money yet, if the calls under way cost less than they may
        return Over(rule.id, words, "wait", _SOON_US)
    left_us = rule.period_us - now % rule.period_us if rule.period_us else 0
    return Over(rule.id, words, rule.policy, left_us, rule.limit_nano + nano)


def subject_of(rule: BudgetRow) -> str:
    return "everybody" if rule.scope == "everybody" else f"{rule.scope} {rule.subject or '(none)'}"


def name_of(period_us: int) -> str:
    return "a day" if period_us == DAY_US else show(period_us)


def usd(nano: int) -> str:
    """An amount of USD in as many places as it needs, but at least four."""
    whole, rest = divmod(nano, _NANO)
    return f"{whole}.{f'{rest:09}'.rstrip('0').ljust(4, '0')}"


async def settle(tx: Transaction, costs: Sequence[tuple[LoadedRun, int, int]]) -> None:
    """What calls have cost in place of what was reserved for them."""
    rows = [CallCost(run.id, turn, nano) for run, turn, nano in costs if run.budgets]
    if rows:
        await tx.run(Budgets.settle, costs=rows)


async def charge(tx: Transaction, session: str, nano: int) -> None:
    """What a session has cost beside the turns of its runs: a summary is paid for like an answer."""
    if nano:
        await tx.run(Budgets.charge_budgets, session=session, nano=nano)


async def free(tx: Transaction, runs: Sequence[str]) -> None:
    """Nothing is reserved any more for runs that ended without another answer."""
    left = await tx.many(Budgets.reserved_turns, runs=runs)
    if left:
        await tx.run(Budgets.settle, costs=[CallCost(key.run, key.number, 0) for key in left])
