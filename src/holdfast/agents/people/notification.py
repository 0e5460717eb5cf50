"""Notification that a person has to decide: the app's own function, called beside the work and not in its way.

A function that is not async is called on a thread, for it may wait for a mail server. It is given up after a minute and
called again later; threads of it that hang are bounded, as those of tools are.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from holdfast.workers.threads import Threads

log = logging.getLogger("holdfast.agents")

_PATIENCE = 60.0  # seconds
_THREADS = 8


class Notifier:
    """Calls what `hf.inquiries.on_open` was given."""

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._threads = Threads(_THREADS, _THREADS)

    async def tell(self, function: Callable[[Any], Any], inquiry: Any) -> None:
        """Call it. What it raises is logged and raised: its job tries again."""
        timer = asyncio.timeout(self._patience)
        try:
            async with timer:
                await self._call(function, inquiry)
        except Exception as problem:
            text = "hf.inquiries.on_open failed for inquiry %s; Holdfast calls it again"
            log.warning(text, inquiry.id)  # the log of attempts has the traceback
            if timer.expired():
                raise TimeoutError(f"hf.inquiries.on_open has not returned in {self._patience:g}s") from problem
            raise

    async def _call(self, function: Callable[[Any], Any], inquiry: Any) -> None:
        if inspect.iscoroutinefunction(function):
            await function(inquiry)
            return
        here = copy_context()
        returned = await self._threads.run("hf.inquiries.on_open", partial(here.run, function, inquiry))
        if inspect.isawaitable(returned):
            await returned
