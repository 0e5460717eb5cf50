"""A broker: a worker without handlers, which claims jobs for the code around it."""

from __future__ import annotations

import base64
import binascii
import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack, cast, overload
from weakref import WeakKeyDictionary

from holdfast import durations, validation
from holdfast.brokers.hub import Hub, KeptLease, Key
from holdfast.brokers.waiters import BrokerScope
from holdfast.client.core import Core, LoopState
from holdfast.client.declarations import limits_of
from holdfast.client.jobs import ENQUEUE_DEFAULTS, EnqueueOptions, Job, JobFunction
from holdfast.client.queues import Queue
from holdfast.durations import Duration
from holdfast.errors import VERSION, BadPayload, BadSetting, LeaseLost, UsageError
from holdfast.kernel import codec
from holdfast.kernel.ids import JobId, is_id, new_id
from holdfast.kernel.ownership import owner_of
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.routes import ANY_JOB
from holdfast.kernel.rows import EndedJob
from holdfast.kernel.states import StateName
from holdfast.kernel.workers import Registration
from holdfast.outcomes import Done, Fail, Snooze, TryAgain
from holdfast.settings import Settings
from holdfast.workers.definitions import Definition
from holdfast.workers.signatures import Signature

# Bytes as JSON: a payload or a result that is bytes is stored as `{"$bytes": "<base64>"}`, and read as bytes again.
#
# Only a value that is bytes as a whole has this form, so nothing is looked for inside of other values.


_KEY = "$bytes"


