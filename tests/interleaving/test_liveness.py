"""Nobody waits for a transaction with which it has nothing to do; and the harness notices when somebody does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.interleaving.liveness import BY_NATURE, HOLDS, MUTANTS, Everything, Held, Waits, judge_pair, play
from tests.interleaving.mutants import Mutant
from tests.interleaving.stage import staged
from tests.support.stores import SharedDatabase

pytestmark = pytest.mark.timeout(600)  # a slow machine is no failure


@pytest.mark.sample(1)
@pytest.mark.parametrize("holds", [HOLDS[::4], HOLDS], ids=["some", "all"])
async def test_nobody_waits_for_a_row_that_somebody_else_holds(
    holds: Sequence[Held], shared_database: SharedDatabase
) -> None:
    shared_database.empty()
    async with staged(shared_database.url, Everything) as stage:
        waits = [each async for each in play(stage, holds, every=False)]
    assert not waits, "\n".join(waits)


def test_whatever_waits_by_nature_is_a_case_that_there_is() -> None:
    cases = {(held.what, name) for held in HOLDS for name in Everything.verbs()}
    assert BY_NATURE.keys() <= cases


@pytest.mark.sample(2)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
async def test_an_operation_that_waits_is_noticed(mutant: Mutant, shared_database: SharedDatabase) -> None:
    shared_database.empty()
    await judge_pair(shared_database.url, mutant.pair)
    shared_database.empty()
    with pytest.raises(Waits):
        await judge_pair(shared_database.url, mutant.pair, mutant.plant)
