"""What a worker can run: a function, its name in the store, and the policy of its attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.errors import UsageError
from holdfast.kernel.records import Route
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.routes import capability_of, route_for
from holdfast.workers.addresses import address_of
from holdfast.workers.signatures import Signature

Isolation = Literal["process"]


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

    def __post_init__(self) -> None:
        if self.isolate == "process":
            address_of(self.function)

    @property
    def route(self) -> Route:
        return route_for(self.queue, self.kind, self.requires)


@dataclass(slots=True)
class Registry:
    """The definitions of one app, by kind."""

    definitions: dict[str, Definition] = field(default_factory=dict)

    def add(self, definition: Definition) -> None:
        known = self.definitions.get(definition.kind)
        if known is not None and known.function is not definition.function:
            raise UsageError(f"two functions are declared as job {definition.kind!r}; give one of them another name=.")
        self.definitions[definition.kind] = definition

    def capabilities(self, further: Iterable[str] = ()) -> tuple[str, ...]:
        return tuple(sorted({*map(capability_of, self.definitions), *further}))

    def routes(self) -> list[Route]:
        return [definition.route for definition in self.definitions.values()]
