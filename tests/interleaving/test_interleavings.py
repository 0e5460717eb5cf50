"""Every pair of verbs in every scene, the first stopped after one of its statements; `make interleave` has them all."""

from __future__ import annotations

import pytest

from tests.interleaving.known import MENDED
from tests.interleaving.scenes import SCENES, cases, judge_pair
from tests.interleaving.stage import Wrong, staged
from tests.support.stores import SharedDatabase

pytestmark = pytest.mark.timeout(600)  # a slow machine is no failure


@pytest.mark.sample(1)
@pytest.mark.parametrize("scene", SCENES)
async def test_two_verbs_at_once_do_what_they_do_one_after_the_other(
    scene: str, shared_database: SharedDatabase
) -> None:
    shared_database.empty()
    async with staged(shared_database.url, SCENES[scene]) as stage:
        wrong: list[str] = []
        async for case in cases(stage, every=False):
            try:
                await stage.judge(case, briefly=True)
            except Wrong as problem:
                wrong.append(str(problem))
        assert not wrong, "\n".join(wrong)


@pytest.mark.sample(3)
@pytest.mark.parametrize("pair", MENDED)
async def test_a_mended_pair_stays_right(pair: str, shared_database: SharedDatabase) -> None:
    shared_database.empty()
    await judge_pair(shared_database.url, pair)
