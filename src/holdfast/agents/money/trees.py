"""Trees: what a run and all that it starts may cost together, reserved at that run.

Agents that are called at the same time ask their models at the same time, and none of them sees what the others are
about to spend. So each call of such a tree is reserved, as in a budget, under the tree's own name. A tree may be part
of another: then a call is reserved in each of them. What is spent is read from the runs themselves. A run that calls
no agents is alone: it looks at its limit before each turn, and nothing is reserved for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from holdfast.agents.definition import nano_of
from holdfast.agents.money.statements import BudgetsSql
from holdfast.agents.rows import LoadedRun, UsageBelow
from holdfast.agents.statements import LookingSql, RunsSql
from holdfast.kernel import codec
from holdfast.kernel.database import Transaction

_NAME = "tree "  # behind every id of a budget, so that the rows of both are locked in one order


class Tree(NamedTuple):
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


def passed_on(run: LoadedRun) -> dict[str, Any]:
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


async def hold(tx: Transaction, run: LoadedRun) -> list[Tree]:
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
        found.append(Tree(use.budget, limit, spent.get(id, 0), use.reserved_nano))
    return found


async def _below(tx: Transaction, ids: Sequence[str]) -> Sequence[UsageBelow]:
    return await tx.many(LookingSql.usage_below, ids=ids) if ids else ()


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
