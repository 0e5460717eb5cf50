"""One attempt: from a lease to an outcome.

Whatever the handler does, exactly one outcome comes out: a value, or None when the lease was lost and nothing
may be written.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol

from holdfast.clock import Ports
from holdfast.durations import show
from holdfast.errors import BadPayload, LeaseLost
from holdfast.kernel import encoding
from holdfast.kernel.database import Database
from holdfast.outcomes import Cancel, Discard, Done, Fail, Outcome, Park, Retry, Snooze
from holdfast.settings import Settings
from holdfast.workers.context import JobContext, Parking
from holdfast.workers.definitions import Definition
from holdfast.workers.holdings import Holding, Stop

log = logging.getLogger("holdfast.worker")


class Processes(Protocol):
    """Runs handlers that must be killable, each in a process of its own."""

    async def run(self, definition: Definition, context: JobContext, payload: Any) -> Any:
        """The handler's JSON result, or what it raised."""

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
        self._processes = processes

    async def run(  # noqa: PLR0911  one return for each way an attempt can end
        self, definition: Definition, holding: Holding, *, now_us: int
    ) -> Outcome | None:
        """The outcome of one attempt; None when its lease was lost."""
        lease = holding.lease
        limit = _limit(lease.timeout_us, lease.deadline_at, now_us)
        if limit is not None and limit <= 0:
            return Fail("its deadline passed before it started", "deadline_exceeded")
        timer = asyncio.timeout(None if limit is None else limit / 1e6)
        try:
            async with timer:
                return _outcome(definition, await self._call(definition, holding))
        except TimeoutError:
            if not timer.expired():
                return _raised()
            return _timed_out(lease.timeout_us, lease.deadline_at, limit or 0)
        except asyncio.CancelledError:
            return self._interrupted(holding)
        except Parking as parking:
            return parking.park
        except LeaseLost:
            return None
        except BadPayload as problem:
            return Fail(str(problem), "invalid_input")
        except (Cancel, Discard, Snooze) as chosen:
            return chosen
        except Exception:  # noqa: BLE001  the handler's own failure, whatever it is, is retried by its policy
            return _raised()

    async def _call(self, definition: Definition, holding: Holding) -> Any:
        payload = encoding.decode(holding.lease.payload)
        context = JobContext(holding, self._database, self._ports, self._settings)
        if definition.isolate == "process":
            if self._processes is None:
                raise BadPayload(f"job {definition.kind!r} needs its own process, which this worker cannot start.")
            return await self._processes.run(definition, context, payload)
        arguments = definition.signature.decode(payload)
        given = (context,) if definition.signature.takes_context else ()
        if inspect.iscoroutinefunction(definition.function):
            return await definition.function(*given, **arguments)
        call = partial(_carry, definition.function, given, arguments)
        # A thread cannot be stopped: when the attempt ends first, the worker keeps its slot until it returns.
        holding.thread = asyncio.get_running_loop().run_in_executor(self._threads, call)
        value, problem = await asyncio.shield(holding.thread)
        if problem is not None:
            raise problem
        return value

    @staticmethod
    def _interrupted(holding: Holding) -> Outcome | None:
        match holding.stop:
            case Stop.CANCEL:
                return Cancel("cancelled while running")
            case Stop.LOST:
                return None
            case _:
                raise asyncio.CancelledError


def _carry(function: Callable[..., Any], given: tuple[Any, ...], arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    # StopIteration and Parking cannot travel through a future, so problems travel as values.
    try:
        return function(*given, **arguments), None
    except (Exception, Parking) as problem:  # noqa: BLE001  raised again on the loop
        return None, problem


def _outcome(definition: Definition, value: Any) -> Outcome:
    """A handler may return an outcome; anything else is its result."""
    if isinstance(value, Done):
        return Done(definition.signature.encode_result(value.result))
    if isinstance(value, Retry | Fail | Park | Cancel | Discard | Snooze):
        return value
    try:
        return Done(definition.signature.encode_result(value))
    except BadPayload as problem:
        return Fail(str(problem), "result_error")


def _limit(timeout_us: int | None, deadline_at: int | None, now_us: int) -> int | None:
    limits = [timeout_us] if timeout_us is not None else []
    if deadline_at is not None:
        limits.append(deadline_at - now_us)
    return min(limits, default=None)


def _timed_out(timeout_us: int | None, deadline_at: int | None, limit: int) -> Outcome:
    if timeout_us is not None and limit >= timeout_us:
        return Retry(error=f"timed out after {show(timeout_us)}", type="timeout")
    return Fail("its deadline passed while it ran", "deadline_exceeded")


def _raised() -> Retry:
    """The exception being handled, as a reason to try again."""
    problem = sys.exception()
    return Retry(error=f"{type(problem).__name__}: {problem}", trace=traceback.format_exc(limit=-20))
