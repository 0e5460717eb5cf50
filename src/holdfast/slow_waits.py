"""Slow waits: a caller that has waited for a result for three seconds reads in the log what `why` knows of it.

A job or a run is explained once in a process, however many wait for it. A wait for a person, such as for an approval,
is what the program asked for, and no warning. The loop that looks for results calls `look`, so a wait that ends sooner
costs an entry of a dictionary. An error while `why` is asked is a line at DEBUG: it never reaches the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from holdfast.clock import Ports
from holdfast.reasons import Gate, Reason
from holdfast.shown_text import plural, shown

log = logging.getLogger("holdfast")

PATIENCE = 3.0
_REMEMBERED = 1_000  # ids that were explained; older ones are forgotten
# Somebody works on it, a person was asked, or its time comes by itself. Any other gate may need an operator.
_NORMAL = frozenset(
    {Gate.LEASED, Gate.ENDED, Gate.CHILDREN, Gate.TOOLS, Gate.BATCH, Gate.SESSION, Gate.NOT_DUE, Gate.PERSON}
)


class _Wait(NamedTuple):
    id: str
    since: float


class SlowWaits:
    """The waits of one event loop for jobs, or for runs."""

    def __init__(self, ports: Ports, noun: str, ask: Callable[[str], Awaitable[Sequence[Reason]]]) -> None:
        """`noun` is what they wait for, `ask` says why one of these does not get on."""
        self._ports = ports
        self._noun = noun
        self._ask = ask
        self._waits: dict[object, _Wait] = {}  # the oldest first
        self._asking: set[asyncio.Task[None]] = set()
        self._explained: dict[str, None] = {}  # the oldest first

    def begin(self, key: object, id: str) -> None:
        """Somebody waits for this from now on. `key` is this wait's own."""
        self._waits[key] = _Wait(id, self._ports.clock.monotonic())

    def progressed(self, key: object) -> None:
        """Something came, and more is waited for."""
        wait = self._waits.pop(key, None)
        if wait is not None:
            self.begin(key, wait.id)

    def end(self, key: object) -> None:
        self._waits.pop(key, None)

    def look(self) -> None:
        """Explain the waits that have lasted too long: each job or run once."""
        if not self._waits:
            return
        before = self._ports.clock.monotonic() - PATIENCE
        late: list[object] = []
        for key, wait in self._waits.items():
            if wait.since > before:
                break
            late.append(key)
        ids = [id for id in dict.fromkeys(self._waits.pop(key).id for key in late) if id not in self._explained]
        for id in ids:
            self._explained[id] = None
        while len(self._explained) > _REMEMBERED:
            del self._explained[next(iter(self._explained))]
        if ids and log.isEnabledFor(logging.WARNING):
            task = asyncio.create_task(self._explain(ids[0], len(ids) - 1), name="why a result does not come")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        self._waits.clear()

    async def _explain(self, id: str, others: int) -> None:
        """Ask for one: where many wait, they mostly wait for the same."""
        try:
            reasons = await self._ask(id)
        except Exception:  # the loop that looks for results tells the caller of real trouble
            log.debug("why %s %s does not end could not be found out", self._noun, id, exc_info=True)
            return
        level = logging.INFO if reasons and all(each.gate in _NORMAL for each in reasons) else logging.WARNING
        sentences = [shown(each.sentence) for each in reasons]
        known = "; ".join(sentences) or "nothing holds it back, and no worker has taken it yet"
        if any(each.gate is Gate.NO_WORKER for each in reasons):
            known += ". Start one with `holdfast worker MODULE:APP`"
        has = "has" if others == 1 else "have"
        more = f" {plural(others, f'more {self._noun}')} {has} been awaited as long." if others else ""
        about = {self._noun: id}
        log.log(level, "still waiting for %s %s after %g s: %s.%s", self._noun, id, PATIENCE, known, more, extra=about)
