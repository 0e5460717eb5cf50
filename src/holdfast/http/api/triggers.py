"""Triggers over HTTP: what starts machines, when next, and what became of what they started."""

from __future__ import annotations

from dataclasses import replace

from holdfast.app import core_of, machines_of
from holdfast.http.api.routes import Routes
from holdfast.http.api.seen import PrincipalScope, RequestScope
from holdfast.machines.layer import KIND
from holdfast.machines.triggers import TriggerRecord, record_of, started_by, undeclared_trigger
from holdfast.values.jobs import JobRecord

routes = Routes("triggers")

_OF_ONE, _OF_ALL = 25, 200  # executions that are looked at: a payload may be large
_MACHINES = 20  # whose executions are looked for
_LOOK = 2_000  # jobs that are read for them


@routes.get("/triggers")
async def list_triggers(seen: RequestScope) -> list[TriggerRecord]:
    """List the triggers and webhooks of the program that serves this, and others that have started machines lately.

    `started` and `failed` count among the newest executions.
    """
    now_us = core_of(seen.hf).ports.clock.wall_us()
    declared = [record_of(each, now_us) for each in machines_of(seen.hf).triggers.values()]
    found = started_by(await _newest(seen, {each.starts for each in declared}))
    named = {each.name for each in declared}
    others = [undeclared_trigger(name, jobs) for name, jobs in found.items() if name not in named]
    hooks = [
        TriggerRecord(name=each.name, type="webhook", noun=each.target[0], starts=each.target[1])
        for each in seen.hf.access.webhooks.declared
    ]
    listed = [_with(each, found.get(each.name, [])) for each in (*declared, *others)]
    return sorted([*listed, *hooks], key=lambda each: (each.name, each.type))


async def _newest(seen: PrincipalScope, machines: set[str]) -> list[JobRecord]:
    """Executions of these machines, and of any among the newest jobs; each once, the newest first."""
    jobs = seen.hf.jobs
    found = {each.seq: each for each in await jobs.list(limit=_OF_ALL, look=_LOOK)}
    for name in sorted(machines)[:_MACHINES]:
        found |= {each.seq: each for each in await jobs.list(kind=f"{KIND}{name}", limit=_OF_ONE, look=_LOOK)}
    return [found[seq] for seq in sorted(found, reverse=True)]


def _with(trigger: TriggerRecord, jobs: list[JobRecord]) -> TriggerRecord:
    if not jobs:
        return trigger
    last, failed = jobs[0], sum(each.state == "failed" for each in jobs)
    known = replace(trigger, started=len(jobs), failed=failed)
    return replace(known, last=str(last.id), last_state=last.state, last_at=last.created_at)
