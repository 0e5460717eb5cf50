"""A broker: a worker without handlers, which claims jobs for the code around it."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self, TypedDict, overload
from weakref import WeakKeyDictionary

from holdfast import durations, validation
from holdfast.brokers.hub import Hub, KeptLease, Key
from holdfast.brokers.lease import BrokerLease
from holdfast.brokers.lease_ttl import lease_ttl_us
from holdfast.brokers.routes import Takes
from holdfast.core import Core, LoopState
from holdfast.distribution import VERSION
from holdfast.durations import Duration
from holdfast.errors import BadSetting, UsageError
from holdfast.kernel import codec
from holdfast.kernel.ids import JobId, is_id, new_id
from holdfast.kernel.routes import ANY_JOB
from holdfast.kernel.workers import Registration
from holdfast.settings import Settings

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
        self.takes = Takes(self.who.queues, frozenset(self.who.capabilities))
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
