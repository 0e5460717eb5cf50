"""Known bugs, planted one at a time: the harness must find each of them."""

from __future__ import annotations

import pytest

from tests.interleaving.mutants import MUTANTS, SLIPS, Mutant, Slip
from tests.interleaving.scenes import SCENES, cases
from tests.interleaving.stage import Wrong, staged
from tests.support.stores import SharedDatabase


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
async def test_a_lock_that_is_left_out_is_noticed(mutant: Mutant, shared_database: SharedDatabase) -> None:
    await judge_all(mutant.pair, shared_database)
    with pytest.raises(Wrong):
        await judge_all(mutant.pair, shared_database, mutant)


async def judge_all(pair: str, shared: SharedDatabase, mutant: Mutant | None = None) -> None:
    shared.empty()
    async with staged(shared.url, SCENES[pair.partition("/")[0]]) as stage:
        tried = [case async for case in cases(stage, every=True) if case.pair == pair]
        assert tried, f"there is no pair {pair}"
        if mutant is not None:
            mutant.plant(stage.database)
        for case in tried:
            await stage.judge(case)


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.what)
async def test_a_pause_or_fence_that_is_left_out_is_noticed(
    slip: Slip, shared_database: SharedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_database.empty()
    slip.plant(monkeypatch)
    with pytest.raises(AssertionError):
        await slip.script(shared_database.url)
