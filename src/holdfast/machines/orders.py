"""Orders: what the job of a machine is given. An order has its machines with it, or says which job has them.

Children of an execution read their machines from the job at its root, so that a hundred thousand of them do not repeat
the text of one file. What is launched has its own copy: its launcher may be gone when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.kernel import codec
from holdfast.kernel.ids import JobId
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob, Route
from holdfast.machines.bundle import Bundle
from holdfast.machines.layer import KIND, LAYER
from holdfast.settings import Settings

QUEUE = "default"
OWN_PROCESS = "tag:own-process"  # a worker that was started for executions that somebody launched
OWN_QUEUES = "own_process."  # the beginning of the queues of such executions, and of all that they run


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where an execution begins that continues another one."""

    state: str
    context: dict[str, Any]
    of: str  # the execution that it continues


@dataclass(frozen=True, slots=True)
class ExecutionOrder:
    """One execution, as it is asked for."""

    machine: str
    input: dict[str, Any]
    digest: str  # of its bundle
    bundle: dict[str, Any] | None = None
    of: str = ""  # the job whose order has the bundle
    by: str = ""  # the machine that the program declared, whose hooks this one has; empty: its own
    parent: str | None = None  # the execution that runs or launches this one
    family: str = ""  # the execution that it all began with; empty: this one
    depth: int = 0
    start: StartPoint | None = None

    def payload(self) -> dict[str, Any]:
        """As it is stored: what says nothing is left out."""
        stored: dict[str, Any] = {"machine": self.machine, "input": self.input, "digest": self.digest}
        optional = {"bundle": self.bundle, "of": self.of, "by": self.by, "parent": self.parent, "depth": self.depth}
        optional["family"] = self.family
        stored |= {name: value for name, value in optional.items() if value}
        if self.start is not None:
            stored["start"] = {"state": self.start.state, "context": self.start.context, "of": self.start.of}
        return {"order": stored}


def read_order(stored: Mapping[str, Any]) -> ExecutionOrder:
    start = stored.get("start")
    return ExecutionOrder(
        machine=stored["machine"],
        input=stored["input"],
        digest=stored["digest"],
        bundle=stored.get("bundle"),
        of=stored.get("of", ""),
        by=stored.get("by", ""),
        parent=stored.get("parent"),
        family=stored.get("family", ""),
        depth=stored.get("depth", 0),
        start=None if start is None else StartPoint(start["state"], start["context"], start["of"]),
    )


def first_order(bundle: Bundle, input: Mapping[str, Any], **more: Any) -> ExecutionOrder:
    """An order that has its machines with it."""
    stored = bundle.stored()
    return ExecutionOrder(bundle.main, dict(input), bundle.digest, stored, **more)


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """How the jobs of an execution go through the kernel."""

    queue: str
    tenant: str = ""
    priority: int = 100
    metadata: str = "{}"
    requires: tuple[str, ...] = ()  # what a worker must have beside the machine


def new_job(id: JobId, order: ExecutionOrder, way: JobPolicy, settings: Settings) -> tuple[NewJob, Route]:
    """The job of an order, and its route."""
    kind = KIND + order.machine
    requires = {*way.requires, OWN_PROCESS} if way.queue.startswith(OWN_QUEUES) else way.requires
    route = route_for(way.queue, kind, tuple(requires))
    job = NewJob(
        id=id,
        kind=kind,
        queue=way.queue,
        route=route.id,
        tenant=way.tenant,
        priority=way.priority,
        delay_us=None,
        due_at=None,
        timeout_us=None,
        deadline_us=None,
        deadline_at=None,
        max_attempts=settings.max_attempts,
        max_rescues=settings.max_rescues,
        parent=None,
        retry_of=None,
        payload=codec.encode(order.payload(), what=f"the order of {kind}", cap=settings.payload_cap),
        metadata=way.metadata,
        layer=LAYER,
    )
    return job, route
