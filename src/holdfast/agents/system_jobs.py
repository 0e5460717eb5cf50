"""Jobs that the runtime gives itself, on a queue of their own. Any worker that serves agents serves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.agents.definition import LAYER
from holdfast.kernel import codec
from holdfast.kernel.ids import JobId
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.routes import route_for
from holdfast.kernel.rows import NewJob, Route
from holdfast.workers.definitions import Definition
from holdfast.workers.role import SYSTEM_KIND, SYSTEM_QUEUE
from holdfast.workers.signatures import Signature
from holdfast.workers.slots import JOBS, SlotGroup

# The slots that agents have in a worker: their runs, their runs in batch mode, and the calls of their tools.


# A route of a run names the tools that its worker must have, and that of a run in batch mode the batch too. So tools
# rank below runs, and batches above everything else.
RUNS = SlotGroup("runs", lambda settings: settings.max_concurrent_streaming_runs, rank=-1)
BATCHED = SlotGroup("batched", lambda settings: settings.max_concurrent_runs, rank=1)
TOOLS = SlotGroup("tools", lambda settings: settings.max_concurrent_tools, rank=-2, prefetches=True, abandons=True)


EXPIRE, NOTIFY = f"{SYSTEM_KIND}expire", f"{SYSTEM_KIND}notify"
BATCH = f"{SYSTEM_KIND}batch"  # what a worker can that serves runs in batch mode, too

_CAP = 1 << 20
_ATTEMPTS, _RESCUES = 10, 1_000


def system_job(
    kind: str, id: JobId, payload: dict[str, Any], delay_us: int | None = None, *, tenant: str = ""
) -> tuple[NewJob, Route]:
    """A job of the runtime's own. It is never given up because workers die under it."""
    route = route_for(SYSTEM_QUEUE, kind)
    job = NewJob(
        id=id,
        kind=kind,
        queue=SYSTEM_QUEUE,
        route=route.id,
        tenant=tenant,
        priority=100,
        delay_us=delay_us or None,
        due_at=None,
        timeout_us=None,
        deadline_us=None,
        deadline_at=None,
        max_attempts=_ATTEMPTS,
        max_rescues=_RESCUES,
        parent=None,
        retry_of=None,
        payload=codec.encode(payload, what=f"the payload of {kind}", cap=_CAP),
        metadata="{}",
        layer=LAYER,
    )
    return job, route


def system_definition(kind: str, function: Callable[..., Any], *, slots: str = JOBS.name) -> Definition:
    """How such jobs are run."""
    return Definition(
        kind=kind,
        function=function,
        signature=Signature(kind, function),
        queue=SYSTEM_QUEUE,
        requires=frozenset(),
        retry=RetryPolicy(attempts=_ATTEMPTS, base="1s", cap="1m"),
        timeout_us=None,
        deadline_us=None,
        priority=100,
        isolate=None,
        slots=slots,
        layer=LAYER,
    )
