"""What a worker can run: a function, its name in the store, and the policy of its attempts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.errors import UsageError
from holdfast.kernel.records import Route
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.routes import capability_of, route_for
from holdfast.kernel.schedules import NewSchedule
from holdfast.workers.addresses import address_of
from holdfast.workers.signatures import Signature

Isolation = Literal["process"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How many at once and how often, across all workers: the job's own, or its queue's."""

    lane: str
    own: bool  # the job's own: each `lane=` of a call then has these limits for itself
    concurrency: int | None
    interval_us: int | None
    burst: int


@dataclass(frozen=True, slots=True)
class Unique:
    """One such job is enough: while it is pending, while it lives, or for a window of time."""

    scope: Literal["pending", "live", "window"]
    window_us: int | None = None
    replace: bool = False
    delay_us: int | None = None  # a debounced job starts so long after the last call


@dataclass(frozen=True, slots=True)
class Definition:
    """A job as it was declared."""

    kind: str
    function: Callable[..., Any]
    signature: Signature
    queue: str
    requires: frozenset[str]
    retry: RetryPolicy
    timeout_us: int | None
    deadline_us: int | None
    priority: int
    isolate: Isolation | None
    limits: Limits | None = None
    fair: bool = False
    unique: Unique | None = None
    route: Route = field(init=False)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        if self.isolate == "process":
            address_of(self.function)
        route = route_for(self.queue, self.kind, self.requires, laned=self.limits is not None)
        object.__setattr__(self, "route", route)
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))


@dataclass(slots=True)
class Registry:
    """The definitions of one app, by kind."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    schedules: list[NewSchedule] = field(default_factory=list)

    def add(self, definition: Definition) -> None:
        known = self.definitions.get(definition.kind)
        if known is not None and known.function is not definition.function:
            raise UsageError(f"two functions are declared as job {definition.kind!r}; give one of them another name=.")
        self.definitions[definition.kind] = definition

    def warm_up(self) -> None:
        """Build now what the first job of each kind would otherwise wait for."""
        for definition in self.definitions.values():
            definition.signature.warm_up()

    def capabilities(self, further: Iterable[str] = ()) -> tuple[str, ...]:
        return tuple(sorted({*map(capability_of, self.definitions), *further}))

    def routes(self) -> list[Route]:
        return [definition.route for definition in self.definitions.values()]
