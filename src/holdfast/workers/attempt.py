"""One attempt: from a lease to an outcome.

Whatever the handler does, exactly one outcome comes out: a value, or None when the lease was lost and nothing
may be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeVar

from holdfast.clock import Ports
from holdfast.durations import show
from holdfast.errors import BadPayload, LeaseLost
from holdfast.kernel import encoding
from holdfast.kernel.database import Database
from holdfast.kernel.records import Lease
from holdfast.kernel.retry import RetryPolicy
from holdfast.outcomes import Cancel, Discard, Done, Fail, Outcome, Park, Retry, Settled, Snooze
from holdfast.settings import Settings
from holdfast.workers.context import JobContext, Parking
from holdfast.workers.definitions import Definition
from holdfast.workers.holdings import Holding, Stop
from holdfast.workers.ledger import StoreLedger
from holdfast.workers.signatures import Signature
from holdfast.workers.slots import TOOLS
from holdfast.workers.threads import ThreadEach

R = TypeVar("R")

log = logging.getLogger("holdfast.worker")

_LAST_WORDS = 1.0  # seconds for a handler to end once it was cancelled
_CHOSEN = (Retry, Fail, Park, Settled, Cancel, Discard, Snooze)
_NOTHING = Done()


class Processes(Protocol):
    """Runs handlers that must be killable, each in a process of its own."""

    async def run(self, definition: Definition, context: JobContext, payload: Any) -> Outcome | None:
        """How the handler ended; None when its lease was lost. Cancelling the call kills the process."""

    async def close(self) -> None:
        """Kill whatever still runs."""


class Attempts:
    """Runs handlers: async ones on the loop, others on a bounded set of threads, isolated ones in processes."""

    def __init__(
        self,
        database: Database,
        ports: Ports,
        settings: Settings,
        *,
        threads: Executor | None,
        processes: Processes | None,
    ) -> None:
        self._database = database
        self._ports = ports
        self._settings = settings
        self._threads = threads
        self._each = ThreadEach()
        self._processes = processes

    async def run(self, definition: Definition, holding: Holding, *, now_us: int) -> Outcome | None:
        """The outcome of one attempt; None when its lease was lost."""
        lease = holding.lease
        if lease.timeout_us is None and lease.deadline_at is None:
            try:
                return await conclude(self._call(definition, holding, _no_limits))
            except asyncio.CancelledError:
                return interrupted(holding)
        limits = Limits(lease, now_us)
        if limits.passed:
            return Fail("its deadline passed before it started", "deadline_exceeded")
        try:
            async with limits.timer:
                return await conclude(self._call(definition, holding, limits.begin))
        except TimeoutError:
            holding.cancelled = True
            return limits.outcome()
        except asyncio.CancelledError:
            return interrupted(holding)

    async def _call(self, definition: Definition, holding: Holding, begin: Callable[[], None]) -> Outcome | None:
        stored, signature = holding.lease.payload, definition.signature
        if definition.isolate == "process":
            if self._processes is None:
                return Fail(f"job {definition.kind!r} needs its own process, which this worker cannot start.")
            begin()
            return await self._processes.run(definition, self._context(holding), encoding.decode(stored))
        context, arguments = self._given(definition, holding), partial(signature.read, stored)
        if definition.is_async:
            begin()
            attempt = call(definition.function, signature, context, arguments, None)
            return await (attempt if holding.lease.timeout_us is None else _or_abandoned(conclude(attempt)))
        on_thread = partial(self._on_thread, holding, begin)
        return await call(definition.function, signature, context, arguments, on_thread)

    def _context(self, holding: Holding) -> JobContext:
        return JobContext(holding.lease, StoreLedger(holding, self._database, self._ports), self._settings)

    def _given(self, definition: Definition, holding: Holding) -> Any:
        """What the handler takes as its first argument."""
        if not definition.signature.takes_context:
            return None
        context = self._context(holding)
        return context if definition.context is None else definition.context(context)

    async def _on_thread(self, holding: Holding, begin: Callable[[], None], function: Callable[[], R]) -> R:
        loop = asyncio.get_running_loop()

        def run() -> R:
            loop.call_soon_threadsafe(begin)
            return function()

        here = copy_context()  # what surrounds the attempt, a span for example, also surrounds the thread
        if holding.line == TOOLS:  # given up when its time is over: its slot is free, its result worth nothing
            return await asyncio.shield(loop.run_in_executor(self._each, here.run, run))
        # A thread cannot be stopped: when the attempt ends first, the worker keeps its slot until it returns.
        holding.thread = thread = loop.run_in_executor(self._threads, here.run, run)
        return await asyncio.shield(thread)


def interrupted(holding: Holding, when: str = "while running") -> Outcome | None:
    """What it means that an attempt was stopped; `CancelledError` when it is to be handed back."""
    match holding.stop:
        case Stop.CANCEL:
            return Cancel(f"cancelled {when}")
        case Stop.LOST:
            return None
        case _:
            raise asyncio.CancelledError


def ended_by(problem: BaseException, holding: Holding) -> Outcome | None:
    """What became of an attempt without limits whose handler raised `problem`, which is being handled."""
    try:
        return meant_by(problem)
    except asyncio.CancelledError:
        return interrupted(holding)


async def _or_abandoned(attempt: Coroutine[Any, Any, R]) -> R:
    """Await a handler that has a timeout; one that goes on though it was cancelled is left to itself, and its slot."""
    handler = asyncio.create_task(attempt)
    try:
        return await asyncio.shield(handler)
    except asyncio.CancelledError:
        handler.cancel()
        await asyncio.wait({handler}, timeout=_LAST_WORDS)
        if handler.done() and not handler.cancelled():
            return handler.result()
        raise


def _no_limits() -> None:
    """Most attempts have none to begin."""


class Limits:
    """How long one attempt may take: until the job's deadline, and `timeout` from the moment it really begins."""

    def __init__(self, lease: Lease, now_us: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_us = lease.timeout_us
        self._left_us = None if lease.deadline_at is None else lease.deadline_at - now_us
        self._deadline = None if self._left_us is None else self._loop.time() + self._left_us / 1e6
        self._deciding = "deadline"
        self.timer = asyncio.timeout_at(self._deadline)

    @property
    def passed(self) -> bool:
        return self._left_us is not None and self._left_us <= 0

    def begin(self) -> None:
        """Start the attempt's own time. What waits for a thread has not begun."""
        if self._timeout_us is None:
            return
        until = self._loop.time() + self._timeout_us / 1e6
        if self._deadline is None or until <= self._deadline:
            self._deciding = "timeout"
            with contextlib.suppress(RuntimeError):  # it is over already
                self.timer.reschedule(until)

    def outcome(self) -> Outcome:
        """Of an attempt that took too long."""
        if self._deciding == "timeout":
            return Retry(error=f"timed out after {show(self._timeout_us or 0)}", type="timeout")
        return Fail("its deadline passed while it ran", "deadline_exceeded")


async def conclude(attempt: Awaitable[Outcome | None]) -> Outcome | None:
    """Whatever a handler does, one outcome comes out; None when its lease was lost."""
    try:
        return await attempt
    except BaseException as problem:  # noqa: BLE001  what is not an outcome is raised again
        return meant_by(problem)


def meant_by(problem: BaseException) -> Outcome | None:
    """The outcome that a handler chose by raising `problem`, which is being handled; None when its lease was lost.

    Raises it again when it is not the handler's own: the attempt, or all of this process, is being stopped.
    """
    match problem:
        case Parking():
            return problem.park
        case LeaseLost():
            return None
        case BadPayload():  # what it made cannot be stored, and running it again makes the same
            return Fail(str(problem), "result_error")
        case Cancel() | Discard() | Snooze():
            return problem
        case asyncio.CancelledError():
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise problem
        case BaseExceptionGroup():
            return _parking_among(problem) or raised()
        case Exception() | SystemExit():  # the handler's own failure, whatever it is, is retried by its policy
            pass
        case _:
            raise problem
    return raised()


async def call(
    function: Callable[..., Any],
    signature: Signature,
    context: Any,
    stored: Callable[[], dict[str, Any]],
    on_thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None,
) -> Outcome:
    """Call a handler with its `stored` arguments: on the loop, or where `on_thread` takes it."""
    try:
        arguments = stored()
    except BadPayload as misfit:
        return Fail(str(misfit), "invalid_input")
    given = (context,) if signature.takes_context else ()
    if on_thread is None:
        return outcome_of(signature, await function(*given, **arguments))
    value, problem = await on_thread(partial(_carry, partial(function, *given, **arguments)))
    if problem is not None:
        raise problem
    return outcome_of(signature, value)


def _carry(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    # StopIteration, SystemExit and Parking cannot travel through a future, so problems travel as values.
    try:
        return function(), None
    except (Exception, SystemExit, Parking) as problem:  # noqa: BLE001  raised again on the loop
        return None, problem


def _parking_among(group: BaseExceptionGroup[BaseException]) -> Park | None:
    """What a group of tasks waits for, if waiting is all that stopped it."""
    if group.split(Parking)[1] is not None:
        return None
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first.park if isinstance(first, Parking) else None


def outcome_of(signature: Signature, value: Any) -> Outcome:
    """A handler may return an outcome; anything else is its result."""
    if isinstance(value, _CHOSEN):
        return value
    if isinstance(value, RetryPolicy):
        return Fail(
            "the handler returned a retry policy; the outcome is holdfast.outcomes.Retry(after=…).", "result_error"
        )
    try:
        result = signature.encode_result(value.result if isinstance(value, Done) else value)
        return _NOTHING if result is None else Done(result)
    except BadPayload as problem:
        return Fail(str(problem), "result_error")


def raised() -> Retry:
    """The exception being handled, as a reason to try again."""
    problem = sys.exception()
    return Retry(error=f"{type(problem).__name__}: {problem}", trace=traceback.format_exc(limit=-20))
