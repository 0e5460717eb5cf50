"""How many workers a pool should have: a function of what is seen, and of nothing else.

A worker that is starting counts like one that works, so that nobody starts another in its place. One that drains has
its place until it is gone, so a pool is never larger than it may be. Only idle workers are asked to leave.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import Any, NamedTuple

from holdfast import durations, validation
from holdfast.durations import Duration
from holdfast.errors import BadSetting
from holdfast.kernel.broker_rows import WorkerRow
from holdfast.kernel.pools import PoolSnapshot, ResizePlan
from holdfast.kernel.rows import PastWorker
from holdfast.kernel.states import ALIVE, WorkerState

# The policy of a pool: how many workers it may have, and when it grows and shrinks.


MOST = 10_000  # workers of a pool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPool:
    """How a pool of workers grows and shrinks.

    It has at least `min` and at most `max` workers, each with `slots` for jobs (None: `concurrency` of the settings).
    It grows when `scale_up_threshold` jobs wait, and then to as many workers as all its jobs need. A worker that has
    been idle for `scale_down_idle` and is not needed leaves. `queues` and `capabilities` are those of its workers. A
    worker has `boot` to start.
    """

    min: int = 1
    max: int = 4
    scale_up_threshold: int = 5
    scale_down_idle: Duration = timedelta(seconds=300)
    slots: int | None = None
    queues: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()
    boot: Duration = timedelta(seconds=60)

    def __post_init__(self) -> None:
        validation.whole(self.min, "min", least=0, most=MOST)
        validation.whole(self.max, "max", least=1, most=MOST)
        if self.max < self.min:
            raise BadSetting(f"max must be at least min: {self.max} is less than {self.min}.")
        validation.whole(self.scale_up_threshold, "scale_up_threshold", least=1)
        if self.slots is not None:
            validation.whole(self.slots, "slots", least=1, most=MOST)
        for name in ("scale_down_idle", "boot"):
            object.__setattr__(self, name, durations.duration(getattr(self, name)))
        if not self.boot:
            raise BadSetting("boot must be longer than 0s: a process needs time to start.")
        for name in ("queues", "capabilities"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, validation.listed(getattr(self, name), name, str, "names"))

    @property
    def idle_us(self) -> int:
        return durations.microseconds(self.scale_down_idle)

    @property
    def boot_us(self) -> int:
        return durations.microseconds(self.boot)

    def with_slots(self, slots: int) -> WorkerPool:
        """The same, with the slots that its workers have if it does not say."""
        return replace(self, slots=self.slots or slots)

    def as_json(self) -> str:
        """As the store keeps it."""
        spelled = {"scale_down_idle": durations.show(self.idle_us), "boot": durations.show(self.boot_us)}
        return json.dumps(asdict(self) | spelled, sort_keys=True)


def policy_of(settings: str) -> WorkerPool:
    """As it was written, by this release or by another: what is not known is left out."""
    known = {field.name for field in fields(WorkerPool)}
    given: dict[str, Any] = {name: value for name, value in json.loads(settings).items() if name in known}
    return WorkerPool(**given)


STEADY_US = 10_000_000  # a worker that ends sooner than this, without being asked to, counts as a failed start
_FIRST_PAUSE_US, _LAST_PAUSE_US = 1_000_000, 60_000_000


class StartTrouble(NamedTuple):
    """Starts that failed in a row. The store remembers them, so every decider waits for the same time."""

    failures: int = 0  # decisions to start whose workers failed
    retry_at: int = 0  # the store's time
    reason: str = ""
    booted: bool = False  # one of them had started, and ended soon after

    @property
    def may_be_accident(self) -> bool:
        """Workers that had started ended together, once: somebody may have killed them."""
        return self.failures == 1 and self.booted


class SizeDecision(NamedTuple):
    """A decision, and why."""

    desired: int
    start: int
    retire: tuple[int, ...]
    trouble: StartTrouble

    @property
    def resize(self) -> ResizePlan:
        return ResizePlan(self.start, self.retire)


def judge(policy: WorkerPool, sight: PoolSnapshot) -> SizeDecision:
    """What to do about a pool. `policy.slots` is set."""
    needed = needed_workers(policy, sight.pending, sight.running)
    working = [worker for worker in sight.workers if worker.status != WorkerState.DRAINING]
    desired = desired_workers(policy, sight.pending, sight.running, len(working))
    trouble = trouble_of(sight.past)
    room = min(desired - len(working), policy.max - len(sight.workers))
    start = min(max(0, room), _most_starts(sight, trouble))
    surplus = len(working) - max(needed, least_workers(policy, sight.pending))
    retire = _longest_idle(working, policy.idle_us)[: max(0, surplus)]
    return SizeDecision(desired, start, tuple(retire), trouble)


def _most_starts(sight: PoolSnapshot, trouble: StartTrouble) -> int:
    """After starts that failed, one worker at a time tries whether it works again, later each time."""
    if not trouble.failures or trouble.may_be_accident:
        return MOST
    tries = any(worker.status == WorkerState.STARTING for worker in sight.workers)
    return 0 if tries or _now(sight) < trouble.retry_at else 1


def desired_workers(policy: WorkerPool, pending: int, running: int, working: int) -> int:
    """How many workers a pool of so many should have: it grows from the threshold on, and keeps who is needed."""
    needed = needed_workers(policy, pending, running)
    grown = needed if pending >= policy.scale_up_threshold else least_workers(policy, pending)
    return max(grown, min(needed, working))


def busy_workers(policy: WorkerPool, running: int) -> int:
    """The fewest workers that can hold so many jobs: there are at least these."""
    assert policy.slots is not None
    return math.ceil(running / policy.slots)


def needed_workers(policy: WorkerPool, pending: int, running: int) -> int:
    """As many as all jobs need at once, within the limits."""
    assert policy.slots is not None
    return max(policy.min, min(policy.max, math.ceil((pending + running) / policy.slots)))


def least_workers(policy: WorkerPool, pending: int) -> int:
    """Below the threshold: the fewest that it may have, but one if there is anything to claim."""
    return max(policy.min, 1 if pending else 0)


def trouble_of(past: Sequence[PastWorker]) -> StartTrouble:
    """The starts that failed since the last worker that was well. `past` is newest first.

    Workers that one decision started failed together and count once: what kills all of them is one cause.
    """
    failed: list[PastWorker] = []
    for worker in past:
        if _failed(worker):
            failed.append(worker)
        elif not _is_young(worker):
            break
    if not failed:
        return StartTrouble()
    starts = len({worker.boot_by for worker in failed})
    pause = 0 if starts == 1 else min(_LAST_PAUSE_US, _FIRST_PAUSE_US * 2 ** (starts - 2))
    ended_at = max((worker.stopped_at or 0 for worker in failed if not _is_ahead(worker)), default=0)
    reason = next((worker.reason for worker in failed if worker.reason), "")
    return StartTrouble(starts, ended_at + pause, reason, any(worker.pid for worker in failed))


def _failed(worker: PastWorker) -> bool:
    """It was lost before a process had its place, or soon after."""
    if worker.status != WorkerState.LOST or worker.stopped_at is None:
        return False
    return worker.pid == 0 or 0 <= worker.stopped_at - worker.started_at < STEADY_US


def _is_young(worker: PastWorker) -> bool:
    """Whether it is well shows later."""
    return worker.status == WorkerState.STARTING or (
        worker.status in ALIVE and 0 <= worker.now - worker.started_at < STEADY_US
    )


def _is_ahead(worker: PastWorker) -> bool:
    """It ended at a time that is yet to come: the clock went back, and a pause from then on would last too long."""
    return worker.stopped_at is not None and worker.stopped_at > worker.now


def _longest_idle(workers: Sequence[WorkerRow], idle_us: int) -> list[int]:
    """Those that hold nothing and have been idle for so long, the longest first."""
    idle = [
        (worker.idle_since, worker.seq)
        for worker in workers
        if worker.status == WorkerState.ACTIVE and not worker.leases and worker.idle_since is not None
        if worker.idle_since <= worker.now - idle_us
    ]
    return [seq for _, seq in sorted(idle)]


def _now(sight: PoolSnapshot) -> int:
    return max((row.now for row in sight.past), default=0)
