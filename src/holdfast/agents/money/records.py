"""Rows about money: budgets, what is reserved and spent of them, and what was used."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.rows import RowCount, TurnKey
from holdfast.kernel.sql import Exec, Many, One, Statements


class BudgetRow(NamedTuple):
    id: str
    scope: str
    subject: str
    period_us: int  # 0: for ever
    limit_nano: int
    policy: str


class AppliedBudget(NamedTuple):
    """A budget that a run is under. A default has the scope `each_tenant` and the tenant as its subject."""

    budget: str  # the name under which the run uses it
    id: str
    scope: str
    subject: str
    period_us: int
    limit_nano: int
    policy: str


class UseName(NamedTuple):
    budget: str
    id: str


class Payer(NamedTuple):
    session: str
    tenant: str


class BudgetState(NamedTuple):
    id: str
    scope: str
    subject: str
    period_us: int
    limit_nano: int
    policy: str
    spent_nano: int
    reserved_nano: int


class BudgetUse(NamedTuple):
    budget: str
    period: int
    spent_nano: int
    reserved_nano: int


class Reservation(NamedTuple):
    budget: str
    period: int
    nano: int


class CallCost(NamedTuple):
    run: str
    turn: int
    nano: int


class UsedRow(NamedTuple):
    """What was used, by the columns that the question groups by; the others are empty."""

    tenant: str
    agent: str
    model: str
    mode: str
    day: int
    turns: int
    input_tokens: int
    output_tokens: int
    cache_write_tokens: int
    cache_read_tokens: int
    cost_nano: int


# The SQL file of budgets as Python sees it.


_PACKAGE = "holdfast.agents.sql"


_ROWS = {"applied": UseName, "reserved": Reservation, "costs": CallCost}


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
