"""Checkups: what the doctor says of the store, one look every half minute for all who watch, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.agents.doctor import examine_app
from holdfast.app import Holdfast, core_of
from holdfast.kernel.doctor_database import Finding

EVERY = 30.0


class Checkup:
    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._last: Sequence[Finding] | None = None
        self._looked = float("-inf")
        self._looking = asyncio.Lock()

    async def findings(self) -> Sequence[Finding]:
        """What the doctor says, or said less than half a minute ago."""
        clock = core_of(self._hf).ports.clock
        async with self._looking:
            if self._last is None or clock.monotonic() - self._looked >= EVERY:
                self._last = await examine_app(core_of(self._hf))
                self._looked = clock.monotonic()
        return self._last
