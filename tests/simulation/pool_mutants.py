"""Planted bugs of pools: mistakes that pools of workers really make. The simulation must notice each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.kernel import pools
from holdfast.kernel.database import Transaction
from holdfast.kernel.pools import PoolTerms, ResizeResult
from holdfast.workers.worker import Worker
from tests.simulation.mutants import Mutant, Plant, replace
from tests.simulation.pools import PoolWorker, PoolWorld
from tests.simulation.world import World


async def _resize_by_an_earlier_look(tx: Transaction, terms: PoolTerms, *, ids: list[str], **_: Any) -> ResizeResult:
    """What the keeper saw before, which another keeper has seen too."""
    return ResizeResult(await pools._open(tx, terms, ids), ())


class ForgetsToDrain(PoolWorker):
    """When its work is done it is idle again, and claims."""

    def _check_idle(self) -> None:
        super()._check_idle()
        if not len(self.holdings):
            self.leaving.clear()


def _employ_in_pools(make_worker: Callable[..., Worker]) -> Plant:
    def plant(world: World) -> None:
        assert isinstance(world, PoolWorld)
        for keeper in world.keepers:
            keeper.make_worker = make_worker

    return plant


MUTANTS: Final = (
    Mutant(
        "over-spawn by two deciders",
        "each keeper starts what it saw missing, without looking again under its turn",
        replace(pools.resize, _resize_by_an_earlier_look),
        soon=17,
    ),
    Mutant(
        "drain that claims again",
        "a worker that ended its last job forgets that it drains (Universal Agent)",
        _employ_in_pools(ForgetsToDrain),
        soon=5,
    ),
)