def to_json(value: object, *, what: str) -> object:
    """What is stored; `BadPayload` for a value that would be mistaken for bytes."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {_KEY: base64.b64encode(value).decode()}
    if isinstance(value, dict) and value.keys() == {_KEY}:
        raise BadPayload(
            f"{what} is an object whose only key is {_KEY!r}, which is how bytes are stored. Use another key."
        )
    return value


def from_json(value: Any) -> Any:
    """What was given; a text that is no base64 is left as it is."""
    if isinstance(value, dict) and value.keys() == {_KEY} and isinstance(value[_KEY], str):
        try:
            return base64.b64decode(value[_KEY], validate=True)
        except binascii.Error:
            return value
    return value


# How long a lease may be given for.


_LEAST_US = 1_000


def lease_ttl_us(given: Duration, settings: Settings, what: str) -> int:
    """In microseconds; `BadSetting` when it is next to nothing, or longer than an attempt may last."""
    ttl_us, ceiling_us = durations.microseconds(given), durations.microseconds(settings.lease_ceiling)
    if not _LEAST_US <= ttl_us <= ceiling_us:
        raise BadSetting(
            f"{what} must be at least {durations.show(_LEAST_US)} and at most {durations.show(ceiling_us)}, the "
            f"lease_ceiling; not {durations.show(ttl_us)}."
        )
    return ttl_us


# A lease as the code that works on its job sees it: what to do, for how long, and how it ends.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BrokerLease:
    """The right to work on one job, for a while. End it with `complete`, `fail`, `snooze` or `release`.

    `LeaseLost` from any of its calls means that somebody else may have the job: stop, and drop the result.
    """

    def __init__(self, hub: Hub, kept: KeptLease) -> None:
        self._hub = hub
        self._kept = kept
        lease = kept.lease
        self.id = lease.id
        self.kind = lease.kind
        self.queue = lease.queue
        self.tenant = lease.tenant
        self.payload: Any = from_json(codec.decode(lease.payload))
        self.metadata: dict[str, Any] = codec.decode(lease.metadata)
        self.attempt = lease.attempts + 1
        self.attempts_left = lease.max_attempts - lease.attempts - 1
        self.token = str(lease.fence)

    def __repr__(self) -> str:
        return f"BrokerLease({self.id}, {self.kind!r}, token={self.token})"

    @property
    def lease_until(self) -> datetime:
        """When the lease ends unless it is renewed, by the store's clock."""
        return _EPOCH + timedelta(microseconds=self._kept.until)

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody cancelled the job, as of the last renewal: however it ends, it ends as cancelled."""
        return self._kept.cancel_requested

    @property
    def lost(self) -> bool:
        """Whether this process knows that the lease is gone."""
        return self._kept.lost.is_set()

    async def wait_lost(self) -> None:
        """Until the lease is gone; it never returns while the lease holds."""
        await self._kept.lost.wait()

    async def renew(self, ttl: Duration | None = None) -> datetime:
        """Hold the job for `ttl` from now on (default: as it was claimed); returns until when.

        A lease is never made shorter, nor longer than the setting `lease_ceiling` from its claim on. `BadSetting` for a
        `ttl` under 1ms or over that ceiling.
        """
        self._check()
        ttl_us = self._kept.owner.ttl_us if ttl is None else lease_ttl_us(ttl, self._hub.settings, "ttl")
        await self._hub.renew(self._kept, ttl_us)
        return self.lease_until

    async def progress(self, value: Any) -> None:
        """Report progress: any small JSON value, which `holdfast jobs show` prints."""
        self._check()
        text = codec.encode(value, what="progress", cap=self._hub.settings.progress_cap)
        await self._hub.report(self._kept, text)

    async def complete(self, result: Any = None) -> StateName:
        """Succeed with a result, JSON or bytes. Returns the state of the job: `cancelled` if a cancel came first."""
        value = to_json(result, what=f"the result of {self.kind}")
        return cast(StateName, await self._hub.end(self._kept, Done(value)))

    async def fail(self, error: str, *, type: str = "processing_error", retry: bool | Duration = True) -> StateName:
        """Fail this attempt. While any are left another follows: at once, or after `retry` ("30s"); False: none."""
        if retry is False:
            return cast(StateName, await self._hub.end(self._kept, Fail(error, type)))
        after: Duration = "0s" if retry is True else retry
        return cast(StateName, await self._hub.end(self._kept, TryAgain(after, error, type)))

    async def snooze(self, delay: Duration, reason: str = "") -> StateName:
        """Hand the job back for a while; costs no attempt."""
        return cast(StateName, await self._hub.end(self._kept, Snooze(delay, reason)))

    async def release(self) -> StateName:
        """Hand the job back as if it had not been claimed."""
        return cast(StateName, await self._hub.release(self._kept))

    def _check(self) -> None:
        if self.lost:
            raise LeaseLost(self.id, self.token)


# Jobs by name: work that nobody here has a function for. It waits for a broker, or a worker that knows its kind.


class NamedJobOptions(EnqueueOptions, total=False):
    """The options of an enqueue, and how often the job may be tried."""

    attempts: int | None


async def _never_called() -> None:
    """In place of a function: such a job never runs here."""


class NamedHandle(Job[Any]):
    """A handle on a job whose result may be bytes."""

    def _unpack(self, ended: EndedJob) -> Any:
        return from_json(super()._unpack(ended))


class NamedJob(JobFunction[Any, Any]):
    """A kind without a function: its payload is stored as it was given."""

    def __init__(self, core: Core, definition: Definition, payload: object) -> None:
        super().__init__(core, definition, _never_called)
        self._given = payload

    async def enqueue_with(self, options: EnqueueOptions) -> Job[Any]:
        """As `enqueue`; the result is read as it is stored, because nobody here knows its type."""
        job = await self._enqueue(self._app.intake(options["tx"]), (), {}, options)
        handle = NamedHandle(self._app, job.id, None)
        handle.fresh, handle.replaced = job.fresh, job.replaced
        return handle

    def _payload(self, args: tuple[Any, ...], kwargs: Any, settings: Settings) -> str:
        what = f"the payload of {self.definition.kind}"
        return codec.encode(to_json(self._given, what=what), what=what, cap=settings.payload_cap)


async def enqueue(
    core: Core,
    kind: str,
    payload: object,
    *,
    queue: str | None,
    requires: Collection[str],
    **options: Unpack[NamedJobOptions],
) -> Job[Any]:
    """Enqueue a job of this kind. A kind that is declared here keeps what its declaration says."""
    attempts = options.pop("attempts", None)
    unknown = sorted(options.keys() - ENQUEUE_DEFAULTS.keys())
    if unknown:
        known = ", ".join(sorted({*ENQUEUE_DEFAULTS, "attempts", "queue", "requires"}))
        raise UsageError(f"{unknown[0]!r} is not an option; there are {known}.")
    definition = _definition(
        core, codec.check_text(kind, what="a job's kind"), queue, validation.capabilities(requires)
    )
    if attempts is not None:
        times = validation.whole(attempts, "attempts", least=1)
        definition = replace(definition, retry=replace(definition.retry, attempts=times))
    return await NamedJob(core, definition, payload).enqueue_with({**ENQUEUE_DEFAULTS, **cast(EnqueueOptions, options)})


def _definition(core: Core, kind: str, queue: str | None, requires: frozenset[str]) -> Definition:
    if (owner := owner_of(kind, core.registry.layers)) is not None:
        raise UsageError(f"a job {kind!r} cannot be enqueued by name: such kinds belong to {owner}.")
    declared = core.registry.definitions.get(kind)
    if declared is not None and queue in (None, declared.queue) and not requires:
        return declared
    name = queue or (declared.queue if declared else "default")
    policy = core.policies.get(name, Queue())
    return Definition(
        kind=kind,
        function=_never_called,
        signature=Signature(kind, _never_called),
        queue=codec.check_text(name, what="a queue name"),
        requires=requires,
        retry=(declared.retry if declared else None) or policy.retry or RetryPolicy(),
        timeout_us=None,
        deadline_us=None,
        priority=100,
        isolate=None,
        limits=limits_of(f"queue:{name}", policy.concurrency, policy.rate, own=False),
        fair=policy.fair,
    )


Renewal = Literal["auto", "manual"]


class BrokerOptions(TypedDict, total=False):
    """What `hf.broker` takes."""

    name: str
    id: str
    queues: Sequence[str] | None
    capabilities: Sequence[str]
    slots: int
    renewal: Renewal
    lease_ttl: Duration | None


class Brokers:
    """The hubs of one app, one for each event loop that has brokers."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._hubs: WeakKeyDictionary[LoopState, Hub] = WeakKeyDictionary()
        core.closing.append(self._close)

    def broker(self, **options: Unpack[BrokerOptions]) -> Broker:
        return Broker(self._core, self, **options)

    async def enqueue(
        self,
        kind: str,
        payload: object,
        *,
        queue: str | None,
        requires: Collection[str],
        **options: Unpack[NamedJobOptions],
    ) -> Job[Any]:
        return await enqueue(self._core, kind, payload, queue=queue, requires=requires, **options)

    async def join(self, broker: Broker) -> Hub:
        """The hub of the running loop, with this broker in it; the first one starts it."""
        runtime, state = self._core.runtime(), self._core.here()
        await runtime.open()
        async with runtime.starting:
            hub = self._hubs.get(state)
            if hub is None:
                hub = Hub(self._core.registry, runtime.database, self._core.settings, self._core.ports)
                await hub.start()
                self._hubs[state] = hub
            try:
                await hub.join(broker)
            except BaseException:
                await self._stop_if_empty(state, hub)
                raise
        return hub

    async def leave(self, broker: Broker, hub: Hub) -> None:
        """The last one stops the hub. After the app was closed nobody is left."""
        if hub.closed:
            return
        async with self._core.runtime().starting:
            await hub.leave(broker)
            await self._stop_if_empty(self._core.here(), hub)

    async def _stop_if_empty(self, state: LoopState, hub: Hub) -> None:
        if not len(hub) and self._hubs.get(state) is hub:
            del self._hubs[state]
            await hub.stop()

    async def _close(self) -> None:
        if (hub := self._hubs.pop(self._core.here(), None)) is not None:
            await hub.close()


