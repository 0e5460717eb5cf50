"""Idle: whether a worker holds nothing, and since when.

The store is told with each heartbeat. A worker of a pool that was idle then and takes work says so at once, so that
nobody retires it for the rest it had before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.clock import Clock


class Idle(asyncio.Event):
    """Set while nothing is held."""

    def __init__(self, clock: Clock, stirs: Callable[[], None]) -> None:
        """`stirs` is called when work comes to a worker that has been told to be idle."""
        super().__init__()
        self._clock = clock
        self._stirs = stirs
        self._since = 0.0
        self._told = False
        self.set()

    def set(self) -> None:
        if not self.is_set():
            self._since = self._clock.monotonic()
        super().set()

    def clear(self) -> None:
        super().clear()
        if self._told:
            self._told = False
            self._stirs()

    def tell_us(self) -> int | None:
        """For how long, as a heartbeat tells it; None while something is held. On any thread."""
        if not self.is_set():
            return None
        self._told = True
        return max(0, round((self._clock.monotonic() - self._since) * 1e6))
