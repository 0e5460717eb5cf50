"""Tools and their calls as pages: what models may call, who serves it, which tool fails and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.agents.definition import TOOL_KIND
from holdfast.agents.tool_list import ToolRecord
from holdfast.agents.values.runs import CallRecord
from holdfast.http.api.calls import show_call
from holdfast.http.api.jobs import list_jobs
from holdfast.http.api.paging import Paged, Paging
from holdfast.http.api.seen import Sight
from holdfast.http.api.tools import list_offered_tools, show_tool
from holdfast.http.pages.routes import Pages
from holdfast.values import Page
from holdfast.values.jobs import JobRecord

pages = Pages()

_LOOKED = Paging(None, 500)
_FEW = Paging(None, 20)


@dataclass(frozen=True, slots=True)
class ToolsView:
    tools: Page[ToolRecord]


@dataclass(frozen=True, slots=True)
class ToolView:
    tool: dict[str, Any]
    failed: Sequence[JobRecord]
    recent: Sequence[JobRecord]


@dataclass(frozen=True, slots=True)
class Failing:
    """Calls of one tool that failed in the same way."""

    tool: str
    type: str
    message: str
    count: int
    last_at: datetime | None
    last: str


@dataclass(frozen=True, slots=True)
class CallsView:
    groups: Sequence[Failing]
    looked: int
    recent: Sequence[JobRecord]


@dataclass(frozen=True, slots=True)
class ToolCallView:
    call: CallRecord
    job: JobRecord | None


@pages.page("/tools", "tools.html")
async def show_tools(seen: Sight, page: Paged, tenant: str | None = None) -> ToolsView:
    return ToolsView(await list_offered_tools(seen, page, tenant=tenant or None))


@pages.page("/tools/{name}", "tool.html")
async def show_one_tool(seen: Sight, name: str) -> ToolView:
    tool, kind = await show_tool(seen, name), TOOL_KIND + name
    if seen.pinned:
        return ToolView(tool, (), ())
    failed = await list_jobs(seen, _FEW, state="failed", kind=kind)
    return ToolView(tool, failed, await list_jobs(seen, _FEW, kind=kind))


@pages.page("/calls", "calls.html", like="GET /jobs")
async def show_calls(seen: Sight) -> CallsView:
    failed = await list_jobs(seen, _LOOKED, state="failed")
    recent = await list_jobs(seen, Paging(None, 200))
    return CallsView(_grouped(failed), len(failed), [each for each in recent if each.kind.startswith(TOOL_KIND)][:50])


def _grouped(jobs: Sequence[JobRecord]) -> list[Failing]:
    """Failures of tools that have the same type and begin with the same words; the most frequent first."""
    groups: dict[tuple[str, str, str], list[JobRecord]] = {}
    for job in jobs:
        if job.kind.startswith(TOOL_KIND):
            error = job.error if isinstance(job.error, dict) else {}
            first = str(error.get("message", "")).partition("\n")[0][:80]
            groups.setdefault((job.kind.removeprefix(TOOL_KIND), str(error.get("type", "")), first), []).append(job)
    found = [
        Failing(tool, type, message, len(each), each[0].finished_at, each[0].id)
        for (tool, type, message), each in groups.items()
    ]
    return sorted(found, key=lambda each: each.count, reverse=True)


@pages.page("/calls/{id}", "call.html")
async def show_one_call(seen: Sight, id: str) -> ToolCallView:
    call = await show_call(seen, id)
    return ToolCallView(call, None)
