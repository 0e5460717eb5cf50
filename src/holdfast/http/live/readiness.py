"""Whether the database answers: asked at most once a second, however many strangers want to know."""

from __future__ import annotations

import asyncio
import logging

from holdfast.app import Holdfast, core_of
from holdfast.errors import HoldfastError, Unavailable
from holdfast.kernel.bounds import READS, bound

log = logging.getLogger("holdfast.http")

_FRESH = 1.0  # seconds


class Readiness:
    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._asking = asyncio.Lock()
        self._ready = False
        self._asked = float("-inf")

    async def is_ready(self) -> bool:
        clock = core_of(self._hf).ports.clock
        async with self._asking:
            if clock.monotonic() - self._asked >= _FRESH:
                self._ready = await self._ask()
                self._asked = clock.monotonic()
            return self._ready

    async def _ask(self) -> bool:
        try:
            with bound(READS):
                await self._hf.queues.list(limit=1)
        except Unavailable as problem:
            core_of(self._hf).ports.try_again(problem)
            return False
        except HoldfastError as problem:
            log.warning("not ready: %s", problem)
            return False
        return True
