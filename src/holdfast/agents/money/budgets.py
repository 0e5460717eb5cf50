"""Budgets: a call is reserved where it is decided, at the most it may cost, and settled when it has ended.

So concurrent runs cannot spend the same money twice. A budget is of a session, a tenant or
everybody, for ever or for each period. A default is a budget for each tenant that has none of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from holdfast.agents.definition import nano_of
from holdfast.agents.money.records import AppliedBudget, BudgetsSql, BudgetUse, CallCost, Reservation, UseName
from holdfast.agents.rows import LoadedRun, UsageBelow
from holdfast.agents.statements import RunsSql, RunTreesSql
from holdfast.durations import show
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction
from holdfast.outcomes import Snooze

# Trees: what a run and all that it starts may cost together, reserved at that run.
#
# Agents that are called at the same time ask their models at the same time, and none of them sees what the others are
# about to spend. So each call of such a tree is reserved, as in a budget, under the tree's own name. A tree may be
# part
# of another: then a call is reserved in each of them. What is spent is read from the runs themselves. A run that
# calls
# no agents is alone: it looks at its limit before each turn, and nothing is reserved for it.


_NAME = "tree "  # behind every id of a budget, so that the rows of both are locked in one order


class TreeBudget(NamedTuple):
    """The limit of a tree, and what is spent and reserved of it now."""

    name: str
    limit_nano: int
    spent_nano: int
    reserved_nano: int

    def is_full(self, nano: int) -> bool:
        """Whether a call that may cost so much does not fit."""
        return self.spent_nano + self.reserved_nano + nano > self.limit_nano


def name_of_tree(root: str) -> str:
    return _NAME + root


def is_tree(budget: str) -> bool:
    return budget.startswith(_NAME)


def above(options: Mapping[str, Any], root: str) -> list[tuple[str, dict[str, Any]]]:
    """The limits of the runs above one that was started by another, from the top down, with the ids of these runs.

    Those of the run at the top stand apart: a release that knows no others reads them.
    """
    found = [(root, options.get("tree")), *(options.get("within") or ())]
    return [(str(id), limits) for id, limits in found if limits is not None]


def inherited_options(run: LoadedRun) -> dict[str, Any]:
    """What a run says in the options of the runs that it starts about its limits and those above it."""
    own: dict[str, Any] = codec.decode(run.options)
    limits = own.get("limits") or codec.decode(run.definition).get("limits")
    if run.parent is None:
        return {"tree": limits}
    within = [*(own.get("within") or ()), *([[run.id, limits]] if limits else ())]
    return {"tree": own.get("tree")} | ({"within": within} if within else {})


def is_limited(run: LoadedRun) -> bool:
    """Whether the calls of this run are reserved for a tree."""
    return bool(_limits_above(run))


async def hold(tx: Transaction, run: LoadedRun) -> list[TreeBudget]:
    """The trees that a run is part of and whose cost is limited, from the top down, locked until a call is reserved.

    They are locked in the order of their names, as those who settle lock them.
    """
    limits = _limits_above(run)
    if not limits:
        return []
    held = {name: await tx.one(BudgetsSql.hold_tree, tree=name) for name in sorted(map(name_of_tree, limits))}
    # After the locks: the settling transaction has spent by now.
    spent = {used.run: int(used.cost_nano) for used in await _below(tx, [id for id in limits if id != run.root])}
    if run.root in limits:
        whole = await tx.one(RunsSql.tree_usage, root=run.root)
        spent[run.root] = int(whole.cost_nano) if whole is not None else 0
    found = []
    for id, limit in limits.items():
        use = held[name_of_tree(id)]
        assert use is not None
        found.append(TreeBudget(use.budget, limit, spent.get(id, 0), use.reserved_nano))
    return found


async def _below(tx: Transaction, ids: Sequence[str]) -> Sequence[UsageBelow]:
    return await tx.many(RunTreesSql.usage_below, ids=ids) if ids else ()


def _limits_above(run: LoadedRun) -> dict[str, int]:
    """How much each of these runs may cost with all that it starts, from the top down to this one."""
    return {run.id if id is None else id: limit for id, limit in _limits(run.options, run.definition, _root_of(run))}


def _root_of(run: LoadedRun) -> str | None:
    return None if run.parent is None else run.root


@lru_cache(maxsize=1_000)
def _limits(options: str, definition: str, root: str | None) -> tuple[tuple[str | None, int], ...]:
    """`root`: None where the run is at the top itself, as its own id is among what is returned."""
    own: dict[str, Any] = codec.decode(options)
    agent: dict[str, Any] = codec.decode(definition)
    found: list[tuple[str | None, Any]] = [] if root is None else [*above(own, root)]
    if agent.get("agents"):  # one that calls no others is alone with its limit
        found.append((None, own.get("limits") or agent.get("limits")))
    costs = [(id, (limits or {}).get("cost")) for id, limits in found]
    return tuple((id, nano_of(str(cost))) for id, cost in costs if cost is not None)


DAY_US = 86_400_000_000
SUMMARY = 0  # in the place of a turn's number: the call of a summariser
_NANO = 1_000_000_000
_SOON_US = 500_000
_MOST_LAPSED = 1_000
_LATER_US = 30_000_000
_LOOK_US = 300_000_000  # a budget may be raised, and a run interrupted, before its next period begins


class ExceededBudget(NamedTuple):
    """A budget that a call does not fit into any more."""

    budget: str
    use: str  # the name under which the run uses it
    words: str
    policy: str
    wait_us: int  # until it is worth another look, where it is waited for
    portion: int = 0  # how much a person may let pass: as much again, and the call that was asked for


class BudgetWait(Snooze):
    """The run waits for the next period of its budget. Its attempt is stored under this type, whatever it says."""

    error_type = "over_budget"


class BudgetedCall(NamedTuple):
    """A call that is decided now: who answers for it, which budgets it is under, and how far it may pass each."""

    owner: str
    turn: int
    session: str
    tenant: str
    now: int
    beyond: Mapping[str, int] = {}
    lasting_us: int | None = None  # after so long nobody settles it any more; None: its run does, or ends


async def reserve(tx: Transaction, run: LoadedRun, turn: int, nano: int) -> ExceededBudget | None:
    """Reserve what a call may cost in every budget that the run is under, or say which of them it does not fit.

    The limit of a tree of runs is one of them.

    `turn` is `SUMMARY` for the summary that a run has made before its next call.
    """
    let_go = codec.decode(run.options).get("beyond_budget", {})  # how far a person lets it pass each of them
    spent = await _cost_of_tree(tx, run) if let_go else 0  # once, for a run and all that it starts
    beyond = {budget: until - spent for budget, until in let_go.items()}
    await settle(tx, [(run, each, 0) for each in sorted({SUMMARY, turn})])  # what earlier attempts reserved
    call = BudgetedCall(run.id, turn, run.session, run.tenant, run.now, beyond)
    over = await _reserve(tx, call, nano) if run.budgets else None
    if over is None and (held := await hold(tx, run)):
        over = await _reserve_in_trees(tx, run, turn, held, nano)
    if over is not None and over.wait_us == _SOON_US:
        over = over._replace(wait_us=await _until_settled(tx, over.use, run.now))
    if over is not None and over.policy == "wait":
        await tx.run(BudgetsSql.note_wait, run=run.id, words=over.words)
    return over


async def _reserve_in_trees(
    tx: Transaction, run: LoadedRun, turn: int, held: Sequence[TreeBudget], nano: int
) -> ExceededBudget | None:
    over = [tree for tree in held if tree.is_full(nano)]
    if not over:
        here = [Reservation(tree.name, 0, nano) for tree in held]
        await tx.run(BudgetsSql.reserve, run=run.id, turn=turn, lasting_us=None, reserved=here)
        return None
    await settle(tx, [(run, turn, 0)])  # what the budgets have just reserved for it
    ends = [_over_tree(tree, nano) for tree in over]
    return next((each for each in ends if each.policy == "end"), ends[0])


def _over_tree(tree: TreeBudget, nano: int) -> ExceededBudget:
    name, limit, spent, reserved = tree
    held = f", {usd(reserved)} reserved" if reserved else ""
    words = f"{usd(spent)} USD of {usd(limit)} spent{held}, and the next call may cost {usd(nano)}"
    if reserved and spent + nano <= limit:  # there is money, if what is under way costs less than it may
        return ExceededBudget(name, name, words, "wait", _SOON_US)
    return ExceededBudget(name, name, words, "end", 0, nano)


async def _cost_of_tree(tx: Transaction, run: LoadedRun) -> int:
    used = await tx.one(RunsSql.tree_usage, root=run.root)
    return int(used.cost_nano) if used is not None else 0


async def _until_settled(tx: Transaction, use: str, now: int) -> int:
    """How long to wait for calls that are under way: the longer they take, the longer they may take."""
    begun = await tx.one(BudgetsSql.last_reserved, budget=use)
    age = now - begun.n if begun is not None and begun.n else 0
    return min(_LATER_US, max(_SOON_US, age // 4))


async def reserve_apart(tx: Transaction, call: BudgetedCall, nano: int) -> ExceededBudget | None:
    """The same for a summary that no run asked for."""
    await release(tx, call.owner)
    return await _reserve(tx, call, nano)


async def _reserve(tx: Transaction, call: BudgetedCall, nano: int) -> ExceededBudget | None:
    found = await tx.many(BudgetsSql.budgets_of, session=call.session, tenant=call.tenant)
    if not found:
        return None
    rules = {rule.budget: rule for rule in found}
    uses = await _open(tx, found)
    over = _first_over(call, rules, uses, nano)
    if over is not None and await give_up_lapsed(tx):
        uses = await _open(tx, found)
        over = _first_over(call, rules, uses, nano)
    if over is not None:
        return over
    await tx.run(
        BudgetsSql.reserve,
        run=call.owner,
        turn=call.turn,
        lasting_us=call.lasting_us,
        reserved=[Reservation(use.budget, use.period, nano) for use in uses],
    )
    return None


async def _open(tx: Transaction, found: Sequence[AppliedBudget], nano: int = 0) -> list[BudgetUse]:
    applied = [UseName(rule.budget, rule.id) for rule in found]
    return await tx.many(BudgetsSql.open_uses, applied=applied, nano=nano)


def _first_over(
    call: BudgetedCall, rules: Mapping[str, AppliedBudget], uses: Sequence[BudgetUse], nano: int
) -> ExceededBudget | None:
    for use in uses:
        rule = rules[use.budget]
        if nano <= call.beyond.get(rule.id, -1):
            continue
        if use.spent_nano + use.reserved_nano + nano > rule.limit_nano:
            return _over(rule, use.spent_nano, use.reserved_nano, nano, call.now)
    return None


def _over(rule: AppliedBudget, spent: int, reserved: int, nano: int, now: int) -> ExceededBudget:
    period = f" in {name_of(rule.period_us)}" if rule.period_us else ""
    held = f", {usd(reserved)} reserved" if reserved else ""
    words = (
        f"the {_named(rule)} is {usd(rule.limit_nano)} USD{period}: {usd(spent)} spent{held}, "
        f"and the next call may cost {usd(nano)}"
    )
    if rule.scope == "everybody":  # what others spend is nobody's business
        words = f"the budget of everyone{period} has less left than the next call may cost ({usd(nano)} USD)"
    if reserved and spent + nano <= rule.limit_nano:  # there is money, if what is under way costs less than it may
        return ExceededBudget(rule.id, rule.budget, words, "wait", _SOON_US)
    if rule.policy == "wait" and nano > rule.limit_nano:
        return ExceededBudget(rule.id, rule.budget, f"{words}: that is more than one period's budget", "end", 0)
    left_us = rule.period_us - now % rule.period_us if rule.period_us else 0
    return ExceededBudget(rule.id, rule.budget, words, rule.policy, min(left_us, _LOOK_US), rule.limit_nano + nano)


def _named(rule: AppliedBudget) -> str:
    if rule.scope == "each_tenant":
        return f"default budget of tenant {rule.subject}"
    return f"budget of {rule.scope} {rule.subject or '(none)'}"


def name_of(period_us: int) -> str:
    return "a day" if period_us == DAY_US else show(period_us)


def usd(nano: int) -> str:
    """An amount of USD in as many places as it needs, but at least four."""
    whole, rest = divmod(nano, _NANO)
    return f"{whole}.{f'{rest:09}'.rstrip('0').ljust(4, '0')}"


async def settle(tx: Transaction, costs: Sequence[tuple[LoadedRun, int, int]]) -> None:
    """What calls have cost in place of what was reserved for them."""
    rows = [CallCost(run.id, turn, nano) for run, turn, nano in costs if run.budgets or is_limited(run)]
    if rows:
        await tx.run(BudgetsSql.settle, costs=rows)


async def charge(tx: Transaction, session: str, nano: int) -> None:
    """What a session has cost beside the turns of its runs: a summary is paid for like an answer."""
    payer = await tx.one(BudgetsSql.payer, session=session) if nano else None
    if payer is not None and (found := await tx.many(BudgetsSql.budgets_of, **payer._asdict())):
        await _open(tx, found, nano)


async def free(tx: Transaction, runs: Sequence[str]) -> None:
    """Nothing is reserved any more for runs that ended without another answer."""
    left = await tx.many(BudgetsSql.reserved_turns, runs=runs)
    if left:
        await tx.run(BudgetsSql.settle, costs=[CallCost(key.run, key.number, 0) for key in left])


async def release(tx: Transaction, owner: str) -> None:
    """Nothing is reserved any more for a summary of this owner's."""
    await tx.run(BudgetsSql.settle, costs=[CallCost(owner, SUMMARY, 0)])


async def give_up_lapsed(tx: Transaction) -> bool:
    """Free what was reserved for summaries whose process has died; whether there was any."""
    left = await tx.many(BudgetsSql.lapsed, limit=_MOST_LAPSED)
    if left:
        await tx.run(BudgetsSql.settle, costs=[CallCost(key.run, key.number, 0) for key in left])
    return bool(left)
