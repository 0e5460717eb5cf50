"""Observation: what this process does, reported to listeners in the process.

`EVENTS` is the contract: every event's name, measurements and metadata. A listener may be slow or broken, and the
worker must not notice: what listens from afar has a buffer that drops, and what raises is logged once. While nobody
listens (`Bus.heard` is False) no event is made, because every job passes here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, Self, TypeVar

from holdfast.errors import QueryTooLong, StoreBusy, StoreCorrupt, StoreFull, Unavailable, UsageError

log = logging.getLogger("holdfast.observe")
log_store = logging.getLogger("holdfast.store")

TRACE = "holdfast.trace"  # the key in a job's metadata under which the sender's trace context travels


class Event(NamedTuple):
    """Something that happened in this process: what, when, how much of it, and to whom."""

    name: str
    at: int  # microseconds UTC, by this process's clock
    measurements: Mapping[str, float | int]  # durations in seconds, and counts
    metadata: Mapping[str, Any]


class Shape(NamedTuple):
    """What an event of one name always has."""

    measurements: tuple[str, ...]
    metadata: tuple[str, ...]


_JOB = ("job", "kind", "queue", "tenant")
_ATTEMPT = (*_JOB, "attempt", "token", "worker", "incarnation")
_WORKER = ("worker", "incarnation")

EVENTS: Mapping[str, Shape] = {
    "job.enqueued": Shape((), (*_JOB, "committed", "parent")),
    "job.started": Shape(("age",), _ATTEMPT),
    "job.ended": Shape(("duration",), (*_ATTEMPT, "state", "outcome", "error")),
    "job.lost": Shape(("duration",), _ATTEMPT),
    "job.rescued": Shape(("jobs", "failed"), ("ids",)),
    "schedule.fired": Shape(("jobs",), ("schedule", "kind", "queue", "ids")),
    "claim.done": Shape(("jobs", "duration"), _WORKER),
    "complete.done": Shape(("jobs", "duration"), _WORKER),
    "heartbeat.done": Shape(("duration", "renewed", "lost"), _WORKER),
    "worker.started": Shape(("slots",), (*_WORKER, "name", "queues")),
    "worker.stopped": Shape(("jobs",), _WORKER),
    "worker.lost_contact": Shape((), _WORKER),
    "worker.reregistered": Shape((), _WORKER),
}

Callback = Callable[[Event], object]


class SentJobs(NamedTuple):
    """Jobs of one kind on their way into the store."""

    kind: str
    queue: str
    ids: Collection[str]


class ReceivedJob(NamedTuple):
    """An attempt about to begin."""

    kind: str
    queue: str
    id: str
    worker: str
    attempt: int
    metadata: str  # the job's, as stored
    payload: str = "null"


class PlayedRun(NamedTuple):
    """A run that a worker is about to play, as far as it goes."""

    run: str
    session: str
    agent: str
    agent_id: str
    version: int
    model: str
    provider: str


class ModelCall(NamedTuple):
    """A call of a model that is about to be made: for a run of an agent, or for a summary."""

    model: str
    provider: str
    session: str
    max_tokens: int
    system: Sequence[Mapping[str, Any]]
    messages: Sequence[Mapping[str, Any]]
    run: str = ""
    agent: str = ""


class ModelAnswer(NamedTuple):
    """What a model has answered, and used for it as the provider counts."""

    id: str
    model: str
    stop_reason: str | None
    usage: Mapping[str, Any]
    blocks: Sequence[Mapping[str, Any]]


class AttemptObserver(Protocol):
    """A span that hears how its attempt ended."""

    def conclude(self, outcome: object | None) -> None:
        """The attempt's outcome; None when its lease was lost."""


class AnswerObserver(Protocol):
    """A span that hears what a model has answered."""

    def answered(self, answer: ModelAnswer) -> None: ...


class Spans(Protocol):
    """Who traces jobs, if anybody does. It is called where the work happens and must not raise."""

    def sending(self, sent: SentJobs) -> AbstractContextManager[Mapping[str, str]]:
        """Around an enqueue; gives what to carry in the job's metadata."""

    def processing(self, received: ReceivedJob) -> AbstractContextManager[AttemptObserver]:
        """Around an attempt."""

    def invoking(self, played: PlayedRun) -> AbstractContextManager[AttemptObserver]:
        """Around what one attempt does for a run."""

    def asking(self, call: ModelCall) -> AbstractContextManager[AnswerObserver]:
        """Around a call of a model."""

    def carried(self) -> Mapping[str, str]:
        """What to carry in the metadata of jobs that the present span starts."""


