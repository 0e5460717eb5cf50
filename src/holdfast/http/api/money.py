"""Usage and budgets over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from holdfast.agents.money.api import Budget, Part, Policy, Used
from holdfast.http.api.routes import MOST, Paged, Routes
from holdfast.http.api.runs import Body
from holdfast.http.api.seen import RequestScope
from holdfast.values import Page

usage = Routes("usage")
budgets = Routes("budgets")


class NewBudget(Body):
    """What may be spent, in USD as text ("20.00"): by a tenant, a session, each tenant, or else everybody."""

    cost: str
    tenant: str | None = None
    session: str | None = None
    each_tenant: bool = False
    per: str | None = None
    policy: Policy = "end"


@usage.get("/usage")
async def show_used(
    seen: RequestScope,
    by: Annotated[list[Part] | None, Query()] = None,
    since: datetime | None = None,
    until: datetime | None = None,
    tenant: str | None = None,
) -> list[Used]:
    """Show what models have used and cost, grouped `by` tenant, agent, model, mode or day; the last thirty days."""
    whose = seen.chosen(tenant)
    return list(await seen.hf.budgets.used(*(by or ()), since=since, until=until, tenant=whose))


@budgets.get("/budgets", first=MOST)
async def list_budgets(seen: RequestScope, page: Paged, tenant: str | None = None) -> Page[Budget]:
    """List budgets, and how much of each is spent and reserved."""
    return await seen.hf.budgets.list(tenant=seen.chosen(tenant), **page.place)


@budgets.put("/budgets")
async def set_budget(seen: RequestScope, new: NewBudget) -> Budget:
    """Set a budget. Setting it again changes the amount and the policy; what is spent stays spent."""
    given: dict[str, Any] = new.model_dump(exclude={"cost"})
    return await seen.hf.budgets.set(new.cost, **given)


@budgets.delete("/budgets/{id}")
async def delete_budget(seen: RequestScope, id: str) -> Response:
    """Delete a budget, with what was spent of it."""
    await seen.hf.budgets.delete(id)
    return Response(status_code=204)
