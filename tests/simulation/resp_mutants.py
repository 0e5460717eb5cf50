"""Planted bugs of the Redis-protocol gateway, both of AGX as it is documented. The simulation must notice each."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from holdfast.kernel.brokers import ClaimNotes
from holdfast.kernel.database import Transaction
from holdfast.resp.endings import PoppedJob
from holdfast.resp.jobs import Reporter, update
from holdfast.resp.pops import Claimed, ClaimRequest, claim_asked, claim_at_once
from holdfast.resp.workers import give_up_silent
from tests.simulation.mutants import Mutant, replace
from tests.simulation.world import World

HALF_A_DAY_US = 43_200_000_000


async def _leave_them(tx: Transaction, *, limit: int, chance: Random, until: int) -> bool:
    return False


def _plant_pop_without_lease(world: World) -> None:
    replace(claim_asked, _take_out)(world)
    replace(claim_at_once, _take_out_at_once)(world)
    replace(give_up_silent, _leave_them)(world)


async def _take_out(tx: Transaction, asks: Sequence[ClaimRequest], notes: ClaimNotes, *, ttl_us: int) -> Claimed:
    """The job has left its queue, and no lease brings it back."""
    return await claim_asked(tx, asks, notes, ttl_us=HALF_A_DAY_US)


async def _take_out_at_once(
    tx: Transaction, asks: Sequence[ClaimRequest], notes: ClaimNotes, *, ttl_us: int
) -> Claimed:
    return await claim_at_once(tx, asks, notes, ttl_us=HALF_A_DAY_US)


async def _believe(tx: Transaction, who: Reporter, public: str, body: dict[str, Any]) -> PoppedJob | None:
    named = body.get("worker_id")
    return await update(tx, who if named is None else who._replace(worker=named, epoch=None), public, body)


MUTANTS: Final = (
    Mutant(
        "pop without a lease",
        "a pop takes the job out of its queue, and nothing brings it back when the reply is lost or the worker dies",
        _plant_pop_without_lease,
    ),
    Mutant(
        "identity from the message",
        "who reports about a job is who the message says, not whose key the connection has shown",
        replace(update, _believe),
    ),
)
