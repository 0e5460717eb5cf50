"""Plans of Unix tools and actions as pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.http.api.paging import Paged, Paging
from holdfast.http.api.plans import (
    NewActionBody,
    delete_plan,
    list_actions,
    list_plans,
    show_action,
    show_plan,
    submit_action,
)
from holdfast.http.api.seen import Sight
from holdfast.http.pages.forms import Filled
from holdfast.http.pages.routes import Go, Pages
from holdfast.values import Page

pages = Pages()

_FEW = Paging(None, 50)


@dataclass(frozen=True, slots=True)
class PlansView:
    plans: Page[dict[str, Any]]
    actions: Page[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PlanView:
    plan: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ActionView:
    action: dict[str, Any]


@pages.page("/plans", "plans.html")
async def show_plans(seen: Sight, page: Paged) -> PlansView:
    return PlansView(await list_plans(seen, page), await list_actions(seen, _FEW))


@pages.page("/plans/{id}", "plan.html")
async def show_one_plan(seen: Sight, id: str) -> PlanView:
    return PlanView(await show_plan(seen, id))


@pages.action("/plans/{id}/apply", like="POST /actions")
async def apply_plan(seen: Sight, id: str, form: Filled) -> Go:
    inputs = [line.strip() for line in form.get("inputs", "").splitlines() if line.strip()]
    await show_plan(seen, id)  # 404 for who does not have it
    made = await submit_action(seen, NewActionBody(plan=id, inputs=inputs))
    return Go("/actions", made["id"])


@pages.action("/plans/{id}/delete", like="DELETE /plans/{id}")
async def delete_one_plan(seen: Sight, id: str) -> Go:
    await delete_plan(seen, id)
    return Go("/plans")


@pages.page("/actions/{id}", "action.html")
async def show_one_action(seen: Sight, id: str) -> ActionView:
    return ActionView(await show_action(seen, id))
