"""Calls of the program's own functions: beside the work, not in its way, and not for ever.

A function that is not async is called on a thread, for it may wait for a server. One that has not returned in time is
given up; threads of it that hang are bounded, as those of tools are.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from holdfast.workers.threads import Threads

PATIENCE = 60.0  # seconds
_MOST_HANGING = 8  # calls of one function
_THREADS = 1_000  # more than callers have calls under way: only those that hang are refused


class ProgramCalls:
    """Calls functions of the program, each by the name under which the program knows it."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._threads = Threads(_THREADS, _MOST_HANGING)

    async def call(self, name: str, function: Callable[[Any], Any], argument: Any) -> Any:
        """What it returns. `TimeoutError` when it takes too long, `NoThread` when too many calls of it hang."""
        timer = asyncio.timeout(self._patience)
        try:
            async with timer:
                return await self._called(name, function, argument)
        except TimeoutError as problem:
            if timer.expired():
                raise TimeoutError(f"{name} has not returned in {self._patience:g}s") from problem
            raise

    async def _called(self, name: str, function: Callable[[Any], Any], argument: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(argument)
        here = copy_context()
        returned = await self._threads.run(name, partial(here.run, function, argument))
        return await returned if inspect.isawaitable(returned) else returned
