"""Registration: a worker's row in the store, and its sign of life.

Every registration is a new incarnation with a number that is never used again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from holdfast.durations import microseconds
from holdfast.kernel import workers
from holdfast.kernel.database import Database
from holdfast.kernel.records import Route
from holdfast.kernel.workers import Registration
from holdfast.settings import Settings
from holdfast.version import VERSION


def registration(
    incarnation: str,
    id: str,
    name: str,
    *,
    capabilities: tuple[str, ...],
    queues: tuple[str, ...] | None,
    slots: int,
) -> Registration:
    """Who this process is, and what the worker in it can do."""
    return Registration(
        incarnation=incarnation,
        id=id,
        name=name or socket.gethostname(),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        version=VERSION,
        capabilities=capabilities,
        queues=queues,
        slots=slots,
    )


async def register(database: Database, who: Registration, routes: Sequence[Route], settings: Settings) -> int:
    """Write the row, then show presence; returns the worker's number. A live worker of that id refuses."""
    namesake = await database.transact(workers.live_namesake, who.id, who.incarnation)
    gone = await database.presence.absent([namesake]) if namesake is not None else set()
    ttl_us = microseconds(settings.worker_ttl)
    seq = await database.transact(workers.register, who, routes, ttl_us=ttl_us, gone=gone)
    present = await database.presence.hold(seq)
    await database.transact(workers.advertise_presence, seq, presence=present)
    return seq
