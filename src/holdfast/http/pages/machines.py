"""Machines and executions as pages: each drawn, with the state lit that it is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from holdfast.app import machines_of
from holdfast.errors import NotFound, UsageError
from holdfast.http.api.machines import (
    NewExecution,
    cancel_execution,
    continue_execution,
    list_execution_events,
    list_executions,
    list_machines,
    show_execution,
    start_execution,
)
from holdfast.http.api.plans import (
    NewActionBody,
    delete_plan,
    list_actions,
    list_plans,
    show_action,
    show_plan,
    submit_action,
)
from holdfast.http.api.routes import Paged, Paging
from holdfast.http.api.runs import ReasonBody
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.api.triggers import list_triggers
from holdfast.http.pages.filters import Tab
from holdfast.http.pages.forms import Filled
from holdfast.http.pages.routes import Pages, Redirect
from holdfast.kernel.states import State
from holdfast.machines.api import ExecutionDetail, ExecutionRecord
from holdfast.machines.drawing import svg
from holdfast.machines.triggers import TriggerRecord
from holdfast.values import Page, as_json

pages = Pages()

TABS = (Tab("", "All"), *(Tab(each.value, each.value.capitalize()) for each in State))


@dataclass(frozen=True, slots=True)
class MachinesView:
    machines: Sequence[dict[str, Any]]
    executions: Page[ExecutionRecord]
    tab_items: tuple[Tab, ...]
    state: str
    machine: str


@dataclass(frozen=True, slots=True)
class MachineView:
    name: str
    drawing: Markup
    executions: Page[ExecutionRecord]


@dataclass(frozen=True, slots=True)
class ExecutionView:
    execution: ExecutionDetail
    drawing: Markup
    events: Sequence[Any]


@pages.page("/machines", "machines.html", like="GET /executions")
async def show_machines(
    seen: RequestScope, page: Paged, machine: str | None = None, state: str | None = None
) -> MachinesView:
    found = await list_executions(seen, page, machine=machine or None, state=state or None)
    return MachinesView(await list_machines(seen), found, TABS, state or "", machine or "")


@pages.page("/machines/{name}", "machine.html", like="GET /executions")
async def show_machine(seen: RequestScope, name: str) -> MachineView:
    drawn = _drawn(seen, name, None)
    if not drawn:
        raise NotFound(f"this program has no machine {name[:80]!r}.")
    return MachineView(name, drawn, await list_executions(seen, Paging(None, 20), machine=name))


@pages.page("/executions/{id}", "execution.html")
async def show_one_execution(seen: RequestScope, id: str) -> ExecutionView:
    found = await show_execution(seen, id)
    events = [as_json(each) for each in await list_execution_events(seen, id)]
    return ExecutionView(found, _drawn(seen, found.machine, found.at), events[-200:])


def _drawn(seen: PrincipalScope, name: str, at: str | None) -> Markup:
    """The machine as this program declares it; nothing when it does not."""
    declared = machines_of(seen.hf).declared.get(name)
    return Markup(svg(declared.graph, at)) if declared is not None else Markup("")


@pages.action("/machines/{name}/start", like="POST /executions")
async def start_one(seen: RequestScope, name: str, form: Filled) -> Redirect:
    given = form.json("input")
    if not isinstance(given, dict | None):
        raise UsageError("the input of a machine is a JSON object.")
    made = await start_execution(seen, NewExecution(machine=name, input=given or {}, execution_id=form.text("id")))
    return Redirect("/executions", made.id)


@pages.action("/executions/{id}/cancel")
async def cancel_one(seen: RequestScope, id: str, form: Filled) -> Redirect:
    await cancel_execution(seen, id, ReasonBody(reason=form.text("reason") or "cancelled by its owner"))
    return Redirect("/executions", id)


@pages.action("/executions/{id}/resume")
async def resume_one(seen: RequestScope, id: str) -> Redirect:
    return Redirect("/executions", (await continue_execution(seen, id)).id)


# Triggers as a page: what starts machines, when next, and how it went.


@dataclass(frozen=True, slots=True)
class TriggersView:
    triggers: Sequence[TriggerRecord]


@pages.page("/triggers", "triggers.html")
async def show_triggers(seen: RequestScope) -> TriggersView:
    return TriggersView(await list_triggers(seen))


# Plans of Unix tools and actions as pages.


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
async def show_plans(seen: RequestScope, page: Paged) -> PlansView:
    return PlansView(await list_plans(seen, page), await list_actions(seen, _FEW))


@pages.page("/plans/{id}", "plan.html")
async def show_one_plan(seen: RequestScope, id: str) -> PlanView:
    return PlanView(await show_plan(seen, id))


@pages.action("/plans/{id}/apply", like="POST /actions")
async def apply_plan(seen: RequestScope, id: str, form: Filled) -> Redirect:
    inputs = [line.strip() for line in form.get("inputs", "").splitlines() if line.strip()]
    await show_plan(seen, id)  # 404 for who does not have it
    made = await submit_action(seen, NewActionBody(plan=id, inputs=inputs))
    return Redirect("/actions", made["id"])


@pages.action("/plans/{id}/delete", like="DELETE /plans/{id}")
async def delete_one_plan(seen: RequestScope, id: str) -> Redirect:
    await delete_plan(seen, id)
    return Redirect("/plans")


@pages.page("/actions/{id}", "action.html")
async def show_one_action(seen: RequestScope, id: str) -> ActionView:
    return ActionView(await show_action(seen, id))
