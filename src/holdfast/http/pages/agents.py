"""Agents as pages: what each is told, what a version changed, who serves it, how its runs go, and starting one."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from holdfast.agents.forks.comparison import comparable
from holdfast.agents.values import AgentRecord, RunRecord, VersionRecord
from holdfast.errors import UsageError
from holdfast.http.api.agents import list_agents, list_versions, show_agent
from holdfast.http.api.routes import Paged, Paging
from holdfast.http.api.runs import NewRunBody, create_run, list_runs
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.http.pages.forms import Filled, pairs_of
from holdfast.http.pages.routes import Pages, Redirect
from holdfast.values import Page
from holdfast.values.workers import WorkerRecord

pages = Pages()

_FEW = Paging(None, 25)
_WORKERS = 200  # that are looked at


@dataclass(frozen=True, slots=True)
class AgentsView:
    agents: Page[AgentRecord]
    name: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a comparison: `mark` is +, - or a space."""

    mark: str
    text: str


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A version, and what it changed of the one before it."""

    version: VersionRecord
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class RunOutcomes:
    """How the last runs ended; `cost` is that of one, on average."""

    runs: int
    completed: int
    failed: int
    cost: Decimal | None


@dataclass(frozen=True, slots=True)
class AgentView:
    """`served_by` is None for who does not see workers."""

    agent: AgentRecord
    versions: Sequence[VersionChange]
    definition: Any
    runs: Page[RunRecord]
    ends: RunOutcomes
    served_by: Sequence[WorkerRecord] | None


@pages.page("/agents", "agents.html")
async def show_agents(
    seen: RequestScope, page: Paged, name: str | None = None, tenant: str | None = None
) -> AgentsView:
    return AgentsView(await list_agents(seen, page, name=name or None, tenant=tenant or None), name or "")


@pages.page("/agents/{id}", "agent.html")
async def show_one_agent(seen: RequestScope, id: str) -> AgentView:
    agent = await show_agent(seen, id)
    versions = await list_versions(seen, agent.id, _FEW)
    runs = await list_runs(seen, _FEW, agent=agent.id)
    definition = versions[0].definition if versions else {}
    changed = await asyncio.to_thread(_changed, versions)
    return AgentView(agent, changed, definition, runs, _ends(runs), await _served_by(seen, agent.name))


async def _served_by(seen: PrincipalScope, name: str) -> Sequence[WorkerRecord] | None:
    """The live workers that can run it."""
    if not seen.sees_fleet:
        return None
    live = [each for each in await seen.hf.workers.list(limit=_WORKERS) if not each.silent]
    return [each for each in live if f"agent:{name}" in each.capabilities]


def _changed(versions: Sequence[VersionRecord]) -> list[VersionChange]:
    older = [*versions[1:], None]
    return [VersionChange(new, _lines(old, new)) for new, old in zip(versions, older, strict=True)]


def _lines(old: VersionRecord | None, new: VersionRecord) -> list[Line]:
    """What is different, with three lines around it; nothing for the first version that is shown."""
    if old is None:
        return []
    before, after = (
        comparable(json.dumps(each.definition, ensure_ascii=False, indent=2).splitlines()) for each in (old, new)
    )
    found = difflib.unified_diff(before, after, lineterm="", n=3)
    return [Line(each[:1], each[1:]) for each in found if not each.startswith(("---", "+++", "@@"))][:500]


def _ends(runs: Sequence[RunRecord]) -> RunOutcomes:
    ended = [each for each in runs if each.finalized_at is not None]
    return RunOutcomes(
        runs=len(runs),
        completed=sum(each.state == "completed" for each in ended),
        failed=sum(each.state == "failed" for each in ended),
        cost=sum((each.cost for each in ended), Decimal()) / len(ended) if ended else None,
    )


@pages.action("/agents/{id}/start", like="POST /runs")
async def start_one(seen: RequestScope, id: str, form: Filled) -> Redirect:
    prompt = form.text("prompt")
    if prompt is None:
        raise UsageError("write what the agent is to do.")
    agent = await show_agent(seen, id)
    metadata = pairs_of(form, "metadata") or None
    made = await create_run(
        seen, NewRunBody(agent=agent.id, prompt=prompt, session=form.text("session"), metadata=metadata)
    )
    return Redirect("/runs", made.id)
