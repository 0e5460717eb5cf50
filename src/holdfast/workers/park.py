"""To park: a job gives its worker up and waits in the store."""

from __future__ import annotations

from typing import Literal

from holdfast.clock import Ports
from holdfast.durations import microseconds
from holdfast.errors import LeaseLost, Unavailable
from holdfast.kernel.database import Database
from holdfast.kernel.waiting import park
from holdfast.outcomes import Park
from holdfast.workers.holdings import Holding, Stop

_AGAIN = 0.2


async def parked(
    database: Database, ports: Ports, holding: Holding, wish: Park
) -> Literal["parked", "lost", "refused"]:
    """Offer the wish until the store takes it, refuses it because a cancel was accepted first, or the lease is over."""
    timeout_us = None if wish.timeout is None else microseconds(wish.timeout)
    while True:
        try:
            await database.transact(park, holding.lease, channel=wish.channel, timeout_us=timeout_us)
        except LeaseLost:
            over = holding.stop is Stop.LOST or ports.clock.monotonic() >= holding.fence_at
            return "lost" if over else "refused"  # if it was lost after all, the store says so
        except Unavailable:
            if ports.clock.monotonic() >= holding.fence_at:
                return "lost"
            await ports.clock.sleep(_AGAIN)
        else:
            return "parked"
