"""Rows about money: budgets, what is reserved and spent of them, and what was used."""

from __future__ import annotations

from typing import NamedTuple


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


class Reserved(NamedTuple):
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
