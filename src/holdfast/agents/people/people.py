"""People, as the runtime serves them: the jobs behind what they are asked, and the function that tells them of it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from holdfast.agents.people import inquiries
from holdfast.agents.people.inquiries import Ruling
from holdfast.agents.states import InquiryState
from holdfast.agents.system_jobs import EXPIRE, NOTIFY, system_definition
from holdfast.agents.values import Inquiry, inquiry_of
from holdfast.client.core import Core
from holdfast.errors import NotFound, UsageError
from holdfast.outcomes import Done, Outcome
from holdfast.workers.context import JobContext
from holdfast.workers.threads import Threads

# Calls of the program's own functions: beside the work, not in its way, and not for ever.
#
# A function that is not async is called on a thread, for it may wait for a server. One that has not returned in time
# is
# given up; threads of it that hang are bounded, as those of tools are.


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


# Notification that a person has to decide: the app's own function, called beside the work and not in its way.


log = logging.getLogger("holdfast.agents")


class Notifier:
    """Calls what `hf.inquiries.on_open` was given."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._calls = ProgramCalls(patience)

    async def tell(self, function: Callable[[Any], Any], inquiry: Any) -> None:
        """Call it. What it raises is logged and raised: its job tries again."""
        try:
            await self._calls.call("hf.inquiries.on_open", function, inquiry)
        except Exception:
            text = "hf.inquiries.on_open failed for inquiry %s; Holdfast calls it again"
            log.warning(text, inquiry.id)  # the log of attempts has the traceback
            raise


class People:
    """The people who decide what the runs of one app ask."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._telling = Notifier()
        self._teller: Callable[[Inquiry], Any] | None = None

    def notifies(self) -> bool:
        """Whether this program wants to hear of inquiries."""
        return self._teller is not None

    def tell(self, function: Callable[[Inquiry], Any]) -> None:
        """Call this function for every new inquiry."""
        if self._teller is not None and self._teller is not function:
            raise UsageError("the app already has a function for inquiries: let that one notify everybody.")
        self._teller = function
        self.serve()

    def serve(self) -> None:
        """Declare the jobs behind questions: their end in time, and the word that there is one."""
        registry = self._core.registry
        if EXPIRE not in registry.definitions:
            registry.add(system_definition(EXPIRE, self._expire))
        if self._teller is not None and NOTIFY not in registry.definitions:
            registry.add(system_definition(NOTIFY, self._notify))

    async def _expire(self, ctx: JobContext, inquiry: str) -> Outcome:
        wish = Ruling(inquiry, InquiryState.EXPIRED)
        try:
            await ctx.database.transact(inquiries.decide, wish, self._core.settings.announced)
        except NotFound:
            return Done("its run is gone")
        return Done()

    async def _notify(self, ctx: JobContext, inquiry: str) -> Outcome:
        row = await ctx.database.transact(inquiries.find_inquiry, inquiry)
        if row is None or row.state != InquiryState.OPEN or self._teller is None:
            return Done("it is decided")
        await self._telling.tell(self._teller, inquiry_of(row))
        return Done()
