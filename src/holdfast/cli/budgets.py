"""`holdfast budgets`: what may be spent, and what is."""

from __future__ import annotations

import click

from holdfast.agents.money.api import Budget, Policy
from holdfast.agents.money.budgets import name_of
from holdfast.app import Holdfast
from holdfast.cli.options import all_of, ask, json_option, print_json, reason_option, url_option
from holdfast.cli.short_ids import whole, whole_session
from holdfast.cli.tables import Column, Listing, print_list, wide_option
from holdfast.durations import microseconds

_BUDGETS = Listing(
    "budgets",
    "Set one with `holdfast budgets set 25.00 --tenant acme --per 1d`.",
    (
        Column("ID", "id", of="budget"),
        Column("OF"),
        Column("PER", rank=1, least=5),
        Column("USD", "money"),
        Column("SPENT", "money"),
        Column("RESERVED", "money", rank=2),
        Column("POLICY", rank=3, least=6),
    ),
)


@click.group()
def command() -> None:
    """List, set and delete budgets."""


@command.command("ls")
@click.option("--tenant", help="Only of this tenant.")
@url_option
@wide_option
@json_option
def ls(tenant: str | None, url: str | None, as_json: bool, wide: bool) -> None:
    """List budgets, and how much of each is spent and reserved now."""
    print_list(
        url,
        lambda app: all_of(app.budgets.list, tenant=tenant),
        _BUDGETS,
        lambda row: (
            *(row.id, _whose(row), name_of(microseconds(row.per)) if row.per else "-"),
            row.cost,
            *(("-", "-") if _is_default(row) else (row.spent, row.reserved)),
            row.policy,
        ),
        filtered=tenant is not None,
        as_json=as_json,
        wide=wide,
    )


@command.command("set")
@click.argument("cost")
@click.option("--tenant", help="What this tenant may spend; with --session, whose session it is.")
@click.option("--session", help="What this session may spend, by its id or key.")
@click.option("--each-tenant", is_flag=True, help="What each tenant may spend that has no such budget of its own.")
@click.option("--per", help="The period it covers: 1d is a UTC day; default: for ever.")
@click.option(
    "--policy", type=click.Choice(["end", "ask", "wait"]), default="end", show_default=True, help="What then."
)
@url_option
@json_option
def set_(  # noqa: PLR0913  its options
    *,
    cost: str,
    tenant: str | None,
    session: str | None,
    each_tenant: bool,
    per: str | None,
    policy: Policy,
    url: str | None,
    as_json: bool,
) -> None:
    """Set what a tenant, a session or each tenant may spend, in USD; without any, what everyone together may spend."""

    async def made(app: Holdfast) -> Budget:
        whose = None if session is None else await whole_session(app, session, tenant)
        return await app.budgets.set(
            cost, tenant=tenant, session=whose, each_tenant=each_tenant, per=per, policy=policy
        )

    row = ask(url, made)
    if as_json:
        print_json(row)
    elif _is_default(row):
        click.echo(f"each tenant without a budget of its own may spend {row.cost} USD (budget {row.id})")
    else:
        click.echo(f"{_whose(row)} may spend {row.cost} USD, and has spent {row.spent} (budget {row.id})")


@command.command("delete")
@click.argument("id")
@reason_option
@url_option
@json_option
def delete(id: str, url: str | None, as_json: bool) -> None:
    """Delete a budget, and the record of what was spent from it."""

    async def deleted(app: Holdfast) -> str:
        named = await whole(app, id, "budget")
        await app.budgets.delete(named)
        return named

    id = ask(url, deleted)
    if as_json:
        print_json({"id": id, "deleted": True})
    else:
        click.echo(f"budget {id} is deleted")


def _is_default(row: Budget) -> bool:
    return row.scope == "each_tenant" and not row.subject


def _whose(row: Budget) -> str:
    if row.scope == "each_tenant":
        return f"tenant {row.subject} (default)" if row.subject else "each tenant"
    return "everybody" if row.scope == "everybody" else f"{row.scope} {row.subject or '(none)'}"
