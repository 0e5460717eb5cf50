"""Hints: what a worker does about a hint. A hint may be lost, late or wrong; it only makes the worker look sooner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.kernel.crowd import LOOKED, read_note
from holdfast.workers.claims import Claiming
from holdfast.workers.duties import Duties
from holdfast.workers.layer import Layer, hear
from holdfast.workers.poll import Polling
from holdfast.workers.served_routes import Routing


class Hints:
    def __init__(
        self,
        routing: Routing,
        claims: Claiming,
        polling: Polling,
        duties: Duties,
        *,
        layers: Sequence[Layer],
        work: asyncio.Event,
        cancelled: Callable[[list[int]], None],
    ) -> None:
        """`work` is set when there may be something to claim; `cancelled` is told which workers should renew now."""
        self._routing = routing
        self._claims = claims
        self._polling = polling
        self._duties = duties
        self._layers = layers
        self._work = work
        self._cancelled = cancelled

    def take(self, note: str) -> None:
        subject, _, rest = note.partition(" ")
        numbers = [int(part) for part in rest.split(",") if part.isdigit()]
        if subject == "route":
            self._duties.stirred = True
            self._heat(numbers)
        elif subject == LOOKED:
            if not self._routing.hot:
                self._heat(numbers)
            elif self._routing.serves(numbers):  # the hot ones have an order, which this list would spoil
                self._claims.look_around()
                self._work.set()
            self._polling.heard(read_note(rest))
        elif subject == "cancel":
            self._cancelled(numbers)
        elif not hear(self._layers, subject, rest):
            self._polling.wanted.set()
            self._work.set()

    def _heat(self, routes: Sequence[int]) -> None:
        """There may be something to claim there."""
        if not self._routing.knows(routes):
            self._polling.wanted.set()
        if self._routing.heat(routes):
            self._work.set()
