"""`holdfast budgets`: what may be spent, and what is."""

from __future__ import annotations

from typing import Any

import click

from holdfast.agents.money.budgets import name_of
from holdfast.agents.money.face import Budget, Policy
from holdfast.cli.options import ask, json_option, print_json, print_table, url_option
from holdfast.durations import microseconds


@click.group()
def command() -> None:
    """List, set and remove budgets."""


@command.command("ls")
@click.option("--tenant", help="Of this tenant alone.")
@url_option
@json_option
def ls(tenant: str | None, url: str | None, as_json: bool) -> None:
    """List budgets, with what is spent and reserved of them now."""
    rows = ask(url, lambda app: app.budgets.list(tenant=tenant))
    if as_json:
        print_json([_budget_dict(row) for row in rows])
        return
    print_table(
        ["ID", "OF", "PER", "USD", "SPENT", "RESERVED", "POLICY"],
        [
            (
                row.id,
                _whose(row),
                name_of(microseconds(row.per)) if row.per else "-",
                row.cost,
                row.spent,
                row.reserved,
                row.policy,
            )
            for row in rows
        ],
        empty="no budgets",
    )


@command.command("set")
@click.argument("cost")
@click.option("--tenant", help="What this tenant may spend; with --session, whose session it is.")
@click.option("--session", help="What this session may spend, by its id or key.")
@click.option("--per", help="In each such stretch of time: 1d is a UTC day; default: ever.")
@click.option(
    "--policy", type=click.Choice(["end", "ask", "wait"]), default="end", show_default=True, help="What then."
)
@url_option
@json_option
def set_(
    *,
    cost: str,
    tenant: str | None,
    session: str | None,
    per: str | None,
    policy: Policy,
    url: str | None,
    as_json: bool,
) -> None:
    """Set what a tenant, a session or, without either, everybody may spend, in USD."""
    row = ask(url, lambda app: app.budgets.set(cost, tenant=tenant, session=session, per=per, policy=policy))
    if as_json:
        print_json(_budget_dict(row))
    else:
        click.echo(f"{_whose(row)} may spend {row.cost} USD; {row.spent} are spent (budget {row.id})")


@command.command("rm")
@click.argument("id")
@url_option
@json_option
def rm(id: str, url: str | None, as_json: bool) -> None:
    """Remove a budget, with what was spent of it."""
    ask(url, lambda app: app.budgets.delete(id))
    if as_json:
        print_json({"id": id, "removed": True})
    else:
        click.echo(f"budget {id} is gone")


def _whose(row: Budget) -> str:
    return "everybody" if row.scope == "everybody" else f"{row.scope} {row.subject or '(none)'}"


def _budget_dict(row: Budget) -> dict[str, Any]:
    return {
        "id": row.id,
        "scope": row.scope,
        "subject": row.subject,
        "per_seconds": None if row.per is None else row.per.total_seconds(),
        "cost": str(row.cost),
        "spent": str(row.spent),
        "reserved": str(row.reserved),
        "policy": row.policy,
    }
