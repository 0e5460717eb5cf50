"""Jobs as a program sees them: functions that can be enqueued, and handles on what was."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)

from holdfast import durations, validation
from holdfast.client.core import Core
from holdfast.client.intake import Intake
from holdfast.durations import Duration
from holdfast.errors import RunFailed, UsageError
from holdfast.kernel import codec
from holdfast.kernel.database import drive
from holdfast.kernel.ids import JobId, new_id
from holdfast.kernel.ownership import cancel_advice
from holdfast.kernel.rows import Batch, EndedJob, NewJob, Route
from holdfast.kernel.schedules import SCHEDULED_FOR
from holdfast.kernel.states import State, StateName
from holdfast.observe import TRACE, changing
from holdfast.settings import Settings
from holdfast.text import shown_text, with_traceback
from holdfast.values.jobs import JobRecord, job_of
from holdfast.workers.context import JobContext
from holdfast.workers.definitions import Definition, Unique

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
S = TypeVar("S")

OnDuplicate = Literal["keep", "replace"]

_RESERVED = {TRACE: "trace", SCHEDULED_FOR: "tick"}  # keys of a job's metadata that are the runtime's own
_NO_NAMES: Mapping[str, Any] = {}
_PAYLOAD = NewJob._fields.index("payload")  # metadata comes next


class EnqueueOptions(TypedDict, total=False):
    """How one job is enqueued, beside its arguments.

    The limits of a job count for each `lane` by itself, and `cost` is how much of its rate this job uses up. `unique`
    is "pending", "live", or a window of time such as "10m"; `unique_key` is its arguments unless you say otherwise.
    `tx` is a connection of the caller's: the job is part of its transaction.
    """

    key: str | None
    delay: Duration | None
    at: datetime | None
    priority: int | None
    tenant: str
    metadata: Mapping[str, Any] | None
    timeout: Duration | None
    deadline: Duration | None
    lane: str | None
    cost: int
    unique: str | None
    unique_key: str | None
    on_duplicate: OnDuplicate | None
    debounce: Duration | None
    notify: bool
    tx: object | None


ENQUEUE_DEFAULTS = EnqueueOptions(
    key=None,
    delay=None,
    at=None,
    priority=None,
    tenant="",
    metadata=None,
    timeout=None,
    deadline=None,
    lane=None,
    cost=1,
    unique=None,
    unique_key=None,
    on_duplicate=None,
    debounce=None,
    notify=True,
    tx=None,
)


class JobTemplate(NamedTuple):
    """What all jobs of a function with the same options have in common."""

    options: EnqueueOptions
    settings: Settings
    like: NewJob
    metadata: str | None  # None: a mapping of the caller's, which may change between two calls
    unique: Unique | None

    def job(self, id: JobId, payload: str) -> NewJob:
        metadata = self.metadata or _metadata(self.options, self.settings)
        job = NewJob._make((id, *self.like[1:_PAYLOAD], payload, metadata, *self.like[_PAYLOAD + 2 :]))
        return job if self.unique is None else _unique(job, self.unique, self.options["unique_key"])


class Job(Generic[R]):
    """A handle on one job. Making it does no I/O; waiting on it does not run it."""

    def __init__(self, app: Core, id: JobId, definition: Definition | None, state: StateName | None = None) -> None:
        self._app = app
        self._definition = definition
        self.id = id
        self.state = state  # as this handle last saw it
        self.fresh: bool | None = None  # the call that gave this handle made the job; None: it did not enqueue
        self.replaced: bool | None = None  # the job was there, and takes over the arguments of that call

    def __repr__(self) -> str:
        return f"Job({self.id}, state={self.state})"

    async def result(self, *, timeout: Duration | None = None) -> R:
        """The result, when the job has one. `RunFailed` when it failed or was cancelled.

        Cancelling the wait does not cancel the job. `ResultTimeout` when it has not ended in time.
        """
        limit = None if timeout is None else durations.microseconds(timeout) / 1e6
        ended = await self._app.runtime().wait(self.id, limit)
        self.state = cast(StateName, ended.state)
        return self._unpack(ended)

    @changing("jobs cancel")
    async def cancel(self, reason: str = "cancelled by its owner") -> StateName:
        """Cancel the job and its family; returns its state now. `running` means that its worker was asked to stop it.

        `UsageError` for a job of the runtime's own that others depend on: it says what to do instead.
        """
        advice = cancel_advice(self._app.registry.layers)
        if self._definition is None and (kind := (await self.refresh()).kind) in advice:
            raise UsageError(f"job {self.id} ({kind}) is not cancelled by hand: {advice[kind]}.")
        state = self.state = cast(StateName, await self._app.runtime().cancel(self.id, reason))
        return state

    async def refresh(self) -> JobRecord:
        """The current state of the job in the store."""
        row = await self._app.runtime().find(self.id)
        record = job_of(row)
        self.state = record.state
        return record

    def result_sync(self, *, timeout: Duration | None = None) -> R:
        return self._app.call(self.result(timeout=timeout), "job.result_sync")

    def cancel_sync(self, reason: str = "cancelled by its owner") -> StateName:
        return self._app.call(self.cancel(reason), "job.cancel_sync")

    def _unpack(self, ended: EndedJob) -> R:
        if ended.state != State.SUCCEEDED:
            error = codec.decode(ended.error) or {}
            message = error.get("message", "no reason was given")
            failure = RunFailed(self.id, ended.state, message, error.get("type", ""), shown=shown_text(message))
            raise with_traceback(failure, f"job {self.id}", error.get("trace"))
        value = codec.decode(ended.result)
        return cast(R, self._definition.signature.decode_result(value) if self._definition else value)


class JobFunction(Generic[P, R]):
    """A function that can also be enqueued. Calling it is a plain call."""

    def __init__(
        self, app: Core, definition: Definition, function: Callable[..., Any], options: EnqueueOptions | None = None
    ) -> None:
        self._app = app
        self._function = function
        self._options = options or ENQUEUE_DEFAULTS
        self._template: JobTemplate | None = None
        self.definition = definition
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", definition.kind)
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def options(self, **options: Unpack[EnqueueOptions]) -> JobFunction[P, R]:
        """The same job with other options: `resize.options(key="a", delay="5m").enqueue(...)`."""
        unknown = sorted(options.keys() - ENQUEUE_DEFAULTS.keys())
        if unknown:
            raise UsageError(f"{unknown[0]!r} is not an option; there are {', '.join(sorted(ENQUEUE_DEFAULTS))}.")
        return JobFunction(self._app, self.definition, self._function, {**self._options, **options})

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue the job. When this returns, the job is committed, or will be when the caller's `tx` commits."""
        options, rest = self._split(kwargs)
        return await self._enqueue(self._app.intake(options["tx"]), args, rest, options)

    async def enqueue_many(self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[Job[R]]:
        """Accept many jobs in one transaction: each item is a mapping of arguments, or a tuple of them."""
        return await self._enqueue_many(self._app.intake(self._options["tx"]), items)

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue, then wait for the result; starts a worker in this process if the app may embed one."""
        if self._split(kwargs)[0]["tx"] is not None:
            raise UsageError("no worker sees this job before your transaction commits: enqueue it, commit, then wait.")
        await self._app.ensure_worker()
        return await (await self.enqueue(*args, **kwargs)).result()

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue` for code without an event loop; with `tx` it uses that connection, on this thread."""
        options, rest = self._split(kwargs)
        if options["tx"] is None:
            return self._app.call(self.enqueue(*args, **kwargs), f"{self.__name__}.enqueue_sync")
        return drive(self._enqueue(self._app.intake(options["tx"], sync=True), args, rest, options))

    def enqueue_many_sync(self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[Job[R]]:
        if self._options["tx"] is None:
            return self._app.call(self.enqueue_many(items), f"{self.__name__}.enqueue_many_sync")
        return drive(self._enqueue_many(self._app.intake(self._options["tx"], sync=True), items))

    def run_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._app.call(self.run(*args, **kwargs), f"{self.__name__}.run_sync")

    def new_job(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, id: JobId, settings: Settings, tenant: str = ""
    ) -> tuple[NewJob, Route]:
        """What enqueuing would insert; a parent inserts it as its child. It is of `tenant` unless it has its own."""
        options, rest = self._split(kwargs)
        if tenant and not options["tenant"]:
            options = cast(EnqueueOptions, {**options, "tenant": tenant})
        if options["key"] is not None:
            raise UsageError("a child cannot have a key: its parent, step and ordinal already identify it.")
        if options["tx"] is not None:
            raise UsageError("a child is part of its parent's attempt, which your transaction cannot undo.")
        return self._new(args, rest, options, id=id, settings=settings)

    async def _enqueue(
        self, intake: Intake, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: EnqueueOptions
    ) -> Job[R]:
        job, route = self._new(args, kwargs, options, id=new_id(intake.ports), settings=intake.settings)
        key = None if options["key"] is None else codec.stored_key(options["key"])
        accepted = await intake.enqueue(job, route, key=key, notify=options["notify"])
        handle: Job[R] = Job(self._app, accepted.id, self.definition)
        handle.fresh, handle.replaced = accepted.fresh, accepted.replaced
        return handle

    async def _enqueue_many(self, intake: Intake, items: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[Job[R]]:
        if self._options["key"] is not None:
            raise UsageError("a key names one job; enqueue keyed jobs one by one.")
        arguments = map(_arguments, items)
        first = next(arguments, None)
        if first is None:
            return []
        ports, settings = intake.ports, intake.settings
        job, route = self._new(*first, self._options, id=new_id(ports), settings=settings)
        if job.unique_key is not None:
            raise UsageError("unique jobs are enqueued one by one: each call has its own answer.")
        payloads = [job.payload, *(self._payload(args, kwargs, settings) for args, kwargs in arguments)]
        ids = [job.id, *(new_id(ports) for _ in payloads[1:])]
        await intake.enqueue_many(Batch(job, ids, payloads), route, self._options["notify"])
        return [Job(self._app, id, self.definition) for id in ids]

    def _payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], settings: Settings) -> str:
        values = self.definition.signature.encode(args, kwargs)
        return codec.encode(values, what=f"the payload of {self.definition.kind}", cap=settings.payload_cap)

    def _split(self, kwargs: Mapping[str, Any]) -> tuple[EnqueueOptions, dict[str, Any]]:
        """Options may stand among the arguments when the function has no parameter of that name."""
        if not kwargs:
            return self._options, {}
        known = ENQUEUE_DEFAULTS.keys()
        mine = {k: v for k, v in kwargs.items() if k in known and not self.definition.signature.has(k)}
        rest = {k: v for k, v in kwargs.items() if k not in mine}
        return (cast(EnqueueOptions, {**self._options, **mine}) if mine else self._options), rest

    def _new(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: EnqueueOptions,
        *,
        id: JobId,
        settings: Settings,
    ) -> tuple[NewJob, Route]:
        payload = self._payload(args, kwargs, settings)
        template = self._template
        if template is None or template.options is not options or template.settings is not settings:
            template = self._make_template(options, settings)
        return template.job(id, payload), self.definition.route

    @property
    def is_unique(self) -> bool:
        """Whether a second call may get the job of the first: unique or debounced."""
        return self._unique(self._options) is not None

    def _unique(self, options: EnqueueOptions) -> Unique | None:
        rule = unique_rule(options["unique"], options["on_duplicate"], options["debounce"])
        return rule or self.definition.unique

    def _make_template(self, options: EnqueueOptions, settings: Settings) -> JobTemplate:
        definition = self.definition
        timeout = definition.timeout_us if options["timeout"] is None else durations.microseconds(options["timeout"])
        deadline = (
            definition.deadline_us if options["deadline"] is None else durations.microseconds(options["deadline"])
        )
        unique = self._unique(options)
        if unique is not None and options["key"] is not None:
            raise UsageError("a job can have an idempotency key or be unique, not both; choose one.")
        delay_us = None if options["delay"] is None else durations.microseconds(options["delay"])
        like = NewJob(
            id=JobId(""),
            kind=definition.kind,
            queue=definition.queue,
            route=definition.route.id,
            tenant=codec.check_tenant(options["tenant"]),
            priority=_priority(definition.priority if options["priority"] is None else options["priority"]),
            delay_us=unique.delay_us if unique is not None and unique.delay_us is not None else delay_us,
            due_at=None if options["at"] is None else _moment(options["at"]),
            timeout_us=timeout,
            deadline_us=deadline,
            deadline_at=None,
            max_attempts=definition.retry.attempts or settings.max_attempts,
            max_rescues=settings.max_rescues,
            parent=None,
            retry_of=None,
            payload="",
            metadata="",
            turn=int(definition.fair),
            **_lane(definition, options),
        )
        metadata = None if options["metadata"] is not None else _metadata(options, settings)
        template = JobTemplate(options, settings, like, metadata, unique)
        if options is self._options:
            self._template = template
        return template


class DeclaredJob(JobFunction[P, R], Generic[P, R, Q, S]):
    """What `@hf.job` makes of a function: a plain call has the function's own parameters (Q) and result (S)."""

    if TYPE_CHECKING:

        def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> S: ...


# What becomes of a function, by whether it is async and takes the context first.
PlainJob = DeclaredJob[P, R, P, R]
PlainAsync = DeclaredJob[P, R, P, Coroutine[Any, Any, R]]
ContextJob = DeclaredJob[P, R, Concatenate[JobContext, P], R]
ContextAsync = DeclaredJob[P, R, Concatenate[JobContext, P], Coroutine[Any, Any, R]]


def _metadata(options: EnqueueOptions, settings: Settings) -> str:
    metadata = dict(options["metadata"] or {})
    for key, use in _RESERVED.items():
        if key in metadata:
            raise UsageError(f"the key {key!r} in a job's metadata is reserved for its {use}; use another key.")
    return codec.encode(metadata, what="metadata", cap=settings.metadata_cap)


def unique_rule(scope: str | None, on_duplicate: OnDuplicate | None, debounce: Duration | None) -> Unique | None:
    """What `unique=`, `on_duplicate=` and `debounce=` ask for together."""
    if on_duplicate not in (None, "keep", "replace"):
        raise UsageError(f'on_duplicate must be "keep" or "replace"; got {on_duplicate!r}.')
    if debounce is not None:
        if scope is not None or on_duplicate is not None:
            raise UsageError("debounce already decides about duplicates: a new call replaces the waiting one.")
        return Unique("pending", replace=True, delay_us=durations.microseconds(debounce))
    if scope is None:
        return None
    replaces = on_duplicate == "replace"
    if scope in ("pending", "live"):
        return Unique(cast(Literal["pending", "live"], scope), replace=replaces)
    window = durations.microseconds(scope)
    if not window:
        raise UsageError('unique is "pending", "live", or a window of time such as "10m".')
    return Unique("window", window, replace=replaces)


def _unique(job: NewJob, unique: Unique, key: str | None) -> NewJob:
    """Debounced calls differ in their arguments, so without a key all calls of that kind are one."""
    own = key if key is not None else ("" if unique.delay_us is not None else job.payload)
    return job._replace(
        unique_key=codec.digest(f"{job.tenant}\x1f{job.kind}\x1f{own}"),
        unique_scope=unique.scope,
        window_us=unique.window_us,
        replaces=unique.replace,
    )


def _lane(definition: Definition, options: EnqueueOptions) -> dict[str, Any]:
    limits = definition.limits
    if options["lane"] is not None and (limits is None or not limits.own):
        raise UsageError(
            f"{definition.kind} has no limits that a lane could apply: declare it with concurrency= or rate=."
        )
    validation.at_least_one(options["cost"], "cost")
    if limits is None:
        return {}
    lane = limits.lane
    if options["lane"] is not None:
        lane = f"{lane}/{codec.check_text(options['lane'], what='a lane')}"
    return {
        "lane": lane,
        "cost": options["cost"],
        "concurrency": limits.concurrency,
        "interval_us": limits.interval_us,
        "burst": limits.burst,
    }


def _arguments(item: Mapping[str, Any] | tuple[Any, ...]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(item, tuple | list):  # before Mapping, which takes longer to ask
        return tuple(item), _NO_NAMES
    if isinstance(item, Mapping):
        return (), item
    raise UsageError(f"each item must be a mapping or a tuple of arguments; got {item!r}.")


def _priority(value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise UsageError(f"priority {value} is out of range; it is a 32-bit number, lower runs first.")
    return value


def _moment(at: datetime) -> int:
    if at.tzinfo is None:
        raise UsageError(f"{at!r} has no time zone; write datetime(..., tzinfo=UTC).")
    return round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
