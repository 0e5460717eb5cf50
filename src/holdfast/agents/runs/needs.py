"""Needs: what a run asks of the worker that plays it, by the version of the agent that it keeps.

A worker needs the code of the tools that are called where the run is played, and of every tool whose `approve=` says
which calls a person has to approve. The route of the run names them, so a worker that lacks one never sees the run. A
tool that has a pool of its own, by another queue or by capabilities that its agent does not require, is called there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from holdfast.agents.definition import AgentSpec, ToolSpec
from holdfast.agents.statements import AgentsSql
from holdfast.errors import NotUnderstood
from holdfast.kernel.database import Transaction
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob, Route

MOST_NAMED = 64  # a route has no more than these, and those with approve=; nobody depends on the others' being there


def needs_of(spec: AgentSpec) -> list[str]:
    """The kinds of the tools whose code a worker must have to play runs of this version."""
    asking = {tool.kind for tool in spec.tools if tool.approve and not tool.person}
    called = {tool.kind for tool in spec.tools if not tool.person and not _has_own_pool(tool, spec)} - asking
    return sorted([*asking, *sorted(called)[: max(0, MOST_NAMED - len(asking))]])


@lru_cache(maxsize=1_000)
def _stored_needs(definition: str) -> Sequence[str]:
    return tuple(needs_of(AgentSpec.parse(definition)))


def _has_own_pool(tool: ToolSpec, spec: AgentSpec) -> bool:
    return tool.queue != spec.queue or not set(tool.requires) <= set(spec.requires)


async def routed(tx: Transaction, job: NewJob, route: Route, agent: str) -> tuple[NewJob, Route]:
    """The job of a child run and its route, with what the present version of its agent needs."""
    row = await tx.one(AgentsSql.find_agent, id=agent)
    stored = None if row is None else await tx.one(AgentsSql.find_version, agent=row.id, version=row.version)
    try:
        needs = () if stored is None else _stored_needs(stored.definition)
    except NotUnderstood:  # the worker that plays it says so
        return job, route
    route = route_for(job.queue, job.kind, [*json.loads(route.capabilities), *needs])
    return job._replace(route=route.id), route
