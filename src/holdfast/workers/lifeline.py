"""The lifeline: heartbeat and renewal, out of reach of whatever blocks the event loop.

It beats on a thread of its own, with its own way to the store. But a heartbeat must show progress, not only
life: the event loop stamps a tick, and once the stamp is older than one lease nothing is renewed any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from holdfast.clock import Ports
from holdfast.errors import HoldfastError, StoreUnavailable, Unavailable
from holdfast.kernel.broker_rows import OwnerBeat, Renewal
from holdfast.kernel.database import BlockingStore, Database
from holdfast.kernel.leases import Beat, OwnRow, beat, show_life
from holdfast.kernel.migrate import code_version
from holdfast.kernel.rows import LeaseRef
from holdfast.kernel.workers import oldest_code
from holdfast.workers.leaps import StoreClock
from holdfast.workers.loop_watch import LoopWatch

log = logging.getLogger("holdfast.lifeline")

_RETRY = 1.0
_LAST_BEAT = 5.0


class Pulse(NamedTuple):
    """What one beat says: who, how busy, and the leases it knows."""

    worker: int
    active: int
    held: list[LeaseRef]
    ttl_us: int
    ceiling_us: int
    me: OwnRow = OwnRow()
    hosted: tuple[OwnerBeat, ...] = ()  # brokers that live in the process
    renewals: tuple[Renewal, ...] = ()  # the leases of these


class Lifeline(Protocol):
    async def open(self) -> None:
        """Reach the store, before the worker announces itself; `Unavailable` when that is not possible."""

    def start(self, compose: Callable[[], Pulse | None], heard: Callable[[float, Beat], None]) -> None:
        """Beat until stopped. `compose` gives None when the worker has no right to renew; `heard` runs on the loop."""

    def poke(self) -> None:
        """Beat now."""

    async def stop(self) -> None: ...


class ThreadLifeline:
    def __init__(
        self,
        database: Database,
        ports: Ports,
        interval: float,
        tolerance: float = 5.0,
        watch: LoopWatch | None = None,
        *,
        worker: str = "",
    ) -> None:
        """`tolerance`: see `leaps`. `watch` is the watch over the event loop, which this thread keeps. `worker` is the
        id that the log names."""
        self._worker = worker
        self._watch = watch
        self._database = database
        self._ports = ports
        self._interval = interval
        self._begun = threading.Event()
        self._store_clock = StoreClock(ports.clock, tolerance)
        self._poked = threading.Event()
        self._stopping = threading.Event()
        self._ended = asyncio.Event()
        self._opened = False
        self._compose: Callable[[], Pulse | None] = lambda: None
        self._heard: Callable[[float, Beat], None] = lambda sent_at, beat: None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        self._opened = True
        threading.Thread(target=self._run, args=(loop, answer), name="holdfast-lifeline", daemon=True).start()
        try:
            await answer
        except Unavailable as problem:
            raise StoreUnavailable(
                f"a worker cannot start without a connection for its heartbeats: {problem} "
                f"A worker needs three connections, and more under load: docs/operating.md counts them."
            ) from problem

    def start(self, compose: Callable[[], Pulse | None], heard: Callable[[float, Beat], None]) -> None:
        self._compose, self._heard = compose, heard
        self._begun.set()

    def poke(self) -> None:
        self._poked.set()

    async def stop(self) -> None:
        self._stopping.set()
        self._begun.set()
        self._poked.set()
        if self._opened:  # not joined on the loop's own threads: handlers may have taken them all
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_BEAT):
                    await self._ended.wait()

    def _run(self, loop: asyncio.AbstractEventLoop, opened: asyncio.Future[None]) -> None:
        try:
            store = self._database.blocking()
        except Exception as problem:  # noqa: BLE001  handed to the caller
            _tell(loop, _answer, opened, problem)
            _tell(loop, self._ended.set)
            return
        try:
            if self._open(store, loop, opened):
                self._beat_on(store, loop)
        finally:
            try:
                store.close()
            finally:
                _tell(loop, self._ended.set)

    def _open(self, store: BlockingStore, loop: asyncio.AbstractEventLoop, opened: asyncio.Future[None]) -> bool:
        try:
            store.open()
        except Exception as problem:  # noqa: BLE001  handed to the caller
            _tell(loop, _answer, opened, problem)
            return False
        _tell(loop, _answer, opened, None)
        return True

    def _beat_on(self, store: BlockingStore, loop: asyncio.AbstractEventLoop) -> None:
        self._begun.wait()
        pause = 0.0
        while True:
            self._wait(pause)
            self._poked.clear()
            if self._stopping.is_set():
                if self._watch is not None:
                    self._watch.look()  # what held the loop just before is named too
                return
            pause = self._interval if self._beat(store, loop) else min(_RETRY, self._interval)

    def _wait(self, pause: float) -> None:
        """Until the next heartbeat is due, somebody asks for one, or the watch has something to tell the store."""
        if self._watch is None:
            self._poked.wait(pause)
            return
        until = self._ports.clock.monotonic() + pause
        while (left := until - self._ports.clock.monotonic()) > 0:
            if self._poked.wait(min(left, self._watch.every)) or self._watch.look():
                return

    def _beat(self, store: BlockingStore, loop: asyncio.AbstractEventLoop) -> bool:
        sent_at = self._ports.clock.monotonic()
        try:
            pulse = self._compose()
            if pulse is None:
                return False
            answer = self._ask(store, pulse, sent_at)
            if answer.now is not None:
                self._store_clock.note(answer.now, sent_at)
        except Unavailable as problem:
            self._ports.try_again(problem)
            return False
        except Exception as problem:
            oldest = self._oldest_code(store)
            if oldest <= code_version(self._database.dialect):
                known = isinstance(problem, HoldfastError)
                said = "a heartbeat of worker %s failed: %s; the worker tries again"
                log.warning(said, self._worker, problem, exc_info=not known, extra={"worker": self._worker})
                return False
            answer = Beat(registered=True, renewed=[], lost=[], oldest_code=oldest)
        _tell(loop, self._heard, sent_at, answer)
        return True

    def _oldest_code(self, store: BlockingStore) -> int:
        """The version that the tables ask for. They may have changed so much that a heartbeat no longer fits them; the
        table that says so never changes. 0 when it cannot be read."""
        try:
            return store.call(oldest_code)
        except Exception:  # noqa: BLE001  the heartbeat's own error is reported
            return 0

    def _ask(self, store: BlockingStore, pulse: Pulse, sent_at: float) -> Beat:
        if not (pulse.held or pulse.hosted or pulse.renewals):  # one statement, without a transaction around it
            return store.call(show_life, pulse.worker, pulse.active, me=pulse.me)
        return store.call(
            beat,
            pulse.worker,
            pulse.active,
            pulse.held,
            ttl_us=pulse.ttl_us,
            ceiling_us=pulse.ceiling_us,
            me=pulse.me,
            leapt=lambda now: self._store_clock.leap_us(now, sent_at, pulse.ttl_us),
            hosted=pulse.hosted,
            renewals=pulse.renewals,
        )


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *arguments: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
        loop.call_soon_threadsafe(what, *arguments)


def _answer(future: asyncio.Future[None], problem: Exception | None) -> None:
    if future.done():  # the caller has gone
        return
    if problem is None:
        future.set_result(None)
    else:
        future.set_exception(problem)


class TaskLifeline:
    """The same on the event loop itself, for a simulated worker whose process has no threads."""

    def __init__(self, database: Database, ports: Ports, interval: float, tolerance: float = 5.0) -> None:
        self._database = database
        self._ports = ports
        self._interval = interval
        self._store_clock = StoreClock(ports.clock, tolerance)
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """It has no way of its own."""

    def start(self, compose: Callable[[], Pulse | None], heard: Callable[[float, Beat], None]) -> None:
        self._task = asyncio.create_task(self._run(compose, heard), name="lifeline")

    def poke(self) -> None:
        self._poked.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, compose: Callable[[], Pulse | None], heard: Callable[[float, Beat], None]) -> None:
        pause = self._interval
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._poked.wait()
            self._poked.clear()
            pulse = compose()
            pause = self._interval
            if pulse is None:
                continue
            sent_at = self._ports.clock.monotonic()
            try:
                answer = await self._beat(pulse, sent_at)
            except Exception:  # noqa: BLE001  the lifeline outlives whatever a beat meets
                pause = min(_RETRY, self._interval)
                continue
            if answer.now is not None:
                self._store_clock.note(answer.now, sent_at)
            heard(sent_at, answer)

    async def _beat(self, pulse: Pulse, sent_at: float) -> Beat:
        return await self._database.transact(
            beat,
            pulse.worker,
            pulse.active,
            pulse.held,
            ttl_us=pulse.ttl_us,
            ceiling_us=pulse.ceiling_us,
            me=pulse.me,
            leapt=lambda now: self._store_clock.leap_us(now, sent_at, pulse.ttl_us),
            hosted=pulse.hosted,
            renewals=pulse.renewals,
        )
