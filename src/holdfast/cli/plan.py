"""`holdfast plan`: plans of Unix tools in the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from holdfast.app import Holdfast, core_of
from holdfast.cli.options import ask, json_option, print_json, url_option
from holdfast.cli.tables import Column, Listing, print_list, wide_option
from holdfast.errors import NotFound, UsageError
from holdfast.resp import plans
from holdfast.resp.plan import read_plan
from holdfast.resp.records import PlanRow
from holdfast.values import moment

_PLANS = Listing(
    "plans",
    "Store one with `holdfast plan submit FILE`.",
    (Column("PLAN"), Column("TASKS"), Column("DESCRIPTION", rank=1), Column("CREATED", "time")),
)
tenant_option = click.option("--tenant", default="", help="Of this tenant; default: of no tenant.")


@click.group()
def command() -> None:
    """Submit, show, list and remove plans of Unix tools."""


@command.command("submit")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@tenant_option
@url_option
def submit(file: Path, tenant: str, url: str | None) -> None:
    """Store the plan in FILE, as JSON. A plan never changes."""
    plan = read_plan(read_json(file))

    async def store(app: Holdfast) -> bool:
        return await core_of(app).runtime().database.transact(plans.submit_plan, tenant, plan)

    click.echo(f"plan {plan.id} is {'stored' if ask(url, store, creates=True) else 'there already'}")


@command.command("show")
@click.argument("plan")
@tenant_option
@url_option
def show(plan: str, tenant: str, url: str | None) -> None:
    """Show PLAN as JSON."""

    async def question(app: Holdfast) -> dict[str, Any]:
        found = await core_of(app).runtime().database.transact(plans.find_plan, tenant, plan)
        if found is None:
            raise NotFound(f"there is no plan {plan!r}; `holdfast plan ls` lists them.")
        row, use = found
        return {**plans.stored_plan(row), "actions": use.actions, "jobs": use.jobs, "active_jobs": use.active}

    print_json(ask(url, question))


@command.command("ls")
@tenant_option
@url_option
@wide_option
@json_option
def listed(tenant: str, url: str | None, wide: bool, as_json: bool) -> None:
    """List plans, the newest first."""

    async def question(app: Holdfast) -> list[PlanRow]:
        return await core_of(app).runtime().database.transact(plans.list_plans, tenant, skipped=0, limit=1_000)

    if as_json:
        print_json([plans.stored_plan(row) for row in ask(url, question)])
        return
    print_list(url, question, _PLANS, _cells, as_json=False, wide=wide)


@command.command("rm")
@click.argument("plan")
@tenant_option
@url_option
def remove(plan: str, tenant: str, url: str | None) -> None:
    """Remove PLAN. Refused while one of its jobs has not ended."""

    async def store(app: Holdfast) -> bool:
        return await core_of(app).runtime().database.transact(plans.delete_plan, tenant, plan)

    if not ask(url, store):
        raise NotFound(f"there is no plan {plan!r}; `holdfast plan ls` lists them.")
    click.echo(f"plan {plan} is removed")


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{file} is not JSON: {problem}.") from None


def _cells(row: PlanRow) -> tuple[object, ...]:
    body = plans.stored_plan(row)
    return (
        row.id,
        " | ".join(task["command"] for task in body["tasks"]),
        body["plan_description"],
        moment(row.created_at),
    )