class Broker:
    """Claims jobs for code that is no handler: `async with hf.broker(queues=["mail"]) as broker: ...`.

    It is a worker to everyone else: it has a row, beats, can be drained, and its leases are rescued when its process
    dies. It is made by `hf.broker`.
    """

    def __init__(  # noqa: PLR0913  what a broker is
        self,
        core: Core,
        brokers: Brokers,
        *,
        name: str = "",
        id: str = "",
        queues: Sequence[str] | None = None,
        capabilities: Sequence[str] = (),
        slots: int = 20,
        renewal: Renewal = "auto",
        lease_ttl: Duration | None = None,
    ) -> None:
        self._core = core
        self._brokers = brokers
        self._hub: Hub | None = None
        self._left = False
        self.who = _registration(core, name, id, queues, capabilities, slots)
        self.id = self.who.id
        self.takes = BrokerScope(self.who.queues, frozenset(self.who.capabilities))
        self.renews = _renews(renewal)
        self.ttl_us = _ttl_us(lease_ttl, core.settings, renews=self.renews)
        self.seq = 0
        self.draining = False
        self.idle_from: float | None = None
        self.holds: dict[Key, KeptLease] = {}
        self.reserved = 0
        self.incarnation = ""

    async def __aenter__(self) -> Self:
        if self._hub is not None:
            raise UsageError(f"broker {self.id} is open already; make another one with hf.broker(...).")
        if self._left:
            raise UsageError(f"broker {self.id} has left, which is final; make another one with hf.broker(...).")
        self.idle_from = self._core.ports.clock.monotonic()
        self._hub = await self._brokers.join(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.draining = self._left = True
        hub, self._hub = self._hub, None
        if hub is not None:
            await self._brokers.leave(self, hub)

    @overload
    async def claim(self, *, block: Duration | None = None) -> BrokerLease | None: ...

    @overload
    async def claim(self, n: int, *, block: Duration | None = None) -> list[BrokerLease]: ...

    async def claim(
        self, n: int | None = None, *, block: Duration | None = None
    ) -> BrokerLease | list[BrokerLease] | None:
        """The next job, or None; with `n`, up to so many, in a list.

        `block` is how long to wait for one; by default not at all. It has no more jobs at once than `slots`, and none
        once it was told to drain.
        """
        wanted = 1 if n is None else validation.whole(n, "n", least=1)
        seconds = 0.0 if block is None else durations.microseconds(block) / 1e6
        hub = self._open()
        leases = [BrokerLease(hub, kept) for kept in await hub.claim(self, wanted, seconds)]
        return leases if n is not None else (leases[0] if leases else None)

    async def take(self, job_id: str) -> BrokerLease | None:
        """That very job, if it can be claimed now and this broker serves it; also if its last lease has run out."""
        hub = self._open()
        if not is_id(job_id):
            raise UsageError(f"{job_id!r} is not a job id.")
        kept = await hub.take(self, JobId(job_id.lower()))
        return None if kept is None else BrokerLease(hub, kept)

    def _open(self) -> Hub:
        if self._hub is None:
            raise UsageError(f"broker {self.id} is not open: use it inside `async with hf.broker(...) as broker`.")
        if self._hub.closed:
            raise UsageError(f"broker {self.id} was closed with its app: close the app after its brokers.")
        return self._hub


def _registration(  # noqa: PLR0917  the options of a broker, as they were given
    core: Core, name: str, id: str, queues: Sequence[str] | None, capabilities: Sequence[str], slots: int
) -> Registration:
    offered = validation.capabilities(capabilities)
    if not any(capability.startswith("job:") for capability in offered):
        if queues is None:
            raise UsageError(
                'a broker needs queues=["…"], of which it takes jobs of every kind, or capabilities=["job:…"], the '
                "kinds that it takes."
            )
        offered |= {ANY_JOB}
    if isinstance(queues, str):
        raise UsageError(f"queues is a list of names: queues=[{queues!r}].")
    listed = None if queues is None else tuple(codec.check_text(queue, what="a queue name") for queue in queues)
    return Registration(
        incarnation="",
        id=codec.check_text(id, what="a broker's id", cap=200) if id else new_id(core.ports),
        name=codec.check_text(name, what="a broker's name", cap=200) if name else socket.gethostname(),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        version=VERSION,
        capabilities=tuple(sorted(offered)),
        queues=listed,
        slots=validation.whole(slots, "slots", least=1),
    )


def _renews(renewal: Renewal) -> bool:
    validation.one_of(renewal, "renewal", ("auto", "manual"))
    return renewal == "auto"


def _ttl_us(given: Duration | None, settings: Settings, *, renews: bool) -> int:
    ttl_us = lease_ttl_us(settings.lease_ttl if given is None else given, settings, "lease_ttl")
    least_us = 2 * durations.microseconds(settings.heartbeat)
    if renews and ttl_us < least_us:
        raise BadSetting(
            f"lease_ttl {durations.show(ttl_us)} is shorter than two heartbeats ({durations.show(least_us)}), so the "
            f'broker could not renew in time. Make it longer, set heartbeat lower, or renew by hand: renewal="manual".'
        )
    return ttl_us
