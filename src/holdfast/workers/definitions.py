"""What a worker can run: a function, its name in the store, and the policy of its attempts."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from holdfast import checking
from holdfast.errors import BadSetting, UsageError
from holdfast.kernel.database import Database, Transaction
from holdfast.kernel.records import Route
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.routes import capability_of, route_for
from holdfast.kernel.schedules import NewSchedule
from holdfast.settings import Settings
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
    line: str = "jobs"  # whose slots its attempts take
    once: bool = False  # started at most once: a worker that leaves does not hand it back
    context: Callable[[Any], Any] | None = None  # what the handler is given in place of the job's own context
    route: Route = field(init=False)
    is_async: bool = field(init=False)
    is_plain: bool = field(init=False)  # its handler needs nothing around it: see `plain`

    def __post_init__(self) -> None:
        checking.instance(self.retry, "retry", RetryPolicy, "Retry")
        checking.whole(self.priority, "priority")
        if self.isolate not in (None, "process"):
            raise BadSetting(f'isolate is "process" or nothing, not {self.isolate!r}.')
        if self.isolate == "process":
            address_of(self.function)
        route = route_for(self.queue, self.kind, self.requires, laned=self.limits is not None)
        object.__setattr__(self, "route", route)
        is_async = inspect.iscoroutinefunction(self.function)
        object.__setattr__(self, "is_async", is_async)
        object.__setattr__(self, "is_plain", is_async and self.isolate is None and not self.signature.takes_context)


@dataclass(frozen=True, slots=True)
class Chore:
    """Maintenance of a layer above, done by whoever holds the clean-up; doing it twice must be harmless."""

    every: Callable[[Settings], timedelta]
    operation: Callable[[Transaction, Settings], Awaitable[Any]]


@dataclass(slots=True)
class Registry:
    """The definitions of one app, by kind.

    `preparing` is what a worker writes when it starts. `adopt` finds definitions for routes that nobody declared here,
    and says which capabilities that adds; `adopts` turns it off. `kept` are kinds of jobs that others depend on, so
    that nobody cancels them by hand, each with what to do instead.
    """

    definitions: dict[str, Definition] = field(default_factory=dict)
    schedules: list[NewSchedule] = field(default_factory=list)
    preparing: list[Callable[[Transaction], Awaitable[Any]]] = field(default_factory=list)
    adopt: Callable[[Database, Sequence[Route]], Awaitable[list[str]]] | None = None
    adopts: bool = True
    chores: list[Chore] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)

    def add(self, definition: Definition) -> None:
        known = self.definitions.get(definition.kind)
        if known is not None and known.function is not definition.function and not _typed_again(definition.function):
            raise UsageError(f"two functions are declared as job {definition.kind!r}; give one of them another name=.")
        self.definitions[definition.kind] = definition

    def warm_up(self) -> None:
        """Build now what the first job of each kind would otherwise wait for."""
        for definition in self.definitions.values():
            definition.signature.warm_up()

    def capabilities(self, further: Iterable[str] = ()) -> tuple[str, ...]:
        return tuple(sorted({*map(capability_of, self.definitions), *further}))

    def line_of(self, capabilities: Iterable[str]) -> str:
        """Whose slots the jobs of a route with these capabilities take: of several that are defined, the last one's."""
        line = "jobs"
        for capability in sorted(capabilities):
            definition = self.definitions.get(capability.removeprefix("job:"))
            if definition is not None:
                line = definition.line
        return line

    def routes(self) -> list[Route]:
        return [definition.route for definition in self.definitions.values()]


def _typed_again(function: Callable[..., Any]) -> bool:
    """Whether it comes from a notebook or an interactive session, where a cell is run again to change it."""
    return function.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
