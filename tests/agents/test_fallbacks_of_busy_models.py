"""Fallbacks of a model that answers some calls and refuses others: it is given up by those who have waited for it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.agents.lanes import close_spent
from holdfast.app import core_of
from holdfast.models.script import Script, say
from holdfast.models.simulator import simulator
from holdfast.testing import Lab, Labs
from tests.agents.test_fallbacks import FIRST, SECOND, changes, rule

pytestmark = pytest.mark.asyncio

BUSY: list[dict[str, Any]] = [
    {"match": {"model": FIRST, "nth": nth}, "do": {"status": 429, "retry_after": 9}} for nth in range(4, 400, 4)
]


async def seconds_of_crowd(lab: Lab, seconds: int) -> None:
    await lab.drain()
    for _ in range(seconds):
        await lab.clock.advance("1s")
        await lab.drain()


async def test_who_comes_to_a_model_that_answers_others_waits_for_it(hf: Holdfast, provided: Labs) -> None:
    async with simulator(script=Script(say("up")), rules=BUSY) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
        plain = hf.agent("b", model=FIRST)
        lab = await provided.use(hf)
        crowd = [await plain.enqueue("Go") for _ in range(60)]
        await seconds_of_crowd(lab, 30)
        closed = 0
        for _ in range(12):
            await seconds_of_crowd(lab, 1)
            closed += len(await hf.lanes.list())
            newcomer = await agent.enqueue("Go")
            await lab.drain()
            assert changes(await newcomer.events()) == []
        answered = [(await run.refresh()).state for run in crowd].count("completed")
        assert closed, "the lane is closed again and again"
        assert 5 < answered < 60, "and lets some through each time"


async def test_who_has_waited_long_enough_for_a_busy_model_asks_the_next(hf: Holdfast, provided: Labs) -> None:
    """However many others are answered meanwhile."""
    rules = [rule(FIRST, status=429, retry_after=9)]
    async with simulator(script=Script(say("up")), rules=rules) as provider:
        hf.settings = hf.settings.override({"provider_url": provider.url})
        agent = hf.agent("a", model=FIRST, fallbacks=[SECOND])
        lab = await provided.use(hf)
        begun = lab.clock.wall_us()
        run = await agent.enqueue("Go")
        await lab.drain()
        (lane,) = [each.name for each in await hf.lanes.list()]
        while (await run.refresh()).state != "completed":
            assert (lab.clock.wall_us() - begun) / 1e6 < 32
            await lab.clock.advance("1s")
            await core_of(hf).runtime().transact(close_spent, lane, 5_000_000)  # somebody is answered each second
            await lab.drain()
        assert changes(await run.events()) == [(FIRST, SECOND)]
        assert (lab.clock.wall_us() - begun) / 1e6 >= 20
