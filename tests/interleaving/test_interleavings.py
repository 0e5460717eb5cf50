"""Every pair of verbs in every scene, the first stopped after one of its statements; `make interleave` has them all."""

from __future__ import annotations

import pytest

from tests.interleaving.known import KNOWN, MENDED
from tests.interleaving.scenes import SCENES, cases, judge_pair
from tests.interleaving.stage import Wrong, staged
from tests.support.stores import SharedDatabase

pytestmark = pytest.mark.timeout(600)  # a slow machine is no failure


@pytest.mark.parametrize("scene", SCENES)
async def test_two_verbs_at_once_do_what_they_do_one_after_the_other(
    scene: str, shared_database: SharedDatabase
) -> None:
    shared_database.empty()
    async with staged(shared_database.url, SCENES[scene]) as stage:
        wrong: list[str] = []
        async for case in cases(stage, every=False):
            if case.pair not in KNOWN:
                try:
                    await stage.judge(case, briefly=True)
                except Wrong as problem:
                    wrong.append(str(problem))
        assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "pair", [pytest.param(pair, marks=pytest.mark.xfail(raises=Wrong, reason=why)) for pair, why in KNOWN.items()]
)
async def test_a_known_defect_is_still_there(pair: str, shared_database: SharedDatabase) -> None:
    """When this passes the defect is mended: move the pair from `KNOWN` to `MENDED`."""
    shared_database.empty()
    await judge_pair(shared_database.url, pair)


@pytest.mark.parametrize("pair", MENDED)
async def test_a_mended_pair_stays_right(pair: str, shared_database: SharedDatabase) -> None:
    shared_database.empty()
    await judge_pair(shared_database.url, pair)
