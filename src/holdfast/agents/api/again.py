"""Runs again, and runs in bulk: one call changes a page of them, each once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypedDict

from holdfast.agents.api.agent import Agent
from holdfast.agents.api.run import Run
from holdfast.agents.api.session import Session
from holdfast.agents.core import AgentsCore
from holdfast.agents.definition import AgentSpec, Limits
from holdfast.agents.events.reader import ENDED
from holdfast.agents.queries import find_agent, find_version
from holdfast.agents.runs.create import AgentName, Named
from holdfast.agents.values.runs import RunRecord
from holdfast.errors import HoldfastError, NotFound, UsageError
from holdfast.kernel import codec, stored_json
from holdfast.kernel.failure_groups import FailureTraits, Likeness
from holdfast.values.bulk import Bulk
from holdfast.values.page import Page

TOGETHER = 1_000  # runs that one call changes


class RunChoice(TypedDict, total=False):
    """Which runs a call changes: what `hf.runs.list` takes.

    `error` and `message` are those of a group of `hf.runs.failures`: only runs that failed so.
    """

    session: Session | str | None
    agent: str | None
    state: str | None
    parent: str | None
    tenant: str | None
    error: str | None
    message: str | None
    after: str | None
    limit: int


async def run_again(app: AgentsCore, run: RunRecord, *, key: str | None) -> Run[Any]:
    """Enqueue an ended run again, as a new one that names it."""
    if run.state not in ENDED:
        raise UsageError(f"run {run.id} is {run.state}: only a run that has ended can be enqueued again.")
    if run.parent is not None:
        raise UsageError(f"run {run.id} was started by another one: enqueue run {run.root} again.")
    limits = run.options.get("limits")
    return await (await _agent_of(app, run)).enqueue_again(
        run.id,
        run.input,
        session=Session(app, run.session, tenant=run.tenant),
        variables=run.variables,
        metadata=run.metadata,
        limits=None if limits is None else stored_json.read(Limits, limits, what=f"the limits of run {run.id}"),
        model=run.options.get("model"),
        mode=run.mode,
        tenant=run.tenant,
        key=key,
    )


async def _agent_of(app: AgentsCore, run: RunRecord) -> Agent[Any]:
    row = await app.runtime().transact(find_agent, run.agent)
    stored = None if row is None else await app.runtime().transact(find_version, row.id, row.version)
    if row is None or stored is None:
        raise NotFound(f"there is no agent {run.agent_name} in this database any more.")
    name = AgentName(row.name, row.tenant, row.metadata)
    spec = AgentSpec.parse(stored.definition)
    return Agent(app, name, lambda: Named(name, spec, row.description), stored=(row.id, row.version))


async def change_some(
    listing: Callable[..., Awaitable[Page[RunRecord]]],
    choice: RunChoice,
    like: Callable[[str | None, str | None, Sequence[FailureTraits]], Awaitable[Likeness]],
    change: Callable[[RunRecord], Awaitable[object]],
    *,
    ended: bool,
    dry_run: bool,
) -> Bulk:
    """Change a page of runs that have, or have not, ended. One that cannot be changed does not stop the others."""
    error, message = choice.pop("error", None), choice.pop("message", None)
    page = await listing(**{"limit": TOGETHER, **choice})
    wanted = [run for run in page if (run.state in ENDED) == ended]
    group = await like(error, message, [_traits(run) for run in wanted])
    fitting = [run for run in wanted if group.has(_traits(run))]
    changed = 0
    refused: dict[str, str] = {}
    for run in () if dry_run else fitting:
        try:
            await change(run)
            changed += 1
        except HoldfastError as problem:
            refused[run.id] = codec.clip(str(problem), 500)
    return Bulk(matched=len(fitting), changed=changed, refused=refused, next=page.next, dry_run=dry_run)


def _traits(run: RunRecord) -> FailureTraits:
    return FailureTraits(run.tenant, run.agent_name, run.error_type, run.error)
