"""Registration: a worker's row in the store, and its sign of life.

Every registration is a new incarnation with a number that is never used again.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence

from holdfast.distribution import VERSION
from holdfast.durations import microseconds
from holdfast.errors import Unavailable
from holdfast.kernel import epoch, pools, workers
from holdfast.kernel.database import Database, unheeded
from holdfast.kernel.rows import Route
from holdfast.kernel.workers import Registration
from holdfast.settings import Settings
from holdfast.workers.role import Role


def introduced(role: Role) -> str:
    """What a database's own lists call the worker in this process."""
    return role.id or role.name or f"{socket.gethostname()}:{os.getpid()}"


def registration(id: str, role: Role, capabilities: tuple[str, ...], slots: int) -> Registration:
    """Who this process is, and what the worker in it can do. The incarnation is added when it registers."""
    return Registration(
        incarnation="",
        id=id,
        name=role.name or socket.gethostname(),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        version=VERSION,
        capabilities=capabilities,
        queues=role.queues,
        slots=slots,
        pool=role.pool or None,
    )


async def register(
    database: Database,
    who: Registration,
    routes: Sequence[Route],
    settings: Settings,
    *,
    presence_changed: Callable[[], None] = unheeded,
) -> int:
    """Write the row, then show presence; returns the worker's number. A live worker of that id refuses.

    Once the row is written, the registration stands: a presence that cannot be shown or reported now is reported by a
    heartbeat.
    """
    namesake = await database.transact(workers.live_namesake, who.id, who.incarnation)
    gone = await database.presence.absent([namesake]) if namesake is not None else set()
    ttl_us = microseconds(settings.worker_ttl)
    if who.pool is None:
        seq = await database.transact(workers.register, who, routes, ttl_us=ttl_us, gone=gone)
    else:  # a worker of a pool has no other place than the one that was opened for it
        seq = await database.transact(pools.occupy, who, routes, ttl_us=ttl_us)
    present = await database.presence.hold(seq, presence_changed)
    if database.presence.disputed(seq):
        # Before anything is claimed under this number: what the other claimed under it has another epoch.
        await database.transact(epoch.bump)
    with contextlib.suppress(Unavailable):
        await database.transact(workers.advertise_presence, seq, presence=present)
    return seq
