"""The policy of a pool: how many workers it may have, and when it grows and shrinks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from typing import Any

from holdfast import durations, validation
from holdfast.durations import Duration
from holdfast.errors import BadSetting

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
