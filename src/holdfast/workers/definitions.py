"""What a worker can run: a function, its name in the store, and the policy of its attempts."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

from holdfast import validation
from holdfast.errors import BadSetting, UsageError
from holdfast.kernel.database import WORDS
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.routes import capability_of, route_for
from holdfast.kernel.rows import Route
from holdfast.kernel.schedules import NewSchedule
from holdfast.kernel.workers import HANGING, LOOP
from holdfast.settings import Settings
from holdfast.workers.isolation.addresses import address_of
from holdfast.workers.layer import Chore, Layer
from holdfast.workers.signatures import Signature
from holdfast.workers.slots import JOBS, SlotGroup

Isolation = Literal["process"]

LACKS = "lacks:"  # before a capability that a worker would have if nothing were missing where it runs; nobody needs it


@dataclass(frozen=True, slots=True)
class LaneLimits:
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
    limits: LaneLimits | None = None
    fair: bool = False
    unique: Unique | None = None
    slots: str = JOBS.name  # the group whose slots its attempts take
    once: bool = False  # started at most once: a worker that leaves does not hand it back
    context: Callable[[Any], Any] | None = None  # what the handler is given in place of the job's own context
    layer: str | None = None  # of the runtime whose job it is; None: of the program
    result_cap: Callable[[Settings], int] = lambda settings: settings.result_cap  # bytes that its result may have
    route: Route = field(init=False)
    is_async: bool = field(init=False)
    is_plain: bool = field(init=False)  # its handler needs nothing around it: see `plain`

    def __post_init__(self) -> None:
        validation.instance(self.retry, "retry", RetryPolicy, "Retry")
        validation.whole(self.priority, "priority")
        if self.isolate not in (None, "process"):
            raise BadSetting(f'isolate must be "process" or None; got {self.isolate!r}.')
        if self.isolate == "process":
            address_of(self.function)
        route = route_for(self.queue, self.kind, self.requires, laned=self.limits is not None)
        object.__setattr__(self, "route", route)
        is_async = inspect.iscoroutinefunction(self.function)
        object.__setattr__(self, "is_async", is_async)
        object.__setattr__(self, "is_plain", is_async and self.isolate is None and not self.signature.takes_context)


@dataclass(slots=True)
class Registry:
    """The definitions of one app, by kind, and the layers that some of them belong to.

    `adopts`: whether layers may add definitions for routes that nobody declared here.
    """

    definitions: dict[str, Definition] = field(default_factory=dict)
    schedules: list[NewSchedule] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    adopts: bool = True

    def plug_in(self, layer: Layer) -> None:
        """Let a layer own the jobs of its kinds. Do this before anything is declared under them."""
        taken = {group.name for group in layer.slots} & {JOBS.name, HANGING, LOOP}
        if taken or layer.hints.keys() & WORDS or len({group.name for group in layer.slots}) < len(layer.slots):
            raise UsageError(f"layer {layer.name!r} needs slots and hints with names of their own.")
        for other in self.layers:
            shared = [kind for kind in layer.kinds if kind.startswith(other.kinds)]
            shared += [kind for kind in other.kinds if kind.startswith(layer.kinds)]
            groups = {group.name for group in layer.slots} & {group.name for group in other.slots}
            if layer.name == other.name or shared or groups or layer.hints.keys() & other.hints.keys():
                raise UsageError(
                    f"layer {layer.name!r} cannot be plugged in beside {other.name!r}: each needs a name, kinds, slots "
                    f"and hints of its own."
                )
        self.layers.append(layer)

    def add(self, definition: Definition) -> None:
        owner = next((layer for layer in self.layers if definition.kind.startswith(layer.kinds)), None)
        if definition.layer != (None if owner is None else owner.name):
            raise UsageError(_not_owned(definition, owner))
        if definition.slots not in {group.name for group in self.groups}:
            raise UsageError(f"job {definition.kind!r} wants slots {definition.slots!r}, which no layer has.")
        known = self.definitions.get(definition.kind)
        if (
            known is not None
            and known.function is not definition.function
            and not is_typed_again(definition.function.__module__)
        ):
            raise UsageError(f"two functions are declared as job {definition.kind!r}; give one of them another name=.")
        self.definitions[definition.kind] = definition

    def warm_up(self) -> None:
        """Build now what the first job of each kind would otherwise wait for."""
        for definition in self.definitions.values():
            definition.signature.warm_up()

    def withheld(self) -> dict[str, str]:
        """The kinds that a worker here does not offer, each with what is missing."""
        return {kind: lack for layer in self.layers for kind, lack in layer.withheld().items()}

    def capabilities(self, further: Iterable[str] = ()) -> tuple[str, ...]:
        """What a worker here can do, and under other names what it could do if nothing were missing."""
        withheld = self.withheld()
        offered = {capability_of(kind) for kind in self.definitions if kind not in withheld}
        lacking = {LACKS + capability_of(kind) for kind in withheld}
        return tuple(sorted({*offered, *lacking, *further}))

    @property
    def chores(self) -> list[Chore]:
        return [chore for layer in self.layers for chore in layer.chores]

    @property
    def groups(self) -> list[SlotGroup]:
        """The groups of slots that a worker here has."""
        return [JOBS, *(group for layer in self.layers for group in layer.slots)]

    @property
    def served_slots(self) -> set[str]:
        """The groups whose slots something here may take."""
        return {definition.slots for definition in list(self.definitions.values())} or {JOBS.name}

    def slots_of(self, capabilities: Iterable[str]) -> str:
        """The group whose slots the jobs of a route with these capabilities take: see `SlotGroup`."""
        ranks = {group.name: group.rank for group in self.groups}
        named = [self.definitions.get(capability.removeprefix("job:")) for capability in capabilities]
        groups = [definition.slots for definition in named if definition is not None]
        return max(groups, key=lambda name: ranks[name], default=JOBS.name)

    def routes(self) -> list[Route]:
        return [definition.route for definition in self.definitions.values()]


def _not_owned(definition: Definition, owner: Layer | None) -> str:
    refused = f"job {definition.kind!r} cannot be declared"
    if owner is None:
        return f"{refused}: it is said to belong to {definition.layer}, which own no kinds that begin so."
    begin = next(begin for begin in owner.kinds if definition.kind.startswith(begin))
    return f"{refused}: names that begin with {begin!r} belong to {owner.name}. Give it another name=."


def is_typed_again(module: str | None = None) -> bool:
    """Whether what this module, or the one that calls Holdfast now, declares comes from a notebook or an interactive
    session, where a cell is run again to change it."""
    return (module or _calling_module()) == "__main__" and not hasattr(sys.modules["__main__"], "__file__")


def _calling_module() -> str:
    """The module outside of Holdfast that is nearest on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (name := str(frame.f_globals.get("__name__"))).partition(".")[0] == "holdfast":
        frame = frame.f_back
    return "" if frame is None else name


# A job's own process, if it has `isolate="process"`.


_inside = False


def enter_child() -> None:
    """From now on this process is a job's own."""
    global _inside  # noqa: PLW0603  it is a fact about the process
    _inside = True


def require_outside() -> None:
    """Raise `UsageError` in a job's own process, which has no database."""
    if _inside:
        raise UsageError(
            'a job with isolate="process" cannot reach the database from its process. Use its JobContext: step, '
            "progress, start, join, wait. If this comes from importing your program, put what it does when it is run "
            'under `if __name__ == "__main__":`.'
        )
