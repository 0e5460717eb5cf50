"""People, as the runtime serves them: the jobs behind what they are asked, and the function that tells them of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.agents.people import inquiries
from holdfast.agents.people.inquiries import Ruling
from holdfast.agents.people.inquiry import Inquiry, inquiry_of
from holdfast.agents.people.notification import Notifier
from holdfast.agents.states import InquiryState
from holdfast.agents.system_jobs import EXPIRE, NOTIFY, system_definition
from holdfast.core import Core
from holdfast.errors import NotFound, UsageError
from holdfast.outcomes import Done, Outcome
from holdfast.workers.context import JobContext


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
