"""One attempt: from a lease to an outcome.

Whatever the handler does, exactly one outcome comes out: a value, or None when the lease was lost and nothing
may be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeVar

from holdfast.clock import Ports
from holdfast.durations import show
from holdfast.errors import STORE_TROUBLE, BadPayload, LeaseLost, NotUnderstood
from holdfast.kernel import codec
from holdfast.kernel.database import Database
from holdfast.kernel.retry import RetryPolicy
from holdfast.kernel.rows import Lease
from holdfast.outcomes import Cancel, Discard, Done, Fail, Outcome, Park, Settled, Snooze, StoreTrouble, TryAgain
from holdfast.settings import Settings
from holdfast.text import message_of, traceback_of
from holdfast.workers.context import JobContext, ParkRequest
from holdfast.workers.definitions import Definition
from holdfast.workers.ledger import StoreLedger
from holdfast.workers.signatures import Signature
from holdfast.workers.slots import Holding, SlotGroup, Stop
from holdfast.workers.threads import NO_THREAD, NoThread, Threads

R = TypeVar("R")

log = logging.getLogger("holdfast.worker")

_NOT_UNDERSTOOD = "30s"  # after which a job whose record is of a newer release is looked at again
_LAST_WORDS = 1.0  # seconds for a handler to end once it was cancelled
_CHOSEN = (TryAgain, Fail, Park, Settled, Cancel, Discard, Snooze)
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
        threads: Executor | None,
        processes: Processes | None,
        *,
        groups: Iterable[SlotGroup] = (),
    ) -> None:
        self._database = database
        self._ports = ports
        self._settings = settings
        self._threads = threads
        # One kind whose calls all hang is refused once it has its share; those that run then may hang as well, and
        # enough are left for every other kind.
        abandoning = [group for group in groups if group.abandons]
        slots = sum(group.limit(settings) for group in abandoning)
        self._abandoning = {group.name for group in abandoning}
        self._given_up = Threads(2 * slots + (slots + 1) // 2, (slots + 1) // 2)
        self._processes = processes

    @property
    def hanging(self) -> tuple[int, int]:
        """How many threads there may be for calls that may be given up, and how many of them hang."""
        return self._given_up.hanging

    async def run(self, definition: Definition, holding: Holding, *, now_us: int) -> Outcome | None:
        """The outcome of one attempt; None when its lease was lost."""
        lease = holding.lease
        if lease.timeout_us is None and lease.deadline_at is None:
            try:
                return await conclude(self._call(definition, holding, _no_limits))
            except asyncio.CancelledError:
                return interrupted(holding)
        limits = TimeLimits(lease, now_us)
        if limits.passed:
            return Fail("its deadline passed before it started", "deadline_exceeded")
        try:
            async with limits.timer:
                return await conclude(self._call(definition, holding, limits.begin))
        except TimeoutError as problem:
            holding.cancelled = True
            trace = "" if problem.__cause__ is None else traceback_of(problem.__cause__)
            return limits.outcome(trace, self._timeout_failure_reason(holding))
        except asyncio.CancelledError:
            return interrupted(holding)

    def _timeout_failure_reason(self, holding: Holding) -> str:
        """Why a handler was not ended in time; empty when it was."""
        lease, ran = holding.lease, self._ports.clock.monotonic() - holding.began
        limit_us = lease.timeout_us or (lease.deadline_at or 0) - lease.claimed_at
        if holding.held_loop_at - holding.began <= limit_us / 1e6:
            return ""
        return f", but the handler held the event loop and could not be interrupted: it ran {ran:.1f} s"

    async def _call(self, definition: Definition, holding: Holding, begin: Callable[[], None]) -> Outcome | None:
        stored, signature = holding.lease.payload, definition.signature
        if definition.isolate == "process":
            if self._processes is None:
                return Fail(f"job {definition.kind!r} needs its own process, which this worker cannot start.")
            begin()
            return await self._processes.run(definition, self._context(holding), codec.decode(stored))
        context, arguments = self._given(definition, holding), partial(signature.read, stored)
        if definition.is_async:
            begin()
            if holding.lease.timeout_us is None:
                return await call(definition.function, signature, context, arguments, None)
            return await _await_or_abandon(_concluded(holding, definition.function, signature, context, arguments))
        on_thread = partial(self._on_thread, holding, begin)
        try:
            return await call(definition.function, signature, context, arguments, on_thread)
        except NoThread as problem:
            return TryAgain(error=str(problem), type=NO_THREAD)

    def _context(self, holding: Holding) -> JobContext:
        return JobContext(
            holding.lease, StoreLedger(holding, self._database, self._settings, self._ports), self._settings
        )

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
        if holding.slots in self._abandoning:  # given up when its time is over: its result is worth nothing
            return await self._given_up.run(holding.lease.kind, partial(here.run, run))
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
        return outcome_of_exception(problem)
    except asyncio.CancelledError:
        return interrupted(holding)


async def _await_or_abandon(attempt: Coroutine[Any, Any, R]) -> R:
    """Await a handler that has a timeout; one that ignores its cancellation is left alone, with its slot."""
    handler = asyncio.create_task(attempt)
    try:
        return await asyncio.shield(handler)
    except asyncio.CancelledError:
        handler.cancel()
        await asyncio.wait({handler}, timeout=_LAST_WORDS)
        if not handler.done():
            raise
    return handler.result()  # or its CancelledError, which says where it was


def _no_limits() -> None:
    """Most attempts have none to begin."""


class TimeLimits:
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

    def outcome(self, trace: str, held: str) -> Outcome:
        """Of an attempt that took too long; `trace` says where it was then, `held` why it was not ended in time."""
        if self._deciding == "timeout":
            return TryAgain(error=f"timed out after {show(self._timeout_us or 0)}{held}", type="timeout", trace=trace)
        return Fail(f"its deadline passed while it ran{held}", "deadline_exceeded")


async def conclude(attempt: Awaitable[Outcome | None]) -> Outcome | None:
    """Whatever a handler does, one outcome comes out; None when its lease was lost."""
    try:
        return await attempt
    except BaseException as problem:  # noqa: BLE001  what is not an outcome is raised again
        return outcome_of_exception(problem)


async def _concluded(
    holding: Holding,  # the watch over the loop finds it in this frame
    function: Callable[..., Any],
    signature: Signature,
    context: Any,
    stored: Callable[[], dict[str, Any]],
) -> Outcome | None:
    """The handler is first called here: a task that ends before its first step leaves no call behind."""
    return await conclude(call(function, signature, context, stored, None))


HANDLER = _concluded.__code__


def outcome_of_exception(problem: BaseException) -> Outcome | None:
    """The outcome that a handler chose by raising `problem`, which is being handled; None when its lease was lost.

    Raises it again when it is not the handler's own: the attempt, or all of this process, is being stopped.
    """
    match problem:
        case ParkRequest():
            return problem.park
        case LeaseLost():
            return None
        case BadPayload():  # what it made cannot be stored, and running it again makes the same
            return Fail(str(problem), "result_error", traceback_of(problem))
        case NotUnderstood():  # a newer release knows what to do with it
            return Snooze(_NOT_UNDERSTOOD, str(problem))
        case Discard():
            if problem.__cause__ is not None:  # otherwise its reason says it all
                problem.trace = traceback_of(problem)
            return problem
        case Cancel() | Snooze():
            return problem
        case asyncio.CancelledError():
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise problem
        case BaseExceptionGroup() if park := _parking_among(problem):
            return park
        case Exception() | BaseExceptionGroup() | SystemExit() | KeyboardInterrupt():
            pass  # its own failure, which its policy retries, or that of the store
        case _:
            raise problem
    return _store_trouble(problem) or raised()


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
    except (Exception, SystemExit, KeyboardInterrupt, ParkRequest) as problem:  # noqa: BLE001  raised again on the loop
        return None, problem


def _parking_among(group: BaseExceptionGroup[BaseException]) -> Park | None:
    """What a group of tasks waits for, if waiting is all that stopped it."""
    if group.split(ParkRequest)[1] is not None:
        return None
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first.park if isinstance(first, ParkRequest) else None


def _store_trouble(problem: BaseException) -> StoreTrouble | None:
    """The outcome of a handler that the store failed, and did nothing else wrong."""
    return StoreTrouble(message_of(problem), traceback_of(problem)) if _is_store_trouble(problem) else None


def _is_store_trouble(problem: BaseException) -> bool:
    """Is it an error of the store, or raised because of one? In a group, whatever is not merely waiting must be."""
    seen: set[int] = set()
    reason: BaseException | None = problem
    while reason is not None and id(reason) not in seen:
        seen.add(id(reason))
        if isinstance(reason, STORE_TROUBLE):
            return True
        if isinstance(reason, BaseExceptionGroup):
            failed = reason.split(ParkRequest)[1]
            if failed is not None and all(map(_is_store_trouble, failed.exceptions)):
                return True
        reason = reason.__cause__ or (None if reason.__suppress_context__ else reason.__context__)
    return False


def outcome_of(signature: Signature, value: Any) -> Outcome:
    """A handler may return an outcome; anything else is its result."""
    if isinstance(value, _CHOSEN):
        return value
    if isinstance(value, RetryPolicy):
        return Fail(
            "the handler returned a retry policy; return holdfast.outcomes.TryAgain(after=…) instead.", "result_error"
        )
    try:
        result = signature.encode_result(value.result if isinstance(value, Done) else value)
        return _NOTHING if result is None else Done(result)
    except BadPayload as problem:
        return Fail(str(problem), "result_error")


def raised() -> TryAgain:
    """The exception being handled, as a reason to try again."""
    problem = sys.exception()
    return TryAgain(error=message_of(problem), trace=traceback_of(problem) if problem else "")


# Plain attempts: a handler with nothing around it, as most are.
#
# It is async and shares this process, takes no context, and its time is not limited. The worker calls it from the
# attempt's own coroutine. Only the way to the handler is shorter: what its end means is decided in `attempt`, for
# all.


def called(definition: Definition | None, holding: Holding, now: float) -> Awaitable[Any] | None:
    """The handler, called with its stored arguments and not yet begun; None when this attempt is not a plain one.

    None also when it may not start, or its arguments do not fit: the long way says what becomes of it then.
    """
    lease = holding.lease
    if definition is None or not definition.is_plain or lease.timeout_us is not None or lease.deadline_at is not None:
        return None
    if not holding.may_start(now):
        return None
    try:
        handler: Awaitable[Any] = definition.function(**definition.signature.read(lease.payload))
    except Exception:  # noqa: BLE001  `attempt` meets it again, and reports it
        return None
    holding.entered = True
    return handler
