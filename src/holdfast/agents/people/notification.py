"""Notification that a person has to decide: the app's own function, called beside the work and not in its way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.agents.people.program_calls import PATIENCE, ProgramCalls

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
