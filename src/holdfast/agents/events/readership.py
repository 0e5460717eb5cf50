"""Readership: a process that streams runs or waits for them says so, and only then are their events hinted.

Its row counts for some seconds and is renewed while somebody reads. It is written before the first look, so what it
misses is found by the next one. A reader whose row is lost or late polls, as all do whose hints are lost.
"""

from __future__ import annotations

import logging

from holdfast.agents.statements import EventsSql
from holdfast.clock import Ports
from holdfast.errors import HoldfastError
from holdfast.kernel.bounds import unbound
from holdfast.kernel.database import Database, Transaction, single
from holdfast.kernel.ids import new_id
from holdfast.shown_text import shown

log = logging.getLogger("holdfast.agents")

# Much longer than the time between two looks. For so long, writers send hints to a reader that has left.
_SECONDS = 20.0


@single
async def begin_reading(tx: Transaction, id: str) -> None:
    await tx.run(EventsSql.begin_reading, id=id, ttl_us=round(_SECONDS * 1e6))


@single
async def end_reading(tx: Transaction, id: str) -> None:
    await tx.run(EventsSql.end_reading, id=id)


class Readership:
    def __init__(self, database: Database, ports: Ports) -> None:
        self._database = database
        self._clock = ports.clock
        self._id = new_id(ports)
        self._renew_at = float("-inf")
        self._begun = False

    async def keep(self) -> None:
        """Be known as a reader; writes only when half of the time is over. To be called before each look."""
        now = self._clock.monotonic()
        if now < self._renew_at:
            return
        self._renew_at = now + _SECONDS / 2
        try:
            with unbound():
                await self._database.transact(begin_reading, self._id)
            self._begun = True
        except HoldfastError as problem:
            log.debug("this process finds events by polling: %s", shown(problem))

    async def end(self) -> None:
        """Nobody reads here any more. If that cannot be said, the row ends by itself."""
        self._renew_at = float("-inf")
        if self._begun:
            self._begun = False
            try:
                with unbound():
                    await self._database.transact(end_reading, self._id)
            except HoldfastError as problem:
                log.debug("a reader's row stays until its time is over: %s", shown(problem))
