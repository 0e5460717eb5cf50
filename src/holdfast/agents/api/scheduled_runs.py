"""Scheduled runs: an agent that the clock gives a prompt.

Each tick enqueues a job of the runtime, and that job creates the run under the job's own id as key. So a tick makes one
run, however many workers fire it and however often the job is tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict, cast

from holdfast import validation
from holdfast.agents.api.agent import Agent
from holdfast.agents.api.lists import AgentsList
from holdfast.agents.api.options import RunOptions, check_model, chosen
from holdfast.agents.api.session import wish_for
from holdfast.agents.batches.mode import choose
from holdfast.agents.content import Prompt, blocks_of
from holdfast.agents.core import AgentsCore
from holdfast.agents.definition import Limits, Mode
from holdfast.agents.runs.inbox import During
from holdfast.agents.system_jobs import system_definition, system_job
from holdfast.client.declarations import CatchUp, check_rhythm
from holdfast.durations import Duration, microseconds
from holdfast.errors import UsageError
from holdfast.kernel import codec
from holdfast.kernel.ids import derived_id
from holdfast.kernel.schedules import TICK, NewSchedule
from holdfast.models.facts import SCRIPTED
from holdfast.settings import Settings
from holdfast.workers.context import JobContext
from holdfast.workers.role import SYSTEM_KIND

_LONGEST_TICK = datetime.max.replace(tzinfo=UTC).isoformat()
START = f"{SYSTEM_KIND}start:"  # followed by the name of the schedule


class ScheduledRunOptions(TypedDict, total=False):
    """The options of a run that `hf.schedule(…, agent=…)` takes. `session` is a key: its runs are one conversation."""

    session: str | None
    variables: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    tenant: str | None
    priority: int | None
    limits: Limits | None
    model: str | None
    mode: Mode | None
    answer_within: Duration | None
    during: During | None


def schedule_run(  # noqa: PLR0913  a rhythm, and what it starts
    core: AgentsCore,
    cron: str,
    agent: Agent[Any] | str,
    prompt: Prompt,
    *,
    timezone: str,
    catch_up: CatchUp,
    name: str | None,
    options: Mapping[str, Any],
) -> None:
    """Declare that the clock starts runs of an agent: one of this program, or one in the store by its name."""
    check_rhythm(cron, timezone, catch_up)
    validation.option_names(options, ScheduledRunOptions, "schedule")
    if not isinstance(agent, Agent | str):
        raise UsageError(validation.expected("agent=", "an agent or its name", agent))
    if not isinstance(options.get("session"), str | None):
        raise UsageError("session= of a schedule is the key of a session: every tick finds it again by its key.")
    blocks = blocks_of(prompt)
    _check(chosen(cast(RunOptions, options)), core.settings)
    named = agent if isinstance(agent, str) else agent.name
    title = codec.check_text(name or named, what="a schedule's name")
    if any(each.name == title for each in core.registry.schedules):
        raise UsageError(f"there is already a schedule {title!r}; give this one name=.")

    async def start(ctx: JobContext) -> dict[str, str | None]:
        found = agent if isinstance(agent, Agent) else core.defined.get(agent)
        if found is None:
            found = await AgentsList(core)[named].load()
        tick = None if ctx.scheduled_for is None else ctx.scheduled_for.isoformat()
        metadata = {**(options.get("metadata") or {}), TICK: tick}
        run = await found.enqueue(blocks, **{**options, "key": ctx.id, "metadata": metadata})
        return {"run": run.id, "session": run.session_id}

    core.registry.add(system_definition(START + title, start))
    job, route = system_job(START + title, derived_id("schedule", title), {})
    core.registry.schedules.append(NewSchedule(title, cron, timezone, catch_up, job, route))


def _check(options: RunOptions, settings: Settings) -> None:
    """`UsageError` when no agent could be run with these. Whether this agent can, is known when it is first used."""
    wish_for(options["session"], "")
    if options["model"] is not None:
        check_model(options["model"], {})
    within = options["answer_within"]
    model = options["model"] or f"{SCRIPTED}:"  # the agent's own is not known yet, and a script takes every mode
    choose(model, options["mode"], None if within is None else microseconds(within), settings)
    codec.encode(dict(options["variables"] or {}), what="variables", cap=settings.metadata_cap)
    metadata = {**(options["metadata"] or {}), TICK: _LONGEST_TICK}
    codec.encode(metadata, what="metadata", cap=settings.metadata_cap)
