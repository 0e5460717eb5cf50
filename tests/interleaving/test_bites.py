"""Known bugs, planted one at a time: the harness must find each of them."""

from __future__ import annotations

import pytest

from tests.interleaving.mutants import MUTANTS, SLIPS, Mutant, Slip
from tests.interleaving.scenes import judge_pair
from tests.interleaving.stage import Wrong
from tests.support.stores import SharedDatabase


@pytest.mark.sample(2)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
async def test_a_lock_that_is_left_out_is_noticed(mutant: Mutant, shared_database: SharedDatabase) -> None:
    shared_database.empty()
    await judge_pair(shared_database.url, mutant.pair)
    shared_database.empty()
    with pytest.raises(Wrong):
        await judge_pair(shared_database.url, mutant.pair, mutant.plant)


@pytest.mark.sample(1)
@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.what)
async def test_a_pause_or_fence_that_is_left_out_is_noticed(
    slip: Slip, shared_database: SharedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_database.empty()
    slip.plant(monkeypatch)
    with pytest.raises(AssertionError):
        await slip.script(shared_database.url)
