"""Triggers as they stand: what a program declares to start machines, and what each of them has started.

They stand in files, which a layer above reads. An execution that one has started names it in its metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast import durations
from holdfast.machines.layer import KIND, LAYER
from holdfast.values import moment
from holdfast.values.jobs import JobRecord

MARK = "trigger"  # the key of the metadata under which an execution names what started it


@dataclass(frozen=True, slots=True)
class DeclaredTrigger:
    """When a machine is to be started, and with which input."""

    name: str
    type: str
    machine: str
    schedule: str | None = None
    on: str | None = None
    input: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerRecord:
    """A trigger, and what it has started lately: `last` is the newest of it, `started` how many of the newest it was.

    `noun` says what `starts` names: a machine, or for a webhook also a job, an agent or a function. One that this
    program does not declare has no `type`: it is known by what it started.
    """

    name: str
    type: str
    noun: str
    starts: str
    schedule: str | None = None
    on: str | None = None
    next_at: datetime | None = None
    started: int = 0
    failed: int = 0
    last: str | None = None
    last_state: str | None = None
    last_at: datetime | None = None


def record_of(trigger: DeclaredTrigger, now_us: int) -> TriggerRecord:
    """What is known of one before anything is read from the store."""
    following = None if trigger.schedule is None else moment(durations.next_tick(trigger.schedule, "UTC", now_us))
    return TriggerRecord(
        name=trigger.name,
        type=trigger.type,
        noun="machine",
        starts=trigger.machine,
        schedule=trigger.schedule,
        on=trigger.on,
        next_at=following,
    )


def started_by(jobs: Iterable[JobRecord]) -> dict[str, list[JobRecord]]:
    """Executions by the trigger that started them, in the order in which they come."""
    found: dict[str, list[JobRecord]] = {}
    for job in jobs:
        name = job.metadata.get(MARK) if job.layer == LAYER and isinstance(job.metadata, dict) else None
        if isinstance(name, str) and name:
            found.setdefault(name, []).append(job)
    return found


def undeclared_trigger(name: str, jobs: Sequence[JobRecord]) -> TriggerRecord:
    """A trigger that this program does not declare."""
    return TriggerRecord(name=name, type="", noun="machine", starts=jobs[0].kind.removeprefix(KIND))
