"""Trees: what a run and all that it starts may cost together, reserved at the run at the top.

Agents that are called at the same time ask their models at the same time, and none of them sees what the others are
about to spend. So each call of such a tree is reserved, as in a budget, under the tree's own name. What is spent is
read from the runs themselves. A run that calls no agents is alone: it looks at its limit before each turn, and nothing
is reserved for it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from holdfast.agents.definition import nano_of
from holdfast.agents.money.statements import BudgetsSql
from holdfast.agents.rows import LoadedRun
from holdfast.agents.statements import RunsSql
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


def is_limited(run: LoadedRun) -> bool:
    """Whether the calls of this run are reserved for its tree."""
    return _limit(run.options, run.definition, run.parent is None) is not None


async def hold(tx: Transaction, run: LoadedRun) -> Tree | None:
    """The tree of a run, locked until the call is reserved; None when no limit of cost holds for it."""
    limit = _limit(run.options, run.definition, run.parent is None)
    if limit is None:
        return None
    name = name_of_tree(run.root)
    use = await tx.one(BudgetsSql.hold_tree, tree=name)
    used = await tx.one(RunsSql.tree_usage, root=run.root)  # after the lock: the settling transaction has spent by now
    assert use is not None
    assert used is not None
    return Tree(name, limit, int(used.cost_nano), use.reserved_nano)


@lru_cache(maxsize=1_000)
def _limit(options: str, definition: str, top: bool) -> int | None:
    own: dict[str, Any] = codec.decode(options)
    limits = own.get("tree")
    if top:
        agent: dict[str, Any] = codec.decode(definition)
        limits = (own.get("limits") or agent.get("limits")) if agent.get("agents") else None
    cost = (limits or {}).get("cost")
    return None if cost is None else nano_of(str(cost))