class Outage(NamedTuple):
    """Since when operations fail, which of them did, and whether the log says so."""

    since: float
    operations: set[str]
    is_logged: bool


class Outages:
    """What keeps the store of one app from answering: one line in the log when it begins, one when it is over.

    Drivers note what failed and what succeeded. A loop that tries again says so with `tell`, instead of logging each
    failure; an error that reaches a caller is the caller's, and not logged here. An outage is over when an operation
    that failed in it has succeeded: a full disk still answers reads. Threads share it.
    """

    _WORDS: Mapping[type[Unavailable], tuple[str, str]] = {
        StoreFull: ("the store is full", "the store has space again"),
        StoreBusy: ("the store is busy", "the store is no longer busy"),
        QueryTooLong: ("the store is slow", "the store answers in time again"),
        StoreCorrupt: ("the store is damaged", "the store is readable again"),
    }
    _AWAY = ("the store is away", "the store is back")

    def __init__(self) -> None:
        self.open: dict[type[Unavailable], Outage] = {}
        self._changing = threading.Lock()

    @property
    def are_logged(self) -> bool:
        """Whether the log says that the store does not answer."""
        return any(outage.is_logged for outage in list(self.open.values()))

    def failed(self, operation: str, problem: Unavailable, since: float) -> None:
        """An operation that was first tried at `since`, by the app's clock, was given up."""
        with self._changing:
            outage = self.open.setdefault(self._kind(problem), Outage(since, set(), is_logged=False))
            outage.operations.add(operation)

    def tell(self, problem: Unavailable, now: float) -> None:
        """The caller met this problem and tries again."""
        kind = self._kind(problem)
        with self._changing:
            outage = self.open.get(kind, Outage(now, set(), is_logged=False))
            if outage.is_logged:
                return
            self.open[kind] = outage._replace(is_logged=True)
        log_store.warning("%s: %s Holdfast keeps trying.", self._words(kind)[0], problem)

    def succeeded(self, operation: str, now: float) -> None:
        """Called while an outage is open."""
        with self._changing:
            over = [
                (kind, outage)
                for kind, outage in self.open.items()
                if operation in outage.operations or not outage.operations
            ]
            for kind, _ in over:
                del self.open[kind]
        for kind, outage in over:
            if outage.is_logged:
                log_store.warning("%s after %.0f s", self._words(kind)[1], max(1.0, now - outage.since))

    def _kind(self, problem: Unavailable) -> type[Unavailable]:
        return next((kind for kind in self._WORDS if isinstance(problem, kind)), Unavailable)

    def _words(self, kind: type[Unavailable]) -> tuple[str, str]:
        return self._WORDS.get(kind, self._AWAY)


class Bus:
    """The listeners of one app in this process."""

    def __init__(self) -> None:
        self.heard = False  # somebody listens: only then is an event worth making
        self.spans: Spans | None = None
        self.counted: Counter[str] = Counter()  # events of which there are few, whether or not anybody listens
        self._listeners: tuple[Listening, ...] = ()
        self._changing = threading.Lock()

    def listen(self, callback: Callback, names: Collection[str] = ()) -> Listening:
        """Call `callback` with every event, or those of these names, where and when it happens, until stopped."""
        for name in names:
            if name not in EVENTS:
                raise UsageError(f"there is no event {name!r}; there are {', '.join(EVENTS)}.")
        listening = Listening(self, callback, frozenset(names))
        with self._changing:
            self._listeners = (*self._listeners, listening)
            self.heard = True
        return listening

    def forget(self, listening: Listening) -> None:
        with self._changing:
            self._listeners = tuple(each for each in self._listeners if each is not listening)
            self.heard = bool(self._listeners)

    def emit(self, event: Event) -> None:
        for listening in self._listeners:
            listening.hear(event)


