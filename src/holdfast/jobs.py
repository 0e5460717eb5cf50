"""Jobs as a program sees them: functions that can be enqueued, and handles on what was."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from holdfast import durations
from holdfast.durations import Duration
from holdfast.errors import RunFailed, UsageError
from holdfast.kernel import encoding
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.records import EndedJob, JobRow, NewJob, Route
from holdfast.kernel.states import State
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.workers.definitions import Definition

P = ParamSpec("P")
R = TypeVar("R")


class App(Protocol):
    """As much of the app as jobs need."""

    def runtime(self) -> Runtime: ...

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R: ...

    async def ensure_worker(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one job is enqueued, beside its arguments."""

    key: str | None = None
    delay: Duration | None = None
    at: datetime | None = None
    priority: int | None = None
    tenant: str = ""
    metadata: Mapping[str, Any] | None = None
    timeout: Duration | None = None
    deadline: Duration | None = None
    notify: bool = True


_OPTION_NAMES = frozenset(field.name for field in fields(Options))


class Job(Generic[R]):
    """A handle on one job. Making it does no I/O; waiting on it does not run it."""

    def __init__(self, app: App, id: JobId, definition: Definition | None, state: str | None = None) -> None:
        self._app = app
        self._definition = definition
        self.id = id
        self.state = state  # as this handle last saw it

    def __repr__(self) -> str:
        return f"Job({self.id}, state={self.state})"

    async def result(self, *, timeout: Duration | None = None) -> R:
        """The result, when the job has one. `RunFailed` when it failed or was cancelled.

        Cancelling the wait does not cancel the job. `ResultTimeout` when it has not ended in time.
        """
        limit = None if timeout is None else durations.microseconds(timeout) / 1e6
        ended = await self._app.runtime().wait(self.id, limit)
        self.state = ended.state
        return self._unpack(ended)

    async def cancel(self, reason: str = "cancelled by its owner") -> str:
        """Cancel the job and its family; returns its state now. `running` means that its worker was told."""
        self.state = await self._app.runtime().cancel(self.id, reason)
        return self.state

    async def refresh(self) -> JobRow:
        """The job as it stands in the store."""
        row = await self._app.runtime().find(self.id)
        self.state = row.state
        return row

    def result_sync(self, *, timeout: Duration | None = None) -> R:
        return self._app.call(self.result(timeout=timeout))

    def cancel_sync(self, reason: str = "cancelled by its owner") -> str:
        return self._app.call(self.cancel(reason))

    def _unpack(self, ended: EndedJob) -> R:
        if ended.state != State.SUCCEEDED:
            error = encoding.decode(ended.error) or {}
            message = error.get("message", "no reason was given")
            raise RunFailed(self.id, ended.state, message, error.get("type", ""))
        value = encoding.decode(ended.result)
        return cast(R, self._definition.signature.decode_result(value) if self._definition else value)


class JobFunction(Generic[P, R]):
    """A function that can also be enqueued. Calling it is a plain call."""

    def __init__(
        self, app: App, definition: Definition, function: Callable[..., Any], options: Options | None = None
    ) -> None:
        self._app = app
        self._function = function
        self._options = options or Options()
        self.definition = definition
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", definition.kind)
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def options(self, **options: Any) -> JobFunction[P, R]:
        """The same job with other options: `resize.options(key="a", delay="5m").enqueue(...)`."""
        unknown = sorted(options.keys() - _OPTION_NAMES)
        if unknown:
            raise UsageError(f"{unknown[0]!r} is not an option; there are {', '.join(sorted(_OPTION_NAMES))}.")
        return JobFunction(self._app, self.definition, self._function, replace(self._options, **options))

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Accept the job durably: when this returns, it is committed."""
        options, rest = self._split(kwargs)
        runtime = self._app.runtime()
        job, route = self._new(args, rest, options, id=new_id(runtime.ports), settings=runtime.settings)
        accepted = await runtime.enqueue(job, route, key=options.key, notify=options.notify)
        return Job(self._app, accepted, self.definition)

    async def enqueue_many(self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[Job[R]]:
        """Accept many jobs in one transaction: each item is a mapping of arguments, or a tuple of them."""
        if self._options.key is not None:
            raise UsageError("a key names one job; enqueue keyed jobs one by one.")
        runtime = self._app.runtime()
        pairs = [
            self._new(*_arguments(item), self._options, id=new_id(runtime.ports), settings=runtime.settings)
            for item in items
        ]
        await runtime.enqueue_many([job for job, _ in pairs], {route for _, route in pairs}, self._options.notify)
        return [Job(self._app, job.id, self.definition) for job, _ in pairs]

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue, then wait for the result; starts a worker in this process if the app may embed one."""
        await self._app.ensure_worker()
        return await (await self.enqueue(*args, **kwargs)).result()

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        return self._app.call(self.enqueue(*args, **kwargs))

    def enqueue_many_sync(self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[Job[R]]:
        return self._app.call(self.enqueue_many(items))

    def run_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._app.call(self.run(*args, **kwargs))

    def new_job(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, id: JobId, settings: Settings
    ) -> tuple[NewJob, Route]:
        """What enqueuing would insert; a parent inserts it as its child."""
        options, rest = self._split(kwargs)
        if options.key is not None:
            raise UsageError("a child has no key: its parent, step and ordinal already make it one job.")
        return self._new(args, rest, options, id=id, settings=settings)

    def _split(self, kwargs: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
        """Options may stand among the arguments when the function has no parameter of that name."""
        mine = {k: v for k, v in kwargs.items() if k in _OPTION_NAMES and not self.definition.signature.has(k)}
        rest = {k: v for k, v in kwargs.items() if k not in mine}
        return (replace(self._options, **mine) if mine else self._options), rest

    def _new(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options, *, id: JobId, settings: Settings
    ) -> tuple[NewJob, Route]:
        definition = self.definition
        payload = definition.signature.encode(args, kwargs)
        timeout = definition.timeout_us if options.timeout is None else durations.microseconds(options.timeout)
        deadline = definition.deadline_us if options.deadline is None else durations.microseconds(options.deadline)
        route = definition.route
        if options.key is not None:
            encoding.check_text(options.key, what="an idempotency key")
        job = NewJob(
            id=id,
            kind=definition.kind,
            queue=definition.queue,
            route=route.id,
            tenant=encoding.check_text(options.tenant, what="a tenant") if options.tenant else "",
            priority=_priority(definition.priority if options.priority is None else options.priority),
            delay_us=None if options.delay is None else durations.microseconds(options.delay),
            due_at=None if options.at is None else _moment(options.at),
            timeout_us=timeout,
            deadline_us=deadline,
            deadline_at=None,
            max_attempts=definition.retry.attempts or settings.max_attempts,
            max_rescues=settings.max_rescues,
            parent=None,
            retry_of=None,
            payload=encoding.encode(payload, what=f"the payload of {definition.kind}", cap=settings.payload_cap),
            metadata=encoding.encode(dict(options.metadata or {}), what="metadata", cap=settings.metadata_cap),
        )
        return job, route


def _arguments(item: Mapping[str, Any] | tuple[Any, ...]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, tuple | list):
        return tuple(item), {}
    raise UsageError(f"each item is a mapping or a tuple of arguments, not {item!r}.")


def _priority(value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise UsageError(f"priority {value} is out of range; it is a 32-bit number, lower runs first.")
    return value


def _moment(at: datetime) -> int:
    if at.tzinfo is None:
        raise UsageError(f"{at!r} has no time zone; write datetime(..., tzinfo=UTC).")
    return round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
