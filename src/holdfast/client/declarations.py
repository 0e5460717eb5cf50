"""Declarations of jobs, schedules and queues: what `@hf.job`, `@hf.schedule` and `hf.queue` write into the registry.

Declaring does no I/O. The options of `@hf.job` are listed once, in `JobOptions`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from holdfast import durations, validation
from holdfast.client.core import Core
from holdfast.client.jobs import (
    ContextAsync,
    ContextJob,
    DeclaredJob,
    JobFunction,
    OnDuplicate,
    PlainAsync,
    PlainJob,
    unique_rule,
)
from holdfast.client.queues import Queue, check_limits
from holdfast.durations import Duration, next_tick, rate
from holdfast.errors import BadSetting, UsageError
from holdfast.kernel import codec
from holdfast.kernel.ids import derived_id
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.schedules import TICK, NewSchedule
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition, Isolation, LaneLimits
from holdfast.workers.isolation.addresses import SCRIPT
from holdfast.workers.signatures import Signature

P = ParamSpec("P")
R = TypeVar("R")
J = TypeVar("J", bound=JobFunction[Any, Any])

CatchUp = Literal["one", "all", "none"]

_SOME_TICK = datetime(2000, 1, 1, 7, 30, tzinfo=UTC)  # to check the annotation by: a tick is a time, not a date


class ScheduledJobOptions(TypedDict, total=False):
    """The options of `@hf.schedule` that are also options of `@hf.job`."""

    queue: str
    retry: RetryPolicy | None
    timeout: Duration | None
    deadline: Duration | None
    priority: int
    requires: Iterable[str]
    isolate: Isolation | None
    concurrency: int | None
    rate: str | None
    unique: str | None
    on_duplicate: OnDuplicate | None
    debounce: Duration | None


class JobOptions(ScheduledJobOptions, total=False):
    """The options of `@hf.job`."""

    name: str | None


JOB_DEFAULTS = JobOptions(
    name=None,
    queue="default",
    retry=None,
    timeout=None,
    deadline=None,
    priority=100,
    requires=(),
    isolate=None,
    concurrency=None,
    rate=None,
    unique=None,
    on_duplicate=None,
    debounce=None,
)


class JobDecorator(Protocol):
    """`@hf.job(...)`: keeps the function's parameters, but for the context, which the runtime supplies."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> ContextAsync[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> ContextJob[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> PlainAsync[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainJob[P, R]: ...


class ScheduleDecorator(Protocol):
    """`@hf.schedule(...)`: what it decorates can also be enqueued by hand."""

    @overload
    def __call__(self, function: J, /) -> J: ...  # type: ignore[overload-overlap]  # a job can be called too

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> ContextAsync[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> ContextJob[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> PlainAsync[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainJob[P, R]: ...


class Declarations:
    """What a program declares of jobs, for one app."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def job(self, function: Callable[..., Any], **options: Unpack[JobOptions]) -> DeclaredJob[Any, Any, Any, Any]:
        validation.option_names(options, JobOptions, "job")
        asked: JobOptions = {**JOB_DEFAULTS, **options}
        queue, timeout, deadline = asked["queue"], asked["timeout"], asked["deadline"]
        policy = self._core.policies.get(queue, Queue())
        limit = policy.timeout if timeout is None else timeout
        kind = codec.check_text(asked["name"] or kind_of(function), what="a job's name")
        definition = Definition(
            kind=kind,
            function=function,
            signature=Signature(kind, function),
            queue=codec.check_text(queue, what="a queue name"),
            requires=validation.capabilities(asked["requires"]),
            retry=asked["retry"] or policy.retry or RetryPolicy(),
            timeout_us=None if limit is None else durations.microseconds(limit),
            deadline_us=None if deadline is None else durations.microseconds(deadline),
            priority=asked["priority"],
            isolate=asked["isolate"],
            limits=limits_of(f"job:{kind}", asked["concurrency"], asked["rate"], own=True)
            or limits_of(f"queue:{queue}", policy.concurrency, policy.rate, own=False),
            fair=policy.fair,
            unique=unique_rule(asked["unique"], asked["on_duplicate"], asked["debounce"]),
        )
        self._core.registry.add(definition)
        return DeclaredJob(self._core, definition, function)

    def schedule(
        self,
        cron: str,
        timezone: str,
        catch_up: CatchUp,
        name: str | None,
        args: Mapping[str, Any] | None,
        **options: Unpack[ScheduledJobOptions],
    ) -> ScheduleDecorator:
        validation.option_names(options, ScheduledJobOptions, "schedule")
        check_rhythm(cron, timezone, catch_up)

        def decorate(function: Any) -> Any:
            job: JobFunction[Any, Any] = (
                function if isinstance(function, JobFunction) else self.job(function, **options)
            )
            title = codec.check_text(name or job.definition.kind, what="a schedule's name")
            given = dict(args or {})
            takes_tick = TICK not in given and job.definition.signature.has(TICK)
            if takes_tick:
                given[TICK] = _SOME_TICK.isoformat()
            planned, route = job.new_job((), given, id=derived_id("schedule", title), settings=self._core.settings)
            if takes_tick:  # a release that knows no ticks would pass on the one by which the annotation was checked
                arguments = codec.decode(planned.payload)
                del arguments[TICK]
                payload = codec.encode(arguments, what="a payload", cap=self._core.settings.payload_cap)
                planned = planned._replace(payload=payload)
            schedule = NewSchedule(title, cron, timezone, catch_up, planned, route, takes_tick)
            self._core.registry.schedules.append(schedule)
            return job

        return decorate

    def queue(self, name: str, policy: Queue) -> None:
        codec.check_text(name, what="a queue name")
        late = [job.kind for job in self._core.registry.definitions.values() if job.queue == name]
        if late and policy != self._core.policies.get(name):
            raise UsageError(
                f"job {late[0]!r} was declared for queue {name!r} before its policy: declare the queue first."
            )
        self._core.policies[name] = policy


def check_rhythm(cron: str, timezone: str, catch_up: str) -> None:
    """`BadSetting` when a schedule could not be kept so."""
    next_tick(cron, timezone, 0)
    if catch_up not in ("one", "all", "none"):
        raise BadSetting(f'catch_up must be "one", "all" or "none"; got {catch_up!r}.')


def limits_of(lane: str, concurrency: int | None, starts: str | None, *, own: bool) -> LaneLimits | None:
    check_limits(concurrency, starts)
    if concurrency is None and starts is None:
        return None
    pace = rate(starts) if starts is not None else None
    return LaneLimits(lane, own, concurrency, pace.interval_us if pace else None, pace.burst if pace else 1)


def kind_of(function: Callable[..., Any]) -> str:
    """`module.function`; a script run directly is named as the module a worker would import."""
    module = function.__module__
    if module in ("__main__", SCRIPT):
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = inspect.getfile(main) if hasattr(main, "__file__") else "main"
        module = spec.name if spec else Path(file).stem
    return f"{module}.{function.__qualname__}"
