"""Duties: maintenance done by one holder at a time.

Holding a duty only saves work. Each of its writes names the term and is refused when a newer one exists, so a
holder that was frozen past its term can do no harm.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.errors import StoreRefused
from holdfast.kernel.database import Transaction, single
from holdfast.kernel.lanes import prune_lanes
from holdfast.kernel.records import Term
from holdfast.kernel.statements import Lanes, Waiting, Workers
from holdfast.kernel.workers import prune_routes

CLEANUP = "cleanup"
SCHEDULES = "schedules"
DUTIES = (CLEANUP, SCHEDULES)
ROUTE_AGE_US = 86_400_000_000
_LIMIT = 1_000


class DutyLost(StoreRefused):
    """Another worker holds this duty now; stop doing it."""


@single
async def acquire(tx: Transaction, name: str, worker: int, *, ttl_us: int, gone: Collection[int]) -> Term | None:
    """Take a duty that is free, has run out, or whose holder is among `gone`; None when it is held."""
    return await tx.one(Workers.acquire_duty, name=name, worker=worker, ttl_us=ttl_us, gone=sorted(gone))


@single
async def renew(tx: Transaction, term: Term, worker: int, *, ttl_us: int) -> bool:
    return await tx.one(Workers.renew_duty, **term._asdict(), worker=worker, ttl_us=ttl_us) is not None


@single
async def release(tx: Transaction, term: Term, worker: int) -> None:
    await tx.run(Workers.release_duty, **term._asdict(), worker=worker)


async def hold(tx: Transaction, term: Term, worker: int) -> None:
    """The first call of every maintenance transaction: raises `DutyLost` when the term is over."""
    if await tx.one(Workers.hold_duty, **term._asdict(), worker=worker) is None:
        raise DutyLost(f"term {term.term} of duty {term.name!r} is over.")


async def clean_up(tx: Transaction, term: Term, worker: int, *, key_age_us: int, worker_age_us: int) -> None:
    """Remove what nobody needs any more: old workers, spent keys, unused routes, channels and lanes."""
    await hold(tx, term, worker)
    await tx.run(Workers.prune_workers, age_us=worker_age_us)
    await tx.run(Workers.prune_keys, age_us=key_age_us)
    await prune_routes(tx, age_us=ROUTE_AGE_US, limit=_LIMIT)
    await tx.run(Waiting.prune_channels)
    await prune_lanes(tx, age_us=ROUTE_AGE_US, limit=_LIMIT)
    await tx.run(Lanes.open_stranded, limit=_LIMIT)
