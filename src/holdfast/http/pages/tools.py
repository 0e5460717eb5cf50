"""Tools and their calls as pages: what models may call, who serves it, which tool fails and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.agents.overviews import ToolRecord
from holdfast.agents.states import CallState
from holdfast.agents.values import CallRecord
from holdfast.http.api.routes import Paged, Paging
from holdfast.http.api.seen import RequestScope
from holdfast.http.api.tools import list_offered_tools, list_tool_calls, show_call, show_tool
from holdfast.http.pages.chat import result_text
from holdfast.http.pages.filters import Chip, Tab, chips, from_when
from holdfast.http.pages.routes import Pages
from holdfast.kernel.failure_groups import pattern
from holdfast.values import Page

pages = Pages()

_LOOKED = Paging(None, 500)
_FEW = Paging(None, 20)
TABS = (Tab("", "Ended"), *(Tab(each.value, each.value.capitalize()) for each in CallState))


@dataclass(frozen=True, slots=True)
class ToolsView:
    tools: Page[ToolRecord]


@dataclass(frozen=True, slots=True)
class ToolView:
    tool: dict[str, Any]
    failed: Sequence[CallRecord]
    recent: Sequence[CallRecord]


@dataclass(frozen=True, slots=True)
class CallFailureGroup:
    """Calls of one tool that failed in the same way, apart from numbers and ids."""

    tool: str
    message: str
    count: int
    last_at: datetime | None
    last: str


@dataclass(frozen=True, slots=True)
class CallsView:
    groups: Sequence[CallFailureGroup]
    looked: int
    recent: Page[CallRecord]
    states: tuple[Tab, ...]
    state: str
    filters: dict[str, str | None]
    narrowed: tuple[Chip, ...]


@dataclass(frozen=True, slots=True)
class ToolCallView:
    call: CallRecord


@pages.page("/tools", "tools.html")
async def show_tools(seen: RequestScope, page: Paged, tenant: str | None = None) -> ToolsView:
    return ToolsView(await list_offered_tools(seen, page, tenant=tenant or None))


@pages.page("/tools/{name}", "tool.html")
async def show_one_tool(seen: RequestScope, name: str) -> ToolView:
    tool = await show_tool(seen, name)
    if seen.pinned:
        return ToolView(tool, (), ())
    failed = await list_tool_calls(seen, _FEW, name=name, state=CallState.FAILED)
    return ToolView(tool, failed, await list_tool_calls(seen, _FEW, name=name))


@pages.page("/calls", "calls.html")
async def show_calls(
    seen: RequestScope, page: Paged, name: str | None = None, state: str | None = None, since: str | None = None
) -> CallsView:
    begin = from_when(seen, since)
    failed = await list_tool_calls(seen, _LOOKED, name=name or None, state=CallState.FAILED, since=begin)
    recent = await list_tool_calls(seen, page, name=name or None, state=state or None, since=begin)
    filters = {"name": name or None, "since": since or None}
    return CallsView(_alike(failed), len(failed), recent, TABS, state or "", filters, chips(filters))


def _alike(calls: Sequence[CallRecord]) -> list[CallFailureGroup]:
    """The most frequent first; within a group, the calls are the last first."""
    groups: dict[tuple[str, str], list[CallRecord]] = {}
    for call in calls:
        groups.setdefault((call.name, pattern(_words(call.output))), []).append(call)
    found = [
        CallFailureGroup(tool, message, len(each), each[0].finished_at, each[0].id)
        for (tool, message), each in groups.items()
    ]
    return sorted(found, key=lambda each: each.count, reverse=True)


def _words(output: Any) -> str:
    """What a failed call told the model; what it raised has its words beside where it was raised."""
    return str(output["message"] if isinstance(output, dict) and "message" in output else result_text(output))


@pages.page("/calls/{id}", "call.html")
async def show_one_call(seen: RequestScope, id: str) -> ToolCallView:
    return ToolCallView(await show_call(seen, id))