class Listening:
    """One callback on the bus: a context manager, or `stop()` it."""

    def __init__(self, bus: Bus, callback: Callback, names: frozenset[str]) -> None:
        self._bus = bus
        self._callback = callback
        self._names = names
        self._failed = False

    def hear(self, event: Event) -> None:
        if self._names and event.name not in self._names:
            return
        try:
            self._callback(event)
        except Exception:
            if not self._failed:
                self._failed = True
                log.exception("a listener failed at %s; its next failures are not logged", event.name)

    def stop(self) -> None:
        """Hear no more. Once is enough, twice does no harm."""
        self._bus.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class EventStream:
    """Events as an async iterator. It listens from the moment it is made until it is closed or let go of.

    Its buffer is bounded: a reader that falls behind loses its oldest events, and `dropped` says how many. Leaving
    `with hf.events() as stream:` closes it; what is buffered then can still be read, and after it the stream ends.
    """

    def __init__(self, bus: Bus, names: Collection[str] = (), *, buffer: int = 1_000) -> None:
        if buffer < 1:
            raise UsageError(f"a stream's buffer must hold at least one event; got {buffer}.")
        # The bus knows only the buffer, so that a stream which nobody reads any more goes away by itself.
        self._buffer = _Buffer(buffer)
        self._stop = weakref.finalize(self, bus.listen(self._buffer.put, names).stop)

    @property
    def dropped(self) -> int:
        """How many events this reader was too slow for."""
        return self._buffer.dropped

    def close(self) -> None:
        self._stop()
        self._buffer.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self._buffer.take()
        if event is None:
            raise StopAsyncIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Buffer:
    """Filled from any thread without waiting, emptied by tasks of any loop."""

    def __init__(self, size: int) -> None:
        self.dropped = 0
        self._size = size
        self._events: deque[Event] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        with self._lock:
            if len(self._events) == self._size:
                self._events.popleft()
                self.dropped += 1
            self._events.append(event)
            waiting = self._waiting.popleft() if self._waiting else None
        if waiting is not None:
            _wake(waiting)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            _wake(each)

    async def take(self) -> Event | None:
        """The next event; None when the stream is closed and empty."""
        while True:
            with self._lock:
                if self._events:
                    return self._events.popleft()
                if self._closed:
                    return None
                waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                self._leave(waiting)
                raise

    def _leave(self, waiting: asyncio.Future[None]) -> None:
        """A reader that is cancelled after its wake-up hands it on."""
        heir = None
        with self._lock:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif self._events and self._waiting:
                heir = self._waiting.popleft()
        if heir is not None:
            _wake(heir)


def _wake(waiting: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # its loop has closed: nobody waits
        waiting.get_loop().call_soon_threadsafe(_resolve, waiting)


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


# Changes that people make: those of a program that no worker runs are written into the audit, with the user's name.
#
# What a worker's handler does is work, and is not written. Neither is what is written already: by the web, by a
# command,
# or because the program says by whom (`hf.access.audit.recording`).


P = ParamSpec("P")
R = TypeVar("R")

Recorder = Callable[[str, str, str], AbstractAsyncContextManager[None]]  # of an action, its subject, and by whom

_NARROWING = ("queue", "kind", "tenant", "agent", "session", "state")
_noted: ContextVar[bool] = ContextVar("holdfast_changes_noted", default=True)


class RecordingApp(Protocol):
    def recording(self, action: str, subject: str, by: str) -> AbstractAsyncContextManager[None]: ...


class AppClient(Protocol):
    """Whatever reaches the store through an app."""

    @property
    def _app(self) -> RecordingApp: ...


S = TypeVar("S", bound=AppClient)


def are_noted() -> bool:
    """Whether a change that the present code makes is still to be written into the audit."""
    return _noted.get()


@contextmanager
def without_audit() -> Iterator[None]:
    """Around code whose changes are not written into the audit, or are written already."""
    before = _noted.get()
    _noted.set(False)
    try:
        yield
    finally:
        _noted.set(before)


def changing(
    action: str,
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, R]]], Callable[Concatenate[S, P], Coroutine[Any, Any, R]]
]:
    """Mark a method that changes what people care about: its object, or what its first argument says."""

    def marked(
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
        @functools.wraps(method)
        async def change(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if not are_noted() or kwargs.get("dry_run"):
                return await method(self, *args, **kwargs)
            by = kwargs.get("by")
            async with self._app.recording(action, _subject(self, args, kwargs), by if isinstance(by, str) else ""):
                return await method(self, *args, **kwargs)

        return change

    return marked


def _subject(owner: object, args: Sequence[object], given: Mapping[str, object]) -> str:
    own = getattr(owner, "id", None)
    if isinstance(own, str):
        return own
    first = args[0] if args else given.get("id", given.get("name"))
    if first is not None:
        return str(getattr(first, "id", first))
    return " ".join(f"{name}={given[name]}" for name in _NARROWING if given.get(name) is not None)
