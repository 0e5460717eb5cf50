"""Calls that replace each other while workers claim: nobody is stranded, and no accepted arguments are dropped.

`HOLDFAST_TEST_LOAD=10` makes each of them ten times as large: 1,200 lanes, 3,000 keys.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence

import pytest

from holdfast.client.jobs import JobFunction
from tests.chaos import replacing
from tests.chaos.scene import Scene
from tests.support.apps import eventually

pytestmark = pytest.mark.chaos

LOAD = int(os.environ.get("HOLDFAST_TEST_LOAD", "1"))
LANES = 120 * LOAD
KEYS = 300 * LOAD
DEBOUNCED = 30 * LOAD
CALLERS = 8
WORKERS = 2


@pytest.fixture
async def working(scene: Scene) -> AsyncIterator[Scene]:
    replacing.hf.settings = replacing.hf.settings.override({"url": scene.url})
    for _ in range(WORKERS):
        member = scene.crew.start("holdfast", "worker", "tests.chaos.replacing:hf", "--url", scene.url)
        await member.says("registered as")
    yield scene
    await replacing.hf.close()


async def play(
    scene: Scene, job: JobFunction[..., None], keys: Sequence[str], rounds: int, *, laned: bool = False
) -> dict[str, int]:
    """Call for each key several times in a row, while workers claim; returns the last number of each.

    The keys of one lane are called for at the same time.
    """

    async def caller(mine: Sequence[str]) -> None:
        for key in mine:
            lane = key.partition("/")[0] if laned else None
            for number in range(rounds):
                handle = await job.options(unique_key=key, lane=lane).enqueue(str(scene.witness), key, number)
                assert handle.fresh or handle.replaced, "a call is accepted, or it says so"

    await asyncio.gather(*(caller(keys[n::CALLERS]) for n in range(CALLERS)))
    return dict.fromkeys(keys, rounds - 1)


async def everybody_ran(scene: Scene, kind: str) -> None:
    """Until nothing waits or runs; gives up when nothing has ended for long."""
    counted = f"select state, count(*) from holdfast.job_now where kind = '{kind}' group by state"
    seen: dict[str, int] = {}

    async def more_ended() -> bool:
        nonlocal seen
        before = seen.get("succeeded", -1)
        now = dict(await scene.watch.query(counted))
        if now.get("succeeded", -1) == before and set(now) != {"succeeded"}:
            return False
        seen = now
        return True

    while set(seen) != {"succeeded"}:
        try:
            await eventually(more_ended)
        except TimeoutError:
            pytest.fail(f"these jobs of {kind} are left: {seen}")


def dropped(scene: Scene, last: dict[str, int]) -> list[str]:
    """Keys whose last arguments nobody has run with."""
    ran = set(scene.witness.lines)
    return [key for key, number in last.items() if f"{key} {number}" not in ran]


@pytest.mark.long
async def test_nobody_is_stranded_in_lanes_while_calls_replace_each_other(working: Scene) -> None:
    keys = [f"{lane}/{place}" for lane in range(LANES) for place in range(4)]
    last = await play(working, replacing.laned, keys, 5, laned=True)
    await everybody_ran(working, "laned")
    assert dropped(working, last) == []


async def test_no_accepted_arguments_are_dropped_while_workers_claim(working: Scene) -> None:
    last = await play(working, replacing.plain, [f"key-{n}" for n in range(KEYS)], 5)
    await everybody_ran(working, "plain")
    assert dropped(working, last) == []


async def test_debounced_calls_with_a_limit_all_run_in_the_end(working: Scene) -> None:
    last = await play(working, replacing.debounced, [f"page-{n}" for n in range(DEBOUNCED)], 8)
    await everybody_ran(working, "debounced")
    assert dropped(working, last) == []
