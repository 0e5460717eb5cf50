"""Budgets: a call is reserved where it is decided, at the most it may cost, and settled when it has ended.

So runs that go on at the same time cannot spend the same money twice. A budget is of a session, a tenant or everybody,
for ever or for each period.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.agents.money.records import BudgetRow, BudgetUse, CallCost, Reserved
from holdfast.agents.records import LoadedRun
from holdfast.agents.statements import Budgets, Runs
from holdfast.durations import show
from holdfast.kernel import encoding
from holdfast.kernel.database import Transaction

DAY_US = 86_400_000_000
SUMMARY = 0  # in the place of a turn's number: the call of a summariser
_NANO = 1_000_000_000
_SOON_US = 500_000
_MOST_LAPSED = 1_000
_LATER_US = 30_000_000
_LOOK_US = 300_000_000  # a budget may be raised, and a run interrupted, before its next period begins


class Over(NamedTuple):
    """A budget that a call does not fit into any more."""

    budget: str
    words: str
    policy: str
    wait_us: int  # until it is worth another look, where it is waited for
    portion: int = 0  # how much a person may let pass: as much again, and the call that was asked for


class Call(NamedTuple):
    """A call that is decided now: who answers for it, which budgets it is under, and how far it may pass each."""

    owner: str
    turn: int
    session: str
    tenant: str
    now: int
    beyond: Mapping[str, int] = {}
    lasting_us: int | None = None  # after so long nobody settles it any more; None: its run does, or ends


async def reserve(tx: Transaction, run: LoadedRun, turn: int, nano: int) -> Over | None:
    """Reserve what a call may cost in every budget that the run is under, or say which of them it does not fit.

    `turn` is `SUMMARY` for the summary that a run has made before its next call.
    """
    let_go = encoding.decode(run.options).get("beyond_budget", {})  # how far a person lets it pass each of them
    spent = await _cost_of_tree(tx, run) if let_go else 0  # once, for a run and all that it starts
    beyond = {budget: until - spent for budget, until in let_go.items()}
    await settle(tx, [(run, each, 0) for each in sorted({SUMMARY, turn})])  # what earlier attempts reserved
    over = await _reserve(tx, Call(run.id, turn, run.session, run.tenant, run.now, beyond), nano)
    if over is not None and over.wait_us == _SOON_US:
        over = over._replace(wait_us=await _until_settled(tx, over.budget, run.now))
    if over is not None and over.policy == "wait":
        await tx.run(Budgets.note_wait, run=run.id, words=over.words)
    return over


async def _cost_of_tree(tx: Transaction, run: LoadedRun) -> int:
    used = await tx.one(Runs.tree_usage, root=run.root)
    return int(used.cost_nano) if used is not None else 0


async def _until_settled(tx: Transaction, budget: str, now: int) -> int:
    """How long to wait for calls that are under way: the longer they take, the longer they may take."""
    begun = await tx.one(Budgets.last_reserved, budget=budget)
    age = now - begun.n if begun is not None and begun.n else 0
    return min(_LATER_US, max(_SOON_US, age // 4))


async def reserve_apart(tx: Transaction, call: Call, nano: int) -> Over | None:
    """The same for a summary that no run asked for."""
    await release(tx, call.owner)
    return await _reserve(tx, call, nano)


async def _reserve(tx: Transaction, call: Call, nano: int) -> Over | None:
    where = {"session": call.session, "tenant": call.tenant}
    rules = {rule.id: rule for rule in await tx.many(Budgets.budgets_of, **where)}
    if not rules:
        return None
    uses = await tx.many(Budgets.open_uses, **where)
    over = _first_over(call, rules, uses, nano)
    if over is not None and await give_up_lapsed(tx):
        uses = await tx.many(Budgets.open_uses, **where)
        over = _first_over(call, rules, uses, nano)
    if over is not None:
        return over
    await tx.run(
        Budgets.reserve,
        run=call.owner,
        turn=call.turn,
        lasting_us=call.lasting_us,
        reserved=[Reserved(use.budget, use.period, nano) for use in uses if use.budget in rules],
    )
    return None


def _first_over(call: Call, rules: Mapping[str, BudgetRow], uses: Sequence[BudgetUse], nano: int) -> Over | None:
    for use in uses:
        rule = rules.get(use.budget)
        if rule is None or nano <= call.beyond.get(rule.id, -1):
            continue
        if use.spent_nano + use.reserved_nano + nano > rule.limit_nano:
            return _over(rule, use.spent_nano, use.reserved_nano, nano, call.now)
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
    if reserved and spent + nano <= rule.limit_nano:  # there is money, if what is under way costs less than it may
        return Over(rule.id, words, "wait", _SOON_US)
    if rule.policy == "wait" and nano > rule.limit_nano:
        return Over(rule.id, f"{words}: no period holds that", "end", 0)
    left_us = rule.period_us - now % rule.period_us if rule.period_us else 0
    return Over(rule.id, words, rule.policy, min(left_us, _LOOK_US), rule.limit_nano + nano)


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


async def release(tx: Transaction, owner: str) -> None:
    """Nothing is reserved any more for a summary of this owner's."""
    await tx.run(Budgets.settle, costs=[CallCost(owner, SUMMARY, 0)])


async def give_up_lapsed(tx: Transaction) -> bool:
    """Free what was reserved for summaries whose process has died; whether there was any."""
    left = await tx.many(Budgets.lapsed, limit=_MOST_LAPSED)
    if left:
        await tx.run(Budgets.settle, costs=[CallCost(key.run, key.number, 0) for key in left])
    return bool(left)
