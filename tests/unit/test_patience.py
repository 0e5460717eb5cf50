"""Tests wait for what will come as long as they see it come nearer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from tests.support.apps import PATIENCE, eventually
from tests.support.virtual_time import VirtualLoop


def wait_for_the_tenth(progress: Callable[[int], object]) -> float:
    """Something comes ten times, always a little before the patience would end; returns when the last one came."""
    loop = VirtualLoop(Random(1))

    async def play() -> float:
        came = 0

        async def enough() -> bool:
            nonlocal came
            await asyncio.sleep(0.9 * PATIENCE)
            came += 1
            return came == 10

        await eventually(enough, lambda: progress(came))
        return loop.time()

    try:
        return loop.run_until_complete(play())
    finally:
        loop.close()


def test_progress_is_waited_for_however_long_it_takes() -> None:
    assert wait_for_the_tenth(lambda came: came) >= 9 * PATIENCE


def test_what_gets_nowhere_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        wait_for_the_tenth(lambda came: "nothing new")
