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
from holdfast.http.api.paging import Paged, Paging
from holdfast.http.api.runs import ReasonBody
from holdfast.http.api.seen import Seen, Sight
from holdfast.http.pages.filters import Tab
from holdfast.http.pages.forms import Filled
from holdfast.http.pages.routes import Go, Pages
from holdfast.kernel.states import State
from holdfast.machines.drawing.svg import svg
from holdfast.machines.executions import ExecutionDetail, ExecutionRecord
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
async def show_machines(seen: Sight, page: Paged, machine: str | None = None, state: str | None = None) -> MachinesView:
    found = await list_executions(seen, page, machine=machine or None, state=state or None)
    return MachinesView(await list_machines(seen), found, TABS, state or "", machine or "")


@pages.page("/machines/{name}", "machine.html", like="GET /executions")
async def show_machine(seen: Sight, name: str) -> MachineView:
    drawn = _drawn(seen, name, None)
    if not drawn:
        raise NotFound(f"this program has no machine {name[:80]!r}.")
    return MachineView(name, drawn, await list_executions(seen, Paging(None, 20), machine=name))


@pages.page("/executions/{id}", "execution.html")
async def show_one_execution(seen: Sight, id: str) -> ExecutionView:
    found = await show_execution(seen, id)
    events = [as_json(each) for each in await list_execution_events(seen, id)]
    return ExecutionView(found, _drawn(seen, found.machine, found.at), events[-200:])


def _drawn(seen: Seen, name: str, at: str | None) -> Markup:
    """The machine as this program declares it; nothing when it does not."""
    declared = machines_of(seen.hf).declared.get(name)
    return Markup(svg(declared.graph, at)) if declared is not None else Markup("")


@pages.action("/machines/{name}/start", like="POST /executions")
async def start_one(seen: Sight, name: str, form: Filled) -> Go:
    given = form.json("input")
    if not isinstance(given, dict | None):
        raise UsageError("the input of a machine is a JSON object.")
    made = await start_execution(seen, NewExecution(machine=name, input=given or {}, execution_id=form.text("id")))
    return Go("/executions", made.id)


@pages.action("/executions/{id}/cancel")
async def cancel_one(seen: Sight, id: str, form: Filled) -> Go:
    await cancel_execution(seen, id, ReasonBody(reason=form.text("reason") or "cancelled by its owner"))
    return Go("/executions", id)


@pages.action("/executions/{id}/resume")
async def resume_one(seen: Sight, id: str) -> Go:
    return Go("/executions", (await continue_execution(seen, id)).id)
