"""The SQL file of budgets as Python sees it."""

from __future__ import annotations

from holdfast.agents.money.money_rows import (
    AppliedBudget,
    BudgetRow,
    BudgetState,
    BudgetUse,
    CallCost,
    Payer,
    Reserved,
    UsedRow,
    UseName,
)
from holdfast.agents.rows import RowCount, TurnKey
from holdfast.kernel.sql import Exec, Many, One, Statements

_PACKAGE = "holdfast.agents.sql"


_ROWS = {"applied": UseName, "reserved": Reserved, "costs": CallCost}


class BudgetsSql(Statements, package=_PACKAGE, file="budgets.sql", rows=_ROWS):
    set_budget: One[BudgetRow]
    delete_budget: One[BudgetRow]
    delete_uses: Exec
    delete_reservations: Exec
    list_budgets: Many[BudgetState]
    list_default_uses: Many[BudgetState]
    list_defaults_of: Many[BudgetState]
    budgets_of: Many[AppliedBudget]
    open_uses: Many[BudgetUse]
    reserve: Exec
    hold_tree: One[BudgetUse]
    last_reserved: One[RowCount]
    settle: Exec
    payer: One[Payer]
    reserved_turns: Many[TurnKey]
    lapsed: Many[TurnKey]
    prune_uses: Exec
    note_wait: Exec
    usage_of_turns: Many[UsedRow]
    usage_of_compactions: Many[UsedRow]
